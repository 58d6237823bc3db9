"""Arithmetic on half-open integer intervals [start, end), as int64 arrays. Exact in nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def as_spans(pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """An (n, 2) array; empty and inverted intervals are dropped."""
    array = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return array[array[:, 1] > array[:, 0]]


def union(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Disjoint, sorted spans that cover the same points."""
    if len(spans) == 0:
        return spans
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    # a span opens a new group when it starts past everything before it
    opens = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    closes = np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(ordered) - 1]))
    return np.stack((ordered[opens, 0], reach[closes]), axis=1)


def total(spans: NDArray[np.int64]) -> int:
    """Summed length of disjoint spans."""
    return int((spans[:, 1] - spans[:, 0]).sum()) if len(spans) else 0


def covered_before(spans: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of disjoint, sorted spans lies before each time."""
    if len(spans) == 0:
        return np.zeros(len(times), dtype=np.int64)
    length = spans[:, 1] - spans[:, 0]
    before = np.concatenate(([0], np.cumsum(length)))
    index = np.searchsorted(spans[:, 0], times, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.where(index > 0, np.minimum(times, spans[last, 1]) - spans[last, 0], 0)
    return before[last] + inside


def clip(spans: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
    """The parts of the spans that lie within [start, end)."""
    if len(spans) == 0:
        return spans
    cut = np.clip(spans, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def intersect(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Points that lie in both; both sides disjoint."""
    if len(left) == 0 or len(right) == 0:
        return left[:0]
    edges = np.concatenate((left[:, 0], left[:, 1], right[:, 0], right[:, 1]))
    in_left = np.repeat((1, -1, 0, 0), (len(left), len(left), len(right), len(right)))
    in_right = np.repeat((0, 0, 1, -1), (len(left), len(left), len(right), len(right)))
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    # between two neighbouring edges membership does not change
    covered = (np.cumsum(in_left[order]) > 0) & (np.cumsum(in_right[order]) > 0)
    pieces = np.stack((edges[:-1], edges[1:]), axis=1)[covered[:-1]]
    return union(pieces[pieces[:, 1] > pieces[:, 0]])


def subtract(spans: NDArray[np.int64], holes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Points of `spans` that lie in none of `holes`; both disjoint and sorted."""
    if len(spans) == 0 or len(holes) == 0:
        return spans
    low, high = int(spans[0, 0]), int(spans[-1, 1])
    inner = clip(holes, low, high)
    edges = np.concatenate(([low], inner.ravel(), [high]))
    return intersect(spans, as_spans(zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)))
