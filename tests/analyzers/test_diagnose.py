"""The verdict on synthetic engines whose costs are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_builder import (
    MS,
    Engine,
    Request,
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

from spyreprof.findings import Diagnosis
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS, EngineSettings, Interval
from spyreprof.registry import diagnose
from spyreprof.targets import Targets
from spyreprof_analyzers.scheduler import Admission, admission


def decode_run(**changes: object):
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    return inputs(run, engine, **({"profiled_steps": shown} | changes))


def prefill_run(**changes: object):
    engine, run = prefill_heavy()
    shown = profiled(run, phase="prefill", compute_use=0.6, bandwidth_use=0.05)
    return inputs(run, engine, **({"profiled_steps": shown} | changes))


def queue_run(engine: Engine | None = None, **changes: object):
    engine, run = capped(engine)
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    return inputs(run, engine, **({"profiled_steps": shown} | changes))


def light_run(**changes: object):
    engine, run = light()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    return inputs(run, engine, **({"profiled_steps": shown} | changes))


def witness(diagnosis: Diagnosis, name: str):
    return next(view for view in diagnosis.verdict.witnesses if view.name == name)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (prefill_run, "prefill_bound"),
        (decode_run, "decode_bandwidth_bound"),
        (queue_run, "queue_bound"),
        (light_run, "load_limited"),
    ],
)
def test_each_kind_of_run_gets_its_verdict_with_high_confidence(run, expected: str) -> None:
    verdict = diagnose(run()).verdict
    assert (verdict.primary, verdict.confidence) == (expected, "high")


@pytest.mark.parametrize("run", [prefill_run, decode_run, queue_run, light_run])
def test_the_budget_closes_to_the_nanosecond(run) -> None:
    budget = diagnose(run()).time_budget
    assert sum(part.ns for part in budget.parts) + budget.unexplained_ns == budget.window_ns
    assert budget.unexplained_share <= 0.1


def test_light_load_yields_nothing_above_low_severity() -> None:
    assert {finding.severity for finding in diagnose(light_run()).findings} <= {"low", "info"}


def test_decode_at_batch_one_names_light_load_as_secondary() -> None:
    assert "load_limited" in diagnose(decode_run()).verdict.secondary


@pytest.mark.parametrize("run", [prefill_run, decode_run, queue_run, light_run])
def test_every_number_that_a_finding_cites_exists(run) -> None:
    diagnosis = diagnose(run())
    known = {evidence.id for evidence in diagnosis.evidence}
    cited = [e for f in diagnosis.findings for e in f.evidence]
    cited += [e for view in diagnosis.verdict.witnesses for e in view.evidence]
    assert cited
    assert set(cited) <= known
    assert all(finding.evidence and finding.against for finding in diagnosis.findings)


def test_the_same_inputs_give_the_same_diagnosis() -> None:
    assert diagnose(queue_run()) == diagnose(queue_run())


def test_peaks_that_moved_during_the_run_forbid_a_verdict() -> None:
    diagnosis = diagnose(decode_run(peaks=peaks(read_after=4e9)))
    assert diagnosis.verdict.primary == "undetermined"
    assert diagnosis.verdict.confidence is None
    assert any("before and after" in gap.reason for gap in diagnosis.not_judged)


@pytest.mark.parametrize(("after", "primary"), [(8e9 * 0.86, "decode_bandwidth_bound"), (8e9 * 0.84, "undetermined")])
def test_the_limit_of_peak_drift_is_fifteen_percent(after: float, primary: str) -> None:
    assert diagnose(decode_run(peaks=peaks(read_after=after))).verdict.primary == primary


def test_without_a_profiler_window_decode_is_judged_from_model_size_with_less_confidence() -> None:
    verdict = diagnose(decode_run(profiled_steps=())).verdict
    assert verdict.primary == "decode_bandwidth_bound"
    assert witness(diagnose(decode_run(profiled_steps=())), "device_trace").agrees is None


def test_without_window_peaks_and_model_the_phase_is_not_judged() -> None:
    bare = decode_run(profiled_steps=(), peaks=(), model=replace(decode_run().model, parameter_bytes=None))
    diagnosis = diagnose(bare)
    assert diagnosis.verdict.primary == "undetermined"
    assert {"where time inside a step goes", "use of peaks"} <= {gap.topic for gap in diagnosis.not_judged}


def test_a_tampered_request_log_dissents_and_lowers_confidence() -> None:
    honest = decode_run()
    counters = honest.counters.copy()
    queue = counters["name"] == "vllm:request_queue_time_seconds_sum"
    counters.loc[queue & (counters["time_ns"] > 0), "value"] = 1e6
    verdict = diagnose(replace(honest, counters=counters)).verdict
    assert verdict.primary == "decode_bandwidth_bound"
    assert [view.name for view in verdict.witnesses if view.agrees is False] == ["requests"]
    assert verdict.confidence == "medium"


def test_a_client_log_alone_cannot_tell_waiting_from_prefill() -> None:
    """Without the engine's histograms, time to first token holds both."""
    engine, run = capped()
    made = inputs(run, engine, profiled_steps=profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12))
    blind = made.counters[~made.counters["name"].str.contains("request_")]
    assert witness(diagnose(replace(made, counters=blind)), "requests").says is None
    assert witness(diagnose(made), "requests").says == "queue_bound"


