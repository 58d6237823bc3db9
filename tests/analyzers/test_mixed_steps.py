"""Whose time mixed steps are, and what decode's bound says of the cost of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_builder import MS, Engine, inputs, one_after_another, open_loop, profiled, replay
from step_builder import decodes, fitted, mixed_sizes, steps_of

from spyreprof.recording.schema import ModelFacts
from spyreprof.rules import load_rules
from spyreprof.targets import Targets
from spyreprof_analyzers.book import EvidenceBook
from spyreprof_analyzers.bounds import Bound
from spyreprof_analyzers.decode_cost import decode_cost, with_decode_cost
from spyreprof_analyzers.diagnose import diagnose
from spyreprof_analyzers.mixed_steps import BY_DECODE, BY_MODEL, BY_TOKENS, mixed_share

RULES = load_rules()
UNDETERMINED = Bound("undetermined", "no profiled step of this phase")


def steps_with_prompts(tokens, *, constant_ms: float, token_ms: float, decodes_ms: float = 60.0):
    """Decode steps of four requests, and steps with these prompt tokens beside them."""
    count = 120
    tokens = np.concatenate((np.zeros(count, dtype=np.int64), np.asarray(tokens)))
    mixed = tokens > 0
    cost = np.where(mixed, constant_ms + token_ms * tokens, decodes_ms) * MS
    return steps_of(
        cost, generation_requests=4, generation_seq_len_sum=400, context_tokens=tokens,
        context_requests=mixed.astype(np.int64), context_q_k_sum=tokens * tokens,
    )  # fmt: skip


def test_the_fitted_cost_of_prompt_tokens_is_prefills_part_of_a_mixed_step() -> None:
    """Arithmetic hides the reading of weights here: the constant is less than a decode step."""
    tokens = mixed_sizes({100: 50, 200: 50, 300: 50})
    steps = steps_with_prompts(tokens, constant_ms=10.0, token_ms=0.5)
    found = mixed_share(steps, fitted(steps), RULES)
    assert found.basis == BY_MODEL
    assert found.ratio == pytest.approx(100 / 110, abs=0.03)


def test_with_a_cost_that_is_not_determined_the_median_decode_step_decides() -> None:
    tokens = np.full(150, 200)
    steps = steps_with_prompts(tokens, constant_ms=10.0, token_ms=0.5)
    found = mixed_share(steps, fitted(steps), RULES)
    assert found.basis == BY_DECODE
    assert found.ratio == pytest.approx(50 / 110, abs=0.01)
    assert mixed_share(steps, None, RULES) == found


def test_with_neither_tokens_decide_and_without_mixed_steps_nothing_is_split() -> None:
    only = steps_of([50 * MS] * 10, generation_requests=4, context_tokens=12, context_requests=1)
    assert mixed_share(only, None, RULES).basis == BY_TOKENS
    assert mixed_share(only, None, RULES).ratio == pytest.approx(12 / 16)
    assert mixed_share(decodes([4] * 50), None, RULES).ratio == 0.0


def test_the_report_says_by_what_mixed_steps_were_split() -> None:
    engine = Engine(fixed_ns=10 * MS, per_context_token_ns=MS)
    run = replay(engine, open_loop(1, 1.5, 120, (10, 60), (6, 30)))
    diagnosis = diagnose(inputs(run, engine), RULES, Targets())
    shares = [one for one in diagnosis.evidence if one.metric == "window.prefill_share"]
    assert shares
    assert all(BY_MODEL in one.method for one in shares)


def test_decode_that_memory_binds_is_told_apart_into_weights_and_cache() -> None:
    steps = decodes(mixed_sizes({4: 60, 8: 60, 12: 60, 16: 60}), fixed_ms=30.0, each_ms=0.5, cached_ns=4_000.0)
    model, book = fitted(steps), EvidenceBook()
    truth = 4_000.0 * steps.generation_seq_len_sum.sum() / steps.duration_ns.sum()
    found = with_decode_cost(Bound("memory_bandwidth", "it reads"), model, 0.4, RULES, book)
    assert found.resource == "memory_bandwidth"
    assert found.reason.startswith("it reads; by the slope test ")
    assert found.reason.endswith("of a decode step reads the KV cache")
    (cited,) = (one for one in book.evidence if one.id in found.evidence)
    assert cited.value == pytest.approx(truth, abs=0.03)
    assert "nothing tells what was executed" in cited.method


def test_a_decode_step_that_nothing_splits_is_called_a_fixed_cost() -> None:
    engine = Engine(fixed_ns=60 * MS, per_request_ns=MS, max_num_seqs=12)
    run = replay(engine, open_loop(1, 0.9, 200, (10, 20), (12, 60)))
    plain = inputs(run, engine, model=ModelFacts())
    diagnosis = diagnose(plain, RULES, Targets())
    decode = next(phase for phase in diagnosis.phases if phase.phase == "decode")
    assert decode.bound == "fixed_cost"
    assert "fixed cost, not split into weights and host" in decode.reason
    assert diagnosis.verdict.primary == "undetermined"
    assert "fixed cost, not split" in diagnosis.verdict.reason
    # the least that reading the weights takes splits it, and so does a profiled step
    for witness in ({"model": inputs(run, engine).model}, {"profiled_steps": shown(run)}):
        other = diagnose(replace(plain, **witness), RULES, Targets())
        assert next(phase for phase in other.phases if phase.phase == "decode").bound != "fixed_cost"


def shown(run):
    return profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)


@pytest.mark.parametrize(("fixed_ms", "called"), [(22.0, True), (14.0, False)])
def test_a_step_is_mostly_fixed_from_one_half_on(fixed_ms: float, called: bool) -> None:
    model = fitted(decodes(mixed_sizes({4: 60, 8: 60, 12: 60, 16: 60}), fixed_ms=fixed_ms, each_ms=2.0))
    found = with_decode_cost(UNDETERMINED, model, None, RULES, EvidenceBook())
    assert (decode_cost(model).fixed >= 0.5) is called
    assert (found.resource == "fixed_cost") is called


def test_without_a_fit_the_bound_stays_what_it_was() -> None:
    assert with_decode_cost(UNDETERMINED, None, None, RULES, EvidenceBook()) == UNDETERMINED
    constant = fitted(decodes([4] * 200))
    assert with_decode_cost(UNDETERMINED, constant, None, RULES, EvidenceBook()) == UNDETERMINED
    known = Bound("host", "it waits")
    varied = fitted(decodes(mixed_sizes({4: 60, 8: 60, 12: 60})))
    assert with_decode_cost(known, varied, None, RULES, EvidenceBook()) == known


def test_one_client_at_a_time_leaves_no_fixed_cost_to_speak_of() -> None:
    engine = Engine()
    run = replay(engine, one_after_another(40, 8, 20))
    diagnosis = diagnose(inputs(run, engine, model=ModelFacts()), RULES, Targets())
    assert next(phase for phase in diagnosis.phases if phase.phase == "decode").bound == "undetermined"
