"""What a diagnosis consists of: evidence, budget, bounds, verdict, findings, advice.

Analyzers produce these, the report embeds them, renderers print them. They are the JSON of a report, so a
field name here is a contract: units stand in names, ratios run from 0 to 1, absent is None and never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# At run time fields of the diagnosis, so that this import is not for type checking only.
from spyreprof.request_figures import Cost, TailLatency

Origin = Literal["measured", "derived", "estimated", "declared", "assumed"]
Confidence = Literal["high", "medium", "low"]
Severity = Literal["high", "medium", "low", "info"]
Phase = Literal["prefill", "decode", "mixed"]
WitnessName = Literal["device_trace", "engine", "requests"]
EvidenceWindow = Literal["steady", "recording", "profiled", "calibration", "settings"]
BoundClass = Literal[
    "prefill_bound",
    "decode_bandwidth_bound",
    "interconnect_bound",
    "host_bound",
    "queue_bound",
    "kv_capacity_bound",
    "scratchpad_bound",
    "padding_bound",
    "compile_bound",
    "inefficient_kernel",
    "load_limited",
    "undetermined",
]
# What binds inside one phase; the verdict turns it into a BoundClass by the phase it stands in.
Resource = Literal[
    "compute", "memory_bandwidth", "interconnect", "host", "inefficient_kernel", "fixed_cost", "undetermined"
]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One number that a reader can check.

    Attributes:
        id: stable within a report, e.g. "e12"; findings and renderers refer to it.
        metric: dotted name, e.g. "decode.matmul.read_bandwidth_use".
        value: the number, or None when it is missing (then `method` says why).
        unit: "ns", "s", "bytes", "bytes/s", "flop/s", "ratio", "tokens", "requests", "steps", ...
        origin: how we came to it.
        window: the time it speaks for: the steady window, the whole recording, profiled steps alone, calibration
            before and after the run; "settings" where it is no matter of time.
        engine: which of several engines it speaks for; None where there is one.
        n: number of samples behind it.
        low, high: ends of its interval, where one is known.
        method: in words, how it was computed.
        source: which witness or file kind it came from, e.g. "engine steps", "profiler window 1".
    """

    id: str
    metric: str
    value: float | int | str | None
    unit: str
    origin: Origin
    method: str
    source: str
    window: EvidenceWindow = "steady"
    engine: int | None = None
    n: int | None = None
    low: float | None = None
    high: float | None = None


