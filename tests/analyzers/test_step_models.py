"""What a decode step of another size would take: three models, and what they are not asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from engine_builder import MS
from step_builder import decodes, mixed_sizes, steps_of, threshold

from spyreprof.rules import load_rules
from spyreprof_analyzers.engine_steps import EngineSteps
from spyreprof_analyzers.prediction import StepPrediction, predict_step, why_withheld
from spyreprof_analyzers.slope import fit_step_model, usual_cycle_ns
from spyreprof_analyzers.step_models import DecodeModels, decode_models

RULES = load_rules()
SEEN = {2: 80, 4: 80, 8: 80}
LEAST, REACH, LEVERAGE = 8, 1.5, 2.0


@dataclass
class Facts:
    """All that a prediction looks at."""

    decode_models: DecodeModels


def models_of(steps: EngineSteps) -> DecodeModels:
    cycles = usual_cycle_ns(steps)
    return decode_models(steps, cycles, fit_step_model(steps, cycles, RULES), RULES)


def predicted(models: DecodeModels, batch: int) -> StepPrediction | None:
    return predict_step(Facts(models), batch, RULES)


def reason(models: DecodeModels, batch: int) -> str | None:
    return why_withheld(Facts(models), batch, RULES)


def with_prompts(sizes, tokens, *, fixed_ms=50.0, token_ms=1.0, seed=0) -> EngineSteps:
    """Decodes alone, and decodes beside prompts, where every token costs the same."""
    rng = np.random.default_rng(seed)
    sizes, tokens = np.asarray(sizes), np.asarray(tokens)
    cost = (fixed_ms + token_ms * (sizes + tokens)) * MS * (1.0 + 0.01 * rng.standard_normal(len(sizes)))
    return steps_of(
        cost, generation_requests=sizes, generation_seq_len_sum=100 * sizes, context_tokens=tokens,
        context_requests=(tokens > 0).astype(np.int64), context_q_k_sum=tokens * tokens,
    )  # fmt: skip


def test_a_size_that_ran_often_enough_is_its_median_and_no_model() -> None:
    models = models_of(decodes(mixed_sizes(SEEN)))
    found = predicted(models, 4)
    assert found.measured
    assert found.basis == "decode steps of this size"
    assert found.seconds == pytest.approx(0.048, rel=0.01)
    assert found.band == threshold("machine_drift", "SPY-GEN-006")


@pytest.mark.parametrize(("count", "measured"), [(19, False), (20, True)])
def test_twenty_steps_make_a_size_measured(count: int, measured: bool) -> None:
    assert predicted(models_of(decodes(mixed_sizes({**SEEN, 6: count}))), 6).measured is measured


def test_all_three_models_find_a_line_again() -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 13), 30))
    tokens = np.where(np.arange(len(sizes)) % 3 == 0, np.random.default_rng(1).integers(1, 60, len(sizes)), 0)
    models = models_of(with_prompts(sizes, tokens))
    for batch in (13, 16, 18):
        truth = (50 + batch) * MS
        line, band = models.by_line(batch, REACH, LEVERAGE)
        assert line == pytest.approx(truth, rel=0.03)
        assert band >= 1.645 * threshold("machine_drift")
        assert models.by_sizes(batch, LEAST) == pytest.approx(truth, rel=0.05)
        assert models.by_tokens(batch) == pytest.approx(truth, rel=0.05)
        found = predicted(models, batch)
        assert found.seconds == pytest.approx(truth / 1e9, rel=0.03)
        assert found.basis == "the mean of 3 step models, beyond the batch sizes seen"
        assert not found.measured


def test_the_prediction_is_the_geometric_mean_of_the_models() -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 13), 30))
    tokens = np.where(np.arange(len(sizes)) % 3 == 0, np.random.default_rng(1).integers(1, 60, len(sizes)), 0)
    models = models_of(with_prompts(sizes, tokens))
    three = [models.by_line(15, REACH, LEVERAGE)[0], models.by_sizes(15, LEAST), models.by_tokens(15)]
    assert predicted(models, 15).seconds == pytest.approx(float(np.prod(three)) ** (1 / 3) / 1e9)


def test_models_that_differ_give_no_number_and_say_by_how_much() -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 13), 30))
    tokens = np.where(np.arange(len(sizes)) % 3 == 0, np.random.default_rng(1).integers(1, 60, len(sizes)), 0)
    models = models_of(with_prompts(sizes, tokens))
    models = replace(models, curve=replace(models.curve, weights=models.curve.weights / 2))
    assert predicted(models, 14) is None
    assert "the models of a step differ by" in reason(models, 14)
    assert reason(models, 2) is None


def test_prompt_tokens_stand_in_for_no_decodes_where_the_two_were_not_told_apart() -> None:
    """Decodes cost ten times what prompt tokens do, and every mixed step fills the same budget."""
    sizes = mixed_sizes(dict.fromkeys(range(1, 9), 60))
    tokens = np.where(np.arange(len(sizes)) % 3 == 0, 64 - sizes, 0)
    cost = (20 + 10 * sizes + tokens) * MS * (1.0 + 0.01 * np.random.default_rng(2).standard_normal(len(sizes)))
    steps = steps_of(
        cost, generation_requests=sizes, generation_seq_len_sum=100 * sizes, context_tokens=tokens,
        context_requests=(tokens > 0).astype(np.int64), context_q_k_sum=tokens * tokens,
    )  # fmt: skip
    models = models_of(steps)
    assert not models.prompts_apart
    assert predicted(models, 10).seconds == pytest.approx(0.120, rel=0.03)
    assert predicted(models, 10).basis == "the mean of 2 step models, beyond the batch sizes seen"


@pytest.mark.parametrize(("factor", "wider"), [(1.13, False), (1.2, True)])
def test_from_a_disagreement_of_fifteen_percent_on_the_band_is_wider(factor: float, wider: bool) -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 13), 30))
    tokens = np.where(np.arange(len(sizes)) % 3 == 0, np.random.default_rng(1).integers(1, 60, len(sizes)), 0)
    models = models_of(with_prompts(sizes, tokens))
    level = models.by_line(14, REACH, LEVERAGE)[0] / models.by_tokens(14) * factor
    models = replace(models, curve=replace(models.curve, weights=models.curve.weights * level))
    assert (predicted(models, 14).band > threshold("model_band", "SPY-GEN-006") * 1.01) is wider


def test_a_band_of_more_than_a_quarter_is_no_prediction() -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 13), 30))
    tokens = np.where(np.arange(len(sizes)) % 3 == 0, np.random.default_rng(1).integers(1, 60, len(sizes)), 0)
    models = models_of(with_prompts(sizes, tokens))
    for factor, there in ((1.25, True), (1.7, False)):
        far = replace(models, curve=replace(models.curve, weights=models.curve.weights * factor))
        found = predicted(far, 14)
        assert (found is not None) is there
        if there:
            assert found.band <= threshold("max_band", "SPY-GEN-006")


def test_far_beyond_the_batches_seen_steps_must_have_held_as_many_tokens() -> None:
    models = models_of(decodes(mixed_sizes(SEEN)))
    assert predicted(models, 11) is not None
    assert predicted(models, 40) is None
    assert reason(models, 40) == "no step held as many tokens, and the batch is far beyond those seen"


@pytest.mark.parametrize(("batch", "there"), [(12, True), (13, False)])
def test_a_line_is_followed_to_one_and_a_half_times_the_largest_batch(batch: int, there: bool) -> None:
    models = models_of(decodes(mixed_sizes(SEEN)))
    assert models.largest * threshold("extrapolation", "SPY-GEN-006") == 12
    assert (predicted(models, batch) is not None) is there


def test_steps_that_tell_no_counts_predict_nothing() -> None:
    models = models_of(decodes([4] * 100, context_tokens=-1))
    assert predicted(models, 4) is None
    assert reason(models, 4) is not None


def test_where_the_batch_hardly_varied_only_steps_with_as_many_tokens_tell() -> None:
    sizes = np.full(400, 2)
    tokens = np.where(np.arange(400) % 4 == 0, np.random.default_rng(1).integers(4, 40, 400), 0)
    models = models_of(with_prompts(sizes, tokens))
    assert models.line is None
    found = predicted(models, 12)
    assert found.basis == "steps that held as many tokens, beyond the batch sizes seen"
    assert found.seconds == pytest.approx(0.062, rel=0.05)
    alone = models_of(decodes(np.full(400, 2)))
    assert predicted(alone, 3) is None
    assert "1 of 3 batch sizes" in reason(alone, 3)


def test_the_medians_of_sizes_never_fall_and_say_nothing_below_the_first() -> None:
    sizes = mixed_sizes({4: 30, 8: 30, 12: 30})
    cost = np.where(sizes == 8, 45.0, 50.0) * MS
    models = models_of(steps_of(cost, generation_requests=sizes, generation_seq_len_sum=100 * sizes))
    assert models.by_sizes(8, LEAST) == pytest.approx(models.by_sizes(4, LEAST))
    assert models.by_sizes(12, LEAST) >= models.by_sizes(8, LEAST)
    assert models.by_sizes(3, LEAST) is None


def test_a_line_does_not_speak_beyond_its_knee() -> None:
    sizes = mixed_sizes(dict.fromkeys(range(1, 33), 40))
    cost = (
        (50 + np.maximum(sizes - 20, 0) * 2.5) * MS * (1 + 0.01 * np.random.default_rng(2).standard_normal(len(sizes)))
    )
    models = models_of(steps_of(cost, generation_requests=sizes, generation_seq_len_sum=300 * sizes))
    assert models.line.knee == pytest.approx(20, abs=4)
    inside, outside = (10, 30) if models.line.high == models.line.knee else (30, 10)
    assert models.by_line(inside, REACH, LEVERAGE) is not None
    assert models.by_line(outside, REACH, LEVERAGE) is None


def test_a_line_is_not_followed_to_where_its_leverage_is_too_large() -> None:
    models = models_of(decodes(mixed_sizes({6: 100, 7: 300, 8: 100})))
    assert models.by_line(11, REACH, LEVERAGE) is not None
    assert models.by_line(64, REACH, LEVERAGE) is None
    assert models.by_line(64, REACH, 1e9) is not None


def test_a_gap_between_steps_is_part_of_what_a_token_waits_for() -> None:
    steps = decodes(mixed_sizes(SEEN), noise=0.0)
    gapped = steps_of(
        steps.duration_ns, gap_ns=5 * MS, generation_requests=steps.generation_requests,
        generation_seq_len_sum=steps.generation_seq_len_sum,
    )  # fmt: skip
    assert predicted(models_of(gapped), 4).seconds == pytest.approx(predicted(models_of(steps), 4).seconds + 0.005)
