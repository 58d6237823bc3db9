"""A terminal sees what was found before the report is there; nothing else does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pexpect
import pytest
from command_lines import SOURCE_ROOTS

pytest.importorskip("msgspec")

# What is read in less than half a second tells nothing; here everything takes long.
PROGRAM = """
import sys
from spyreprof.cli import progress
progress._QUIET_S, progress._EVERY_S = 0.0, 0.0
from spyreprof.cli import main
sys.argv[0] = "spyreprof"
main()
"""


def trace(path: Path) -> Path:
    def span(name: str, cat: str, ts: float, dur: float) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}

    events = [
        span("execute_context_1(128)_generation_0(0)", "user_annotation", 0, 30),
        span("execute_context_0(0)_generation_3(3)", "user_annotation", 40, 70),
        *(span("aten::mm", "cpu_op", 200 + n, 0.5) for n in range(20_000)),
        span("private", "acme_falcon\x1b]0;owned\x07", 1, 2),
        17,
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def run(tmp_path: Path, columns: int = 200) -> str:
    terminal = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "report", str(trace(tmp_path / "trace.json")), "--no-cache", "--out", "report.txt"],
        cwd=str(tmp_path),
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": SOURCE_ROOTS, "HOME": str(tmp_path), "TERM": "xterm"},
        dimensions=(24, columns),
        timeout=120,
        encoding="utf-8",
    )
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0, terminal.before
    return str(terminal.before)


def test_counts_and_phases_stand_on_a_terminal_before_the_report(tmp_path: Path) -> None:
    shown = run(tmp_path)
    assert "Trace 1: 20,004 events read, 20,003 kept, 0 repaired, 1 dropped (not a JSON object 1)\r\n" in shown
    assert "  steps' time on the host: prefill 30.0 %, decode 70.0 %\r\n" in shown
    assert "  events by category: cpu_op 100.0 %, user_annotation 0.0 %, category-1 0.0 %\r\n" in shown
    assert shown.index("MB/s") < shown.index("Trace 1: ") < shown.index("Wrote report.txt.")
    assert "owned" not in shown and "falcon" not in shown
    # while it was read, too
    assert " events, 0 dropped; of steps prefill 30.0 %, decode 70.0 %" in shown


def test_a_line_that_is_written_over_is_never_wider_than_the_terminal(tmp_path: Path) -> None:
    written_over = [part for part in run(tmp_path, columns=30).split("\r") if "MB" in part]
    assert written_over
    assert max(map(len, written_over)) < 30
