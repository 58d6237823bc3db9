"""Interval arithmetic is exact: parts and holes add up to the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spyreprof_analyzers import intervals

pairs = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=20)


def points(spans) -> set[int]:
    return {point for start, end in spans.tolist() for point in range(start, end)}


@given(pairs)
def test_a_union_covers_the_same_points_without_overlap(raw: list[tuple[int, int]]) -> None:
    spans = intervals.as_spans(raw)
    merged = intervals.union(spans)
    assert points(merged) == points(spans)
    assert intervals.total(merged) == len(points(spans))
    assert all(left[1] < right[0] for left, right in zip(merged.tolist(), merged.tolist()[1:], strict=False))


@given(pairs, pairs)
def test_intersection_and_difference_split_a_set_exactly(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    first, second = (intervals.union(intervals.as_spans(raw)) for raw in (left, right))
    both, only = intervals.intersect(first, second), intervals.subtract(first, second)
    assert points(both) == points(first) & points(second)
    assert points(only) == points(first) - points(second)
    assert intervals.total(both) + intervals.total(only) == intervals.total(first)


@given(pairs, st.integers(0, 200), st.integers(0, 200))
def test_clipping_keeps_only_what_lies_inside(raw: list[tuple[int, int]], start: int, end: int) -> None:
    low, high = sorted((start, end))
    assert points(intervals.clip(intervals.union(intervals.as_spans(raw)), low, high)) == {
        point for point in points(intervals.as_spans(raw)) if low <= point < high
    }
