"""Which collectives a trace shows, and how large they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spyreprof.trace.collectives import BACKENDS, OPERATIONS, Collectives, collectives, operation_of
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.roles import roles
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]


def span(name: str, cat: str, ts: float, dur: float, pid: Any = 10, tid: Any = 10, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def message(op: str, elements: int, out: int, dtype: str, size: int, group: str = "0") -> dict[str, Any]:
    return {
        "Collective name": op,
        "In msg nelems": elements,
        "Out msg nelems": out,
        "dtype": dtype,
        "Group size": size,
        "Process Group Name": group,
    }


def found_in(*events: Event) -> tuple[EventTable, Collectives]:
    table = read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")
    return table, collectives(table, roles(table))


def told(found: Collectives) -> list[tuple[str, str, bool]]:
    return [
        (OPERATIONS[op], BACKENDS[backend], device)
        for op, backend, device in zip(
            found.operation.tolist(), found.backend.tolist(), found.on_device.tolist(), strict=True
        )
    ]


def test_a_kernel_says_its_operation_size_and_group() -> None:
    table, found = found_in(
        span(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            "kernel",
            1,
            50,
            0,
            7,
            **message("allreduce", 4096, 4096, "BFloat16", 8, "tp:0"),
        )
    )
    assert told(found) == [("all_reduce", "nccl", True)]
    assert (found.bytes.tolist(), found.group_size.tolist()) == ([8192], [8])
    assert table.text(int(found.process_group[0])) == "tp:0"


def test_the_message_of_a_gather_is_its_output_and_of_a_scatter_its_input() -> None:
    _, found = found_in(
        span("nccl1", "kernel", 1, 5, 0, 7, **message("_allgather_base", 100, 800, "Float", 8)),
        span("nccl2", "kernel", 9, 5, 0, 7, **message("reduce_scatter", 800, 100, "Float", 8)),
    )
    assert [name for name, _, _ in told(found)] == ["all_gather", "reduce_scatter"]
    assert found.bytes.tolist() == [3200, 3200]


def test_nested_calls_of_one_collective_are_one_and_what_the_inner_ones_say_counts() -> None:
    _, found = found_in(
        span("c10d::allreduce_", "cpu_op", 1, 90),
        span("record_param_comms", "cpu_op", 5, 80, **message("allreduce", 10, 10, "Float", 4)),
        span("gloo:all_reduce", "user_annotation", 10, 70),
        span("gloo:broadcast", "user_annotation", 200, 70),
    )
    assert told(found) == [("all_reduce", "gloo", False), ("broadcast", "gloo", False)]
    assert found.bytes.tolist() == [40, MISSING]
    assert found.group_size.tolist() == [4, MISSING]


def test_calls_of_two_threads_are_two() -> None:
    _, found = found_in(
        span("nccl:all_reduce", "user_annotation", 1, 90), span("nccl:all_reduce", "user_annotation", 5, 8, tid=11)
    )
    assert len(found.row) == 2


def test_collectives_on_spyre_have_no_bytes_rather_than_none_to_send() -> None:
    _, found = found_in(
        span("aiuCommsCollAllreduce", "privateuse1_runtime", 1, 90),
        span("aiuCommsOpD2HXfer", "privateuse1_runtime", 10, 20),
    )
    assert told(found) == [("all_reduce", "spyre-comms", False)]
    assert found.bytes.tolist() == [MISSING]
    assert found.size_class().tolist() == [MISSING]


def test_kernels_of_rccl_bear_the_names_of_nccl() -> None:
    _, found = found_in(
        span("hipLaunchKernel", "cuda_runtime", 0, 1),
        span("ncclDevKernel_Generic(ncclDevComm*)", "kernel", 5, 5, 0, 7),
        span("my_kernel", "kernel", 15, 5, 0, 7),
    )
    assert told(found) == [("other", "rccl", True)]


def test_messages_are_told_apart_by_size() -> None:
    sizes = [1, 32 * 2**10, 32 * 2**10 + 1, 2**20, 33 * 2**20, 2**60]
    _, found = found_in(
        *(
            span("nccl", "kernel", 10 * n, 5, 0, 7, **message("broadcast", size, size, "Byte", 2))
            for n, size in enumerate(sizes)
        )
    )
    assert found.bytes.tolist() == [*sizes[:-1], MISSING]
    assert found.size_class().tolist() == [0, 0, 1, 1, 3, MISSING]


def test_an_element_type_that_nobody_knows_leaves_the_bytes_unknown() -> None:
    _, found = found_in(span("nccl", "kernel", 1, 5, 0, 7, **message("broadcast", 8, 8, "Float3_e1m1", 2)))
    assert found.bytes.tolist() == [MISSING]


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL", "reduce_scatter"),
        ("ncclKernel_SendRecv(ncclDevComm*)", "send_recv"),
        ("alltoallv", "all_to_all"),
        ("c10d::_allgather_base_", "all_gather"),
        ("hcom_allReduce__123_0_1", "all_reduce"),
        ("_c10d_functional::wait_tensor", "wait"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", "all_reduce"),
        ("SenRdmaSend_7 [sync=AllReduce_1_s0_r1_0] DmaO", "all_reduce"),
        ("nccl:recv 0<-1", "recv"),
        ("gloo:scatter", "scatter"),
        ("aiuCommsCollBarrier", "barrier"),
        ("record_param_comms", "other"),
    ],
)
def test_a_name_tells_its_operation(text: str, operation: str) -> None:
    assert operation_of(text) == operation


def test_a_trace_without_communication_has_no_collectives() -> None:
    _, found = found_in(span("aten::mm", "cpu_op", 1, 9), span("reduce_kernel", "kernel", 1, 9, 0, 7))
    assert len(found.row) == 0
