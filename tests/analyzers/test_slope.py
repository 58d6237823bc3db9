"""The slope test recovers known costs, and refuses what the data cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_builder import MS, Engine, S, inputs, one_after_another, open_loop, replay
from step_builder import decodes, fitted, mixed_sizes, reasons, steps_of, threshold

from spyreprof.rules import load_rules
from spyreprof_analyzers import slope_tests
from spyreprof_analyzers.engine_steps import DECODE, engine_steps
from spyreprof_analyzers.slope import cycle_ns, fit_step_model
from spyreprof_analyzers.slope_tests import FIXED, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_Q_K, PER_REQUEST

VARIED = {2: 60, 4: 60, 8: 60, 12: 60}


def fitted_run(engine: Engine, arrivals):
    run = replay(engine, arrivals)
    steps = engine_steps(inputs(run, engine).steps, "1-a")
    return fit_step_model(steps, cycle_ns(steps, 100 * MS), load_rules())


def prompts(tokens, *, constant_ms=20.0, token_ms=0.1, pair_ns=0.0, beside=0, lengths=None, noise=0.01, seed=0):
    """Steps with prompt tokens."""
    rng = np.random.default_rng(seed)
    tokens = np.asarray(tokens)
    pairs = tokens * (tokens if lengths is None else np.asarray(lengths))
    cost = (constant_ms + token_ms * tokens) * MS + pair_ns * pairs
    return steps_of(
        cost * (1.0 + noise * rng.standard_normal(len(tokens))), context_requests=1, context_tokens=tokens,
        context_q_k_sum=pairs, generation_requests=beside,
    )  # fmt: skip


def test_known_costs_are_recovered_within_their_intervals() -> None:
    engine = Engine(fixed_ns=40 * MS, per_request_ns=5 * MS, per_context_token_ns=MS // 2, noise=0.03)
    model = fitted_run(engine, open_loop(1, 1.5, 120, (10, 60), (6, 30)))
    assert model.identified(FIXED) == pytest.approx(40 * MS, rel=0.1)
    assert model.identified(PER_REQUEST) == pytest.approx(5 * MS, rel=0.15)
    assert model.identified(PER_CONTEXT_TOKEN) == pytest.approx(MS / 2, rel=0.2)
    assert model.fit.relative_residual < 0.03
    truth = {FIXED: 40 * MS, PER_REQUEST: 5 * MS, PER_CONTEXT_TOKEN: MS / 2}
    assert all(term.low <= truth[term.name] <= term.high for term in model.fit.terms if term.identifiable)


def test_reading_the_cache_is_told_from_requests_where_lengths_vary() -> None:
    model = fitted(decodes(mixed_sizes(VARIED), cached_ns=3_000.0))
    assert model.identified(PER_CACHED_TOKEN) == pytest.approx(3_000.0, rel=0.1)
    assert model.identified(PER_REQUEST) == pytest.approx(2 * MS, rel=0.2)


def test_where_lengths_go_with_requests_one_coefficient_holds_both_costs() -> None:
    sizes = mixed_sizes(VARIED)
    model = fitted(decodes(sizes, cached_ns=3_000.0, lengths=500 * sizes))
    assert "moves together" in reasons(model)[PER_CACHED_TOKEN]
    assert model.identified(PER_REQUEST) == pytest.approx(2 * MS + 500 * 3_000, rel=0.1)


@pytest.mark.parametrize(("scatter", "told"), [(0.25, False), (0.5, True)])
def test_lengths_and_requests_are_one_term_from_a_correlation_of_nearly_one(scatter: float, told: bool) -> None:
    sizes = mixed_sizes(VARIED)
    lengths = (500 * sizes * (1.0 + scatter * np.random.default_rng(4).uniform(-1, 1, len(sizes)))).astype(np.int64)
    correlation = abs(np.corrcoef(sizes, lengths)[0, 1])
    assert (correlation > threshold("max_correlation")) is not told
    refused = reasons(fitted(decodes(sizes, cached_ns=9_000.0, lengths=lengths))).get(PER_CACHED_TOKEN, "")
    assert ("moves together" in refused) is not told


def test_prompts_share_no_constant_with_decodes() -> None:
    """Where arithmetic hides the reading of weights, the constant of a step with prompts is the host's alone."""
    sizes, tokens = mixed_sizes(VARIED), mixed_sizes({100: 60, 200: 60, 300: 60})
    alone, with_prompts = decodes(sizes, fixed_ms=60.0), prompts(tokens, constant_ms=5.0, token_ms=0.5)
    first = alone.duration_ns
    joined = steps_of(
        np.concatenate((first, with_prompts.duration_ns)),
        generation_requests=np.concatenate((sizes, np.zeros_like(tokens))),
        generation_seq_len_sum=np.concatenate((alone.generation_seq_len_sum, np.zeros_like(tokens))),
        context_tokens=np.concatenate((np.zeros_like(sizes), tokens)),
        context_q_k_sum=np.concatenate((np.zeros_like(sizes), with_prompts.context_q_k_sum)),
    )
    model = fitted(joined)
    assert model.identified(FIXED) == pytest.approx(60 * MS, rel=0.05)
    assert model.identified(PER_CONTEXT_TOKEN) == pytest.approx(MS / 2, rel=0.05)


