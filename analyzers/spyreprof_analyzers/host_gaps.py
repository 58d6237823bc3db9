"""The finding that the host binds between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context


def between_steps(context: Context) -> Finding | None:
    """Time passed between steps with work in flight."""
    facts, book = context.facts, context.book
    rule = context.rules["SPY-HST-001"]
    share = facts.shares.scheduler_gap
    if share < rule.materiality_share:
        return None
    evidence = (
        book.add(
            "window.scheduler_gap_share", share, "ratio", "measured", n=len(facts.steps), source="engine steps",
            method="time between steps with work in flight, over the window",
        ),
    )  # fmt: skip
    severity = context.severity(share, rule)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title="The host binds between steps",
        text=f"{format_share(share)} of the window passed between steps with work in flight: scheduling, sampling, or "
        "whatever else the engine does there.",
        phase=None,
        share=share,
        evidence=evidence,
        against=context.against("a device that works on behind the host's span would look the same")
        if facts.device_kind != "cpu"
        else context.against(),
    )
