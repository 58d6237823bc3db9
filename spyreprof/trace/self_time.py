"""Divides the time of device work that runs side by side, so that each nanosecond counts once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


def union_shares(starts_ns: Times, ends_ns: Times, layers: Times) -> Times:
    """Divide the union of intervals that run side by side; the sum is the union's length.

    A moment in which several run goes to the one of the lowest layer, and within a layer to the one that started
    first. With work in layer 0 and communication in a higher one, communication gets only the time that no work
    hides: its exposed time.

    Args:
        starts_ns, ends_ns, layers: shape (n,), sorted by start.
    """
    shares = np.zeros(len(starts_ns), np.int64)
    taken = _Union(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for layer in np.unique(layers):
        rows = np.flatnonzero(layers == layer)
        start, end = starts_ns[rows], ends_ns[rows]
        reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
        begin = np.minimum(np.maximum(start, reached), end)
        shares[rows] = end - begin - (taken.length_before(end) - taken.length_before(begin))
        taken = taken.with_intervals(start, end)
    return shares


class _Union:
    """Disjoint intervals, ascending."""

    def __init__(self, starts: Times, ends: Times) -> None:
        self._starts, self._ends = starts, ends
        self._before = np.cumsum(ends - starts) - (ends - starts)

    def length_before(self, moments: Times) -> Times:
        """How much of the union lies before each moment."""
        if not len(self._starts):
            return np.zeros(len(moments), np.int64)
        place = np.searchsorted(self._starts, moments, "right") - 1
        held = np.maximum(place, 0)
        length: Times = self._before[held] + np.minimum(moments, self._ends[held]) - self._starts[held]
        return np.where(place < 0, 0, length)

    def with_intervals(self, starts: Times, ends: Times) -> _Union:
        """The union with further intervals."""
        starts, ends = np.concatenate((self._starts, starts)), np.concatenate((self._ends, ends))
        order = np.argsort(starts, kind="stable")
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        first = np.flatnonzero(np.concatenate(([True], starts[1:] > reached[:-1])))
        return _Union(starts[first], reached[np.append(first[1:] - 1, len(reached) - 1)])
