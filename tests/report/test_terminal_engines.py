"""Several engines in the terminal."""

from __future__ import annotations

import msgspec
import pytest
from report_builders import finished_report

from spyreprof.findings import EngineGauges, EngineReport
from spyreprof.report.terminal import render


def engine(number: int, *, binds: bool = False, kv: float | None = 0.5) -> EngineReport:
    return EngineReport(
        number=number,
        binds=binds,
        window=None,
        time_budget=None,
        primary="kv_capacity_bound" if binds else "load_limited",
        confidence="medium" if binds else "low",
        secondary=(),
        headline="KV capacity binds.",
        steps=None,
        gauges=EngineGauges(
            running_mean=51.2, waiting_mean=117.0 if binds else 0.0, kv_usage_mean=kv, preemptions=None
        ),
        evidence=(),
    )


def drawn(*engines: EngineReport, width: int = 80) -> str:
    return render(msgspec.structs.replace(finished_report(), engines=engines), width)


def test_each_of_a_few_engines_has_a_line_and_the_one_that_binds_is_marked() -> None:
    text = drawn(engine(0), engine(1, binds=True), engine(2, kv=None))
    assert "Engines (3), each judged by itself" in text
    (line,) = [line for line in text.splitlines() if "1 <" in line]
    assert line.split() == ["1", "<", "kv_capacity_bound", "medium", "51.2", "117", "50.0", "%", "unknown"]
    assert sum("load_limited" in line and "51.2" in line for line in text.splitlines()) == 2


def test_of_many_engines_the_one_that_binds_is_shown_and_the_others_are_counted() -> None:
    engines = [engine(number, binds=number == 3) for number in range(12) if number != 7]
    text = drawn(*engines)
    assert sum("51.2" in line for line in text.splitlines()) == 1
    assert "kv_capacity_bound 1: 3" in text
    assert "load_limited 10: 0-2, 4-6, 8-11" in text


def test_one_engine_has_no_lines_of_its_own() -> None:
    assert "each judged by itself" not in drawn()


@pytest.mark.parametrize("width", [40, 60, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = drawn(*(engine(number, binds=number == 3) for number in range(8)), width=width)
    assert max(map(len, text.splitlines())) <= width
