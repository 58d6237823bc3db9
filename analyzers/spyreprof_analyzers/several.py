"""Several engines in one recording: each judged by itself, and the one that binds speaks for all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from spyreprof.findings import Diagnosis, EngineGauges, EngineReport
from spyreprof_analyzers.arbitration import arbitrate
from spyreprof_analyzers.gauge_verdict import STEPS_OBTAIN
from spyreprof_analyzers.imbalance import imbalance, uneven_load
from spyreprof_analyzers.verdict import undetermined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyreprof.findings import BoundClass, SteadyWindow, Verdict
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.engines import Engine
    from spyreprof_analyzers.facts import Facts
    from spyreprof_analyzers.gauge_state import GaugeState

_HELD_BACK = frozenset({"queue_bound", "kv_capacity_bound"})


@dataclass(frozen=True)
class Judged:
    """One engine with its verdict, and what it was reached from: its steps, or gauges alone."""

    engine: Engine
    verdict: Verdict
    facts: Facts | None
    state: GaugeState | None

    @property
    def window(self) -> SteadyWindow | None:
        """The part of the recording that was judged."""
        if self.facts is not None:
            return self.facts.window
        return self.state.window if self.state is not None else None

    @property
    def rank(self) -> tuple[int, float, int]:
        """Its place among the engines, the one that binds first: held back, bound, not judged, idle."""
        primary = self.verdict.primary
        kind = 0 if primary in _HELD_BACK else 2 if primary == "undetermined" else 3 if primary == "load_limited" else 1
        waiting = self.state.waiting_mean if self.state is not None else 0.0
        busy = 1.0 - self.facts.shares.no_load if self.facts is not None else 0.0
        return kind, -waiting if kind != 1 else -busy, self.engine.number


def binding(judged: Sequence[Judged]) -> Judged:
    """The engine whose limit is that of the recording: one of many at its limit is what its clients feel."""
    return min(judged, key=lambda one: one.rank)


def verdict_of_all(judged: Sequence[Judged]) -> Verdict:
    """The verdict of the engine that binds, which says so; classes of the others are named beside it."""
    first = binding(judged)
    verdict, number, total = first.verdict, first.engine.number, len(judged)
    others = Counter(one.verdict.primary for one in judged if one is not first)
    if verdict.primary == "undetermined":
        # no other engine is bound either, or it would stand here
        reason = f"engine {number} of {total} could not be judged: {verdict.reason}"
        return undetermined(reason, verdict.missing, verdict.witnesses)
    named = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
    secondary: list[BoundClass] = [*verdict.secondary]
    secondary += [kind for kind, _ in sorted(others.items()) if kind not in ("undetermined", verdict.primary)]
    return msgspec.structs.replace(
        verdict,
        headline=f"Engine {number} of {total} engines: {verdict.headline}",
        reason=f"{verdict.reason}; the other engines: {named}",
        secondary=tuple(dict.fromkeys(secondary)),
    )


def with_engines(
    found: Diagnosis, judged: Sequence[Judged], data_parallel: bool, rules: RuleBook, book: EvidenceBook
) -> Diagnosis:
    """The diagnosis of the engine that binds, with a report of each engine and what they show side by side.

    Args:
        found: of the engine that binds.
        judged: all engines, in the order of their numbers.
        data_parallel: whether they are ranks of one server.
        rules: thresholds.
        book: takes the numbers.
    """
    first = binding(judged)
    reports = tuple(_report(one, one is first) for one in judged)
    book.engine = None
    uneven = uneven_load(imbalance([one.engine for one in judged], rules), data_parallel, rules, book)
    findings = found.findings
    if uneven is not None:
        findings = arbitrate((uneven, *findings), found.verdict.primary, rules)
    unjudged = [one.engine.number for one in judged if one.verdict.primary == "undetermined" and one is not first]
    if unjudged:
        numbers = ", ".join(str(number) for number in unjudged)
        book.leave_open(f"what binds engines {numbers}", "too little was seen of them", STEPS_OBTAIN)
    book.leave_open(
        "which engine served which request",
        "a client's log does not tell",
        "look at the engines' own histograms, which are in the evidence of each",
    )
    return msgspec.structs.replace(
        found,
        findings=findings,
        engines=reports,
        writers=tuple(sorted(str(name) for name in first.engine.inputs.steps["writer"].unique())),
        not_judged=tuple(dict.fromkeys((*found.not_judged, *book.not_judged))),
        evidence=book.evidence,
    )


def _report(one: Judged, binds: bool) -> EngineReport:
    state, verdict = one.state, one.verdict
    shown = EngineGauges(
        running_mean=state.running_mean if state is not None else None,
        waiting_mean=state.waiting_mean if state is not None else None,
        kv_usage_mean=state.kv_usage_mean if state is not None else None,
        preemptions=state.preemptions if state is not None else None,
    )
    return EngineReport(
        number=one.engine.number,
        binds=binds,
        window=one.window,
        time_budget=one.facts.budget if one.facts is not None else None,
        primary=verdict.primary,
        confidence=verdict.confidence,
        secondary=verdict.secondary,
        headline=verdict.headline,
        steps=len(one.facts.steps) if one.facts is not None else None,
        gauges=shown,
        evidence=tuple(dict.fromkeys(name for view in verdict.witnesses for name in view.evidence)),
    )
