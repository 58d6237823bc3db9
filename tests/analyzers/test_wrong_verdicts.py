"""Runs that look like something they are not: the verdict must not be wrong, and never confidently."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from engine_builder import (
    MS,
    Engine,
    Request,
    S,
    capped,
    decode_alone,
    inputs,
    light,
    one_after_another,
    open_loop,
    peaks,
    prefill_heavy,
    profiled,
    replay,
    table,
)
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.recording.schema import COUNTERS, POLLS, REQUESTS, EngineSettings, Interval, Peak
from spyreprof.registry import diagnose
from spyreprof.rules import RuleBook, load_rules
from spyreprof.targets import Targets
from spyreprof_analyzers import intervals
from spyreprof_analyzers.diagnose import diagnose as diagnose_by
from spyreprof_analyzers.scheduler import gauges


def decode_run(**changes: object):
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    return inputs(run, engine, **({"profiled_steps": shown} | changes))


def test_a_batch_far_below_a_known_cap_is_not_held_back_by_it() -> None:
    """A scheduler that takes one prompt at a time leaves others waiting with the batch far from full."""
    engine, run = capped()
    settings = EngineSettings(kv_blocks=6250, block_size=16, max_num_seqs=32)
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    diagnosis = diagnose(inputs(run, engine, settings=settings, profiled_steps=shown))
    assert diagnosis.verdict.primary != "queue_bound"
    assert not [f for f in diagnosis.findings if f.id == "SPY-QUE-001"]


def test_a_cap_that_is_only_inferred_is_never_judged_with_high_confidence() -> None:
    engine, run = capped()
    settings = EngineSettings(kv_blocks=6250, block_size=16)
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    verdict = diagnose(inputs(run, engine, settings=settings, profiled_steps=shown)).verdict
    assert (verdict.primary, verdict.confidence) == ("queue_bound", "medium")


@pytest.mark.parametrize(("compute", "agrees"), [(0.29, True), (0.35, None)])
def test_room_for_a_larger_batch_needs_room_in_the_compute_peak(compute: float, agrees: bool | None) -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=compute, bandwidth_use=0.31)
    verdict = diagnose(inputs(run, engine, profiled_steps=shown)).verdict
    assert verdict.primary == "queue_bound"
    assert next(view for view in verdict.witnesses if view.name == "device_trace").agrees is agrees


def test_a_batch_that_uses_the_compute_peak_is_not_told_to_grow() -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.7, bandwidth_use=0.3)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.primary != "queue_bound"


def test_profiled_steps_of_another_batch_size_do_not_speak_for_the_window() -> None:
    """The window opened while one request was tried; the load then ran at batch 4 and more."""
    engine = Engine(fixed_ns=10 * MS, per_request_ns=6 * MS)
    run = replay(engine, open_loop(3, 4.0, 60, (8, 12), (14, 24)))
    one = profiled(replay(engine, one_after_another(1, 8, 24)), phase="decode", compute_use=0.05, bandwidth_use=0.7)
    diagnosis = diagnose(inputs(run, engine, profiled_steps=one))
    assert diagnosis.verdict.confidence != "high"
    assert next(p for p in diagnosis.phases if p.phase == "decode").bound == "undetermined"
    assert any("do not speak for it" in gap.reason for gap in diagnosis.not_judged)


def test_a_roofline_over_a_small_part_of_matmul_time_is_no_bound() -> None:
    """Custom operators without a formula: what the modelled rest reaches says nothing of the step."""
    plain = decode_run()
    partly = tuple(
        replace(
            step,
            operators=tuple(replace(o, ns_with_model=o.ns // 10) if o.kind == "matmul" else o for o in step.operators),
        )
        for step in plain.profiled_steps
    )
    diagnosis = diagnose(replace(plain, profiled_steps=partly))
    assert next(p for p in diagnosis.phases if p.phase == "decode").bound == "undetermined"
    assert diagnosis.verdict.confidence != "high"


def test_weights_that_would_take_longer_than_the_step_were_not_all_read() -> None:
    """A mixture of experts reads a part of its weights."""
    plain = decode_run()
    model = replace(plain.model, parameter_bytes=4 * plain.model.parameter_bytes)
    diagnosis = diagnose(replace(plain, model=model, profiled_steps=()))
    assert diagnosis.verdict.primary == "undetermined"


def test_without_a_device_trace_no_resource_is_named_with_high_confidence() -> None:
    verdict = diagnose(decode_run(profiled_steps=())).verdict
    assert (verdict.primary, verdict.confidence) == ("decode_bandwidth_bound", "medium")


def test_steps_whose_tokens_are_unknown_are_unexplained() -> None:
    plain = decode_run()
    steps = plain.steps.copy()
    steps.loc[steps.index[:700], ["context_tokens", "generation_requests"]] = None
    diagnosis = diagnose(replace(plain, steps=steps))
    assert diagnosis.verdict.primary == "undetermined"
    assert diagnosis.time_budget.unexplained_share > 0.2


def test_clients_that_wait_while_the_engine_idles_are_not_a_decode_problem() -> None:
    """Every request spends most of its life before the engine sees it."""
    engine, run = light()
    for request in run.requests:
        request.arrival_ns = max(request.arrival_ns - 30 * S, 0)
    counters = table(COUNTERS, [])
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    verdict = diagnose(inputs(run, engine, counters=counters, profiled_steps=shown)).verdict
    assert verdict.primary == "undetermined"
    assert "front end" in verdict.reason


def test_reading_the_kv_cache_is_not_called_reading_weights() -> None:
    plain, kinds = decode_run(), {"matmul": "attention"}
    attention = tuple(
        replace(step, operators=tuple(replace(o, kind=kinds.get(o.kind, o.kind)) for o in step.operators))
        for step in plain.profiled_steps
    )
    diagnosis = diagnose(replace(plain, profiled_steps=attention))
    assert diagnosis.verdict.primary == "decode_bandwidth_bound"
    assert "the KV cache" in diagnosis.verdict.headline
    finding = next(f for f in diagnosis.findings if f.id == "SPY-DEC-001")
    assert "KV cache" in finding.title
    assert finding.advice == ()  # no other request shares that read


def test_a_request_tried_long_before_the_load_is_no_part_of_it() -> None:
    engine = Engine(fixed_ns=60 * MS)
    load = replay(engine, one_after_another(40, 8, 24))
    tried = replay(engine, [Request(0, 8, 6)])
    later = 240 * S
    for row in load.steps:
        row["start_ns"] += later
        row["end_ns"] += later
    load.gauges = [(time + later, *rest) for time, *rest in load.gauges]
    for request in load.requests:
        for field in ("arrival_ns", "scheduled_ns", "first_token_ns", "end_ns"):
            setattr(request, field, getattr(request, field) + later)
    load.end_ns += later
    load.steps = tried.steps + load.steps
    load.gauges = tried.gauges + load.gauges
    shown = profiled(load, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    diagnosis = diagnose(inputs(load, engine, profiled_steps=shown))
    assert diagnosis.verdict.primary == "decode_bandwidth_bound"
    assert diagnosis.window.start_ns >= later


def test_an_unfinished_recording_is_never_judged_with_high_confidence() -> None:
    verdict = diagnose(decode_run(finished=False)).verdict
    assert (verdict.primary, verdict.confidence) == ("decode_bandwidth_bound", "medium")


def test_peaks_measured_only_once_are_never_judged_with_high_confidence() -> None:
    once = tuple(replace(peak, before=None) for peak in peaks())
    verdict = diagnose(decode_run(peaks=once)).verdict
    assert (verdict.primary, verdict.confidence) == ("decode_bandwidth_bound", "medium")


def test_declared_peaks_do_not_drift() -> None:
    declared = (
        Peak("compute", 40e9, "flop/s", "declared", "hardware file x"),
        Peak("memory_bandwidth", 8e9, "bytes/s", "declared", "hardware file x"),
    )
    assert diagnose(decode_run(peaks=declared)).verdict.confidence == "high"


def test_the_compilations_of_another_process_take_nothing_from_this_engine() -> None:
    plain = decode_run()
    start, end = int(plain.steps["start_ns"].min()), int(plain.steps["end_ns"].max())
    other = diagnose(replace(plain, compiles=(Interval(start, end, "compile", "2-b"),)))
    assert other.time_budget == diagnose(plain).time_budget


def test_time_before_the_window_does_not_count_in_the_request_witness() -> None:
    """A warm-up request of two minutes of prefill, finished before the load began."""
    engine, run = decode_alone()
    made = inputs(run, engine, profiled_steps=profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7))
    counters = made.counters.copy()
    late = (counters["name"] == "vllm:request_prefill_time_seconds_sum") & (counters["time_ns"] > 0)
    counters.loc[late, "value"] += 120.0
    warm = counters[late].iloc[:1].assign(time_ns=1)
    verdict = diagnose(replace(made, counters=_with(counters, warm))).verdict
    assert next(view for view in verdict.witnesses if view.name == "requests").says == "decode_bandwidth_bound"


def _with(counters, rows):
    import pandas as pd

    return pd.concat([counters, rows]).sort_values("time_ns", kind="stable", ignore_index=True)


def test_a_request_log_without_lengths_gives_no_kv_fit() -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    made = inputs(run, engine, profiled_steps=shown)
    blind = made.requests.assign(prompt_tokens=table(REQUESTS, [{}])["prompt_tokens"].iloc[0])
    finding = next(f for f in diagnose(replace(made, requests=blind)).findings if f.id == "SPY-QUE-001")
    assert finding.advice == ()


def test_a_constant_chunk_tells_no_cost_per_prompt_token() -> None:
    engine = Engine(fixed_ns=100 * MS, per_context_token_ns=0)
    run = replay(engine, open_loop(1, 0.5, 90, (384, 384), (1, 1)))
    phase = next(p for p in diagnose(inputs(run, engine)).phases if p.phase == "prefill")
    assert "not determined" in phase.views[1].text


def test_prefill_is_judged_by_steps_like_its_own() -> None:
    """A window that fell on last chunks of a few tokens does not speak for full chunks."""
    engine, run = prefill_heavy()
    shown = profiled(run, phase="prefill", compute_use=0.05, bandwidth_use=0.7)
    tails = tuple(replace(step, context_tokens=6) for step in shown)
    assert diagnose(inputs(run, engine, profiled_steps=tails)).verdict.confidence != "high"


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12), st.integers(0, 120))
def test_what_lies_before_a_time_is_counted_exactly(raw: list[tuple[int, int]], time: int) -> None:
    spans = intervals.union(intervals.as_spans(raw))
    points = {point for start, end in spans.tolist() for point in range(start, end)}
    assert intervals.covered_before(spans, np.array([time]))[0] == sum(point < time for point in points)


def test_gauges_that_were_no_longer_polled_say_nothing_of_the_time_after() -> None:
    """The page died after a fifth of the run: what happened then is not known to be as it was."""
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    made = inputs(run, engine, profiled_steps=shown)
    early = made.counters[made.counters["time_ns"] < 10 * S]
    assert diagnose(made).verdict.primary == "queue_bound"
    assert diagnose(replace(made, counters=early)).verdict.primary != "queue_bound"


def test_gauges_of_a_page_that_hung_in_the_middle_are_not_carried_over_it() -> None:
    """The page answered every half second, but for ten seconds of forty."""
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    made = inputs(run, engine, profiled_steps=shown)
    asked = range(0, run.end_ns, S // 2)
    hung = (15 * S, 25 * S)
    polls = table(POLLS, [{"time_ns": t, "endpoint": 0, "ok": not hung[0] <= t < hung[1]} for t in asked])
    silent = (made.counters["time_ns"] >= hung[0]) & (made.counters["time_ns"] < hung[1])
    blind = replace(made, counters=made.counters[~silent], polls=polls)

    seen = gauges(blind.counters, polls, blind.recording_end_ns)
    assert seen is not None
    unknown = seen.time_ns[np.isnan(seen.running)]
    assert hung[0] + S <= unknown.min() <= hung[0] + 1.5 * S
    assert hung[1] - S <= unknown.max() < hung[1]
    as_before = gauges(blind.counters, None, blind.recording_end_ns)
    assert as_before is not None
    assert not np.isnan(as_before.running).any()
    assert diagnose(blind).verdict.primary == "queue_bound"


def test_polls_that_all_succeeded_change_nothing() -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    made = inputs(run, engine, profiled_steps=shown)
    polls = table(POLLS, [{"time_ns": t, "endpoint": 0, "ok": True} for t in range(0, run.end_ns, S // 2)])
    assert diagnose(replace(made, polls=polls)).verdict == diagnose(made).verdict


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0, 1e300])
@pytest.mark.parametrize("gauge", ["running", "waiting"])
def test_a_gauge_that_shows_no_number_of_requests_is_a_missing_one(gauge: str, value: float) -> None:
    engine, run = capped()
    made = inputs(run, engine)
    counters = made.counters.copy()
    counters.loc[counters["name"] == f"vllm:num_requests_{gauge}", "value"] = value
    diagnosis = diagnose(replace(made, counters=counters))
    assert diagnosis.verdict.primary != "queue_bound"
    assert any(gap.topic == "queueing and KV capacity" for gap in diagnosis.not_judged)


def test_gauges_over_a_span_of_centuries_take_no_more_memory() -> None:
    engine, run = capped()
    counters = inputs(run, engine).counters.copy()
    counters.loc[counters.index[-1], "time_ns"] = 2**63 - 1
    seen = gauges(counters, None, 10**30)
    assert seen is None or len(seen.time_ns) < 5_000_000


def test_time_between_steps_that_makes_the_verdict_is_also_a_finding() -> None:
    engine = Engine(fixed_ns=10 * MS, gap_ns=90 * MS)
    run = replay(engine, one_after_another(30, 8, 24))
    diagnosis = diagnose(inputs(run, engine))
    assert diagnosis.verdict.primary == "host_bound"
    finding = diagnosis.findings[0]
    assert (finding.id, finding.severity) == ("SPY-HST-001", "high")


def stricter(rule_id: str, name: str, value: float) -> RuleBook:
    """The rules with one threshold changed."""
    changed = []
    for rule in load_rules().rules:
        known = rule.thresholds
        if rule.id == rule_id:
            known = {**known, name: msgspec.structs.replace(known[name], value=value)}
        changed.append(msgspec.structs.replace(rule, thresholds=known))
    return RuleBook(tuple(changed))


@pytest.mark.parametrize(
    ("rule_id", "severity"), [("SPY-DEC-001", "high"), ("SPY-PRE-001", "high"), ("SPY-HST-001", "medium")]
)
def test_how_severe_a_host_is_that_binds_is_decided_by_its_own_rule(rule_id: str, severity: str) -> None:
    run = replay(Engine(fixed_ns=10 * MS, gap_ns=90 * MS), one_after_another(30, 8, 24))
    made = inputs(run, Engine(fixed_ns=10 * MS))
    found = diagnose_by(made, stricter(rule_id, "high_severity_share", 2.0), Targets()).findings
    assert next(f for f in found if f.title == "The host binds between steps").severity == severity


def test_a_target_that_allows_no_larger_batch_is_said() -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    diagnosis = diagnose(inputs(run, engine, profiled_steps=shown), Targets(itl_p99_s=0.001))
    assert any("latency target" in gap.topic for gap in diagnosis.not_judged)
    assert next(row for row in diagnosis.latencies if row.metric == "itl").target_met is False


def test_a_wide_target_is_not_blamed_where_the_recording_predicts_no_larger_batch() -> None:
    """Prompts of a few tokens: hardly a step held more tokens than the cap, so little stands in for a larger batch."""
    engine = Engine(max_num_seqs=2)
    run = replay(engine, open_loop(2, 2.5, 40, (3, 4), (12, 24)))
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    diagnosis = diagnose(inputs(run, engine, profiled_steps=shown), Targets(itl_p99_s=100.0))
    reasons = [gap.reason for gap in diagnosis.not_judged if "latency target" in gap.topic]
    assert len(reasons) == 1
    assert "predicts the step" in reasons[0]


@pytest.mark.parametrize(("target_s", "met"), [(0.001, False), (3600.0, None)])
def test_a_target_below_the_median_is_missed_though_the_tail_is_too_small_to_tell(
    target_s: float, met: bool | None
) -> None:
    engine, run = decode_alone()
    (row,) = [
        row for row in diagnose(inputs(run, engine), Targets(ttft_p99_s=target_s)).latencies if row.metric == "ttft"
    ]
    assert row.p99_s is None
    assert row.target_met is met


def test_decode_that_computes_is_said_to_and_nothing_is_asked_for_that_is_there() -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.46, bandwidth_use=0.24)
    verdict = diagnose(inputs(run, engine, profiled_steps=shown)).verdict
    assert verdict.primary == "undetermined"
    assert "limited by arithmetic" in verdict.reason
    assert not any("profiler window" in missing.obtain for missing in verdict.missing)
