"""Findings about what binds prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.decode_advice import concurrency_advice, decode_advice, faster_arithmetic, nobody_waits
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.host_advice import host_advice
from spyreprof_analyzers.prefix_cache import cite_hit_ratio

if TYPE_CHECKING:
    from spyreprof.findings import Advice, Phase
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Side

_PHASE_TEXT: dict[tuple[str, str], tuple[str, str, str]] = {
    ("prefill", "compute"): (
        "SPY-PRE-001",
        "Prefill is compute-bound",
        "Prompt tokens cost arithmetic; fewer of them (prefix caching, shorter prompts) or faster arithmetic help, a "
        "larger batch does not.",
    ),
    ("decode", "memory_bandwidth"): (
        "SPY-DEC-001",
        "Decode is bound by reading weights",
        "Each step reads all active weights once, however few tokens it makes; more requests per step share that "
        "read, fewer bytes per weight shorten it.",
    ),
    ("prefill", "host"): ("SPY-HST-001", "The host binds prefill steps", "The device waits for the host."),
    ("decode", "host"): ("SPY-HST-001", "The host binds decode steps", "The device waits for the host."),
    ("prefill", "inefficient_kernel"): (
        "SPY-KRN-001",
        "Prefill kernels reach neither peak",
        "Shapes or kernels waste the machine while matmuls run.",
    ),
    ("decode", "inefficient_kernel"): (
        "SPY-KRN-001",
        "Decode kernels reach neither peak",
        "Shapes or kernels waste the machine while matmuls run.",
    ),
}


_READS_KV = (
    "Attention reads the keys and values of every token so far; no other request shares that read. Shorter contexts or "
    "fewer bytes per cached token shorten it, a larger batch does not."
)


def prefill(context: Context) -> Finding | None:
    """What binds prefill, where it took a material share."""
    return _phase(context, "prefill")


def decode(context: Context) -> Finding | None:
    """What binds decode, where it took a material share."""
    return _phase(context, "decode")


def _phase(context: Context, side: Side) -> Finding | None:
    facts, verdict, rules, book = context.facts, context.verdict, context.rules, context.book
    bound = facts.bounds[side]
    share = facts.shares.prefill if side == "prefill" else facts.shares.decode
    known = _PHASE_TEXT.get((side, bound.resource))
    if known is None:
        return None
    rule_id, title, text = known
    if bound.reads_kv and (side, bound.resource) == ("decode", "memory_bandwidth"):
        title, text = "Decode is bound by reading the KV cache", _READS_KV
    if rule_id == "SPY-DEC-001" and "load_limited" in verdict.secondary and nobody_waits(context):
        text += " Nobody waits: for the clients that are there, each token is as fast as the bytes allow."
    rule = rules[rule_id]
    if share < rule.materiality_share:
        return None
    evidence = [cite_share(side, facts, book), *bound.evidence]
    if side == "prefill":
        evidence += cite_hit_ratio(facts, book)
    largest = verdict.primary in (
        "prefill_bound",
        "decode_bandwidth_bound",
        "host_bound",
        "inefficient_kernel",
    )
    severity = context.severity(share, rule)
    if not largest and severity == "high":
        severity = "medium"  # something else is the headline
    phase: Phase = side
    return Finding(
        id=rule_id,
        rule_version=rule.version,
        severity=severity,
        title=title,
        text=f"{format_share(share)} of the window. {bound.reason[:1].upper()}{bound.reason[1:]}. {text}",
        phase=phase,
        share=share,
        evidence=tuple(evidence),
        against=context.against(*rule.false_positive_notes) if largest else rule.false_positive_notes,
        advice=_advice(context, side),
    )


def _advice(context: Context, side: Side) -> tuple[Advice, ...]:
    """What to change, by what binds the phase."""
    facts = context.facts
    resource = facts.bounds[side].resource
    if context.verdict.primary == "load_limited":
        return ()
    if resource == "host":
        return host_advice(facts, facts.shares.scheduler_gap, context.rules)
    if side == "prefill" and resource == "compute" and context.verdict.primary == "prefill_bound":
        return faster_arithmetic(facts)
    if side == "decode" and resource == "memory_bandwidth":
        return decode_advice(context)
    if side == "decode" and resource == "inefficient_kernel" and _fills_too_little(context):
        return concurrency_advice(context)
    return ()


def _fills_too_little(context: Context) -> bool:
    """Do products of one or two rows leave the device half empty? Not where they are slow for other reasons."""
    facts, rules = context.facts, context.rules
    seen, use = facts.admission, facts.bounds["decode"].use
    if seen is None or use is None or context.verdict.primary != "inefficient_kernel":
        return False
    few = seen.running_p95 <= rules["SPY-KRN-001"].threshold("max_small_batch")
    return few and max(use.values()) >= rules["SPY-EFF-001"].threshold("min_efficiency")
