"""Communication on real programs: a link that binds, and a rank that is late, told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SLOW_LINK = ROOT / "samples/interconnect-tbf.spyreprof.zip"
# 200 Mbit/s, each way
LINK_BYTES_PER_S = 25e6


def spyreprof(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spyreprof", *words],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def report_of(path: Path, cwd: Path) -> dict[str, Any]:
    done = spyreprof("report", str(path), "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    budget = report["time_budget"]
    assert sum(part["ns"] for part in budget["parts"]) + budget["unexplained_ns"] == budget["window_ns"]
    return report


def record(folder: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report of a recording of the sample, and what its ranks measured of themselves."""
    pytest.importorskip("torch")
    done = spyreprof(
        "record", "--out", "run.spyreprof", "--no-calibrate", "--",
        sys.executable, str(ROOT / "samples/interconnect.py"), "--seconds", "10", "--result", "truth.json", *options,
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return report_of(folder / "run.spyreprof", folder), json.loads((folder / "truth.json").read_text())


def evidence(report: dict[str, Any], metric: str) -> float:
    return next(entry["value"] for entry in report["evidence"] if entry["metric"] == metric)


def finding_ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report["findings"]]


@pytest.fixture(scope="module")
def slow_link(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of(SLOW_LINK, tmp_path_factory.mktemp("slow_link"))


def test_a_slow_link_binds_and_two_witnesses_say_so(slow_link: dict[str, Any]) -> None:
    assert slow_link["verdict"]["primary"] == "interconnect_bound"
    agree = {view["name"]: view["agrees"] for view in slow_link["verdict"]["witnesses"]}
    assert agree == {"device_trace": True, "engine": True, "requests": None}
    assert "SPY-NET-001" in finding_ids(slow_link)
    assert "SPY-NET-002" not in finding_ids(slow_link)


def test_what_a_rank_sends_is_what_the_link_carries(slow_link: dict[str, Any]) -> None:
    assert evidence(slow_link, "communication.sent_bytes_per_s") == pytest.approx(LINK_BYTES_PER_S, rel=0.3)
    assert evidence(slow_link, "communication.message_bytes") == 4 * 512 * 128


def test_two_ranks_are_one_engine(slow_link: dict[str, Any]) -> None:
    assert not any("several processes" in reason for reason in slow_link["verdict"]["confidence_reasons"])


@pytest.mark.slow
def test_over_loopback_moving_data_takes_the_largest_part_of_a_step(tmp_path: Path) -> None:
    report, truth = record(tmp_path)
    assert report["verdict"]["primary"] == "interconnect_bound"
    assert "SPY-NET-002" not in finding_ids(report)
    blocked = evidence(report, "decode.transfer_share") + evidence(report, "decode.rank_wait_share")
    measured = [rank["communication_s"] / rank["step_s"] for rank in truth["ranks"]]
    # the same steps but for those near profiler windows, measured by the ranks themselves
    assert min(measured) - 0.15 <= blocked <= max(measured) + 0.15


@pytest.mark.slow
def test_a_rank_that_sleeps_in_every_step_is_named_and_the_link_is_not_blamed(tmp_path: Path) -> None:
    report, truth = record(tmp_path, "--slow-rank-ms", "60")
    assert report["verdict"]["primary"] != "interconnect_bound"
    assert "SPY-NET-001" not in finding_ids(report)
    late = next(finding for finding in report["findings"] if finding["id"] == "SPY-NET-002")
    assert late["text"].startswith("Rank 1 ")
    slept_ns = truth["ranks"][1]["sleep_s"] / truth["steps"] * 1e9
    assert evidence(report, "communication.late_ns") == pytest.approx(slept_ns, rel=0.5)
