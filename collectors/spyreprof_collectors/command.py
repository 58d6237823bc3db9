"""The program's command line: where its executable lies, which Python runs it, what to call it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import UserError

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)?t?(?:-\w+)?")
_OPTIONS_WITH_VALUE = "cmWX"
_SHEBANG_BYTES = 512


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """The interpreter that a command runs, and what in its options keeps the hook out."""

    interpreter: str
    # the option letters among S, E, I with which the interpreter skips sitecustomize or PYTHONPATH
    shutting_options: str
    # script path, or module name after -m; None for -c and an interactive interpreter
    script: str | None


def resolve(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Find the executable of a command as a shell does.

    Raises:
        UserError: not found (exit code 127) or not executable (126).
    """
    name = argv[0]
    if os.sep in name:
        path = Path(name)
        if not path.exists():
            raise UserError(
                f"{name}: no such file.",
                "Check the path of the command after `--`.",
                exit_code=EXIT_NOT_FOUND,
            )
        if path.is_dir() or not os.access(path, os.X_OK):
            what = "is a folder" if path.is_dir() else "is not executable"
            raise UserError(
                f"{name} {what}.",
                f"Name an interpreter in front of it, or make it executable: chmod +x {name}",
                exit_code=EXIT_NOT_EXECUTABLE,
            )
        return name
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    if found is not None:
        return found
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        if Path(folder or ".", name).is_file():
            raise UserError(
                f"{Path(folder or '.', name)} is not executable.",
                "Make it executable, or name an interpreter in front of it.",
                exit_code=EXIT_NOT_EXECUTABLE,
            )
    raise UserError(
        f"{name}: command not found.",
        "Check the spelling, or activate its environment.",
        exit_code=EXIT_NOT_FOUND,
    )


def python_program(argv: Sequence[str], environment: Mapping[str, str], executable: str) -> PythonProgram | None:
    """Tell which Python a command runs; None when it is no Python or hides behind a shell.

    Follows `env [-i] [NAME=VALUE...] python` and the shebang line of a script.
    """
    words = list(argv)
    if Path(words[0]).name == "env":
        words = _after_env(words)
        found = shutil.which(words[0], path=environment.get("PATH", os.defpath)) if words else None
        if found is None:
            return None
        executable = found
    if _PYTHON.fullmatch(Path(words[0]).name):
        return _parse(executable, words[1:])
    shebang = _shebang(executable)
    if not shebang:
        return None
    if Path(shebang[0]).name == "env":
        shebang = _after_env(shebang)
    if not shebang or not _PYTHON.fullmatch(Path(shebang[0]).name):
        return None
    interpreter = shutil.which(shebang[0], path=environment.get("PATH", os.defpath))
    return _parse(interpreter, [*shebang[1:], executable]) if interpreter else None


def env_prefix(argv: Sequence[str]) -> list[str]:
    """The words of a command before the program that env(1) runs; empty where it is not env's, or is split by it."""
    if not argv or Path(argv[0]).name != "env":
        return []
    rest = _after_env(argv)
    before = list(argv[: len(argv) - len(rest)])
    return before if [*before, *rest] == list(argv) else []


def shut_out(program: PythonProgram) -> tuple[str, str] | None:
    """(reason, remedy) where an option of the interpreter keeps the hook out; None where none does."""
    if not program.shutting_options:
        return None
    option = f"-{program.shutting_options[0]}"
    return (
        f"python {option} ignores the environment or the site folder, so the hook could not enter",
        f"run without {option}",
    )


def is_python(name: str) -> bool:
    """Whether an executable of this name is a Python interpreter."""
    return _PYTHON.fullmatch(name) is not None


def python_options(arguments: Sequence[str]) -> str:
    """The letters among S, E, I in an interpreter's arguments, with which the hook cannot enter."""
    return _parse("", arguments).shutting_options


def display_name(argv: Sequence[str], program: PythonProgram | None) -> str:
    """Pick a short name for the default recording folder: the script's, the module's or the program's."""
    name = Path(program.script or program.interpreter).name if program is not None else Path(argv[0]).name
    stem = name[:-3] if name.endswith(".py") else name
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
    return cleaned[:60] or "program"


def _parse(interpreter: str, arguments: Sequence[str]) -> PythonProgram:
    shutting = ""
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in {"-", "--"} or not word.startswith("-"):
            script = word if not word.startswith("-") else None
            return PythonProgram(interpreter, shutting, script)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs" and words:
                words.pop(0)
            continue
        for position, letter in enumerate(word[1:], start=1):
            if letter in _OPTIONS_WITH_VALUE:
                value = word[position + 1 :] or (words.pop(0) if words else "")
                if letter == "m":
                    return PythonProgram(interpreter, shutting, value.rpartition(".")[2] or None)
                if letter == "c":
                    return PythonProgram(interpreter, shutting, None)
                break
            if letter in "SEI" and letter not in shutting:
                shutting += letter
    return PythonProgram(interpreter, shutting, None)


def _after_env(words: Sequence[str]) -> list[str]:
    rest = list(words[1:])
    while rest:
        word = rest[0]
        if word in {"-u", "--unset", "-C", "--chdir"}:
            rest = rest[2:]
        elif word in {"-S", "--split-string"}:
            rest = [*rest[1].split(), *rest[2:]] if len(rest) > 1 else []
        elif word.startswith("-S"):
            rest = [*word[2:].split(), *rest[1:]]
        elif word == "--":
            return rest[1:]
        elif word.startswith("-") or "=" in word:
            rest = rest[1:]
        else:
            return rest
    return rest


def is_binary(executable: str) -> bool:
    """Whether a file holds no script: its beginning has a NUL byte in it, as shells decide."""
    return b"\0" in _head(executable)


def _head(executable: str) -> bytes:
    try:
        with Path(executable).open("rb") as file:
            return file.read(_SHEBANG_BYTES)
    except OSError:
        return b""


def _shebang(executable: str) -> list[str]:
    head = _head(executable)
    if not head.startswith(b"#!"):
        return []
    return os.fsdecode(head[2:].split(b"\n", 1)[0]).split()
