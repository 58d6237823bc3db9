"""Device work, the call that launched it, and the operator around that call."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from spyreprof.trace.joins import Lookup
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.relations import Relations, relate
from spyreprof.trace.roles import roles
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]


def span(name: str, cat: str, ts: float, dur: float, pid: Any = 10, tid: Any = 10, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: float, dur: float, external: int | None = None, **place: Any) -> Event:
    return span(name, "cpu_op", ts, dur, **place, **({} if external is None else {"External id": external}))


def launch(ts: float, correlation: int | None, name: str = "cudaLaunchKernel", **place: Any) -> Event:
    args = {} if correlation is None else {"correlation": correlation}
    return span(name, "cuda_runtime", ts, 3, **place, **args)


def kernel(name: str, ts: float, correlation: int | None = None, external: int | None = None, dur: float = 5) -> Event:
    args = {} if correlation is None else {"correlation": correlation}
    args |= {} if external is None else {"External id": external}
    return span(name, "kernel", ts, dur, 0, 7, device=0, stream=7, **args)


def arrow(flow: int, begin: float | None, end: float | None, cat: str = "ac2g") -> list[Event]:
    both = []
    if begin is not None:
        both.append({"ph": "s", "cat": cat, "name": cat, "id": flow, "pid": 10, "tid": 10, "ts": begin})
    if end is not None:
        both.append({"ph": "f", "bp": "e", "cat": cat, "name": cat, "id": flow, "pid": 0, "tid": 7, "ts": end})
    return both


def related(*events: Event) -> tuple[EventTable, Relations]:
    table = read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")
    return table, relate(table, roles(table))


def links(table: EventTable, column: np.ndarray) -> dict[str, tuple[str, float] | None]:
    """By the name of each linked row: the name and start in µs of the row it is linked to."""
    base = int(table.ts_ns.min())
    return {
        table.name(row): (table.name(to), (int(table.ts_ns[to]) - base) / 1000)
        for row, to in enumerate(column.tolist())
        if to != MISSING
    }


def test_a_kernel_is_linked_by_its_arrow() -> None:
    table, found = related(launch(0, None), launch(10, None), kernel("k", 20), *arrow(5, 10, 20))
    assert links(table, found.launch) == {"k": ("cudaLaunchKernel", 10.0)}
    assert (found.linked_by_flow, found.linked_by_correlation, found.unmatched_launches) == (1, 0, 1)


def test_an_arrow_begins_in_the_innermost_call_around_it() -> None:
    table, found = related(
        span("hipLaunchKernel", "cuda_runtime", 0, 20),
        span("hipModuleLaunchKernel", "cuda_runtime", 5, 3),
        kernel("k", 30),
        *arrow(5, 6, 30),
    )
    assert links(table, found.launch) == {"k": ("hipModuleLaunchKernel", 5.0)}


def test_without_the_begin_of_its_arrow_a_kernel_is_linked_by_correlation() -> None:
    table, found = related(launch(0, 1), kernel("k0", 10, 1), kernel("k1", 30, 2), *arrow(1, None, 10))
    assert links(table, found.launch) == {"k0": ("cudaLaunchKernel", 0.0)}
    assert (found.linked_by_flow, found.linked_by_correlation) == (0, 1)
    assert (found.unlinked, found.ambiguous) == (1, 0)


def test_an_arrow_with_two_begins_is_not_guessed() -> None:
    table, found = related(launch(0, None), launch(10, None), kernel("k", 20), *arrow(5, 0, 20), *arrow(5, 10, None))
    assert links(table, found.launch) == {}
    assert (found.ambiguous, found.unlinked, found.ambiguous_ids) == (1, 0, 1)


def test_a_correlation_id_of_two_launches_is_not_guessed() -> None:
    """As in two ranks' files merged into one."""
    table, found = related(
        launch(0, 1), launch(0, 1, pid=20, tid=20), kernel("k", 20, 1), launch(4, 2), kernel("k2", 40, 2)
    )
    assert links(table, found.launch) == {"k2": ("cudaLaunchKernel", 4.0)}
    assert (found.ambiguous, found.ambiguous_ids) == (1, 1)


def test_two_kernels_at_the_time_of_one_arrow_are_told_apart_by_correlation() -> None:
    table, found = related(
        launch(0, 1), launch(10, 2), kernel("k1", 20, 1), kernel("k2", 20, 2), *arrow(1, 0, 20), *arrow(2, 10, 20)
    )
    assert links(table, found.launch) == {"k1": ("cudaLaunchKernel", 0.0), "k2": ("cudaLaunchKernel", 10.0)}


