"""Faults of time stamps that show on the device's events alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyreprof.trace.device_work import FAR_NS
from spyreprof.trace.health import Evidence, Fault
from spyreprof.trace.intervals import sum_of
from spyreprof.trace.nesting import NO_PARENT, innermost
from spyreprof.trace.quality import ZERO_TIME
from spyreprof.trace.roles import Role
from spyreprof.trace.steps import steps_of_device
from spyreprof.trace.table import MISSING, Flags, Integers
from spyreprof.units import NS_PER_S, format_seconds

# Faults of fewer events, or of less time, than this part do no harm worth telling.
FLOOR_RATIO = 0.01  # guessed
# As much device work may belong to no step, as sampling between the steps of an engine does.
OUTSIDE_STEPS_RATIO = 0.05  # guessed
VERY_LONG_NS = FAR_NS  # read: where torch-spyre takes an event for over-extended
# An annotation on the device ends with its last kernel, give or take the microsecond of older stamps.
ANNOTATION_SLACK_NS = 1_000  # read: old exporters write whole microseconds


def stamp_faults(evidence: Evidence) -> Iterator[Fault]:
    """Faults of stamps and durations of device work."""
    yield from _told_by_reader(evidence)
    if not len(evidence.spans) and not len(evidence.spans.far):
        return
    yield from _durations(evidence)
    yield from _far(evidence)
    yield from _repeated(evidence)
    yield from _order(evidence)
    yield from _outside(evidence)


def _material(count: float, of: float) -> bool:
    return count > FLOOR_RATIO * of


def _told_by_reader(evidence: Evidence) -> Iterator[Fault]:
    quality, table = evidence.table.quality, evidence.table
    zero = quality.dropped.get(ZERO_TIME, 0)
    if zero:
        yield Fault(
            kind="zero_stamp",
            count=zero,
            sentence=f"Events stamped with time 0, left out: {zero:,}.",
            lowers=("busy", "idle", "kernel_time") if _material(zero, quality.events_kept + zero) else (),
        )
    negative = quality.negative_duration
    if negative:
        rows = np.flatnonzero(table.has_phase("X") & (table.dur_ns == MISSING))
        yield Fault(
            kind="negative_duration",
            count=negative,
            sentence=f"Events that end before they begin, part of no time: {negative:,}.",
            examples=evidence.examples(rows),
            lowers=("busy", "idle", "kernel_time") if _material(negative, quality.events_kept) else (),
        )


def _durations(evidence: Evidence) -> Iterator[Fault]:
    spans = evidence.spans
    dur = spans.end_ns - spans.start_ns
    zero = np.flatnonzero(dur == 0)
    if len(zero):
        kernels = int(spans.is_role(Role.KERNEL, Role.COMMUNICATION_KERNEL)[zero].sum())
        yield Fault(
            kind="zero_duration",
            count=len(zero),
            sentence=f"Device work that took no time by its stamps: {len(zero):,}, of which kernels: {kernels:,}.",
            examples=evidence.examples(spans.row[zero]),
            lowers=("kernel_time",) if _material(kernels, len(spans)) else (),
        )
    clipped = np.flatnonzero(spans.overlong)
    if len(clipped):
        beyond = (spans.end_ns - spans.clipped_end_ns)[clipped]
        cut_ns, left_ns = sum_of(beyond), sum_of(spans.clipped_end_ns - spans.start_ns)
        yield Fault(
            kind="overlong",
            count=len(clipped),
            sentence=f"Device work that runs on past the start of the next on its stream, cut there: "
            f"{len(clipped):,}, by up "
            f"to {format_seconds(int(beyond.max()) / NS_PER_S)}.",
            worst=float(beyond.max()),
            worst_unit="ns",
            examples=evidence.examples(spans.row[clipped]),
            lowers=("kernel_time", "busy", "idle") if _material(cut_ns, left_ns) else (),
        )
    long = np.flatnonzero(dur > VERY_LONG_NS)
    if len(long):
        yield Fault(
            kind="very_long",
            count=len(long),
            sentence=f"Device work of more than 1 s by its stamps, which is rarely true: {len(long):,}, up to "
            f"{format_seconds(int(dur.max()) / NS_PER_S)}.",
            worst=float(dur.max()),
            worst_unit="ns",
            examples=evidence.examples(spans.row[long]),
            lowers=("kernel_time",),
        )
    yield from _over_wall(evidence, dur)


def _over_wall(evidence: Evidence, dur: Integers) -> Iterator[Fault]:
    """Streams whose events add up to more time than passed."""
    spans = evidence.spans
    if not len(spans):
        return
    n = len(spans.lanes.lane_values)
    # durations of damaged events may add up to more than an integer holds
    total = np.bincount(spans.lane, weights=dur.astype(np.float64), minlength=n)
    first, last = np.full(n, 2**62, np.int64), np.full(n, -(2**62), np.int64)
    np.minimum.at(first, spans.lane, spans.start_ns)
    np.maximum.at(last, spans.lane, spans.clipped_end_ns)
    used = np.flatnonzero(total > 0)
    ratio = total[used] / np.maximum(last[used] - first[used], 1)
    over = ratio > 1 + FLOOR_RATIO
    if over.any():
        bad = used[over]
        yield Fault(
            kind="sum_over_wall",
            count=len(bad),
            sentence=f"Streams whose work adds up to more time than passed: {len(bad):,}, up to {ratio.max():,.1f} "
            f"times as "
            "much. Their durations are not all true.",
            worst=float(ratio.max()),
            worst_unit="ratio",
            examples=evidence.examples(spans.row[np.isin(spans.lane, bad) & spans.overlong]),
            lowers=("kernel_time", "busy", "idle"),
        )


def _far(evidence: Evidence) -> Iterator[Fault]:
    rows, table, spans = evidence.spans.far, evidence.table, evidence.spans
    if not len(rows):
        return
    worst = None
    if len(spans):
        ahead = table.ts_ns[rows] + table.dur_ns[rows] - int(spans.clipped_end_ns.max())
        behind = int(spans.start_ns.min()) - table.ts_ns[rows]
        worst = float(np.maximum(ahead, behind).max())
    by = f", up to {format_seconds(worst / NS_PER_S)} away" if worst is not None else ""
    yield Fault(
        kind="far_from_rest",
        count=len(rows),
        sentence=f"Device work that begins or ends far from everything else, left out of times: {len(rows):,}{by}.",
        worst=worst,
        worst_unit=None if worst is None else "ns",
        examples=evidence.examples(rows),
        lowers=("busy", "idle"),
    )


def _repeated(evidence: Evidence) -> Iterator[Fault]:
    spans, table = evidence.spans, evidence.table
    name = table.name_code[spans.row]
    order = np.lexsort((name, spans.end_ns, spans.start_ns, spans.lane))
    start, lane, end, solid = (
        spans.start_ns[order],
        spans.lane[order],
        spans.end_ns[order],
        spans.end_ns > spans.start_ns,
    )
    together: Flags = (lane[1:] == lane[:-1]) & (start[1:] == start[:-1]) & solid[order][:-1]
    same: Flags = together & (end[1:] == end[:-1]) & (name[order][1:] == name[order][:-1])
    copies = order[1:][same]
    if len(copies):
        yield Fault(
            kind="duplicated_event",
            count=len(copies),
            sentence="Device work that repeats another by name, stream, start and duration, counted once in times and "
            "twice in "
            f"counts: {len(copies):,}.",
            examples=evidence.examples(spans.row[copies]),
            lowers=("kernel_time",) if _material(len(copies), len(spans)) else (),
        )
    others = order[1:][together & ~same]
    if len(others):
        yield Fault(
            kind="duplicated_start",
            count=len(others),
            sentence=f"Device work that starts at the very moment of another on its stream: {len(others):,}.",
            examples=evidence.examples(spans.row[others]),
            lowers=("kernel_time",) if _material(len(others), len(spans)) else (),
        )


def _order(evidence: Evidence) -> Iterator[Fault]:
    spans, table = evidence.spans, evidence.table
    if not len(table.row):
        return
    order = np.lexsort((table.row[spans.row], spans.lane))
    back = (spans.lane[order][1:] == spans.lane[order][:-1]) & (np.diff(spans.start_ns[order]) < 0)
    rows = spans.row[order[1:][back]]
    if len(rows):
        worst = int(-np.diff(spans.start_ns[order])[back].min())
        yield Fault(
            kind="out_of_order",
            count=len(rows),
            sentence=f"Device work that stands in the file behind later work of its stream, sorted: {len(rows):,}.",
            worst=float(worst),
            worst_unit="ns",
            examples=evidence.examples(rows),
        )


def _outside(evidence: Evidence) -> Iterator[Fault]:
    spans, table, relations = evidence.spans, evidence.table, evidence.relations
    operator = relations.operator[spans.row]
    # with a launch known, work before its operator is work before its launch
    alone = (operator != MISSING) & (relations.launch[spans.row] == MISSING)
    early = alone & (spans.start_ns < table.ts_ns[operator])
    outside = np.flatnonzero(early | _crosses_annotation(evidence))
    if len(outside):
        yield Fault(
            kind="outside_parent",
            count=len(outside),
            sentence="Device work outside of what it belongs to, begun before its operator or ended after the "
            "annotation around "
            f"it: {len(outside):,}.",
            examples=evidence.examples(spans.row[outside]),
            lowers=("steps", "launch_lag") if _material(len(outside), len(spans)) else (),
        )
    if not len(evidence.steps):
        return
    lost = np.flatnonzero(steps_of_device(table, relations, evidence.steps, spans.row) == MISSING)
    if len(lost):
        dur = spans.clipped_end_ns - spans.start_ns
        ratio = int(dur[lost].sum()) / max(int(dur.sum()), 1)
        yield Fault(
            kind="outside_steps",
            count=len(lost),
            sentence=f"Device work that belongs to no step: {len(lost):,}, {ratio:.1%} of its time.",
            worst=ratio,
            worst_unit="ratio",
            examples=evidence.examples(spans.row[lost]),
            lowers=("steps",) if ratio > OUTSIDE_STEPS_RATIO else (),
        )


def _crosses_annotation(evidence: Evidence) -> Flags:
    """Work that begins within an annotation of its stream and ends after it."""
    spans, table = evidence.spans, evidence.table
    crosses = np.zeros(len(spans), np.bool_)
    around = np.flatnonzero(evidence.found.has(Role.DEVICE_ANNOTATION) & (table.dur_ns > 0))
    if not len(around) or not len(spans):
        return crosses
    lane = spans.lanes.lane[around].astype(np.int64)
    around = around[np.lexsort((-table.dur_ns[around], table.ts_ns[around], lane))]
    lane, start = spans.lanes.lane[around].astype(np.int64), table.ts_ns[around]
    end = start + table.dur_ns[around]
    place = innermost(lane, start, end, spans.lane, spans.start_ns)
    inside = place != NO_PARENT
    crosses[inside] = spans.clipped_end_ns[inside] > end[place[inside]] + ANNOTATION_SLACK_NS
    return crosses
