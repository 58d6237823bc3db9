"""`attach` on the command line: options, and that it needs nothing but the recorder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import run


def test_help_names_every_option(tmp_path: Path) -> None:
    done = run("attach", "--help", cwd=tmp_path)
    assert done.returncode == 0
    for option in ("--pid", "--url", "--duration", "--out", "--py-spy-rate", "--quiet"):
        assert option in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--pid", "0"),
        ("--pid", "-1"),
        ("--pid", "four"),
        ("--pid", "1", "--duration", "inf"),
        ("--pid", "1", "--duration", "nan"),
        ("--pid", "1", "--py-spy-rate", "0"),
        ("--url", "somewhere"),
        ("--pid", "1", "extra"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run("attach", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_recording_is_called_attach_and_its_time_where_no_folder_is_named(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        done = run("attach", "--pid", str(child.pid), "--duration", "0.5", cwd=tmp_path)
    finally:
        child.kill()
        child.wait()
    assert done.returncode == 0, done.stderr
    (recording,) = tmp_path.iterdir()
    assert recording.name.startswith("attach-")
    assert recording.suffix == ".spyreprof"
    assert f"spyreprof report ./{recording.name}" in done.stderr
    assert json.loads((recording / "manifest.json").read_text())["mode"] == "attach"


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        done = run("attach", "--pid", str(child.pid), "--duration", "0", "--quiet", cwd=tmp_path)
    finally:
        child.kill()
        child.wait()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
