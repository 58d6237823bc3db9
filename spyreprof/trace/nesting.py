"""Nested spans: which span runs inside which, and the time of each that no later one takes.

A moment belongs to the span that started last among those running on its track. For spans that nest properly that is
the innermost one. Spans that cross, as a badly stamped child that outlasts its parent, are tolerated: the later start
wins until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spyreprof.trace.roles import ON_HOST, Role, Roles
from spyreprof.trace.table import MISSING, EventTable, Flags, Integers

NO_PARENT = -1
# What is worked on at once: all spans of a large trace, with what is computed on the way, would take gigabytes.
_PART_SPANS = 2**19


@dataclass(frozen=True)
class Nesting:
    """How spans nest; arrays have one entry per span, in the order given.

    Attributes:
        parent: index of the span that was running last when this one started; `NO_PARENT` at the outside.
        self_ns: its own time: the sum over a track is the length of the union of its spans.
        depth: number of spans around it, by `parent`.
        last: index behind the last span inside this one: those inside are `i + 1` to `last[i]`, in any depth.
        crossing: spans that outlast the one in which they started.
    """

    parent: Integers
    self_ns: Integers
    depth: Integers
    last: Integers
    crossing: Flags


def on_one_axis(track: Integers, starts_ns: Integers, ends_ns: Integers) -> tuple[Integers, Integers]:
    """Starts and ends with the tracks laid end to end on one axis, so that no span reaches into another track.

    Order and overlaps within a track stay what they are, and lengths too. Pauses may get shorter: a single stamp that
    is decades off would otherwise leave no room for the other tracks.

    Args:
        track, starts_ns, ends_ns: shape (n,), those of a track together, by start.
    """
    if not len(track):
        return starts_ns, ends_ns
    new = np.concatenate(([True], track[1:] != track[:-1]))
    first = np.flatnonzero(new)
    lengths = ends_ns - starts_ns
    longest = np.maximum.reduceat(lengths, first)
    # what lies further back than the longest span of the track has ended
    enough = np.repeat(longest, np.diff(np.append(first, len(track)))) + 1
    steps = np.minimum(np.concatenate(([0], np.diff(starts_ns))), enough)
    steps[first] = np.concatenate(([0], longest[:-1] + 1))
    starts = np.cumsum(steps)
    return starts, starts + lengths


def nest(track: Integers, starts_ns: Integers, ends_ns: Integers) -> Nesting:
    """Find parents and self times.

    Args:
        track, starts_ns, ends_ns: shape (n,), the spans of a track together, by start, outer before inner where starts
            are equal. The table's own order is such an order. Ends are not before starts.
    """
    starts, ends = on_one_axis(track, starts_ns, ends_ns)
    n = len(starts)
    parent, depth, self_ns, last = (np.empty(n, np.int64) for _ in range(4))
    crossing = np.empty(n, np.bool_)
    places = _pauses(starts, ends)
    for begin, end in pairwise(places):
        part = _nest_part(starts[begin:end], ends[begin:end])
        parent[begin:end] = np.where(part.parent == NO_PARENT, NO_PARENT, part.parent + begin)
        depth[begin:end], self_ns[begin:end] = part.depth, part.self_ns
        last[begin:end], crossing[begin:end] = part.last + begin, part.crossing
    return Nesting(parent, self_ns, depth, last, crossing)


def _pauses(starts: Integers, ends: Integers) -> list[int]:
    """Places at which no span is running, some `_PART_SPANS` apart where there are such, from 0 to the end."""
    n = len(starts)
    if n <= _PART_SPANS:
        return [0, n] if n else []
    pauses = np.flatnonzero(starts[1:] >= np.maximum.accumulate(ends)[:-1]) + 1
    wanted = np.arange(_PART_SPANS, n, _PART_SPANS)
    after = np.searchsorted(pauses, wanted)
    return [0, *dict.fromkeys(pauses[after[after < len(pauses)]].tolist()), n]


def _nest_part(starts: Integers, ends: Integers) -> Nesting:
    parent, depth = _by_depth(starts, ends)
    inside = np.flatnonzero(parent != NO_PARENT)
    crossing = np.zeros(len(starts), np.bool_)
    crossing[inside] = ends[inside] > ends[parent[inside]]
    reach = ends
    if crossing.any():
        reach = ends.copy()
        _mend(starts, ends, reach, parent, depth, crossing)
        inside = np.flatnonzero(parent != NO_PARENT)
        crossing[:] = False
        crossing[inside] = ends[inside] > ends[parent[inside]]
    # `reach` nests properly: what a child takes beyond its parent's end was not the parent's before
    self_ns = reach - starts
    np.subtract.at(self_ns, parent[inside], (reach - starts)[inside])
    last = np.maximum(np.searchsorted(starts, reach, "left"), np.arange(1, len(starts) + 1))
    return Nesting(parent, self_ns, depth, last, crossing)


def _by_depth(starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Parents and depths, right for spans that do not cross; the first that crosses outlasts the parent found."""
    n = len(starts)
    parent, depth = np.full(n, NO_PARENT, np.int64), np.zeros(n, np.int64)
    long = ends > starts
    # A span without length holds none, so it is only placed. The number of spans that run when another starts is the
    # number that started before it less the number that ended.
    solid = np.flatnonzero(long)
    ended = np.searchsorted(np.sort(ends[solid]), starts, "right")
    before: Integers = np.cumsum(long) - long
    depth[:] = before - ended
    levels = depth[solid]
    order = np.argsort(levels.astype(np.uint16) if len(levels) and levels.max() < 2**16 else levels, kind="stable")
    keys = levels[order] * n + solid[order]
    inner = np.flatnonzero(depth > 0)
    # the parent is the last one before it that is one level higher
    place = np.searchsorted(keys, (depth[inner] - 1) * n + inner, "left") - 1
    parent[inner] = solid[order[place]]
    return parent, depth


