"""What was made of files is kept for a second look, and nothing but the user's own is ever used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spyreprof.errors import UserError
from spyreprof.recording import import_cache
from spyreprof.recording.content_key import content_key
from spyreprof.recording.import_cache import Entry, entry_for


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "trace.json"
    path.write_bytes(b"[" + b" " * 300_000 + b"]")
    return path


def make(folder: Path) -> None:
    folder.mkdir()
    (folder / "content").write_text("made")


def filled(path: Path) -> Entry:
    entry = entry_for([path])
    entry.fill(make)
    return entry


def test_a_second_look_finds_what_the_first_made(trace: Path) -> None:
    assert not entry_for([trace]).complete
    filled(trace)
    again = entry_for([trace])
    assert again.complete
    assert (again.path / "content").read_text() == "made"


def test_what_is_kept_is_the_users_alone(trace: Path) -> None:
    root = filled(trace).path.parent
    assert root.stat().st_mode & 0o777 == 0o700


def test_other_content_is_another_entry_even_in_the_middle_and_at_equal_times(trace: Path) -> None:
    before = trace.stat()
    key = content_key(trace)
    content = bytearray(trace.read_bytes())
    content[150_000] = ord("\n")
    trace.write_bytes(content)
    os.utime(trace, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content_key(trace) != key


def test_the_order_of_files_tells_entries_apart(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(b"[1]")
    assert entry_for([trace, other]).path != entry_for([other, trace]).path


def test_what_failed_to_be_made_leaves_nothing_behind(trace: Path) -> None:
    entry = entry_for([trace])

    def fail(folder: Path) -> None:
        make(folder)
        raise UserError("It cannot be made.", "Give another file.")

    with pytest.raises(UserError):
        entry.fill(fail)
    assert not entry.complete
    assert list(entry.path.parent.iterdir()) == []


def test_an_entry_that_is_a_link_or_writable_by_others_is_made_anew(trace: Path, tmp_path: Path) -> None:
    entry = filled(trace)
    entry.path.chmod(0o777)
    assert not entry_for([trace]).complete
    entry.path.chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    entry.path.rename(elsewhere)
    entry.path.symlink_to(elsewhere)
    assert not entry_for([trace]).complete
    assert entry_for([trace]).stored("content") is None
    filled(trace)
    assert entry_for([trace]).complete
    assert not entry.path.is_symlink()


def test_a_cache_folder_of_somebody_else_is_not_used(trace: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "spyreprof"
    root.mkdir(parents=True)
    root.chmod(0o777)
    entry = filled(trace)
    assert entry.complete
    assert list(root.iterdir()) == []


def test_without_keeping_all_is_gone_with_the_entry(trace: Path, tmp_path: Path) -> None:
    entry = entry_for([trace], keep=False)
    entry.fill(make)
    path = entry.path
    assert entry.complete
    del entry
    assert not path.exists()
    assert not (tmp_path / "cache").exists()


def test_the_oldest_entries_make_room(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_cache, "MAX_ENTRIES", 3)
    paths = []
    for number in range(5):
        path = tmp_path / f"{number}.json"
        path.write_text(f"[{number}]")
        entry = filled(path)
        os.utime(entry.path, (number, number))
        paths.append(path)
    assert [entry_for([path]).complete for path in paths] == [False, False, True, True, True]


def test_too_many_bytes_make_room_too(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = filled(trace)
    other = tmp_path / "other.json"
    other.write_text("[1]")
    monkeypatch.setattr(import_cache, "MAX_TOTAL_BYTES", 1)
    filled(other)
    assert not first.complete
    assert entry_for([other]).complete


def test_a_pipe_is_refused_at_once(trace: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="not a regular file"):
        content_key(pipe)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        content_key(tmp_path / "absent")
