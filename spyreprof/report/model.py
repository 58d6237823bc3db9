"""The report: what is attached to a ticket, and what every renderer draws from.

The JSON is this model, field for field. Names that scripts rely on: `schema_version`, `verdict.primary`,
`verdict.confidence`, `verdict.secondary`, `quality`, `time_budget`, `phases`,
`findings[].advice[].setting/from/to`, `not_judged`, `evidence`, `traces[].data`, `traces[].faults[].kind`,
`traces[].devices`, `stack_files[].profiles`. Units stand in names, ratios run from 0 to 1,
absent is None and never 0.

Fields of type `Public` hold text that came from outside and was let through by `spyreprof.report.redact`, the
only module that makes such values. The type checker refuses a plain string in their place.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# At run time the analysers' structs are fields here, so that this import is not for type checking only.
from spyreprof.findings import (
    BoundClass,
    Confidence,
    EngineReport,
    Evidence,
    Finding,
    LatencySummary,
    NotJudged,
    Origin,
    PhaseReport,
    SteadyWindow,
    TimeBudget,
    Verdict,
)
from spyreprof.report.public import Public as Public  # noqa: PLC0414 - part of the model for all who import it
from spyreprof.report.stack_model import StackFileReport
from spyreprof.report.trace_model import TraceRanks, TraceReport
from spyreprof.request_figures import Cost, TailLatency

SCHEMA_VERSION = 1


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    """The program that wrote the report."""

    name: str
    version: str


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How the recorded program ended: exactly one of the two is set."""

    code: int | None = None
    signal: int | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """Which of several recordings of the same command this is, counted from 1."""

    k: int
    of: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded run.

    Attributes:
        run_id: identifier that the recorder drew.
        started: UTC, ISO 8601, from the manifest.
        duration_s: start to end of the recorded program; None when the recording was cut off.
        exit: None when the end was not seen.
        finished: the recorder saw the end of the program.
        command_redacted: the command with everything removed that is not on the allow-list.
        command_complete: nothing was removed, so the command can be typed again as it stands.
    """

    run_id: Public | None
    started: str | None
    duration_s: float | None
    exit: Exit | None
    finished: bool
    command_redacted: Public | None
    command_complete: bool
    repeat: Repeat | None = None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and extremes of a quantity over the steps of the window."""

    mean: float
    low: float
    high: float


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What every rate in the report depends on. None is printed as `unknown`.

    Attributes:
        hardware: processor or accelerator.
        device_kind: "cpu", "cuda", "spyre", ...
        parameter_bytes: size of the model's parameters in memory.
        batch: generation requests per step that decodes.
        context: tokens per request in steps that decode.
        software: versions by package name; None when none was captured.
    """

    hardware: Public | None
    device_kind: Public | None
    device_count: int | None
    model: Public | None
    parameter_bytes: int | None
    precision: Public | None
    batch: Spread | None
    context: Spread | None
    quantisation: Public | None
    software: dict[Public, Public] | None


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input and how much of it was read. A count that does not apply is left out of `counts`."""

    kind: Literal["recording", "torch_trace", "stacks", "metrics", "request_log", "benchmark"]
    counts: dict[Public, int]


class CollectorState(msgspec.Struct, frozen=True, kw_only=True):
    """What one collector brought, and if it brought less than everything, why and how to get the rest."""

    name: Public
    state: Literal["ok", "partial", "unavailable"]
    reason: Public | None = None
    obtain: Public | None = None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much was seen. None where it could not be counted.

    Attributes:
        processes: profiled processes of the recording.
        processes_closed: those that wrote a closing row, or became another program.
        steps: engine steps of the whole recording.
        profiled_steps: steps with a device trace.
        assigned_ratio: share of profiled steps' time that was assigned to a resource, least of all phases.
        requests: requests seen by a load generator.
        metric_polls: times at which the engine's metrics were read.
    """

    processes: int | None
    processes_closed: int | None
    steps: int | None
    profiled_steps: int | None
    assigned_ratio: float | None
    requests: int | None
    metric_polls: int | None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What can be trusted: sentences for people, states and counts for scripts."""

    notes: tuple[Public, ...]
    collectors: tuple[CollectorState, ...]
    coverage: Coverage


class ProfilerWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One profiler window. None where the recording does not tell.

    Attributes:
        start_ns: when its opening began, CLOCK_MONOTONIC.
        pause_ns: how long opening and closing held the program up; the slowdown of the steps between is not in it.
        kept_out_ns: from the opening until the program went on, all of which is kept out of the steady state.
        steps, operators: recorded inside.
        state: "saved", or what became of it.
        reason: why it ended before its last step, or why it failed.
    """

    start_ns: int | None
    pause_ns: int | None
    kept_out_ns: int | None
    steps: int | None
    operators: int | None
    state: Public
    reason: Public | None


class WindowRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a window was not opened, and how many times."""

    reason: Public
    count: int


