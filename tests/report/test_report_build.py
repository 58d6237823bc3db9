"""From a recording and its diagnosis to a report."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest
from recorded_builder import MANIFEST, SECOND, FakeRecording, analysis_inputs, decode_step, diagnosis, table, window

from spyreprof.recording import peaks, requests, shards, windows
from spyreprof.recording.manifest import Collector, Exit, Host
from spyreprof.recording.schema import STEPS, ModelFacts
from spyreprof.report.build import build_report
from spyreprof.report.model import Spread
from spyreprof.report.schema import report_schema
from spyreprof.report.shortfall import shortfalls
from spyreprof.report.writer import dump


def test_a_built_report_is_valid_and_the_same_inputs_give_the_same_bytes() -> None:
    first = dump(build_report(FakeRecording(), diagnosis(), analysis_inputs()))
    assert first == dump(build_report(FakeRecording(), diagnosis(), analysis_inputs()))
    jsonschema.validate(json.loads(first), report_schema(), jsonschema.Draft202012Validator)


def test_the_run_is_told_from_the_manifest() -> None:
    run = build_report(FakeRecording(), diagnosis(), analysis_inputs()).run
    assert run.run_id == "7f3a01c2"
    assert run.started == "2026-11-30T12:00:00Z"
    assert run.duration_s == 61.0
    assert run.exit is not None
    assert run.exit.code == 0
    assert run.finished
    assert run.command_redacted == "python samples/serve.py --scenario decode --seed 7"
    assert run.command_complete


def test_batch_and_context_are_those_of_decoding_steps_inside_the_window() -> None:
    conditions = build_report(FakeRecording(), diagnosis(), analysis_inputs()).conditions
    assert conditions.batch == Spread(mean=2.0, low=1.0, high=3.0)
    assert conditions.context == Spread(mean=96.0, low=64.0, high=128.0)


def test_batch_and_context_of_several_engines_are_those_of_the_one_that_binds() -> None:
    steps = [{**decode_step(1_001, batch, 64), "writer": writer} for batch, writer in ((2, "1-a"), (40, "2-a"))]
    inputs = analysis_inputs(steps=table(STEPS, steps))
    conditions = build_report(FakeRecording(), diagnosis(writers=("1-a",)), inputs).conditions
    assert conditions.batch == Spread(mean=2.0, low=2.0, high=2.0)
    assert build_report(FakeRecording(), diagnosis(writers=()), inputs).conditions.batch is None


def test_hardware_names_the_processors_that_the_program_may_use() -> None:
    conditions = build_report(FakeRecording(), diagnosis(), analysis_inputs()).conditions
    assert conditions.hardware == "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, 2 of 8 CPUs"
    assert (conditions.device_kind, conditions.device_count) == ("cpu", 1)


def test_what_was_not_captured_is_none() -> None:
    manifest = msgspec.structs.replace(
        MANIFEST, run_id=None, command=[], created_epoch_ns=None, ended_ns=None, exit=None, host=Host(), processes=[]
    )
    inputs = analysis_inputs(steps=table(STEPS, []), device_kind=None, model=ModelFacts())
    report = build_report(FakeRecording(manifest=manifest, versions={}), diagnosis(), inputs)
    conditions = msgspec.to_builtins(report.conditions)
    assert set(conditions.values()) == {None}
    run = msgspec.to_builtins(report.run)
    assert [run.pop(name) for name in ("finished", "command_complete")] == [False, False]
    assert set(run.values()) == {None}


def test_an_accelerator_is_not_counted_where_the_count_was_not_captured() -> None:
    conditions = build_report(FakeRecording(), diagnosis(), analysis_inputs(device_kind="spyre")).conditions
    assert (conditions.device_kind, conditions.device_count) == ("spyre", None)


def test_quality_joins_the_recorder_and_the_reader_without_repeating() -> None:
    recording = FakeRecording()
    recording.quality.notes = ["Process 4712 ended without a closing row.", "2 rows could not be read."]
    quality = build_report(recording, diagnosis(), analysis_inputs()).quality
    assert quality.notes == ("Process 4712 ended without a closing row.", "2 rows could not be read.")
    assert [(collector.name, collector.state) for collector in quality.collectors] == [
        ("steps", "ok"),
        ("metrics", "partial"),
    ]
    assert (quality.coverage.processes, quality.coverage.processes_closed) == (2, 1)
    assert quality.coverage.assigned_ratio == 0.912


def test_counts_of_the_reader_stand_with_the_input() -> None:
    (read,) = build_report(FakeRecording(), diagnosis(), analysis_inputs()).inputs
    assert read.counts == {
        "steps": 3,
        "requests": 0,
        "counter_samples": 0,
        "usage_samples": 0,
        "cut_lines": 2,
    }


@pytest.mark.parametrize("epoch_ns", [10**30, -(10**30)])
def test_a_start_that_is_no_time_is_absent(epoch_ns: int) -> None:
    manifest = msgspec.structs.replace(MANIFEST, created_epoch_ns=epoch_ns)
    assert build_report(FakeRecording(manifest=manifest), diagnosis(), analysis_inputs()).run.started is None


def test_a_signal_is_told_as_a_signal() -> None:
    manifest = msgspec.structs.replace(MANIFEST, exit=Exit(signal=9))
    run = build_report(FakeRecording(manifest=manifest), diagnosis(), analysis_inputs()).run
    assert run.exit is not None
    assert (run.exit.code, run.exit.signal) == (None, 9)


def test_a_complete_report_with_a_verdict_lacks_nothing_and_others_say_what() -> None:
    recording = FakeRecording()
    recording.processes["4712-2"].closed = True
    recording.quality.counts = {}
    assert shortfalls(build_report(recording, diagnosis(), analysis_inputs())) == ()

    cut_off = msgspec.structs.replace(MANIFEST, ended_ns=None)
    undetermined = msgspec.structs.replace(
        diagnosis().verdict, primary="undetermined", confidence=None, reason="Peaks are missing."
    )
    report = build_report(FakeRecording(manifest=cut_off), diagnosis(verdict=undetermined), analysis_inputs())
    assert shortfalls(report) == (
        "The recording was cut off before the program ended.",
        "1 of 2 processes ended without a closing row.",
        "2 lines of the recording were cut off.",
        "The verdict is undetermined: Peaks are missing.",
    )


def test_steps_without_decode_leave_batch_and_context_unknown() -> None:
    prefill = decode_step(1_001, 0, 0)
    conditions = build_report(FakeRecording(), diagnosis(), analysis_inputs(steps=table(STEPS, [prefill]))).conditions
    assert conditions.batch is None
    assert conditions.context is None


MS = 1_000_000


def test_windows_are_summed_up_with_what_they_cost() -> None:
    windows = [
        window(1_020, closing_ms=280),
        window(1_010),
        window(1_030, state="failed", reason="the disk is full", operators=None),
        window(0, state="skipped", steps=0, t1=None, t2=None, reason="recent steps are longer than 0.5 s"),
    ]
    told = build_report(FakeRecording(windows=windows), diagnosis(), analysis_inputs()).profiler_windows
    assert told is not None
    assert (told.opened, told.saved, told.steps, told.operators, told.missing) == (3, 2, 12, 2400, None)
    assert [(refusal.reason, refusal.count) for refusal in told.refused] == [("recent steps are longer than 0.5 s", 1)]
    assert (told.pause_total_ns, told.pause_longest_ns, told.pause_median_ns) == (500 * MS, 300 * MS, 100 * MS)
    # 61 s recorded, 42 s steady
    assert told.share_of_recording == pytest.approx(0.5 / 61, rel=1e-4)
    assert told.share_of_steady_window == pytest.approx(0.5 / 42, rel=1e-4)
    first = told.windows[0]
    assert (first.start_ns, first.pause_ns, first.kept_out_ns) == (1_010 * SECOND, 100 * MS, 200 * MS)
    assert [(w.state, w.reason) for w in told.windows] == [
        ("saved", None),
        ("saved", None),
        ("failed", "the disk is full"),
    ]


def test_windows_that_hold_two_processes_up_at_once_count_once() -> None:
    windows = [window(1_010), window(1_010.01, writer="4712-2")]
    told = build_report(FakeRecording(windows=windows), diagnosis(), analysis_inputs()).profiler_windows
    assert told is not None
    # 1010.000 to .020, .010 to .030, .120 to .200 and .130 to .210
    assert told.pause_total_ns == 120 * MS


def test_a_window_outside_of_the_steady_state_takes_no_share_of_it() -> None:
    told = build_report(FakeRecording(windows=[window(1_050)]), diagnosis(), analysis_inputs()).profiler_windows
    assert told is not None
    assert told.share_of_steady_window == 0.0
    nothing = diagnosis(window=None)
    told = build_report(FakeRecording(windows=[window(1_050)]), nothing, analysis_inputs()).profiler_windows
    assert told is not None
    assert told.share_of_steady_window is None


@pytest.mark.parametrize(
    ("state", "refused", "missing"),
    [
        (None, False, "none was asked for, or the program did not load torch"),
        (Collector(name="torch.profiler", state="ok"), False, "no step came after the program had warmed up"),
        (Collector(name="torch.profiler", state="unavailable", reason="failed"), False, "failed"),
        (Collector(name="torch.profiler", state="ok"), True, "every window was refused"),
    ],
)
def test_a_recording_without_a_window_says_why(state: Collector | None, refused: bool, missing: str) -> None:
    manifest = msgspec.structs.replace(MANIFEST, collectors=[state] if state else [])
    windows = [window(1_010, state="skipped", t1=None, t2=None, reason="failed")] if refused else []
    told = build_report(FakeRecording(manifest=manifest, windows=windows), diagnosis(), analysis_inputs())
    assert told.profiler_windows is not None
    assert told.profiler_windows.missing == missing
    assert told.profiler_windows.pause_total_ns is None


@pytest.mark.parametrize(
    "name",
    [
        shards.CUT_LINES,
        shards.UNREADABLE_ROWS,
        shards.OVERLONG_LINES,
        shards.UNREADABLE_FILES,
        requests.UNREADABLE_BENCH_FILES,
        peaks.UNREADABLE_CALIBRATIONS,
        windows.LOST_TRACES,
    ],
)
def test_every_lost_part_of_a_recording_is_a_shortfall(name: str) -> None:
    recording = FakeRecording()
    recording.processes["4712-2"].closed = True
    recording.quality.counts = {name: 1}
    (sentence,) = shortfalls(build_report(recording, diagnosis(), analysis_inputs()))
    assert sentence.startswith("1 ")
