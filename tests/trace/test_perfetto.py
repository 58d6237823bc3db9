"""Traces exported for Perfetto: nothing is lost, and nothing is drawn that Perfetto would drop."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto_json import assert_perfetto_takes

from spyreprof.trace.columns import ARG_COLUMNS
from spyreprof.trace.export import FIRST_NUMBER, OWN_CATEGORY, Mark, Part, export_trace
from spyreprof.trace.own_tracks import marks_of
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.roles import roles
from spyreprof.trace.steps import step_table
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]
BASE_NS = 1_790_857_026 * 10**9 + 123
PREFILL = "execute_context_1(128)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_3(3)"


TEXTS = {column.name for column in ARG_COLUMNS if column.kind == "text"}


def trace_bytes(events: list[Event], **fields: Any) -> bytes:
    return json.dumps({"baseTimeNanoseconds": BASE_NS, **fields, "traceEvents": events}).encode()


def table_of(events: list[Event], **fields: Any) -> EventTable:
    return read_bytes(trace_bytes(events, **fields), "t")


def exported(table: EventTable, marks: list[Mark] | None = None) -> bytes:
    pieces: list[bytes] = []
    export_trace([Part(lambda: table)], marks or [], pieces.append)
    return b"".join(pieces)


def contents(table: EventTable) -> list[tuple[Any, ...]]:
    """All that an event is, but its place in the file and the numbers of its process and thread."""
    rows = []
    for i in range(len(table)):
        cat = table.cat_values[table.cat_code[i]] if table.cat_code[i] != MISSING else None
        if cat == OWN_CATEGORY:
            continue
        args = {
            name: table.text(int(column[i])) if name in TEXTS else table.identity(int(column[i]))
            for name, column in table.args.items()
        }
        rows.append(
            (
                int(table.ts_ns[i]),
                int(table.dur_ns[i]),
                table.ph_values[table.ph_code[i]],
                table.name(i),
                cat,
                table.identity(int(table.correlation[i])),
                table.identity(int(table.external_id[i])),
                table.identity(int(table.flow_id[i])) if len(table.flow_id) else None,
                table.dims_values[table.dims_code[i]] if table.dims_code[i] != MISSING else None,
                table.types_values[table.types_code[i]] if table.types_code[i] != MISSING else None,
                tuple(sorted((k, v) for k, v in args.items() if v is not None)),
            )
        )
    return sorted(rows, key=repr)


def span(name: str, cat: str, ts: float, end: float, *, pid: Any = 10, tid: Any = 10, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": args}


def flow(ph: str, ts: float, pid: int, tid: int, number: int) -> Event:
    return {"ph": ph, "id": number, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g", "bp": "e"}


def serving() -> list[Event]:
    named = {"ph": "M", "pid": 0, "tid": 0, "ts": 0}
    return [
        {**named, "name": "process_name", "args": {"name": "python"}},
        {**named, "name": "process_labels", "args": {"labels": "GPU 0"}},
        {**named, "tid": 7, "name": "thread_name", "args": {"name": "stream 7"}},
        span(PREFILL, "user_annotation", 100, 200),
        span(DECODE, "user_annotation", 200, 250.001),
        span("aten::mm", "cpu_op", 110, 130, **{"Input Dims": [[2, 3], []], "Input type": ["float", ""]}),
        span("cudaLaunchKernel", "cuda_runtime", 120, 121, correlation=5),
        flow("s", 120, 10, 10, 5),
        span("gemm", "kernel", 125, 165, pid=0, tid=7, device=0, stream=7, correlation=5),
        flow("f", 125, 0, 7, 5),
        span("cudaLaunchKernel", "cuda_runtime", 210, 211, correlation=6),
        flow("s", 210, 10, 10, 6),
        span("gemv", "kernel", 215, 225, pid=0, tid=7, device=0, stream=7, correlation=6),
        flow("f", 215, 0, 7, 6),
        {"ph": "C", "name": "memory", "pid": 10, "tid": 10, "ts": 130, "args": {"used": 5, "free": 2.5}},
        {"ph": "i", "name": "a moment", "pid": 10, "tid": 10, "ts": 131.5, "s": "t", "args": {}},
        {"ph": "b", "cat": "async", "name": "task", "id": "0x1f", "pid": 10, "tid": 10, "ts": 105, "args": {}},
        {"ph": "e", "cat": "async", "name": "task", "id": "0x1f", "pid": 10, "tid": 10, "ts": 240, "args": {}},
    ]


def test_an_exported_trace_reads_back_as_it_was() -> None:
    table = table_of(serving())
    text = exported(table, marks_of(table))
    again = read_bytes(text, "again")
    assert contents(again) == contents(table)
    assert again.metadata.process_names.items() >= table.metadata.process_names.items()
    assert again.metadata.labels == table.metadata.labels
    assert again.metadata.thread_names.items() >= table.metadata.thread_names.items()
    counters, before = again.counters, table.counters
    assert counters is not None and before is not None
    assert sorted(counters.value.tolist()) == sorted(before.value.tolist())
    assert_perfetto_takes(text)


def test_steps_and_idle_gaps_are_tracks_of_our_own() -> None:
    table = table_of(serving())
    again = read_bytes(exported(table, marks_of(table)), "again")
    own = np.flatnonzero(again.has_category(OWN_CATEGORY))
    shown = [(again.name(i), int(again.ts_ns[i]) - BASE_NS, int(again.dur_ns[i])) for i in own.tolist()]
    assert shown == [("prefill", 100_000, 100_000), ("decode", 200_000, 50_001), ("idle", 165_000, 50_000)]
    assert "spyreprof" in again.metadata.process_names.values()
    assert {"engine steps", "device 0 idle"} <= set(again.metadata.thread_names.values())
    steps, before = step_table(again, roles(again)), step_table(table, roles(table))
    assert steps.works == before.works
    assert steps.start_ns.tolist() == before.start_ns.tolist() and steps.end_ns.tolist() == before.end_ns.tolist()


def test_where_device_work_is_missing_nobody_can_tell_when_a_device_was_idle() -> None:
    table = read_bytes(trace_bytes(serving())[:-20], "cut short")
    assert table.quality.truncated
    assert {mark.track for mark in marks_of(table)} == {"engine steps"}


def test_the_tokens_of_a_step_stand_in_its_arguments() -> None:
    table = table_of(serving())
    events = json.loads(exported(table, marks_of(table)))["traceEvents"]
    (prefill,) = [event for event in events if event["name"] == "prefill"]
    assert prefill["args"] == {
        "context_requests": 1,
        "context_tokens": 128,
        "generation_requests": 0,
        "generation_tokens": 0,
        "name": PREFILL,
        "row": 3,
    }


def test_times_begin_a_little_after_the_base_and_keep_each_nanosecond() -> None:
    table = table_of([span("a", "cpu_op", 0, 0.001), span("b", "cpu_op", 0.001, 0.003)])
    document = json.loads(exported(table))
    first, second = (event for event in document["traceEvents"] if event["ph"] == "X")
    assert (document["baseTimeNanoseconds"], first["ts"], second["ts"], second["dur"]) == (
        BASE_NS - 1000,
        1.0,
        1.001,
        0.002,
    )


def test_spans_that_cross_move_to_a_thread_of_the_same_name_and_take_their_flows_along() -> None:
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
        span("a", "cpu_op", 0, 10, pid=1, tid=2),
        span("b", "cpu_op", 5, 15, pid=1, tid=2),
        flow("s", 6, 1, 2, 1),
        span("c", "cpu_op", 6.5, 9, pid=1, tid=2),
        span("d", "cpu_op", 20, 30, pid=1, tid=2),
        flow("f", 20, 1, 2, 1),
    ]
    text = exported(table_of(events))
    assert_perfetto_takes(text)
    found = json.loads(text)["traceEvents"]
    threads = {e["args"]["name"]: e["tid"] for e in found if e["name"] == "thread_name"}
    assert threads == {"main": 2, "main (overlapping 2)": FIRST_NUMBER}
    places = {e["name"]: e["tid"] for e in found if e["ph"] == "X"}
    assert places == {"a": 2, "b": FIRST_NUMBER, "c": 2, "d": 2}
    assert [e["tid"] for e in found if e["ph"] in "sf"] == [FIRST_NUMBER, 2]
    assert contents(read_bytes(text, "again")) == contents(table_of(events))


def test_processes_and_threads_that_are_no_numbers_get_some_and_keep_their_names() -> None:
    events = [span("a", "cpu_op", 0, 1, pid="Spans", tid="PyTorch Profiler"), span("b", "cpu_op", 2, 3, tid=-1)]
    text = exported(table_of(events))
    assert_perfetto_takes(text)
    named = {(e["name"], e["args"].get("name")) for e in json.loads(text)["traceEvents"] if e["ph"] == "M"}
    assert {("process_name", "Spans"), ("thread_name", "PyTorch Profiler"), ("thread_name", "-1")} <= named


def test_two_sources_that_share_a_process_number_stay_apart() -> None:
    tables = [table_of([span("kernel", "kernel", 1, 2, pid=0, tid=7)]) for _ in range(2)]
    pieces: list[bytes] = []
    parts = [Part(lambda t=t: t, source=str(n), label=f"rank {n}") for n, t in enumerate(tables)]
    export_trace(parts, [], pieces.append)
    found = json.loads(b"".join(pieces))["traceEvents"]
    assert len({event["pid"] for event in found if event["ph"] == "X"}) == 2
    assert {e["args"]["name"] for e in found if e["name"] == "process_name"} == {"0 (rank 0)", "0 (rank 1)"}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"ph": "X", "name": "no end", "ts": 1, "pid": 1, "tid": 1}, "X"),
        ({"ph": "R", "name": "a mark", "ts": 1, "pid": 1, "tid": 1}, None),
        ({"ph": "?", "name": "who knows", "ts": 1, "pid": 1, "tid": 1}, "?"),
    ],
)
def test_what_perfetto_does_not_draw_becomes_an_instant(event: Event, kind: str | None) -> None:
    text = exported(table_of([event, span("a", "cpu_op", 0, 5, pid=1, tid=1)]))
    assert_perfetto_takes(text)
    (shown,) = [e for e in json.loads(text)["traceEvents"] if e["name"] == event["name"]]
    assert shown["ph"] == "i" and shown["args"].get("ph") == kind


def test_a_begun_event_that_never_ended_encloses_nothing() -> None:
    events = [
        {"ph": "B", "name": "begun", "ts": 0, "pid": 1, "tid": 1, "args": {}},
        span("a", "cpu_op", 1, 5, pid=1, tid=1),
    ]
    text = exported(table_of(events))
    assert_perfetto_takes(text)
    tids = {e["name"]: e["tid"] for e in json.loads(text)["traceEvents"] if e["ph"] in "BX"}
    assert tids["begun"] != tids["a"] == 1
    assert contents(read_bytes(text, "again")) == contents(table_of(events))


def test_names_cannot_reach_a_terminal_as_they_are() -> None:
    text = exported(table_of([span("\x1b[31mred\x7f\u202e", "c\x9bd", 0, 1, tid="\x1b]0;x")]))
    assert text.isascii() and not any(byte < 32 and byte != 10 for byte in text) and b"\x7f" not in text


def test_the_same_trace_gives_the_same_bytes() -> None:
    table = table_of(serving())
    assert exported(table, marks_of(table)) == exported(table_of(serving()), marks_of(table))


def test_stamps_gone_wild_are_kept_too() -> None:
    far = 9_200_000_000_000_000
    events = [span("a", "cpu_op", -far, -far + 1), span("b", "cpu_op", far, far + 1), span("c", "cpu_op", 5, 6)]
    table = table_of(events, baseTimeNanoseconds=0)
    again = read_bytes(exported(table), "again")
    assert contents(again) == contents(table)


TIMES = st.integers(0, 60)
EVENTS = st.one_of(
    st.builds(
        lambda name, at, length, pid, tid, number: {
            "ph": "X",
            "name": name,
            "cat": "cpu_op",
            "ts": at / 1000,
            "dur": length / 1000,
            "pid": pid,
            "tid": tid,
            "args": {"External id": number},
        },
        st.sampled_from(["a", "ü\n", ""]),
        TIMES,
        TIMES,
        st.sampled_from([0, 1, "Spans", -3]),
        st.sampled_from([1, 2, "t", 2**40]),
        st.one_of(st.integers(0, 2**70), st.text(max_size=3)),
    ),
    st.builds(
        lambda ph, at, number: {
            "ph": ph, "name": "n", "cat": "c", "id": number, "ts": at, "pid": 1, "tid": 1, "args": {},
        },
        st.sampled_from(["s", "f", "t", "b", "e", "n", "i", "B", "E"]),
        TIMES,
        st.sampled_from([1, 2, "x"]),
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(EVENTS, max_size=40))
def test_any_trace_reads_back_as_it_was_and_nests(events: list[Event]) -> None:
    events = [*events, span("last", "cpu_op", 1000, 1001)]
    table = table_of(events)
    text = exported(table)
    assert contents(read_bytes(text, "again")) == contents(table)
    assert_perfetto_takes(text, flows=False)
