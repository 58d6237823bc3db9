"""The finding that compilation takes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context


def compiles(context: Context) -> Finding | None:
    """Compilation inside the steady state took a material share."""
    facts, rules, book = context.facts, context.rules, context.book
    rule = rules["SPY-CMP-001"]
    share = facts.shares.compile
    if share < rule.materiality_share:
        return None
    evidence = (
        book.add(
            "window.compile_share", share, "ratio", "measured", source="compile events",
            method="time inside compilation over the window",
        ),
    )  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=f"{format_share(share)} of the steady-state window passed in compilation: new shapes keep arriving.",
        phase=None,
        share=share,
        evidence=evidence,
        against=rule.false_positive_notes,
    )
