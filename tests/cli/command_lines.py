"""Runs the command line in another process, without assuming that the project is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = os.pathsep.join(str(ROOT / part) for part in (".", "collectors", "analyzers"))


def run(
    *words: str, cwd: Path, python: str | Path = sys.executable, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `spyreprof WORDS` and wait for its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPYREPROF_")}
    return subprocess.run(
        [str(python), "-m", "spyreprof", *words],
        cwd=cwd,
        env={**own, "PYTHONPATH": SOURCE_ROOTS, "COLUMNS": "100", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def make_recording(folder: Path, *program: str) -> Path:
    """Record a short program."""
    words = program or (sys.executable, "-c", "pass")
    done = run("record", "--no-calibrate", "--out", "run.spyreprof", "--", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run.spyreprof"
