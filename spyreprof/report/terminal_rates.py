"""What a run delivered, and how far repeats of it lie apart, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from spyreprof.report.figures import UNKNOWN, count, spell
from spyreprof.report.model import MetricNoise, RepeatedRun, Report
from spyreprof.report.page import Column, Page
from spyreprof.units import format_share


def draw_throughput(page: Page, report: Report) -> None:
    """Tokens and requests per second, each with what counted it."""
    found = report.throughput
    if found is None:
        return
    rates = [(found.output_tokens, "output tokens/s"), (found.requests, "requests/s")]
    lines = [f"{count(rate.per_s)} {unit} ({rate.source})" for rate, unit in rates if rate is not None]
    if lines:
        page.blank()
    for index, line in enumerate(lines):
        page.labelled("Throughput" if index == 0 else "", line)


def draw_repeats(page: Page, report: Report, show_all: bool) -> None:
    """What the runs of a repeated recording concluded, and the noise floor; nothing for a single run."""
    if not report.repeats:
        return
    page.blank()
    page.paragraph("Repeats of the same command", style="bold")
    shown = next((run.k for run in report.repeats if run.shown), None)
    floor = report.noise_floor
    of = f", the median of {len(floor.runs)} complete runs" if floor is not None else ""
    page.paragraph(f"This report is of run {UNKNOWN if shown is None else shown}{of}.", indent=2)
    for conclusion, numbers in _by_conclusion(report.repeats).items():
        page.labelled(f"run{'s' if len(numbers) > 1 else ''} {_listed(numbers)}", conclusion, indent=2, label_width=14)
    if floor is None:
        return
    page.blank()
    page.paragraph(f"Noise floor, over {len(floor.runs)} runs", style="bold")
    rows = [_row(metric) for metric in floor.metrics if any(value is not None for value in metric.values)]
    if not rows:
        page.paragraph("Nothing was measured that could be compared.", indent=2)
        return
    columns = [Column("metric", numeric=False), Column("smallest"), Column("median"), Column("largest")]
    columns.append(Column("spread"))
    page.table(columns, rows, indent=2)
    page.paragraph(floor.meaning, indent=2, style="dim")
    for metric in floor.metrics if show_all else ():
        values = ", ".join(spell(value, metric.unit) for value in metric.values)
        page.labelled(_name(metric), f"{values}; from {metric.source or 'nothing'}", indent=2, label_width=20)


def _by_conclusion(runs: Iterable[RepeatedRun]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for run in runs:
        if run.primary is None:
            said = f"{run.state.replace('_', ' ')}, not judged"
        else:
            said = f"{run.primary}, confidence {run.confidence or 'not claimed'}"
            if run.state != "complete":
                said += f" ({run.state.replace('_', ' ')})"
        grouped.setdefault(said, []).append(run.k)
    return grouped


def _listed(numbers: list[int]) -> str:
    """Numbers in order, three or more in a row shortened: "1-4, 7"."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def _row(metric: MetricNoise) -> list[str]:
    known = [value for value in metric.values if value is not None]
    ends = (min(known), metric.median, max(known))
    spread = UNKNOWN if metric.relative_spread is None else format_share(metric.relative_spread)
    return [_name(metric), *(spell(value, metric.unit) for value in ends), spread]


def _name(metric: MetricNoise) -> str:
    return metric.metric.removesuffix("_per_s").replace("_", " ")


def draw_latencies(page: Page, report: Report) -> None:
    """Latencies of requests and tokens, and whether targets are met."""
    if not report.latencies:
        return
    page.blank()
    page.paragraph("Latencies", style="bold")
    columns = [Column("latency", numeric=False), Column("n"), Column("mean"), Column("p50"), Column("p90")]
    columns += [Column("p99"), Column("source", numeric=False)]
    rows = [
        [
            latency.metric,
            f"{latency.n:,}",
            *(percentile(value, "s") for value in (latency.mean_s, latency.p50_s, latency.p90_s, latency.p99_s)),
            latency.source,
        ]
        for latency in report.latencies
    ]
    page.table(columns, rows, indent=2)
    for latency in report.latencies:
        if latency.target_p99_s is not None:
            met = {True: "met", False: "not met", None: "not judged"}[latency.target_met]
            target = f"{latency.metric} p99 at most {spell(latency.target_p99_s, 's')}: {met}"
            page.labelled("target", target, indent=2, label_width=11)


def percentile(value: float | None, unit: str) -> str:
    """A percentile is missing for one reason alone."""
    return "too few" if value is None else spell(value, unit)
