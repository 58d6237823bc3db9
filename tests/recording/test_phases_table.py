"""The table of named parts, and which names may leave it."""

from __future__ import annotations

from pathlib import Path

from builders import START_NS, RecordingBuilder

from spyreprof.recording.phases import PUBLIC_NAMES
from spyreprof.recording.store import Recording, open_recording


def recorded(tmp_path: Path, *rows: tuple[int, int, str]) -> Recording:
    shard = [{"t0": START_NS + start, "t1": START_NS + end, "n": name} for start, end, name in rows]
    return open_recording(RecordingBuilder(tmp_path / "run.spyreprof").shard("phases", shard).write())


def test_parts_are_sorted_and_what_is_none_is_counted(tmp_path: Path) -> None:
    recording = recorded(tmp_path, (20, 30, "sample"), (0, 10, "schedule"), (9, 4, "sample"), (1, 2, "No name"))
    assert recording.phases["name"].tolist() == ["schedule", "sample"]
    assert (recording.phases["end_ns"] - recording.phases["start_ns"]).tolist() == [10, 10]
    assert recording.quality.counts["backward_phases"] == 1
    assert recording.quality.counts["unreadable_rows"] == 1


def test_analyzers_get_no_name_that_is_not_common_knowledge(tmp_path: Path) -> None:
    names = ("schedule", "project_falcon", "customer_7", "project_falcon")
    recording = recorded(tmp_path, *((place, place + 1, name) for place, name in enumerate(names)))
    given = recording.analysis_inputs().named_phases
    assert given is not None
    assert given["name"].tolist() == ["schedule", "part 2", "part 1", "part 2"]
    assert recording.phases["name"].tolist() == list(names)


def test_a_recording_without_parts_gives_none(tmp_path: Path) -> None:
    assert recorded(tmp_path).analysis_inputs().named_phases is None


def test_public_names_can_be_given() -> None:
    assert all(name.isascii() and name.islower() and len(name) <= 32 for name in PUBLIC_NAMES)
