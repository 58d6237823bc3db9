"""Several ranks in one file: ids that repeat are told apart by process, where the trace tells whose a device is."""

from __future__ import annotations

import json
from typing import Any

from spyreprof.trace.reader import read_bytes
from spyreprof.trace.relations import Relations, relate
from spyreprof.trace.roles import roles
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]
LAUNCHES = 40


def rank(host: int, device: int, shift_us: float, *, first: int = 1, call: str = "cudaLaunchKernel") -> list[Event]:
    """A rank whose kernels begin 5 us after their launch."""
    events: list[Event] = []
    for number in range(first, first + LAUNCHES):
        at, args = shift_us + 5000 * number, {"correlation": number}
        events += [
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": call,
                "pid": host,
                "tid": host,
                "ts": at,
                "dur": 3,
                "args": args,
            },
            {"ph": "X", "cat": "kernel", "name": f"k{host}", "pid": device, "tid": 7, "ts": at + 5, "dur": 9}
            | {"args": {"device": device, "stream": 7, **args}},
        ]
    return events


def related(events: list[Event]) -> tuple[EventTable, Relations]:
    table = read_bytes(json.dumps({"traceEvents": events}).encode(), "t")
    return table, relate(table, roles(table))


def processes(table: EventTable, found: Relations) -> set[tuple[str, Any]]:
    """Names of linked kernels, which tell their host, and the process that they were linked to."""
    return {
        (table.name(row), table.pid_values[table.pid_code[launch]])
        for row, launch in enumerate(found.launch.tolist())
        if launch != MISSING
    }


def test_ranks_that_share_all_ids_are_told_apart_where_only_one_process_can_have_launched_the_work() -> None:
    # the second rank is late: the first one's kernels begin before its launches
    table, found = related([*rank(100, 0, 0), *rank(200, 1, 60_000)])
    # and what the first rank launched is taken, so that the other device is the second one's
    assert processes(table, found) == {("k100", 100), ("k200", 200)}
    assert (found.linked_by_correlation, found.ambiguous) == (2 * LAUNCHES, 0)


def test_ranks_at_the_same_time_whose_ids_are_all_alike_are_not_guessed() -> None:
    table, found = related([*rank(100, 0, 0), *rank(200, 1, 1)])
    assert processes(table, found) == set()
    assert (found.ambiguous, found.unlinked) == (2 * LAUNCHES, 0)


def test_two_devices_that_one_process_alone_can_have_driven_with_the_same_calls_are_not_guessed() -> None:
    lone = [event for event in rank(300, 2, 120_000) if event["cat"] == "cuda_runtime"]
    table, found = related([*rank(100, 0, 0), *(e for e in rank(200, 1, 1) if e["cat"] == "kernel"), *lone])
    assert processes(table, found) == set()
    assert found.ambiguous == 2 * LAUNCHES


def test_links_without_doubt_tell_whose_device_it_is() -> None:
    table, found = related([*rank(100, 0, 0), *rank(200, 1, 1, first=21)])
    assert processes(table, found) == {("k100", 100), ("k200", 200)}
    assert (found.linked_by_correlation, found.ambiguous) == (2 * LAUNCHES, 0)


def test_a_work_in_the_process_of_its_launch_needs_nothing_else() -> None:
    table, found = related([*rank(100, 100, 0), *rank(200, 200, 1)])
    assert processes(table, found) == {("k100", 100), ("k200", 200)}
    assert found.ambiguous == 0


def test_two_ranks_whose_devices_stand_in_one_process_are_not_taken_for_one() -> None:
    table, found = related([*rank(100, 0, 0), *rank(200, 0, 1, first=21)])
    wrong = {("k100", 200), ("k200", 100)}
    assert not processes(table, found) & wrong
    assert found.ambiguous == LAUNCHES


def test_a_graph_s_many_kernels_do_not_speak_against_its_process() -> None:
    second = rank(200, 1, 1, first=21, call="cudaGraphLaunch")
    twice = [event | {"ts": event["ts"] + 20} for event in second if event["cat"] == "kernel"]
    table, found = related([*rank(100, 0, 0), *second, *twice])
    assert processes(table, found) == {("k100", 100), ("k200", 200)}
    assert found.ambiguous == 0
