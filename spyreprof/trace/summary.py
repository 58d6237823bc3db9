"""One trace in a few kilobytes: what a report on it shows. Names stand in it as found; the report redacts them."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec
import numpy as np

from spyreprof.trace.annotations import StepPhase
from spyreprof.trace.collectives import BACKENDS, OPERATIONS, SIZE_CLASS_ENDS_BYTES, Collectives, collectives
from spyreprof.trace.counter_faults import CounterClock
from spyreprof.trace.device_time import MAX_DEVICES, DeviceTime, busy_by_key, device_times
from spyreprof.trace.faults import Examined, Fault, examine
from spyreprof.trace.nesting import host_spans, self_times
from spyreprof.trace.ranks import RankOfTrace, ranks_of
from spyreprof.trace.roles import Role
from spyreprof.trace.steps import steps_of_device
from spyreprof.trace.table import MISSING, EventTable, Flags, Identity, Integers
from spyreprof.trace.timeline import BusyOverTime, busy_over_time

TOP = 20
MAX_NAME = 512
Phase = StepPhase | Literal["unknown"]


class CategoryCount(msgspec.Struct, frozen=True):
    """Events of a category; None for those without one."""

    category: str | None
    events: int


class NameTime(msgspec.Struct, frozen=True):
    """What bears one name.

    Attributes:
        ns: its exclusive time: of kernels after clipping, of operators without what runs inside them. Kernels of
            several streams may run at once.
        ratio: its part of that of all of its sort; None where that is 0.
    """

    name: str
    events: int
    ns: int
    ratio: float | None


class PhaseTime(msgspec.Struct, frozen=True):
    """The steps of one phase.

    Attributes:
        phase: "unknown" where the names of steps do not tell.
        host_ns: time of the steps on the host.
        host_ratio: their part of all steps' time.
        busy_ns: in which device work that the steps launched ran; None where the trace does not tell.
    """

    phase: Phase
    steps: int
    host_ns: int
    host_ratio: float
    busy_ns: int | None


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """How much device work was linked to launches and operators; see `relations.Relations`."""

    by_flow: int
    by_correlation: int
    ambiguous: int
    unlinked: int
    unmatched_launches: int
    with_operator: int


class CollectiveTime(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one operation, on the device or on the host.

    Attributes:
        raw_sum_ns: sum of their durations: waiting for other ranks included, several at once counted several times.
        bytes: of those whose size is known; None where none is.
    """

    operation: str
    backend: str
    on_device: bool
    events: int
    raw_sum_ns: int
    bytes: int | None


