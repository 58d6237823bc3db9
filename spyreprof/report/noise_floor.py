"""The noise floor: how far repeats of one command lie apart, metric by metric.

Everything here is arithmetic on finished reports, so that whoever compares two recordings can ask for the noise floor
of either: `noise_floor` of the reports of its runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from spyreprof.report.model import MetricNoise, NoiseFloor, Rate, Report

# A spread needs two values; it grows with their number, so that few repeats show too little of it.
MIN_RUNS = 2
FEW_RUNS = 5
_DECODE_STEP = "decode_step_p50"
_PREFILL_STEP = "prefill_step_p50"
_OUTPUT_TOKENS = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value of one run, and what it comes from."""

    value: float
    source: str


def noise_floor(reports: Mapping[int, Report]) -> NoiseFloor | None:
    """How far the repeats of one recording lie apart.

    Args:
        reports: the reports of its complete runs, by the number of the run.

    Returns:
        None with fewer than two runs.
    """
    if len(reports) < MIN_RUNS:
        return None
    numbers = sorted(reports)
    figures = [figures_of(reports[k]) for k in numbers]
    return NoiseFloor(
        runs=tuple(numbers),
        metrics=tuple(metric_noise(name, unit, [found.get(name) for found in figures]) for name, unit in UNITS),
        meaning=_meaning(len(numbers)),
    )


def metric_noise(metric: str, unit: str, figures: Sequence[Figure | None]) -> MetricNoise:
    """Median and spread of one metric; values from another source than most runs have are left out."""
    sources = Counter(figure.source for figure in figures if figure is not None)
    source = max(sorted(sources), key=lambda name: sources[name]) if sources else None
    values = tuple(figure.value if figure is not None and figure.source == source else None for figure in figures)
    return MetricNoise(
        metric=metric,
        unit=unit,
        source=source,
        values=values,
        median=middle(values),
        relative_spread=relative_spread(values),
    )


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the values that are there; None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def relative_spread(values: Sequence[float | None]) -> float | None:
    """Largest minus smallest value over the size of the median, of the values that are there.

    Returns:
        0 where all are the same; None with fewer than two values, or about a median of 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < MIN_RUNS:
        return None
    width = max(known) - min(known)
    about = abs(median(known))
    if width == 0:
        return 0.0
    return width / about if about else None


def median_run(reports: Mapping[int, Report]) -> int:
    """The run in the middle by output tokens per second; by step time where a run lacks them; by number without both.

    Of runs that are equal the earlier comes first, and of an even number the lower middle is taken.

    Args:
        reports: by the number of the run, at least one.
    """
    figures = {k: figures_of(report) for k, report in reports.items()}
    for name in (_OUTPUT_TOKENS, _DECODE_STEP, _PREFILL_STEP):
        found = {k: figure for k in reports if (figure := figures[k].get(name)) is not None}
        if len(found) == len(reports) and len({figure.source for figure in found.values()}) == 1:
            ranked = sorted(found, key=lambda k: (found[k].value, k))
            return ranked[(len(ranked) - 1) // 2]
    return sorted(reports)[(len(reports) - 1) // 2]


def figures_of(report: Report) -> dict[str, Figure]:
    """What is compared of a run, by metric; a metric that the run does not have is absent."""
    return {name: figure for name, _, read in _METRICS if (figure := read(report)) is not None}


def _meaning(runs: int) -> str:
    text = f"A change smaller than the spread of a metric cannot be told from noise, as {runs} runs show it."
    if runs < FEW_RUNS:
        text += f" So few runs show less than the whole spread; {FEW_RUNS} or more show it better."
    return text


def _rate(read: Callable[[Report], Rate | None]) -> Callable[[Report], Figure | None]:
    def figure(report: Report) -> Figure | None:
        rate = read(report)
        return Figure(rate.per_s, rate.source) if rate is not None else None

    return figure


def _latency(metric: str, field: str) -> Callable[[Report], Figure | None]:
    def figure(report: Report) -> Figure | None:
        row = next((row for row in report.latencies if row.metric == metric), None)
        value = getattr(row, field) if row is not None else None
        return Figure(value, row.source) if row is not None and value is not None else None

    return figure


def _step(phase: str) -> Callable[[Report], Figure | None]:
    def figure(report: Report) -> Figure | None:
        value = next((part.step_time_p50_ns for part in report.phases if part.phase == phase), None)
        return Figure(float(value), "engine steps of the steady window") if value is not None else None

    return figure


def _steps(report: Report) -> Figure | None:
    steps = report.quality.coverage.steps
    return Figure(float(steps), "engine steps of the whole recording") if steps else None


_METRICS: tuple[tuple[str, str, Callable[[Report], Figure | None]], ...] = (
    (_OUTPUT_TOKENS, "tokens/s", _rate(lambda report: report.throughput.output_tokens if report.throughput else None)),
    ("requests_per_s", "requests/s", _rate(lambda report: report.throughput.requests if report.throughput else None)),
    ("ttft_mean", "s", _latency("ttft", "mean_s")),
    ("ttft_p50", "s", _latency("ttft", "p50_s")),
    ("ttft_p90", "s", _latency("ttft", "p90_s")),
    ("itl_p50", "s", _latency("itl", "p50_s")),
    ("itl_p99", "s", _latency("itl", "p99_s")),
    (_DECODE_STEP, "ns", _step("decode")),
    (_PREFILL_STEP, "ns", _step("prefill")),
    ("steps", "steps", _steps),
)
# Every metric with its unit, in the order in which they are shown.
UNITS = tuple((name, unit) for name, unit, _ in _METRICS)
