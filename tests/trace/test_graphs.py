"""Launches of recorded graphs and what the trace shows of them."""

from __future__ import annotations

import json
from typing import Any

from spyreprof.trace.graphs import GraphLaunches, graph_launches
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
