"""Each fault of a trace is named where it is and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from spyreprof.trace.device_time import NO_OVERLAP, device_times
from spyreprof.trace.faults import Examined, Fault, examine
from spyreprof.trace.health import Kind
from spyreprof.trace.ranks import ranks_of
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.table import TraceMetadata

Event = dict[str, Any]
HOST = 4242
BASE_US = 1_000_000.0
DECODE = "execute_context_0(0)_generation_3(3)"


def span(name: str, cat: str, ts: float, dur: float, *, pid: Any = HOST, tid: Any = HOST, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": BASE_US + ts, "dur": dur, "args": args}


def launch(ts: float, number: int, name: str = "deviceLaunchKernel", cat: str = "privateuse1_runtime") -> Event:
    return span(name, cat, ts, 2, correlation=number)


def kernel(ts: float, number: int, dur: float = 6, name: str = "", stream: int = 1, **args: Any) -> Event:
    return span(
        name or f"kernel_{number}",
        "kernel",
        ts,
        dur,
        pid=0,
        tid=stream,
        device=0,
        stream=stream,
        correlation=number,
        **args,
    )


def clean() -> list[Event]:
    """30 events of a PrivateUse1 device: two steps with six kernels each, a copy, operators, and nothing wrong."""
    events = [span(DECODE, "user_annotation", 100 * n, 95) for n in range(2)]
    for number in range(12):
        at = 100 * (number // 6) + 12 * (number % 6)
        events += [launch(at + 3, number + 1), kernel(at + 10, number + 1)]
    events += [span("aten::mm", "cpu_op", 2, 90), span("aten::add", "cpu_op", 102, 90)]
    events += [span("deviceMemcpyAsync", "privateuse1_runtime", 80, 2, correlation=99)]
    copy = span("Memcpy (DtoH)", "gpu_memcpy", 90, 3, pid=0, tid=2, device=0, stream=2, correlation=99, bytes=64)
    return [*events, copy]


def read(events: list[Event], **top: Any) -> Examined:
    return examine(read_bytes(json.dumps({"traceEvents": events, **top}).encode(), "t"))


def faults_of(events: list[Event], **top: Any) -> dict[str, Fault]:
    return {fault.kind: fault for fault in read(events, **top).health.faults}


def changed(at: int, **values: Any) -> list[Event]:
    """The clean events with one kernel, counted from 0, changed."""
    events = clean()
    place = [n for n, event in enumerate(events) if event["cat"] == "kernel"][at]
    events[place] = {**events[place], **values}
    return events


def file_place(events: list[Event], name: str) -> int:
    return [event["name"] for event in events].index(name)


def test_every_kind_of_fault_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [kind for kind in get_args(Kind) if f'"{kind}"' not in text] == []


def test_a_clean_file_has_no_fault() -> None:
    assert len(clean()) == 30
    assert read(clean()).health.faults == ()


# What is done to the clean file, the fault it must name, how often, and where.
DEFECTS: dict[str, tuple[list[Event], str, int, str | None]] = {
    "zero stamp": (changed(4, ts=0, dur=0), "zero_stamp", 1, None),
    "no duration": (changed(4, dur=0), "zero_duration", 1, "kernel_5"),
    "negative duration": (changed(4, dur=-5), "negative_duration", 1, "kernel_5"),
    "overlong": (changed(4, dur=15), "overlong", 1, "kernel_5"),
    "more than a second": (changed(4, dur=2e6), "very_long", 1, "kernel_5"),
    "end far in the future": (changed(11, dur=9e6), "far_from_rest", 1, "kernel_12"),
    "start far in the future": (changed(11, ts=BASE_US + 9e6), "far_from_rest", 1, "kernel_12"),
    "same event twice": ([*clean(), kernel(10, 1)], "duplicated_event", 1, "kernel_1"),
    "same start": (changed(4, ts=BASE_US + 46), "duplicated_start", 1, "kernel_5"),
    "before its launch": (changed(4, ts=BASE_US + 51 - 2), "kernel_before_launch", 1, "kernel_5"),
    "disorder": ([*clean()[8:], *clean()[:8]], "out_of_order", 1, "kernel_1"),
    "outside its annotation": (
        [*clean(), span(DECODE, "gpu_user_annotation", 9, 53, pid=0, tid=1)],
        "outside_parent",
        1,
        "kernel_5",
    ),
    "outside the steps": ([*clean(), launch(300, 77), kernel(305, 77)], "outside_steps", 1, "kernel_77"),
    "no launch": ([event for event in clean() if event["args"].get("correlation") != 5 or event["cat"] == "kernel"],
                  "unlinked", 1, "kernel_5"),
    "overhead": ([*clean(), span("Buffer Flush", "overhead", 150, 30)], "profiler_overhead", 1, "Buffer Flush"),
}  # fmt: skip


@pytest.mark.parametrize("what", DEFECTS)
def test_a_defect_is_named_with_its_count_and_place(what: str) -> None:
    events, kind, count, where = DEFECTS[what]
    found = faults_of(events)
    assert kind in found
    assert found[kind].count == count
    if where is not None and what != "same event twice":
        assert found[kind].examples[0] == file_place(events, where)


def test_one_file_with_all_seven_known_defects_names_each() -> None:
    events = clean()
    places = [n for n, event in enumerate(events) if event["cat"] == "kernel"]

    def change(at: int, **values: Any) -> None:
        events[places[at]] = {**events[places[at]], **values}

    change(0, dur=15)  # overlaps the next
    change(3, ts=BASE_US + 34)  # starts with its predecessor
    change(5, ts=0, dur=0)
    change(7, dur=0)
    change(8, ts=BASE_US + 126)  # before its launch
    change(11, dur=9e6)  # ends seconds in the future
    events.append(events.pop(places[6]))  # disorder
    events.append(span(DECODE, "gpu_user_annotation", 9, 28, pid=0, tid=1))  # ends before its last kernel
    found = faults_of(events)
    for kind in (
        "overlong",
        "duplicated_start",
        "zero_stamp",
        "zero_duration",
        "kernel_before_launch",
        "far_from_rest",
        "out_of_order",
        "outside_parent",
    ):
        assert kind in found, kind
    (device_end,) = {int(read(events).spans.clipped_end_ns.max())}
    assert device_end < (BASE_US + 300) * 1000


def test_a_fault_under_its_floor_is_told_and_changes_nothing() -> None:
    events = clean()
    for number in range(200):
        events += [launch(200 + 20 * number, 1000 + number), kernel(210 + 20 * number, 1000 + number)]
    events += [span(DECODE, "user_annotation", 200, 5000)]
    few = faults_of([*events[:5], {**events[5], "dur": 13}, *events[6:]])["overlong"]
    assert (few.count, few.lowers, few.forbids) == (1, (), ())
    many = faults_of([{**event, "dur": 25} if event["cat"] == "kernel" else event for event in events])["overlong"]
    assert set(many.lowers) == {"kernel_time", "busy", "idle"}


def test_events_that_add_up_to_more_than_the_time_that_passed_are_named() -> None:
    found = faults_of(changed(4, dur=4000))["sum_over_wall"]
    assert found.worst is not None and found.worst > 20
    assert "sum_over_wall" not in faults_of(clean())


def paused(count: int, lag: Any) -> list[Event]:
    """Kernels that each find the device idle, `lag(n)` us behind their launch."""
    events = [span(DECODE, "user_annotation", 0, 100 * count + 90)]
    for number in range(count):
        events += [launch(100 * number + 1, number), kernel(100 * number + 1 + lag(number), number, dur=3)]
    return events


def test_clocks_that_drift_apart_are_named_with_their_rate() -> None:
    found = faults_of(paused(400, lambda n: 10 + (n % 3) + n * 0.2))
    assert found["clock_drift"].worst == pytest.approx(2000, rel=0.1)
    assert "clock_step" not in found


def test_a_clock_that_is_set_is_named_and_forbids_launch_lags() -> None:
    found = faults_of(paused(400, lambda n: 10 + (n % 3) + (5000 if n >= 200 else 0)))
    assert found["clock_step"].worst == pytest.approx(5e6, rel=0.1)
    assert found["clock_step"].forbids == ("launch_lag",)
    assert "clock_drift" not in found


def test_steady_clocks_and_a_queue_that_fills_up_have_no_clock_fault() -> None:
    assert faults_of(paused(400, lambda n: 10 + (n % 7))) == {}
    # the host runs ahead: kernels wait for each other ever longer
    queue = [span(DECODE, "user_annotation", 0, 9000)]
    for number in range(400):
        queue += [launch(5 * number, number), kernel(20 + 12 * number, number, dur=11)]
    assert faults_of(queue) == {}


def test_a_shifted_device_clock_is_told_by_its_median() -> None:
    found = faults_of(paused(40, lambda n: -30))["kernel_before_launch"]
    assert (found.count, found.worst, found.forbids) == (40, 30_000.0, ("launch_lag",))


def cycles(number: int, ticks: list[int]) -> Event:
    return kernel(20 * number, number, dur=10, cycles_ts=ticks)


def with_counters(*kernels: Event) -> Examined:
    events = [span(DECODE, "user_annotation", 0, 5000)]
    for event in kernels:
        number = event["args"]["correlation"]
        events += [launch(20 * number - 5, number), event]
    return read(events)


def ticks_of(number: int, rate: float = 557, start: int = 0) -> list[int]:
    begin = (start + 20_000 * number) % 2**32
    return [begin, begin, (begin + 100) % 2**32, (begin + 100 + int(10 * rate)) % 2**32, (begin + 9000) % 2**32]


def test_the_counters_clock_is_fitted_also_where_they_wrap() -> None:
    found = with_counters(*(cycles(n, ticks_of(n, start=2**32 - 90_000)) for n in range(1, 20)))
    assert found.counters is not None
    assert found.counters.ticks_per_us == pytest.approx(557)
    assert found.health.faults == ()


def test_counters_that_are_all_zero_failed() -> None:
    good = [cycles(n, ticks_of(n)) for n in range(1, 20)]
    found = with_counters(*good, cycles(20, [0, 0, 0, 0, 0]))
    assert [fault.kind for fault in found.health.faults] == ["counter_failure"]
    dead = with_counters(*(cycles(n, [0, 0, 0, 0, 0]) for n in range(1, 20)))
    assert dead.counters is None
    assert len(dead.health.forbids("counters")) == 1


@pytest.mark.parametrize("wrong", ["x", [1, 2], {"a": 1}, [2**70, 1, 2, 3, 4], [None] * 5])
def test_counters_that_are_no_five_numbers_are_no_counters(wrong: Any) -> None:
    found = with_counters(*(cycles(n, ticks_of(n)) for n in range(1, 20)), kernel(400, 20, cycles_ts=wrong))
    assert found.counters is not None and found.counters.spans == 19
    assert {fault.kind for fault in found.health.faults} <= {"counter_failure"}


def test_kernels_that_disagree_with_their_counters_are_named() -> None:
    found = with_counters(*(cycles(n, ticks_of(n, 700 if n == 3 else 557)) for n in range(1, 20)))
    (fault,) = found.health.faults
    assert (fault.kind, fault.count) == ("counter_mismatch", 1)


def test_a_device_that_falls_silent_while_the_host_goes_on_forbids_idle_time() -> None:
    events = clean() + [launch(200 + 5 * n, 500 + n) for n in range(20)]
    found = read(events).health
    assert [fault.count for fault in found.forbids("idle")] == [20]
    assert found.reason("idle") is not None
    assert "device_ends_early" not in faults_of(clean() + [launch(200 + 5 * n, 500 + n) for n in range(3)])


def test_the_profilers_own_word_for_full_buffers_is_heard() -> None:
    note = span("Exceeded max AIU buffer count (5 > 5) - terminating tracing", "overhead", 90, 1)
    assert "buffers were full" in faults_of([*clean(), note])["device_ends_early"].sentence


def graph(number: int, kernels: int, graph_id: int | None = None) -> list[Event]:
    args = {} if graph_id is None else {"graph id": graph_id, "graph node id": 1}
    start = 100 * number
    return [
        span("cudaGraphLaunch", "cuda_runtime", start, 5, correlation=number),
        *(kernel(start + 10 + 10 * n, number, name=f"k{n}", **args) for n in range(kernels)),
    ]


def graphs(*counts: int, graph_id: int | None = None) -> list[Event]:
    step = span(DECODE, "user_annotation", 0, 100 * len(counts) + 99)
    return [step, *(event for n, count in enumerate(counts) for event in graph(n, count, graph_id))]


def test_graph_launches_without_kernels_forbid_idle_time() -> None:
    found = read(graphs(4, 0, 0, 4)).health
    assert [fault.kind for fault in found.forbids("idle")] == ["graph_kernels_missing"]
    assert faults_of(graphs(4, 4, 4)) == {}


def test_a_graph_that_is_recorded_in_part_makes_idle_time_less_sure() -> None:
    (fault,) = read(graphs(4, 1, 4, graph_id=3)).health.lowers("idle")
    assert (fault.kind, fault.count) == ("graph_kernels_missing", 1)
    # without a graph's number they may be different graphs
    assert faults_of(graphs(4, 1, 4)) == {}


def test_calls_that_copy_without_any_copy_are_named() -> None:
    events = [event for event in clean() if event["cat"] != "gpu_memcpy"]
    assert faults_of(events)["copies_missing"].count == 1


def test_copies_of_spyre_carry_stamps_of_the_host() -> None:
    events = [{**e, "name": "aiuLaunchControlBlocks"} if e["cat"] == "privateuse1_runtime" else e for e in clean()]
    assert faults_of(events)["copies_host_stamped"].forbids == ("overlap",)


def without_stream(event: Event) -> Event:
    return {**event, "args": {name: value for name, value in event["args"].items() if name != "stream"}}


@pytest.mark.parametrize("calls", [True, False])
def test_copies_of_a_device_that_nothing_names_get_no_credit_for_an_overlap(calls: bool) -> None:
    events = [without_stream(event) if event["cat"] == "gpu_memcpy" else event for event in clean()]
    events = [event for event in events if calls or event["cat"] != "privateuse1_runtime"]
    found = faults_of(events)["copies_clock_unknown"]
    assert (found.count, found.forbids) == (1, ("overlap",))
    # who tells on which stream of the device a copy ran has asked the device
    told = [event for event in clean() if calls or event["cat"] != "privateuse1_runtime"]
    assert "copies_clock_unknown" not in faults_of(told)


def test_a_copy_that_seems_to_lie_in_a_kernel_is_exposed_where_its_clock_is_not_told() -> None:
    spans = [
        span("cmpt_exec", "kernel", 100, 50, pid=0, tid=7),
        span("Memcpy HtoD", "gpu_memcpy", 105, 30, pid=0, tid=8),
    ]
    bare = read([{**event, "args": {}} for event in spans])
    [device] = device_times(bare.spans)
    assert (bare.found.dialect.name, device.copy_ns, device.exposed_copy_ns) == ("unnamed", 30_000, 30_000)
    assert device.hidden_copy_ns is None
    assert device.overlap_reason == NO_OVERLAP["unknown"]


def test_a_capture_without_device_work_is_of_the_cpu_or_lost_it() -> None:
    cpu = [event for event in clean() if event["cat"] in ("cpu_op", "user_annotation")]
    assert list(faults_of(cpu)) == ["cpu_only"]
    assert list(faults_of(cpu, deviceProperties=[])) == ["cpu_only"]
    asked = read(cpu, deviceProperties=[{"id": 0}]).health
    assert [fault.kind for fault in asked.forbids("busy")] == ["no_device_events"]
    calls = [event for event in clean() if event["pid"] == HOST]
    assert faults_of(calls)["no_device_events"].count == 13


def test_a_file_that_is_cut_short_forbids_idle_time() -> None:
    text = json.dumps({"traceEvents": clean()}).encode()
    found = examine(read_bytes(text[:-60], "t")).health
    assert "file_cut_short" in [fault.kind for fault in found.forbids("idle")]


def test_events_that_could_not_be_used_are_counted() -> None:
    found = faults_of([*clean(), {"ph": "X", "cat": "kernel", "name": "no stamp", "pid": 0, "tid": 1, "dur": 1}])
    assert (found["events_left_out"].count, len(found)) == (1, 1)


def test_a_trace_without_steps_says_so() -> None:
    events = [event for event in clean() if event["cat"] != "user_annotation"]
    assert list(faults_of(events)) == ["no_steps"]


def rank(**distributed: Any) -> TraceMetadata:
    return TraceMetadata(distributed=distributed or None)


def test_missing_ranks_of_a_job_are_named() -> None:
    found = ranks_of([rank(rank=3, world_size=4), rank(rank=0, world_size=4)])
    assert [one.rank for one in found.ranks] == [3, 0]
    assert (found.world_size, found.missing, found.missing_count) == (4, (1, 2), 2)
    assert len(found.sentences) == 1
    assert ranks_of([rank(rank=1, world_size=2), rank(rank=0, world_size=2)]).sentences == ()


def test_a_trace_without_a_rank_is_rank_0_and_says_so() -> None:
    found = ranks_of([rank()])
    assert (found.ranks[0].rank, found.ranks[0].told, found.world_size, found.missing) == (0, False, None, None)
    assert len(found.sentences) == 1


@pytest.mark.parametrize("wrong", ["3", -1, 2**40, True, None, [1]])
def test_a_rank_that_is_no_number_is_unknown(wrong: Any) -> None:
    assert not ranks_of([rank(rank=wrong, world_size=wrong)]).ranks[0].told


def test_two_traces_of_one_rank_are_named() -> None:
    assert ranks_of([rank(rank=1, world_size=2), rank(rank=1, world_size=2)]).repeated == (1,)
