"""What a recording says of its own completeness."""

from __future__ import annotations

from pathlib import Path

from builders import SECOND, START_NS, RecordingBuilder, decode_name

from spyreprof.recording.store import open_recording


def complete(tmp_path: Path) -> RecordingBuilder:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process()
    return builder.steps([(START_NS, START_NS + 5, decode_name())]).metrics([(START_NS, ["a 1"])])


def test_a_complete_recording_says_nothing(tmp_path: Path) -> None:
    quality = open_recording(complete(tmp_path).write()).quality
    assert quality.notes == ()
    assert quality.counts == {}
    assert quality.collectors == ()


def test_a_signal_is_named(tmp_path: Path) -> None:
    builder = complete(tmp_path)
    builder.manifest["exit"] = {"signal": 9}
    assert open_recording(builder.write()).quality.notes == ("The program was ended by signal 9 (SIGKILL).",)


def test_collectors_that_did_not_see_everything_keep_reason_and_remedy(tmp_path: Path) -> None:
    builder = complete(tmp_path)
    builder.manifest["collectors"] += [
        {"name": "metrics", "state": "partial", "reason": "the page was cut", "obtain": "raise the limit"},
    ]
    (collector,) = open_recording(builder.write()).quality.collectors
    assert (collector.name, collector.reason, collector.obtain) == ("metrics", "the page was cut", "raise the limit")


def test_steps_whose_shard_was_removed_are_missed(tmp_path: Path) -> None:
    builder = complete(tmp_path)
    (shard,) = (Path(name) for name in builder.files if name.startswith("shards/steps-"))
    writer = shard.stem.removeprefix("steps-")
    builder.manifest["processes"] = [{"writer": writer, "steps": 1}, {"writer": "99-f", "steps": 260}]
    quality = open_recording(builder.write()).quality
    assert quality.counts == {"lost_steps": 260}
    assert any(": 260" in note for note in quality.notes)


def test_a_process_that_did_not_close_is_counted(tmp_path: Path) -> None:
    builder = complete(tmp_path).process("99-f", end_ns=None, pid=99)
    assert open_recording(builder.write()).quality.counts == {"processes_without_closing_row": 1}


def test_a_process_that_became_another_program_counts_as_closed(tmp_path: Path) -> None:
    builder = complete(tmp_path).process("99-f", end_ns=None, pid=99)
    builder.shard("process", [{"k": "exec", "t": START_NS + 3}], "99-f")
    assert open_recording(builder.write()).quality.counts == {}


def test_windows_that_came_to_nothing_are_said_by_cause(tmp_path: Path) -> None:
    builder = complete(tmp_path)
    for number, state in enumerate(("stolen", "stolen", "failed", "yielded", "skipped"), start=1):
        builder.window(n=number, state=state)
    quality = open_recording(builder.write()).quality
    assert quality.counts == {"windows_stolen": 2, "windows_failed": 1, "windows_yielded": 1}
    assert any("took over" in note and ": 2" in note for note in quality.notes)


def test_processor_time_that_the_host_took_away_is_said(tmp_path: Path) -> None:
    builder = complete(tmp_path)
    builder.usage(
        {"k": "system", "t": START_NS + i * SECOND, "cpu_total_ns": i * 2 * SECOND, "cpu_idle_ns": 0, "steal_ns": s}
        for i, s in enumerate((0, SECOND // 10, SECOND // 5))
    )
    (note,) = open_recording(builder.write()).quality.notes
    assert "5.0 %" in note


def test_rows_of_an_unknown_kind_are_counted(tmp_path: Path) -> None:
    builder = complete(tmp_path).shard("process", [{"k": "teleport", "t": 1}])
    assert open_recording(builder.write()).quality.counts == {"unknown_rows": 1}


def test_versions_are_those_of_the_process_with_the_steps(tmp_path: Path) -> None:
    recording = open_recording(complete(tmp_path).write())
    assert recording.versions == {"torch": "2.13.0+cpu", "vllm": None}


def test_usage_rows_hold_the_process_and_its_threads(tmp_path: Path) -> None:
    builder = complete(tmp_path)
    builder.usage([{"t": 7, "pid": 5, "cpu_ns": 30, "rss_bytes": 99, "threads": [[5, "python", 20], [6, "pool", 10]]}])
    usage = open_recording(builder.write()).usage
    assert usage["cpu_ns"].tolist() == [30, 20, 10]
    assert usage["tid"].isna().tolist() == [True, False, False]
    assert usage["rss_bytes"].isna().tolist() == [False, True, True]