def test_padding_that_is_told_is_the_work_that_was_done() -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 17), 30))
    rows = np.array([next(b for b in (4, 8, 16) if b >= size) for size in sizes])
    noise = 1.0 + 0.01 * np.random.default_rng(2).standard_normal(len(rows))
    work = {"generation_requests": sizes, "generation_seq_len_sum": 300 * sizes}
    times = (20 + 3 * rows) * MS * noise
    told = fitted(steps_of(times, executed_generation_requests=rows, **work))
    assert told.fit.executed
    assert told.identified(PER_REQUEST) == pytest.approx(3 * MS, rel=0.03)
    assert told.fit.relative_residual < 0.01
    guessed = fitted(steps_of(times, **work))
    assert not guessed.fit.executed
    assert guessed.fit.relative_residual > 0.03


def test_less_than_was_scheduled_was_not_executed() -> None:
    steps = decodes([4] * 50, executed_generation_requests=2, executed_generation_seq_len_sum=-1)
    assert steps.executed_generation_requests.tolist() == [4] * 50
    assert steps.executed_generation_seq_len_sum.tolist() == steps.generation_seq_len_sum.tolist()


def test_steps_that_verify_drafts_are_decode() -> None:
    steps = decodes([3] * 50, generation_tokens=12, speculative_tokens=9)
    assert (steps.phase == DECODE).all()


@pytest.mark.parametrize("flat_first", [True, False])
def test_a_line_is_not_laid_across_a_knee(flat_first: bool) -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 33), 40))
    cost = np.where((sizes > 16) == flat_first, 2.5 * np.abs(sizes - 16), 0.0)
    cost = 50.0 + cost if flat_first else 200.0 - cost
    noise = 1.0 + 0.01 * np.random.default_rng(2).standard_normal(len(sizes))
    model = fitted(steps_of(cost * MS * noise, generation_requests=sizes, generation_seq_len_sum=300 * sizes))
    assert model.fit.knee_requests == pytest.approx(16, abs=3)
    # most of the time was spent above it
    assert model.fit.batch_low == model.fit.knee_requests
    if flat_first:
        assert model.identified(PER_REQUEST) == pytest.approx(2.5 * MS, rel=0.1)


def test_a_straight_line_has_no_knee_however_noisy() -> None:
    for seed in range(6):
        sizes = mixed_sizes(dict.fromkeys((6, 7, 8) if seed % 2 else range(1, 33), 80), seed)
        assert fitted(decodes(sizes, noise=0.1, seed=seed)).fit.knee_requests is None


