"""Exact arithmetic on sets of time intervals in integer nanoseconds. An interval holds its start and not its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyreprof.trace.table import Flags, Integers

# Sums that are surely no larger than an int64, whatever float rounds away.
_LARGE = 2.0**62


@dataclass(frozen=True)
class Intervals:
    """Intervals that neither overlap nor touch, ascending, none of them empty; shape (k,) each."""

    starts_ns: Integers
    ends_ns: Integers

    def __len__(self) -> int:
        return len(self.starts_ns)

    @property
    def length_ns(self) -> int:
        """Time covered."""
        return int((self.ends_ns - self.starts_ns).sum())

    def union(self, other: Intervals) -> Intervals:
        """Times in one of the two or in both."""
        return union_of(
            np.concatenate((self.starts_ns, other.starts_ns)), np.concatenate((self.ends_ns, other.ends_ns))
        )

    def intersection(self, other: Intervals) -> Intervals:
        """Times in both."""
        moments, here, there = _sweep(self, other)
        return _pieces(moments, here & there)

    def difference(self, other: Intervals) -> Intervals:
        """Times in this set and not in the other."""
        moments, here, there = _sweep(self, other)
        return _pieces(moments, here & ~there)

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """What lies in a window; nothing where it ends before it starts."""
        kept = (self.starts_ns < end_ns) & (self.ends_ns > start_ns) & (start_ns < end_ns)
        return Intervals(np.maximum(self.starts_ns[kept], start_ns), np.minimum(self.ends_ns[kept], end_ns))

    def gaps(self, start_ns: int, end_ns: int) -> Intervals:
        """What of a window is not covered."""
        return union_of(np.asarray([start_ns], np.int64), np.asarray([end_ns], np.int64)).difference(self)


def sum_of(durations_ns: Integers) -> int:
    """The sum of durations, none negative; the maximum of an int64 where stamps gone wild add up to more."""
    if float(durations_ns.sum(dtype=np.float64)) < _LARGE:
        return int(durations_ns.sum())
    total: int = sum(durations_ns.tolist())
    return min(total, 2**63 - 1)


def union_of(starts_ns: Integers, ends_ns: Integers) -> Intervals:
    """The times that spans cover.

    Args:
        starts_ns, ends_ns: shape (n,), in any order; spans that do not end after their start cover nothing.
    """
    solid = ends_ns > starts_ns
    starts, ends = starts_ns[solid], ends_ns[solid]
    if not len(starts):
        return Intervals(starts, ends)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.concatenate(([True], starts[1:] > reached[:-1])))
    return Intervals(starts[first], reached[np.append(first[1:] - 1, len(reached) - 1)])


def union_lengths(keys: Integers, starts_ns: Integers, ends_ns: Integers, n_keys: int) -> Integers:
    """How much time the spans of each key cover, as of each stream or each step; shape (n_keys,).

    Args:
        keys: shape (n,), in [0, n_keys).
        starts_ns, ends_ns: shape (n,), in any order.
    """
    lengths = np.zeros(n_keys, np.int64)
    solid = ends_ns > starts_ns
    keys, starts, ends = keys[solid], starts_ns[solid], ends_ns[solid]
    n = len(keys)
    if not n:
        return lengths
    order = np.lexsort((starts, keys))
    keys, starts, ends = keys[order].astype(np.int64), starts[order], ends[order]
    # The latest end so far within a key: ranks of ends, raised from key to key, stay small where times do not.
    by_end = np.argsort(ends, kind="stable")
    rank = np.empty(n, np.int64)
    rank[by_end] = np.arange(n)
    runs = np.cumsum(np.concatenate(([0], keys[1:] != keys[:-1])))
    reached = ends[by_end][np.maximum.accumulate(runs * n + rank) - runs * n]
    before = np.concatenate((starts[:1], np.where(keys[1:] == keys[:-1], reached[:-1], starts[1:])))
    np.add.at(lengths, keys, np.maximum(ends - np.maximum(starts, before), 0))
    return lengths


@dataclass(frozen=True)
class ClippedSpans:
    """Spans of streams, each cut where the next of its stream starts; shape (n,), in the order given.

    Attributes:
        ends_ns: after clipping.
        clipped: spans that reach beyond the start of the next.
    """

    ends_ns: Integers
    clipped: Flags


def clip_to_next(streams: Integers, starts_ns: Integers, ends_ns: Integers) -> ClippedSpans:
    """Cut spans that run on past the start of the next one on their stream.

    Of spans that start together the longest stays and the others get nothing, so that each moment counts once. A span
    without length ends none: nothing ran that could have ended it.

    Args:
        streams, starts_ns, ends_ns: shape (n,), in any order.
    """
    solid = np.flatnonzero(ends_ns > starts_ns)
    order = solid[np.lexsort((ends_ns[solid], starts_ns[solid], streams[solid]))]
    stream, start, end = streams[order], starts_ns[order], ends_ns[order]
    reaches = (stream[1:] == stream[:-1]) & (end[:-1] > start[1:])
    ends, clipped = ends_ns.copy(), np.zeros(len(ends_ns), np.bool_)
    ends[order[:-1][reaches]] = start[1:][reaches]
    clipped[order[:-1][reaches]] = True
    return ClippedSpans(ends, clipped)


def _sweep(a: Intervals, b: Intervals) -> tuple[Integers, Flags, Flags]:
    """All boundaries, ascending, and whether each set covers what lies between one and the next."""
    moments = np.concatenate((a.starts_ns, a.ends_ns, b.starts_ns, b.ends_ns))
    order = np.argsort(moments, kind="stable")
    n, m = len(a), len(b)
    ones_a, ones_b = np.ones(n, np.int64), np.ones(m, np.int64)
    in_a = np.cumsum(np.concatenate((ones_a, -ones_a, np.zeros(2 * m, np.int64)))[order]) > 0
    in_b = np.cumsum(np.concatenate((np.zeros(2 * n, np.int64), ones_b, -ones_b))[order]) > 0
    return moments[order], in_a, in_b


def _pieces(moments: Integers, wanted: Flags) -> Intervals:
    starts, ends = moments[:-1], moments[1:]
    return union_of(starts[wanted[:-1]], ends[wanted[:-1]])
