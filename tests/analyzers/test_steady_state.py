"""Which part of a recording is judged: a steady load, of an engine that is warm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_builder import (
    MS,
    Engine,
    S,
    capped,
    decode_alone,
    inputs,
    one_after_another,
    open_loop,
    profiled,
    replay,
    table,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spyreprof.findings import SteadyWindow
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS, USAGE, AnalysisInputs, EngineSettings, Interval
from spyreprof.registry import diagnose
from spyreprof.rules import load_rules
from spyreprof_analyzers.engine_steps import EngineSteps, engine_steps
from spyreprof_analyzers.scheduler import Gauges
from spyreprof_analyzers.steady_state import LoadDrift, drift_of_gauges, load_drift, steady_window

RULES = load_rules()
THRESHOLD = RULES["SPY-GEN-002"].threshold
PLAIN: dict[str, object] = {"writer": "1-a", "source": "annotation", "rank": 0, "compiles": 0, "profiled": False}


def row(start_ns: int, end_ns: int, decodes: int | None, **more: object) -> dict[str, object]:
    told = {} if decodes is None else {
        "context_requests": 0, "context_tokens": 0, "generation_requests": decodes, "generation_tokens": decodes,
    }  # fmt: skip
    return {**PLAIN, "start_ns": start_ns, "end_ns": end_ns, **told, **more}


def steps_of(rows: list[dict[str, object]]) -> EngineSteps:
    return engine_steps(table(STEPS, rows), "1-a")


def inputs_of(rows: list[dict[str, object]], start_ns: int, end_ns: int, **more: Any) -> AnalysisInputs:
    empty = {"requests": table(REQUESTS, []), "counters": table(COUNTERS, []), "usage": table(USAGE, [])}
    return AnalysisInputs(
        steps=table(STEPS, rows), recording_start_ns=start_ns, recording_end_ns=end_ns, finished=True, **(empty | more)
    )


@st.composite
def any_rows(draw: st.DrawFn) -> list[dict[str, object]]:
    """Steps of any length that follow each other, overlap, compile, or tell nothing."""
    rows, now = [], draw(st.integers(0, 10)) * MS
    for _ in range(draw(st.integers(2, 40))):
        length = draw(st.sampled_from((1, 20, 400, 30_000))) * MS
        compiles = draw(st.sampled_from((0, 0, 0, 1)))
        rows.append(row(now, now + length, draw(st.sampled_from((None, 1, 2, 8, 30))), compiles=compiles))
        now += length + draw(st.sampled_from((-length // 2, 0, 1, 50, 25_000))) * (MS if draw(st.booleans()) else 1)
        now = max(now, int(str(rows[-1]["start_ns"])) + 1)
    return rows


# ---- the window


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(any_rows(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 10**16))
def test_the_window_lies_in_the_recording_and_follows_its_clock(
    rows: list[dict[str, object]], from_percent: int, to_percent: int, shift_ns: int
) -> None:
    last = max(int(str(one["end_ns"])) for one in rows)
    begin, end = sorted((last * from_percent // 100, last * to_percent // 100))

    def window(by_ns: int) -> SteadyWindow:
        moved = [{**one, "start_ns": one["start_ns"] + by_ns, "end_ns": one["end_ns"] + by_ns} for one in rows]  # type: ignore[operator]
        return steady_window(steps_of(moved), inputs_of(moved, begin + by_ns, end + by_ns), RULES)

    here, there = window(0), window(shift_ns)
    if here.start_ns < here.end_ns:
        assert begin <= here.start_ns
        assert here.end_ns <= end
        assert 0.0 < here.share_of_recording <= 1.0
    assert (there.start_ns - here.start_ns, there.end_ns - here.end_ns) == (shift_ns, shift_ns)
    assert there.share_of_recording == here.share_of_recording


def test_steps_from_before_the_recording_are_not_judged() -> None:
    rows = [row(n * 100 * MS, n * 100 * MS + 90 * MS, 4) for n in range(100)]
    found = diagnose(inputs_of(rows, 5 * S, 11 * S))
    assert found.window.start_ns >= 5 * S
    assert sum(part.ns for part in found.time_budget.excluded) + found.time_budget.window_ns == 6 * S


def test_a_recording_that_holds_none_of_the_steps_gives_no_verdict() -> None:
    rows = [row(n * 100 * MS, n * 100 * MS + 90 * MS, 4) for n in range(100)]
    assert diagnose(inputs_of(rows, 20 * S, 30 * S)).verdict.primary == "undetermined"


# ---- a load that never holds


def levels(*fifths: int | None, step_ms: int = 100) -> tuple[EngineSteps, SteadyWindow]:
    """Steps of 100 ms, each fifth of the window with as many requests."""
    count = 20
    rows = [
        row(at * step_ms * MS, (at + 1) * step_ms * MS, decodes)
        for at, decodes in enumerate(level for level in fifths for _ in range(count))
    ]
    end_ns = len(rows) * step_ms * MS
    return steps_of(rows), SteadyWindow(start_ns=0, end_ns=end_ns, share_of_recording=1.0, basis="")


def test_a_load_that_only_grows_is_no_steady_state() -> None:
    found = load_drift(*levels(10, 20, 30, 40, 50), None, RULES)
    assert found is not None
    assert (found.first_requests, found.last_requests) == (15, 45)
    assert found.said == "the load only grows: from 15 running requests to 45"


def test_a_load_that_only_falls_is_none_either() -> None:
    found = load_drift(*levels(50, 40, 30, 20, 10), None, RULES)
    assert found is not None
    assert "falls" in found.said


@pytest.mark.parametrize(("last", "drifts"), [(150, False), (151, True)])
def test_how_much_a_load_may_grow_is_a_threshold(last: int, drifts: bool) -> None:
    assert THRESHOLD("max_drift_ratio") == 1.5
    assert (load_drift(*levels(100, 102, 125, last, last + 2), None, RULES) is not None) is drifts


def busy(*percents: int, requests: int) -> tuple[EngineSteps, SteadyWindow]:
    """Of each fifth so much is filled with steps of so many requests."""
    rows = [
        row(at * 100 * MS, at * 100 * MS + percent * MS, requests)
        for at, percent in enumerate(percent for percent in percents for _ in range(20))
    ]
    whole = SteadyWindow(start_ns=0, end_ns=len(rows) * 100 * MS, share_of_recording=1.0, basis="")
    return steps_of(rows), whole


@pytest.mark.parametrize(("last", "drifts"), [(39, False), (41, True)])
def test_of_a_few_requests_no_trend_is_told(last: int, drifts: bool) -> None:
    assert THRESHOLD("min_drifting_requests") == 4
    assert (load_drift(*busy(5, 10, 20, last - 1, last + 1, requests=10), None, RULES) is not None) is drifts


@pytest.mark.parametrize(("last", "drifts"), [(49, False), (52, True)])
def test_a_change_that_chance_makes_of_so_many_requests_is_no_trend(last: int, drifts: bool) -> None:
    """From 3 requests to 5 is one standard deviation of their number."""
    assert THRESHOLD("min_drift_deviations") == 1.0
    assert (load_drift(*busy(29, 31, 40, last - 1, last + 1, requests=10), None, RULES) is not None) is drifts


@pytest.mark.parametrize("fifths", [(10, 20, 30, 40, 39), (10, 20, 18, 40, 50)])
def test_one_step_back_is_still_a_ramp(fifths: tuple[int, ...]) -> None:
    assert load_drift(*levels(*fifths), None, RULES) is not None


@pytest.mark.parametrize(
    "fifths", [(10, 30, 20, 40, 35), (50, 10, 50, 10, 50), (30, 30, 30, 30, 90), (8, 8, 8, 8, 8), (90, 30, 30, 30, 30)]
)
def test_a_load_that_goes_up_and_down_or_stays_is_not_called_a_ramp(fifths: tuple[int, ...]) -> None:
    assert load_drift(*levels(*fifths), None, RULES) is None


def test_steps_that_do_not_tell_their_requests_show_no_ramp() -> None:
    assert load_drift(*levels(None, None, None, 40, 50), None, RULES) is None
    assert load_drift(*levels(10, 20, None, 40, 50), None, RULES) is None  # an unknown stretch is no growth


def ramp() -> tuple[Engine, Any]:
    """Every twelve seconds as many more requests arrive."""
    engine = Engine(fixed_ns=60 * MS, per_request_ns=0, per_context_token_ns=10_000)
    arrivals = []
    for number in range(8):
        for request in open_loop(number + 1, 0.5, 96 - 12 * number, (10, 20), (40, 60)):
            request.arrival_ns += 12 * number * S
            arrivals.append(request)
    return engine, replay(engine, sorted(arrivals, key=lambda request: request.arrival_ns))


def cut_at(made: AnalysisInputs, end_ns: int) -> AnalysisInputs:
    return replace(
        made,
        steps=made.steps[made.steps["end_ns"] <= end_ns],
        counters=made.counters[made.counters["time_ns"] <= end_ns],
        requests=made.requests[made.requests["arrival_ns"] + made.requests["e2e_ns"] <= end_ns],
        recording_end_ns=end_ns,
    )


def test_under_a_load_that_never_holds_confidence_is_low_and_the_steady_state_is_asked_for() -> None:
    engine, run = ramp()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7, count=40)
    late = tuple(step for step in shown if step.generation_requests and step.generation_requests >= 2)
    found = diagnose(cut_at(inputs(run, engine, profiled_steps=late), 96 * S))
    assert found.verdict.confidence in (None, "low")
    (asked,) = [one for one in found.not_judged if one.topic == "the steady state"]
    assert "grows" in asked.reason
    assert "hold the load" in asked.obtain
    assert "; the load only grows" in found.window.basis


def gauges_of(*fifths: tuple[int, int]) -> Gauges:
    """Running and waiting requests in each fifth of 10 s."""
    each = np.repeat(np.asarray(fifths, dtype=np.float64), 8, axis=0)
    times = np.arange(len(each), dtype=np.int64) * (S // 4)
    return Gauges(times, each[:, 0], each[:, 1], np.full(len(each), np.nan))


def test_an_engine_that_runs_fewer_of_as_many_requests_is_held_back_and_its_load_holds() -> None:
    """Contexts grow until the KV cache holds fewer of them: 40 requests are there all along."""
    falls = levels(40, 34, 28, 22, 16)
    as_many = gauges_of((40, 0), (34, 6), (28, 12), (22, 18), (16, 24))
    assert load_drift(*falls, as_many, RULES) is None
    fewer = gauges_of((40, 0), (34, 0), (28, 0), (22, 0), (16, 0))
    assert load_drift(*falls, fewer, RULES) is not None


def test_gauges_that_were_not_polled_for_a_fifth_leave_it_to_the_steps() -> None:
    held = gauges_of((40, 0), (34, 6), (28, 12), (22, 18), (16, 24))
    held.running[8:16] = np.nan
    assert load_drift(*levels(40, 34, 28, 22, 16), held, RULES) is not None


def test_what_follows_from_the_amount_of_load_is_not_concluded_where_it_never_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    made = inputs(run, engine, profiled_steps=shown)
    assert diagnose(made).verdict.primary == "queue_bound"
    monkeypatch.setattr("spyreprof_analyzers.diagnose.load_drift", lambda *_: LoadDrift(1.0, 9.0))
    found = diagnose(made)
    assert found.verdict.primary == "undetermined"
    assert [one.topic for one in found.verdict.missing] == ["the steady state"]
    assert sum(one.topic == "the steady state" for one in found.not_judged) == 1


def test_what_binds_a_step_is_still_concluded_there_with_low_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    monkeypatch.setattr("spyreprof_analyzers.diagnose.load_drift", lambda *_: LoadDrift(9.0, 1.0))
    verdict = diagnose(inputs(run, engine, profiled_steps=shown)).verdict
    assert (verdict.primary, verdict.confidence) == ("decode_bandwidth_bound", "low")
    assert any("falls" in reason for reason in verdict.confidence_reasons)


def test_gauges_alone_tell_of_a_ramp_too() -> None:
    window = SteadyWindow(start_ns=0, end_ns=10 * S, share_of_recording=1.0, basis="")
    grows = gauges_of((10, 0), (20, 0), (30, 2), (40, 5), (50, 9))
    found = drift_of_gauges(grows, window, RULES)
    assert found is not None
    assert "grows" in found.said
    grows.running[:8] = np.nan
    assert drift_of_gauges(grows, window, RULES) is None  # a fifth that was not polled
    # an engine at its cap, before which ever more requests wait, holds
    assert drift_of_gauges(gauges_of((8, 1), (8, 9), (8, 20), (8, 30), (8, 44)), window, RULES) is None


@pytest.mark.parametrize(("drift", "primary"), [(None, "queue_bound"), (LoadDrift(1.0, 9.0), "undetermined")])
def test_without_steps_a_ramp_forbids_the_same_classes(
    monkeypatch: pytest.MonkeyPatch, drift: LoadDrift | None, primary: str
) -> None:
    rows: list[dict[str, object]] = []
    for at in range(240):
        for name, value in (
            ("num_requests_running", 8), ("num_requests_waiting", 5), ("kv_cache_usage_perc", 0.2),
            ("generation_tokens_total", 100 * at),
        ):  # fmt: skip
            rows.append({"time_ns": at * S // 2, "endpoint": 0, "name": f"vllm:{name}", "labels": "{}", "value": value})
    made = replace(inputs_of([], 0, 120 * S, counters=table(COUNTERS, rows)), settings=EngineSettings(max_num_seqs=8))
    monkeypatch.setattr("spyreprof_analyzers.gauge_state.drift_of_gauges", lambda *_: drift)
    found = diagnose(made)
    assert found.verdict.primary == primary
    assert any(one.topic == "the steady state" for one in found.not_judged) is (drift is not None)


def test_a_steady_load_is_not_asked_for() -> None:
    engine = Engine(fixed_ns=60 * MS, per_context_token_ns=10_000)
    run = replay(engine, open_loop(5, 4.0, 90, (10, 20), (40, 60)))
    found = diagnose(inputs(run, engine))
    assert not [one for one in found.not_judged if one.topic == "the steady state"]
    assert ";" not in found.window.basis


# ---- a window that is all warm-up


def compiling(compiled: int, plain: int, *, ms: int = 1000, flagged: bool = True) -> AnalysisInputs:
    """Steps of 1.1 s that compile for one, among them as many of 0.1 s that do not; spread evenly."""
    kinds = sorted([((n + 0.5) / max(compiled, 1), True) for n in range(compiled)]
                   + [((n + 0.5) / max(plain, 1), False) for n in range(plain)])  # fmt: skip
    rows, events, now = [], [], 0
    for _, hit in kinds:
        end = now + (100 + ms * hit) * MS
        if hit:
            events.append(Interval(now + MS, now + ms * MS, "compile", "1-a"))
        rows.append(row(now, end, 2, compiles=int(hit and flagged)))
        now = end + MS
    return inputs_of(rows, 0, now + S, compiles=tuple(events), device_kind="cpu")


@pytest.mark.parametrize(("plain", "warms_up"), [(19, True), (23, False)])
def test_a_window_with_hardly_a_step_that_compiles_nothing_is_warm_up(plain: int, warms_up: bool) -> None:
    """A few steps at the start are cut off in any case."""
    assert THRESHOLD("min_warm_steps") == 20
    found = diagnose(compiling(100, plain))
    assert found.verdict.primary == ("undetermined" if warms_up else "compile_bound")
    assert ("warm-up" in found.verdict.reason) is warms_up


def test_what_is_warm_up_is_said_with_what_to_record_and_blames_no_shapes() -> None:
    found = diagnose(compiling(60, 0))
    (missing,) = found.verdict.missing
    assert missing.topic == "what binds the engine once it is warm"
    assert "no longer compile" in missing.obtain
    finding = next(one for one in found.findings if one.id == "SPY-CMP-001")
    assert finding.severity == "info"
    assert "new shapes" not in finding.text
    assert found.window.basis.endswith("; all of it is warm-up")


@pytest.mark.parametrize(("compiled", "warms_up"), [(202, True), (210, False)])
def test_an_engine_that_compiles_in_very_many_steps_is_not_warming_up(compiled: int, warms_up: bool) -> None:
    assert THRESHOLD("max_warm_up_steps") == 200
    found = diagnose(compiling(compiled, 0))
    assert ("warm-up" in found.verdict.reason) is warms_up


def test_compilation_that_takes_next_to_nothing_makes_no_warm_up() -> None:
    assert "warm-up" not in diagnose(compiling(60, 0, ms=2)).verdict.reason


def test_without_compile_counts_a_window_is_not_called_warm_up() -> None:
    assert "warm-up" not in diagnose(compiling(60, 0, flagged=False)).verdict.reason


# ---- prompts are not blamed for what compiling took


def mixed(compiles: int, ms: int = 400) -> AnalysisInputs:
    """Ten decode steps of 20 ms, then one with a prompt of 420 ms, over and over."""
    rows, events, now = [], [], 0
    for at in range(600):
        prompt = at % 10 == 9
        end = now + (20 + ms * prompt) * MS
        tokens = {"context_requests": 1, "context_tokens": 300, "context_seq_len_sum": 300} if prompt else {}
        rows.append(row(now, end, 8, **tokens, compiles=compiles if prompt else 0))
        if prompt and compiles:
            events.append(Interval(now + MS, end - 20 * MS, "compile", "1-a"))
        now = end + MS // 10
    return inputs_of(rows, 0, now + S, compiles=tuple(events), device_kind="cuda")


@pytest.mark.parametrize(("compiles", "blamed"), [(0, True), (1, False)])
def test_steps_that_compile_are_not_blamed_on_their_prompts(compiles: int, blamed: bool) -> None:
    found = diagnose(mixed(compiles))
    assert any(finding.id == "SPY-INT-001" for finding in found.findings) is blamed


# ---- device work that the profiler lost


def traced(busy_ratio: float, **changes: object) -> AnalysisInputs:
    """Decode on an accelerator; reading the weights takes 79 % of a step, and the trace shows so much device work."""
    engine, run = decode_alone()
    shown = tuple(
        replace(step, device_kind="cuda", device_busy_ns=sum(operator.ns for operator in step.operators))
        for step in profiled(
            run, phase="decode", compute_use=0.05, bandwidth_use=0.85, matmul_ratio=0.9 * busy_ratio,
            gap_ratio=1.0 - busy_ratio, count=6,
        )
    )  # fmt: skip
    return inputs(run, engine, **({"profiled_steps": shown, "device_kind": "cuda"} | changes))


def parts(made: AnalysisInputs) -> set[str]:
    budget = diagnose(made).time_budget
    assert budget is not None
    return {part.id for part in budget.parts}


def test_a_device_that_seems_idle_while_it_must_read_its_weights_is_not_idle() -> None:
    found = diagnose(traced(0.1))
    assert found.verdict.primary != "host_bound"
    assert found.verdict.confidence != "high"
    assert not [one for one in found.findings if "steps" in one.title and one.id == "SPY-HST-001" and one.advice]
    assert any("kernels are missing" in one.reason for one in found.not_judged)
    assert "decode.host" not in parts(traced(0.1))


@pytest.mark.parametrize(("busy_ratio", "believed"), [(0.72, False), (0.76, True)])
def test_a_trace_with_less_device_work_than_reading_the_weights_takes_is_not_cut_up(
    busy_ratio: float, believed: bool
) -> None:
    assert ("decode.host" in parts(traced(busy_ratio))) is believed


def test_without_the_size_of_the_model_nothing_speaks_against_an_idle_device() -> None:
    made = traced(0.1)
    unknown = replace(made.model, parameter_bytes=None)
    assert diagnose(replace(made, model=unknown)).verdict.primary == "host_bound"


def test_steps_whose_graphs_left_no_kernels_speak_for_nothing() -> None:
    made = traced(0.1, model=replace(traced(0.1).model, parameter_bytes=None))
    lost = tuple(replace(step, graphs_without_work=3) for step in made.profiled_steps)
    found = diagnose(replace(made, profiled_steps=lost))
    assert found.verdict.primary == "undetermined"
    assert any("graphs" in one.reason for one in found.not_judged)
    # one step that is whole still speaks
    some = (*lost[:-1], made.profiled_steps[-1])
    assert diagnose(replace(made, profiled_steps=some)).verdict.primary == "host_bound"


# ---- idle time between requests belongs to a steady light load


def test_a_light_load_keeps_its_whole_stretch() -> None:
    engine = Engine(fixed_ns=30 * MS)
    run = replay(engine, one_after_another(40, 8, 6))
    made = inputs(run, engine)
    window = steady_window(engine_steps(made.steps, "1-a"), made, RULES)
    starts = sorted(int(one) for one in made.steps["start_ns"])
    assert window.start_ns == starts[int(THRESHOLD("warm_up_steps"))]
    assert window.end_ns == int(made.steps["end_ns"].max())
