"""What the launcher reads from a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from recording_run import python, record

from spyreprof_collectors.command import display_name, is_binary, python_program, resolve

ENVIRON = {"PATH": "/nowhere:" + str(Path(sys.executable).parent)}


@pytest.mark.parametrize(
    ("argv", "shutting", "script"),
    [
        (["python3", "x.py"], "", "x.py"),
        (["python3.12", "-u", "x.py", "-I"], "", "x.py"),
        (["python", "-I", "x.py"], "I", "x.py"),
        (["python", "-sE", "x.py"], "E", "x.py"),
        (["python", "-BS", "-W", "ignore", "-X", "dev", "x.py"], "S", "x.py"),
        (["python", "-Xdev", "-Wignore", "x.py"], "", "x.py"),
        (["python", "-W", "-S", "x.py"], "", "x.py"),
        (["python", "-m", "pkg.serve", "-E"], "", "serve"),
        (["python", "-Im", "pkg.serve"], "I", "serve"),
        (["python", "-c", "pass", "-S"], "", None),
        (["python", "--check-hash-based-pycs", "always", "-E", "x.py"], "E", "x.py"),
        (["python"], "", None),
        (["python", "-"], "", None),
        (["pypy3", "x.py"], "", "x.py"),
        (["python3.13t", "x.py"], "", "x.py"),
    ],
)
def test_a_python_command_line_is_understood(argv: list[str], shutting: str, script: str | None) -> None:
    program = python_program(argv, ENVIRON, "/usr/bin/" + argv[0])
    assert program is not None
    assert (program.shutting_options, program.script) == (shutting, script)
    assert program.interpreter == "/usr/bin/" + argv[0]


@pytest.mark.parametrize("argv", [["node", "x.js"], ["pythonista", "x"], ["bash", "-c", "python x.py"]])
def test_other_programs_are_no_python(argv: list[str]) -> None:
    assert python_program(argv, ENVIRON, "/bin/sh") is None


@pytest.mark.parametrize(
    "words",
    [
        ["env"], ["env", "-i"], ["env", "A=b", "C="], ["env", "-u", "HOME"], ["env", "-S"], ["env", "--", ],
        ["/usr/bin/env", "-C", "/"],
    ],
)  # fmt: skip
def test_env_in_front_is_looked_through(words: list[str]) -> None:
    name = Path(sys.executable).name
    rest = [f"{name} -E x.py"] if words[-1] == "-S" else [name, "-E", "x.py"]
    program = python_program([*words, *rest], ENVIRON, "/usr/bin/env")
    assert program is not None
    assert program.interpreter == str(Path(sys.executable).parent / name)
    assert (program.shutting_options, program.script) == ("E", "x.py")


def test_env_alone_is_no_python() -> None:
    assert python_program(["env"], ENVIRON, "/usr/bin/env") is None
    assert python_program(["env", "A=b", "no-such-program"], ENVIRON, "/usr/bin/env") is None


@pytest.mark.parametrize(
    ("first_line", "shutting"),
    [
        (f"#!{sys.executable}", ""),
        (f"#!{sys.executable} -I", "I"),
        (f"#! {sys.executable} -sE", "E"),
        (f"#!/usr/bin/env {Path(sys.executable).name}", ""),
        (f"#!/usr/bin/env -S {Path(sys.executable).name} -E", "E"),
    ],
)
def test_a_scripts_first_line_names_its_python(tmp_path: Path, first_line: str, shutting: str) -> None:
    script = tmp_path / "tool"
    script.write_text(f"{first_line}\nprint(1)\n")
    program = python_program([str(script)], ENVIRON, str(script))
    assert program is not None
    assert Path(program.interpreter).name == Path(sys.executable).name
    assert (program.shutting_options, program.script) == (shutting, str(script))
    assert display_name([str(script)], program) == "tool"


@pytest.mark.parametrize("text", ["", "#!", "#!/bin/sh\n", "\x7fELF", "#!/usr/bin/env\n"])
def test_other_files_name_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "tool").write_text(text)
    assert python_program(["tool"], ENVIRON, str(tmp_path / "tool")) is None


def test_a_name_is_cleaned_for_the_file_system() -> None:
    assert display_name(["./we ird/na*me?.py"], None) == "na-me"
    assert display_name(["..."], None) == "program"
    assert len(display_name(["x" * 500], None)) == 60


def test_the_path_of_the_environment_decides(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    (tmp_path / "first" / "tool").write_text("")
    (tmp_path / "second" / "tool").write_text("")
    (tmp_path / "second" / "tool").chmod(0o755)
    path = f"{tmp_path / 'first'}:{tmp_path / 'second'}"
    assert resolve(["tool"], {"PATH": path}) == str(tmp_path / "second" / "tool")


def test_a_binary_is_told_from_a_script(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("echo\n")
    assert not is_binary(str(tmp_path / "script"))
    assert is_binary("/proc/self/exe")


@pytest.mark.parametrize("option", ["-S", "-E", "-I"])
def test_an_interpreter_option_that_keeps_the_hook_out_is_named(tmp_path: Path, option: str) -> None:
    run = record(tmp_path, [sys.executable, option, "-c", "print('ran')"])
    assert (run.code, run.stdout) == (0, b"ran\n")
    state = run.collector("agent")
    assert state["state"] == "unavailable"
    assert f"python {option} " in state["reason"]
    assert state["obtain"] == f"run without {option}"
    assert f"python {option} ".encode() in run.stderr


def test_a_program_that_is_not_python_is_recorded_without_steps_and_it_is_said(tmp_path: Path) -> None:
    run = record(tmp_path, ["/bin/sh", "-c", "echo hello; exec sleep 1.2"])
    assert (run.code, run.stdout) == (0, b"hello\n")
    assert run.collector("agent")["state"] == "unavailable"
    assert "not Python" in run.collector("agent")["reason"]
    assert run.collector("steps")["state"] == "unavailable"
    assert run.collector("usage")["state"] == "ok"
    assert run.rows("usage")


def test_a_python_program_without_torch_is_recorded(tmp_path: Path) -> None:
    run = record(tmp_path, python("import sys; sys.modules['torch'] = None; print('ran')"))
    assert (run.code, run.stdout) == (0, b"ran\n")
    assert run.collector("agent")["state"] == "ok"
    assert run.collector("steps")["state"] == "unavailable"
