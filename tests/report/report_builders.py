"""A report of a decode run with every part filled in; a test changes only what it is about."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from spyreprof.findings import (
    Advice,
    BudgetPart,
    Evidence,
    ExcludedTime,
    ExpectedChange,
    Finding,
    LatencySummary,
    NotJudged,
    PeakUse,
    PhaseReport,
    SlopeFit,
    SlopeTerm,
    SteadyWindow,
    TimeBudget,
    TradeOff,
    Verdict,
    Witness,
)
from spyreprof.report.model import (
    CollectorState,
    Conditions,
    Coverage,
    Exit,
    Input,
    Lengths,
    Load,
    MachinePeak,
    Producer,
    ProfilerWindow,
    ProfilerWindows,
    Public,
    Quality,
    Rate,
    RedactionSummary,
    Report,
    Run,
    Spread,
    Throughput,
    WindowRefusal,
)
from spyreprof.request_figures import Cost, CostCut, CostLine, RequestCost, TailLatency, TailPart, TailPartName

EVIDENCE = (
    Evidence(
        id="e1",
        metric="decode.matmul.memory_bandwidth_use",
        value=0.823,
        unit="ratio",
        origin="derived",
        n=4,
        low=0.79,
        high=0.85,
        method="bytes of weights read over the time inside matmul operators, over the measured peak",
        source="profiler window 1",
    ),
    Evidence(
        id="e2",
        metric="decode.batch_mean",
        value=6.1,
        unit="requests",
        origin="measured",
        n=1204,
        method="mean of generation requests over decode steps",
        source="engine steps",
    ),
    Evidence(
        id="e3",
        metric="waiting_requests.p95",
        value=23,
        unit="requests",
        origin="measured",
        n=84,
        method="95th percentile of vllm:num_requests_waiting",
        source="metrics",
    ),
    Evidence(
        id="e4",
        metric="kv_usage.max",
        value=0.38,
        unit="ratio",
        origin="measured",
        n=84,
        method="maximum of vllm:kv_cache_usage_perc",
        source="metrics",
    ),
    Evidence(
        id="e5",
        metric="decode.slope.fixed_cost",
        value=21_400_000,
        unit="ns",
        origin="estimated",
        n=1204,
        low=20_900_000.0,
        high=21_800_000.0,
        method="intercept of step time over executed work",
        source="engine steps",
    ),
    Evidence(
        id="e6",
        metric="queue_time.p99",
        value=None,
        unit="s",
        origin="measured",
        method="the engine exports no queue time histogram",
        source="metrics",
    ),
)

BATCH_ADVICE = Advice(
    id="max_num_seqs",
    setting="max_num_seqs",
    from_=8,
    to=16,
    from_origin="measured",
    expected=(
        ExpectedChange(metric="output_tokens_per_s", direction="up", low=0.45, high=0.8),
        ExpectedChange(metric="queue_time_p99", direction="down", note="the queue empties"),
    ),
    pays=(ExpectedChange(metric="itl_p50", direction="up", low=0.04, high=0.15),),
    preconditions=("The KV cache holds 21 sequences of the observed lengths.",),
    test_arguments="--max-num-seqs 16",
    refuted_if="ITL p50 rises by more than 25 %, or KV cache use exceeds 90 %.",
    trade_off=(
        TradeOff(value=8, itl_s=0.0412, throughput_ratio=1.0, fits_kv=True, extrapolated=False),
        TradeOff(value=16, itl_s=0.0446, throughput_ratio=1.62, fits_kv=True, extrapolated=True),
        TradeOff(value=32, itl_s=None, throughput_ratio=None, fits_kv=False, extrapolated=True),
    ),
)

FINDINGS = (
    Finding(
        id="SPY-DEC-002",
        rule_version=1,
        severity="high",
        title="Decode batch is too small for the weights it reads",
        text="Each decode step reads all weights for 6.10 requests on average while 23 wait.",
        phase="decode",
        share=0.71,
        evidence=("e1", "e2", "e3", "e4"),
        against=("Padding to the next bucket could eat part of the gain.",),
        advice=(BATCH_ADVICE,),
    ),
    Finding(
        id="SPY-QUE-001",
        rule_version=1,
        severity="medium",
        title="Requests wait although the KV cache has room",
        text="23 requests wait at the 95th percentile.",
        phase=None,
        share=None,
        evidence=("e3", "e4"),
        against=("Nothing in this recording speaks against it.",),
    ),
    Finding(
        id="SPY-INT-001",
        rule_version=1,
        severity="low",
        title="Prefill interrupts decode",
        text="Mixed steps take longer than decode steps.",
        phase="mixed",
        share=0.021,
        evidence=("e5",),
        against=("Nothing in this recording speaks against it.",),
    ),
    Finding(
        id="SPY-HOS-001",
        rule_version=1,
        severity="info",
        title="A fixed cost per step remains",
        text="The intercept of the step time is 21.4 ms.",
        phase="decode",
        share=0.012,
        evidence=("e5", "e6"),
        against=("Nothing in this recording speaks against it.",),
    ),
)

BUDGET = TimeBudget(
    window_ns=42_000_000_003,
    parts=(
        BudgetPart(id="prefill.device_compute", ns=6_132_000_000, share=0.146, origin="derived"),
        BudgetPart(id="decode.device_compute", ns=24_402_000_001, share=0.581, origin="derived"),
        BudgetPart(id="decode.host", ns=3_864_000_000, share=0.092, origin="estimated"),
        BudgetPart(id="mixed.device_compute", ns=882_000_001, share=0.021, origin="derived"),
        BudgetPart(id="scheduler_gap", ns=3_318_000_000, share=0.079, origin="measured"),
        BudgetPart(id="no_load", ns=0, share=0.0, origin="measured"),
    ),
    unexplained_ns=3_402_000_001,
    unexplained_share=0.081,
    excluded=(
        ExcludedTime(reason="warm-up", ns=11_300_000_000),
        ExcludedTime(reason="profiler window", ns=840_000_000),
    ),
)

PHASES = (
    PhaseReport(
        phase="prefill",
        steps=97,
        time_ns=6_132_000_000,
        share=0.146,
        context_tokens=49_664,
        generation_tokens=0,
        step_time_p50_ns=61_900_000,
        step_time_p99_ns=94_200_000,
        batch_mean=None,
        bound="compute",
        reason="matmul reaches 78 % of the measured compute peak and 12 % of the bandwidth peak",
        assigned_ratio=0.94,
    ),
    PhaseReport(
        phase="decode",
        steps=1204,
        time_ns=28_266_000_001,
        share=0.673,
        context_tokens=0,
        generation_tokens=7344,
        step_time_p50_ns=23_100_000,
        step_time_p99_ns=29_700_000,
        batch_mean=6.1,
        bound="memory_bandwidth",
        reason="matmul reads weights at 82.3 % of the measured bandwidth and does 4 % of the compute peak",
        assigned_ratio=0.912,
        views=(
            Witness(name="device_trace", says="decode_bandwidth_bound", agrees=None, text="its reason"),
            Witness(name="engine", says=None, agrees=None, text="slope test: fixed cost, not split", evidence=("e1",)),
            Witness(name="requests", says=None, agrees=None, text="no request log and no histograms"),
        ),
        peak_use=(
            PeakUse(
                resource="memory_bandwidth",
                achieved_per_s=6.5e9,
                peak_per_s=7.9e9,
                use_ratio=0.823,
                peak_origin="measured",
                evidence=("e1",),
            ),
        ),
        slope=SlopeFit(
            n_steps=1204,
            terms=(
                SlopeTerm(name="intercept", ns_per_unit=21_400_000.0, low=20_900_000.0, high=21_800_000.0),
                SlopeTerm(
                    name="generation_requests",
                    ns_per_unit=None,
                    identifiable=False,
                    reason="the batch hardly changed",
                ),
            ),
            relative_residual=0.04,
        ),
        evidence=("e2", "e5"),
    ),
)

VERDICT = Verdict(
    primary="decode_bandwidth_bound",
    confidence="high",
    secondary=("queue_bound",),
    headline="Decode is bound by memory bandwidth: it reads weights at 82.3 % of the measured peak.",
    reason="Decode takes 67.3 % of the window, and its matmul operators run at the bandwidth peak.",
    witnesses=(
        Witness(
            name="device_trace",
            says="decode_bandwidth_bound",
            agrees=True,
            text="bandwidth use is high and compute use is low",
            evidence=("e1",),
        ),
        Witness(
            name="engine",
            says="queue_bound",
            agrees=False,
            text="23 requests wait while the batch is full",
            evidence=("e3",),
        ),
        Witness(name="requests", says=None, agrees=None, text="no request log in this recording"),
    ),
    confidence_reasons=(
        "Two-sided use of measured peaks.",
        "Peaks before and after the run differ by 3 %.",
    ),
)


PROFILER_WINDOWS = ProfilerWindows(
    opened=2,
    saved=1,
    refused=(WindowRefusal(reason=Public("recent steps are longer than 0.5 s"), count=1),),
    steps=4,
    operators=1200,
    pause_total_ns=310_000_000,
    pause_longest_ns=190_000_000,
    pause_median_ns=155_000_000,
    share_of_recording=0.00506,
    share_of_steady_window=0.00738,
    windows=(
        ProfilerWindow(
            start_ns=1_010_000_000_000,
            pause_ns=190_000_000,
            kept_out_ns=290_000_000,
            steps=4,
            operators=1200,
            state=Public("saved"),
            reason=None,
        ),
        ProfilerWindow(
            start_ns=1_020_000_000_000,
            pause_ns=120_000_000,
            kept_out_ns=550_000_000,
            steps=0,
            operators=None,
            state=Public("yielded"),
            reason=Public("the program opened its own profiler"),
        ),
    ),
    missing=None,
)


THROUGHPUT = Throughput(
    output_tokens=Rate(per_s=174.857, source="engine steps of the steady window"),
    requests=Rate(per_s=0.571, source="load generator's log"),
)

LOAD = Load(
    requests=35,
    source="load generator's log",
    arrivals="closed_loop",
    arrivals_per_s=0.58,
    most_in_flight=24,
    prompt_tokens=Lengths(mean=512.0, p50=512.0, p90=512.0),
    output_tokens=Lengths(mean=210.5, p50=208.0, p90=256.0),
)


def tail(**changes: Any) -> TailLatency:
    """The time to first token: the queue makes it long."""
    seen = {
        "queue": (61_000_000_000, 0.782, 900_000_000, 0.013, 2.97),
        "prefill": (16_000_000_000, 0.205, 66_500_000_000, 0.96, 0.0),
        "between_steps": (1_000_000_000, 0.013, 1_870_000_000, 0.027, 0.0),
    }
    parts = []
    for name in get_args(TailPartName):
        ns, share, median_ns, median_share, excess_s = seen.get(name, (0, 0.0, 0, 0.0, 0.0))
        told = name != "front_end"
        parts.append(
            TailPart(
                id=name,
                slowest_ns=ns if told else None,
                slowest_share=share if told else None,
                median_ns=median_ns if told else None,
                median_share=median_share if told else None,
                excess_s=excess_s if told else None,
            )
        )
    made = TailLatency(
        metric="ttft",
        requests=412,
        slowest=20,
        median=84,
        slowest_mean_s=3.9,
        median_mean_s=0.825,
        slowest_ns=78_000_000_000,
        median_ns=69_270_000_000,
        parts=tuple(parts),
        dominant="queue",
        dominant_share=0.966,
        slowest_prompt_tokens=312.0,
        median_prompt_tokens=308.5,
        slowest_output_tokens=96.0,
        median_output_tokens=97.2,
        reason="96.6 % of the difference is the queue",
        source="requests marked by the program",
        target_p99_s=2.0,
        target_met=False,
    )
    return msgspec.structs.replace(made, **changes)


COST = Cost(
    price_per_hour=2.5,
    window_ns=42_000_000_003,
    amount=0.0291667,
    devices=None,
    lines=(
        CostLine(id="input", ns=7_014_000_000, share=0.167, amount=0.00487083, tokens=49_664,
                 per_million_tokens=0.0980757, all_in_per_million_tokens=0.114),
        CostLine(id="cached", ns=0, share=0.0, amount=0.0, tokens=None, per_million_tokens=None,
                 all_in_per_million_tokens=None),
        CostLine(id="output", ns=28_266_000_001, share=0.673, amount=0.0196292, tokens=7344,
                 per_million_tokens=2.67282, all_in_per_million_tokens=3.12),
        CostLine(id="overhead", ns=3_318_000_000, share=0.079, amount=0.00230417, tokens=None,
                 per_million_tokens=None, all_in_per_million_tokens=None),
        CostLine(id="idle_capacity", ns=0, share=0.0, amount=0.0, tokens=None, per_million_tokens=None,
                 all_in_per_million_tokens=None),
        CostLine(id="unexplained", ns=3_402_000_002, share=0.081, amount=0.0023625, tokens=None,
                 per_million_tokens=None, all_in_per_million_tokens=None),
    ),
    requests=(
        RequestCost(percentile=50, prompt_tokens=308, cached_tokens=None, output_tokens=97, amount=0.000286798,
                    cuts=(CostCut(of="context", cut_ratio=0.1, amount=0.000283777, change_ratio=-0.0105),
                          CostCut(of="output", cut_ratio=0.1, amount=0.000261139, change_ratio=-0.0895))),
    ),
    notes=("input is the time of prefill and output that of decode",),
)  # fmt: skip

PEAKS = (
    MachinePeak(
        resource="memory_bandwidth", unit="bytes/s", origin="measured", value=7.9e9, before=7.66e9, after=7.9e9
    ),
    MachinePeak(resource="dispatch", unit="ns/operator", origin="measured", value=1900.0, before=1900.0, after=2100.0),
)


def finished_report(**changes: Any) -> Report:
    """A decode run of 61.3 s, 42 s of it steady, with four findings."""
    report = Report(
        schema_version=1,
        producer=Producer(name="spyreprof", version="0.1.0"),
        report_id="",
        run=Run(
            run_id=Public("7f3a01c2"),
            started="2026-11-30T12:00:00Z",
            duration_s=61.3,
            exit=Exit(code=0),
            finished=True,
            command_redacted=Public("python samples/serve.py --scenario decode --seed 7"),
            command_complete=True,
        ),
        conditions=Conditions(
            hardware=Public("Intel(R) Xeon(R) Platinum 8481C"),
            device_kind=Public("cpu"),
            device_count=1,
            model=None,
            parameter_bytes=403_177_472,
            precision=Public("float32"),
            batch=Spread(mean=6.1, low=1.0, high=8.0),
            context=Spread(mean=312.4, low=64.0, high=512.0),
            quantisation=None,
            software={"python": Public("3.11.7"), "torch": Public("2.13.0+cpu")},
        ),
        inputs=(Input(kind="recording", counts={"steps": 1412, "requests": 35, "cut_lines": 0}),),
        quality=Quality(
            notes=(Public("Process 4711 ended without a closing row."),),
            collectors=(
                CollectorState(name=Public("steps"), state="ok"),
                CollectorState(
                    name=Public("profiler"),
                    state="partial",
                    reason=Public("the window closed after 2 of 4 steps"),
                    obtain=Public("Record for longer."),
                ),
            ),
            coverage=Coverage(
                processes=1,
                processes_closed=0,
                steps=1412,
                profiled_steps=4,
                assigned_ratio=0.912,
                requests=35,
                metric_polls=118,
            ),
        ),
        redaction=RedactionSummary(policy="default_deny", removed={"path": 1}),
        window=SteadyWindow(
            start_ns=1_000_000_000_000,
            end_ns=1_042_000_000_003,
            share_of_recording=0.685,
            basis="step times and batch are stationary from second 12 on",
        ),
        time_budget=BUDGET,
        phases=PHASES,
        latencies=(
            LatencySummary(metric="ttft", n=35, mean_s=1.2, p50_s=0.84, p90_s=2.9, p99_s=3.9, source="client"),
            LatencySummary(metric="itl", n=7344, mean_s=0.0431, p50_s=0.0412, p90_s=0.061, p99_s=None, source="client"),
        ),
        verdict=VERDICT,
        findings=FINDINGS,
        not_judged=(
            NotJudged(topic="interconnect", reason="One device has none.", obtain="Record on several devices."),
            NotJudged(topic="queue", reason="No gauges were seen.", obtain="Poll the engine's metrics."),
        ),
        evidence=EVIDENCE,
        profiler_windows=PROFILER_WINDOWS,
        throughput=THROUGHPUT,
        tails=(tail(),),
        cost=COST,
        load=LOAD,
        settings={"max_num_seqs": 8, "prefix_caching": True, "kv_dtype": Public("float16")},
        peaks=PEAKS,
    )
    return msgspec.structs.replace(report, **changes)
