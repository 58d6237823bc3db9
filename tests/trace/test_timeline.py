"""How busy something was over time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.trace.timeline import MAX_BUCKETS, bucket_edges, busy_ratios


def ratios(spans: list[tuple[int, int]], edges: list[int]) -> list[float]:
    starts, durations = np.asarray(spans, np.int64).reshape(-1, 2).T
    return busy_ratios(starts, durations, np.asarray(edges)).tolist()


def test_a_bucket_is_as_busy_as_spans_cover_it() -> None:
    assert ratios([(0, 5), (12, 2), (18, 4)], [0, 10, 20, 40]) == [0.5, 0.4, 0.1]


def test_time_that_several_spans_cover_counts_once() -> None:
    assert ratios([(0, 10), (2, 3), (5, 10), (8, 1)], [0, 10, 20]) == [1.0, 0.5]


def test_spans_outside_the_buckets_do_not_count() -> None:
    assert ratios([(-20, 5), (-5, 10), (95, 100)], [0, 50, 100]) == [0.1, 0.1]


def test_without_spans_nothing_is_busy() -> None:
    assert ratios([], [0, 10]) == [0.0]


def test_a_bucket_of_no_length_has_no_share() -> None:
    assert np.isnan(ratios([(0, 5)], [0, 10, 10])[1])
    assert np.isnan(ratios([], [0, 0])[0])


@given(
    st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 30)), max_size=12),
    st.lists(st.integers(0, 50), min_size=2, max_size=8, unique=True).map(sorted),
)
def test_shares_are_those_of_counting_nanoseconds(spans: list[tuple[int, int]], edges: list[int]) -> None:
    covered = {at for start, dur in spans for at in range(start, start + dur)}
    expected = [len(covered & set(range(low, high))) / (high - low) for low, high in pairwise(edges)]
    assert ratios(spans, edges) == pytest.approx(expected)


@pytest.mark.parametrize("length_ns", [1, 9, 10, 99, 100, 101, 13_896_000, 10**12 + 1])
def test_buckets_are_round_and_cover_the_window(length_ns: int) -> None:
    edges = bucket_edges(7, 7 + length_ns)
    assert (edges[0], edges[-1]) == (7, 7 + length_ns)
    sizes = set(np.diff(edges[:-1]).tolist())
    assert sizes <= {10**power for power in range(15)}
    assert len(sizes) <= 1
    assert min(length_ns, 10) <= len(edges) - 1 <= MAX_BUCKETS
    # the last bucket is less than two
    assert len(edges) == 2 or edges[-1] - edges[-2] < 2 * (edges[1] - edges[0])


def test_a_window_of_no_length_is_one_bucket_of_none() -> None:
    assert bucket_edges(5, 5).tolist() == [5, 5]
