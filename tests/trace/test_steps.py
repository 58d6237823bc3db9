"""Which steps a trace shows, and what belongs to each."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.trace.reader import read_bytes
from spyreprof.trace.relations import relate
from spyreprof.trace.roles import Role, roles
from spyreprof.trace.steps import StepTable, spans_in_steps, step_table, steps_of_device
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]
DECODE = "execute_context_0(0)_generation_3(3)"


def span(name: str, cat: str, ts: float, end: float, pid: Any = 10, tid: Any = 10, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": args}


def step(ts: float, end: float, name: str = DECODE, tid: int = 10, cat: str = "user_annotation") -> Event:
    return span(name, cat, ts, end, tid=tid)


def call(ts: float, correlation: int, tid: int = 10) -> Event:
    return span("cudaLaunchKernel", "cuda_runtime", ts, ts + 1, tid=tid, correlation=correlation)


def kernel(ts: float, correlation: int) -> Event:
    return span(f"k{correlation}", "kernel", ts, ts + 5, 0, 7, correlation=correlation)


def table_of(*events: Event) -> EventTable:
    return read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")


def steps_in(table: EventTable, **options: bool) -> StepTable:
    return step_table(table, roles(table), **options)


def microseconds(steps: StepTable) -> list[tuple[float, float]]:
    return [(a / 1000, b / 1000) for a, b in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)]


def by_device(*events: Event) -> dict[str, int]:
    table = table_of(*events)
    found = roles(table)
    rows = np.flatnonzero(found.device_work)
    steps = steps_of_device(table, relate(table, found), step_table(table, found), rows)
    return {table.name(row): number for row, number in zip(rows.tolist(), steps.tolist(), strict=True)}


def test_steps_that_an_engine_names_say_what_they_did() -> None:
    steps = steps_in(table_of(step(1, 5), step(6, 9, "step[EXTEND bs=2 toks=12]")))
    assert microseconds(steps) == [(1, 5), (6, 9)]
    assert [work.phase for work in steps.works if work] == ["decode", "prefill"]


def test_steps_of_a_profilers_schedule_count_only_where_no_engine_names_its_own() -> None:
    schedule = [step(1, 50, "ProfilerStep#1"), step(50, 90, "ProfilerStep#2")]
    assert microseconds(steps_in(table_of(*schedule))) == [(1, 50), (50, 90)]
    assert steps_in(table_of(*schedule)).works == (None, None)
    assert microseconds(steps_in(table_of(*schedule, step(10, 20)))) == [(10, 20)]
    assert len(steps_in(table_of(*schedule), profiler_steps=False)) == 0


def test_a_step_in_a_step_or_on_the_devices_track_is_no_further_step() -> None:
    table = table_of(step(1, 50), step(10, 20), step(5, 60, cat="gpu_user_annotation", tid=7), step(10, 20, tid=11))
    assert microseconds(steps_in(table)) == [(1, 50), (10, 20)]


def test_a_step_that_begins_a_little_before_its_predecessors_end_starts_there() -> None:
    steps = steps_in(table_of(step(1, 5000), step(4990, 9000), step(9000, 9500)))
    assert microseconds(steps) == [(1, 5000), (5000, 9000), (9000, 9500)]
    assert steps.clipped == 1


def test_a_step_that_crosses_another_by_milliseconds_is_left_out() -> None:
    assert microseconds(steps_in(table_of(step(1, 5000), step(3000, 9000)))) == [(1, 5000)]


def test_operators_are_cut_to_the_steps_in_which_they_begin_and_end() -> None:
    table = table_of(
        step(100, 200),
        step(200, 300),
        span("before", "cpu_op", 10, 100),
        span("into", "cpu_op", 90, 110),
        span("within", "cpu_op", 120, 130),
        span("both", "cpu_op", 190, 210),
        span("out", "cpu_op", 290, 400),
        span("around", "cpu_op", 0, 1000),
        span("elsewhere", "cpu_op", 120, 130, tid=11),
    )
    found = roles(table)
    spans = spans_in_steps(table, step_table(table, found), np.flatnonzero(found.has(Role.HOST_OP)))
    named = [
        (int(number), table.name(int(row)), start / 1000, end / 1000)
        for number, row, start, end in zip(spans.step, spans.row, spans.start_ns, spans.end_ns, strict=True)
    ]
    assert named == [
        (0, "into", 100, 110),
        (0, "within", 120, 130),
        (0, "both", 190, 200),
        (1, "both", 200, 210),
        (1, "out", 290, 300),
    ]


def test_device_work_belongs_to_the_step_that_launched_it_however_late_it_runs() -> None:
    assert by_device(step(100, 200), step(200, 300), call(150, 1), call(250, 2), kernel(190, 1), kernel(900, 2)) == {
        "k1": 0,
        "k2": 1,
    }


def test_device_work_without_a_launch_belongs_to_the_step_in_which_it_begins() -> None:
    assert by_device(step(100, 200), kernel(150, 1), kernel(200, 2)) == {"k1": 0, "k2": MISSING}


def test_a_launch_between_the_steps_of_its_thread_belongs_to_none() -> None:
    events = [step(100, 200), step(300, 400), step(100, 400, tid=11), call(250, 1), kernel(260, 1)]
    assert by_device(*events) == {"k1": MISSING}


def test_a_launch_of_another_thread_belongs_to_the_only_step_at_the_time() -> None:
    # a long step of one thread around a short one of another
    events = [step(100, 400), step(150, 200, tid=11), call(300, 1, tid=12), kernel(310, 1)]
    assert by_device(*events) == {"k1": 0}
    events += [call(160, 2, tid=12), kernel(170, 2)]
    assert by_device(*events) == {"k1": 0, "k2": MISSING}


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=6),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90)), max_size=12),
)
def test_operators_meet_steps_as_when_each_pair_is_compared(gaps: Any, operators: Any) -> None:
    now, windows = 0, []
    for pause, length in gaps:
        windows.append((now + pause, now + pause + length))
        now += pause + length
    table = table_of(
        step(0, 1, tid=99), *(step(a, b) for a, b in windows), *(span("op", "cpu_op", a, a + d) for a, d in operators)
    )
    found = roles(table)
    steps = step_table(table, found)
    spans = spans_in_steps(table, steps, np.flatnonzero(found.has(Role.HOST_OP)))
    got = sorted(
        (int(steps.start_ns[n]), int(table.ts_ns[row]), int(table.dur_ns[row]))
        for n, row in zip(spans.step, spans.row, strict=True)
    )
    assert got == sorted(
        (begin * 1000, a * 1000, d * 1000)
        for a, d in operators
        for begin, end in windows
        if begin <= a < end or (a < begin < a + d < end)
    )
