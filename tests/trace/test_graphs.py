"""Launches of recorded graphs and what the trace shows of them."""

from __future__ import annotations

import json
from typing import Any

from builders import decode_name

from spyreprof.trace.graphs import GraphLaunches, graph_launches
from spyreprof.trace.profiled import profiled_steps
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.relations import relate
from spyreprof.trace.roles import roles


def launch(ts: float, correlation: int, name: str = "cudaGraphLaunch") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": 10,
        "tid": 10,
        "ts": ts,
        "dur": 5,
        "args": {"correlation": correlation},
    }


def kernel(ts: float, correlation: int, dur: float = 3) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": correlation, "graph node id": 4}
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def found_in(*events: dict[str, Any]) -> GraphLaunches:
    table = read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")
    found = roles(table)
    return graph_launches(table, found, relate(table, found))


def test_kernels_are_counted_by_the_launch_of_their_graph() -> None:
    found = found_in(
        launch(0, 1),
        launch(10, 2, "hipGraphLaunch"),
        launch(20, 3, "cudaLaunchKernel"),
        *(kernel(100 + 10 * n, 1) for n in range(4)),
        kernel(200, 2),
        kernel(300, 3),
    )
    assert found.pieces.tolist() == [4, 1]
    assert found.device_ns.tolist() == [12_000, 3_000]
    assert found.coverage_ratio == 1.0


def test_launches_of_which_no_kernel_was_recorded_lower_the_coverage() -> None:
    found = found_in(launch(0, 1), launch(10, 2), launch(20, 3), launch(30, 4), kernel(100, 2))
    assert (found.recorded, found.coverage_ratio) == (1, 0.25)
    assert found.pieces.tolist() == [0, 1, 0, 0]


def test_without_graphs_there_is_no_coverage() -> None:
    found = found_in(launch(0, 1, "cudaLaunchKernel"), kernel(10, 1))
    assert (len(found.row), found.coverage_ratio) == (0, None)


def without_work(*events: dict[str, Any]) -> list[int]:
    """Of two steps, each of 100 us, how many launches of graphs left no device work."""
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": decode_name(), "pid": 10, "tid": 10, "ts": ts, "dur": 100}
        for ts in (0, 200)
    ]
    table = read_bytes(json.dumps({"traceEvents": [*steps, *events]}).encode(), "t")
    return [step.graphs_without_work for step in profiled_steps(table, 0, 1, device_kind="cuda")]


def test_a_step_tells_which_of_its_graphs_the_profiler_lost() -> None:
    launches = [launch(10, 1), launch(20, 2), launch(210, 3), launch(220, 4)]
    assert without_work(*launches, kernel(30, 1), kernel(40, 2), kernel(230, 3)) == [0, 1]
    assert without_work(*launches, *(kernel(30 * n, n) for n in (1, 2, 3, 4))) == [0, 0]


def test_work_that_lost_its_ids_may_be_that_of_a_graph() -> None:
    lost = kernel(240, 4)
    del lost["args"]["correlation"]
    assert without_work(launch(10, 1), launch(210, 3), launch(220, 4), kernel(30, 1), kernel(230, 3), lost) == [0, 0]
