"""How the p99 and the cost look in a terminal: what is unknown says so, what was not asked for is not there."""

from __future__ import annotations

import msgspec
import pytest
from report_builders import COST, finished_report, tail

from spyreprof.report.terminal import render
from spyreprof.report.terminal_requests import spell_amount


def drawn(width: int = 100, show_all: bool = False, **changes: object) -> str:
    return render(finished_report(**changes), width, show_all=show_all)


def line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def test_what_dominates_stands_first_with_the_target_that_is_missed() -> None:
    said = " ".join(drawn().split())
    assert "ttft queue: 3.90 s (20 slowest of 412) against 825 ms (median 84)" in said
    assert "target 2.00 s missed" in said


def test_a_part_that_cannot_be_told_is_unknown_and_one_that_took_no_time_is_left_out() -> None:
    text = drawn()
    section = text[text.index("What dominates") : text.index("Cost at")]
    assert line(section, "front end").split()[-2:] == ["unknown", "unknown"]
    assert "preemption" not in section


def test_where_nothing_dominates_the_reason_stands_alone() -> None:
    found = tail(dominant=None, dominant_share=None, reason="the slowest requests are hardly slower", target_p99_s=None)
    text = drawn(tails=(found,))
    assert "nothing dominates" in text
    assert "share in %  " not in text
    assert "share in %  " in drawn(tails=(found,), show_all=True)


def test_three_latencies_fit_a_terminal_of_eighty_cells() -> None:
    text = drawn(80, tails=tuple(tail(metric=metric) for metric in ("ttft", "itl", "itl_max")))
    heading = line(text, "share in %  ")
    assert heading.split()[3:] == ["ttft", "median", "itl", "mean", "median", "itl", "max", "median"]


def test_without_enough_requests_and_without_a_price_neither_is_there() -> None:
    text = drawn(tails=(), cost=None)
    assert "What dominates" not in text
    assert "Cost" not in text


def test_amounts_stand_beside_what_they_hold_for() -> None:
    text = drawn()
    said = " ".join(text[text.index("Cost at") :].split())
    assert "Cost at your price of 2.50 an hour" in said
    for condition in ("model unknown", "precision float32", "batch 6.1", "sequence length 312", "devices unknown"):
        assert condition in said


def test_idle_capacity_has_no_tokens_and_tokens_that_nobody_counted_have_no_price() -> None:
    text = drawn()
    section = text[text.index("Cost at") :]
    assert line(section, "idle capacity").split()[-3:] == ["-", "-", "-"]
    assert line(section, "cached").split()[-3:] == ["unknown", "unknown", "unknown"]


def test_devices_that_were_counted_are_said() -> None:
    assert "devices 8" in " ".join(drawn(cost=msgspec.structs.replace(COST, devices=8)).split())


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    four = tuple(tail(metric=metric) for metric in ("ttft", "itl", "itl_max", "e2e"))
    assert max(len(line) for line in drawn(width, tails=four, show_all=True).splitlines()) <= width


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (0.0, "0"),
        (0.0000123456, "0.0000123"),
        (0.00999, "0.00999"),
        (2.5, "2.50"),
        (12.345, "12.3"),
        (123456.7, "123,457"),
        (1e-12, "1.0e-12"),
        (-0.5, "-0.500"),
    ],
)
def test_amounts_have_three_digits(value: float, spelled: str) -> None:
    assert spell_amount(value) == spelled
