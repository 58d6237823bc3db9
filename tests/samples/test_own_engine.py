"""The engine that marks itself: what it says it did is what a recording of it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from spyreprof.recording.store import open_recording

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "own_engine.py"
OPTIONS = ("--seed", "5", "--requests", "9", "--prompt-tokens", "20", "--new-tokens", "3", "--max-running", "4")


def bare(*flags: str, paths: str = "") -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPYREPROF_")}
    return subprocess.run(
        [sys.executable, *flags, str(SAMPLE), *OPTIONS],
        env={**own, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def recorded(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPYREPROF_")}
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "collectors", ROOT / "analyzers")))
    command = [sys.executable, "-m", "spyreprof", "record", "--no-calibrate", "--out", str(tmp_path / "run.spyreprof")]
    return subprocess.run(
        [*command, "--", sys.executable, str(SAMPLE), *OPTIONS],
        env={**own, "PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_recording_holds_exactly_the_steps_phases_and_requests_that_the_engine_counted(tmp_path: Path) -> None:
    ended = recorded(tmp_path)
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    recording = open_recording(tmp_path / "run.spyreprof")
    steps = recording.steps
    assert steps["phase"].value_counts().to_dict() == said["steps"]
    assert set(steps["source"]) == {"api"}
    assert steps["context_tokens"].sum() == sum(said["prompt_tokens"])
    # The first token of a request comes out of its prefill.
    assert steps["generation_tokens"].sum() == sum(said["output_tokens"]) - len(said["output_tokens"])
    assert recording.phases["name"].value_counts().to_dict() == said["parts"]
    requests = recording.requests
    assert sorted(requests["prompt_tokens"]) == sorted(said["prompt_tokens"])
    assert requests["output_tokens"].tolist() == said["output_tokens"]
    assert set(requests["source"]) == {"agent"}
    assert not requests["failed"].any()
    assert (requests["queue_ns"] <= requests["ttft_ns"]).all()
    assert (requests["ttft_ns"] <= requests["e2e_ns"]).all()


def test_it_prints_the_same_bare_recorded_and_without_an_installation(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "spyreprof_agent").symlink_to(ROOT / "collectors" / "spyreprof_agent")
    with_package = bare(paths=str(tmp_path / "only"))
    assert with_package.returncode == 0, with_package.stderr
    assert recorded(tmp_path).stdout == with_package.stdout
    # -S: no site-packages; -E: no PYTHONPATH, so the package alone is put on the path.
    code = f"import sys, runpy; sys.path.insert(0, {str(tmp_path / 'only')!r}); sys.argv[0] = {str(SAMPLE)!r}"
    alone = subprocess.run(
        [sys.executable, "-S", "-E", "-c", f"{code}; runpy.run_path({str(SAMPLE)!r}, run_name='__main__')", *OPTIONS],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, with_package.stdout, with_package.stderr)


ROWS = """
{"t0": 0, "t1": 0, "n": "spyreprof_step[by=api ph=prefill cr=1 ct=13 cs=13 cqk=169]"}
{"t0": 0, "t1": 0, "n": "spyreprof_step[by=api ph=prefill cr=1 ct=12 cs=12 cqk=144]"}
{"t0": 0, "t1": 0, "n": "spyreprof_step[by=api ph=prefill cr=1 ct=12 cs=12 cqk=144]"}
{"t0": 0, "t1": 0, "n": "spyreprof_step[by=api ph=prefill cr=1 ct=7 cs=7 cqk=49]"}
{"t0": 0, "t1": 0, "n": "spyreprof_step[by=api ph=decode gr=4 gs=48]"}
{"t0": 0, "t1": 0, "n": "schedule"}
{"t0": 0, "t1": 0, "n": "sample"}
{"t0": 0, "t1": 0, "n": "schedule"}
{"k": "request", "t0": 0, "ts": 0, "tf": 0, "t1": 0, "prompt": 13, "cached": null, "output": 3, "reasoning": null, \
"reason": "length", "max_tokens": 3, "preemptions": 0}
"""


def test_the_rows_of_its_shards_stay_as_they_are(tmp_path: Path) -> None:
    """The first few of each kind, without the times."""
    assert recorded(tmp_path).returncode == 0
    found = []
    for kind, shown in (("steps", 5), ("phases", 3), ("requests", 1)):
        (shard,) = (tmp_path / "run.spyreprof" / "shards").glob(f"{kind}-*.jsonl")
        for line in shard.read_text().splitlines()[:shown]:
            row = json.loads(line)
            found.append(json.dumps({key: 0 if key in {"t0", "ts", "tf", "t1"} else row[key] for key in row}))
    assert found == ROWS.split("\n")[1:-1]
