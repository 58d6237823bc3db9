"""Runs small programs with and without the agent, in other processes, and reads what the agent wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "collectors" / "spyreprof_collectors" / "agent"
BOOT = AGENT / "boot"
PATIENCE_S = 120

DECODE = "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk100sqsq1sqsk100)"
PREFILL = "execute_64_context_1(sq64sk64sqsq4096sqsk4096)_generation_0(sq0sk0sqsq0sqsk0)"
# Windows as soon as they can be, and again and again.
EAGER_WINDOWS = {"steps": 4, "after_steps": 3, "after_s": 0.0, "between_s": 0.0, "rounds": 10_000}


@dataclass(frozen=True)
class Finished:
    """A program that ended, and the recording folder that it had."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Rows of all processes; every line must be JSON."""
        shards = sorted((self.folder / "shards").glob(f"{kind}-*.jsonl"))
        return [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]

    def process_rows(self, key: str) -> list[dict[str, Any]]:
        return [row for row in self.rows("process") if row["k"] == key]

    def hooks(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.process_rows("hook")}


def run(
    tmp_path: Path,
    program: str,
    *arguments: str,
    agent: bool = True,
    window: Mapping[str, object] | None = None,
    python: str = sys.executable,
    flags: tuple[str, ...] = (),
    paths: tuple[Path, ...] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Run a program's text; with `agent=False` it runs as it would without us."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    folder = folder or tmp_path / "run.spyreprof"
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SPYREPROF_", "KINETO_"))}
    own["PYTHONPATH"] = os.pathsep.join(map(str, (*((BOOT,) if agent else ()), *paths)))
    if agent:
        own["SPYREPROF_DIR"] = str(folder)
        own["SPYREPROF_OPTIONS"] = json.dumps({"window": window})
    ended = subprocess.run(
        [python, *flags, str(script), *arguments],
        env={**own, **(environment or {})},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Finished(ended.returncode, ended.stdout, ended.stderr, folder)
