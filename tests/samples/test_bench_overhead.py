"""`bench/record_overhead.py`: how it counts and what it says. What it measures takes minutes and is no test."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPT = BENCH / "record_overhead.py"
MS = 1_000_000
SECOND = 1_000_000_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.startswith(("overhead_", "record_overhead")):
            del sys.modules[name]


@pytest.fixture
def loop(bench: Any) -> ModuleType:
    return bench("overhead_loop")


@pytest.fixture
def windows(bench: Any) -> ModuleType:
    return bench("overhead_windows")


def test_help_names_every_part_and_needs_no_torch() -> None:
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(BENCH)!r}); sys.modules['torch'] = None; "
        f"sys.argv = ['record_overhead.py', '--help']; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("--rounds", "--step-ms", "--json", "--parts {hook,windows,py-spy}", "noise floor"):
        assert word in done.stdout


def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--parts", "all"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'all'" in done.stderr


def window(start_ms: int, *, opening_ms: int, closing_ms: int, operators: int, state: str = "saved") -> dict[str, Any]:
    opened, ended = start_ms + opening_ms, start_ms + 100
    times = {"t0": start_ms * MS, "t1": opened * MS, "t2": ended * MS, "t3": (ended + closing_ms) * MS}
    return {**times, "operators": operators, "state": state}


def steps(*lengths_ms: int, profiled: bool = False) -> list[dict[str, Any]]:
    return [{"t0": 0, "t1": length * MS, **({"p": 1} if profiled else {})} for length in lengths_ms]


def test_windows_cost_their_pauses_and_what_the_steps_inside_take_longer(windows: ModuleType) -> None:
    opened = [
        window(0, opening_ms=1, closing_ms=10, operators=100),
        window(500, opening_ms=3, closing_ms=30, operators=300),
        window(900, opening_ms=50, closing_ms=50, operators=0, state="yielded"),
        {"t0": 1, "t1": None, "t2": None, "t3": 1, "operators": None, "state": "skipped"},
    ]
    told = windows.costs(opened, [*steps(20, 20, 21), *steps(25, 25, 25, 25, profiled=True)])
    assert told == {
        "windows": 2,
        "profiled_steps": 4,
        "operators_per_step": 100.0,
        "step_ms": 20.0,
        "opening_ms": 2.0,
        "closing_ms": 20.0,
        "closing_us_per_operator": 100.0,
        "slowdown_ratio": 1.25,
        "slowdown_us_per_operator": 50.0,
        "pauses_ms": 4.0 + 40.0,
        "slowdown_ms": 20.0,
    }


def test_a_process_that_saved_no_window_tells_no_cost(windows: ModuleType) -> None:
    assert windows.costs([], steps(20)) is None
    failed = [window(0, opening_ms=1, closing_ms=1, operators=1, state="failed")]
    assert windows.costs(failed, [*steps(20), *steps(20, profiled=True)]) is None
    assert windows.summed_up([]) is None


@pytest.mark.parametrize(("least", "beyond", "amortised_us"), [(1.02, True, 60.0), (0.98, False, 50.0)])
def test_the_cost_of_one_set_is_spread_over_a_thousand_steps(
    windows: ModuleType, least: float, beyond: bool, amortised_us: float
) -> None:
    told = windows.summed_up(
        [
            {"pauses_ms": pauses, "slowdown_ms": 10.0, "slowdown_ratio": slowdown, "step_ms": 20.0}
            for pauses, slowdown in ((40.0, 1.1), (50.0, least), (90.0, 1.2))
        ]
    )
    assert told["pauses_ms"] == {"median": 50.0, "min": 40.0, "max": 90.0}
    # a slowdown that one process of three saw as a speed-up is noise
    assert told["slowdown_beyond_noise"] is beyond
    assert told["amortised_us_per_step"] == amortised_us
    assert told["amortised_ratio"] == pytest.approx(amortised_us / 20_000)


@pytest.mark.parametrize(
    ("ratios", "noise", "beyond"),
    [
        ([1.10, 1.12, 1.11], [1.01, 0.99], True),
        ([1.02, 1.03, 1.02], [1.01, 0.97], False),  # a loop of 0.97 could as well have come out as 1.03
        ([0.90, 0.91], [1.05, 1.0], True),
        ([1.0], [1.0], False),
    ],
)
def test_a_ratio_within_the_noise_floor_says_nothing(
    loop: ModuleType, ratios: list[float], noise: list[float], beyond: bool
) -> None:
    result = loop.compared(ratios, noise)
    assert result["beyond_noise"] is beyond
    assert ("says nothing" in loop.in_words(result)) is not beyond


def test_steps_per_second_are_compared_within_each_round(bench: Any) -> None:
    # ten steps a second without py-spy, nine with it, and a step at the end of a slice belongs to the next
    starts = [int(at * SECOND / 10) for at in range(20)] + [2 * SECOND + int(at * SECOND / 9) for at in range(9)]
    spans = {"none": [(0, SECOND)], "none_again": [(SECOND, 2 * SECOND)], "py_spy": [(2 * SECOND, 3 * SECOND)]}
    told = bench("overhead_py_spy").rates(spans, starts, [0.05])
    assert told["loop"]["ratio_median"] == pytest.approx(0.9)
    assert told["loop"]["noise_median"] == 1.0
    assert (told["steps_per_s"], told["cpu_ratio"], told["slice_s"]) == (10.0, 0.05, 1.0)


def test_without_py_spy_its_part_is_skipped_with_a_sentence(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = bench("overhead_py_spy")
    monkeypatch.setenv("PATH", "")
    part.print_table(part.measured("small", 1))
    assert "skipped, py-spy is not on the path" in capsys.readouterr().out


def test_a_row_that_is_still_being_written_is_left_out(loop: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "steps-1-a.jsonl").write_text('{"t0":1}\n{"t0":2}\n{"t0"')
    (tmp_path / "shards" / "window-1-a.jsonl").write_text('{"t0":3}\n')
    assert loop.rows(tmp_path, "steps") == [{"t0": 1}, {"t0": 2}]


def test_every_round_begins_with_another_variant(loop: ModuleType) -> None:
    keys = ["a", "b", "c"]
    assert [loop.rotated(keys, number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(loop.rotated(keys, 2)) == keys


def test_calls_take_turns_and_are_set_up_before_each_round(bench: Any) -> None:
    calls = bench("overhead_calls")
    done: list[str] = []
    variants = {
        name: calls.Variant(lambda name=name: done.append(f"set {name}"), lambda name=name: done.append(name))
        for name in ("off", "on")
    }
    told = calls.interleaved(variants, rounds=2, count=3)
    assert done == ["set off", *["off"] * 3, "set on", *["on"] * 3] * 2
    assert set(told) == {"off_min_us", "off_median_us", "on_min_us", "on_median_us"}
    assert 0 < told["on_min_us"] <= told["on_median_us"]


def test_the_claim_takes_the_dearest_annotation_and_its_row(bench: Any) -> None:
    hooks = {
        requests: {"agent_median_us": 5.0 + added, "bare_median_us": 5.0}
        for requests, added in (("1", 3.0), ("16", 3.3), ("64", 4.26))
    }
    pending = {"hooks": hooks, "row_us": {"median_us": 0.74}}
    told = bench("record_overhead").claim({"states": {"window pending": pending}}, step_ms=50.0)
    assert told["step_us"] == pytest.approx(5.0)
    assert told["per_request_ns"] == pytest.approx(20.0)
    assert told["ratio"] == pytest.approx(1e-4)