class ProfilerWindows(msgspec.Struct, frozen=True, kw_only=True):
    """What profiler windows of all processes saw, and what they cost.

    Attributes:
        opened, saved: windows; `saved` are those with a trace.
        refused: windows that were due and not opened.
        steps, operators: recorded inside of all; None without any.
        pause_total_ns: time in which a window held the program up; windows of several processes that do so at once
            count once.
        pause_longest_ns, pause_median_ns: of single windows.
        share_of_recording, share_of_steady_window: that time as a part of either.
        windows: each that was opened, by start.
        missing: why none was opened; None when one was.
    """

    opened: int
    saved: int
    refused: tuple[WindowRefusal, ...]
    steps: int | None
    operators: int | None
    pause_total_ns: int | None
    pause_longest_ns: int | None
    pause_median_ns: int | None
    share_of_recording: float | None
    share_of_steady_window: float | None
    windows: tuple[ProfilerWindow, ...]
    missing: Public | None


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How much per second, and what it was counted from."""

    per_s: float
    source: str


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What the run delivered. None where nothing counts it.

    Attributes:
        output_tokens: from engine steps of the steady window without its pauses, where the first token of a request
            is not counted because prefill makes it; else from the log of a load generator, from the first arrival
            to the last end.
        requests: that finished, from the log in the same way, or from the engine's counter over the steady window.
    """

    output_tokens: Rate | None
    requests: Rate | None


Arrivals = Literal["at_once", "closed_loop", "open_loop"]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per request."""

    mean: float
    p50: float
    p90: float


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the engine in the whole recording. None where the log does not tell.

    Attributes:
        requests: that were sent.
        source: whose log says so.
        arrivals: all "at_once"; "closed_loop" where clients wait for an answer before they send again; "open_loop"
            where requests come whether or not others are done.
        arrivals_per_s: of all requests after the first.
        most_in_flight: requests that were in the engine or its queue at a time.
        cached_ratio: prompt tokens that a prefix cache held, over those that were looked up.
    """

    requests: int
    source: str
    arrivals: Arrivals | None
    arrivals_per_s: float | None
    most_in_flight: int | None
    prompt_tokens: Lengths | None
    output_tokens: Lengths | None
    cached_ratio: float | None = None


class MachinePeak(msgspec.Struct, frozen=True, kw_only=True):
    """A ceiling of the machine, and what was measured of it before and after the run; None where it was not."""

    resource: Literal["compute", "memory_bandwidth", "dispatch"]
    unit: str
    origin: Origin
    value: float
    before: float | None
    after: float | None


class RepeatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a repeated recording, and what its own report concludes.

    Attributes:
        k: counted from 1.
        state: only a "complete" run counts as a repeat and is judged. The others were "stopped" by a signal or a
            failure of the program, "cut_off" with the recorder, or cannot be read.
        primary, confidence: of its verdict; None where it is not judged.
        shown: this report is that run's.
    """

    k: int
    state: Literal["complete", "stopped", "cut_off", "unreadable"]
    primary: BoundClass | None
    confidence: Confidence | None
    shown: bool


class MetricNoise(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the repeats of one recording.

    Attributes:
        metric: e.g. "output_tokens_per_s".
        unit: "tokens/s", "requests/s", "s", "ns" or "steps".
        source: what the values come from; None without values.
        values: one for each run of `NoiseFloor.runs`; None where a run lacks it or has it from another source.
        median: None without values.
        relative_spread: largest minus smallest value over the median; None with fewer than two values, or about a
            median of 0.
    """

    metric: str
    unit: str
    source: str | None
    values: tuple[float | None, ...]
    median: float | None
    relative_spread: float | None


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """How far repeats of the same command lie apart.

    Attributes:
        runs: numbers of the repeats that count, at least two.
        metrics: in a fixed order; one that no run has is there with a median of None.
        meaning: what to conclude from it, in words.
    """

    runs: tuple[int, ...]
    metrics: tuple[MetricNoise, ...]
    meaning: str


class RedactionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much foreign text was withheld, by kind. The same text counts once."""

    policy: Literal["default_deny"]
    removed: dict[str, int]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis of one run, complete and redacted."""

    schema_version: int
    producer: Producer
    report_id: str
    run: Run
    conditions: Conditions
    inputs: tuple[Input, ...]
    quality: Quality
    redaction: RedactionSummary
    window: SteadyWindow | None
    time_budget: TimeBudget | None
    phases: tuple[PhaseReport, ...]
    latencies: tuple[LatencySummary, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    not_judged: tuple[NotJudged, ...]
    evidence: tuple[Evidence, ...]
    # None in a report of a version that did not tell.
    profiler_windows: ProfilerWindows | None = None
    throughput: Throughput | None = None
    load: Load | None = None
    # Engine settings in force, by the name that the engine gives them; those that are not known are left out.
    settings: dict[str, bool | int | float | Public] | None = None
    peaks: tuple[MachinePeak, ...] = ()
    # Empty, and None, unless the recording is a repeated one.
    repeats: tuple[RepeatedRun, ...] = ()
    noise_floor: NoiseFloor | None = None
    # Empty, and None, unless traces of a profiler were read.
    traces: tuple[TraceReport, ...] = ()
    trace_ranks: TraceRanks | None = None
    # Empty where the recording holds one engine.
    engines: tuple[EngineReport, ...] = ()
    # Empty, and None, unless there were requests enough to compare, and a price.
    tails: tuple[TailLatency, ...] = ()
    cost: Cost | None = None
    # Empty unless files of call stacks were read.
    stack_files: tuple[StackFileReport, ...] = ()
