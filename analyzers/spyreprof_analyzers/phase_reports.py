"""Each phase of the window as the report shows it: how much of it there was, and what binds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import PhaseReport
from spyreprof_analyzers.engine_steps import DECODE, PHASE_NAMES
from spyreprof_analyzers.phase_views import phase_views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spyreprof.findings import SlopeFit
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts, Side
    from spyreprof_analyzers.profile import StepSplit
    from spyreprof_analyzers.slope import StepModel


def phase_reports(
    facts: Facts, splits: Mapping[str, StepSplit], rules: RuleBook, book: EvidenceBook
) -> tuple[PhaseReport, ...]:
    """Report every phase that ran; `splits` holds, by phase name, how its steps are cut by resource."""
    reports = []
    for code, name in enumerate(PHASE_NAMES[:3]):
        steps = facts.steps.of_phase(code)
        if len(steps) == 0:
            continue
        side: Side = "decode" if code == DECODE else "prefill"
        bound = facts.bounds[side]
        split = splits.get(name)
        time_ns = facts.wall.phase_ns[name]
        known = bool(steps.counted.all())
        requests = steps.context_requests + steps.generation_requests
        reports.append(
            PhaseReport(
                phase=name,  # type: ignore[arg-type]
                steps=len(steps),
                time_ns=time_ns,
                share=time_ns / max(facts.wall.judged_ns, 1),
                context_tokens=int(steps.context_tokens.sum()) if known else None,
                generation_tokens=int(steps.generation_tokens.sum()) if known else None,
                step_time_p50_ns=int(np.percentile(steps.duration_ns, 50)),
                step_time_p99_ns=int(np.percentile(steps.duration_ns, 99)) if len(steps) >= 100 else None,
                batch_mean=float(requests.mean()) if known else None,
                bound=bound.resource,
                reason=bound.reason,
                assigned_ratio=split.assigned_ratio if split is not None else None,
                peak_use=bound.peak_use,
                slope=_slope(facts.model, name),
                views=phase_views(side, facts, rules, book),
                evidence=bound.evidence,
            )
        )
    return tuple(reports)


def _slope(model: StepModel | None, phase: str) -> SlopeFit | None:
    """The one fitted model covers all phases; it is shown with decode, where its slopes matter most."""
    return model.fit if model is not None and phase == "decode" else None
