"""What the analyzers are given of a recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import (
    EPOCH_OFFSET_NS,
    MS,
    SECOND,
    START_NS,
    WRITER,
    RecordingBuilder,
    TraceBuilder,
    decode_name,
)

from spyreprof.hardware.profile import HardwareProfile, Value, load_hardware
from spyreprof.recording.schema import AnalysisInputs, Interval, Peak
from spyreprof.recording.store import open_recording


@pytest.fixture
def builder(tmp_path: Path) -> RecordingBuilder:
    return RecordingBuilder(tmp_path / "run.spyreprof").steps([(START_NS, START_NS + 5, decode_name())])


def inputs_of(builder: RecordingBuilder, hardware: HardwareProfile | None = None) -> AnalysisInputs:
    return open_recording(builder.write()).analysis_inputs(hardware)


def peak(inputs: AnalysisInputs, resource: str) -> Peak | None:
    found = [peak for peak in inputs.peaks if peak.resource == resource]
    assert len(found) <= 1
    return found[0] if found else None


def test_the_span_is_the_manifests(builder: RecordingBuilder) -> None:
    inputs = inputs_of(builder.process())
    assert (inputs.recording_start_ns, inputs.recording_end_ns) == (START_NS, START_NS + 60 * SECOND)
    assert inputs.finished


def test_peaks_are_the_better_of_both_measurements_and_keep_both(builder: RecordingBuilder) -> None:
    builder.process(threads=2).calibration("before", threads=2, flops_per_s=20e9, dispatch_ns=4000)
    builder.calibration("after", threads=2, flops_per_s=25e9, read_bytes_per_s=7e9, dispatch_ns=5000)
    inputs = inputs_of(builder)
    compute, bandwidth, dispatch = (peak(inputs, name) for name in ("compute", "memory_bandwidth", "dispatch"))
    assert compute is not None
    assert (compute.value, compute.before, compute.after, compute.unit) == (25e9, 20e9, 25e9, "flop/s")
    assert compute.origin == "measured"
    assert bandwidth is not None
    assert (bandwidth.value, bandwidth.before, bandwidth.after, bandwidth.unit) == (8e9, 8e9, 7e9, "bytes/s")
    assert dispatch is not None
    assert (dispatch.value, dispatch.unit) == (4000, "ns/operator")


@pytest.mark.parametrize(("plain", "expected"), [(None, 8e9), (15.9e9, 8e9), (16.1e9, 16.1e9)])
def test_a_matrix_vector_product_far_from_the_plain_read_rate_is_not_the_memory_peak(
    builder: RecordingBuilder, plain: float | None, expected: float
) -> None:
    """A library that runs the product on one thread binds before the memory does."""
    for when in ("before", "after"):
        builder.calibration(when, threads=2, read_bytes_per_s=8e9, stream_bytes_per_s=plain)
    bandwidth = peak(inputs_of(builder.process(threads=2)), "memory_bandwidth")
    assert bandwidth is not None
    assert (bandwidth.value, bandwidth.before, bandwidth.after) == (expected, expected, expected)


def test_a_thread_count_that_was_not_measured_before_leaves_one_side(builder: RecordingBuilder) -> None:
    builder.process(threads=2).calibration("before", threads=1).calibration("after", threads=2, flops_per_s=30e9)
    compute = peak(inputs_of(builder), "compute")
    assert compute is not None
    assert (compute.value, compute.before, compute.after) == (30e9, None, 30e9)


def test_an_unmeasured_thread_count_gives_no_peaks(builder: RecordingBuilder) -> None:
    builder.process(threads=16).calibration("before", threads=1).calibration("after", threads=1)
    assert inputs_of(builder).peaks == ()


def test_a_processor_is_no_peak_for_another_device_but_its_dispatch_cost_holds(builder: RecordingBuilder) -> None:
    builder.process(device_kind="spyre").calibration("before")
    assert [peak.resource for peak in inputs_of(builder).peaks] == ["dispatch"]


def test_the_compute_peak_of_another_dtype_is_not_used(builder: RecordingBuilder) -> None:
    builder.process().calibration("before", dtype="float32").module(parameter_bytes={"bfloat16": 100})
    assert peak(inputs_of(builder), "compute") is None


def test_a_declared_file_replaces_measured_peaks_only_when_asked(builder: RecordingBuilder) -> None:
    builder.process().calibration("before").module(parameter_bytes={"float16": 100})
    assert all(peak.origin == "measured" for peak in inputs_of(builder).peaks)
    inputs = inputs_of(builder, load_hardware("spyre"))
    compute, dispatch = peak(inputs, "compute"), peak(inputs, "dispatch")
    assert compute is not None
    assert (compute.value, compute.origin) == (98.304e12, "declared")
    assert dispatch is not None
    assert dispatch.origin == "measured"


def test_a_number_that_nobody_stands_for_stays_assumed(builder: RecordingBuilder) -> None:
    value = Value(value=1e12, unit="flop/s", kind="assumed", source="a guess", date="2026-01", condition="none")
    own = HardwareProfile(name="own", title="own", compute_flops_per_s={"float32": value})
    compute = peak(inputs_of(builder.process(), own), "compute")
    assert compute is not None
    assert compute.origin == "assumed"


def test_a_damaged_calibration_costs_itself(builder: RecordingBuilder) -> None:
    builder.process().calibration("after")
    builder.files["calibration-before.json"] = b"{"
    recording = open_recording(builder.write())
    compute = peak(recording.analysis_inputs(), "compute")
    assert compute is not None
    assert compute.before is None
    assert recording.quality.counts["unreadable_calibrations"] == 1


def test_the_model_is_the_largest_module(builder: RecordingBuilder) -> None:
    builder.module(parameter_bytes={"float32": 10}, embedding_bytes=1)
    builder.module(parameter_bytes={"bfloat16": 900, "float32": 100}, embedding_bytes=50)
    model = inputs_of(builder).model
    assert (model.parameter_bytes, model.embedding_bytes, model.dtype) == (1000, 50, "bfloat16")


def test_settings_come_from_the_engines_own_metrics(builder: RecordingBuilder) -> None:
    cache = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="256",enable_prefix_caching="False"} 1.0'
    scheduler = 'myengine:scheduler_config_info{max_num_seqs="4",max_num_batched_tokens="64"} 1.0'
    settings = inputs_of(builder.metrics([(START_NS, [cache, scheduler])])).settings
    assert (settings.kv_blocks, settings.block_size, settings.prefix_caching) == (256, 16, False)
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (4, 64)


def test_every_setting_that_the_engine_labels_is_read(builder: RecordingBuilder) -> None:
    cache = (
        'vllm:cache_config_info{kv_cache_size_tokens="4096",gpu_memory_utilization="0.92",cache_dtype="fp8",'
        'num_gpu_blocks="0",sliding_window="None"} 1.0'
    )
    scheduler = (
        'myengine:scheduler_config_info{max_model_len="2048",long_prefill_token_threshold="0",async_scheduling="True",'
        'tensor_parallel_size="2",disable_custom_all_reduce="True",enforce_eager="maybe"} 1.0'
    )
    settings = inputs_of(builder.metrics([(START_NS, [cache, scheduler])])).settings
    assert (settings.kv_tokens, settings.kv_capacity_tokens, settings.kv_blocks) == (4096, 4096, None)
    assert (settings.memory_utilisation_ratio, settings.kv_dtype) == (0.92, "fp8")
    assert (settings.max_model_len, settings.long_prefill_token_threshold) == (2048, 0)
    assert (settings.async_scheduling, settings.tensor_parallel, settings.custom_all_reduce) == (True, 2, False)
    assert settings.eager is None


def test_a_setting_whose_text_is_no_known_value_is_missing(builder: RecordingBuilder) -> None:
    cache = 'vllm:cache_config_info{cache_dtype="secret-name",gpu_memory_utilization="92"} 1.0'
    settings = inputs_of(builder.metrics([(START_NS, [cache])])).settings
    assert (settings.kv_dtype, settings.memory_utilisation_ratio) == (None, None)


def test_of_several_engines_only_settings_that_they_share_are_those_of_the_recording(builder: RecordingBuilder) -> None:
    lines = [f'vllm:num_requests_running{{engine="{number}"}} 1' for number in (0, 1)] + [
        f'vllm:cache_config_info{{engine="{number}",block_size="16",num_gpu_blocks="{256 + number}"}} 1.0'
        for number in (0, 1)
    ]
    found = inputs_of(builder.metrics([(START_NS, lines)]))
    assert (found.settings.block_size, found.settings.kv_blocks) == (16, None)
    assert [settings.kv_blocks for _, settings in found.settings_of] == [256, 257]


def test_settings_that_say_none_are_missing(builder: RecordingBuilder) -> None:
    cache = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0'
    settings = inputs_of(builder.metrics([(START_NS, [cache])])).settings
    assert settings.kv_blocks is None
    assert settings.prefix_caching is None
    assert settings.block_size == 16


def test_compilations_and_pauses_are_intervals_of_their_process(builder: RecordingBuilder) -> None:
    builder.process().shard("compile", [{"t0": 30, "t1": 40}, {"t0": 10, "t1": 20}, {"t0": 9, "t1": 1}])
    builder.window(state="stolen", t0=100, t3=200).window(n=2, state="skipped", t0=300, t1=None, t2=None, t3=300)
    inputs = inputs_of(builder)
    assert inputs.compiles == (Interval(10, 20, "compile", WRITER), Interval(30, 40, "compile", WRITER))
    assert inputs.pauses == (Interval(100, 200, "profiler window", WRITER),)


def test_a_process_that_was_killed_inside_a_window_is_held_up_until_its_end(builder: RecordingBuilder) -> None:
    builder.process(end_ns=None).window(state="saved", t0=START_NS + 10, t1=START_NS + 20, t2=None, t3=None)
    late = START_NS + 20 * SECOND
    builder.steps([(late, late + MS, decode_name()), (late + 2 * MS, late + 9 * MS, decode_name(), {"p": 1})])
    assert inputs_of(builder).pauses == (Interval(START_NS + 10, late + 9 * MS, "profiler window", WRITER),)


def test_profiled_steps_of_a_window_that_left_no_row_are_a_pause(builder: RecordingBuilder) -> None:
    """The last row of a window is written when it closes, to which a process that is killed never comes."""
    builder.window(t0=START_NS + 100, t3=START_NS + 200)
    usual, inside, last = ((START_NS + at, START_NS + at + 40) for at in (50, 120, 300))
    builder.steps([(*usual, decode_name()), (*inside, decode_name(), {"p": 1})])
    builder.steps([(*last, decode_name(), {"p": 1}), (START_NS + 350, START_NS + 380, decode_name(), {"p": 1})])
    builder.steps([(START_NS + 400, START_NS + 410, decode_name())])
    builder.steps([(START_NS + 305, START_NS + 306, decode_name(), {"p": 1})], writer="5-b")
    pauses = {(pause.writer, pause.start_ns - START_NS, pause.end_ns - START_NS) for pause in inputs_of(builder).pauses}
    assert pauses == {(WRITER, 100, 200), (WRITER, 300, 380), ("5-b", 305, 306)}


def test_steps_of_a_window_are_on_the_recordings_clock(builder: RecordingBuilder) -> None:
    start, end = 2 * SECOND, 2 * SECOND + 10 * MS
    trace = TraceBuilder().step(decode_name(requests=3), start, end).operator("aten::relu", start, start + 4 * MS)
    (step,) = inputs_of(builder.process().window(trace.build())).profiled_steps
    assert (step.start_ns, step.end_ns) == (START_NS + start, START_NS + end)
    assert (step.generation_requests, step.window, step.device_kind) == (3, 1, "cpu")
    assert step.gap_ns == 6 * MS


def test_the_nearest_clock_anchor_counts_because_clocks_may_be_set(builder: RecordingBuilder) -> None:
    set_back_ns = 3600 * SECOND
    builder.process()
    late = START_NS + 30 * SECOND
    builder.shard("process", [{"k": "anchor", "t": late, "epoch_ns": late + EPOCH_OFFSET_NS - set_back_ns}])
    trace = TraceBuilder(base_ns=late + EPOCH_OFFSET_NS - set_back_ns).step(decode_name(), 0, MS)
    builder.window(trace.build(), t0=late - 3, t1=late, t2=late + SECOND, t3=late + SECOND)
    (step,) = inputs_of(builder).profiled_steps
    assert step.start_ns == late


def placed(builder: RecordingBuilder, began: int, set_by_ns: int, **window: object) -> list[int]:
    """Where the step of a window lands that began right after the wall clock was set; anchors lie 5 s around it."""
    anchors = [(began - 3 * SECOND, 0), (began + 7 * SECOND, set_by_ns)]
    builder.shard("process", [{"k": "anchor", "t": t, "epoch_ns": t + EPOCH_OFFSET_NS + moved} for t, moved in anchors])
    trace = TraceBuilder(base_ns=began + EPOCH_OFFSET_NS + set_by_ns).step(decode_name(), MS, 2 * MS)
    builder.window(trace.build(), t0=began - 3, t1=began, t2=began + SECOND, t3=began + SECOND, **window)
    return [step.start_ns - began for step in inputs_of(builder).profiled_steps]


@pytest.mark.parametrize("set_by_ns", [3600 * SECOND, -3600 * SECOND, SECOND, -SECOND])
def test_a_window_is_placed_right_though_the_anchor_next_to_it_is_from_before_the_clock_was_set(
    builder: RecordingBuilder, set_by_ns: int
) -> None:
    assert placed(builder, START_NS + 20 * SECOND, set_by_ns) == [MS]


def test_a_windows_own_reading_of_the_wall_clock_comes_first(builder: RecordingBuilder) -> None:
    began, set_by_ns = START_NS + 20 * SECOND, 7 * SECOND
    # no anchor of the process knows of it: the clock was set back before the next one
    trace = TraceBuilder(base_ns=began + EPOCH_OFFSET_NS + set_by_ns).step(decode_name(), MS, 2 * MS)
    times = {"t0": began - 3, "t1": began, "t2": began + SECOND, "t3": began + SECOND}
    builder.process().window(trace.build(), **times, epoch_ns=began + EPOCH_OFFSET_NS + set_by_ns)
    (step,) = inputs_of(builder).profiled_steps
    assert step.start_ns == began + MS


def test_a_window_that_no_anchor_places_is_left_out_and_named(builder: RecordingBuilder) -> None:
    began = START_NS + 20 * SECOND
    wrong = {"epoch_ns": began + EPOCH_OFFSET_NS - 99 * SECOND}
    trace = TraceBuilder(base_ns=began + EPOCH_OFFSET_NS + 55 * SECOND).step(decode_name(), MS, 2 * MS)
    times = {"t0": began - 3, "t1": began, "t2": began + SECOND, "t3": began + SECOND}
    recording = open_recording(builder.process().window(trace.build(), **times, **wrong).write())
    assert recording.analysis_inputs().profiled_steps == ()
    assert any("the wall clock was set meanwhile" in note for note in recording.quality.notes)


def test_windows_belong_to_their_own_process(builder: RecordingBuilder) -> None:
    other_offset = EPOCH_OFFSET_NS + 7 * SECOND
    builder.process("1-a").process("2-b")
    builder.files["shards/process-2-b.jsonl"] = builder.files["shards/process-2-b.jsonl"].replace(
        str(START_NS + EPOCH_OFFSET_NS).encode(), str(START_NS + other_offset).encode()
    )
    trace = TraceBuilder(base_ns=START_NS + EPOCH_OFFSET_NS).step(decode_name(), 9 * SECOND, 9 * SECOND + MS).build()
    builder.window(trace, writer="1-a", t1=START_NS).window(trace, writer="2-b", t1=START_NS)
    steps = inputs_of(builder).profiled_steps
    assert [(step.writer, step.start_ns) for step in steps] == [
        ("2-b", START_NS + 2 * SECOND),
        ("1-a", START_NS + 9 * SECOND),
    ]
    assert sorted(step.window for step in steps) == [1, 2]


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (b"\x1f\x8bnot gzip", "no list of trace events"),
        (b"", "empty"),
        (b'{"traceEvents": []}', "no timed events"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}', "no engine step"),
    ],
)
def test_a_trace_that_cannot_be_used_costs_itself_and_a_sentence(
    builder: RecordingBuilder, trace: bytes, said: str
) -> None:
    recording = open_recording(builder.process().window(trace).write())
    assert recording.analysis_inputs().profiled_steps == ()
    assert any(said in note for note in recording.quality.notes)


def test_a_missing_trace_file_and_a_missing_anchor_are_said(builder: RecordingBuilder) -> None:
    trace = TraceBuilder().step(decode_name(), 0, MS).build()
    builder.window(file="traces/gone.json.gz").window(trace, writer="9-unknown", n=2)
    recording = open_recording(builder.write())
    assert recording.analysis_inputs().profiled_steps == ()
    assert any("missing" in note for note in recording.quality.notes)
    assert any("clock anchor" in note for note in recording.quality.notes)


def test_a_file_name_that_leads_outside_opens_nothing(builder: RecordingBuilder, tmp_path: Path) -> None:
    outside = TraceBuilder().step(decode_name(), 0, MS).write(tmp_path / "outside.json")
    recording = open_recording(builder.process().window(file=f"../{outside.name}").write())
    assert recording.analysis_inputs().profiled_steps == ()


def test_the_process_with_the_most_steps_stands_for_the_program(builder: RecordingBuilder) -> None:
    builder.process("1-a", threads=1, device_kind="cpu").process("2-b", threads=2, device_kind="cuda")
    builder.steps([(i, i + 1, decode_name()) for i in range(5)], writer="2-b").steps([], writer="1-a")
    inputs = inputs_of(builder)
    assert inputs.device_kind == "cuda"
    assert inputs.cpu_count == 2


def test_a_recording_of_a_program_without_torch_has_tables_and_nothing_else(tmp_path: Path) -> None:
    inputs = inputs_of(RecordingBuilder(tmp_path / "run.spyreprof"))
    assert len(inputs.steps) == 0
    assert inputs.device_kind is None
    assert inputs.peaks == ()
    assert inputs.model.parameter_bytes is None
    assert inputs.cpu_count == 2
