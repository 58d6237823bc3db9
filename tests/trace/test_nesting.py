"""Nested spans against a count of every moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.trace.nesting import NO_PARENT, innermost, nest, on_one_axis

Span = tuple[int, int, int]

spans_of_tracks = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=25
).map(lambda spans: sorted(((t, s, s + d) for t, s, d in spans), key=lambda span: (span[0], span[1], -span[2])))


def columns(spans: list[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    track, start, end = np.asarray(spans, np.int64).reshape(-1, 3).T
    return track.copy(), start.copy(), end.copy()


def running_last(spans: list[Span], track: int, moment: int, before: int) -> int:
    """The last of the first `before` spans that runs at a moment."""
    found = [i for i, (t, start, end) in enumerate(spans[:before]) if t == track and start <= moment < end]
    return found[-1] if found else NO_PARENT


@given(spans_of_tracks)
def test_each_moment_belongs_to_the_span_that_started_last(spans: list[Span]) -> None:
    found = nest(*columns(spans))
    own = [0] * len(spans)
    for track in {span[0] for span in spans}:
        for moment in range(0, 45):
            holder = running_last(spans, track, moment, len(spans))
            if holder != NO_PARENT:
                own[holder] += 1
    assert found.self_ns.tolist() == own


@given(spans_of_tracks)
def test_the_parent_is_what_was_running_last(spans: list[Span]) -> None:
    found = nest(*columns(spans))
    parent = [running_last(spans, track, start, i) for i, (track, start, _) in enumerate(spans)]
    assert found.parent.tolist() == parent
    depth = []
    for above in parent:
        depth.append(0 if above == NO_PARENT else depth[above] + 1)
    assert found.depth.tolist() == depth
    assert found.crossing.tolist() == [
        above != NO_PARENT and spans[i][2] > spans[above][2] for i, above in enumerate(parent)
    ]


@given(spans_of_tracks)
def test_what_is_inside_a_span_follows_it(spans: list[Span]) -> None:
    found = nest(*columns(spans))
    for index in range(len(spans)):
        inside = []
        for other in range(len(spans)):
            above = int(found.parent[other])
            while above not in (NO_PARENT, index):
                above = int(found.parent[above])
            if above == index:
                inside.append(other)
        assert inside == list(range(index + 1, int(found.last[index])))


@given(spans_of_tracks, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 45)), max_size=10))
def test_a_moment_is_found_in_the_innermost_span(spans: list[Span], moments: list[tuple[int, int]]) -> None:
    at = np.asarray(moments, np.int64).reshape(-1, 2)
    found = innermost(*columns(spans), at[:, 0], at[:, 1])
    assert found.tolist() == [running_last(spans, track, moment, len(spans)) for track, moment in moments]


def test_self_times_add_up_to_the_union_exactly_at_epoch_nanoseconds() -> None:
    base = 1_780_000_000_123_456_789
    start = base + np.asarray([0, 3, 5, 20], np.int64)
    found = nest(np.zeros(4, np.int64), start, start + np.asarray([11, 4, 1, 7]))
    assert found.self_ns.tolist() == [7, 3, 1, 7]
    assert found.self_ns.sum() == 11 + 7


def test_a_child_that_outlasts_its_parent_is_counted_and_keeps_its_time() -> None:
    found = nest(np.zeros(3, np.int64), np.asarray([0, 4, 6]), np.asarray([5, 9, 7]))
    assert found.crossing.tolist() == [False, True, False]
    assert found.parent.tolist() == [NO_PARENT, 0, 1]
    assert found.self_ns.tolist() == [4, 4, 1]


@pytest.mark.parametrize("crossed", [False, True])
def test_spans_nested_a_hundred_thousand_deep_need_no_recursion(crossed: bool) -> None:
    n = 100_000
    start = np.arange(n, dtype=np.int64)
    # crossed: each outlasts the one in which it starts
    end = start + n + 1 if crossed else 2 * n - start
    found = nest(np.zeros(n, np.int64), start, end)
    assert found.parent.tolist() == [NO_PARENT, *range(n - 1)]
    assert int(found.depth[-1]) == n - 1
    assert int(found.self_ns.sum()) == int(end.max())


def test_no_spans_nest_in_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert len(nest(none, none, none).parent) == 0
    assert innermost(none, none, none, np.asarray([1]), np.asarray([5])).tolist() == [NO_PARENT]


def test_tracks_on_one_axis_do_not_touch() -> None:
    start, end = on_one_axis(np.asarray([4, 4, 9]), np.asarray([100, 120, 3]), np.asarray([110, 121, 5]))
    # the pause of ten before the second is cut to the longest span and one
    assert (start.tolist(), end.tolist()) == ([0, 11, 22], [10, 12, 24])


def test_stamps_that_are_decades_off_leave_room_for_the_other_tracks() -> None:
    late = 1_780_000_000_000_000_000
    track = np.repeat(np.arange(12), 3)
    start = np.tile(np.asarray([5, late, late + 10]), 12)
    found = nest(track, start, start + np.tile(np.asarray([7, 100, 20]), 12))
    assert found.self_ns.tolist() == [7, 80, 20] * 12
    assert found.parent[:6].tolist() == [NO_PARENT, NO_PARENT, 1, NO_PARENT, NO_PARENT, 4]
