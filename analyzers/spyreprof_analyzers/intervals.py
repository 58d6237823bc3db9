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


def clip(spans: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
    """The parts of the spans that lie within [start, end)."""
    if len(spans) == 0:
        return spans
    cut = np.clip(spans, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def intersect(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Points that lie in both; both sides disjoint and sorted."""
    pieces: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i, 0], right[j, 0])
        end = min(left[i, 1], right[j, 1])
        if end > start:
            pieces.append((int(start), int(end)))
        if left[i, 1] < right[j, 1]:
            i += 1
        else:
            j += 1
    return as_spans(pieces)


def subtract(spans: NDArray[np.int64], holes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Points of `spans` that lie in none of `holes`; both disjoint and sorted."""
    if len(spans) == 0 or len(holes) == 0:
        return spans
    low, high = int(spans[0, 0]), int(spans[-1, 1])
    inner = clip(holes, low, high)
    edges = np.concatenate(([low], inner.ravel(), [high]))
    return intersect(spans, as_spans(zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)))
