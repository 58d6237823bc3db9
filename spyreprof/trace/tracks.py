"""Sub-tracks: spans of one track that overlap without one being inside the other, spread so that on each they nest."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from spyreprof.trace.nesting import nest
from spyreprof.trace.table import Flags, Integers


def crossing_tracks(track: Integers, starts_ns: Integers, ends_ns: Integers) -> list[slice]:
    """The tracks on which some spans do not nest, as ranges of the spans.

    Args:
        track, starts_ns, ends_ns: shape (n,), the spans of a track together, by start, longer first.
    """
    if not len(track):
        return []
    bounds = np.flatnonzero(np.concatenate(([True], track[1:] != track[:-1], [True])))
    crossing: Flags = nest(track, starts_ns, ends_ns).crossing
    odd = np.logical_or.reduceat(crossing, bounds[:-1])
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), odd.tolist(), strict=True)
    return [slice(first, last) for first, last, some in pairs if some]


class SubTracks:
    """Gives each span of one track a sub-track on which it nests; spans come by start, longer first."""

    def __init__(self) -> None:
        self.count = 0
        # Ends of the spans that are open on each sub-track, innermost last.
        self._ends: list[list[int]] = []
        # The innermost end of each sub-track that has one, ascending, and the sub-tracks that are free.
        self._innermost: list[tuple[int, int]] = []
        self._free: list[int] = []
        self._started: list[tuple[int, int]] = []

    def place(self, start_ns: int, end_ns: int) -> int:
        """The sub-track of a span: where it fits most tightly into an open one, else the first that is free."""
        self._close(start_ns)
        at = bisect_left(self._innermost, (end_ns, -1))
        if at < len(self._innermost):
            chosen = self._innermost.pop(at)[1]
        elif self._free:
            chosen = heappop(self._free)
        else:
            chosen = self.count
            self.count += 1
            self._ends.append([])
        self._ends[chosen].append(end_ns)
        insort(self._innermost, (end_ns, chosen))
        self._started.append((end_ns, chosen))
        return chosen

    def around(self, moment_ns: int) -> int:
        """The sub-track of the span that began last among those that run at a moment; 0 where none does."""
        while self._started and self._started[-1][0] < moment_ns:
            self._started.pop()
        return self._started[-1][1] if self._started else 0

    def _close(self, start_ns: int) -> None:
        """Take off what ended before a span begins."""
        while self._innermost and self._innermost[0][0] <= start_ns:
            chosen = self._innermost.pop(0)[1]
            ends = self._ends[chosen]
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if ends:
                insort(self._innermost, (ends[-1], chosen))
            else:
                heappush(self._free, chosen)
