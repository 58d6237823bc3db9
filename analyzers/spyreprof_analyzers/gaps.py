"""Time between engine steps: whose fault is it that nothing ran?

Witnesses, best first: the request log (was any request in flight?), the engine's gauges sampled inside the gap, and
what the next step did. A gap that none of them explains stays unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spyreprof_analyzers import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.scheduler import Gauges

GapClass = Literal["scheduler_gap", "waiting_unscheduled", "front_end", "no_load", "unexplained"]


@dataclass(frozen=True, slots=True)
class GapTimes:
    """Nanoseconds of each gap class, and how no-load time was recognised."""

    ns: dict[GapClass, int]
    no_load_basis: Literal["request log", "gauges", "next step", "none"]


def requests_in_flight(
    arrival_ns: NDArray[np.int64], end_ns: NDArray[np.int64], steps: EngineSteps, rules: RuleBook
) -> NDArray[np.int64] | None:
    """Times at which a logged request was in flight, as disjoint spans; None when the log misses load.

    Args:
        arrival_ns, end_ns: of every request in the log, shape (n,), the recording's clock.
        steps: the engine steps of the same stretch.
    """
    if len(arrival_ns) == 0 or len(steps) == 0:
        return None
    spans = intervals.union(intervals.as_spans(zip(arrival_ns.tolist(), end_ns.tolist(), strict=True)))
    worked = intervals.union(np.stack((steps.start_ns, steps.end_ns), axis=1))
    outside = intervals.total(worked) - intervals.total(intervals.intersect(worked, spans))
    if outside > rules["SPY-GEN-004"].threshold("max_step_time_outside_log") * intervals.total(worked):
        return None
    return spans


def classify_gaps(
    gaps: NDArray[np.int64],
    steps: EngineSteps,
    in_flight: NDArray[np.int64] | None,
    gauges: Gauges | None,
    rules: RuleBook,
) -> GapTimes:
    """Put every nanosecond of the gaps into one class.

    Args:
        gaps: disjoint, sorted spans in which no step ran, shape (n, 2).
        steps: all steps, ordered by start.
        in_flight: spans with a request in flight, or None when there is no complete log.
        gauges: sampled scheduler state, or None.
    """
    ns: dict[GapClass, int] = {
        "scheduler_gap": 0,
        "waiting_unscheduled": 0,
        "front_end": 0,
        "no_load": 0,
        "unexplained": 0,
    }
    length = gaps[:, 1] - gaps[:, 0] if len(gaps) else np.zeros(0, dtype=np.int64)
    median_step = float(np.median(steps.duration_ns)) if len(steps) else 0.0
    short = length <= rules["SPY-GEN-004"].threshold("short_gap_ratio") * median_step
    ns["scheduler_gap"] += int(length[short].sum())
    basis: set[str] = set()
    long = gaps[~short]
    before = intervals.covered_before(in_flight if in_flight is not None else gaps[:0], long.ravel())
    with_request = np.diff(before.reshape(-1, 2), axis=1)[:, 0]
    for (start, end), busy in zip(long.tolist(), with_request.tolist(), strict=True):
        continues = _next_step_continues(steps, end)
        if in_flight is not None:
            ns["no_load"] += end - start - busy
            ns[_with_work(continues, gauges, start, end, otherwise="front_end")] += busy
            basis.add("request log")
            continue
        seen = gauges.between(start, end) if gauges is not None else None
        if seen is not None and seen.samples > 0 and not continues:
            idle = seen.max_running == 0 and seen.max_waiting == 0
            ns["no_load" if idle else "waiting_unscheduled" if seen.max_running == 0 else "scheduler_gap"] += (
                end - start
            )
            basis.add("gauges")
        elif continues is None:
            ns["unexplained"] += end - start
        elif continues:
            ns["scheduler_gap"] += end - start
        else:
            ns["no_load"] += end - start
            basis.add("next step")
    for name in ("next step", "gauges", "request log"):
        if name in basis:
            return GapTimes(ns, name)
    return GapTimes(ns, "none")


def _next_step_continues(steps: EngineSteps, time_ns: int) -> bool | None:
    """Did the step after the gap go on with requests that already ran? None when its tokens are unknown."""
    index = int(np.searchsorted(steps.start_ns, time_ns))
    if index >= len(steps) or steps.generation_requests[index] < 0:
        return None
    return bool(steps.generation_requests[index] > 0)


def _with_work(continues: bool | None, gauges: Gauges | None, start: int, end: int, *, otherwise: GapClass) -> GapClass:
    """Class of gap time in which a request was in flight."""
    if continues:
        return "scheduler_gap"
    seen = gauges.between(start, end) if gauges is not None else None
    if seen is not None and seen.samples > 0:
        if seen.max_running > 0:
            return "scheduler_gap"
        if seen.max_waiting > 0:
            return "waiting_unscheduled"
    return otherwise
