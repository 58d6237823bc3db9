"""`pack`: one file of a recording, and nothing lost or overwritten on the way."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest
from command_lines import make_recording, run

from spyreprof.errors import UserError
from spyreprof.recording.pack import pack


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_packed_recording_holds_every_file_as_it_was(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    done = run("pack", "run.spyreprof", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "run.spyreprof.zip\n")
    with zipfile.ZipFile(tmp_path / "run.spyreprof.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == contents(recording)
        assert "manifest.json" in archive.namelist()


def test_a_packed_recording_opens_like_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("msgspec")
    pytest.importorskip("pandas")
    from spyreprof.recording.store import open_recording

    recording = make_recording(tmp_path)
    packed = pack(recording, tmp_path / "p.spyreprof.zip")
    assert open_recording(packed).manifest == open_recording(recording).manifest
    assert open_recording(packed).usage.equals(open_recording(recording).usage)


def test_tables_and_links_stay_out(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    before = set(contents(recording))
    (recording / "tables").mkdir()
    (recording / "tables" / "steps.parquet").write_bytes(b"x")
    (recording / "summary.json").write_text("{}")
    (recording / "link").symlink_to("/etc/passwd")
    (recording / "shards" / "folder").symlink_to("/etc")
    with zipfile.ZipFile(pack(recording, tmp_path / "p.zip")) as archive:
        assert set(archive.namelist()) == before


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    make_recording(tmp_path)
    (tmp_path / "run.spyreprof.zip").write_text("precious")
    done = run("pack", "run.spyreprof", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists" in done.stderr
    assert (tmp_path / "run.spyreprof.zip").read_text() == "precious"
    assert run("pack", "run.spyreprof", "--out", "other.zip", cwd=tmp_path).returncode == 0


def test_more_files_than_a_reader_takes_are_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = make_recording(tmp_path)
    monkeypatch.setattr("spyreprof.recording.pack.MAX_MEMBERS", len(contents(recording)))
    pack(recording, tmp_path / "fits.zip")
    monkeypatch.setattr("spyreprof.recording.pack.MAX_MEMBERS", len(contents(recording)) - 1)
    with pytest.raises(UserError, match="more than a packed recording may"):
        pack(recording, tmp_path / "more.zip")
    assert not list(tmp_path.glob("*more*"))


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    (tmp_path / "out.zip").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="exists"):
        pack(recording, tmp_path / "out.zip")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_packed_into_the_recording_itself_does_not_hold_itself(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    before = set(contents(recording))
    with zipfile.ZipFile(pack(recording, recording / "inside.zip")) as archive:
        assert set(archive.namelist()) == before


@pytest.mark.parametrize("name", ["missing", "empty", "file.txt", "already.spyreprof.zip"])
def test_what_is_no_recording_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "already.spyreprof.zip").write_text("x")
    done = run("pack", name, cwd=tmp_path)
    assert done.returncode == 2
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_is_wrong_use_and_leaves_nothing(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    for out in (tmp_path / "no" / "where.zip", Path("/proc/x.zip")):
        with pytest.raises(UserError, match="Cannot write"):
            pack(recording, out)
    assert [path.name for path in tmp_path.iterdir()] == ["run.spyreprof"]


def test_a_failure_half_way_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = make_recording(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "open", full)
    with pytest.raises(UserError, match="no space left"):
        pack(recording, tmp_path / "p.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["run.spyreprof"]


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    os.umask(0o022)
    packed = pack(make_recording(tmp_path), tmp_path / "p.zip")
    assert stat.S_IMODE(packed.stat().st_mode) == 0o600


def test_a_file_system_without_links_is_packed_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert zipfile.is_zipfile(pack(make_recording(tmp_path), tmp_path / "p.zip"))
