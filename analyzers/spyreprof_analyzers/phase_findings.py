"""Findings about what binds prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.prefix_cache import cite_hit_ratio

if TYPE_CHECKING:
    from spyreprof.findings import Phase, Verdict
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts, Side

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
        "Neither arithmetic nor memory is near its peak while matmuls run: shapes or kernels waste the machine.",
    ),
    ("decode", "inefficient_kernel"): (
        "SPY-KRN-001",
        "Decode kernels reach neither peak",
        "Neither arithmetic nor memory is near its peak while matmuls run: shapes or kernels waste the machine.",
    ),
}


_READS_KV = (
    "Attention reads the keys and values of every token so far; no other request shares that read. Shorter contexts or "
    "fewer bytes per cached token shorten it, a larger batch does not."
)


def _may_batch_more(side: Side, facts: Facts, verdict: Verdict) -> bool:
    """More requests share the read of weights; they do not share that of the KV cache."""
    return side == "decode" and verdict.primary == "decode_bandwidth_bound" and not facts.bounds["decode"].reads_kv


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
        advice=_concurrency_advice(facts) if _may_batch_more(side, facts, verdict) else (),
    )


def _concurrency_advice(facts: Facts) -> tuple[Advice, ...]:
    """With nobody waiting, only the clients can fill the batch."""
    seen = facts.admission
    if seen is None or seen.waiting_p95 >= 1:
        return ()
    current = max(round(seen.running_p95), 1)
    return (
        Advice(
            id="client_concurrency",
            setting="client concurrency",
            from_=current,
            to=current * 2,
            from_origin="measured",
            expected=(
                ExpectedChange(
                    metric="output tokens/s", direction="up", high=1.0,
                    note="at most doubled, if the kernels keep their efficiency at twice the batch; larger batches "
                    "were not seen here, so the gain itself is not predicted",
                ),
            ),
            pays=(ExpectedChange(metric="ITL", direction="up", note="a larger batch never makes a step shorter"),),
            preconditions=("more requests are there to be served at the same time",),
            test_arguments="",
            test_note=f"under a load of {current * 2} concurrent clients",
            refuted_if="output tokens per second rise by less than a tenth",
        ),
    )  # fmt: skip
