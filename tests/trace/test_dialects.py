"""Traces as different tools of different ages spell them: times, ids, counters, and what stands beside the events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spyreprof.trace.reader import read_bytes
from spyreprof.trace.table import MISSING, EventTable

EPOCH_US = 1_704_161_511_420_306


def table_of(events: list[dict[str, Any]], **fields: Any) -> EventTable:
    content = {**fields, "traceEvents": events} if fields else events
    return read_bytes(json.dumps(content).encode(), "test.json")


def complete(name: str, ts: Any, dur: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, **fields}


def names(table: EventTable) -> list[str]:
    return [table.name(at) for at in range(len(table))]


# ---- Ascend: absolute microseconds as text


def test_times_as_text_keep_every_digit() -> None:
    table = table_of([complete("a", f"{EPOCH_US}.491", "13.080"), complete("b", f"{EPOCH_US}.492", 4.0)])
    assert table.ts_ns.tolist() == [EPOCH_US * 1000 + 491, EPOCH_US * 1000 + 492]
    assert table.dur_ns.tolist() == [13_080, 4_000]


def test_neighbours_one_nanosecond_apart_keep_their_order() -> None:
    # as doubles, these times would all be one of two multiples of 0.25 µs
    stamps = [f"{EPOCH_US}.{nanosecond:03d}" for nanosecond in range(1, 200)]
    table = table_of([complete(str(at), stamp, "0.001") for at, stamp in reversed(list(enumerate(stamps)))])
    assert names(table) == [str(at) for at in range(len(stamps))]
    assert set(table.ts_ns[1:] - table.ts_ns[:-1]) == {1}


def test_text_without_a_fraction_and_text_with_blanks_are_times_too() -> None:
    table = table_of([complete("a", "1704161511420306"), complete("b", " 1704161511420307.5 ")])
    assert (table.ts_ns - EPOCH_US * 1000).tolist() == [0, 1_500]


@pytest.mark.parametrize("stamp", ["", "soon", "1e400", "nan", "1704161511420306.4.9", "0x10"])
def test_text_that_is_no_time_costs_only_its_event(stamp: str) -> None:
    table = table_of([complete("a", stamp), complete("b", "5")])
    assert names(table) == ["b"]
    assert sum(table.quality.dropped.values()) == 1


# ---- Kineto of all ages


def test_integer_microseconds_since_the_epoch_are_exact() -> None:
    table = table_of([complete("a", EPOCH_US, 21), complete("b", EPOCH_US + 66, 5)], schemaVersion=1)
    assert table.ts_ns.tolist() == [EPOCH_US * 1000, (EPOCH_US + 66) * 1000]
    assert table.dur_ns.tolist() == [21_000, 5_000]


def test_fractions_of_microseconds_since_the_epoch_are_exact() -> None:
    text = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a", "ts": %d.%s, "dur": 0.257}]}'
    for nanoseconds in ("001", "249", "999"):
        table = read_bytes((text % (EPOCH_US, nanoseconds)).encode(), "test.json")
        assert table.ts_ns.tolist() == [EPOCH_US * 1000 + int(nanoseconds)]
        assert table.dur_ns.tolist() == [257]


@pytest.mark.parametrize("at_the_end", [False, True], ids=["before the events", "behind the events"])
def test_the_base_time_counts_wherever_it_stands(at_the_end: bool) -> None:
    base = {"baseTimeNanoseconds": 1_700_000_000_000_000_000}
    events = {"traceEvents": [complete("a", 5_200_000_000.125)]}
    content = {"schemaVersion": 1, **events, "traceName": "x", **base} if at_the_end else {**base, **events}
    table = read_bytes(json.dumps(content).encode(), "test.json")
    assert table.ts_ns.tolist() == [1_700_000_000_000_000_000 + 5_200_000_000_125]
    assert table.metadata.base_time_ns == base["baseTimeNanoseconds"]


def test_processes_and_threads_named_by_texts_and_numbers_are_told_apart() -> None:
    table = table_of(
        [
            complete("a", 1, pid=7, tid="7"),
            complete("b", 1, pid=7, tid=7),
            complete("c", 1, pid="Traces", tid="PyTorch Profiler"),
            complete("d", 1, pid="", tid=""),
        ]
    )
    assert len(set(table.tracks())) == 4
    assert {"Traces", "", 7} == set(table.pid_values)


def test_lower_case_external_ids_of_the_first_kineto_are_read() -> None:
    table = table_of([complete("aten::mm", 1, cat="Operator", args={"external id": 4, "Device": 1})])
    assert table.external_id.tolist() == [4]


# ---- counters


def test_each_number_of_a_counter_event_is_a_series() -> None:
    counter = {"ph": "C", "name": "GPU 0 Utilization", "pid": 0}
    table = table_of(
        [
            {**counter, "ts": 5, "args": {"busy": 0.6, "copies": 2}},
            {**counter, "ts": 1, "args": {"busy": 0, "note": "cold"}},
            complete("k", 3),
        ]
    )
    assert table.counters is not None
    found = [
        (int(table.ts_ns[row]) // 1000, table.counters.series_values[series], value)
        for row, series, value in zip(table.counters.row, table.counters.series_code, table.counters.value, strict=True)
    ]
    assert sorted(found) == [(1, "busy", 0.0), (5, "busy", 0.6), (5, "copies", 2.0)]


def test_counter_values_that_are_no_numbers_are_missing_and_not_zero() -> None:
    text = (
        '[{"ph": "C", "name": "c", "pid": 0, "ts": "1", "args": {"a": nan, "b": 4}}, '
        '{"ph": "X", "name": "k", "pid": 0, "ts": 2, "dur": 1}]'
    )
    table = read_bytes(text.encode(), "test.json")
    values = table.counters.value.tolist() if table.counters is not None else []
    # a bare nan is no JSON: it costs its value, or its event
    assert values in ([4.0], [])
    assert "k" in names(table)


# ---- plain Chrome traces


def test_instants_flows_and_unknown_types_are_kept_beside_spans() -> None:
    table = table_of(
        [
            complete("x", 1),
            {"ph": "i", "name": "mark", "s": "g", "pid": 1, "tid": 2, "ts": 2},
            {"ph": "I", "name": "old mark", "pid": 1, "tid": 2, "ts": 2.5},
            {"ph": "s", "name": "go", "cat": "ac2g", "id": 9, "pid": 1, "tid": 2, "ts": 3},
            {"ph": "f", "name": "go", "cat": "ac2g", "id": 9, "pid": 1, "tid": 2, "ts": 4, "bp": "e"},
            {"ph": "?", "name": "odd", "pid": 1, "tid": 2, "ts": 5},
        ]
    )
    assert names(table) == ["x", "mark", "old mark", "go", "go", "odd"]
    assert table.dur_ns.tolist() == [1_000] + [MISSING] * 5
    assert table.flow_id[3:5].tolist() == [9, 9]
    assert table.quality.unknown_phases == {"?": 1}


def test_a_span_with_thread_time_alone_has_no_duration() -> None:
    table = table_of([{"ph": "X", "name": "x", "pid": 1, "tid": 1, "ts": 7, "tdur": 4}])
    assert table.dur_ns.tolist() == [MISSING]
    assert table.quality.missing_duration == 1


@pytest.mark.parametrize("end", ["", ",", "]", "\n\n  "])
def test_the_list_form_may_lack_its_end(end: str) -> None:
    text = "[" + ",".join(json.dumps(complete(str(at), at)) for at in range(3)) + end
    table = read_bytes(text.encode(), "test.json")
    assert len(table) == 3
    assert not table.quality.truncated


def test_processes_and_threads_keep_their_names() -> None:
    metadata = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "engine"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 2, "args": {"name": "other"}},
    ]
    table = table_of([*metadata, complete("x", 1)])
    assert table.metadata.process_names == {1: "engine"}
    assert table.metadata.thread_names == {(1, 2): "main", (2, 2): "other"}
    assert table.quality.metadata_events == 3
