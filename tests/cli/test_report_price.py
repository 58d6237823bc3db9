"""`report --price-per-hour`: what it adds, and prices that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_verbs import decode_recording, spyreprof


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decode_recording(tmp_path_factory.mktemp("price") / "run.spyreprof").write()


def test_a_price_adds_the_cost_of_the_window_to_the_nanosecond(recording: Path) -> None:
    report = json.loads(spyreprof("report", recording, "--price-per-hour", "3.60", "--json").stdout)
    cost = report["cost"]
    assert cost["price_per_hour"] == 3.6
    assert sum(line["ns"] for line in cost["lines"]) == cost["window_ns"] == report["time_budget"]["window_ns"]
    assert cost["amount"] == pytest.approx(cost["window_ns"] * 1e-9 * 0.001, rel=1e-5)
    assert not [item for item in report["not_judged"] if item["topic"] == "cost"]


def test_without_a_price_the_report_names_the_option(recording: Path) -> None:
    report = json.loads(spyreprof("report", recording, "--json").stdout)
    assert report["cost"] is None
    (asked,) = [item for item in report["not_judged"] if item["topic"] == "cost"]
    assert "--price-per-hour" in asked["obtain"]


def test_the_terminal_shows_it_and_names_the_command_with_the_price(recording: Path) -> None:
    shown = spyreprof("report", recording, "--price-per-hour", "0.5", "--width", "90").stdout.decode()
    assert "Cost at your price of 0.500 an hour" in shown
    assert "idle capacity" in shown


@pytest.mark.parametrize(
    "price",
    ["-1", "nan", "NaN", "inf", "0", "0.000", "1e999999999", "1e3", "two", "", "1,5", "1000001", "9" * 5000, "٣", "$2"],
)
def test_a_price_that_is_none_is_one_sentence_and_a_remedy(recording: Path, price: str) -> None:
    result = spyreprof("report", recording, f"--price-per-hour={price}")
    said = result.stderr.decode()
    assert (result.returncode, result.stdout) == (2, b"")
    assert "is no price" in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3


@pytest.mark.parametrize("price", ["0.000000001", "1000000", " 2.50 "])
def test_prices_at_the_edge_are_prices(recording: Path, price: str) -> None:
    report = json.loads(spyreprof("report", recording, f"--price-per-hour={price}", "--json").stdout)
    assert report["cost"]["amount"] > 0


def test_a_report_that_was_made_already_is_not_priced_again(recording: Path, tmp_path: Path) -> None:
    made = tmp_path / "report.json"
    spyreprof("report", recording, "--json", "--out", made)
    result = spyreprof("report", made, "--price-per-hour", "2")
    assert result.returncode == 2
    assert "nor at another price" in result.stderr.decode()
