"""The main job on a real program: record the sample engine, read it back, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from spyreprof.recording.counters import series
from spyreprof.recording.store import Recording, open_recording

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
# A model of microseconds: what is counted does not depend on its size.
TINY = ["--layers=1", "--hidden=64", "--ffn=128", "--heads=2", "--kv-heads=1", "--vocab=300"]
# Blocks for two requests and a bit, and prompts that share a prefix: preemptions and prefix hits must happen.
TIGHT = ["--max-num-seqs=6", "--num-kv-blocks=24", "--block-size=4", "--max-model-len=64", "--concurrency=6",
         "--prompt-tokens=20:24", "--output-tokens=16:24", "--shared-prefix-tokens=12"]  # fmt: skip


def spyreprof(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spyreprof", *words],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A recording of the sample under pressure, and the engine's own counters."""
    folder = tmp_path_factory.mktemp("end_to_end")
    done = spyreprof(
        "record", "--out", "run.spyreprof", "--no-calibrate", "--",
        sys.executable, str(ROOT / "samples/serve.py"), "--scenario", "queue", "--load-seconds", "3",
        "--result", "result.json", *TINY, *TIGHT,
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run.spyreprof", json.loads((folder / "result.json").read_text())["engine"]


@pytest.fixture
def recording(recorded: tuple[Path, dict[str, Any]]) -> Recording:
    return open_recording(recorded[0])


def test_step_rows_agree_exactly_with_the_engines_own_counters(
    recorded: tuple[Path, dict[str, Any]], recording: Recording
) -> None:
    engine, steps = recorded[1], recording.steps
    assert len(steps) == engine["steps"]
    assert steps["context_tokens"].sum() == engine["prefill_tokens"]
    assert steps["generation_tokens"].sum() == engine["decode_tokens"]


def test_prefix_hits_and_preemptions_agree_with_the_engines_own_counters(
    recorded: tuple[Path, dict[str, Any]], recording: Recording
) -> None:
    engine, counters = recorded[1], recording.counters
    assert engine["preemptions"] > 0
    assert engine["prefix_cache_hits"] > 0
    assert last(counters, "vllm:num_preemptions_total") == engine["preemptions"]
    assert last(counters, "vllm:prefix_cache_hits_total") == engine["prefix_cache_hits"]
    assert last(counters, "vllm:prefix_cache_queries_total") == engine["prefix_cache_queries"]


def last(counters: pd.DataFrame, name: str) -> float:
    """Value of a counter at the last poll. The server counted from zero, which the first poll may have missed."""
    values = series(counters, name)
    assert values.shape[1] == 1
    return float(values.iloc[-1, 0])


def test_every_request_of_the_load_generator_is_in_the_recording(
    recorded: tuple[Path, dict[str, Any]], recording: Recording
) -> None:
    assert len(recording.requests) == recorded[1]["finished_requests"]
    assert recording.requests["arrival_ns"].notna().all()


def test_the_report_of_a_real_recording_meets_its_schema_and_closes_its_books(
    recorded: tuple[Path, dict[str, Any]],
) -> None:
    path = recorded[0]
    schema = json.loads(spyreprof("schema", cwd=path.parent).stdout)
    done = spyreprof("report", str(path), "--json", cwd=path.parent)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, schema)
    budget = report["time_budget"]
    assert sum(part["ns"] for part in budget["parts"]) + budget["unexplained_ns"] == budget["window_ns"]
    assert report["verdict"]["primary"] != "load_limited"  # six clients never left the engine alone


def test_a_packed_recording_gives_the_same_report(recorded: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path = recorded[0]
    packed = spyreprof("pack", str(path), "--out", str(tmp_path / "run.spyreprof.zip"), cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    whole, zipped = (
        spyreprof("report", str(source), "--json", cwd=tmp_path).stdout
        for source in (path, tmp_path / "run.spyreprof.zip")
    )
    assert json.loads(whole) == json.loads(zipped)


def test_the_numbers_do_not_move_from_one_report_to_the_next(recorded: tuple[Path, dict[str, Any]]) -> None:
    first, second = (spyreprof("report", str(recorded[0]), "--json", cwd=recorded[0].parent).stdout for _ in range(2))
    assert first == second
