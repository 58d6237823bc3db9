"""Compilation inside the steady state: how much of it there is, and whether the engine's steps felt it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
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
        slowest_ratio: longest step that compiled over the median of those that did not; None without either.
    """

    events: int
    steps: int
    steps_share: float
    beside_share: float
    all_warm_up: bool = False
    slowest_ratio: float | None = None


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
        slowest_ratio=_slowest_ratio(steps, hit),
        all_warm_up=wall.compile_ns >= rules["SPY-CMP-001"].materiality_share * length and _warms_up(hit, rules),
    )


def _warms_up(hit: NDArray[np.bool_], rules: RuleBook) -> bool:
    """Is a window of steps that mostly compile short enough to be a warm-up?"""
    rule, compiled = rules["SPY-GEN-002"], int(hit.sum())
    if compiled == 0 or compiled > rule.threshold("max_warm_up_steps"):
        return False
    return len(hit) - compiled < rule.threshold("min_warm_steps")


def _slowest_ratio(steps: EngineSteps, hit: NDArray[np.bool_]) -> float | None:
    if not hit.any() or hit.all():
        return None
    return float(steps.duration_ns[hit].max()) / max(float(np.median(steps.duration_ns[~hit])), 1.0)


def compiles(context: Context) -> Finding | None:
    """Compilation inside the steady state took a material share."""
    facts, rules, book = context.facts, context.rules, context.book
    rule, seen = rules["SPY-CMP-001"], facts.compilation
    share = facts.shares.compile
    if share < rule.materiality_share:
        return None
    evidence: tuple[str, ...] = (
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
    longest = ""
    if seen.slowest_ratio is not None:
        if seen.slowest_ratio >= rule.threshold("spike_ratio"):
            longest = f", the longest for {seen.slowest_ratio:.0f} times a usual step"
        evidence += (
            book.add("compile.slowest_ratio", seen.slowest_ratio, "ratio", "measured", n=seen.steps,
                     source="engine steps", method="longest step that compiled over the median of those that did not"),
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
        f"{seen.steps} of {len(facts.steps)} steps{longest}: {means}",
        phase=None,
        share=share,
        evidence=evidence,
        against=tuple(against),
        advice=() if seen.all_warm_up else (_warm_up(share),),
    )


def _warm_up(share: float) -> Advice:
    return Advice(
        id="warm_up_shapes",
        setting="shapes that are warmed up",
        from_=None,
        to="all that the load holds",
        from_origin="measured",
        expected=(
            ExpectedChange(
                metric="output tokens/s", direction="up", high=1.0 / max(1.0 - share, 0.05) - 1.0, origin="derived",
                note="at most: the time of compilations back, if none is left while the engine serves",
            ),
        ),
        pays=(ExpectedChange(metric="time to start", direction="up", note="by the time of the same compilations"),),
        preconditions=(
            "the compiler's cache is kept from one start to the next, else each start pays for all of them",
            "the shapes are few, or are padded to a few sizes",
        ),
        test_arguments="",
        test_note="once more in the same process or with the compiler's cache of this run, after every shape was seen",
        refuted_if="as many compilations happen while the same load runs a second time",
    )  # fmt: skip
