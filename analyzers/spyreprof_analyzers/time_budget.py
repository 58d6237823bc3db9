"""Where the wall time of the window went, in integer nanoseconds that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import BudgetPart, ExcludedTime, TimeBudget
from spyreprof_analyzers import intervals
from spyreprof_analyzers.engine_steps import PHASE_NAMES, UNKNOWN_PHASE
from spyreprof_analyzers.gaps import classify_gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.findings import Origin, SteadyWindow
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.gaps import GapTimes
    from spyreprof_analyzers.profile import StepSplit
    from spyreprof_analyzers.scheduler import Gauges


@dataclass(frozen=True, slots=True)
class WallTime:
    """The window cut by what ran, before steps are cut by resource. All in nanoseconds; the sum is `judged_ns`."""

    judged_ns: int
    phase_ns: dict[str, int]
    compile_ns: int
    gaps: GapTimes
    paused_ns: int
    overlap_ns: int


def wall_time(
    window: SteadyWindow,
    steps: EngineSteps,
    inputs: AnalysisInputs,
    in_flight: NDArray[np.int64] | None,
    gauges: Gauges | None,
    rules: RuleBook,
) -> WallTime:
    """Cut the window into phases, compilation and classified gaps.

    Where steps overlap (pipelined engines) the later one counts from the end of the earlier.
    """
    whole = intervals.as_spans([(window.start_ns, window.end_ns)])
    pauses = intervals.union(intervals.as_spans((p.start_ns, p.end_ns) for p in inputs.pauses))
    judged = intervals.subtract(whole, pauses)
    compiles = intervals.intersect(
        intervals.union(intervals.as_spans((c.start_ns, c.end_ns) for c in inputs.compiles)), judged
    )
    available = intervals.subtract(judged, compiles)
    reach = np.maximum.accumulate(np.concatenate(([window.start_ns], steps.end_ns[:-1])))
    begin = np.maximum(steps.start_ns, reach)
    own = np.stack((begin, np.maximum(steps.end_ns, begin)), axis=1)
    phase_ns = {
        name: intervals.total(intervals.intersect(intervals.union(_positive(own[steps.phase == code])), available))
        for code, name in enumerate(PHASE_NAMES)
    }
    idle = intervals.subtract(available, intervals.union(_positive(own)))
    return WallTime(
        judged_ns=intervals.total(judged),
        phase_ns=phase_ns,
        compile_ns=intervals.total(compiles),
        gaps=classify_gaps(idle, steps, in_flight, gauges, rules),
        paused_ns=intervals.total(whole) - intervals.total(judged),
        overlap_ns=int((steps.duration_ns - (own[:, 1] - own[:, 0])).sum()),
    )


def time_budget(wall: WallTime, splits: dict[str, StepSplit], excluded: tuple[ExcludedTime, ...]) -> TimeBudget:
    """Cut each phase by resource where profiled steps allow it, and close the books.

    Args:
        wall: the window cut by what ran.
        splits: per phase name, the shares of its step time; a phase without one is left "not_split".
        excluded: time outside the window or taken out of it.
    """
    parts: list[tuple[str, int, Origin]] = []
    unexplained = wall.gaps.ns["unexplained"]
    for phase, ns in wall.phase_ns.items():
        split = splits.get(phase)
        if ns == 0:
            continue
        if phase == PHASE_NAMES[UNKNOWN_PHASE]:
            # a step ran, but of what: nothing may be concluded from it
            unexplained += ns
        elif split is None:
            parts.append((f"{phase}.not_split", ns, "measured"))
        else:
            cut = _shares_of(
                ns,
                {
                    "device_compute": split.device_compute,
                    "exposed_communication": split.exposed_communication,
                    "waiting_for_ranks": split.waiting_for_ranks or 0.0,
                    "exposed_copy": split.exposed_copy,
                    "host": split.host,
                    "unassigned": split.unassigned,
                },
            )
            unexplained += cut.pop("unassigned")
            parts.extend((f"{phase}.{name}", part, "derived") for name, part in cut.items() if part)
    parts.append(("compile", wall.compile_ns, "measured"))
    for name in ("scheduler_gap", "waiting_unscheduled", "front_end", "no_load"):
        guessed = name == "no_load" and wall.gaps.no_load_basis == "next step"
        origin: Origin = "derived" if name == "front_end" else "estimated" if guessed else "measured"
        parts.append((name, wall.gaps.ns[name], origin))
    length = max(wall.judged_ns, 1)
    return TimeBudget(
        window_ns=wall.judged_ns,
        parts=tuple(BudgetPart(id=name, ns=ns, share=ns / length, origin=origin) for name, ns, origin in parts if ns),
        unexplained_ns=unexplained,
        unexplained_share=unexplained / length,
        excluded=excluded,
    )


def _shares_of(ns: int, ratios: dict[str, float]) -> dict[str, int]:
    """Whole nanoseconds in the given ratios that add up to `ns`; the largest takes what rounding leaves."""
    cut = {name: int(ns * ratio) for name, ratio in ratios.items()}
    largest = max(cut, key=lambda name: cut[name])
    cut[largest] += ns - sum(cut.values())
    return cut


def _positive(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    return spans[spans[:, 1] > spans[:, 0]]