def test_a_constant_batch_leaves_the_fixed_cost_unsplit() -> None:
    model = fitted_run(Engine(), one_after_another(30, 8, 20))
    refused = reasons(model)
    assert PER_REQUEST in refused
    assert "not split" in refused[FIXED]


@pytest.mark.parametrize(("of_third", "told"), [(19, False), (20, True)])
def test_a_batch_size_counts_from_twenty_steps_on_and_three_are_needed(of_third: int, told: bool) -> None:
    model = fitted(decodes(mixed_sizes({2: 80, 6: 80, 12: of_third})))
    assert (model.identified(PER_REQUEST) is not None) is told
    assert (model.identified(FIXED) is not None) is told
    if not told:
        assert "2 of 3 batch sizes" in reasons(model)[PER_REQUEST]


@pytest.mark.parametrize(("of_one", "told"), [(950, True), (960, False)])
def test_one_size_may_hold_no_more_than_nineteen_steps_of_twenty(of_one: int, told: bool) -> None:
    model = fitted(decodes(mixed_sizes({4: of_one, 2: 25, 12: 25})))
    assert (model.identified(PER_REQUEST) is not None) is told


@pytest.mark.parametrize(("count", "there"), [(39, False), (40, True)])
def test_with_fewer_steps_than_the_rule_wants_there_is_no_model(count: int, there: bool) -> None:
    assert threshold("min_steps") == threshold("min_steps_of_kind") == 40
    assert (fitted(decodes(np.tile([2, 6, 12], 20)[:count])) is not None) is there


def test_too_few_steps_give_no_model() -> None:
    assert fitted_run(Engine(), one_after_another(1, 8, 20)) is None


def test_steps_without_counts_give_no_model() -> None:
    assert fitted(decodes([4] * 100, context_tokens=-1)) is None


def test_lengths_that_are_not_told_refuse_the_cost_of_the_cache_and_nothing_else() -> None:
    model = fitted(decodes(mixed_sizes(VARIED), lengths=np.full(240, -1)))
    assert reasons(model) == {PER_CACHED_TOKEN: "the lengths of the sequences are not told"}
    assert model.identified(PER_REQUEST) is not None


@pytest.mark.parametrize(("spread", "told"), [(0.04, False), (0.06, True)])
def test_prompts_of_nearly_one_length_tell_no_cost_per_token(spread: float, told: bool) -> None:
    tokens = (500 * (1.0 + spread * np.tile([-1.0, 1.0], 200))).astype(np.int64)
    model = fitted(prompts(tokens, constant_ms=1.0, noise=0.0001))
    assert (model.identified(PER_CONTEXT_TOKEN) is not None) is told
    if not told:
        assert "nearly the same number" in reasons(model)[PER_CONTEXT_TOKEN]


def test_prompts_that_fill_up_what_decodes_leave_are_not_told_from_them() -> None:
    beside = mixed_sizes(dict.fromkeys(range(1, 60), 10))
    model = fitted(prompts(256 - beside, beside=beside))
    assert reasons(model)[PER_CONTEXT_TOKEN] == "moves together with the decodes of the same steps"


def test_attention_is_told_from_prompt_tokens_where_chunks_start_anywhere() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(64, 512, 600)
    model = fitted(prompts(tokens, pair_ns=40.0, lengths=rng.integers(512, 6000, 600)))
    assert model.identified(PER_Q_K) == pytest.approx(40.0, rel=0.1)
    assert model.identified(PER_CONTEXT_TOKEN) == pytest.approx(MS / 10, rel=0.1)


