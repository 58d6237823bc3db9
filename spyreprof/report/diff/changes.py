"""What became of each metric, and whether that is more than noise.

Repeats of a run show the noise; without them a stated floor stands for it. Values are compared as logarithms of ratios:
twice as fast is as far away as half as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from spyreprof.report.diff import thresholds
from spyreprof.report.diff.identity import drift_of_peaks
from spyreprof.report.diff.model import Change, Condition, NeededFor
from spyreprof.report.diff.pair import Pair
from spyreprof.report.model import Report
from spyreprof.report.noise_floor import UNITS, figures_of
from spyreprof.units import format_share

# Student's t, two-sided, 95 %, by degrees of freedom; above the last the value of the last holds and is a little wide.
_STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
# As a logarithm: a factor of 4e15.
_MOST = 36.0
_COUNTS = ("steps",)
_RATES = ("tokens/s", "requests/s")
_OF_STEPS = {"decode_step_p50": "decode", "prefill_step_p50": "prefill"}
_TAILS = ("p90", "p99")
OUTPUT_TOKENS = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Values:
    """One metric of one side: a value for each run, where they come from, and the samples behind the fewest."""

    values: tuple[float, ...]
    source: str
    samples: int | None


def compare_metrics(pair: Pair, conditions: Sequence[Condition]) -> tuple[Change, ...]:
    """All metrics that either side has, in a fixed order."""
    before, after = values_of(pair.a), values_of(pair.b)
    drift = drift_of_peaks(pair.a, pair.b) or 0.0
    if drift > thresholds.PEAKS.value:
        drift *= thresholds.PEAKS_TWICE.value
    drift = max(drift, thresholds.BETWEEN_SESSIONS.value)
    return tuple(
        _change(name, unit, (before.get(name), after.get(name)), _obstacles(name, conditions), drift)
        for name, unit in UNITS
        if name not in _COUNTS and (name in before or name in after)
    )


def values_of(report: Report) -> dict[str, Values]:
    """The values of all complete runs; of a single run its own."""
    figures = figures_of(report)
    found = {name: Values((figure.value,), figure.source, _samples(name, report)) for name, figure in figures.items()}
    for metric in report.noise_floor.metrics if report.noise_floor is not None else ():
        known = tuple(value for value in metric.values if value is not None)
        if known and metric.source is not None:
            found[metric.metric] = Values(known, metric.source, _samples(metric.metric, report))
    return found


def _samples(metric: str, report: Report) -> int | None:
    """Requests, tokens or steps behind the value; None where that is not counted."""
    if metric in _OF_STEPS:
        return sum(phase.steps for phase in report.phases if phase.phase == _OF_STEPS[metric])
    if metric == OUTPUT_TOKENS:
        return sum(phase.steps for phase in report.phases) or None
    if metric == "requests_per_s":
        return report.quality.coverage.requests or None
    latency = metric.partition("_")[0]
    return next((row.n for row in report.latencies if row.metric == latency), None)


def needed_for(metric: str) -> tuple[NeededFor, ...]:
    """Which conditions a metric depends on."""
    return ("all", "steps") if metric in _OF_STEPS else ("all", "requests")


def obstacles(needed: Sequence[NeededFor], conditions: Sequence[Condition]) -> list[str]:
    """Names of the conditions that forbid to compare what needs them."""
    return [
        condition.name
        for condition in conditions
        if condition.needed_for in needed
        and (condition.bearing == "withholds" or (condition.bearing == "follows" and condition.needed_for == "steps"))
    ]


def _obstacles(metric: str, conditions: Sequence[Condition]) -> list[str]:
    found = obstacles(needed_for(metric), conditions)
    if found and metric.startswith("itl_"):
        # The time between tokens is that of a step: what steps need will do in the place of the load.
        return min(found, obstacles(("all", "steps"), conditions), key=len)
    return found


def _change(
    metric: str, unit: str, sides: tuple[Values | None, Values | None], forbidden: list[str], drift: float
) -> Change:
    before, after = sides
    better: Literal["higher", "lower"] = "higher" if unit in _RATES else "lower"
    middle = [median(side.values) if side is not None else None for side in sides]

    def untold(reason: str, *, withheld: bool = False) -> Change:
        return Change(
            metric=metric, unit=unit, better=better, a=middle[0], b=middle[1], change=None, low=None, high=None,
            noise=None, noise_basis="", outcome="withheld" if withheld else "cannot_tell", reason=reason,
        )  # fmt: skip

    if forbidden:
        return untold(f"needs {', '.join(forbidden)}", withheld=True)
    if before is None or after is None:
        return untold(f"{'A' if before is None else 'B'} has no value")
    if before.source != after.source:
        return untold(f"counted from {before.source} in A and from {after.source} in B")
    if min(before.values) <= 0 or min(after.values) <= 0:
        return untold("a value of 0 cannot be compared")
    fewest = min((side.samples for side in (before, after) if side.samples is not None), default=None)
    if fewest is not None and fewest < thresholds.SAMPLES.value:
        return untold(f"{fewest} samples on one side; {thresholds.SAMPLES.value:.0f} are needed")
    shift = math.log(median(after.values)) - math.log(median(before.values))
    if abs(shift) > _MOST:
        return untold("the values are too far apart to be of the same metric")
    noise, basis = _noise(metric, before.values, after.values, drift)
    better_by = shift if better == "higher" else -shift
    outcome: Literal["faster", "slower", "cannot_tell"] = "cannot_tell"
    if abs(shift) > noise:
        outcome = "faster" if better_by > 0 else "slower"
    return Change(
        metric=metric, unit=unit, better=better, a=middle[0], b=middle[1], change=math.expm1(shift),
        low=math.expm1(shift - noise), high=math.expm1(shift + noise), noise=math.expm1(noise), noise_basis=basis,
        outcome=outcome, reason=None if outcome != "cannot_tell" else "the change is within the noise",
    )  # fmt: skip


def _noise(metric: str, before: Sequence[float], after: Sequence[float], drift: float) -> tuple[float, str]:
    """The half width of the change's interval as a logarithm, and what it is from."""
    tail = metric.endswith(_TAILS)
    floor = math.log1p((thresholds.SINGLE_RUN_TAIL if tail else thresholds.SINGLE_RUN).value)
    between = math.log1p(drift)
    freedom = len(before) + len(after) - 2
    if freedom == 0:
        told = (
            "what the machine's peaks moved"
            if between > floor
            else f"a guess for {'tails' if tail else 'medians and rates'}"
        )
        return max(floor, between), f"one run on each side, {told}"
    logs = [[math.log(value) for value in side] for side in (before, after)]
    squares = sum((value - sum(side) / len(side)) ** 2 for side in logs for value in side)
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    width = _STUDENT_T[min(freedom, len(_STUDENT_T)) - 1] * error
    # Two or three repeats that lie close together must not leave less certain than one run that is only guessed at.
    seen = max(max(side) - min(side) for side in logs)
    width = max(between, min(width, max(floor, seen)))
    at_least = f", and at least {format_share(drift)} between sessions" if width <= between else ""
    return width, f"repeats, {len(before)} and {len(after)} runs{at_least}"
