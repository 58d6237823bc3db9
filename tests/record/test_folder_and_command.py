"""Where the recording goes, and what happens when the program cannot be started."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from recording_run import environment, python, record, record_command


def refused(tmp_path: Path, words: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        words, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_command_that_does_not_exist_gives_127_and_leaves_nothing(tmp_path: Path) -> None:
    code, stderr = refused(tmp_path, record_command(None, ["no-such-program"]))
    assert code == 127
    assert stderr.startswith("spyreprof: no-such-program: command not found.")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["./missing", "/nowhere/at/all"])
def test_a_path_that_does_not_exist_gives_127(tmp_path: Path, name: str) -> None:
    code, stderr = refused(tmp_path, record_command(None, [name]))
    assert (code, list(tmp_path.iterdir())) == (127, [])
    assert "no such file" in stderr


def test_a_file_that_is_not_executable_gives_126_and_says_how_to_run_it(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("print(1)\n")
    code, stderr = refused(tmp_path, record_command(None, ["./serve.py"]))
    assert code == 126
    assert "not executable" in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["serve.py"]


def test_a_folder_as_command_gives_126(tmp_path: Path) -> None:
    code, stderr = refused(tmp_path, record_command(None, [str(tmp_path)]))
    assert code == 126
    assert "is a folder" in stderr


def test_a_file_of_another_machine_gives_126_and_leaves_nothing(tmp_path: Path) -> None:
    # an ELF header of no known machine
    binary = tmp_path / "program"
    binary.write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x02\0\xff\xff" + b"\0" * 100)
    binary.chmod(0o755)
    code, stderr = refused(tmp_path, record_command(None, ["./program"]))
    assert code == 126
    assert "cannot be run" in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


def test_no_command_is_wrong_use(tmp_path: Path) -> None:
    code, stderr = refused(tmp_path, [sys.executable, "-m", "spyreprof", "record"])
    assert code == 2
    assert "CMD" in stderr


@pytest.mark.parametrize("value", ["steps=0", "steps=x", "4", "on", ""])
def test_a_profile_window_that_makes_no_sense_is_wrong_use(tmp_path: Path, value: str) -> None:
    code, stderr = refused(tmp_path, record_command(None, ["true"], "--profile-window", value))
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "Use steps=N" in stderr


def test_an_existing_recording_is_never_overwritten(tmp_path: Path) -> None:
    first = record(tmp_path, python("pass"))
    before = first.path.joinpath("manifest.json").read_bytes()
    code, stderr = refused(tmp_path, record_command(first.path, python("pass")))
    assert code == 2
    assert "already holds a recording" in stderr
    assert first.path.joinpath("manifest.json").read_bytes() == before


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    code, stderr = refused(tmp_path, record_command(Path("mine"), ["true"]))
    assert code == 2
    assert "mine is not empty" in stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_existing_empty_folder_is_used_and_kept_when_the_program_cannot_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _ = refused(tmp_path, record_command(empty, ["./missing"]))
    assert (code, list(empty.iterdir())) == (127, [])
    code, _ = refused(tmp_path, record_command(empty, ["true"]))
    assert code == 0
    assert (empty / "manifest.json").exists()


def test_a_file_in_the_way_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (Path("file"), Path("file/below")):
        code, stderr = refused(tmp_path, record_command(out, ["true"]))
        assert code == 2
        assert "Cannot make the recording folder" in stderr
        assert "--out" in stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where nobody can make folders")
def test_a_place_where_no_folder_can_be_made_is_wrong_use(tmp_path: Path) -> None:
    code, stderr = refused(tmp_path, record_command(Path("/proc/recording"), ["true"]))
    assert code == 2
    assert stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_wrong_use(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert refused(tmp_path, record_command(closed / "r", ["true"]))[0] == 2
    assert refused(tmp_path, record_command(closed, ["true"]))[0] == 2


def test_missing_parents_are_made(tmp_path: Path) -> None:
    code, _ = refused(tmp_path, record_command(Path("a/b/c.spyreprof"), ["true"]))
    assert code == 0
    assert (tmp_path / "a/b/c.spyreprof/manifest.json").exists()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (["python", "serve.py"], "serve-"),
        (["python", "-m", "vllm.entrypoints.openai.api_server"], "api_server-"),
        (["python", "-c", "pass"], "python-"),
        (["sh", "-c", "true"], "sh-"),
    ],
)
def test_the_default_folder_is_named_after_the_program(tmp_path: Path, program: list[str], expected: str) -> None:
    (tmp_path / "serve.py").write_text("")
    program = [sys.executable if word == "python" else word for word in program]
    refused(tmp_path, record_command(None, program))
    (folder,) = tmp_path.glob("*.spyreprof")
    assert folder.name.startswith(expected.replace("python-", Path(sys.executable).name + "-"))


def test_two_recordings_within_a_second_get_two_folders(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(record_command(None, ["true"], "-q"), env=environment(), cwd=tmp_path) for _ in range(3)
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(list(tmp_path.glob("true-*.spyreprof"))) == 3


def test_everything_is_for_the_owners_eyes_only(tmp_path: Path) -> None:
    os.umask(0o022)
    run = record(tmp_path, python("import os; os.umask(0); print(1)"))
    for path in (run.path, *run.path.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert len(list(run.path.rglob("*"))) > 4


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    run = record(tmp_path, python("pass"))
    assert not [path for path in run.path.rglob("*") if path.name.startswith(".") or path.suffix == ".tmp"]


WRITES_FAIL = """
import errno, os, sys
from pathlib import Path
from spyreprof.cli import main
from spyreprof_collectors import folder
def refuse(*_, **__):
    raise OSError(errno.NUMBER, os.strerror(errno.NUMBER))
folder.write_json = refuse
if STAYS:
    Path.rmdir = refuse
main(sys.argv[1:])
"""


def told_of(tmp_path: Path, number: str, words: list[str], stays: bool = False) -> None:
    program = WRITES_FAIL.replace("NUMBER", number).replace("STAYS", str(stays))
    code, stderr = refused(tmp_path, [sys.executable, "-c", program, *words])
    reason = os.strerror(getattr(errno, number)).lower()
    assert code == 1
    assert stderr.splitlines()[-1].startswith("spyreprof: Cannot write into ")
    assert f": {reason}. " in stderr.splitlines()[-1]
    assert "--out" in stderr
    assert [path.name for path in tmp_path.iterdir()] == (["r"] if stays else [])


@pytest.mark.parametrize("options", [(), ("--repeat", "2")])
@pytest.mark.parametrize("number", ["EROFS", "EIO", "EACCES", "ENOSPC", "EDQUOT"])
def test_a_first_manifest_that_cannot_be_written_is_told_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, number: str, options: tuple[str, ...]
) -> None:
    words = record_command(Path("r"), ["true"], *options)
    told_of(tmp_path, number, words[words.index("record") :])


@pytest.mark.parametrize("options", [(), ("--repeat", "2")])
def test_a_folder_that_cannot_be_taken_back_either_hides_no_cause(tmp_path: Path, options: tuple[str, ...]) -> None:
    words = record_command(Path("r"), ["true"], *options)
    told_of(tmp_path, "EROFS", words[words.index("record") :], stays=True)


@pytest.mark.parametrize("stays", [False, True])
def test_an_attachment_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path, stays: bool) -> None:
    told_of(tmp_path, "EROFS", ["attach", "--pid", str(os.getpid()), "--out", "r"], stays)
