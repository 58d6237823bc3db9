"""Several engines in the terminal: a line for each, or for each class where there are many."""

from __future__ import annotations

from spyreprof.findings import EngineReport
from spyreprof.report.figures import UNKNOWN, count
from spyreprof.report.model import Report
from spyreprof.report.page import Column, Page
from spyreprof.units import format_share

LINES = 8


def draw_engines(page: Page, report: Report) -> None:
    """A line per engine, the one that binds marked; of more than eight, how many are of each class, and which."""
    if not report.engines:
        return
    page.blank()
    page.paragraph(f"Engines ({len(report.engines)}), each judged by itself", style="bold")
    shown = report.engines
    if len(shown) > LINES:
        shown = tuple(engine for engine in shown if engine.binds)
    columns = [Column("engine"), Column("verdict", numeric=False), Column("confidence", numeric=False)]
    columns += [Column("running"), Column("waiting"), Column("KV"), Column("preempted")]
    page.table(columns, [_row(engine) for engine in shown], indent=2)
    if len(shown) < len(report.engines):
        for kind in sorted({engine.primary for engine in report.engines}):
            numbers = [engine.number for engine in report.engines if engine.primary == kind]
            page.labelled("", f"{kind} {len(numbers)}: {_spans(numbers)}", indent=2, label_width=0)


def _row(engine: EngineReport) -> list[str]:
    gauges = engine.gauges
    return [
        f"{engine.number}{' <' if engine.binds else '  '}",
        engine.primary,
        engine.confidence or "none",
        UNKNOWN if gauges.running_mean is None else count(gauges.running_mean),
        UNKNOWN if gauges.waiting_mean is None else count(gauges.waiting_mean),
        UNKNOWN if gauges.kv_usage_mean is None else format_share(gauges.kv_usage_mean),
        UNKNOWN if gauges.preemptions is None else f"{gauges.preemptions:,}",
    ]


def _spans(numbers: list[int]) -> str:
    """Numbers in ascending order, neighbours joined: 0, 2-5, 9."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
