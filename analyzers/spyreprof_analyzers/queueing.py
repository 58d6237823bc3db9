"""The finding that requests wait for a place in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.advice import batch_cap_advice
from spyreprof_analyzers.facts import cite_blocked
from spyreprof_analyzers.witnesses import blocked_class, held_share

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context


def at_cap(context: Context) -> Finding | None:
    """Admission was held back by the batch cap."""
    facts, rules, book = context.facts, context.rules, context.book
    seen, rule = facts.admission, rules["SPY-QUE-001"]
    if seen is None or blocked_class(facts, rules) != "queue_bound":
        return None
    share = held_share("queue_bound", facts, rules) * (facts.shares.prefill + facts.shares.decode)
    if share < rule.materiality_share:
        return None
    source = "gauges"
    evidence = [
        cite_blocked(seen, facts, book),
        book.add("queue.window_share", share, "ratio", "derived", n=len(facts.steps), source="engine steps and gauges",
                 method="the same steps over the window"),
        book.add("queue.waiting_p95", seen.waiting_p95, "requests", "measured", source=source,
                 method="95th percentile over time"),
        book.add("queue.cap", seen.cap_requests, "requests", "measured" if seen.cap_is_known else "estimated",
                 source="engine settings" if seen.cap_is_known else "engine steps and gauges",
                 method="the cap in force" if seen.cap_is_known else "most requests that ran while others waited"),
    ]  # fmt: skip
    against = list(rule.false_positive_notes)
    if facts.bounds["decode"].use is None:
        against.append(f"whether a larger batch has room is not known: {facts.bounds['decode'].reason}")
    advice = batch_cap_advice(facts, context.targets, rules, book)
    text = (
        f"For {format_share(share)} of the window requests waited (95th percentile {seen.waiting_p95:.0f}) while "
        f"the batch stood at its cap of {seen.cap_requests}"
    )
    if seen.kv_usage_p95 is not None:
        evidence.append(
            book.add("queue.kv_usage_p95", seen.kv_usage_p95, "ratio", "measured", source=source,
                     method="95th percentile over time")
        )  # fmt: skip
        text += f"; the KV cache was {format_share(seen.kv_usage_p95)} full (95th percentile)"
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=f"{text}.",
        phase=None,
        share=share,
        evidence=tuple(evidence),
        against=tuple(against),
        advice=(advice,) if advice is not None else (),
    )
