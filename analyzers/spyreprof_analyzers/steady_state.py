"""The steady-state window: warm-up, ramp-up and drain are cut off the ends, nothing is cut from the middle."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from spyreprof.findings import SteadyWindow
from spyreprof.units import NS_PER_S

# Shorter idle times are part of a load, however light.
APART_NS = 20 * NS_PER_S
# What stands apart more often is a light load.
MOST_APART = 50
FIFTHS = 5

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.scheduler import Gauges


@dataclass(frozen=True, slots=True)
class LoadDrift:
    """A load that never holds: mean running requests in the first and in the last two fifths of the window."""

    first_requests: float
    last_requests: float

    @property
    def said(self) -> str:
        """What happens, in words."""
        verb = "grows" if self.last_requests > self.first_requests else "falls"
        return f"the load only {verb}: from {self.first_requests:.0f} running requests to {self.last_requests:.0f}"


def load_drift(steps: EngineSteps, window: SteadyWindow, gauges: Gauges | None, rules: RuleBook) -> LoadDrift | None:
    """Whether running requests grow, or fall, all through the window, and by how much.

    The load is what runs and waits together, where gauges tell: an engine that runs fewer while as many are there is
    held back, which its own limits explain.

    Args:
        steps: the window's steps; those whose requests are not known say nothing.
        gauges: of the window.

    Returns:
        None where the load holds, where there is too little of it to tell, and where steps do not tell their requests.
    """
    known, unknown = steps.where(steps.counted), steps.where(~steps.counted)
    work = (known.context_requests + known.generation_requests).astype(np.float64)
    running = []
    for start, end in _fifths(window):
        told_ns = end - start - int(_inside_ns(unknown, start, end).sum())
        if told_ns <= 0:
            return None
        running.append(float((_inside_ns(known, start, end) * work).sum()) / told_ns)
    return _drift(running, _demand(gauges, window), rules)


def drift_of_gauges(gauges: Gauges, window: SteadyWindow, rules: RuleBook) -> LoadDrift | None:
    """The same from gauges alone; None also where one of the fifths was not polled."""
    running = [_mean(gauges, gauges.running, start, end) for start, end in _fifths(window)]
    told = [one for one in running if one is not None]
    return _drift(told, _demand(gauges, window), rules) if len(told) == FIFTHS else None


def _drift(running: list[float], demand: list[float] | None, rules: RuleBook) -> LoadDrift | None:
    direction = _direction(running, rules)
    if direction == 0 or (demand is not None and _direction(demand, rules) != direction):
        return None
    return LoadDrift(*_ends(running))


def _fifths(window: SteadyWindow) -> list[tuple[int, int]]:
    length = window.end_ns - window.start_ns
    return list(pairwise(window.start_ns + length * part // FIFTHS for part in range(FIFTHS + 1)))


def _inside_ns(steps: EngineSteps, start_ns: int, end_ns: int) -> NDArray[np.int64]:
    inside_ns: NDArray[np.int64] = np.minimum(steps.end_ns, end_ns) - np.maximum(steps.start_ns, start_ns)
    return np.maximum(inside_ns, 0)


def _ends(fifths: list[float]) -> tuple[float, float]:
    return (fifths[0] + fifths[1]) / 2, (fifths[-2] + fifths[-1]) / 2


def _direction(fifths: list[float], rules: RuleBook) -> int:
    """1 for requests that grow from fifth to fifth, -1 for ones that fall; one step may go the other way. Else 0.

    The change must be more than chance makes of that many requests.
    """
    rule, (first, last) = rules["SPY-GEN-002"], _ends(fifths)
    sign = 1 if last > first else -1
    against = sum(sign * (later - earlier) <= 0 for earlier, later in pairwise(fifths))
    low, high = sorted((first, last))
    chance = rule.threshold("min_drift_deviations") * ((low + high) / 2) ** 0.5
    enough = high >= rule.threshold("min_drifting_requests") and high > rule.threshold("max_drift_ratio") * low
    return sign if against <= 1 and enough and high - low > chance else 0


def with_doubts(window: SteadyWindow, drift: LoadDrift | None, *, all_warm_up: bool) -> SteadyWindow:
    """The window, with why it is no steady state where it is none."""
    said = [drift.said] if drift is not None else []
    if all_warm_up:
        said.append("all of it is warm-up")
    return msgspec.structs.replace(window, basis="; ".join((window.basis, *said)))


def _demand(gauges: Gauges | None, window: SteadyWindow) -> list[float] | None:
    """Requests that run or wait in each fifth, on average; None where one of them was not polled."""
    if gauges is None:
        return None
    means = [_mean(gauges, gauges.running + gauges.waiting, start, end) for start, end in _fifths(window)]
    told = [one for one in means if one is not None]
    return told if len(told) == FIFTHS else None


def _mean(gauges: Gauges, values: NDArray[np.float64], start_ns: int, end_ns: int) -> float | None:
    low, high = np.searchsorted(gauges.time_ns, (start_ns, end_ns))
    known = values[low:high][~np.isnan(values[low:high])]
    return float(known.mean()) if len(known) else None


def steady_window(steps: EngineSteps, inputs: AnalysisInputs, rules: RuleBook) -> SteadyWindow:
    """Find the window that is judged.

    The level is the time-weighted median number of requests that run, over the middle half of the steps. The
    window goes from the first to the last moment at which that level was reached. With a level under one request
    (light load) it is the whole stretch of steps.

    Args:
        steps: at least one step, ordered by start.
    """
    rule = rules["SPY-GEN-002"]
    apart, steps = _without_what_stands_apart(steps, rule.threshold("apart_busy_share"))
    first = _after_warm_up(steps, int(rule.threshold("warm_up_steps")))
    start, end = int(steps.start_ns[first]), int(steps.end_ns[-1])
    running = np.where(steps.counted, steps.context_requests + steps.generation_requests, 0)
    level = _level(steps, running, start, end)
    basis = "from the first to the last engine step, without warm-up"
    if apart:
        basis += " and what stood far apart from the rest"
    if level >= 1:
        reached = np.flatnonzero(running[first:] >= rule.threshold("level_ratio") * level) + first
        if len(reached) > 1:
            start, end = int(steps.start_ns[reached[0]]), int(steps.end_ns[reached[-1]])
            basis = (
                f"while at least {rule.threshold('level_ratio'):.0%} of the usual running requests ({level:.0f}) ran"
            )
    # rows from before the recording, or from after it, are no part of what it saw
    start, end = max(start, inputs.recording_start_ns), min(end, inputs.recording_end_ns)
    end = max(start, end)
    length = max(inputs.recording_end_ns - inputs.recording_start_ns, 1)
    return SteadyWindow(start_ns=start, end_ns=end, share_of_recording=min((end - start) / length, 1.0), basis=basis)


def _without_what_stands_apart(steps: EngineSteps, busy_share: float) -> tuple[bool, EngineSteps]:
    """Cut off a few steps that a long idle time parts from the load, such as a single request tried beforehand.

    The side with less work goes when its work is a small share of all and shorter than the idle time beside it.
    """
    apart = False
    for _ in range(MOST_APART):
        if len(steps) <= 2:
            break
        gap = steps.start_ns[1:] - np.maximum.accumulate(steps.end_ns)[:-1]
        at = int(np.argmax(gap))
        left, right = (int(part.sum()) for part in np.split(steps.duration_ns, [at + 1]))
        smaller = min(left, right)
        if int(gap[at]) <= smaller or smaller >= busy_share * (left + right) or int(gap[at]) < APART_NS:
            break
        keep = np.arange(len(steps)) > at if left <= right else np.arange(len(steps)) <= at
        steps, apart = steps.where(keep), True
    return apart, steps


def _after_warm_up(steps: EngineSteps, warm_up_steps: int) -> int:
    """Index of the first step that counts: past the first few, and past compilation at the start.

    Compilation that goes on through every fifth of the steps is no warm-up: it is how the engine runs.
    """
    first = min(warm_up_steps, len(steps) - 1)
    fifths = [bool((part > 0).any()) for part in np.array_split(steps.compiles, FIFTHS)]
    compiling = np.flatnonzero(steps.compiles[: max(len(steps) // FIFTHS, 1)] > 0)
    if len(compiling) and not all(fifths):
        first = max(first, min(int(compiling[-1]) + 1, len(steps) - 1))
    return first


def _level(steps: EngineSteps, running: np.ndarray, start: int, end: int) -> float:
    """Time-weighted median of running requests in the middle half; idle time counts as zero requests."""
    low, high = start + (end - start) // 4, end - (end - start) // 4
    inside = (steps.end_ns > low) & (steps.start_ns < high)
    weight = np.clip(steps.end_ns[inside], low, high) - np.clip(steps.start_ns[inside], low, high)
    idle = max((high - low) - int(weight.sum()), 0)
    values = np.append(running[inside], 0)
    weights = np.append(weight, idle)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) * 2 >= weights.sum()
    return float(values[order][np.argmax(reached)])
