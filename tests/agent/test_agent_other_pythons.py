"""The boot folder serves interpreters of other minor versions than ours, and leaves older ones alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from agent_program import run

SERVED = ["3.10", "3.11", "3.12", "3.13", "3.14"]
TOO_OLD = ["2.7", "3.6", "3.7", "3.8", "3.9"]
PROGRAM = """
import os, sys
import http.server
child = os.fork()
if child == 0:
    os._exit(3)
os.waitpid(child, 0)
sys.stdout.write("ran " + sys.version.split()[0] + "\\n")
sys.exit(4)
"""


def interpreter(version: str) -> str:
    candidates = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        # Its stand-ins on PATH start only the version that is switched on.
        installed = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True, check=False).stdout
        names = [name for name in installed.split() if name.startswith(f"{version}.")]
        folders = [
            subprocess.run([pyenv, "prefix", name], capture_output=True, text=True, check=False).stdout.strip()
            for name in names
        ]
        candidates += [f"{folder}/bin/python" for folder in folders if folder]
    for python in filter(None, candidates):
        started = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if started.returncode == 0 and re.match(rf"Python {version}\.", started.stdout + started.stderr):
            return python
    pytest.skip(f"no python{version} on PATH that starts")


@pytest.mark.other_python
@pytest.mark.parametrize("version", SERVED)
def test_the_boot_folder_works_in(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text('import sys; sys.stderr.write("own sitecustomize\\n")')
    bare = run(tmp_path, PROGRAM, agent=False, python=python, paths=(own,), flags=("-W", "error"))
    ended = run(tmp_path, PROGRAM, python=python, paths=(own,), flags=("-W", "error"))
    assert bare.code == 4
    assert (ended.code, ended.stdout, ended.stderr) == (bare.code, bare.stdout, bare.stderr)
    assert ended.stderr == "own sitecustomize\n"
    assert [row["how"] for row in ended.process_rows("open")] == ["sitecustomize", "fork"]
    assert ended.process_rows("open")[0]["python"].startswith(version)
    assert sorted(row["how"] for row in ended.process_rows("close")) == ["atexit", "fork_child_exit"]
    assert ended.hooks() == {"http.server": "ok"}


@pytest.mark.other_python
@pytest.mark.parametrize("version", TOO_OLD)
def test_an_older_python_runs_as_without_us(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    program = "import sys; sys.stdout.write(repr(sorted(name for name in sys.modules if 'spyreprof' in name)))"
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text('import sys; sys.stderr.write("own sitecustomize\\n")')
    ended = run(tmp_path, program, python=python, paths=(own,), environment={"PYTHONDONTWRITEBYTECODE": "1"})
    assert (ended.code, ended.stdout, ended.stderr) == (0, "[]", "own sitecustomize\n")
    without_own = run(tmp_path, program, python=python, environment={"PYTHONDONTWRITEBYTECODE": "1"})
    assert (without_own.code, without_own.stdout, without_own.stderr) == (0, "[]", "")