class BudgetPart(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the window's wall time. `id` is e.g. "decode.device_compute" or "no_load"."""

    id: str
    ns: int
    share: float
    origin: Origin


class ExcludedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time that is not judged: warm-up, drain, a profiler window."""

    reason: str
    ns: int


class TimeBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the wall time of the steady-state window went.

    `window_ns` is exactly the sum of all parts plus `unexplained_ns`.
    """

    window_ns: int
    parts: tuple[BudgetPart, ...]
    unexplained_ns: int
    unexplained_share: float
    excluded: tuple[ExcludedTime, ...] = ()


class SlopeTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One coefficient of the step-time model, in nanoseconds per unit of `name`."""

    name: str
    ns_per_unit: float | None
    low: float | None = None
    high: float | None = None
    identifiable: bool = True
    reason: str | None = None


class SlopeFit(msgspec.Struct, frozen=True, kw_only=True):
    """Step time regressed on executed work; needs no hardware peak.

    Attributes:
        executed: the program told what it executed, padding included; otherwise the work is what was scheduled.
        drift_ratio: how much the machine's speed moves between runs, which every interval holds.
        batch_low, batch_high: the smallest and largest decode batch that was fitted.
        knee_requests: the batch at which the cost of one more request changes; only one side of it was fitted.
    """

    n_steps: int
    terms: tuple[SlopeTerm, ...]
    relative_residual: float | None
    executed: bool = False
    drift_ratio: float | None = None
    batch_low: int | None = None
    batch_high: int | None = None
    knee_requests: int | None = None


class PeakUse(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a peak the matmul and attention operators of a phase reached."""

    resource: Literal["compute", "memory_bandwidth"]
    achieved_per_s: float
    peak_per_s: float
    use_ratio: float
    peak_origin: Origin
    evidence: tuple[str, ...] = ()


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """One of the three independent views. `agrees` is None when it has nothing to say."""

    name: WitnessName
    says: BoundClass | None
    agrees: bool | None
    text: str
    evidence: tuple[str, ...] = ()


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: how much of the window it took, and what binds it.

    `views` holds what each witness says of this phase alone: the use of peaks, the slope test, request times.
    """

    phase: Phase
    steps: int
    time_ns: int
    share: float
    context_tokens: int | None
    generation_tokens: int | None
    step_time_p50_ns: int | None
    step_time_p99_ns: int | None
    batch_mean: float | None
    bound: Resource
    reason: str
    assigned_ratio: float | None = None
    peak_use: tuple[PeakUse, ...] = ()
    slope: SlopeFit | None = None
    views: tuple[Witness, ...] = ()
    evidence: tuple[str, ...] = ()


class NotJudged(msgspec.Struct, frozen=True, kw_only=True):
    """A question left open, with the input that would answer it."""

    topic: str
    reason: str
    obtain: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The headline. `confidence` is None exactly when `primary` is "undetermined"."""

    primary: BoundClass
    confidence: Confidence | None
    secondary: tuple[BoundClass, ...]
    headline: str
    reason: str
    witnesses: tuple[Witness, ...]
    confidence_reasons: tuple[str, ...] = ()
    missing: tuple[NotJudged, ...] = ()


class ExpectedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A relative change as a range: low=0.4, high=0.8 means +40 % to +80 %. None: direction only."""

    metric: str
    direction: Literal["up", "down"]
    low: float | None = None
    high: float | None = None
    origin: Origin = "estimated"
    note: str = ""


class TradeOff(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table that stands beside advice when the user gave no latency target."""

    value: int
    itl_s: float | None
    throughput_ratio: float | None
    fits_kv: bool | None
    extrapolated: bool


class Advice(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A setting to change, what it should bring, who pays, and the command that tests it.

    `test_arguments` are appended to the recorded command; `test_note` says what else the test must change.
    """

    id: str
    setting: str
    from_: int | float | str | None
    to: int | float | str
    from_origin: Origin
    expected: tuple[ExpectedChange, ...]
    pays: tuple[ExpectedChange, ...]
    preconditions: tuple[str, ...]
    test_arguments: str
    refuted_if: str
    test_note: str = ""
    trade_off: tuple[TradeOff, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A statement about the run, with what speaks for it and against it.

    Attributes:
        share: the share of the window that it concerns, 0 to 1; None where it concerns no share.
        evidence: ids in the report's `evidence`.
        against: sentences of counter-evidence; never empty, "nothing in this recording speaks against it"
            must be said in words.
    """

    id: str
    rule_version: int
    severity: Severity
    title: str
    text: str
    phase: Phase | None
    share: float | None
    evidence: tuple[str, ...]
    against: tuple[str, ...]
    advice: tuple[Advice, ...] = ()


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of one latency, in seconds.

    `target_met` compares the 99th percentile with the user's target; None without a target or a percentile.
    """

    metric: str
    n: int
    mean_s: float
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    source: str
    target_p99_s: float | None = None
    target_met: bool | None = None


class SteadyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the recording that is judged. Times are CLOCK_MONOTONIC nanoseconds."""

    start_ns: int
    end_ns: int
    share_of_recording: float
    basis: str


class EngineGauges(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and counters of one engine over its window. None where one was not seen."""

    running_mean: float | None
    waiting_mean: float | None
    kv_usage_mean: float | None
    preemptions: int | None


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of several, judged by itself.

    Attributes:
        number: its own where the engines have numbers; else by order.
        binds: the verdict of the recording is that of this engine.
        window: its steady state, of its steps or of its gauges; None where neither tells one.
        time_budget: None where its steps were not seen.
        steps: in the window; None where none were seen.
        gauges: over the window.
        evidence: ids of what its verdict rests on.
    """

    number: int
    binds: bool
    window: SteadyWindow | None
    time_budget: TimeBudget | None
    primary: BoundClass
    confidence: Confidence | None
    secondary: tuple[BoundClass, ...]
    headline: str
    steps: int | None
    gauges: EngineGauges
    evidence: tuple[str, ...]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the analyzers conclude from one recording."""

    window: SteadyWindow | None
    time_budget: TimeBudget | None
    phases: tuple[PhaseReport, ...]
    latencies: tuple[LatencySummary, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    not_judged: tuple[NotJudged, ...]
    evidence: tuple[Evidence, ...]
    tails: tuple[TailLatency, ...] = ()
    cost: Cost | None = None
    # Empty where the recording holds one engine; else by number.
    engines: tuple[EngineReport, ...] = ()
    # Of several engines, the processes of the one that binds, of which the numbers above are.
    writers: tuple[str, ...] | None = None
