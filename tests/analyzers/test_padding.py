"""What steps execute beyond what their requests need: how much it is, what it costs, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_builder import MS, S, capped, decode_alone, inputs, profiled, table
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS, USAGE, AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose
from spyreprof.rules import load_rules
from spyreprof_analyzers.engine_steps import EngineSteps, engine_steps
from spyreprof_analyzers.padding import padding, short_length
from spyreprof_analyzers.request_log import request_log
from spyreprof_analyzers.slope import fit_step_model, usual_cycle_ns

RULES = load_rules()
RULE = RULES["SPY-PAD-001"]


def row(start_ns: int, ms: float, decodes: int, cached: int, executed: int | None, **more: object) -> dict[str, object]:
    told = {} if executed is None else {
        "executed_generation_requests": decodes, "executed_generation_seq_len_sum": executed,
    }  # fmt: skip
    return {
        "start_ns": start_ns, "end_ns": start_ns + int(ms * MS), "writer": "1-a", "source": "annotation", "rank": 0,
        "compiles": 0, "profiled": False, "context_requests": 0, "context_tokens": 0, "context_seq_len_sum": 0,
        "context_q_k_sum": 0, "generation_requests": decodes, "generation_tokens": decodes,
        "generation_seq_len_sum": cached, **told, **more,
    }  # fmt: skip


def in_a_row(*groups: dict[str, Any]) -> list[dict[str, object]]:
    """Steps that follow each other, `count` of each group."""
    rows: list[dict[str, object]] = []
    now = 0
    for group in groups:
        for _ in range(group["count"]):
            rows.append(row(now, **{name: value for name, value in group.items() if name != "count"}))
            now = int(str(rows[-1]["end_ns"])) + MS // 10
    return rows


def steps_of(rows: list[dict[str, object]]) -> EngineSteps:
    return engine_steps(table(STEPS, rows), "1-a")


def inputs_of(rows: list[dict[str, object]], **more: Any) -> AnalysisInputs:
    empty = {"requests": table(REQUESTS, []), "counters": table(COUNTERS, []), "usage": table(USAGE, [])}
    end_ns = int(str(rows[-1]["end_ns"])) + S
    return AnalysisInputs(
        steps=table(STEPS, rows), recording_start_ns=0, recording_end_ns=end_ns, finished=True, device_kind="spyre",
        **(empty | more),
    )  # fmt: skip


def rectangle(ms: float = 46, little: int = 100, much: int = 900, executed: int | None = 51_200) -> AnalysisInputs:
    """Eight requests of 250 tokens in steps of 18 ms; then one of them holds 6,400, and all are padded to it."""
    before = {"count": little, "ms": 18, "decodes": 8, "cached": 2000, "executed": executed and 2048}
    return inputs_of(in_a_row(before, {"count": much, "ms": ms, "decodes": 8, "cached": 8000, "executed": executed}))


def found_in(made: AnalysisInputs | Diagnosis) -> Finding | None:
    found = diagnose(made) if isinstance(made, AnalysisInputs) else made
    return next((finding for finding in found.findings if finding.id == "SPY-PAD-001"), None)


def test_a_batch_that_is_padded_to_one_long_request_is_bound_by_padding() -> None:
    found = diagnose(rectangle())
    assert found.verdict.primary == "padding_bound"
    assert found.verdict.confidence in ("low", "medium")
    assert [view.name for view in found.verdict.witnesses if view.agrees] == ["engine"]
    finding = found_in(found)
    assert finding is not None
    assert finding.severity in ("medium", "high")
    assert [one.setting for one in finding.advice] == ["routing by length"]
    # 28 of 46 ms came with the padding, and 43.2 of 49.2 thousand tokens are padding
    (share,) = [one for one in found.evidence if one.metric == "padding.window_share"]
    assert share.low <= 28 / 46 * 43.2 / 49.152 * 0.958 <= share.high + 0.02
    assert "padding" in found.verdict.headline.lower()


def test_steps_that_execute_what_their_requests_hold_are_not_padded() -> None:
    made = inputs_of(in_a_row({"count": 400, "ms": 46, "decodes": 8, "cached": 51_000, "executed": 51_200}))
    found = diagnose(made)
    assert found.verdict.primary != "padding_bound"
    assert found_in(found) is None


def test_padding_that_costs_nothing_is_no_finding() -> None:
    """A program of fixed shape: every step takes as long, however short its requests."""
    assert found_in(rectangle(ms=18)) is None


@pytest.mark.parametrize(("ms", "binds"), [(38.5, False), (42.5, True)])
def test_padding_binds_from_a_share_of_the_window(ms: float, binds: bool) -> None:
    """88 % of what came on top of 18 ms, in 95 % of the time; its interval begins 14 % lower, at 39 and at 42 %."""
    assert RULE.threshold("binding_window_share") == 0.4
    assert (diagnose(rectangle(ms)).verdict.primary == "padding_bound") is binds


@pytest.mark.parametrize(("ms", "said"), [(18.6, False), (19.6, True)])
def test_padding_is_a_finding_from_its_floor(ms: float, said: bool) -> None:
    assert RULE.materiality_share == 0.05
    assert (found_in(rectangle(ms)) is not None) is said


@pytest.mark.parametrize(("little", "told"), [(19, False), (20, True)])
def test_a_few_steps_with_little_padding_are_no_comparison(little: int, told: bool) -> None:
    assert RULE.threshold("min_steps_to_compare") == 20
    steps = steps_of(in_a_row(
        {"count": little, "ms": 18, "decodes": 8, "cached": 2000, "executed": 2048},
        {"count": 100, "ms": 46, "decodes": 8, "cached": 8000, "executed": 51_200},
    ))  # fmt: skip
    seen = padding(steps, steps, None, 10 * S, RULES)
    assert seen is not None
    assert (seen.window_share is not None) is told


@pytest.mark.parametrize(("executed", "little"), [(3000, True), (3001, False)])
def test_how_much_padding_is_little_is_a_threshold(executed: int, little: bool) -> None:
    assert RULE.threshold("little_padding_ratio") == 1.5
    steps = steps_of(in_a_row(
        {"count": 50, "ms": 18, "decodes": 8, "cached": 2000, "executed": executed},
        {"count": 100, "ms": 46, "decodes": 8, "cached": 8000, "executed": 51_200},
    ))  # fmt: skip
    seen = padding(steps, steps, None, 10 * S, RULES)
    assert seen is not None
    assert (seen.window_share is not None) is little


def test_steps_of_other_batches_are_no_comparison() -> None:
    steps = steps_of(in_a_row(
        {"count": 50, "ms": 18, "decodes": 2, "cached": 500, "executed": 512},
        {"count": 100, "ms": 46, "decodes": 8, "cached": 8000, "executed": 51_200},
    ))  # fmt: skip
    assert padding(steps, steps, None, 10 * S, RULES).window_share is None  # type: ignore[union-attr]


def test_what_a_larger_batch_takes_by_itself_is_not_called_padding() -> None:
    """From six requests to eight a step may take a third more; no more than that is left out."""
    steps = steps_of(in_a_row(
        {"count": 50, "ms": 18, "decodes": 6, "cached": 2000, "executed": 2048},
        {"count": 100, "ms": 24, "decodes": 8, "cached": 8000, "executed": 51_200},
    ))  # fmt: skip
    seen = padding(steps, steps, None, 2400 * MS, RULES)
    assert seen is not None
    assert seen.low_share == pytest.approx(0.0, abs=1e-3)
    assert seen.high_share > 0.2


def test_where_nothing_tells_its_cost_much_padding_is_asked_about() -> None:
    found = diagnose(rectangle(little=0))
    assert found_in(found) is None
    assert found.verdict.primary != "padding_bound"
    (asked,) = [one for one in found.not_judged if one.topic == "what padding costs"]
    assert "without its longest requests" in asked.obtain


@pytest.mark.parametrize(("executed", "asked"), [(10_600, False), (10_700, True)])
def test_little_padding_of_unknown_cost_is_not_asked_about(executed: int, asked: bool) -> None:
    assert RULE.threshold("much_padding") == 0.25
    found = diagnose(rectangle(little=0, executed=executed))
    assert any(one.topic == "what padding costs" for one in found.not_judged) is asked


def test_steps_that_do_not_tell_what_they_executed_say_nothing_of_padding() -> None:
    made = rectangle(executed=None)
    found = diagnose(made)
    assert found_in(found) is None
    assert found.verdict.primary != "padding_bound"
    assert not any("padding" in one.topic for one in found.not_judged)
    on_the_card = replace(made, settings=EngineSettings(platform="spyre"))
    (asked,) = [one for one in diagnose(on_the_card).not_judged if one.topic == "padding"]
    assert "padding included" in asked.obtain


def test_the_slope_over_executed_work_tells_its_cost_where_it_is_determined() -> None:
    """20 ms, 1 ms a row and 2 us a token: what is executed for nobody costs 2 us a token."""
    rng, rows, now = np.random.default_rng(1), [], 0
    padded_ns = 0
    for _ in range(1500):
        decodes, cached = int(rng.integers(2, 17)), int(rng.integers(2000, 12_000))
        executed = int(cached * rng.uniform(1.0, 3.0))
        ms = 20 + decodes + 0.002 * executed
        padded_ns += 2000 * (executed - cached)
        rows.append(row(now, ms * rng.uniform(0.99, 1.01), decodes, cached, executed))
        now = int(str(rows[-1]["end_ns"])) + 50_000
    steps = steps_of(rows)
    model = fit_step_model(steps, usual_cycle_ns(steps), RULES, True)
    seen = padding(steps, steps, model, now, RULES)
    assert seen is not None
    assert seen.basis == "slope"
    assert seen.low_share < padded_ns / now < seen.high_share
    assert seen.low_share > 0.5 * padded_ns / now


def test_healthy_engines_that_tell_no_padding_get_no_word_of_it() -> None:
    for engine, run in (decode_alone(), capped()):
        shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
        found = diagnose(inputs(run, engine, profiled_steps=shown))
        assert found_in(found) is None
        assert not any("padding" in one.topic for one in found.not_judged)


# ---- where to part long requests from short ones


def log_of(lengths: list[int], each_ns: int = S) -> Any:
    rows: list[dict[str, object]] = [
        {"arrival_ns": 0, "prompt_tokens": length - 10, "output_tokens": 10, "ttft_ns": MS, "e2e_ns": each_ns,
         "failed": False, "source": "bench_result"} for length in lengths
    ]  # fmt: skip
    return request_log(table(REQUESTS, rows))


def test_requests_are_parted_where_both_groups_hold_the_least_padding() -> None:
    assert short_length(log_of([200, 220, 240, 260, 6000]), 0, S, 0.25) == 260
    assert short_length(log_of([200, 220, 5000, 5200, 6000]), 0, S, 0.25) == 220


def test_requests_of_like_length_are_not_parted() -> None:
    assert short_length(log_of([200, 220, 240, 260, 280]), 0, S, 0.25) is None


def test_without_lengths_or_arrivals_no_length_parts_them() -> None:
    log = log_of([200, 220, 240, 260, 6000])
    assert short_length(None, 0, S, 0.25) is None
    assert short_length(replace(log, arrival_ns=None), 0, S, 0.25) is None
    assert short_length(replace(log, output_tokens=np.array([1, 1, 1, 1, np.nan])), 0, S, 0.25) is None
    assert short_length(log, 2 * S, 3 * S, 0.25) is None  # none of them ran then


@given(st.lists(st.integers(20, 10_000), min_size=2, max_size=12))
def test_the_parting_length_leaves_someone_on_both_sides_and_saves_what_it_must(lengths: list[int]) -> None:
    at = short_length(log_of(lengths), 0, S, 0.25)
    if at is None:
        return
    short, long = [one for one in lengths if one <= at], [one for one in lengths if one > at]
    assert short
    assert len(short) * max(short) + len(long) * max(long, default=0) <= 0.75 * len(lengths) * max(lengths)
