"""What a capture misses: devices, kernels of graphs, the end of the device's timeline, copies, steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyreprof.trace.health import Claim, Evidence, Fault
from spyreprof.trace.intervals import union_of
from spyreprof.trace.quality import ZERO_TIME
from spyreprof.trace.roles import LAUNCHES, ON_HOST, RUNTIME, Role
from spyreprof.trace.table import MISSING, Flags
from spyreprof.units import NS_PER_S, format_seconds

# read: what the Spyre plug-in says when it stops recording the device
_BUFFERS_FULL = "max aiu buffer count"
_OF_DEVICE: tuple[Claim, ...] = ("device", "busy", "idle", "copies", "overlap", "kernel_time")
# So many launches behind the last device work, and such a part of all: the device's timeline ends early.
MIN_LATE_LAUNCHES = 10  # guessed
LATE_RATIO = 0.05  # guessed
# A graph whose launches recorded less than this part of what most of them did was not recorded whole.
PARTIAL_RATIO = 0.5  # guessed
# Up to this part of missing graph launches, idle time is only less sure.
GRAPH_RATIO = 0.05  # guessed
OVERHEAD_RATIO = 0.05  # guessed
LEFT_OUT_RATIO = 0.01  # guessed
UNLINKED_RATIO = 0.05  # guessed
# Parts of names of calls that copy, in lower case.
_COPY_CALLS = ("memcpy", "aiudatatransfer")


def capture_faults(evidence: Evidence) -> Iterator[Fault]:
    """What the capture as a whole misses, and what its profiler added."""
    yield from _file(evidence)
    if evidence.found.device_work.any():
        yield from _ends_early(evidence)
        yield from _graphs(evidence)
        yield from _copies(evidence)
        yield from _unlinked(evidence)
    else:
        yield _without_device(evidence)
    yield from _overhead(evidence)
    if not len(evidence.steps):
        yield Fault(
            kind="no_steps",
            count=0,
            sentence="No step is marked in the trace, so nothing is told of steps and phases.",
            forbids=("steps",),
        )


def _file(evidence: Evidence) -> Iterator[Fault]:
    quality = evidence.table.quality
    if quality.truncated_at_byte is not None:
        yield Fault(
            kind="file_cut_short",
            count=1,
            sentence=f"The file is cut short at byte {quality.truncated_at_byte:,}; what followed is unknown.",
            forbids=("idle",),
            lowers=("device", "busy", "steps"),
        )
    # those stamped with 0 have a fault of their own
    lost = sum(count for why, count in quality.dropped.items() if why != ZERO_TIME)
    if lost:
        large = lost > LEFT_OUT_RATIO * (quality.events_kept + lost)
        yield Fault(
            kind="events_left_out",
            count=lost,
            sentence=f"Events that could not be used, left out: {lost:,}.",
            lowers=("busy", "idle", "kernel_time", "steps") if large else (),
        )


def _without_device(evidence: Evidence) -> Fault:
    calls = int(evidence.found.has(*RUNTIME).sum())
    asked = evidence.table.metadata.has_device_properties or calls > 0
    if not asked and evidence.table.quality.truncated:
        return Fault(
            kind="cpu_only",
            count=0,
            sentence="As far as the file can be read, it names no device and holds no work of one.",
            forbids=_OF_DEVICE,
        )
    if not asked:
        return Fault(
            kind="cpu_only",
            count=0,
            sentence="The capture is of the CPU alone: it names no device and holds no work of one.",
            forbids=_OF_DEVICE,
        )
    why = f"calls to a device's runtime ({calls:,})" if calls else "the properties of a device"
    return Fault(
        kind="no_device_events",
        count=calls,
        sentence=f"The capture holds {why} and no work of the device. Record longer, after warm-up steps, with the "
        "device's activity switched on.",
        forbids=_OF_DEVICE,
    )


def _ends_early(evidence: Evidence) -> Iterator[Fault]:
    table, spans = evidence.table, evidence.spans
    other = [value for value in table.metadata.other.values() if isinstance(value, str)]
    said = any(_BUFFERS_FULL in text.lower() for text in (*table.name_values, *other))
    launches = np.flatnonzero(evidence.found.has(*LAUNCHES))
    matched = np.zeros(len(table) + 1, np.bool_)
    matched[evidence.relations.launch] = True
    if not len(spans):
        return
    end_ns = int(spans.clipped_end_ns.max())
    late = launches[(table.ts_ns[launches] > end_ns) & ~matched[launches]]
    if said or len(late) >= max(MIN_LATE_LAUNCHES, LATE_RATIO * len(launches)):
        after_ns = int(table.ts_ns[late].max()) - end_ns if len(late) else 0
        full = " The profiler said that its buffers were full." if said else ""
        yield Fault(
            kind="device_ends_early",
            count=len(late),
            sentence=f"The device's timeline ends early. Launches after its end, without any work recorded: "
            f"{len(late):,}, for "
            f"{format_seconds(after_ns / NS_PER_S)}.{full}",
            worst=float(after_ns),
            worst_unit="ns",
            examples=evidence.examples(late),
            forbids=("idle",),
            lowers=("busy", "steps", "copies"),
        )


def _graphs(evidence: Evidence) -> Iterator[Fault]:
    graphs = evidence.graphs
    if not len(graphs.row):
        return
    partial = _recorded_in_part(evidence)
    empty = graphs.pieces == 0
    if empty.any():
        missing, total = int(empty.sum()), len(graphs.row)
        # kernels whose ids were lost may be these graphs'
        perhaps = evidence.relations.unlinked + evidence.relations.ambiguous >= missing
        severe = missing > GRAPH_RATIO * total and not perhaps
        yield Fault(
            kind="graph_kernels_missing",
            count=missing,
            sentence=f"Launches of recorded graphs without any work on the device: {missing:,} of {total:,}. The "
            f"profiler did not "
            "record it; the device was not idle for that.",
            worst=missing / total,
            worst_unit="ratio",
            examples=evidence.examples(graphs.row[empty]),
            forbids=("idle",) if severe else (),
            lowers=("busy", "kernel_time", "steps") if severe else ("idle", "busy"),
        )
    elif partial.any():
        yield Fault(
            kind="graph_kernels_missing",
            count=int(partial.sum()),
            sentence="Launches of recorded graphs that show less than half of the work of another launch of the same "
            "graph: "
            f"{int(partial.sum()):,} of {len(graphs.row):,}. The rest may not be recorded.",
            examples=evidence.examples(graphs.row[partial]),
            lowers=("idle",),
        )


def _recorded_in_part(evidence: Evidence) -> Flags:
    """Which launches show far less work than another one of their graph. None where kernels do not name their graph."""
    graphs, table = evidence.graphs, evidence.table
    partial = np.zeros(len(graphs.row), np.bool_)
    named = np.flatnonzero((table.arg("graph_id") != MISSING) & (evidence.relations.launch != MISSING))
    launch = evidence.relations.launch[named]
    named, launch = named[np.isin(launch, graphs.row)], launch[np.isin(launch, graphs.row)]
    if not len(named):
        return partial
    place = np.searchsorted(graphs.row, launch)
    of_launch = np.full(len(graphs.row), MISSING, np.int64)
    of_launch[place] = np.unique(table.arg("graph_id")[named], return_inverse=True)[1].reshape(-1)
    known = np.flatnonzero(of_launch != MISSING)
    most = np.zeros(len(graphs.row), np.int64)
    np.maximum.at(most, of_launch[known], graphs.pieces[known])
    partial[known] = graphs.pieces[known] < PARTIAL_RATIO * most[of_launch[known]]
    return partial


def _copies(evidence: Evidence) -> Iterator[Fault]:
    table, spans, found = evidence.table, evidence.spans, evidence.found
    copies = np.flatnonzero(found.has(Role.COPY) & found.device_work)
    if len(copies):
        if spans.copies_clock != "device":
            whose = "with the host's time stamps" if spans.copies_clock == "host" else "by a clock that is not told"
            yield Fault(
                kind="copies_host_stamped" if spans.copies_clock == "host" else "copies_clock_unknown",
                count=len(copies),
                sentence=f"Copies {whose}: {len(copies):,}. What they seem to overlap with counts as no overlap.",
                examples=evidence.examples(copies),
                forbids=("overlap",),
                lowers=("copies",),
            )
        return
    copying = np.asarray([*(any(part in name.lower() for part in _COPY_CALLS) for name in table.name_values), False])
    calls = np.flatnonzero(copying[table.name_code] & found.has(*RUNTIME))
    if len(calls):
        yield Fault(
            kind="copies_missing",
            count=len(calls),
            sentence=f"Calls on the host that copy: {len(calls):,}. The capture holds no copy of the device.",
            examples=evidence.examples(calls),
            forbids=("copies", "overlap"),
            lowers=("idle", "busy"),
        )


def _unlinked(evidence: Evidence) -> Iterator[Fault]:
    relations, spans = evidence.relations, evidence.spans
    lost = np.flatnonzero(relations.launch[spans.row] == MISSING)
    if len(lost) and evidence.found.has(*LAUNCHES).any():
        yield Fault(
            kind="unlinked",
            count=len(lost),
            sentence=f"Device work of which no launch is known, busy all the same: {len(lost):,} of {len(spans):,}.",
            examples=evidence.examples(spans.row[lost]),
            lowers=("steps", "launch_lag") if len(lost) > UNLINKED_RATIO * len(spans) else (),
        )


def _overhead(evidence: Evidence) -> Iterator[Fault]:
    table = evidence.table
    rows = np.flatnonzero(table.has_category("Overhead", "overhead") & (table.dur_ns > 0))
    if not len(rows):
        return
    start = table.ts_ns[rows]
    lost_ns = union_of(start, start + table.dur_ns[rows]).length_ns
    host = np.flatnonzero(evidence.found.has(*ON_HOST) & (table.dur_ns != MISSING))
    span_ns = 0
    if len(host):
        span_ns = int((table.ts_ns[host] + table.dur_ns[host]).max() - table.ts_ns[host].min())
    ratio = lost_ns / span_ns if span_ns else 0.0
    yield Fault(
        kind="profiler_overhead",
        count=len(rows),
        sentence=f"Time that the profiler itself took: {format_seconds(lost_ns / NS_PER_S)}, in spans: {len(rows):,}.",
        worst=float(lost_ns),
        worst_unit="ns",
        examples=evidence.examples(rows),
        lowers=("idle", "steps") if ratio > OVERHEAD_RATIO else (),
    )
