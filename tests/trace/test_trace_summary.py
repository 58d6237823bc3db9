"""A trace in a few kilobytes: what stands in it, and that it stays small."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from spyreprof.trace.reader import read_bytes
from spyreprof.trace.summary import MAX_NAME, TOP, TraceSummary, summarise

Event = dict[str, Any]
PREFILL = "execute_context_1(128)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_3(3)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def span(name: str, cat: str, ts: float, end: float, *, pid: Any = 10, tid: Any = 10, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": args}


def launched(name: str, at: float, ts: float, end: float, number: int, cat: str = "kernel", **args: Any) -> list[Event]:
    call = span("cudaLaunchKernel", "cuda_runtime", at, at + 1, correlation=number)
    where: dict[str, Any] = {"pid": 0, "tid": 7, "device": 0, "stream": 7, "correlation": number}
    return [call, span(name, cat, ts, end, **where, **args)]


def engine() -> list[Event]:
    message = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "dtype": "BFloat16"}
    return [
        span(PREFILL, "user_annotation", 100, 200),
        span(DECODE, "user_annotation", 200, 250),
        span("aten::linear", "cpu_op", 110, 130),
        span("aten::mm", "cpu_op", 112, 127),
        *launched("gemm", 120, 125, 165, 1),
        *launched(NCCL, 140, 165, 185, 2, **message),
        *launched("gemv", 210, 215, 225, 3),
        *launched("Memcpy DtoH (Device -> Pageable)", 230, 240, 245, 4, "gpu_memcpy", bytes=64),
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 10,
            "tid": 10,
            "ts": 115,
            "args": {"Bytes": 64, "Total Allocated": 4096, "Total Reserved": 8192, "Device Id": 0, "Device Type": 1},
        },
    ]


def summary(events: list[Event], **top: Any) -> TraceSummary:
    return summarise(read_bytes(json.dumps({"traceEvents": events, **top}).encode(), "t"))


def test_a_summary_says_what_the_trace_shows() -> None:
    found = summary(engine(), distributedInfo={"rank": 1, "world_size": 2})
    assert (found.dialect, found.steps, found.devices_total) == ("cuda", 2, 1)
    assert (found.rank.rank, found.rank.told, found.world_size) == (1, True, 2)
    assert (found.start_ns, found.end_ns) == (100_000, 250_000)
    (device,) = found.devices
    assert (device.busy_ns, device.idle_ns) == (75_000, 45_000)
    assert [(one.name, one.ns) for one in found.kernels] == [("gemm", 40_000), (NCCL, 20_000), ("gemv", 10_000)]
    assert [(one.name, one.ns) for one in found.operators] == [("aten::mm", 14_000), ("aten::linear", 5_000)]
    assert found.faults == ()
    assert found.quality == ()
    assert found.links is not None and (found.links.by_correlation, found.links.unlinked) == (4, 0)
    (peak,) = found.memory
    assert (peak.allocated_bytes, peak.reserved_bytes, peak.device_type) == (4096, 8192, 1)
    (reduce_,) = found.collectives
    assert (reduce_.operation, reduce_.backend, reduce_.bytes) == ("all_reduce", "nccl", 200)


def test_phases_of_steps_have_their_time_on_host_and_device() -> None:
    phases = {one.phase: one for one in summary(engine()).phases}
    assert {name: (one.steps, one.host_ns, one.busy_ns) for name, one in phases.items()} == {
        "prefill": (1, 100_000, 60_000),
        "decode": (1, 50_000, 15_000),
    }
    assert sum(one.host_ratio for one in phases.values()) == pytest.approx(1)


def test_what_a_trace_of_the_cpu_cannot_tell_is_missing_and_not_zero() -> None:
    found = summary([event for event in engine() if event.get("cat") in ("cpu_op", "user_annotation")])
    assert (found.devices, found.links, found.graphs, found.counters) == ((), None, None, None)
    assert found.devices_reason is not None
    assert all(one.busy_ns is None for one in found.phases)


def test_a_trace_without_steps_has_no_phases_for_a_reason() -> None:
    found = summary([event for event in engine() if event.get("cat") == "kernel"])
    assert (found.steps, found.phases) == (0, ())
    assert found.phases_reason is not None


def test_idle_time_that_the_trace_cannot_tell_has_a_reason() -> None:
    calls = [span("cudaLaunchKernel", "cuda_runtime", 300 + n, 300.5 + n, correlation=900 + n) for n in range(20)]
    (device,) = summary(engine() + calls).devices
    assert device.idle_ns is None
    assert device.idle_reason is not None


def test_a_summary_goes_to_json_and_back() -> None:
    found = summary(engine())
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceSummary) == found


def test_a_summary_of_a_hostile_trace_is_small_and_goes_to_json() -> None:
    wild = [
        event
        for n in range(300)
        for event in launched(f"{n}" + "k" * 5000, n, n, 4e15 + n, n, "kernel" if n % 2 else f"category {n}")
    ]
    devices = [span("k", "kernel", n, n + 4e15, pid=n, device=n, stream=2**70 + n) for n in range(200)]
    found = summary(wild + devices)
    text = msgspec.json.encode(found)
    assert len(text) < 200_000
    assert msgspec.json.decode(text, type=TraceSummary) == found
    assert all(len(one.name) <= MAX_NAME for one in found.kernels)
    assert len(found.kernels) <= TOP and len(found.categories) <= TOP
    assert found.devices_total > len(found.devices)


def test_stamps_at_the_end_of_what_an_integer_holds_are_survived() -> None:
    found = summary([*engine(), *launched("k", 9.1e15, 9.1e15, 1.8e16, 9), *launched("j", 120, 126, 9.1e15, 10)])
    assert all(device.busy_ns >= 0 for device in found.devices)
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceSummary) == found


def message(elements: int | None, at: float, number: int, name: str = NCCL) -> list[Event]:
    said = {"Collective name": "allreduce", "dtype": "Float"}
    if elements is not None:
        said |= {"In msg nelems": elements, "Out msg nelems": elements}
    return launched(name, at, at + 1, at + 3, number, **said)


def test_collectives_are_counted_by_the_size_of_their_messages() -> None:
    # messages of 32 KiB, one element more, 64 MiB, and of a size that is not told
    sizes = [8192, 8193, 2**24, None]
    events = [event for n, size in enumerate(sizes) for event in message(size, 10.0 * n, n + 1)]
    found = summary([*events, span("c10d::wait", "cpu_op", 90, 95)]).message_sizes
    told = [(one.up_to_bytes, one.size_known, one.events, one.bytes) for one in found if one.on_device]
    assert told == [
        (2**15, True, 1, 2**15),
        (2**20, True, 1, 2**15 + 4),
        (None, True, 1, 2**26),
        (None, False, 1, None),
    ]
    assert [one.raw_sum_ns for one in found if one.on_device] == [2000] * 4
    # a wait moves nothing
    assert [one for one in found if not one.on_device] == []


def test_a_trace_without_collectives_or_graphs_has_no_sizes_and_no_coverage() -> None:
    found = summary([span("aten::mm", "cpu_op", 1, 2)])
    assert (found.message_sizes, found.graphs, found.busy_over_time) == ((), None, ())


def test_the_share_of_graph_launches_with_device_work_is_told() -> None:
    graph = [span("cudaGraphLaunch", "cuda_runtime", at, at + 1, correlation=at) for at in (10, 20, 30, 40)]
    work = span("gemm", "kernel", 12, 15, pid=0, tid=7, device=0, stream=7, correlation=10)
    found = summary([*graph, work]).graphs
    assert found is not None
    assert (found.launches, found.recorded, found.coverage_ratio) == (4, 1, 0.25)


def test_busy_over_time_adds_up_to_the_busy_time_of_each_device() -> None:
    events = [
        event | {"args": event["args"] | {"device": number % 2, "stream": 7}, "pid": number % 2}
        for number in range(60)
        for event in [span("gemm", "kernel", 7.0 * number, 7.0 * number + 1 + number % 9, correlation=number)]
    ]
    found = summary(events)
    assert len(found.busy_over_time) == len(found.devices) == 2
    for device, busy in zip(found.devices, found.busy_over_time, strict=True):
        assert busy.bucket_ns == 10_000
        widths = [busy.bucket_ns] * len(busy.ratios)
        widths[-1] = device.window_ns - busy.bucket_ns * (len(busy.ratios) - 1)
        covered = sum(ratio * width for ratio, width in zip(busy.ratios, widths, strict=True) if ratio is not None)
        assert covered == pytest.approx(device.busy_ns)
        assert all(ratio is not None and 0 <= ratio <= 1 for ratio in busy.ratios)
