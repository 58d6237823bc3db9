"""Begin and end events: which belong together, and what becomes of those that stand alone."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.errors import UserError
from spyreprof.trace import pairs
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.table import MISSING, EventTable


class Span(NamedTuple):
    name: str
    ph: str
    ts_us: int
    dur_us: int


def table_of(*events: dict[str, Any]) -> EventTable:
    return read_bytes(json.dumps([{"pid": 1, "tid": 2, **event} for event in events]).encode(), "test.json")


def event(ph: str, ts: int, name: str | None = None, **fields: Any) -> dict[str, Any]:
    named = {} if name is None else {"name": name}
    return {"ph": ph, "ts": ts, **named, **fields}


def spans(table: EventTable) -> list[Span]:
    return [
        Span(
            table.name(at),
            table.ph_values[table.ph_code[at]],
            int(table.ts_ns[at]) // 1000,
            int(table.dur_ns[at]) // 1000 if table.dur_ns[at] != MISSING else MISSING,
        )
        for at in range(len(table))
    ]


def fates(table: EventTable) -> tuple[int, int, int, int]:
    quality = table.quality
    return quality.paired, quality.unmatched_begin, quality.unmatched_end, quality.crossed


def test_nested_pairs_become_complete_events_longest_first() -> None:
    table = table_of(event("B", 0, "a"), event("B", 0, "b"), event("E", 4, "b"), event("E", 9, "a"))
    assert spans(table) == [Span("a", "X", 0, 9), Span("b", "X", 0, 4)]
    assert fates(table) == (2, 0, 0, 0)
    assert (table.quality.events_read, table.quality.events_kept) == (4, 2)


def test_a_table_without_such_events_comes_back_as_it_is() -> None:
    table = table_of(event("X", 0, "a", dur=1))
    assert pairs.join(table) is table


def test_events_out_of_order_in_the_file_are_matched_by_time() -> None:
    table = table_of(event("E", 9, "a"), event("B", 3, "b"), event("E", 5, "b"), event("B", 1, "a"))
    assert spans(table) == [Span("a", "X", 1, 8), Span("b", "X", 3, 2)]


def test_an_end_without_a_name_closes_the_innermost_begin() -> None:
    table = table_of(event("B", 0, "a"), event("B", 1, "b"), event("E", 2), event("E", 3))
    assert spans(table) == [Span("a", "X", 0, 3), Span("b", "X", 1, 1)]


def test_an_end_without_a_name_closes_the_innermost_begin_that_is_still_open() -> None:
    events = (
        event("B", 0, "a"),
        event("B", 1, "b"),
        event("B", 2, "c"),
        event("E", 3, "b"),
        event("E", 4),
        event("E", 5),
    )
    table = table_of(*events)
    assert spans(table) == [Span("a", "X", 0, 5), Span("b", "X", 1, 2), Span("c", "X", 2, 2)]


def test_pairs_that_cross_keep_their_own_ends_and_are_counted() -> None:
    table = table_of(event("B", 0, "a"), event("B", 1, "b"), event("E", 9, "a"), event("E", 10, "b"))
    assert spans(table) == [Span("a", "X", 0, 9), Span("b", "X", 1, 9)]
    assert fates(table) == (2, 0, 0, 1)


@pytest.mark.parametrize("second", [(0, 5, 9), (2, 5, 5), (2, 3, 5)], ids=["same begin", "same end", "inside"])
def test_spans_that_share_an_edge_do_not_cross(second: tuple[int, int, int]) -> None:
    begin, _, end = second
    other = [event("B", begin, "b"), event("E", 5, "a"), event("E", end, "b")]
    table = table_of(event("B", 0, "a"), *other)
    assert fates(table) == (2, 0, 0, 0)


def test_arguments_tell_pairs_of_one_name_apart() -> None:
    table = table_of(
        event("B", 0, "a", args={"x": 1}),
        event("B", 1, "a", args={"x": 2}),
        event("E", 9, "a", args={"x": 1}),
        event("E", 10, "a", args={"x": 2}),
    )
    assert spans(table) == [Span("a", "X", 0, 9), Span("a", "X", 1, 9)]
    assert fates(table) == (2, 0, 0, 1)


def test_an_end_with_other_arguments_closes_the_innermost_begin_of_its_name() -> None:
    table = table_of(event("B", 0, "a", args={"x": 1}), event("E", 10, "a", args={"result": 2}))
    assert spans(table) == [Span("a", "X", 0, 10)]


def test_an_end_of_another_name_closes_nothing_and_nothing_is_lost_silently() -> None:
    table = table_of(event("B", 0, "a"), event("E", 10, "b"))
    assert spans(table) == [Span("a", "B", 0, MISSING)]
    assert fates(table) == (0, 1, 1, 0)
    assert table.quality.sentences() == (
        "Begin events of the trace without an end: 1.",
        "End events of the trace without a begin, left out: 1.",
    )


def test_surplus_ends_do_not_disturb_the_pairs_around_them() -> None:
    table = table_of(event("B", 0, "a"), event("E", 5, "c"), event("E", 6), event("E", 7, "a"), event("E", 8))
    # the nameless end at 6 closes "a", so the ends after it have nothing left to close
    assert spans(table) == [Span("a", "X", 0, 6)]
    assert fates(table) == (1, 0, 3, 0)


def test_an_end_before_its_begin_in_time_belongs_to_no_pair() -> None:
    table = table_of(event("B", 30, "a"), event("E", 20, "a"))
    assert fates(table) == (0, 1, 1, 0)


def test_an_end_may_stand_before_its_begin_when_both_have_the_same_time() -> None:
    table = table_of(event("B", 0, "a"), event("E", 2, "c"), event("B", 2, "c"), event("E", 9, "a"))
    assert spans(table) == [Span("a", "X", 0, 9), Span("c", "X", 2, 0)]
    assert fates(table) == (2, 0, 0, 0)
    assert table.quality.zero_duration == 1


def test_at_one_time_an_end_closes_what_began_earlier() -> None:
    table = table_of(event("B", 0, "a"), event("E", 5, "a"), event("B", 5, "a"), event("E", 7, "a"))
    assert spans(table) == [Span("a", "X", 0, 5), Span("a", "X", 5, 2)]


def test_complete_events_of_the_thread_are_left_alone() -> None:
    table = table_of(event("B", 0, "a"), event("X", 1, "x", dur=20), event("E", 5, "a"))
    assert spans(table) == [Span("a", "X", 0, 5), Span("x", "X", 1, 20)]


def test_pairs_are_of_one_thread() -> None:
    table = table_of(event("B", 0, "a"), event("E", 5, "a", tid=3), event("E", 6, "a", pid=3))
    assert fates(table) == (0, 1, 2, 0)


def test_what_the_begin_lacks_is_taken_from_the_end() -> None:
    table = table_of(
        event("B", 0, "a", args={"External id": 4, "Input Dims": [[1]]}),
        event("E", 5, args={"External id": 9, "correlation": 7, "bytes": 64}, cat="cuda_runtime"),
    )
    assert (table.external_id.tolist(), table.correlation.tolist()) == ([4], [7])
    assert table.arg("bytes").tolist() == [64]
    assert table.dims_values[table.dims_code[0]] == "[[1]]"
    assert table.cat_values[table.cat_code[0]] == "cuda_runtime"
    assert "pair_args" not in table.args


def test_counter_values_stay_with_their_events() -> None:
    counters = [event("C", ts, "power", args={"W": ts}) for ts in (1, 8)]
    table = table_of(event("B", 0, "a"), event("E", 0, "z"), counters[0], event("E", 5, "a"), counters[1])
    assert table.counters is not None
    assert [table.name(row) for row in table.counters.row] == ["power", "power"]
    assert table.ts_ns[table.counters.row].tolist() == [1000, 8000]


def test_asynchronous_pairs_get_a_duration_and_keep_their_type() -> None:
    table = table_of(
        event("b", 0, "request", id="0x1", cat="io"),
        event("b", 1, "request", id="0x2", cat="io"),
        event("e", 5, "request", id="0x1", cat="io", tid=9),
        event("e", 9, "request", id="0x2", cat="io"),
        event("S", 3, "old", id=7),
        event("F", 4, "old", id=7),
    )
    assert spans(table) == [Span("request", "b", 0, 5), Span("request", "b", 1, 8), Span("old", "S", 3, 1)]
    assert fates(table) == (3, 0, 0, 0)


def test_asynchronous_pairs_of_one_id_stay_within_their_process_where_they_can() -> None:
    table = table_of(
        event("b", 0, "r", id=1, pid=1),
        event("b", 1, "r", id=1, pid=2),
        event("e", 5, "r", id=1, pid=1),
        event("e", 9, "r", id=1, pid=2),
        event("b", 2, "moves", id=2, pid=1),
        event("e", 3, "moves", id=2, pid=2),
    )
    assert sorted(spans(table)) == [Span("moves", "b", 2, 1), Span("r", "b", 0, 5), Span("r", "b", 1, 8)]


def test_an_asynchronous_event_without_an_id_stands_alone() -> None:
    table = table_of(event("b", 0, "r"), event("e", 5, "r"))
    assert fates(table) == (0, 1, 1, 0)


def test_a_trace_of_ends_alone_holds_no_events() -> None:
    with pytest.raises(UserError, match="End events of the trace without a begin, left out: 2"):
        table_of(event("E", 0, "a"), event("E", 1, "b"))


def test_deep_nesting_needs_no_deep_call_stack() -> None:
    depth = 20_000
    begins = [event("B", at, f"f{at % 7}") for at in range(depth)]
    # the last end stands alone, so that the track is not a plain nesting
    ends = [event("E", 2 * depth - at, f"f{at % 7}") for at in reversed(range(depth))]
    table = table_of(*begins, *ends, event("E", 3 * depth, "f0"))
    assert fates(table) == (depth, 0, 1, 0)
    assert int(table.dur_ns.max()) == 2 * depth * 1000


_steps = st.lists(
    st.tuples(st.sampled_from("BE"), st.integers(0, 2), st.sampled_from(["a", "b", None])), max_size=40
).map(lambda steps: [*steps, ("B", 0, "a")])


def _by_the_book(events: list[dict[str, Any]]) -> tuple[list[tuple[int, int]], int]:
    """Pairs and lone ends, found slowly: each end looks through the open begins from the innermost on."""
    order = sorted(range(len(events)), key=lambda at: events[at]["ts"])
    found: list[tuple[int, int]] = []
    open_begins: list[int] = []
    early: list[int] = []

    def close(at: int) -> bool:
        name = events[at].get("name")
        for begin in reversed(open_begins):
            if name is None or events[begin].get("name") == name:
                open_begins.remove(begin)
                found.append((begin, at))
                return True
        return False

    lone = 0
    for place, at in enumerate(order):
        if events[at]["ph"] == "B":
            open_begins.append(at)
        elif not close(at):
            early.append(at)
        if place + 1 == len(order) or events[order[place + 1]]["ts"] != events[at]["ts"]:
            lone += sum(not close(end) for end in early)
            early.clear()
    return found, lone


@given(_steps)
def test_pairs_are_those_that_a_search_through_all_open_begins_finds(steps: list[tuple[str, int, str | None]]) -> None:
    now = 0
    events = []
    for ph, wait, name in steps:
        now += wait
        events.append(event(ph, now, name if ph == "E" else name or "c"))
    table = table_of(*events)
    expected, lone = _by_the_book(events)
    found = {int(row): int(dur) // 1000 for row, dur in zip(table.row, table.dur_ns, strict=True) if dur != MISSING}
    assert found == {begin: events[end]["ts"] - events[begin]["ts"] for begin, end in expected}
    assert table.quality.unmatched_end == lone
    assert table.quality.events_kept == sum(ph == "B" for ph, _, _ in steps)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_crossings_are_counted_for_spans_that_begin_inside_another_and_end_after_it(
    pieces: list[tuple[int, int]],
) -> None:
    whole = [(begin, begin + length) for begin, length in pieces]
    events = [event("B", begin, str(at)) for at, (begin, _) in enumerate(whole)]
    events += [event("E", end, str(at)) for at, (_, end) in enumerate(whole)]
    table = table_of(*events)
    crossing = sum(any(b < begin < e < end for b, e in whole) for begin, end in whole)
    assert table.quality.crossed == crossing


def test_arguments_have_one_key_whether_numbers_are_quoted_or_not() -> None:
    assert pairs.arguments_key({"TS1": "5", "x": 1.5}) == pairs.arguments_key({"TS1": 5, "x": Decimal("1.50")})
    assert pairs.arguments_key({"TS1": 5}) != pairs.arguments_key({"TS1": 6})


def test_no_arguments_have_no_key() -> None:
    assert {pairs.arguments_key(none) for none in (None, {})} == {MISSING}
