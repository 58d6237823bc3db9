"""Device events that run side by side: each moment counts once, and hidden communication is not exposed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.trace.self_time import union_shares


def shares(*events: tuple[int, int, int]) -> list[int]:
    starts, ends, layers = (np.array(column, np.int64) for column in zip(*events, strict=True))
    return union_shares(starts, ends, layers).tolist()


def test_communication_counts_only_where_no_work_hides_it() -> None:
    assert shares((0, 10, 2), (1, 9, 0)) == [2, 8]


def test_within_a_layer_the_one_that_started_first_has_the_moment() -> None:
    assert shares((0, 6, 0), (2, 10, 0)) == [6, 4]


def test_a_copy_hides_communication_and_is_hidden_by_work() -> None:
    assert shares((0, 10, 2), (0, 6, 1), (0, 2, 0)) == [4, 4, 2]


events = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=20).map(
    lambda raw: sorted((start, start + length, layer) for start, length, layer in raw)
)


@given(events)
def test_the_shares_add_up_to_the_union(raw: list[tuple[int, int, int]]) -> None:
    covered = {moment for start, end, _ in raw for moment in range(start, end)}
    assert sum(shares(*raw)) == len(covered)


@given(events)
def test_no_moment_of_a_higher_layer_is_counted_under_a_lower_one(raw: list[tuple[int, int, int]]) -> None:
    work = {moment for start, end, layer in raw if layer == 0 for moment in range(start, end)}
    found = shares(*raw)
    assert sum(share for share, (_, _, layer) in zip(found, raw, strict=True) if layer == 0) == len(work)
