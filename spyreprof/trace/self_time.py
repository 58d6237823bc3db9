"""Divides a stretch of one thread's time among nested operators, so that each nanosecond counts once."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NO_PARENT = -1


class SelfTimes(NamedTuple):
    """What `divide` found; arrays have one entry per operator, in the order given.

    `gap_ns` is the time in which no operator ran: self times plus gap are exactly the stretch.
    """

    self_ns: npt.NDArray[np.int64]
    parent: npt.NDArray[np.int64]
    gap_ns: int


def divide(starts_ns: npt.NDArray[np.int64], ends_ns: npt.NDArray[np.int64], begin_ns: int, end_ns: int) -> SelfTimes:
    """Give each moment of [begin_ns, end_ns) to the operator that started last among those running.

    For operators that nest properly that is the innermost one. Operators that cross, as a badly stamped child
    that outlasts its parent, are tolerated: the later start wins until it ends.

    Args:
        starts_ns, ends_ns: shape (n,), sorted by start, outer before inner where starts are equal.
        begin_ns, end_ns: the stretch; operators are cut to it.
    """
    starts = np.clip(starts_ns, begin_ns, end_ns).tolist()
    ends = np.clip(ends_ns, begin_ns, end_ns).tolist()
    self_ns = [0] * len(starts)
    parent = [NO_PARENT] * len(starts)
    running: list[int] = []
    now = begin_ns
    gap_ns = 0
    for index, start in enumerate(starts):
        while running and ends[running[-1]] <= start:
            done = running.pop()
            if ends[done] > now:
                self_ns[done] += ends[done] - now
                now = ends[done]
        if running:
            self_ns[running[-1]] += start - now
            parent[index] = running[-1]
        else:
            gap_ns += start - now
        now = start
        running.append(index)
    while running:
        done = running.pop()
        if ends[done] > now:
            self_ns[done] += ends[done] - now
            now = ends[done]
    gap_ns += end_ns - now
    return SelfTimes(np.asarray(self_ns, np.int64), np.asarray(parent, np.int64), gap_ns)


def union_shares(
    starts_ns: npt.NDArray[np.int64], ends_ns: npt.NDArray[np.int64], layers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Divide the union of intervals that run side by side; the sum is the union's length.

    A moment in which several run goes to the one of the lowest layer, and within a layer to the one that started
    first. With work in layer 0 and communication in a higher one, communication gets only the time that no work
    hides: its exposed time.

    Args:
        starts_ns, ends_ns, layers: shape (n,), sorted by start.
    """
    shares = np.zeros(len(starts_ns), np.int64)
    running: list[tuple[int, int]] = []  # a heap of (layer, index); ended ones leave when they come to the top
    starts, ends = starts_ns.tolist(), ends_ns.tolist()
    moments = sorted({*starts, *ends})
    at = 0
    for now, after in pairwise(moments):
        while at < len(starts) and starts[at] <= now:
            heapq.heappush(running, (int(layers[at]), at))
            at += 1
        while running and ends[running[0][1]] <= now:
            heapq.heappop(running)
        if running:
            shares[running[0][1]] += after - now
    return shares
