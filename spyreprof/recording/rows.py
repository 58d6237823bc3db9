"""Typed rows of the shards. `layout.py` names the files, `docs/recording.md` describes the rows for readers.

Keys that a row has beyond these are ignored, so that an older reader takes a newer recorder's rows.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

# Every number goes into int64 columns.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Nanoseconds = Count


class OpenRow(msgspec.Struct):
    """A process began to be recorded; also its first anchor."""

    t: Nanoseconds
    epoch_ns: Nanoseconds
    pid: Count | None = None
    ppid: Count | None = None
    python: str | None = None
    how: str | None = None


class AnchorRow(msgspec.Struct):
    """Both clocks read at one moment."""

    t: Nanoseconds
    epoch_ns: Nanoseconds


class MomentRow(msgspec.Struct):
    """A row of which only the time matters here."""

    t: Nanoseconds


# Versions by package name, beside the keys `k` and `t`; None where a package is absent.
VersionsRow = dict[str, str | int | None]


class TorchRow(msgspec.Struct):
    """How torch was set up when steps ran."""

    t: Nanoseconds
    threads: Count | None = None
    interop_threads: Count | None = None
    affinity: list[int] | None = None
    device_kind: str | None = None
    cuda_built: bool | None = None


class DistributedRow(msgspec.Struct):
    """The process joined a world of `torch.distributed`."""

    t: Nanoseconds
    rank: Count | None = None
    world: Count | None = None
    backend: str | None = None


class CloseRow(msgspec.Struct):
    """The process ended in a way that let it say so."""

    t: Nanoseconds
    how: str | None = None


class StepRow(msgspec.Struct):
    """One engine step."""

    t0: Nanoseconds
    t1: Nanoseconds
    n: str
    c: Count = 0
    p: Count = 0


class CollectiveRow(msgspec.Struct):
    """One call of a collective, or of a send or receive.

    `t0` and `t1` enclose the time in which the caller was blocked; None where it did not wait for the end of a call
    that it launched at `tl`. `rank` and `peer` are ranks of the group; `peer` is the other side of a send or receive.
    """

    op: str
    group: Count
    size: Count
    rank: Count
    seq: Count
    t0: Nanoseconds | None = None
    t1: Nanoseconds | None = None
    tl: Nanoseconds | None = None
    bytes: Count | None = None
    blocking: bool = True
    peer: Count | None = None


class PhaseRow(msgspec.Struct):
    """A named part of the engine's own work."""

    t0: Nanoseconds
    t1: Nanoseconds
    n: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]{0,31}$")]


class RequestRow(msgspec.Struct):
    """One request as the program marked it: arrival, scheduled, first token, end."""

    t0: Nanoseconds
    ts: Nanoseconds | None = None
    tf: Nanoseconds | None = None
    t1: Nanoseconds | None = None
    prompt: Count | None = None
    cached: Count | None = None
    output: Count | None = None
    reasoning: Count | None = None
    reason: str | None = None
    max_tokens: Count | None = None
    preemptions: Count | None = None


class ModuleRow(msgspec.Struct):
    """An outermost module that was called inside steps. `embedding_bytes` are part of `parameter_bytes`."""

    t: Nanoseconds
    calls: Count | None = None
    parameter_bytes: dict[str, Count] | None = None
    embedding_bytes: Count | None = None


class WindowRow(msgspec.Struct):
    """One profiler window, or one refusal of one.

    Times: opening began, recording began, recording ended, the program went on. `epoch_ns` is the wall clock when
    recording began.
    """

    state: str
    n: Count | None = None
    t0: Nanoseconds | None = None
    t1: Nanoseconds | None = None
    t2: Nanoseconds | None = None
    t3: Nanoseconds | None = None
    epoch_ns: Nanoseconds | None = None
    steps: Count | None = None
    operators: Count | None = None
    file: str | None = None
    reason: str | None = None


class CompileRow(msgspec.Struct):
    """One compilation by Dynamo."""

    t0: Nanoseconds
    t1: Nanoseconds


class UsageRow(msgspec.Struct):
    """Processor time and memory of one process and its busiest threads: [thread id, name, cpu_ns]."""

    t: Nanoseconds
    pid: Count
    cpu_ns: Count
    rss_bytes: Count | None = None
    threads: list[tuple[Count, str, Count]] = []


class SystemRow(msgspec.Struct):
    """Processor time of the whole machine since boot."""

    t: Nanoseconds
    cpu_total_ns: Count | None = None
    cpu_idle_ns: Count | None = None
    steal_ns: Count | None = None


class MetricsRow(msgspec.Struct):
    """One poll of a /metrics page: the whole page, the samples that changed, or none; not `ok` is no answer."""

    t: Nanoseconds
    lines: list[str]
    endpoint: Count = 0
    full: bool = False
    ok: bool = True


class ThreadStacks(msgspec.Struct):
    """Stacks of one thread: numbers of frames, outermost first, and how often the stack was seen.

    `thread` is its id in the kernel, or its address where the interpreter does not tell that.
    """

    thread: str
    stacks: list[tuple[list[Count], Count]] = []


class StacksRow(msgspec.Struct):
    """One window of py-spy over one process. `frames` are (function, file within its package)."""

    t0: Nanoseconds
    t1: Nanoseconds
    pid: Count
    samples: Count
    rate_hz: Count
    errors: Count = 0
    sleeping: bool = False
    complete: bool = True
    frames: list[tuple[str, str]] = []
    threads: list[ThreadStacks] = []


class CalibrationResult(msgspec.Struct):
    """Peaks measured with one number of threads."""

    threads: Count
    gemm_flops_per_s: dict[str, float] | None = None
    read_bytes_per_s: float | None = None
    stream_bytes_per_s: float | None = None
    dispatch_ns_per_operator: float | None = None


class Calibration(msgspec.Struct):
    """Peaks measured on the machine before or after the program ran."""

    t: Nanoseconds | None = None
    results: list[CalibrationResult] = []
    error: str | None = None


class BenchResult(msgspec.Struct):
    """A load generator's result in the form of `vllm bench serve`: lists with one entry per request."""

    input_lens: list[int | None] | None = None
    output_lens: list[int | None] | None = None
    reasoning_lens: list[int | None] | None = None
    max_tokens: list[int | None] | None = None
    finish_reasons: list[str | None] | None = None
    ttfts: list[float | None] | None = None
    itls: list[list[float] | None] | None = None
    start_times: list[float | None] | None = None
    errors: list[bool | str | None] | None = None
