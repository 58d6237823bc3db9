"""`bench/scenarios.py`: what it draws and how it counts. The runs themselves take minutes and are not tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine.options import parse_options

SCRIPT = Path(__file__).parents[2] / "bench" / "scenarios.py"


@pytest.fixture(scope="module")
def scenarios() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_scenarios", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def report(verdict: str, confidence: str = "medium", severities: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "verdict": {"primary": verdict, "confidence": confidence},
        "time_budget": {"unexplained_share": 0.03},
        "phases": [{"assigned_ratio": 0.9}, {"assigned_ratio": None}, {"assigned_ratio": 0.85}],
        "findings": [{"severity": severity} for severity in severities],
    }


def test_every_drawn_command_is_one_that_the_engine_accepts(scenarios: ModuleType) -> None:
    for seed in range(10):
        for draw in scenarios.drawn_runs(seed, 12, None):
            options = parse_options(draw.program(60)[2:])
            longest = options.prompt_tokens[1] + options.output_tokens[1]
            capacity = options.num_kv_blocks * options.block_size
            load = options.concurrency or options.max_num_seqs
            assert options.scenario == draw.scenario
            assert load * longest < 0.5 * capacity, "KV cache must never be what binds"
            if draw.scenario == "queue":
                assert options.concurrency >= 3 * options.max_num_seqs
            else:
                assert load <= options.max_num_seqs


def test_draws_repeat_with_the_seed_and_differ_without(scenarios: ModuleType) -> None:
    def drawn(seed: int) -> list[Any]:
        return list(scenarios.drawn_runs(seed, 8, None))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert [draw.scenario for draw in drawn(1)[:5]] == ["prefill", "decode", "queue", "healthy", "prefill"]
    assert len({draw.seed for draw in scenarios.default_runs(1, 3, None)}) == 12


@pytest.mark.parametrize(
    ("scenario", "verdict", "confidence", "result"),
    [
        ("queue", "queue_bound", "low", "right"),
        ("queue", "undetermined", "low", "undetermined"),
        ("queue", "prefill_bound", "medium", "wrong"),
        ("queue", "prefill_bound", "high", "wrong_high"),
        ("healthy", "load_limited", "high", "right"),
    ],
)
def test_a_verdict_is_judged_by_the_scenario_s_answer(
    scenarios: ModuleType, scenario: str, verdict: str, confidence: str, result: str
) -> None:
    draw = scenarios.Draw(0, scenario, 1, {})
    assert scenarios.read_report(draw, report(verdict, confidence), 1.0).result == result


def test_the_least_assigned_phase_and_the_worst_finding_count(scenarios: ModuleType) -> None:
    draw = scenarios.Draw(0, "healthy", 1, {})
    outcome = scenarios.read_report(draw, report("load_limited", severities=("low", "medium", "info")), 1.0)
    assert (outcome.assigned_ratio, outcome.worst_severity) == (0.85, "medium")
    assert scenarios.read_report(draw, report("load_limited"), 1.0).worst_severity == "none"


@pytest.mark.parametrize(
    ("results", "good"),
    [
        ({"right": 27, "undetermined": 3}, True),
        ({"right": 26, "undetermined": 4}, False),
        ({"right": 29, "wrong": 1}, True),
        ({"right": 29, "wrong_high": 1}, False),
        ({"right": 9, "failed": 2}, False),
        ({}, False),
    ],
)
def test_nine_in_ten_right_and_none_wrong_with_high_confidence(
    scenarios: ModuleType, results: dict[str, int], good: bool
) -> None:
    assert scenarios.good_enough(Counter(results)) is good


def test_a_run_that_cannot_be_recorded_is_failed_and_not_forgotten(
    scenarios: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = [sys.executable, "-c", "raise SystemExit(7)"]
    monkeypatch.setattr(scenarios, "commands", lambda *_: (missing, missing))
    outcome = scenarios.run(scenarios.Draw(0, "queue", 1, {}), tmp_path, 1.0)
    assert (outcome.result, outcome.failure) == ("failed", "record ended with 7")


def test_a_dry_run_prints_commands_and_runs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dry-run", "--draws", "3", "--scenario", "queue"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) == 6
    assert all("--scenario queue" in line for line in lines[::2])
    assert all(line.endswith("-queue.spyreprof --json") for line in lines[1::2])
    assert not list(tmp_path.iterdir())
