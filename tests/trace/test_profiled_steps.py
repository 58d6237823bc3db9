"""Where the time of a profiled step went: every nanosecond once, each piece of work once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import TraceBuilder, decode_name, prefill_name
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.trace.profiled import OperatorTime, ProfiledStep, profiled_steps
from spyreprof.trace.reader import read, read_bytes
from spyreprof.trace.self_time import union_shares
from spyreprof.trace.table import EventTable

MM = ([[2, 3], [3, 5]], ["float", "float"])


def table_of(trace: TraceBuilder) -> EventTable:
    import json

    return read_bytes(json.dumps(trace.build()).encode(), "t")


def only(trace: TraceBuilder, **options: Any) -> ProfiledStep:
    (step,) = profiled_steps(table_of(trace), trace.base_ns, 1, **options)
    return step


def of_kind(step: ProfiledStep, kind: str) -> OperatorTime:
    (found,) = [operator for operator in step.operators if operator.kind == kind]
    return found


def test_self_time_goes_to_the_innermost_operator() -> None:
    trace = TraceBuilder().step(decode_name(requests=3), 0, 1000)
    trace.operator("aten::linear", 100, 900).operator("aten::t", 110, 130).operator("aten::mm", 150, 850, *MM)
    trace.operator("aten::empty", 200, 210)
    step = only(trace)
    assert (step.start_ns, step.end_ns) == (0, 1000)
    assert step.generation_requests == 3
    assert step.operator_count == 4
    assert step.gap_ns == 200
    # aten::linear's own 80 ns are the dispatch of the product, aten::empty's 10 are not.
    assert of_kind(step, "matmul").ns == 80 + 690
    assert of_kind(step, "other").ns == 20 + 10
    assert step.device_busy_ns is None


def test_a_product_inside_its_wrapper_is_one_product() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000)
    trace.operator("aten::linear", 100, 900, [[2, 3], [5, 3], []], ["float", "float", ""])
    trace.operator("aten::mm", 150, 850, *MM)
    matmul = of_kind(only(trace), "matmul")
    assert matmul.flops == 60
    assert matmul.bytes == 124
    assert matmul.count == 2
    # The wrapper's own time is dispatch and no part of the product.
    assert matmul.ns_with_model == 700
    assert matmul.ns == 800


def test_a_wrapper_stands_for_an_inner_operator_without_shapes() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000)
    trace.operator("aten::linear", 100, 900, [[2, 3], [5, 3], []], ["float", "float", ""])
    trace.operator("aten::mkldnn_linear", 150, 850)
    matmul = of_kind(only(trace), "matmul")
    assert matmul.flops == 60
    assert matmul.ns_with_model == 800


def test_products_without_shapes_have_no_work_rather_than_none_to_do() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).operator("aten::mm", 0, 500)
    matmul = of_kind(only(trace), "matmul")
    assert matmul.flops is None
    assert matmul.bytes is None
    assert matmul.ns_with_model == 0
    assert matmul.ns == 500


def test_known_and_unknown_work_do_not_mix() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).operator("aten::mm", 0, 500).operator("aten::mm", 500, 800, *MM)
    matmul = of_kind(only(trace), "matmul")
    assert (matmul.flops, matmul.ns_with_model, matmul.ns) == (60, 300, 800)


def test_operators_back_to_back_are_not_inside_each_other() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000)
    trace.operator("aten::mm", 0, 500, *MM).operator("aten::mm", 500, 800, *MM)
    matmul = of_kind(only(trace), "matmul")
    assert (matmul.flops, matmul.ns_with_model) == (120, 800)


def test_other_threads_annotations_and_python_frames_do_not_count() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).operator("aten::mm", 0, 400, *MM)
    trace.operator("aten::mm", 0, 900, *MM, tid=77)
    trace.event("my phase", 0, 1000, cat="user_annotation").event("forward", 0, 1000, cat="python_function")
    step = only(trace)
    assert step.operator_count == 1
    assert step.gap_ns == 600


def test_operators_outside_of_the_step_do_not_count_and_crossing_ones_are_cut() -> None:
    trace = TraceBuilder().step(decode_name(), 1000, 2000)
    trace.operator("aten::mm", 0, 900).operator("aten::mm", 900, 1100).operator("aten::mm", 1900, 5000)
    trace.operator("aten::mm", 2000, 3000).operator("around everything", 0, 9000)
    step = only(trace)
    assert step.operator_count == 2
    assert of_kind(step, "matmul").ns == 200
    assert step.gap_ns == 800


def test_steps_come_by_start_and_a_step_inside_a_step_counts_once() -> None:
    trace = TraceBuilder().step(prefill_name(), 5000, 6000).step(decode_name(), 0, 1000)
    trace.step(decode_name(), 100, 900).step("execute_order_66", 2000, 3000)
    steps = profiled_steps(table_of(trace), trace.base_ns, 4, writer="1-a")
    assert [(step.start_ns, step.end_ns) for step in steps] == [(0, 1000), (5000, 6000)]
    assert [step.context_tokens for step in steps] == [0, 64]
    assert {(step.window, step.writer) for step in steps} == {(4, "1-a")}


def test_a_step_around_the_cut_of_a_short_file_is_left_out() -> None:
    """Its annotation stands at the front of the file, its operators were in the part that is missing."""
    import json

    trace = TraceBuilder().step(decode_name(), 0, 1000).step(decode_name(), 2000, 9000)
    trace.operator("aten::mm", 100, 900, *MM).operator("aten::mm", 2100, 3000, *MM)
    whole = json.dumps(trace.build()).encode()
    cut = read_bytes(whole[: whole.rindex(b"}", 0, whole.rindex(b"]")) + 1], "t")
    assert cut.quality.truncated
    assert len(profiled_steps(read_bytes(whole, "t"), trace.base_ns, 1)) == 2
    assert [step.end_ns for step in profiled_steps(cut, trace.base_ns, 1)] == [1000]


def test_steps_of_two_threads_are_kept_apart() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).step(decode_name(), 100, 900, tid=9)
    trace.operator("aten::mm", 0, 600).operator("aten::mm", 200, 300, tid=9)
    first, second = profiled_steps(table_of(trace), trace.base_ns, 1)
    assert (first.gap_ns, second.gap_ns) == (400, 700)


def test_a_device_annotation_of_the_step_is_not_a_second_step() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000)
    trace.event(decode_name(), 500, 1500, cat="gpu_user_annotation", pid=0, tid=7)
    assert only(trace).end_ns == 1000


def test_an_operator_without_duration_and_one_of_no_duration_take_no_time() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).operator("aten::mm", 100, 100)
    trace.event("aten::mm", 200, 300)
    del trace.events[-1]["dur"]
    step = only(trace)
    assert step.gap_ns == 1000
    assert step.operator_count == 1


def test_device_time_is_the_union_of_what_the_step_launched() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000)
    trace.event("cudaLaunchKernel", 100, 110, cat="cuda_runtime", args={"correlation": 1})
    trace.event("cudaLaunchKernel", 120, 130, cat="cuda_runtime", args={"correlation": 2})
    trace.event("cudaLaunchKernel", 3000, 3010, cat="cuda_runtime", args={"correlation": 3})
    trace.kernel("gemm", 1500, 1900, correlation=1).kernel("softmax", 1800, 2000, correlation=2)
    trace.kernel("gemm", 500, 900, correlation=3)
    step = only(trace, device_kind="cuda")
    assert step.device_busy_ns == 500
    assert of_kind(step, "matmul").ns == 400
    assert of_kind(step, "elementwise").ns == 100
    assert step.gap_ns == 1000


def test_a_kernel_without_launch_belongs_to_the_step_in_which_it_began() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).kernel("gemm", 200, 300, correlation=9)
    trace.kernel("gemm", 1200, 1300, correlation=10)
    assert only(trace, device_kind="spyre").device_busy_ns == 100


def test_a_kernel_has_kind_and_work_of_the_operator_that_launched_it() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).operator("aten::mm", 100, 200, *MM)
    launcher = trace.events[-1]["args"]["External id"]
    for start in (200, 500):
        trace.kernel("mystery", start, start + 100)
        trace.events[-1]["args"]["External id"] = launcher
    matmul = of_kind(only(trace, device_kind="cuda"), "matmul")
    assert (matmul.ns, matmul.count, matmul.flops, matmul.ns_with_model) == (200, 2, 60, 200)


def test_a_capture_of_the_host_alone_says_nothing_of_the_device() -> None:
    trace = TraceBuilder().step(decode_name(), 0, 1000).operator("aten::mm", 100, 200, *MM)
    step = only(trace, device_kind="cuda")
    assert step.operators == ()
    assert step.device_busy_ns is None
    assert step.operator_count == 1


def test_a_trace_without_steps_gives_none() -> None:
    trace = TraceBuilder().operator("aten::mm", 100, 200)
    assert profiled_steps(table_of(trace), 0, 1) == ()


# Operators as a tree: each takes some time of its own before, between and after its children.
TREES = st.recursive(
    st.tuples(st.integers(0, 50), st.just(())),
    lambda inner: st.tuples(st.integers(0, 50), st.lists(inner, max_size=4).map(tuple)),
    max_leaves=25,
)
NAMES = ("aten::mm", "aten::linear", "aten::add", "aten::copy_", "aten::view", "c10d::send", "aten::_flash_attention_x")


def lay(trace: TraceBuilder, tree: Any, start: int, counted: list[int]) -> int:
    """Write a tree of operators from `start` on; the value is its end."""
    own, children = tree
    counted[0] += 1
    counted[1] += own * (len(children) + 1)
    now = start + own
    place = len(trace.events)
    trace.operator(NAMES[(own + len(children)) % len(NAMES)], start, start)
    for child in children:
        now = lay(trace, child, now, counted) + own
    trace.events[place]["dur"] = (now - start) / 1000
    return now


@given(st.lists(TREES, max_size=5), st.integers(0, 30), st.randoms())
def test_self_times_and_gap_are_exactly_the_step(trees: list[Any], pause: int, random: Any) -> None:
    trace = TraceBuilder()
    now, counted = pause, [0, 0]
    for tree in trees:
        now = lay(trace, tree, now, counted) + pause
    trace.step(decode_name(), 0, now)
    random.shuffle(trace.events)
    steps = profiled_steps(table_of(trace), trace.base_ns, 1)
    assert len(steps) == 1
    step = steps[0]
    assert sum(operator.ns for operator in step.operators) + step.gap_ns == now
    assert sum(operator.ns for operator in step.operators) == counted[1]
    assert step.gap_ns == pause * (len(trees) + 1)
    assert step.operator_count == sum(operator.count for operator in step.operators)


INTERVALS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted), max_size=30)


@given(INTERVALS)
def test_the_union_of_device_events_counts_each_nanosecond_once(intervals: Any) -> None:
    intervals.sort()
    starts, ends = (np.asarray([pair[i] for pair in intervals], np.int64) for i in (0, 1))
    assert int(union_shares(starts, ends, np.zeros(len(starts), np.int64)).sum()) == len(
        {t for a, b in intervals for t in range(a, b)}
    )


@given(INTERVALS, st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted))
def test_operators_that_cross_still_count_each_nanosecond_once(intervals: Any, stretch: Any) -> None:
    begin, end = stretch
    trace = TraceBuilder().step(decode_name(), begin, end)
    for a, b in intervals:
        trace.operator("aten::mm", a, b)
    (step,) = profiled_steps(table_of(trace), trace.base_ns, 1)
    # an operator around the whole step says nothing about it
    covered = {t for a, b in intervals if a >= begin or b < end for t in range(max(a, begin), min(b, end))}
    assert sum(operator.ns for operator in step.operators) == len(covered)
    assert step.gap_ns == (end - begin) - len(covered)


def test_a_real_step_closes_to_the_nanosecond(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64))
    path = tmp_path / "torch.json"
    with torch.no_grad(), torch.autograd.profiler.profile(use_kineto=True, record_shapes=True) as profile:
        for _ in range(3):
            with torch.autograd.profiler.record_function(decode_name(requests=2)):
                model(torch.ones(2, 64)).argmax(-1)
    profile.export_chrome_trace(str(path))
    steps = profiled_steps(read(path), 0, 1)
    assert len(steps) == 3
    for step in steps:
        assert sum(operator.ns for operator in step.operators) + step.gap_ns == step.end_ns - step.start_ns
        matmul = of_kind(step, "matmul")
        assert matmul.flops == 2 * 2 * (64 * 128 + 128 * 64)
        assert 0 < matmul.ns_with_model <= matmul.ns
