"""What a report says about traces of a profiler: first how good the data is, then what it shows.

Times are nanoseconds of a union of intervals unless a name says "sum". Ratios run from 0 to 1. None is unknown, and a
reason stands beside it.
"""

from __future__ import annotations

import msgspec

from spyreprof.report.public import Public


class EventsOf(msgspec.Struct, frozen=True, kw_only=True):
    """How many events of the file share a fate or a category.

    Attributes:
        what: why they were left out, what was mended, or their category; None for events without a category.
    """

    what: Public | None
    events: int


class TraceLinks(msgspec.Struct, frozen=True, kw_only=True):
    """How much device work could be linked to what launched it.

    Attributes:
        by_flow, by_correlation: linked to a launch on the host, by the way that found it.
        ambiguous: device work with several possible launches, which is not linked.
        unlinked: device work without a launch.
        unmatched_launches: launches without device work.
        with_operator: device work that is linked to an operator.
    """

    by_flow: int
    by_correlation: int
    ambiguous: int
    unlinked: int
    unmatched_launches: int
    with_operator: int


class TraceData(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the file's events while it was read.

    Attributes:
        dialect: who wrote the trace, "cuda", "flex", "ascend", ...; "generic" where it does not tell.
        dialect_title: the same, for people.
        events_read: elements of the file's list of events, readable or not.
        events_kept: those that everything below is made from.
        metadata_events: names and sort orders of processes and threads; they are not among those kept.
        paired: pairs of a begin and an end that were joined into one event, which is kept. Events read are those kept,
            metadata, one for each pair, and those dropped.
        repaired, dropped: by what was mended, by why they were left out.
        truncated_at_byte: where reading stopped as the file is cut short, an offset after decompression; None for a
            whole file.
        start_ns, end_ns: of all events but those stamped far from the rest, in the trace's own clock.
        device_events: whether the trace holds work of a device; `device_reason` says why not.
        links: None without work of a device, and where it bears nothing by which its launch could be told.
        device_work: pieces of work of a device; None in reports of earlier versions.
        rank: of the process in its job; None where the trace does not tell.
        world_size: number of ranks of the job; None where the trace does not tell.
        categories: of events, the most frequent ones.
        notes: everything above that a reader must know, in words.
    """

    dialect: Public
    dialect_title: Public
    events_read: int
    events_kept: int
    metadata_events: int
    paired: int
    repaired: tuple[EventsOf, ...]
    dropped: tuple[EventsOf, ...]
    truncated_at_byte: int | None
    start_ns: int
    end_ns: int
    device_events: bool
    device_reason: Public | None
    links: TraceLinks | None
    rank: int | None
    world_size: int | None
    categories: tuple[EventsOf, ...]
    notes: tuple[Public, ...]
    device_work: int | None = None


class TraceFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a trace.

    Attributes:
        kind: e.g. "file_cut_short", "no_device_events", "clock_drift".
        count: how many events, or whatever the sentence counts, have it.
        sentence: for people.
        worst: the largest deviation, in `worst_unit` ("ns", "ratio", "ppm"); None where there is nothing to measure.
        examples: places in the file's list of events, counted from 0.
        forbids: what cannot be told because of it: "device", "busy", "idle", "copies", "overlap", "kernel_time",
            "launch_lag", "steps", "counters".
        lowers: what is less sure because of it.
    """

    kind: str
    count: int
    sentence: Public
    worst: float | None
    worst_unit: str | None
    examples: tuple[int, ...]
    forbids: tuple[str, ...]
    lowers: tuple[str, ...]


class TraceBusy(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a device was in each bucket of its window.

    Attributes:
        bucket_ns: length of a bucket, a power of ten; the last one also takes what is left.
        ratios: by bucket, at most 100. Work that is missing from the trace is missing here, too: where `idle_ns` is
            None a share is the least there can be. None for a bucket of no length.
    """

    bucket_ns: int
    ratios: tuple[float | None, ...]


class TraceDevice(msgspec.Struct, frozen=True, kw_only=True):
    """How one device spent its window. Times are unions over its streams, ratios are parts of the window.

    Attributes:
        device: its number, or the process that stands for it; None where the trace does not tell.
        window_basis: what the window is.
        busy_ns: at least one stream works.
        idle_ns: window less busy; None where device work may be missing, see `idle_reason`.
        compute_ns: kernels and fills.
        exposed_communication_ns: communication while nothing computes.
        exposed_copy_ns: copies while nothing computes or communicates; None where unknown, see `copy_reason`.
        hidden_communication_ns, hidden_copy_ns: the rest of either, which overlaps with something else. The second is
            None where unknown, see `overlap_reason`.
        raw_sum_ns: sum of durations, in which what ran side by side counts several times: no time spent.
        overlong: spans that were cut at the start of the next of their stream.
        busy_over_time: None in a report of a version that did not tell.
    """

    device: int | Public | None
    streams: int
    events: int
    window_ns: int
    window_basis: Public
    busy_ns: int
    busy_ratio: float | None
    idle_ns: int | None
    idle_ratio: float | None
    idle_reason: Public | None
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_communication_ratio: float | None
    hidden_communication_ns: int
    copy_ns: int | None
    exposed_copy_ns: int | None
    exposed_copy_ratio: float | None
    hidden_copy_ns: int | None
    copy_reason: Public | None
    overlap_reason: Public | None
    raw_sum_ns: int
    overlong: int
    busy_over_time: TraceBusy | None = None


class TracePhase(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one phase, by their annotations.

    Attributes:
        phase: "prefill", "decode", "mixed" or "unknown".
        host_sum_ns: the durations of its steps on the host, added up.
        host_ratio: their part of those of all steps.
        busy_ns: in which device work that the steps launched ran; None where the trace does not tell.
    """

    phase: str
    steps: int
    host_sum_ns: int
    host_ratio: float
    busy_ns: int | None


class TraceName(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels, or all operators, of one name.

    Attributes:
        name: as it is where it is of a published library, else a pseudonym.
        exclusive_sum_ns: of kernels the durations after cutting those that are too long, of operators the time in which
            nothing ran inside them, added up over all streams and threads.
        ratio: its part of that of all kernels, or all operators; None where that is 0.
    """

    name: Public
    events: int
    exclusive_sum_ns: int
    ratio: float | None


class TraceCollective(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one operation.

    Attributes:
        backend: the library; None where the trace does not tell.
        on_device: kernels, else calls on the host.
        raw_sum_ns: durations added up, waiting for other ranks included: no time spent.
        bytes: of those whose size is known; None where none is.
    """

    operation: Public
    backend: Public | None
    on_device: bool
    events: int
    raw_sum_ns: int
    bytes: int | None


class TraceMessageSize(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one class of message size; waits for one do not count.

    Small messages cost their latency, large ones their bandwidth. Where one turns into the other depends on the link:
    the limits of the classes are guesses.

    Attributes:
        on_device: kernels, else calls on the host.
        up_to_bytes: the largest message of the class; None for the class without an end, and for unknown sizes.
        size_known: whether the trace tells how large these messages are.
        raw_sum_ns: durations added up, waiting for other ranks included: no time spent.
        bytes: of all its messages; None where sizes are unknown.
    """

    on_device: bool
    up_to_bytes: int | None
    size_known: bool
    events: int
    raw_sum_ns: int
    bytes: int | None


class TraceGraphs(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of recorded graphs.

    Attributes:
        recorded: launches of which the trace shows work of the device. During the others it was not idle.
        coverage_ratio: their part of all launches.
    """

    launches: int
    recorded: int
    coverage_ratio: float | None


class TraceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory that an allocator held, by the profiler's memory events."""

    device_type: int | None
    device_id: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One trace of a profiler.

    Attributes:
        trace: number of the trace in the report, from 1.
        faults: the gravest first.
        devices: empty without work of a device; see `data.device_reason`.
        devices_total: there may be more than are listed.
        steps: marked in the trace.
        phases: empty without steps, see `phases_reason`.
        kernels, operators: those with the most exclusive time.
        message_sizes: of collectives, small ones first, unknown sizes last, the device's before the host's.
        graphs: None where none is launched.
    """

    trace: int
    data: TraceData
    faults: tuple[TraceFault, ...]
    devices: tuple[TraceDevice, ...]
    devices_total: int
    steps: int
    phases: tuple[TracePhase, ...]
    phases_reason: Public | None
    kernels: tuple[TraceName, ...]
    operators: tuple[TraceName, ...]
    collectives: tuple[TraceCollective, ...]
    memory: tuple[TraceMemory, ...]
    message_sizes: tuple[TraceMessageSize, ...] = ()
    graphs: TraceGraphs | None = None


class TraceRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks of a job the traces show.

    Attributes:
        world_size: None where no trace tells.
        missing: the first ranks without a trace; None where the size is unknown.
        missing_count: how many these are in all.
        repeated: ranks with several traces.
        notes: what a reader must know, in words.
    """

    world_size: int | None
    missing: tuple[int, ...] | None
    missing_count: int | None
    repeated: tuple[int, ...]
    notes: tuple[Public, ...]