def test_a_tampered_model_size_silences_the_engine_and_does_not_raise_confidence() -> None:
    honest = decode_run()
    small = diagnose(replace(honest, model=replace(honest.model, parameter_bytes=1000)))
    assert witness(small, "engine").agrees is None
    assert small.verdict.primary == "decode_bandwidth_bound"


def test_a_window_on_a_slow_moment_is_judged_at_the_speed_of_the_other_steps() -> None:
    """Profiled steps that took twice as long as their like: the machine was busy just then."""
    plain = decode_run()
    slow = tuple(
        replace(
            step,
            end_ns=2 * step.end_ns - step.start_ns,
            gap_ns=2 * step.gap_ns,
            operators=tuple(replace(o, ns=2 * o.ns, ns_with_model=2 * o.ns_with_model) for o in step.operators),
        )
        for step in plain.profiled_steps
    )
    use = {u.resource: u.use_ratio for u in next(p for p in diagnose(plain).phases if p.phase == "decode").peak_use}
    busy = next(p for p in diagnose(replace(plain, profiled_steps=slow)).phases if p.phase == "decode")
    assert {u.resource: u.use_ratio for u in busy.peak_use} == pytest.approx(use, rel=0.1)


def test_each_phase_names_what_peaks_slope_and_requests_say_of_it() -> None:
    phases = {phase.phase: phase for phase in diagnose(decode_run()).phases}
    trace, engine, requests = phases["decode"].views
    assert trace.says == engine.says == "decode_bandwidth_bound"
    assert engine.agrees
    assert "slope test: fixed cost, not split" in engine.text
    assert "of request time is decode" in requests.text
    assert requests.says is None


def test_the_slope_test_of_prefill_says_how_much_grows_with_its_tokens() -> None:
    """The synthetic engine spends 3 ms on each prompt token and 10 ms on each step."""
    engine, run = prefill_heavy()
    diagnosis = diagnose(inputs(run, engine))
    share = next(e.value for e in diagnosis.evidence if e.metric == "prefill.token_cost_share")
    steps = [row for row in run.steps if row["context_tokens"]]
    true = sum(3 * MS * row["context_tokens"] for row in steps) / sum(r["end_ns"] - r["start_ns"] for r in steps)
    assert share == pytest.approx(true, rel=0.05)


def test_few_steps_never_give_high_confidence() -> None:
    engine = Engine(fixed_ns=60 * MS)
    run = replay(engine, one_after_another(4, 8, 24))
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.confidence in ("medium", "low")


def test_no_steps_at_all_is_undetermined_and_says_how_to_get_them() -> None:
    empty = decode_run(steps=table(STEPS, []), profiled_steps=())
    diagnosis = diagnose(empty)
    assert diagnosis.verdict.primary == "undetermined"
    assert diagnosis.time_budget is None
    assert diagnosis.not_judged[0].obtain


def test_matmuls_that_use_neither_peak_are_inefficient_kernels() -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.04, bandwidth_use=0.11)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.primary == "inefficient_kernel"


@pytest.mark.parametrize(
    ("compute", "bandwidth", "primary"),
    [
        (0.05, 0.41, "decode_bandwidth_bound"),
        (0.05, 0.39, "undetermined"),
        (0.24, 0.7, "decode_bandwidth_bound"),
        (0.26, 0.7, "undetermined"),
        (0.05, 0.29, "inefficient_kernel"),
        (0.05, 0.31, "undetermined"),
    ],
)
def test_the_two_sided_thresholds_of_peak_use(compute: float, bandwidth: float, primary: str) -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=compute, bandwidth_use=bandwidth)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.primary == primary


def test_a_bound_close_to_its_threshold_is_not_high_confidence() -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.42)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.confidence == "medium"


def test_more_than_the_peak_means_that_the_peak_is_wrong_and_lowers_confidence() -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=1.2)
    verdict = diagnose(inputs(run, engine, profiled_steps=shown)).verdict
    assert verdict.confidence == "medium"
    assert any("busy when it was measured" in reason for reason in verdict.confidence_reasons)


