"""Compilation inside the steady state: how much of it there is, and whether the engine's steps felt it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.findings import Severity
    from spyreprof.recording.schema import Interval
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.time_budget import WallTime


@dataclass(frozen=True, slots=True)
class Compilation:
    """Compilations in the window.

    Attributes:
        events: how many began in it.
        steps: steps that say a compilation ran inside of them.
        steps_share: the time of those steps over the window.
        beside_share: share of the window in which something was compiled while a step ran that did not wait for it.
        all_warm_up: so few steps passed without compiling that the window shows nothing else, and so few compiled
            that this may be how the engine begins.
    """

    events: int
    steps: int
    steps_share: float
    beside_share: float
    all_warm_up: bool = False


def compilation(steps: EngineSteps, compiles: tuple[Interval, ...], wall: WallTime, rules: RuleBook) -> Compilation:
    """Hold the compiler's own times against the step rows, which count compilations apart from it.

    Args:
        steps: the window's steps.
        compiles: compilations of their process.
        wall: the window cut by what ran.
        rules: how many steps warm an engine up.
    """
    spans = intervals.union(intervals.as_spans((one.start_ns, one.end_ns) for one in compiles))
    hit = steps.compiles > 0
    others = steps.where(~hit)
    beside = intervals.intersect(spans, intervals.union(np.stack((others.start_ns, others.end_ns), axis=1)))
    start, end = (int(steps.start_ns[0]), int(steps.end_ns.max())) if len(steps) else (0, 0)
    length = max(wall.judged_ns, 1)
    return Compilation(
        events=sum(start <= one.start_ns < end for one in compiles),
        steps=int(hit.sum()),
        steps_share=int(steps.duration_ns[hit].sum()) / length,
        beside_share=intervals.total(beside) / length,
        all_warm_up=wall.compile_ns >= rules["SPY-CMP-001"].materiality_share * length and _warms_up(hit, rules),
    )


def _warms_up(hit: NDArray[np.bool_], rules: RuleBook) -> bool:
    """Is a window of steps that mostly compile short enough to be a warm-up?"""
    rule, compiled = rules["SPY-GEN-002"], int(hit.sum())
    if compiled == 0 or compiled > rule.threshold("max_warm_up_steps"):
        return False
    return len(hit) - compiled < rule.threshold("min_warm_steps")


def compiles(context: Context) -> Finding | None:
    """Compilation inside the steady state took a material share."""
    facts, rules, book = context.facts, context.rules, context.book
    rule, seen = rules["SPY-CMP-001"], facts.compilation
    share = facts.shares.compile
    if share < rule.materiality_share:
        return None
    evidence = (
        book.add(
            "window.compile_share", share, "ratio", "measured", source="compile events", n=seen.events,
            method="time inside compilation over the window",
        ),
        book.add(
            "compile.steps", seen.steps, "steps", "measured", source="engine steps", n=len(facts.steps),
            method="steps in which something was compiled",
        ),
        book.add(
            "compile.steps_share", seen.steps_share, "ratio", "measured", source="engine steps", n=seen.steps,
            method="time of those steps over the window",
        ),
    )  # fmt: skip
    against = list(rule.false_positive_notes)
    if seen.beside_share > 0:
        against.append(f"for {format_share(seen.beside_share)} of the window steps ran on beside a compilation")
    severity: Severity = "high" if share >= rule.threshold("high_severity_share") else "medium"
    means = (
        "new shapes keep arriving. Shapes that are padded to a few sizes, dynamic shapes, or a warm-up of every shape "
        "before the load avoid it."
    )
    if seen.all_warm_up:
        severity, means = "info", "the engine was still warming up, which says nothing of how it runs afterwards."
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=f"{format_share(share)} of the window passed in {seen.events} compilations, which held up "
        f"{seen.steps} of {len(facts.steps)} steps: {means}",
        phase=None,
        share=share,
        evidence=evidence,
        against=tuple(against),
    )
