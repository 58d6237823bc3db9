"""Operators that came back to the CPU, by the shape they leave in a trace."""

from __future__ import annotations

import json
from typing import Any

from spyreprof.trace.fallbacks import BY_SAME_OPERATOR, BY_TO_CPU, Fallbacks, RoundTrips, fallbacks
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.relations import relate
from spyreprof.trace.roles import roles
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]


def op(name: str, ts: float, end: float, tid: int = 10) -> Event:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 10, "tid": tid, "ts": ts, "dur": end - ts}


def moved(kind: str, call: float, ts: float, correlation: int, size: int | None = 64, tid: int = 10) -> list[Event]:
    """A copy on the device and the call that asked for it."""
    args = {"device": 0, "correlation": correlation} | ({} if size is None else {"bytes": size})
    return [
        ran(f"aiuDataTransfer{kind}", call, correlation, tid),
        {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy ({kind})", "pid": 0, "tid": 100, "ts": ts, "dur": 2}
        | {"args": args},
    ]


def ran(name: str, ts: float, correlation: int, tid: int = 10) -> Event:
    event = {"ph": "X", "cat": "privateuse1_runtime", "name": name, "pid": 10, "tid": tid, "ts": ts, "dur": 1}
    return event | {"args": {"correlation": correlation}}


def kernel(call: float, ts: float, correlation: int) -> list[Event]:
    args = {"device": 0, "correlation": correlation}
    work = {"ph": "X", "cat": "kernel", "name": "sdsc_fused_mm_0", "pid": 0, "tid": 1, "ts": ts, "dur": 2, "args": args}
    return [ran("aiuLaunchControlBlocks", call, correlation), work]


def found_in(*events: Event) -> tuple[EventTable, Fallbacks, RoundTrips]:
    table = read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")
    found = roles(table)
    both = fallbacks(table, found, relate(table, found))
    assert both is not None
    return table, *both


SAME_OPERATOR = [
    op("aten::argmax", 100, 200),
    op("aten::to", 105, 130),
    *moved("DtoH", 110, 112, 1),
    op("aten::argmax", 140, 160),
    op("aten::to", 165, 190),
    *moved("HtoD", 170, 172, 2, 8),
]


def test_an_operator_called_again_between_two_copies_fell_back() -> None:
    table, found, trips = found_in(*SAME_OPERATOR)
    assert [table.name(row) for row in found.row.tolist()] == ["aten::argmax"]
    assert found.basis.tolist() == [BY_SAME_OPERATOR]
    assert (found.host_ns.tolist(), found.copies.tolist()) == ([100_000], [2])
    assert (found.copy_ns.tolist(), found.copy_bytes.tolist()) == ([4_000], [72])
    assert [table.name(row) for row in trips.operator.tolist()] == ["aten::argmax"]
    assert (trips.ns.tolist(), trips.in_fallback.tolist()) == ([62_000], [True])


def test_the_fallback_of_pytorch_itself_is_known_by_its_copy_operator() -> None:
    table, found, _ = found_in(
        op("aten::cumsum", 100, 200),
        op("aten::_to_cpu", 105, 130),
        *moved("DtoH", 110, 112, 1, None),
        op("aten::_copy_from_and_resize", 165, 190),
        *moved("HtoD", 170, 172, 2, None),
    )
    assert [table.name(row) for row in found.row.tolist()] == ["aten::cumsum"]
    assert found.basis.tolist() == [BY_TO_CPU]
    assert found.copy_bytes.tolist() == [MISSING]


def test_an_operator_that_launched_a_kernel_ran_on_the_device() -> None:
    _, found, trips = found_in(*SAME_OPERATOR, *kernel(150, 152, 3))
    assert len(found.row) == 0
    assert len(trips.operator) == 0


def test_a_nested_call_of_the_same_name_without_copies_is_no_fallback() -> None:
    _, found, _ = found_in(
        op("aten::sum", 100, 200), op("aten::sum", 110, 190), op("aten::mm", 300, 400), *kernel(310, 312, 1)
    )
    assert len(found.row) == 0


def test_of_fallbacks_inside_each_other_the_outermost_counts() -> None:
    table, found, _ = found_in(
        op("aten::sort", 50, 300), op("aten::sort", 60, 290), *SAME_OPERATOR, *moved("DtoH", 280, 282, 9)
    )
    assert [(table.name(row), dur) for row, dur in zip(found.row.tolist(), found.host_ns.tolist(), strict=True)] == [
        ("aten::sort", 250_000)
    ]
    assert found.copies.tolist() == [3]


def test_a_round_trip_that_the_program_wrote_itself_is_one_and_names_the_operator() -> None:
    table, found, trips = found_in(
        op("aten::to", 105, 130),
        *moved("DtoH", 110, 112, 1),
        op("aten::view", 131, 132),
        op("aten::topk", 140, 160),
        op("aten::to", 165, 190),
        *moved("HtoD", 170, 172, 2),
    )
    assert len(found.row) == 0
    assert [table.name(row) for row in trips.operator.tolist()] == ["aten::topk"]
    assert [table.name(row) for row in trips.to_host.tolist()] == ["Memcpy (DtoH)"]
    assert [table.name(row) for row in trips.to_device.tolist()] == ["Memcpy (HtoD)"]
    assert trips.in_fallback.tolist() == [False]


def test_copies_with_a_kernel_between_or_nothing_to_compute_are_no_round_trip() -> None:
    out_and_in = [op("aten::to", 105, 130), *moved("DtoH", 110, 112, 1), op("aten::to", 165, 190)]
    out_and_in += moved("HtoD", 170, 172, 2)
    assert len(found_in(*out_and_in)[2].operator) == 0
    assert len(found_in(*out_and_in, op("aten::mm", 140, 160), *kernel(145, 150, 3))[2].operator) == 0


def test_copies_of_two_threads_are_no_round_trip() -> None:
    _, _, trips = found_in(
        op("aten::to", 105, 130),
        *moved("DtoH", 110, 112, 1),
        op("aten::topk", 140, 160),
        op("aten::to", 165, 190, tid=11),
        *moved("HtoD", 170, 172, 2, tid=11),
    )
    assert len(trips.operator) == 0


def test_without_a_privateuse1_device_or_its_work_nothing_can_be_said() -> None:
    for events in (
        [op("aten::argmax", 100, 200)],
        [op("aten::argmax", 100, 200), ran("aiuMalloc", 100, 1)],
    ):
        table = read_bytes(json.dumps({"traceEvents": events}).encode(), "t")
        found = roles(table)
        assert fallbacks(table, found, relate(table, found)) is None
