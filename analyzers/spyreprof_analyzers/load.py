"""The finding that the load is the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.facts import cite_share

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context


def load_limited(context: Context) -> Finding | None:
    """The engine idled for want of requests."""
    facts, rules, book = context.facts, context.rules, context.book
    rule = rules["SPY-LOD-001"]
    share = facts.shares.no_load
    if share < rule.materiality_share or context.verdict.primary != "load_limited":
        return None
    evidence = (cite_share("no_load", facts, book),)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="info",
        title=rule.title,
        text=f"No request was in flight for {format_share(share)} of the window.",
        phase=None,
        share=share,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
    )
