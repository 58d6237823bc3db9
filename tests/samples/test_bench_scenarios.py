"""`bench/scenarios.py`: what it draws and how it counts. The runs themselves take minutes and are not tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine.options import parse_options
from engine.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "scenarios.py"
TOTALS = {"prefill_seconds": 1.0, "mixed_seconds": 2.0, "decode_seconds": 9.0}
SHORT_OF_KV_CACHE = ("kv-capacity", "preemption")


@pytest.fixture(scope="module")
def scenarios() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("bench_scenarios", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def report(
    verdict: str, confidence: str = "medium", severities: tuple[str, ...] = (), findings: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "verdict": {"primary": verdict, "confidence": confidence},
        "time_budget": {"unexplained_share": 0.03},
        "phases": [{"assigned_ratio": 0.9}, {"assigned_ratio": None}, {"assigned_ratio": 0.85}],
        "findings": [{"id": "SPY-DEC-001", "severity": severity} for severity in severities]
        + [{"id": finding, "severity": "info"} for finding in findings],
    }


def test_every_drawn_command_is_one_that_the_engine_accepts(scenarios: ModuleType) -> None:
    for seed in range(10):
        for draw in scenarios.drawn_runs(seed, 3 * len(scenarios.DRAW), None):
            if draw.scenario.startswith("interconnect"):
                continue
            options = parse_options(draw.program(60)[2:])
            longest = options.prompt_tokens[1] + options.output_tokens[1]
            capacity = options.num_kv_blocks * options.block_size
            load = options.concurrency or options.max_num_seqs
            assert options.scenario == draw.scenario
            if draw.scenario in SHORT_OF_KV_CACHE:
                assert load * longest > 2 * capacity, "KV cache must be what binds"
            else:
                assert load * longest < 0.5 * capacity, "KV cache must never be what binds"
            if draw.scenario == "queue":
                assert options.concurrency >= 3 * options.max_num_seqs
            else:
                assert load <= options.max_num_seqs


def drawn_options(scenarios: ModuleType, name: str) -> list[Any]:
    return [parse_options(draw.program(60)[2:]) for seed in range(3) for draw in scenarios.drawn_runs(seed, 10, name)]


def test_a_drawn_request_for_kv_capacity_never_grows_and_spends_its_time_in_decodes(scenarios: ModuleType) -> None:
    for options in drawn_options(scenarios, "kv-capacity"):
        assert options.prompt_tokens[1] + options.output_tokens[1] <= options.block_size
        assert sum(options.output_tokens) >= 2 * sum(options.prompt_tokens)


def test_drawn_preemption_admits_many_more_than_it_can_keep(scenarios: ModuleType) -> None:
    for options in drawn_options(scenarios, "preemption"):
        capacity = options.num_kv_blocks * options.block_size
        assert options.concurrency * options.prompt_tokens[0] < capacity
        assert 2 <= capacity / (options.prompt_tokens[1] + options.output_tokens[1]) < 4
        assert options.no_prefix_caching is True


def test_drawn_prefixes_are_whole_blocks_and_only_one_scenario_caches_them(scenarios: ModuleType) -> None:
    for name, uncached in (("shared-prefix", False), ("shared-prefix-uncached", True)):
        for options in drawn_options(scenarios, name):
            assert options.shared_prefix_tokens % options.block_size == 0
            assert options.shared_prefix_tokens < options.prompt_tokens[0]
            assert options.no_prefix_caching is uncached


def test_more_than_half_of_a_drawn_output_is_thinking(scenarios: ModuleType) -> None:
    for options in drawn_options(scenarios, "reasoning"):
        assert sum(options.reasoning_tokens) > 0.5 * sum(options.output_tokens)


def test_drawn_prompt_lengths_outnumber_what_can_be_compiled_in_a_minute(scenarios: ModuleType) -> None:
    for options in drawn_options(scenarios, "compile"):
        assert (options.compile, options.compile_shapes) == (True, "static")
        # A whole prompt is one step, so every length is a shape of its own.
        assert options.max_num_batched_tokens >= options.prompt_tokens[1]
        assert options.prompt_tokens[1] - options.prompt_tokens[0] > 750


def test_drawn_batches_of_the_inefficient_kernel_stay_below_what_its_tiles_are_good_at(scenarios: ModuleType) -> None:
    for options in drawn_options(scenarios, "inefficient-kernel"):
        assert options.linear_layout == "tiled"
        assert 2 <= options.concurrency <= 5


def test_draws_repeat_with_the_seed_and_differ_without(scenarios: ModuleType) -> None:
    def drawn(seed: int) -> list[Any]:
        return list(scenarios.drawn_runs(seed, 20, None))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    names = list(scenarios.DRAW)
    assert [draw.scenario for draw in drawn(1)] == names + names[: 20 - len(names)]
    assert len({draw.seed for draw in scenarios.default_runs(1, 3, None)}) == 3 * len(names)


def test_sixty_draws_are_every_scenario_four_times(scenarios: ModuleType) -> None:
    counts = Counter(draw.scenario for draw in scenarios.drawn_runs(1, 60, None))
    assert set(counts.values()) == {4}


def test_every_scenario_of_the_engine_is_drawn_and_has_an_answer(scenarios: ModuleType) -> None:
    answers = sys.modules["scenario_answers"]
    assert set(scenarios.DRAW) == {*SCENARIOS, "interconnect", "interconnect-late-rank"} == set(answers.RIGHT_ANSWER)
    assert all(
        not answers.REQUIRED_FINDING[name] & answers.FORBIDDEN_FINDING[name] for name in answers.REQUIRED_FINDING
    )


def test_the_two_interconnect_runs_differ_by_a_late_rank(scenarios: ModuleType) -> None:
    for draws in (scenarios.drawn_runs(1, 15, None), scenarios.default_runs(1, 1, None)):
        plain, late = (draw.program(20) for draw in draws if draw.scenario.startswith("interconnect"))
        assert plain[1:] == [str(ROOT / "samples" / "interconnect.py"), "--seed", plain[3], "--seconds", "20"]
        assert late[-2] == "--slow-rank-ms"
        assert int(late[-1]) > 0


@pytest.mark.parametrize(
    ("scenario", "verdict", "confidence", "findings", "result"),
    [
        ("queue", "queue_bound", "low", (), "right"),
        ("queue", "queue_bound", "low", ("SPY-QUE-001", "SPY-HST-001"), "right"),
        ("queue", "undetermined", None, (), "undetermined"),
        ("queue", "prefill_bound", "medium", (), "wrong"),
        ("queue", "prefill_bound", "high", (), "wrong_high"),
        ("healthy", "load_limited", "high", (), "right"),
        ("healthy", "load_limited", "high", ("SPY-KVC-001",), "finding"),
        ("preemption", "kv_capacity_bound", "medium", ("SPY-KVC-001", "SPY-KVC-002"), "right"),
        ("preemption", "kv_capacity_bound", "medium", ("SPY-KVC-001",), "finding"),
        ("preemption", "queue_bound", "medium", ("SPY-KVC-001", "SPY-KVC-002"), "wrong"),
        ("shared-prefix", "decode_bandwidth_bound", "high", (), "right"),
        ("shared-prefix", "decode_bandwidth_bound", "high", ("SPY-PFX-001",), "finding"),
        ("shared-prefix-uncached", "prefill_bound", "high", ("SPY-PFX-001",), "right"),
        ("reasoning", "decode_bandwidth_bound", "high", (), "finding"),
        ("interconnect-late-rank", "host_bound", "low", ("SPY-NET-002",), "right"),
        ("interconnect-late-rank", "interconnect_bound", "low", ("SPY-NET-002",), "wrong"),
    ],
)
def test_a_run_is_judged_by_the_scenario_s_verdict_and_findings(
    scenarios: ModuleType, scenario: str, verdict: str, confidence: str, findings: tuple[str, ...], result: str
) -> None:
    draw = scenarios.Draw(0, scenario, 1, {})
    assert scenarios.read_report(draw, report(verdict, confidence, (), findings), TOTALS, 1.0).result == result


@pytest.mark.parametrize(
    ("arithmetic_s", "decode_s", "right"),
    [
        (3.0, 9.0, {"decode_bandwidth_bound"}),
        (9.0, 3.0, {"prefill_bound"}),
        (8.6, 10.0, {"prefill_bound", "decode_bandwidth_bound"}),
        (10.0, 8.6, {"prefill_bound", "decode_bandwidth_bound"}),
        (8.4, 10.0, {"decode_bandwidth_bound"}),
    ],
)
def test_the_engine_s_own_clock_says_which_answer_a_mixed_load_has(
    scenarios: ModuleType, arithmetic_s: float, decode_s: float, right: set[str]
) -> None:
    totals = {"prefill_seconds": 1.0, "mixed_seconds": arithmetic_s - 1.0, "decode_seconds": decode_s}
    assert scenarios.right_answers("mixed", totals) == right


@pytest.mark.parametrize(
    ("scenario", "totals", "broken"),
    [
        ("kv-capacity", {"preemptions": 0}, None),
        ("kv-capacity", {"preemptions": 2}, "requests were preempted"),
        ("preemption", {"recomputed_tokens": 70, "prefill_tokens": 100}, None),
        ("preemption", {"recomputed_tokens": 20, "prefill_tokens": 100}, "hardly anything was recomputed"),
        ("shared-prefix", {"prefix_cache_hits": 90, "prefix_cache_queries": 100}, None),
        ("shared-prefix", {"prefix_cache_hits": 0, "prefix_cache_queries": 100}, "the prefix was not cached"),
    ],
)
def test_a_run_that_was_not_what_its_scenario_means_is_not_judged(
    scenarios: ModuleType, scenario: str, totals: dict[str, float], broken: str | None
) -> None:
    assert scenarios.broken_premise(scenario, totals) == broken


def test_the_table_names_findings_that_are_missing_or_ruled_out(scenarios: ModuleType) -> None:
    def shown(scenario: str, verdict: str, *findings: str) -> str:
        draw = scenarios.Draw(0, scenario, 1, {})
        outcome = scenarios.read_report(draw, report(verdict, findings=findings), TOTALS, 1.0)
        assert scenarios.findings_of(outcome) in scenarios.row(outcome)
        return str(scenarios.findings_of(outcome))

    assert shown("decode", "decode_bandwidth_bound") == "-"
    assert shown("compile", "compile_bound", "SPY-CMP-001") == "SPY-CMP-001"
    assert shown("compile", "compile_bound") == "no SPY-CMP-001"
    assert shown("reasoning", "prefill_bound", "SPY-CMP-001") == "no SPY-RSN-001, surplus SPY-CMP-001"


def test_the_least_assigned_phase_and_the_worst_finding_count(scenarios: ModuleType) -> None:
    draw = scenarios.Draw(0, "healthy", 1, {})
    outcome = scenarios.read_report(draw, report("load_limited", severities=("low", "medium", "info")), TOTALS, 1.0)
    assert (outcome.assigned_ratio, outcome.worst_severity) == (0.85, "medium")
    assert scenarios.read_report(draw, report("load_limited"), TOTALS, 1.0).worst_severity == "none"


def test_what_is_done_is_not_run_again_and_other_draws_are_refused(scenarios: ModuleType, tmp_path: Path) -> None:
    draws = list(scenarios.drawn_runs(1, 6, None))
    done = [scenarios.read_report(draw, report("load_limited"), TOTALS, 1.0) for draw in draws[:4]]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(scenarios.asdict(outcome)) + "\n" for outcome in done))
    assert scenarios.read_results(path) == done
    assert scenarios.still_to_run(draws, done) == draws[4:]
    assert scenarios.still_to_run(list(scenarios.drawn_runs(2, 6, None)), done) is None
    assert scenarios.read_results(tmp_path / "none.jsonl") == []


def test_results_are_only_continued_when_asked(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("")
    command = [sys.executable, str(SCRIPT), "--draws", "0", "--out", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60, check=False)
    assert "0 runs: 0 right" in resumed.stdout


@pytest.mark.parametrize(
    ("results", "good"),
    [
        ({"right": 27, "undetermined": 3}, True),
        ({"right": 26, "undetermined": 4}, False),
        ({"right": 29, "wrong": 1}, True),
        ({"right": 29, "wrong_high": 1}, False),
        ({"right": 9, "failed": 2}, False),
        ({"right": 27, "finding": 3}, True),
        ({"right": 26, "finding": 4}, False),
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
    recording = ["--out", str(tmp_path / "00-queue.spyreprof")]
    monkeypatch.setattr(scenarios, "commands", lambda *_: ([*missing, *recording], missing))
    outcome = scenarios.run(scenarios.Draw(0, "queue", 1, {}), tmp_path, 1.0)
    assert (outcome.result, outcome.failure) == ("failed", "record ended with 7")


def test_recordings_are_judged_again_without_being_made_again(
    scenarios: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.dumps(report("queue_bound", "high", (), ("SPY-QUE-001",)))
    judge = [sys.executable, "-c", f"print({said!r})"]
    monkeypatch.setattr(scenarios, "commands", lambda *_: (["no-such-program"], judge))
    monkeypatch.setattr(scenarios, "engine_totals", lambda *_: TOTALS)
    (tmp_path / "00-queue.spyreprof").mkdir()
    draws = [scenarios.Draw(number, "queue", 1, {}) for number in range(2)]
    assert scenarios.judge_again(draws, tmp_path) == 0
    assert "1 runs: 1 right" in capsys.readouterr().out
    assert not (tmp_path / "results.jsonl").exists()


def test_a_dry_run_prints_commands_and_runs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dry-run", "--draws", "3", "--scenario", "queue"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) == 6
    assert all("--scenario queue" in line for line in lines[::2])
    assert all(line.endswith("-queue.spyreprof --json") for line in lines[1::2])
    assert not list(tmp_path.iterdir())
