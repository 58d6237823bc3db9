"""Low throughput that no resource explains: the settings in force decide whether the host is made to hold it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.host_advice import slow_settings
from spyreprof_analyzers.memory_reads import decode_reads, read_floor_ratio

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context


def settings_that_slow(context: Context) -> Finding | None:
    """Nothing tells what binds decode, its steps take many times what they read, and a setting may be why."""
    facts, rule, book = context.facts, context.rules["SPY-HST-005"], context.book
    share = facts.shares.decode
    if facts.bounds["decode"].resource != "undetermined" or share < rule.materiality_share:
        return None  # what binds is known, and the rule for it advises
    advice = slow_settings(facts.settings, facts.device_kind)
    reads = decode_reads(facts)
    floor = read_floor_ratio(facts, reads) if reads is not None else None
    if not advice or floor is None or floor >= rule.threshold("max_floor_ratio"):
        return None
    evidence = (
        cite_share("decode", facts, book),
        book.add("decode.read_floor_ratio", floor, "ratio", "derived", source="model size, peaks, engine steps",
                 method="bytes that a device must read over the bandwidth peak, over the mean decode step"),
    )  # fmt: skip
    severity = context.severity(share, rule)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if severity == "high" else severity,
        title=rule.title,
        text=f"A decode step needs {format_share(floor)} of its time to read weights and cache; the settings in force "
        f"leave work to the host: {', '.join(one.setting for one in advice)}.",
        phase="decode",
        share=share,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
        advice=advice,
    )