def test_steps_that_pass_outside_operators_are_host_bound() -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7, matmul_ratio=0.2, gap_ratio=0.7)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.primary == "host_bound"


def test_operators_of_unknown_kind_count_as_unexplained_and_can_forbid_a_verdict() -> None:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7, matmul_ratio=0.6, unknown_ratio=0.3)
    diagnosis = diagnose(inputs(run, engine, profiled_steps=shown))
    assert diagnosis.time_budget.unexplained_share > 0.2
    assert diagnosis.verdict.primary == "undetermined"


def test_a_full_kv_cache_is_capacity_not_the_batch_cap() -> None:
    engine = Engine(max_num_seqs=64, kv_tokens=70)
    run = replay(engine, open_loop(2, 2.5, 40, (10, 20), (12, 24)))
    counters = inputs(run, engine)
    full = counters.counters.copy()
    usage = full["name"] == "vllm:kv_cache_usage_perc"
    full.loc[usage & (full["value"] > 0), "value"] = 0.97
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    verdict = diagnose(replace(counters, counters=full, profiled_steps=shown)).verdict
    assert verdict.primary == "kv_capacity_bound"


def test_a_kv_gauge_that_is_missing_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding says nothing of the cache where its usage is not known."""
    known = next(f for f in diagnose(queue_run()).findings if f.id == "SPY-QUE-001")
    assert "the KV cache was" in known.text

    def blind(*arguments: object) -> Admission | None:
        found = admission(*arguments)  # type: ignore[arg-type]
        return replace(found, kv_usage_p95=None) if found is not None else None

    monkeypatch.setattr("spyreprof_analyzers.diagnose.admission", blind)
    diagnosis = diagnose(queue_run())
    finding = next(f for f in diagnosis.findings if f.id == "SPY-QUE-001")
    assert finding.text.endswith("at its cap of 2.")
    assert not any(entry.metric == "queue.kv_usage_p95" for entry in diagnosis.evidence)


def test_waiting_for_prompt_tokens_is_not_a_batch_cap() -> None:
    """Prompts that overrun the token budget queue up although no cap holds them back."""
    engine = Engine(fixed_ns=10 * MS, per_context_token_ns=3 * MS)
    run = replay(engine, open_loop(5, 1.5, 40, (350, 600), (1, 3)))
    shown = profiled(run, phase="prefill", compute_use=0.6, bandwidth_use=0.05)
    diagnosis = diagnose(inputs(run, engine, profiled_steps=shown))
    assert diagnosis.verdict.primary == "prefill_bound"
    assert not [f for f in diagnosis.findings if f.id == "SPY-QUE-001"]


def test_a_compute_bound_decode_at_the_cap_is_not_told_to_raise_it() -> None:
    engine, run = capped()
    shown = profiled(run, phase="decode", compute_use=0.8, bandwidth_use=0.1)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.primary != "queue_bound"


def test_the_advised_cap_is_the_smallest_of_kv_capacity_and_demand() -> None:
    roomy = advice_of(diagnose(queue_run()))
    tight_engine = Engine(max_num_seqs=2, kv_tokens=400)
    tight = advice_of(diagnose(queue_run(tight_engine, settings=EngineSettings(kv_blocks=25, block_size=16))))
    assert roomy.from_ == tight.from_ == 2
    assert roomy.to == pytest.approx(19 + 2, abs=3)  # demand: what waited and ran at the 95th percentile
    assert 2 < tight.to < roomy.to  # 0.9 x 400 tokens over about 40 a request


def test_without_a_latency_target_the_trade_off_table_stands_beside_the_advice() -> None:
    advice = advice_of(diagnose(queue_run()))
    assert advice.trade_off[0].value == 2
    assert advice.trade_off[-1].value == advice.to
    assert advice.trade_off[0].itl_s == pytest.approx(0.052, rel=0.1)
    # the engine's true cost is 50 ms and 1 ms for each row, whether prompt or decode
    seen = [row for row in advice.trade_off if row.itl_s is not None]
    assert [row.itl_s for row in seen] == pytest.approx([0.050 + 0.001 * row.value for row in seen], rel=0.05)
    assert not advice.trade_off[0].extrapolated
    assert all(row.extrapolated for row in advice.trade_off[1:])


def test_a_gain_holds_the_truth_of_a_replay_with_the_advised_cap() -> None:
    """The synthetic engine can be run again with the advice followed."""
    load = [Request(0, 15, 18) for _ in range(160)]
    before, after = (replay(Engine(max_num_seqs=cap), load) for cap in (2, 14))
    engine = Engine(max_num_seqs=2)
    run, arrivals = replay(engine, load), open_loop(2, 2.5, 40, (10, 20), (12, 24))
    assert len(run.requests) == len(load)
    diagnosis = diagnose(inputs(replay(engine, arrivals), engine, profiled_steps=queue_run().profiled_steps))
    row = next(row for row in advice_of(diagnosis).trade_off if row.value == 8)
    eight = replay(Engine(max_num_seqs=8), load)
    assert row.throughput_ratio == pytest.approx(before.end_ns / eight.end_ns, rel=0.1)
    assert after.end_ns < eight.end_ns


def test_a_closed_loop_does_not_bound_the_gain_by_its_arrivals() -> None:
    """Sixteen clients that send when they are served: arrivals equal completions, whatever the cap."""
    engine = Engine(max_num_seqs=2)
    run = replay(engine, [Request(0, 15, 18) for _ in range(160)])
    for index, request in enumerate(run.requests[16:]):
        request.arrival_ns = run.requests[index].end_ns
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    gain = next(change for change in advice_of(diagnose(inputs(run, engine, profiled_steps=shown))).expected)
    assert gain.metric == "output tokens/s"
    assert gain.high is not None
    assert gain.high > 1.0


def test_a_latency_target_limits_the_cap_where_the_slope_is_known() -> None:
    engine = Engine(max_num_seqs=6, per_request_ns=10 * MS, fixed_ns=40 * MS)
    # bursts: the batch is at its cap for most of each, and shrinks through all sizes at its end
    run = replay(engine, [Request(burst * 9 * 10**9, 12, 20 + 3 * i) for burst in range(12) for i in range(14)])
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    made = inputs(run, engine, profiled_steps=shown)
    free = diagnose(made)
    if free.verdict.primary != "queue_bound":
        pytest.fail(f"the run should be held back by its cap, not {free.verdict.primary}")
    bound = diagnose(made, Targets(itl_p99_s=0.125))
    assert advice_of(bound).to == 8  # 40 ms + 8 x 10 ms, and a tail of 2 %
    assert advice_of(free).to > 8


def advice_of(diagnosis: Diagnosis):
    finding = next(f for f in diagnosis.findings if f.id == "SPY-QUE-001")
    (advice,) = finding.advice
    return advice


def test_a_profiler_pause_is_kept_out_of_the_window() -> None:
    plain = decode_run()
    shown = plain.profiled_steps
    pause = Interval(shown[0].start_ns + 10_000 * MS, shown[0].start_ns + 11_000 * MS, "profiler window")
    paused = diagnose(replace(plain, pauses=(pause,)))
    assert diagnose(plain).time_budget.window_ns - paused.time_budget.window_ns == 1_000 * MS
    assert any("profiler" in part.reason for part in paused.time_budget.excluded)


def test_compilation_inside_the_window_is_its_own_share() -> None:
    plain = decode_run()
    start = int(plain.steps["start_ns"].iloc[300])
    compiled = diagnose(replace(plain, compiles=(Interval(start, start + 40 * MS, "compile"),)))
    share = {part.id: part.ns for part in compiled.time_budget.parts}
    assert share["compile"] == 40 * MS


def test_without_a_request_log_idle_time_is_recognised_from_the_gauges() -> None:
    diagnosis = diagnose(light_run(requests=table(REQUESTS, [])))
    assert diagnosis.verdict.primary == "load_limited"


def test_without_log_and_gauges_idle_time_is_inferred_from_what_the_next_step_did() -> None:
    diagnosis = diagnose(light_run(requests=table(REQUESTS, []), counters=table(COUNTERS, [])))
    assert diagnosis.verdict.primary == "load_limited"
    assert diagnosis.verdict.confidence == "low"  # one witness is left


def test_a_log_that_misses_load_is_not_taken_for_idleness() -> None:
    """A second client that left no log: step time outside of the logged requests gives it away."""
    plain = decode_run()
    half = plain.requests.iloc[: len(plain.requests) // 2].copy()
    diagnosis = diagnose(replace(plain, requests=half))
    assert diagnosis.verdict.primary == "decode_bandwidth_bound"


@pytest.mark.parametrize("scale", [10, 0.1])
def test_the_verdict_does_not_depend_on_the_unit_of_speed(scale: float) -> None:
    """A machine ten times as fast, with ten times the peaks, gets the same verdict."""
    engine, run = decode_alone(Engine(fixed_ns=int(60 * MS / scale), per_request_ns=int(MS / scale)))
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7)
    assert diagnose(inputs(run, engine, profiled_steps=shown)).verdict.primary == "decode_bandwidth_bound"


def test_latency_percentiles_need_enough_requests() -> None:
    rows = {row.metric: row for row in diagnose(decode_run()).latencies}
    assert rows["ttft"].n == 39  # the first request's prefill is warm-up
    assert rows["ttft"].p90_s is not None
    assert rows["ttft"].p99_s is None
    assert rows["itl"].p99_s is not None
