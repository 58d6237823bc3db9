"""A recording made of traces reads like any other, and claims no more than its traces show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import EPOCH_OFFSET_NS, MS, START_NS, TraceBuilder, decode_name, prefill_name

from spyreprof import registry
from spyreprof.errors import UserError
from spyreprof.inputs import InputKind
from spyreprof.recording.imported import import_files
from spyreprof.recording.pack import pack
from spyreprof.recording.store import Recording, open_recording
from spyreprof.report.build import build_report
from spyreprof.report.redact import Redactor
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump

CLOCK_NS = EPOCH_OFFSET_NS + START_NS
STEPS = 4


def engine(**changes: Any) -> TraceBuilder:
    """A prefill and some decodes of one millisecond, half of each in a matrix product."""
    trace = TraceBuilder(**changes)
    for number in range(STEPS):
        start = 2 * MS * number
        trace.step(prefill_name() if number == 0 else decode_name(requests=2), start, start + MS)
        trace.operator("aten::mm", start, start + MS // 2, [[2, 8], [8, 8]])
    return trace


def on_device() -> TraceBuilder:
    """The same with a kernel of a quarter of a millisecond in each step."""
    trace = engine()
    for number in range(STEPS):
        start = 2 * MS * number
        launch = {"cat": "cuda_runtime", "args": {"correlation": number + 1}}
        trace.event("cudaLaunchKernel", start + 1000, start + 2000, **launch)
        trace.kernel("gemm", start + 5000, start + 5000 + MS // 4, correlation=number + 1)
    return trace


def write(path: Path, trace: TraceBuilder, **fields: Any) -> Path:
    path.write_text(json.dumps({**trace.build(), **fields}))
    return path


def imported(tmp_path: Path, *paths: Path) -> Recording:
    import_files(paths, tmp_path / "made.spyreprof")
    return open_recording(tmp_path / "made.spyreprof")


def notes(recording: Recording) -> str:
    return " ".join((*recording.manifest.notes, *recording.quality.notes))


def verdict_of(recording: Recording) -> Any:
    return registry.diagnose(recording.analysis_inputs()).verdict


def test_steps_stand_where_the_trace_has_them(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    steps = recording.steps
    assert (steps["start_ns"] - CLOCK_NS).tolist() == [2 * MS * number for number in range(STEPS)]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [MS] * STEPS
    assert steps["phase"].tolist() == ["prefill", "decode", "decode", "decode"]
    assert steps["profiled"].all()
    assert [step.operators[0].ns for step in recording.window_steps.steps] == [MS // 2] * STEPS
    assert recording.window_steps.notes == ()


def test_the_span_is_that_of_the_traces(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    assert recording.manifest.started_ns == CLOCK_NS
    assert recording.manifest.ended_ns == CLOCK_NS + 2 * MS * (STEPS - 1) + MS


def test_a_trace_of_the_cpu_computes_there(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    assert recording.analysis_inputs().device_kind == "cpu"
    assert recording.window_steps.steps[0].device_busy_ns is None


def test_work_of_a_device_counts_in_the_step_that_launched_it(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", on_device()))
    assert recording.analysis_inputs().device_kind == "cuda"
    assert [step.device_busy_ns for step in recording.window_steps.steps] == [MS // 4] * STEPS


def test_a_device_that_was_asked_for_and_is_not_there_is_not_the_cpu(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", engine(), deviceProperties=[{"id": 0, "name": "device"}])
    recording = imported(tmp_path, trace)
    inputs = recording.analysis_inputs()
    assert inputs.device_kind == Redactor().text("device", "accelerator") == "accelerator"
    assert all(step.operators == () and step.device_busy_ns is None for step in inputs.profiled_steps)
    diagnosis = registry.diagnose(inputs)
    open_question = next(one for one in diagnosis.not_judged if one.topic == "time on the device, phases included")
    assert "holds no work of it" in open_question.reason
    assert "ProfilerActivity" in open_question.obtain


def test_a_cut_file_without_a_device_leaves_open_where_the_program_computed(tmp_path: Path) -> None:
    whole = json.dumps(engine().build()).encode()
    (tmp_path / "cut.json").write_bytes(whole[:-40])
    assert imported(tmp_path, tmp_path / "cut.json").analysis_inputs().device_kind is None
    (tmp_path / "second").mkdir()
    (tmp_path / "whole.json").write_bytes(whole)
    assert imported(tmp_path / "second", tmp_path / "whole.json").analysis_inputs().device_kind == "cpu"


@pytest.mark.parametrize("trace", [engine(), on_device()], ids=["cpu", "device"])
def test_no_trace_alone_gets_a_verdict(tmp_path: Path, trace: TraceBuilder) -> None:
    verdict = verdict_of(imported(tmp_path, write(tmp_path / "trace.json", trace)))
    assert (verdict.primary, verdict.confidence) == ("undetermined", None)
    assert "under a profiler" in verdict.reason
    assert "spyreprof record" in verdict.missing[0].obtain


def test_an_imported_recording_keeps_its_id_in_a_report(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    inputs = recording.analysis_inputs()
    report = build_report(recording, registry.diagnose(inputs), inputs)
    assert report.run.run_id == recording.manifest.run_id


def test_the_profiler_is_no_pause_of_an_imported_recording(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    assert recording.analysis_inputs().pauses == ()


def test_ranks_come_from_the_traces(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{rank}.json", engine(), distributedInfo={"rank": rank, "world_size": 2}) for rank in (1, 0)
    ]
    recording = imported(tmp_path, *paths)
    assert [(one.rank.rank, one.world_size) for one in recording.trace_summaries] == [(1, 2), (0, 2)]
    assert set(recording.steps["rank"]) == {0, 1}
    assert len(recording.steps) == 2 * STEPS
    assert "ank" not in notes(recording)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", engine(), distributedInfo={"rank": 0, "world_size": 4})
    assert "Ranks without a trace here, of which nothing is known: 3 of 4." in notes(imported(tmp_path, trace))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-34.json", 34),
        ("dp0_pp0_tp1_dcp0_ep1_rank3.1780000000.pt.trace.json", 3),
        ("1780000000.5-TP-2.trace.json", 2),
        ("worker_RANK_7.json", 7),
    ],
)
def test_a_rank_may_stand_in_the_name_of_the_file(tmp_path: Path, name: str, rank: int) -> None:
    recording = imported(tmp_path, write(tmp_path / name, engine()))
    assert set(recording.steps["rank"]) == {rank}
    assert "Ranks taken from the names of files: 1." in notes(recording)


@pytest.mark.parametrize("name", ["trace.json", "frank3.json", "rank99999999.json", "tp1.json"])
def test_a_rank_that_nothing_tells_is_taken_for_0(tmp_path: Path, name: str) -> None:
    recording = imported(tmp_path, write(tmp_path / name, engine()))
    assert set(recording.steps["rank"]) == {0}
    assert "do not tell their rank" in notes(recording)


def test_what_a_trace_says_of_its_rank_goes_before_its_name(tmp_path: Path) -> None:
    trace = write(tmp_path / "rank5.json", engine(), distributedInfo={"rank": 1, "world_size": 2})
    assert set(imported(tmp_path, trace).steps["rank"]) == {1}


def test_a_cut_trace_keeps_the_steps_before_the_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", engine())
    text = path.read_text()
    path.write_text(text[: text.rindex("aten::mm")])
    recording = imported(tmp_path, path)
    assert 0 < len(recording.steps) < STEPS
    assert len(recording.steps) == len(recording.window_steps.steps)
    assert "file_cut_short" in {fault.kind for fault in recording.trace_summaries[0].faults}
    cut = next(one for one in registry.diagnose(recording.analysis_inputs()).not_judged if "idle" in one.topic)
    assert "cut short" in cut.reason


@pytest.mark.parametrize("step", [None, "ProfilerStep#3"])
def test_a_trace_without_steps_of_an_engine_says_so(tmp_path: Path, step: str | None) -> None:
    trace = TraceBuilder().operator("aten::mm", 0, MS)
    if step is not None:
        trace.step(step, 0, MS)
    recording = imported(tmp_path, write(tmp_path / "trace.json", trace))
    assert len(recording.steps) == 0
    assert len(recording.trace_summaries) == 1
    diagnosis = registry.diagnose(recording.analysis_inputs())
    assert diagnosis.verdict.primary == "undetermined"
    assert "no step of an engine" in next(
        one.reason for one in diagnosis.not_judged if one.topic == "prefill and decode"
    )


def test_steps_before_the_clock_began_are_left_out(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine(base_ns=-5 * MS)))
    assert len(recording.steps) == 0
    assert recording.window_steps.steps == ()
    assert "times before its clock began" in notes(recording)


def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 01-02 03:04:05 [engine.py:10] ready\n" * 3)
    trace = write(tmp_path / "trace.json", engine())
    assert "Given but not read: a vLLM log (1)." in notes(imported(tmp_path, log, trace))


@pytest.mark.parametrize("kind", [kind for kind in InputKind if not kind.is_read])
def test_a_report_may_name_every_kind_of_file(kind: InputKind) -> None:
    sentence = f"Given but not read: {kind.value} (1)."
    assert Redactor().text("sentence", sentence) == sentence


def test_a_trace_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"traceEvents": []}')
    recording = imported(tmp_path, empty, write(tmp_path / "trace.json", engine()))
    assert "cannot be read, left out: 1." in notes(recording)
    assert len(recording.trace_summaries) == 1
    assert len(recording.steps) == STEPS


def test_a_trace_given_twice_counts_once(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", engine())
    recording = imported(tmp_path, trace, trace)
    assert len(recording.steps) == STEPS
    assert "given twice" in notes(recording)


def test_a_packed_import_says_the_same(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", on_device()))
    packed = open_recording(pack(recording.path, tmp_path / "packed.spyreprof.zip"))
    assert packed.trace_summaries == recording.trace_summaries
    assert packed.window_steps == recording.window_steps
    assert verdict_of(packed) == verdict_of(recording)


def test_the_path_of_a_trace_stays_in_the_manifest(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    assert recording.manifest.imported is not None
    only = recording.manifest.imported[0]
    assert (only.kind, only.path, only.size_bytes) == (
        "trace",
        str(tmp_path / "trace.json"),
        (tmp_path / "trace.json").stat().st_size,
    )
    holding = [path.name for path in recording.path.rglob("*.json*") if str(tmp_path) in path.read_text()]
    assert holding == ["manifest.json"]


def test_what_cannot_be_read_leaves_no_folder(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"traceEvents": []}')
    with pytest.raises(UserError):
        import_files([empty], tmp_path / "made.spyreprof")
    assert not (tmp_path / "made.spyreprof").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "precious").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        import_files([write(tmp_path / "trace.json", engine())], tmp_path / "made")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["precious"]


def test_a_recording_is_not_imported_again(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    with pytest.raises(UserError, match="a recording already"):
        import_files([recording.path], tmp_path / "again")


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b"[]" + b" " * 2**22])
def test_a_damaged_summary_is_left_out_and_said(tmp_path: Path, damage: bytes) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    (recording.path / "traces" / "1.summary.json").write_bytes(damage)
    again = open_recording(recording.path)
    assert again.trace_summaries == ()
    assert "Summaries of imported traces that are damaged, left out: 1." in notes(again)
    assert verdict_of(again).primary == "undetermined"


@pytest.mark.parametrize("trace", [engine(), on_device()], ids=["no device", "device"])
def test_texts_of_a_stranger_s_summary_reach_no_report(tmp_path: Path, trace: TraceBuilder) -> None:
    trace.event("nccl:all_reduce", 3 * MS, 4 * MS)
    path = write(tmp_path / "trace.json", trace, deviceProperties=[{"id": 0}])
    path.write_text(path.read_text()[:-20])
    recording = imported(tmp_path, path)
    stored = recording.path / "traces" / "1.summary.json"
    summary = json.loads(stored.read_text())
    assert summary["faults"]
    evil = "\x1b[31mzzevil"
    stored.write_text(json.dumps(_spoiled(summary, evil)))
    again = open_recording(recording.path)
    assert len(again.trace_summaries) == 1
    inputs = again.analysis_inputs()
    report = build_report(again, registry.diagnose(inputs), inputs)
    assert b"zzevil" not in dump(report)
    assert "zzevil" not in render(report, 100, show_all=True, color=False, ascii_only=False)


def _spoiled(summary: dict[str, Any], evil: str) -> dict[str, Any]:
    """The same with each free text replaced."""
    free = {"sentence", "name", "category", "dialect", "dialect_title", "operation", "backend", "window_basis"}
    lists_of_text = {"quality"}
    reasons = {"devices_reason", "phases_reason", "idle_reason", "copy_reason", "overlap_reason"}

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {inner: spoil(part, inner) for inner, part in value.items()}
        if isinstance(value, list):
            return [evil] if key in lists_of_text else [spoil(part) for part in value]
        return evil if key in free or (key in reasons and value is not None) else value

    spoiled: dict[str, Any] = spoil(summary)
    return spoiled


@pytest.mark.parametrize("key", ["start_ns", "operator_count", "gap_ns", "generation_tokens"])
@pytest.mark.parametrize("value", [-(2**70), 2**70, "many", 0.5])
def test_damaged_steps_are_left_out_and_said(tmp_path: Path, key: str, value: object) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    stored = recording.path / "traces" / "1.steps.json"
    steps = json.loads(stored.read_text())
    steps[0][key] = value
    stored.write_text(json.dumps(steps))
    again = open_recording(recording.path)
    assert again.window_steps.steps == ()
    assert again.window_steps.lost_traces == 1
    assert "steps are missing or damaged: 1." in notes(again)


def test_steps_that_are_gone_are_said(tmp_path: Path) -> None:
    recording = imported(tmp_path, write(tmp_path / "trace.json", engine()))
    (recording.path / "traces" / "1.steps.json").unlink()
    assert "steps are missing or damaged: 1." in notes(open_recording(recording.path))


def test_progress_reaches_the_size_of_all_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{rank}.json", engine()) for rank in range(2)]
    told: list[tuple[int, int]] = []
    import_files(paths, tmp_path / "made", progress=lambda done, total: told.append((done, total)))
    total = sum(path.stat().st_size for path in paths)
    assert {of for _, of in told} == {total}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == total