class MessageSize(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one class of message size, on the device or on the host; waits for one do not count.

    Attributes:
        up_to_bytes: the largest message of the class; None for the class without an end, and where sizes are unknown.
        size_known: whether the trace tells how large these messages are.
        raw_sum_ns: as in `CollectiveTime`.
        bytes: of all its messages; None where sizes are unknown.
    """

    on_device: bool
    up_to_bytes: int | None
    size_known: bool
    events: int
    raw_sum_ns: int
    bytes: int | None


class Graphs(msgspec.Struct, frozen=True):
    """Launches of recorded graphs, and of how many the trace shows device work, as a number and as a share."""

    launches: int
    recorded: int
    coverage_ratio: float | None = None


class MemoryPeak(msgspec.Struct, frozen=True):
    """The most memory that a device's allocator held, by the profiler's memory events; None where these do not tell."""

    device_type: int | None
    device_id: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace shows. Lists hold at most `TOP` entries, the largest first.

    Attributes:
        quality: sentences about events that could not be read as they are.
        metadata_events, paired, unmatched_end, repaired, dropped, truncated_at_byte: as in `TraceQuality`.
        faults: everything else that is wrong.
        start_ns, end_ns: of all events but those stamped far from the rest; absolute nanoseconds.
        devices: empty without device work; `devices_reason` says why.
        phases: empty without steps; `phases_reason` says why.
        counters: clock of the device's own counters; None where it has none.
        links: None without device work, and where it bears nothing by which a launch could be told.
        device_work: pieces of it; None in summaries of earlier versions.
        message_sizes: small messages first, unknown sizes last, those of the device before those of the host.
        busy_over_time: of each of `devices`.
    """

    quality: tuple[str, ...]
    faults: tuple[Fault, ...]
    events_read: int
    events_kept: int
    metadata_events: int
    paired: int
    unmatched_end: int
    repaired: dict[str, int]
    dropped: dict[str, int]
    truncated_at_byte: int | None
    dialect: str
    dialect_title: str
    rank: RankOfTrace
    world_size: int | None
    categories: tuple[CategoryCount, ...]
    start_ns: int
    end_ns: int
    devices: tuple[DeviceTime, ...]
    devices_total: int
    devices_reason: str | None
    steps: int
    phases: tuple[PhaseTime, ...]
    phases_reason: str | None
    kernels: tuple[NameTime, ...]
    operators: tuple[NameTime, ...]
    collectives: tuple[CollectiveTime, ...]
    graphs: Graphs | None
    links: Links | None
    memory: tuple[MemoryPeak, ...]
    counters: CounterClock | None
    message_sizes: tuple[MessageSize, ...] = ()
    busy_over_time: tuple[BusyOverTime, ...] = ()
    device_work: int | None = None


def summarise(table: EventTable) -> TraceSummary:
    """Sum up a trace. The table must hold events."""
    return summary_of(examine(table))


def summary_of(trace: Examined) -> TraceSummary:
    """Sum up a trace whose faults were found already."""
    table, health, spans = trace.table, trace.health, trace.spans
    rank = ranks_of([table.metadata])
    start_ns, end_ns = _span(trace)
    graphs = trace.evidence.graphs
    found = collectives(table, trace.found)
    return TraceSummary(
        quality=table.quality.sentences(),
        faults=health.faults,
        events_read=table.quality.events_read,
        events_kept=table.quality.events_kept,
        metadata_events=table.quality.metadata_events,
        paired=table.quality.paired,
        unmatched_end=table.quality.unmatched_end,
        repaired=dict(table.quality.repaired),
        dropped=dict(table.quality.dropped),
        truncated_at_byte=table.quality.truncated_at_byte,
        dialect=trace.found.dialect.name,
        dialect_title=trace.found.dialect.title,
        rank=rank.ranks[0],
        world_size=rank.world_size,
        categories=_categories(table),
        start_ns=start_ns,
        end_ns=end_ns,
        devices=device_times(spans, idle_reason=health.reason("idle")),
        devices_total=len(np.unique(spans.device)),
        devices_reason=health.reason("device"),
        steps=len(trace.steps),
        phases=_phases(trace),
        phases_reason=health.reason("steps"),
        kernels=_kernels(trace),
        operators=_operators(trace),
        collectives=_collectives(trace, found),
        graphs=Graphs(len(graphs.row), graphs.recorded, graphs.coverage_ratio) if len(graphs.row) else None,
        links=_links(trace),
        device_work=int(trace.found.device_work.sum()),
        memory=_memory(table),
        counters=trace.counters,
        message_sizes=_message_sizes(trace, found),
        busy_over_time=busy_over_time(spans, MAX_DEVICES),
    )


def _span(trace: Examined) -> tuple[int, int]:
    table = trace.table
    kept = np.ones(len(table), np.bool_)
    kept[trace.spans.far] = False
    start = table.ts_ns[kept]
    end = start + np.maximum(table.dur_ns[kept], 0)
    # a kernel that is too long by its stamps does not make the trace longer
    work = trace.found.device_work[kept]
    ends = np.concatenate((end[~work], trace.spans.clipped_end_ns))
    if not len(ends):
        return int(table.ts_ns.min()), int(table.ts_ns.max())
    return int(start.min()), int(ends.max())


def _categories(table: EventTable) -> tuple[CategoryCount, ...]:
    count = np.bincount(table.cat_code + 1, minlength=len(table.cat_values) + 1)
    top = np.argsort(-count, kind="stable")[:TOP]
    names = (None, *table.cat_values)
    return tuple(CategoryCount(_cut(names[code]), int(count[code])) for code in top.tolist() if count[code])


def _cut(name: str | None) -> str | None:
    return None if name is None else name[:MAX_NAME]


def _by_name(table: EventTable, rows: Integers, ns: Integers) -> tuple[NameTime, ...]:
    if not len(rows):
        return ()
    code = table.name_code[rows] + 1
    total, count = np.zeros(len(table.name_values) + 1, np.int64), np.bincount(code)
    np.add.at(total, code, ns)
    everything = int(total.sum())
    # equal times by count, then by the order in which names came
    order = np.lexsort((-count, -total[: len(count)]))[:TOP]
    names = ("", *table.name_values)
    return tuple(
        NameTime(
            names[one][:MAX_NAME],
            int(count[one]),
            int(total[one]),
            int(total[one]) / everything if everything else None,
        )
        for one in order.tolist()
        if count[one]
    )


def _kernels(trace: Examined) -> tuple[NameTime, ...]:
    spans = trace.spans
    chosen = spans.is_role(Role.KERNEL, Role.COMMUNICATION_KERNEL)
    return _by_name(trace.table, spans.row[chosen], (spans.clipped_end_ns - spans.start_ns)[chosen])


def _operators(trace: Examined) -> tuple[NameTime, ...]:
    rows = host_spans(trace.table, trace.found)
    if not len(rows):
        return ()
    self_ns = self_times(trace.table, rows)
    chosen = trace.found.has(Role.HOST_OP)[rows]
    return _by_name(trace.table, rows[chosen], self_ns[chosen])


def _phases(trace: Examined) -> tuple[PhaseTime, ...]:
    steps, spans = trace.steps, trace.spans
    if not len(steps):
        return ()
    named: list[Phase] = [(work.phase if work else None) or "unknown" for work in steps.works]
    phases = sorted(set(named))
    of_step = np.asarray([phases.index(name) for name in named], np.int64)
    host_ns = np.zeros(len(phases), np.int64)
    np.add.at(host_ns, of_step, steps.end_ns - steps.start_ns)
    busy_ns: list[int | None] = [None] * len(phases)
    if len(spans):
        step = steps_of_device(trace.table, trace.relations, steps, spans.row)
        key = np.where(step == MISSING, MISSING, of_step[step])
        busy_ns = [*busy_by_key(spans, key, len(phases)).tolist()]
    count, everything = Counter(named), max(int(host_ns.sum()), 1)
    return tuple(
        PhaseTime(name, count[name], ns, ns / everything, busy)
        for name, ns, busy in zip(phases, host_ns.tolist(), busy_ns, strict=True)
    )


def _collectives(trace: Examined, found: Collectives) -> tuple[CollectiveTime, ...]:
    if not len(found.row):
        return ()
    key = (found.operation.astype(np.int64) * len(BACKENDS) + found.backend) * 2 + found.on_device
    result = []
    for one in np.unique(key).tolist():
        own: Flags = key == one
        known = found.bytes[own & (found.bytes != MISSING)]
        result.append(
            CollectiveTime(
                operation=OPERATIONS[one // 2 // len(BACKENDS)],
                backend=BACKENDS[one // 2 % len(BACKENDS)],
                on_device=bool(one % 2),
                events=int(own.sum()),
                raw_sum_ns=int(np.maximum(trace.table.dur_ns[found.row[own]], 0).sum()),
                bytes=int(known.sum()) if len(known) else None,
            )
        )
    return tuple(sorted(result, key=lambda item: -item.raw_sum_ns)[:TOP])


def _message_sizes(trace: Examined, found: Collectives) -> tuple[MessageSize, ...]:
    moves = found.operation != OPERATIONS.index("wait")
    size_class = found.size_class()
    result = []
    for on_device in (True, False):
        for one in (*range(len(SIZE_CLASS_ENDS_BYTES) + 1), MISSING):
            own: Flags = moves & (found.on_device == on_device) & (size_class == one)
            if own.any():
                result.append(
                    MessageSize(
                        on_device=on_device,
                        up_to_bytes=SIZE_CLASS_ENDS_BYTES[one] if 0 <= one < len(SIZE_CLASS_ENDS_BYTES) else None,
                        size_known=one != MISSING,
                        events=int(own.sum()),
                        raw_sum_ns=int(np.maximum(trace.table.dur_ns[found.row[own]], 0).sum()),
                        bytes=int(found.bytes[own].sum()) if one != MISSING else None,
                    )
                )
    return tuple(result)


def _links(trace: Examined) -> Links | None:
    relations = trace.relations
    if not trace.found.device_work.any() or not relations.told:
        return None
    return Links(
        by_flow=relations.linked_by_flow,
        by_correlation=relations.linked_by_correlation,
        ambiguous=relations.ambiguous,
        unlinked=relations.unlinked,
        unmatched_launches=relations.unmatched_launches,
        with_operator=int((relations.operator[trace.found.device_work] != MISSING).sum()),
    )


def _memory(table: EventTable) -> tuple[MemoryPeak, ...]:
    allocated, reserved = table.arg("memory_allocated"), table.arg("memory_reserved")
    rows = np.flatnonzero((allocated != MISSING) | (reserved != MISSING))
    if not len(rows):
        return ()
    place = np.stack((table.arg("memory_device_type")[rows], table.arg("memory_device")[rows]), axis=1)
    devices, code = np.unique(place, axis=0, return_inverse=True)
    peaks = []
    for number, (kind, index) in enumerate(devices[:TOP].tolist()):
        own = rows[code.reshape(-1) == number]
        peaks.append(MemoryPeak(_told(kind), _told(index), _told(allocated[own].max()), _told(reserved[own].max())))
    return tuple(peaks)


def _told(value: Identity) -> int | None:
    return None if int(value) < 0 else int(value)