def test_a_graph_launch_has_many_kernels() -> None:
    table, found = related(
        launch(0, 9, "cudaGraphLaunch"), *(kernel(f"k{n}", 20 + 10 * n, 9) for n in range(5)), launch(80, 10)
    )
    assert set(links(table, found.launch).values()) == {("cudaGraphLaunch", 0.0)}
    assert (found.linked_by_correlation, found.unmatched_launches, found.ambiguous_ids) == (5, 1, 0)


def test_correlation_0_is_an_id_as_any_other() -> None:
    _, found = related(launch(0, 0), kernel("k", 20, 0))
    assert found.linked_by_correlation == 1


def test_a_wait_of_the_device_is_not_counted_as_unlinked_work() -> None:
    _, found = related(launch(0, 1), kernel("k", 20, 1), span("Stream Sync", "cuda_sync", 30, 4, 0, 7, stream=7))
    assert (found.linked_by_correlation, found.unlinked) == (1, 0)


def test_the_operator_is_the_one_of_the_external_id() -> None:
    table, found = related(
        op("aten::linear", 0, 50, 3), op("aten::addmm", 5, 30, 4), launch(10, 1), kernel("k", 60, 1, external=4)
    )
    assert links(table, found.operator) == {"k": ("aten::addmm", 5.0)}
    assert (found.operators_by_id, found.operators_by_time) == (1, 0)


def test_without_an_external_id_the_operator_is_the_innermost_around_the_launch() -> None:
    table, found = related(
        op("aten::linear", 0, 50),
        op("aten::addmm", 5, 30),
        op("elsewhere", 5, 30, tid=11),
        launch(10, 1),
        kernel("k", 60, 1),
    )
    assert links(table, found.operator) == {"k": ("aten::addmm", 5.0)}
    assert found.operators_by_time == 1


def test_an_external_id_of_two_operators_is_not_guessed_but_placed_by_time() -> None:
    table, found = related(op("a", 0, 50, 3), op("b", 100, 50, 3), launch(110, 1), kernel("k", 160, 1, external=3))
    assert links(table, found.operator) == {"k": ("b", 100.0)}


def test_a_launch_under_the_thread_that_wrote_the_records_belongs_to_the_only_thread_with_operators() -> None:
    place = {"tid": 99}
    calls = [
        span("aiuLaunchControlBlocks", "privateuse1_runtime", 10, 3, **place, correlation=1),
        kernel("sdsc_fused_mm_0", 60, 1),
    ]
    table, found = related(op("aten::mm", 0, 50), *calls)
    assert links(table, found.operator) == {"sdsc_fused_mm_0": ("aten::mm", 0.0)}
    table, found = related(op("aten::mm", 0, 50), op("aten::mul", 0, 50, tid=11), *calls)
    assert links(table, found.operator) == {}
    # other devices' calls stand where they were made
    table, found = related(op("aten::mm", 0, 50), launch(10, 1, tid=99), kernel("k", 60, 1))
    assert links(table, found.operator) == {}


def test_ascend_work_is_linked_by_its_two_kinds_of_arrows() -> None:
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
        for pid, name in ((20, "CANN"), (0, "Ascend Hardware"))
    ]
    call = span("Node@launch", "", 12, 5, 20, 10)
    work = span("aclnnMm_MatMul", "", 30, 5, 0, 7)
    for event in (call, work):
        del event["cat"]
    down = arrow(1, 14, 30, "HostToDevice")
    down[0]["pid"] = 20
    table, found = related(*names, op("aten::mm", 10, 9), call, work, *down, *arrow(2, 10, 30, "async_npu"))
    assert links(table, found.launch) == {"aclnnMm_MatMul": ("Node@launch", 2.0)}
    assert links(table, found.operator) == {"aclnnMm_MatMul": ("aten::mm", 0.0)}


ids = st.one_of(st.integers(-1, 12), st.integers(-(2**62) - 3, 2**63 - 1))


@example([2**63 - 2, 2**63 - 1], [2**63 - 1, -(2**63)])
@given(st.lists(ids, max_size=30), st.lists(ids, max_size=10))
def test_rows_are_found_by_id(known: list[int], wanted: list[int]) -> None:
    rows = np.arange(100, 100 + len(known))
    found, count = Lookup(np.asarray(known, np.int64), rows).find(np.asarray(wanted, np.int64))
    for asked, row, n in zip(wanted, found.tolist(), count.tolist(), strict=True):
        places = [100 + i for i, value in enumerate(known) if value == asked != MISSING]
        assert (row, n) == (places[0] if places else MISSING, len(places))
