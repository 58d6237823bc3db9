"""How the time of a device is divided, in traces small enough to do by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from spyreprof.trace.device_time import DeviceTime, busy_by_key, device_times
from spyreprof.trace.device_work import DeviceSpans, device_spans
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.roles import roles
from spyreprof.trace.table import EventTable

Event = dict[str, Any]
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def span(name: str, cat: str, ts: float, end: float, *, pid: Any = 0, tid: Any = 7, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": args}


def work(name: str, ts: float, end: float, *, stream: int = 7, device: int = 0, cat: str = "kernel") -> Event:
    return span(name, cat, ts, end, pid=device, tid=stream, device=device, stream=stream)


def copy(ts: float, end: float, stream: int = 9) -> Event:
    return work("Memcpy HtoD (Pinned -> Device)", ts, end, stream=stream, cat="gpu_memcpy")


def table_of(*events: Event) -> EventTable:
    return read_bytes(json.dumps({"traceEvents": list(events)}).encode(), "t")


def spans_of(*events: Event) -> DeviceSpans:
    table = table_of(*events)
    return device_spans(table, roles(table))


def only(*events: Event) -> DeviceTime:
    (found,) = device_times(spans_of(*events))
    return found


def test_streams_side_by_side_are_busy_once_and_start_up_is_no_idle_time() -> None:
    found = only(
        span("aten::mm", "cpu_op", 0.5, 90, pid=10, tid=10),
        work("a", 100, 110),
        work("b", 105, 120, stream=8),
        work("c", 130, 140),
    )
    assert (found.start_ns, found.end_ns) == (100_000, 140_000)
    assert (found.busy_ns, found.idle_ns) == (30_000, 10_000)
    assert (found.raw_sum_ns, found.streams, found.events) == (35_000, 2, 3)


def test_exposed_is_what_nothing_hides() -> None:
    found = only(work("gemm", 100, 120), work(NCCL, 110, 140, stream=8), copy(105, 160))
    assert (found.compute_ns, found.communication_ns, found.copy_ns) == (20_000, 30_000, 55_000)
    assert (found.exposed_communication_ns, found.hidden_communication_ns) == (20_000, 10_000)
    assert (found.exposed_copy_ns, found.hidden_copy_ns) == (20_000, 35_000)
    assert found.compute_ns + found.exposed_communication_ns + (found.exposed_copy_ns or 0) == found.busy_ns


def test_a_capture_without_copies_tells_no_copy_time() -> None:
    found = only(work("gemm", 100, 120))
    assert (found.copy_ns, found.exposed_copy_ns, found.hidden_copy_ns) == (None, None, None)
    assert found.copy_reason == "the capture holds no copies"


def test_copies_with_stamps_of_the_host_hide_behind_nothing() -> None:
    found = only(
        span("aiuLaunchControlBlocks", "privateuse1_runtime", 90, 95, pid=10, tid=10, correlation=1),
        span("sdsc_fused_mm_1", "kernel", 100, 150, tid=1, device=0),
        span("Memcpy (HtoD)", "gpu_memcpy", 105, 135, tid=100, device=0, bytes=4096),
    )
    assert (found.copy_ns, found.exposed_copy_ns, found.hidden_copy_ns) == (30_000, 30_000, None)
    assert found.overlap_reason is not None
    assert found.busy_ns == 50_000


def test_an_overlong_kernel_ends_where_the_next_of_its_stream_starts() -> None:
    found = only(work("fmha", 100, 1_600_100), work("next", 130, 135), work("last", 140, 145))
    assert found.busy_ns == 40_000
    assert (found.raw_sum_ns, found.clipped_sum_ns, found.overlong) == (1_600_010_000, 40_000, 1)


def test_waits_and_annotations_on_the_device_are_no_work() -> None:
    found = only(
        work("gemm", 100, 110),
        work("Stream Sync", 110, 150, cat="cuda_sync"),
        work("step", 100, 200, cat="gpu_user_annotation"),
        work("gemm", 190, 200),
    )
    assert (found.busy_ns, found.idle_ns, found.events) == (20_000, 80_000, 2)


def test_idle_time_is_unknown_for_a_reason() -> None:
    (found,) = device_times(spans_of(work("gemm", 100, 110)), idle_reason="kernels are missing")
    assert (found.idle_ns, found.idle_reason) == (None, "kernels are missing")


def test_each_device_has_its_own_window() -> None:
    first, second = device_times(spans_of(work("a", 100, 110), work("b", 300, 340, device=1)))
    assert (first.device, first.window_ns, first.idle_ns) == (0, 10_000, 0)
    assert (second.device, second.window_ns, second.idle_ns) == (1, 40_000, 0)


def steady(count: int = 9) -> list[Event]:
    return [work(f"k{n}", 100 + 10 * n, 105 + 10 * n) for n in range(count)]


@pytest.mark.parametrize(
    "wrong",
    [work("ahead", 9e6, 9e6 + 5), work("endless", 195, 9e6), work("early", 1e-3, 2e-3)],
    ids=["far ahead", "ends far ahead", "near"],
)
def test_a_stamp_far_from_all_others_does_not_stretch_the_window(wrong: Event) -> None:
    spans = spans_of(*steady(), wrong)
    (found,) = device_times(spans)
    near = wrong["name"] == "early"
    assert len(spans.far) == (0 if near else 1)
    assert found.end_ns == 185_000
    assert found.start_ns == (1 if near else 100_000)


def test_a_long_kernel_that_the_host_waits_for_is_real() -> None:
    wait = span("cudaDeviceSynchronize", "cuda_runtime", 190, 3e6, pid=10, tid=10)
    (found,) = device_times(spans_of(*steady(), work("long", 195, 3e6 - 5), wait))
    assert found.end_ns == 3_000_000_000 - 5_000


def test_busy_time_of_steps_counts_devices_that_work_at_once_once() -> None:
    spans = spans_of(work("a", 100, 110), work("b", 105, 115, device=1), work("c", 200, 210))
    key = np.asarray([0 if start < 200_000 else 1 for start in spans.start_ns.tolist()])
    assert busy_by_key(spans, key, 3).tolist() == [15_000, 10_000, 0]
    assert busy_by_key(spans, np.full(3, -1), 1).tolist() == [0]


def test_a_trace_without_device_work_has_no_devices() -> None:
    assert device_times(spans_of(span("aten::mm", "cpu_op", 1, 2, pid=10))) == ()
