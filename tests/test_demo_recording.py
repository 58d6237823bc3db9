"""The ready recording is real; what it shows is known, and stays so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "spyreprof", "demo", "--json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_sixteen_clients_at_a_cap_of_four_wait_for_a_place(report: dict[str, Any]) -> None:
    assert (report["verdict"]["primary"], report["verdict"]["confidence"]) == ("queue_bound", "high")
    assert all(view["agrees"] for view in report["verdict"]["witnesses"])


def test_the_advice_is_to_raise_the_cap_to_the_demand_and_names_gain_and_price(report: dict[str, Any]) -> None:
    (advice,) = next(f for f in report["findings"] if f["id"] == "SPY-QUE-001")["advice"]
    assert (advice["setting"], advice["from"], advice["to"]) == ("max_num_seqs", 4, 16)
    assert 0 < advice["expected"][0]["low"] < advice["expected"][0]["high"]
    assert 0 < advice["pays"][0]["low"] < advice["pays"][0]["high"]
    assert [row["value"] for row in advice["trade_off"]] == [4, 8, 16]


def test_nine_tenths_of_its_window_are_explained_and_the_books_close(report: dict[str, Any]) -> None:
    budget = report["time_budget"]
    assert budget["unexplained_share"] < 0.1
    assert sum(part["ns"] for part in budget["parts"]) + budget["unexplained_ns"] == budget["window_ns"]


def test_every_step_that_the_recording_holds_is_counted(report: dict[str, Any]) -> None:
    assert report["quality"]["coverage"]["steps"] == 1314
    assert report["quality"]["coverage"]["profiled_steps"] == 8


def test_the_demo_needs_neither_torch_nor_a_checkout_folder(tmp_path: Path) -> None:
    without_torch = "import sys; sys.modules['torch'] = None; sys.argv = ['spyreprof', 'demo']"
    script = f"{without_torch}; from spyreprof.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The batch cap binds" in done.stdout
