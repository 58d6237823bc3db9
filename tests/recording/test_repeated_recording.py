"""Repeated recordings, read: as a folder, packed, in part, and from a stranger."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from builders import SECOND, START_NS, RecordingBuilder, decode_name

import spyreprof
from spyreprof.errors import UserError
from spyreprof.recording.manifest import Exit, Manifest, Repeat
from spyreprof.recording.pack import pack
from spyreprof.recording.repeats import open_repeats, run_state


def repeated(path: Path, runs: int = 3, **changes: Any) -> Path:
    """A recording of several runs; run k holds k steps."""
    for k in range(1, runs + 1):
        run = RecordingBuilder(path / "runs" / str(k)).process()
        run.steps((START_NS + i * SECOND, START_NS + i * SECOND + 5, decode_name()) for i in range(k))
        run.manifest["repeat"] = {"k": k, "of": runs}
        run.write()
    document = {
        "schema_version": 1,
        "run_id": "a",
        "repeat_count": runs,
        "repeats": [{"k": k, "folder": f"runs/{k}", "ended_ns": 1, "exit": {"code": 0}} for k in range(1, runs + 1)],
    }
    (path / "manifest.json").write_text(json.dumps({**document, **changes}))
    return path


@pytest.fixture(params=["folder", "packed", "packed in a folder"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = repeated(tmp_path / "run.spyreprof")
    if request.param == "folder":
        return folder
    packed = pack(folder, tmp_path / "run.spyreprof.zip")
    if request.param == "packed":
        return packed
    nested = tmp_path / "nested.zip"
    with zipfile.ZipFile(packed) as archive, zipfile.ZipFile(nested, "w") as into:
        for name in archive.namelist():
            into.writestr(f"run.spyreprof/{name}", archive.read(name))
    return nested


def test_each_run_is_read_alone(recording: Path) -> None:
    repeats = open_repeats(recording)
    assert repeats is not None
    assert repeats.of == 3
    assert [(run.k, run.state) for run in repeats.runs] == [(1, "complete"), (2, "complete"), (3, "complete")]
    assert [len(run.recording.steps) for run in repeats.runs if run.recording is not None] == [1, 2, 3]
    assert len(spyreprof.load(recording, run=2).steps) == 2
    assert spyreprof.load(recording, run=2).manifest.repeat == Repeat(k=2, of=3)


def test_loading_it_without_naming_a_run_says_how_to_name_one(recording: Path) -> None:
    with pytest.raises(UserError, match="holds 3 repeated runs, not one recording") as caught:
        spyreprof.load(recording)
    assert "run=K" in caught.value.remedy


def test_a_run_that_is_not_there_is_refused_with_those_that_are(recording: Path) -> None:
    with pytest.raises(UserError, match="has no run 4") as caught:
        spyreprof.load(recording, run=4)
    assert "1, 2, 3" in caught.value.remedy


def test_the_folder_of_a_run_is_a_recording_of_its_own(tmp_path: Path) -> None:
    path = repeated(tmp_path / "run.spyreprof")
    assert len(spyreprof.load(path / "runs" / "2").steps) == 2
    assert open_repeats(path / "runs" / "2") is None


def test_a_single_recording_has_no_numbered_run(tmp_path: Path) -> None:
    path = RecordingBuilder(tmp_path / "run.spyreprof").process().write()
    assert open_repeats(path) is None
    with pytest.raises(UserError, match="holds one run"):
        spyreprof.load(path, run=1)


def test_tables_of_the_runs_are_left_out_of_a_packed_recording(tmp_path: Path) -> None:
    path = repeated(tmp_path / "run.spyreprof")
    assert len(spyreprof.load(path, run=2).steps) == 2
    assert list((path / "runs" / "2" / "tables").iterdir())
    with zipfile.ZipFile(pack(path, tmp_path / "p.zip")) as archive:
        assert not [name for name in archive.namelist() if "tables" in name]


@pytest.mark.parametrize("damage", ["{", None])
def test_a_run_that_cannot_be_read_costs_itself_only(tmp_path: Path, damage: str | None) -> None:
    path = repeated(tmp_path / "run.spyreprof")
    manifest = path / "runs" / "2" / "manifest.json"
    manifest.unlink() if damage is None else manifest.write_text(damage)
    repeats = open_repeats(path)
    assert repeats is not None
    assert [run.state for run in repeats.runs] == ["complete", "unreadable", "complete"]


@pytest.mark.parametrize("part", ["runs", "runs/1"])
def test_a_link_among_the_folders_is_not_followed(tmp_path: Path, part: str) -> None:
    path, elsewhere = repeated(tmp_path / "run.spyreprof", 1), tmp_path / "elsewhere"
    (path / part).rename(elsewhere)
    (path / part).symlink_to(elsewhere)
    repeats = open_repeats(path)
    assert repeats is not None
    assert [run.state for run in repeats.runs] == ["unreadable"]


def test_what_the_list_says_of_folders_is_not_believed(tmp_path: Path) -> None:
    listed = [{"k": 1, "folder": "../../elsewhere"}, {"k": 0}, {"k": -5}, {"k": 10**9}, {"k": 1}]
    repeats = open_repeats(repeated(tmp_path / "run.spyreprof", 1, repeats=listed, repeat_count=10**9))
    assert repeats is not None
    assert [run.k for run in repeats.runs] == [1]
    assert repeats.of == 99


@pytest.mark.parametrize("listed", [[], [{"k": 1000}]])
def test_a_list_without_a_run_is_refused(tmp_path: Path, listed: list[dict[str, int]]) -> None:
    path = repeated(tmp_path / "run.spyreprof", 1, repeats=listed)
    with pytest.raises(UserError, match="lists no run"):
        open_repeats(path)


def test_a_list_that_is_none_is_a_damaged_manifest(tmp_path: Path) -> None:
    path = repeated(tmp_path / "run.spyreprof", 1, repeats=[{"k": "one"}])
    with pytest.raises(UserError, match="damaged"):
        open_repeats(path)


@pytest.mark.parametrize(
    ("manifest", "state"),
    [
        (Manifest(1, ended_ns=1, exit=Exit(code=0)), "complete"),
        (Manifest(1, ended_ns=1, exit=Exit(signal=15), duration_reached=True), "complete"),
        (Manifest(1, ended_ns=1, exit=Exit(code=1)), "stopped"),
        (Manifest(1, ended_ns=1, exit=Exit(signal=9)), "stopped"),
        (Manifest(1, ended_ns=1, exit=Exit(code=0), interrupted=True), "stopped"),
        (Manifest(1), "cut_off"),
    ],
)
def test_what_counts_as_a_repeat(manifest: Manifest, state: str) -> None:
    assert run_state(manifest) == state
