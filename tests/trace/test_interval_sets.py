"""Sets of intervals against the same sets written down moment by moment."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.trace.intervals import Intervals, clip_to_next, union_lengths, union_of

Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(-12, 12), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=9)
keyed = st.lists(st.tuples(st.integers(0, 3), st.integers(-8, 8), st.integers(0, 7)), max_size=10)


def make(of: Spans) -> Intervals:
    pairs = np.asarray(of, np.int64).reshape(-1, 2)
    return union_of(pairs[:, 0], pairs[:, 1])


def moments(of: Spans) -> set[int]:
    return {moment for start, end in of for moment in range(start, end)}


def pairs(of: Intervals) -> Spans:
    return list(zip(of.starts_ns.tolist(), of.ends_ns.tolist(), strict=True))


def columns(of: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = np.asarray(of, np.int64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 1] + rows[:, 2]


def in_order(of: Intervals) -> bool:
    flat = [moment for pair in pairs(of) for moment in pair]
    return all(a < b for a, b in itertools.pairwise(flat))


@given(spans)
def test_a_union_covers_each_moment_once(a: Spans) -> None:
    found = make(a)
    assert moments(pairs(found)) == moments(a)
    assert found.length_ns == len(moments(a))
    assert in_order(found)


@given(spans, spans)
def test_sets_are_joined_cut_and_taken_apart_moment_by_moment(a: Spans, b: Spans) -> None:
    here, there = make(a), make(b)
    for found, expected in (
        (here.union(there), moments(a) | moments(b)),
        (here.intersection(there), moments(a) & moments(b)),
        (here.difference(there), moments(a) - moments(b)),
    ):
        assert moments(pairs(found)) == expected
        assert in_order(found)


@given(spans, st.integers(-15, 15), st.integers(-15, 15))
def test_a_window_is_covered_or_a_gap(a: Spans, start: int, end: int) -> None:
    window = set(range(start, end))
    assert moments(pairs(make(a).clip(start, end))) == moments(a) & window
    assert moments(pairs(make(a).gaps(start, end))) == window - moments(a)


@given(keyed)
def test_each_key_has_its_own_union(rows: list[tuple[int, int, int]]) -> None:
    expected = [len(moments([(t, t + d) for key, t, d in rows if key == wanted])) for wanted in range(4)]
    assert union_lengths(*columns(rows), 4).tolist() == expected


@given(keyed)
def test_clipped_spans_of_a_stream_do_not_overlap(rows: list[tuple[int, int, int]]) -> None:
    stream, start, end = columns(rows)
    found = clip_to_next(stream, start, end)
    for index, (mine, begin, dur) in enumerate(rows):
        later = [t for n, (s, t, d) in enumerate(rows) if s == mine and d and n != index and t > begin]
        cut = min([begin + dur, *later])
        together = [d for s, t, d in rows if s == mine and t == begin]
        expected = {begin, cut} if len(together) > 1 else {cut}
        assert found.ends_ns[index] in expected
        assert bool(found.clipped[index]) == (found.ends_ns[index] < begin + dur)
    for wanted in range(4):
        own = stream == wanted
        total = int((found.ends_ns - start)[own].sum())
        assert total == union_of(start[own], found.ends_ns[own]).length_ns


def test_of_spans_that_start_together_the_longest_stays() -> None:
    found = clip_to_next(*columns([(0, 5, 9), (0, 5, 3), (1, 5, 2)]))
    assert found.ends_ns.tolist() == [14, 5, 7]
    assert found.clipped.tolist() == [False, True, False]


def test_a_span_without_length_cuts_nothing() -> None:
    assert clip_to_next(*columns([(0, 0, 10), (0, 5, 0)])).ends_ns.tolist() == [10, 5]


@pytest.mark.parametrize("far", [2**62, -(2**62)])
def test_a_stamp_far_from_the_others_changes_nothing_for_them(far: int) -> None:
    key, start = np.asarray([0, 0, 1, 1]), np.asarray([5, far, 5, 7])
    assert union_lengths(key, start, start + 4, 2).tolist() == [8, 6]
