"""What each event of a trace is taken for, by who wrote the trace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spyreprof.trace.dialects import dialects
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.roles import Role, device_of, roles
from spyreprof.trace.table import MISSING, EventTable

Event = dict[str, Any]


def span(
    name: str, cat: str | None, ts: float = 1.0, dur: float = 1.0, pid: Any = 0, tid: Any = 7, **args: Any
) -> Event:
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
    return event if cat is None else {**event, "cat": cat}


def process(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}


def table_of(*events: Event) -> EventTable:
    return read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")


def by_name(table: EventTable) -> dict[str, Role]:
    return {table.name(row): Role(role) for row, role in enumerate(roles(table).role.tolist())}


CUDA = (
    span("aten::mm", "cpu_op", 1, 20, 10, 10),
    span("forward", "python_function", 1, 30, 10, 10),
    span("ProfilerStep#3", "user_annotation", 0, 90, 10, 10),
    span("cudaLaunchKernel", "cuda_runtime", 5, 2, 10, 10, correlation=1),
    span("cudaGraphLaunch", "cuda_runtime", 25, 2, 10, 10, correlation=2),
    span("cudaStreamSynchronize", "cuda_runtime", 40, 9, 10, 10, correlation=3),
    span("cudaStreamWaitEvent", "cuda_runtime", 50, 1, 10, 10, correlation=4),
    span("gemm", "kernel", 10, 5, device=0, stream=7, correlation=1),
    span("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", 30, 5, device=0, stream=9, correlation=2),
    span("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 36, 2, device=0, stream=7, bytes=64),
    span("Memset (Device)", "gpu_memset", 39, 1, device=0, stream=7, bytes=64),
    span("Stream Sync", "cuda_sync", 40, 8, device=0, stream=7, correlation=3),
    span("my phase", "gpu_user_annotation", 10, 30),
    span("PyTorch Profiler (0)", "Trace", 0, 100, "Spans", "PyTorch Profiler"),
    span("Buffer Flush", "overhead", 60, 5, 10, 10),
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 10, "ts": 3, "args": {"Bytes": 64}},
    {"ph": "i", "name": "Record Window End", "pid": "Traces", "tid": "t", "ts": 99},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 10, "tid": 10, "ts": 5},
    {"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "tid": 0, "ts": 5, "args": {"v": 0.5}},
)


def test_events_of_a_cuda_trace_have_their_roles() -> None:
    table = table_of(*CUDA)
    assert roles(table).dialect.name == "cuda"
    assert by_name(table) == {
        "aten::mm": Role.HOST_OP,
        "forward": Role.HOST_PYTHON,
        "ProfilerStep#3": Role.HOST_ANNOTATION,
        "cudaLaunchKernel": Role.RUNTIME_LAUNCH,
        "cudaGraphLaunch": Role.GRAPH_LAUNCH,
        "cudaStreamSynchronize": Role.RUNTIME_WAIT,
        "cudaStreamWaitEvent": Role.RUNTIME_OTHER,
        "gemm": Role.KERNEL,
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": Role.COMMUNICATION_KERNEL,
        "Memcpy HtoD (Pageable -> Device)": Role.COPY,
        "Memset (Device)": Role.FILL,
        "Stream Sync": Role.DEVICE_WAIT,
        "my phase": Role.DEVICE_ANNOTATION,
        "PyTorch Profiler (0)": Role.PROFILER,
        "Buffer Flush": Role.PROFILER,
        "[memory]": Role.MEMORY,
        "Record Window End": Role.PROFILER,
        "ac2g": Role.FLOW,
        "GPU 0 Utilization": Role.COUNTER,
    }


def test_device_work_is_kernels_copies_and_fills_and_nothing_else_of_the_devices_track() -> None:
    table = table_of(*CUDA)
    work = {table.name(row) for row in roles(table).device_work.nonzero()[0].tolist()}
    assert work == {
        "gemm",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
    }


def test_a_kernel_without_a_duration_is_a_kernel_but_no_measured_work() -> None:
    table = table_of(span("k", "kernel", 5, -3), span("k2", "kernel", 9, 1))
    found = roles(table)
    assert found.has(Role.KERNEL).tolist() == [True, True]
    assert found.device_work.tolist() == [False, True]


def test_a_kernel_that_carries_a_collective_is_communication_whatever_its_name() -> None:
    table = table_of(span("my_fused_kernel", "kernel", **{"Collective name": "allreduce", "In msg nelems": 4}))
    assert by_name(table) == {"my_fused_kernel": Role.COMMUNICATION_KERNEL}


@pytest.mark.parametrize("runtime", ["privateuse1_runtime", "cuda_runtime"])
def test_both_generations_of_the_spyre_plug_in_are_one_dialect(runtime: str) -> None:
    table = table_of(
        span("aiuLaunchControlBlocks", runtime, 1, 2, 77, 77, correlation=41),
        span("aiuWaitForQueueCapacity", runtime, 4, 2, 77, 77),
        span("aiuMalloc", runtime, 7, 2, 77, 77),
        span("Unknown CBID 99", runtime, 9, 1, 77, 77),
        span("sdsc_fused_mm_silu_3", "kernel", 10, 5, 0, 1, device=0, stream=1, correlation=41),
        span("Memcpy (HtoD)", "gpu_memcpy", 20, 5, 0, 100, device=0, bytes=64),
        span("Memset (Device)", "gpu_memset", 30, 5, 0, 400, device=0, bytes=64),
        span("Memory (Release)", "privateuse1_driver", 40, 5, 0, 400, device=0, bytes=64),
    )
    assert roles(table).dialect.name == "spyre"
    assert by_name(table) == {
        "aiuLaunchControlBlocks": Role.RUNTIME_LAUNCH,
        "aiuWaitForQueueCapacity": Role.RUNTIME_WAIT,
        "aiuMalloc": Role.RUNTIME_OTHER,
        "Unknown CBID 99": Role.RUNTIME_OTHER,
        "sdsc_fused_mm_silu_3": Role.KERNEL,
        "Memcpy (HtoD)": Role.COPY,
        # it marks an allocation there
        "Memset (Device)": Role.MEMORY,
        "Memory (Release)": Role.MEMORY,
    }


def test_phases_of_the_older_spyre_stack_are_told_by_the_end_of_the_name() -> None:
    table = table_of(
        span("add_1 DmaI", None, 1),
        span("add_1 Cmpt Prep", None, 2),
        span("add_1 Cmpt Exec", None, 3),
        span("add_1 DmaO", None, 4),
        span("SenRdmaSend_7 [sync=AllReduce_1_s0_r1_0] DmaO", None, 5),
        span("WaitForCompletionAndReturnStatus", None, 1, 9, 0, 8),
    )
    assert roles(table).dialect.name == "flex"
    assert by_name(table) == {
        "add_1 DmaI": Role.COPY,
        "add_1 Cmpt Prep": Role.DEVICE_WAIT,
        "add_1 Cmpt Exec": Role.KERNEL,
        "add_1 DmaO": Role.COPY,
        "SenRdmaSend_7 [sync=AllReduce_1_s0_r1_0] DmaO": Role.COMMUNICATION_KERNEL,
        "WaitForCompletionAndReturnStatus": Role.RUNTIME_WAIT,
    }


def test_ascend_events_are_told_by_the_name_of_their_process() -> None:
    table = table_of(
        process(1, "Python"),
        process(2, "CANN"),
        process(800, "Ascend Hardware"),
        process(9, "Overlap Analysis"),
        span("aten::add_", "cpu_op", 1, 9, 1, 1),
        span("AscendCL@aclnnInplaceAdd", None, 2, 1, 2, 1),
        span("AscendCL@aclrtSynchronizeStream", None, 4, 1, 2, 1),
        span("aclnnMm_MatMul", None, 5, 3, 800, 3),
        span("Computing", None, 5, 3, 9, 0),
    )
    assert roles(table).dialect.name == "ascend"
    assert by_name(table) == {
        "aten::add_": Role.HOST_OP,
        "AscendCL@aclnnInplaceAdd": Role.RUNTIME_LAUNCH,
        "AscendCL@aclrtSynchronizeStream": Role.RUNTIME_WAIT,
        "aclnnMm_MatMul": Role.KERNEL,
        # the exporter's own sums would count everything twice
        "Computing": Role.PROFILER,
    }


def test_waits_and_enclosing_spans_of_an_mtia_device_are_no_work() -> None:
    table = table_of(
        span("merge", "mtia_ccp_events", 0, 100),
        span("fc", "mtia_ccp_events", 10, 20),
        span("event_wait", "mtia_ccp_events", 40, 50),
        span("fc2", "mtia_ccp_events", 120, 5),
        # on another stream: enclosed in time alone
        span("other", "mtia_ccp_events", 0, 200, tid=8),
    )
    found = roles(table)
    assert found.dialect.name == "mtia"
    assert by_name(table) == {
        "merge": Role.CONTAINER,
        "fc": Role.KERNEL,
        "event_wait": Role.DEVICE_WAIT,
        "fc2": Role.KERNEL,
        "other": Role.KERNEL,
    }
    assert table.dur_ns[found.device_work].sum() == 225_000


def test_a_cuda_kernel_that_encloses_another_of_its_stream_has_wrong_stamps_and_stays_a_kernel() -> None:
    table = table_of(span("k0", "kernel", 0, 5000, stream=7), span("k1", "kernel", 100, 10, stream=7))
    assert set(by_name(table).values()) == {Role.KERNEL}


@pytest.mark.parametrize(
    ("event", "dialect"),
    [
        (span("hipLaunchKernel", "cuda_runtime"), "rocm"),
        (span("cudaLaunchKernel", "cuda_runtime"), "cuda"),
        (span("urEnqueueKernelLaunch", "xpu_runtime"), "xpu"),
        (span("launchOnChip", "privateuse1_runtime"), "privateuse1"),
        (span("gemm", "kernel"), "unnamed"),
        (span("Memcpy HtoD", "gpu_memcpy"), "unnamed"),
        (span("Unknown CBID 5", "cuda_runtime"), "unnamed"),
        (span("aten::mm", "cpu_op"), "kineto"),
        (span("Operator of the first Kineto", "Operator"), "kineto"),
        (span("paint", "blink"), "generic"),
        (span("aiuLaunchControlBlocks", "python_function"), "kineto"),
    ],
)
def test_who_wrote_a_trace_shows_in_its_events(event: Event, dialect: str) -> None:
    assert roles(table_of(event)).dialect.name == dialect


def test_a_device_is_spyre_s_where_its_process_is_named_so() -> None:
    table = table_of(process(3, "AIU 0"), span("job", "kernel", pid=3), span("Memcpy (HtoD)", "gpu_memcpy", 9, pid=3))
    assert roles(table).dialect.name == "spyre"


def test_steps_of_a_profiler_s_schedule_are_no_operators_whatever_their_category() -> None:
    table = table_of(
        span("ProfilerStep#1", "cpu_op"), span("Optimizer.step#Adam.step", "cpu_op"), span("aten::mm", "cpu_op")
    )
    assert by_name(table) == {
        "ProfilerStep#1": Role.HOST_ANNOTATION,
        "Optimizer.step#Adam.step": Role.HOST_ANNOTATION,
        "aten::mm": Role.HOST_OP,
    }


def test_annotations_of_the_first_kineto_are_told_from_operators_by_name() -> None:
    table = table_of(span("aten::mm", "Operator"), span("ProfilerStep#5", "Operator"), span("k", "Kernel"))
    assert by_name(table) == {
        "aten::mm": Role.HOST_OP,
        "ProfilerStep#5": Role.HOST_ANNOTATION,
        "k": Role.KERNEL,
    }


def test_spans_of_a_program_that_nobody_knows_have_no_role() -> None:
    assert set(by_name(table_of(span("paint", "blink"), span("layout", None))).values()) == {Role.OTHER}


def test_an_asynchronous_span_is_no_part_of_the_call_stack() -> None:
    table = table_of(
        {"ph": "b", "cat": "cpu_op", "name": "aten::mm", "id": 1, "pid": 1, "tid": 1, "ts": 1},
        {"ph": "e", "cat": "cpu_op", "name": "aten::mm", "id": 1, "pid": 1, "tid": 1, "ts": 5},
    )
    assert by_name(table) == {"aten::mm": Role.OTHER}


def test_a_device_is_known_by_its_number_and_its_process() -> None:
    table = table_of(
        span("k", "kernel", 1, 1, 3, 7, device=3, stream=7),
        span("note", "gpu_user_annotation", 1, 1, 3, 7),
        span("k", "kernel", 1, 1, 1003, 7, device=3, stream=7),
        span("aten::mm", "cpu_op", 1, 1, 10, 10),
    )
    lanes = device_of(table, roles(table))
    assert lanes.device_values == (3, 3)
    # the annotation has no device of its own, and its thread is the stream
    assert lanes.device[table.has_category("gpu_user_annotation")] == lanes.device[table.pid_code == 0][0]
    assert len(lanes.lane_values) == 2
    assert lanes.device[table.has_category("cpu_op")].tolist() == [MISSING]


def test_the_lane_of_a_spyre_event_is_its_thread_because_its_stream_is_always_one() -> None:
    table = table_of(
        span("sdsc_fused_mm_0", "kernel", 1, 1, 0, 1, device=0, stream=1),
        span("Memcpy (HtoD)", "gpu_memcpy", 1, 1, 0, 100, device=0, stream=1),
        span("Memcpy (DtoH)", "gpu_memcpy", 1, 1, 0, "out", device=0, stream=1),
    )
    lanes = device_of(table, roles(table))
    assert set(lanes.lane_values) == {(0, 1), (0, 100), (0, "out")}


def test_every_rule_names_a_role_and_every_name_part_is_lower_case() -> None:
    for dialect in dialects():
        for rule in dialect.rules:
            assert rule.role in Role.__members__
        for mark in (*dialect.marks, *dialect.rules):
            assert all(part == part.lower() for part in mark.contains)