@pytest.mark.parametrize(("factor", "told"), [(1.25, True), (1.45, False)])
def test_a_cost_that_moves_between_the_halves_follows_the_machine_and_not_the_work(factor: float, told: bool) -> None:
    first, second = (
        decodes(mixed_sizes(VARIED, seed), each_ms=e, seed=seed) for seed, e in ((1, 4.0), (2, 4.0 * factor))
    )
    joined = steps_of(
        np.concatenate((first.duration_ns, second.duration_ns)),
        generation_requests=np.concatenate((first.generation_requests, second.generation_requests)),
        generation_seq_len_sum=np.concatenate((first.generation_seq_len_sum, second.generation_seq_len_sum)),
    )
    model = fitted(joined)
    assert (model.identified(PER_REQUEST) is not None) is told
    if not told:
        assert "between the halves" in reasons(model)[PER_REQUEST]
        assert "not split" in reasons(model)[FIXED]


@pytest.mark.parametrize(
    ("own", "drift"), [(True, "own_machine_drift"), (False, "machine_drift"), (None, "machine_drift")]
)
def test_every_interval_holds_the_drift_of_the_machine(own: bool | None, drift: str) -> None:
    """A narrow bootstrap proves nothing: the next run is faster or slower as a whole."""
    model = fitted(decodes(mixed_sizes(VARIED), noise=0.001), own_machine=own)
    least = 1.645 * threshold(drift)
    assert model.fit.drift_ratio == threshold(drift)
    for term in model.fit.terms:
        if term.identifiable:
            assert least <= term.high / term.ns_per_unit - 1.0 < 1.2 * least


def test_a_machine_that_drifts_within_the_run_drifts_more_between_runs() -> None:
    start = np.arange(2000) * S // 25
    speed = 0.1 * np.sin(start / S / 8)
    found = slope_tests.machine_drift(start, speed, 0.03)
    assert found > 0.03
    assert slope_tests.machine_drift(start, np.zeros(2000), 0.03) == 0.03
    assert slope_tests.machine_drift(start, np.where(start < start.mean(), 0.0, 0.2), 0.03) == pytest.approx(
        0.2, rel=0.3
    )


def test_a_cost_that_hardly_matters_is_small_and_not_unknown() -> None:
    model = fitted(decodes(mixed_sizes(VARIED), each_ms=0.0))
    assert "too small to tell from none: at most" in reasons(model)[PER_REQUEST]
    # all of the step is then fixed, and that is known
    assert model.identified(FIXED) == pytest.approx(40 * MS, rel=0.05)


def test_a_cost_that_is_material_and_uncertain_is_refused_as_that() -> None:
    model = fitted(decodes(mixed_sizes({2: 25, 4: 25, 6: 25}), noise=0.4, each_ms=4.0, lengths=np.full(75, -1)))
    assert "uncertain by" in reasons(model)[PER_REQUEST] or "not told from none" in reasons(model)[PER_REQUEST]


def test_steps_that_compile_are_not_fitted() -> None:
    steps = decodes(mixed_sizes(VARIED))
    slow = replace(steps, compiles=np.where(np.arange(240) % 3 == 0, 1, 0))
    assert fitted(slow).fit.n_steps == 160


def test_an_idle_gap_is_not_part_of_a_cycle() -> None:
    engine = Engine(noise=0.0)
    run = replay(engine, one_after_another(2, 8, 5))
    steps = engine_steps(inputs(run, engine).steps, "1-a")
    idle = steps.where(steps.start_ns >= 0)
    assert cycle_ns(idle, 2 * engine.gap_ns).max() <= int(steps.duration_ns.max()) + 2 * engine.gap_ns


def test_the_gap_after_a_step_belongs_to_its_cycle() -> None:
    sizes = mixed_sizes(VARIED)
    plain = fitted(decodes(sizes, noise=0.0))
    with_gap = fitted(steps_of(decodes(sizes, noise=0.0).duration_ns, gap_ns=4 * MS, generation_requests=sizes,
                               generation_seq_len_sum=decodes(sizes).generation_seq_len_sum))  # fmt: skip
    assert with_gap.identified(FIXED) - plain.identified(FIXED) == pytest.approx(4 * MS, rel=0.01)
