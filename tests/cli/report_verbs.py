"""Runs verbs of the command line as a user does, and makes a small recording for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from builders import MS, SECOND, START_NS, RecordingBuilder, decode_name

ROOT = Path(__file__).resolve().parents[2]
IMPORT_ROOTS = (ROOT, ROOT / "collectors", ROOT / "analyzers")


def spyreprof(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a verb; stdout and stderr are pipes, as in a script."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    return subprocess.run(
        [sys.executable, "-m", "spyreprof", *map(str, arguments)],
        capture_output=True,
        check=False,
        cwd=cwd,
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join(map(str, IMPORT_ROOTS)),
            "PYTHONIOENCODING": "utf-8",
            **environment,
        },
        timeout=120,
    )


def decode_recording(path: Path, *, ended: bool = True) -> RecordingBuilder:
    """A minute of decode at batch 1: 800 steps of 50 ms, and 20 ms of nothing between them."""
    end_ns = START_NS + 60 * SECOND if ended else None
    recording = RecordingBuilder(path, end_ns=end_ns)
    recording.process(end_ns=end_ns)
    recording.steps(
        (START_NS + SECOND + i * 70 * MS, START_NS + SECOND + i * 70 * MS + 50 * MS, decode_name(seq_len_sum=64 + i))
        for i in range(800)
    )
    recording.module()
    recording.manifest["processes"] = [
        {
            "writer": "4242-1",
            "pid": 4242,
            "ppid": 1,
            "opened_ns": START_NS,
            "closed_ns": end_ns,
            "steps": 800,
            "python": "3.11.7",
        }
    ]
    return recording
