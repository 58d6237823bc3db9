"""What a report says of traces of a profiler: data quality first, nothing private, nothing unknown shown as 0."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from golden_files import Golden
from recorded_builder import FakeRecording, analysis_inputs, diagnosis
from report_builders import finished_report
from rich.cells import cell_len

from spyreprof.report.build import build_report
from spyreprof.report.model import Public, Report
from spyreprof.report.read import decode_report
from spyreprof.report.redact import Redactor
from spyreprof.report.schema import report_schema
from spyreprof.report.shortfall import shortfalls
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.summary import TraceSummary, summarise

GOLDEN = Path(__file__).parent / "golden"
Event = dict[str, Any]


def span(name: str, cat: str, ts: float, end: float, *, pid: Any = 10, tid: Any = 10, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": args}


def launched(name: str, at: float, ts: float, end: float, number: int, cat: str = "kernel") -> list[Event]:
    call = span("cudaLaunchKernel", "cuda_runtime", at, at + 1, correlation=number)
    return [call, span(name, cat, ts, end, pid=0, tid=7, device=0, stream=7, correlation=number)]


def engine(kernel: str = "volta_sgemm_64x64_nt", *, copies: bool = True) -> list[Event]:
    events = [
        span("execute_context_1(128)_generation_0(0)", "user_annotation", 100, 200),
        span("execute_context_0(0)_generation_3(3)", "user_annotation", 200, 250),
        span("aten::linear", "cpu_op", 110, 130),
        span("aten::mm", "cpu_op", 112, 127),
        *launched(kernel, 120, 125, 165, 1),
        *launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 140, 155, 185, 2),
        *launched("triton_poi_fused_add_mul_0", 210, 215, 225, 3),
    ]
    return events + launched("Memcpy DtoH (Device -> Pageable)", 230, 240, 245, 4, "gpu_memcpy") if copies else events


def summary(events: list[Event], **top: Any) -> TraceSummary:
    return summarise(read_bytes(json.dumps({"traceEvents": events, **top}).encode(), "t"))


def report_on(*summaries: TraceSummary) -> Report:
    return build_report(FakeRecording(trace_summaries=summaries), diagnosis(), analysis_inputs())


def cut_short() -> TraceSummary:
    whole = json.dumps({"traceEvents": engine()}).encode()
    return summarise(read_bytes(whole[: whole.index(b'"Memcpy DtoH')], "t"))


def two_ranks() -> Report:
    damaged = json.dumps({"distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": [*engine(), 17]})
    first = summary(engine(), distributedInfo={"rank": 0, "world_size": 4})
    return report_on(first, summarise(read_bytes(damaged.encode(), "t")))


def test_a_report_on_traces_is_the_golden_file(golden: Golden) -> None:
    report = two_ranks()
    golden.check(GOLDEN / "report-traces.json", dump(report))
    golden.check(GOLDEN / "terminal-traces-80.txt", render(report, 80, show_all=True).encode())


def test_a_report_on_traces_is_valid_under_the_published_schema() -> None:
    jsonschema.validate(json.loads(dump(two_ranks())), report_schema())


def test_a_report_on_traces_read_back_is_the_same() -> None:
    report = two_ranks()
    assert decode_report(dump(report), "r") == report


def test_an_old_report_without_traces_is_read_and_drawn() -> None:
    content = json.loads(dump(finished_report()))
    del content["traces"], content["trace_ranks"]
    report = decode_report(json.dumps(content).encode(), "r")
    assert (report.traces, report.trace_ranks) == ((), None)
    drawn = render(report, 80)
    assert "Device time" not in drawn
    assert not drawn.startswith("Data")


def test_the_time_of_a_device_is_a_union_and_its_parts_are_of_its_window() -> None:
    [trace] = report_on(summary(engine())).traces
    [device] = trace.devices
    # 125 to 185, 215 to 225 and 240 to 245 of 125 to 245, in microseconds
    assert (device.window_ns, device.busy_ns, device.idle_ns) == (120_000, 75_000, 45_000)
    assert device.busy_ratio == pytest.approx(75 / 120)
    assert (device.exposed_communication_ns, device.hidden_communication_ns) == (30_000, 0)
    assert device.exposed_copy_ratio == pytest.approx(5 / 120)


def test_what_the_capture_lacks_is_unknown_with_a_reason_and_not_zero() -> None:
    report = report_on(summary(engine(copies=False)))
    [device] = report.traces[0].devices
    assert (device.copy_ns, device.exposed_copy_ns, device.exposed_copy_ratio) == (None, None, None)
    assert device.copy_reason == "the capture holds no copies"
    assert "copies unknown: the capture holds no copies" in render(report, 80)


def test_data_quality_stands_first_and_device_time_after_the_verdict() -> None:
    drawn = render(two_ranks(), 80)
    assert drawn.startswith("Data         trace 1, rank 0 (CUDA): ")
    order = [drawn.index(part) for part in ("Data  ", "Faults", "Conditions", "VERDICT", "Device time", "Kernels")]
    assert order == sorted(order)


def test_a_trace_that_is_cut_short_says_where_and_how_much_was_kept() -> None:
    report = report_on(cut_short())
    data = report.traces[0].data
    assert data.truncated_at_byte is not None
    drawn = render(report, 200)
    assert f"cut short at byte {data.truncated_at_byte:,}" in drawn
    assert f"{data.events_kept:,} kept" in drawn
    [fault] = [fault for fault in report.traces[0].faults if fault.kind == "file_cut_short"]
    assert "idle" in fault.forbids
    assert report.traces[0].devices[0].idle_ns is None


def test_events_that_were_dropped_are_counted_with_their_reason() -> None:
    data = two_ranks().traces[1].data
    assert [(part.what, part.events) for part in data.dropped] == [("not a JSON object", 1)]
    assert data.events_read == data.events_kept + 1


def test_events_read_are_those_kept_metadata_joined_and_dropped() -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 10, "args": {"name": "python"}},
        {"ph": "B", "name": "aten::add", "cat": "cpu_op", "pid": 10, "tid": 10, "ts": 1},
        {"ph": "E", "name": "aten::add", "cat": "cpu_op", "pid": 10, "tid": 10, "ts": 2},
        {"ph": "E", "name": "aten::add", "cat": "cpu_op", "pid": 10, "tid": 10, "ts": 3},
        {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 10, "tid": 10},
        *engine(),
    ]
    report = report_on(summary(events))
    data = report.traces[0].data
    assert (data.metadata_events, data.paired, sum(part.events for part in data.dropped)) == (1, 1, 2)
    assert data.events_read == len(events) == data.events_kept + 1 + 1 + 2
    assert "1 names of processes and threads, 1 begins joined with their ends" in " ".join(render(report, 200).split())


def test_a_file_that_is_cut_is_not_called_a_capture_of_the_cpu_alone() -> None:
    whole = json.dumps({"traceEvents": [span("aten::mm", "cpu_op", 1, 2), span("aten::mm", "cpu_op", 2, 3)]}).encode()
    drawn = render(report_on(summarise(read_bytes(whole[:-40], "t"))), 200)
    assert "As far as the file can be read" in drawn
    assert "of the CPU alone" not in drawn


def test_the_gravest_faults_come_first() -> None:
    faults = report_on(cut_short()).traces[0].faults
    weights = [(not fault.forbids, not fault.lowers) for fault in faults]
    assert weights == sorted(weights)


def test_each_trace_is_an_input_with_its_counts() -> None:
    _, first, second = two_ranks().inputs
    assert first.kind == second.kind == "torch_trace"
    assert second.counts[Public("events_dropped")] == 1
    read, kept = first.counts[Public("events_read")], first.counts[Public("events_kept")]
    assert read == kept == len(engine())


HOSTILE = (
    "\x1b[31mgemm\x1b]0;owned\x07",
    "<script>alert(document.cookie)</script>",
    "gemm_ghp_A1b2C3d4E5f6G7h8_kernel",
    "at::native::reduce_kernel<customer_kernel>",
    "/home/alice/secret.py(12): run",
    "[bold red]gemm[/bold red]",
    "gemm\u202elennahc",
    "token=hunter2",
    "acme_" * 90,
)
TRACES_OF_THEM = re.compile(r"owned|script|cookie|ghp_|A1b2|customer|alice|secret|bold|lennahc|hunter2|acme_acme")


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_of_a_hostile_name_reaches_the_report(name: str) -> None:
    hostile = [
        *engine(name),
        span(name, "cpu_op", 131, 139),
        span(name, name, 141, 149, tid=name),
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": name}},
        *(
            event | {"pid": name, "args": event["args"] | {"device": name}}
            for event in launched(name, 300, 301, 310, 9)
        ),
    ]
    report = report_on(summary(hostile))
    drawn = render(report, 80, show_all=True)
    for text in (dump(report).decode(), drawn):
        assert not TRACES_OF_THEM.search(text)
        assert name not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", drawn)


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_64x64_nt",
        "Memcpy HtoD (Pageable -> Device)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void at::native::(anonymous namespace)::softmax_warp_forward<float, 4>(float*, int)",
        "triton_poi_fused_add_mul_0",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 2>(int)",
        "at::native::vectorized_elementwise_kernel<4, at::native::CompareEqFunctor<float>, at::detail::Array<int, 3>>",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, at::OpaqueType<8>>>",
        "vllm::rotary_embedding_kernel",
        "aclnnMm_MatMulCommon_MemSet",
        "convolution_2 Cmpt Exec",
    ],
)
def test_kernels_of_published_libraries_keep_their_names(name: str) -> None:
    assert Redactor().event_name("kernel", name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("acme_secret_gemm", "kernel-1"),
        ("void acme::gemm<float>(float*)", "kernel-1"),
        ("void at::native::reduce_kernel<acme::Op, 4>(int)", "void at::native::reduce_kernel<kernel-1, 4>(int)"),
        ("at::native::call_004915112345678", "kernel-1"),
        ("void at::native::secret_kernel<float>(float*)", "kernel-1"),
        ("void at::native::secret_kernel<c10::Half, add>(int)", "void kernel-1<c10::Half, add>(int)"),
        ("cutlass::Kernel2<acme_falcon>", "cutlass::Kernel2<kernel-1>"),
        ("gemm_Ünal", "kernel-1"),
        ("", "kernel-1"),
    ],
)
def test_kernels_of_others_are_pseudonyms(name: str, shown: str) -> None:
    redactor = Redactor()
    assert redactor.event_name("kernel", name) == shown
    assert redactor.event_name("kernel", name) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::_scaled_dot_product_flash_attention", None),
        ("c10d::allreduce_", None),
        ("nccl:all_reduce", None),
        ("autograd::engine::evaluate_function: AddmmBackward0", None),
        ("aten::_foreach_addcdiv_.ScalarList", "operator-1"),
        ("aten::convolution_backward.output_mask", None),
        ("_C::rotary_embedding", None),
        ("vllm::unified_attention_with_output", None),
        ("nccl:_all_gather_base", None),
        ("acme::mm", "operator-1"),
        ("aten::secret", "operator-1"),
        ("aten::mm_secret", "operator-1"),
        ("aten::mm.secret", "operator-1"),
        ("vllm::projectfalcon", "operator-1"),
        ("aten::mm for customer 7", "operator-1"),
        ("MyModelBackward", "operator-1"),
    ],
)
def test_operators_keep_their_names_by_namespace(name: str, shown: str | None) -> None:
    assert Redactor().event_name("operator", name) == (shown or name)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("show_all", [False, True])
def test_no_line_about_traces_is_wider_than_the_page(width: int, show_all: bool) -> None:
    for ascii_only in (False, True):
        drawn = render(two_ranks(), width, show_all=show_all, ascii_only=ascii_only)
        assert max(cell_len(line) for line in drawn.splitlines()) <= width
    assert drawn.isascii()


def test_strict_names_what_traces_lack() -> None:
    lacking = " ".join(shortfalls(two_ranks()))
    assert "Trace 2 holds 1 events that could not be used." in lacking
    assert "2 of 4 ranks have no trace." in lacking
    assert "is cut short at byte" in " ".join(shortfalls(report_on(cut_short())))


def test_strict_tells_a_lost_device_from_a_capture_of_the_cpu_alone() -> None:
    asked = report_on(summary([event for event in engine() if event["pid"] == 10]))
    alone = report_on(summary([span("aten::mm", "cpu_op", 1, 2)]))
    lost = "Trace 1 was to show a device and holds no work of one."
    assert lost in shortfalls(asked)
    assert lost not in shortfalls(alone)
    assert not alone.traces[0].data.device_events
    assert alone.traces[0].data.device_reason


def test_a_missing_rank_is_named_in_the_report() -> None:
    ranks = two_ranks().trace_ranks
    assert ranks is not None
    assert (ranks.world_size, ranks.missing, ranks.missing_count) == (4, (1, 2), 2)
    assert report_on(summary(engine())).trace_ranks is None


def test_sentences_about_traces_pass_whole() -> None:
    for one in (cut_short(), summary(engine(copies=False)), summary([span("aten::mm", "cpu_op", 1, 2)])):
        for sentence in (*one.quality, *(fault.sentence for fault in one.faults)):
            assert Redactor().text("sentence", sentence) == sentence


def test_without_all_long_lists_are_cut_and_say_so() -> None:
    report = report_on(*(summary(engine(), distributedInfo={"rank": rank}) for rank in range(12)))
    short, full = render(report, 80), render(report, 80, show_all=True)
    assert "8 more traces: --all" in short
    assert "4 more devices: --all" in short
    assert "trace 12, rank 11" in full


def test_that_no_launch_is_told_is_unknown_and_not_none_of_it() -> None:
    older = [
        {"ph": "B", "name": "add Cmpt Exec", "pid": 0, "tid": 7, "ts": 1},
        {"ph": "E", "name": "add Cmpt Exec", "pid": 0, "tid": 7, "ts": 5},
    ]
    report = report_on(summary(older))
    assert (report.traces[0].data.links, report.traces[0].data.device_work) == (None, 1)
    drawn = " ".join(render(report, 80).split())
    assert "pieces of device work: 1 (which launch each belongs to is unknown)" in drawn
    assert "0.0 % linked" not in drawn
    bare = [span("gemm", "kernel", 1, 5)]
    assert report_on(summary(bare)).traces[0].data.links is None
    lost = report_on(summary([span("gemm", "kernel", 1, 5, correlation=3)])).traces[0].data.links
    assert lost is not None and lost.unlinked == 1


def test_a_cut_file_of_operators_alone_is_not_said_to_be_of_the_cpu() -> None:
    drawn = " ".join(render(report_on(cut_short()), 80).split())
    assert "trace 1 (CUDA)" in drawn
    whole = json.dumps({"traceEvents": [span("aten::mm", "cpu_op", n, n + 1) for n in range(9)]}).encode()
    cut = " ".join(render(report_on(summarise(read_bytes(whole[:-30], "t"))), 80).split())
    assert "trace 1 (PyTorch, no device named)" in cut
    assert "of the CPU" not in cut


def test_message_sizes_and_recorded_graphs_have_a_line_each_where_there_are_any() -> None:
    graph = [span("cudaGraphLaunch", "cuda_runtime", at, at + 1, correlation=at) for at in (310, 320)]
    work = span("gemm", "kernel", 312, 315, pid=0, tid=7, device=0, stream=7, correlation=310)
    report = report_on(summary([*engine(), *graph, work]))
    [trace] = report.traces
    assert trace.graphs is not None
    assert (trace.graphs.launches, trace.graphs.recorded, trace.graphs.coverage_ratio) == (2, 1, 0.5)
    text = " ".join(render(report, 200).split())
    assert "Launches of recorded graphs: 2, 50.0 % of them with work of the device" in text
    assert "on the device by message size, with the sum of their durations: of unknown size 1 (30.0 µs)" in text
    without = render(report_on(summary([span("aten::mm", "cpu_op", 1, 2)])), 200)
    assert "message size" not in without
    assert "recorded graphs" not in without


def test_the_busy_share_over_time_is_in_the_report_of_each_device() -> None:
    [device] = report_on(summary(engine())).traces[0].devices
    busy = device.busy_over_time
    assert busy is not None
    # twelve buckets from 125 to 245 microseconds: 125 to 185, 215 to 225 and 240 to 245 are busy
    assert busy.bucket_ns == 10_000
    assert busy.ratios == (1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0.5)