def _mend(
    starts: Integers, ends: Integers, reach: Integers, parent: Integers, depth: Integers, crossing: Flags
) -> None:
    """Set `parent`, `depth` and `reach` anew for stretches in which spans cross, one span after the other.

    A stretch is a run of spans without a pause. `reach` is the end of a span or of what crosses out of it.
    """
    covered = np.maximum.accumulate(ends)
    begins = np.concatenate(([True], starts[1:] >= covered[:-1]))
    stretch = np.cumsum(begins) - 1
    bad = np.zeros(int(stretch[-1]) + 1, np.bool_)
    bad[stretch[crossing]] = True
    rows = np.flatnonzero(bad[stretch])
    start_of, end_of = starts[rows].tolist(), ends[rows].tolist()
    reach_of = list(end_of)
    parent_of = [NO_PARENT] * len(rows)
    depth_of = [0] * len(rows)
    running: list[int] = []
    for at, start in enumerate(start_of):
        while running and end_of[running[-1]] <= start:
            _leave(running, reach_of)
        if running:
            parent_of[at] = running[-1]
            depth_of[at] = depth_of[running[-1]] + 1
        running.append(at)
    while running:
        _leave(running, reach_of)
    found: npt.NDArray[np.int64] = np.asarray(parent_of, np.int64)
    parent[rows] = np.where(found == NO_PARENT, NO_PARENT, rows[found])
    depth[rows] = depth_of
    reach[rows] = reach_of


def _leave(running: list[int], reach: list[int]) -> None:
    done = running.pop()
    if running:
        reach[running[-1]] = max(reach[running[-1]], reach[done])


def innermost(track: Integers, starts_ns: Integers, ends_ns: Integers, at_track: Integers, at_ns: Integers) -> Integers:
    """The span that was started last among those running at given moments, `NO_PARENT` where none runs; shape (m,).

    A span runs from its start until just before its end.

    Args:
        track, starts_ns, ends_ns: as for `nest`.
        at_track, at_ns: shape (m,), in any order.
    """
    n = len(track)
    # Moments become spans without length behind all spans that start with them.
    order = np.lexsort((np.arange(n + len(at_ns)), np.append(starts_ns, at_ns), np.append(track, at_track)))
    found = nest(
        np.append(track, at_track)[order], np.append(starts_ns, at_ns)[order], np.append(ends_ns, at_ns)[order]
    )
    holder = np.where(found.parent == NO_PARENT, NO_PARENT, order[found.parent])
    asked = order >= n
    answer = np.full(len(at_ns), NO_PARENT, np.int64)
    answer[order[asked] - n] = holder[asked]
    return answer


def host_spans(table: EventTable, found: Roles) -> Integers:
    """Rows of the host's call stacks, in the order of the table: what `nest_rows` takes apart.

    Where nobody knows what the events mean, these are all complete events.
    """
    wanted = found.has(*ON_HOST) | (found.has(Role.OTHER) & table.has_phase("X"))
    return np.flatnonzero(wanted & (table.dur_ns != MISSING))


def self_times(table: EventTable, rows: Integers) -> Integers:
    """Self times alone of rows of a table on their tracks, which needs less memory than all of `nest_rows`.

    Args:
        rows: shape (m,), ascending, each with a duration.
    """
    starts = table.ts_ns[rows]
    starts, ends = on_one_axis(table.tracks()[rows], starts, starts + table.dur_ns[rows])
    self_ns = np.empty(len(rows), np.int64)
    for begin, end in pairwise(_pauses(starts, ends)):
        self_ns[begin:end] = _nest_part(starts[begin:end], ends[begin:end]).self_ns
    return self_ns


def nest_rows(table: EventTable, rows: Integers) -> Nesting:
    """Parents and self times of rows of a table on their tracks. Indices of the result count within `rows`.

    Args:
        rows: shape (m,), ascending, each with a duration.
    """
    starts = table.ts_ns[rows]
    return nest(table.tracks()[rows], starts, starts + table.dur_ns[rows])
