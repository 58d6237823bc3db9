"""Findings: each a statement with what speaks for it and against it. Without evidence there is no finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.advice import batch_cap_advice
from spyreprof_analyzers.facts import cite_blocked, cite_share
from spyreprof_analyzers.witnesses import blocked_class

if TYPE_CHECKING:
    from spyreprof.findings import Phase, Severity, Verdict
    from spyreprof.rules import RuleBook
    from spyreprof.targets import Targets
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts, Side

NOTHING_AGAINST = "nothing in this recording speaks against it"


def findings(
    facts: Facts, verdict: Verdict, targets: Targets, rules: RuleBook, book: EvidenceBook
) -> tuple[Finding, ...]:
    """All findings above their materiality floor, most severe and largest first."""
    found = [
        _load_limited(facts, verdict, rules, book),
        _blocked(facts, targets, rules, book),
        _phase(facts, verdict, "prefill", rules, book),
        _phase(facts, verdict, "decode", rules, book),
        _compile(facts, rules, book),
        _between_steps(facts, verdict, rules, book),
    ]
    order = {"high": 0, "medium": 1, "low": 2, "info": 3}
    return tuple(
        sorted(
            (finding for finding in found if finding is not None),
            key=lambda finding: (order[finding.severity], -(finding.share or 0.0)),
        )
    )


def _severity(share: float, verdict: Verdict, rules: RuleBook, rule_id: str) -> Severity:
    """From the share of the window; an engine that idles for want of load has no severe finding."""
    if verdict.primary == "load_limited":
        return "low"
    rule = rules[rule_id]
    if share >= rule.threshold("high_severity_share"):
        return "high"
    return "medium" if share >= rule.threshold("medium_severity_share") else "low"


def _against(verdict: Verdict, *more: str) -> tuple[str, ...]:
    """Dissenting witnesses, then what else speaks against a finding."""
    said = [f"{view.name.replace('_', ' ')}: {view.text}" for view in verdict.witnesses if view.agrees is False]
    return (*said, *more) or (NOTHING_AGAINST,)


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


def _phase(facts: Facts, verdict: Verdict, side: Side, rules: RuleBook, book: EvidenceBook) -> Finding | None:
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
    severity_rule = "SPY-PRE-001" if side == "prefill" else "SPY-DEC-001"
    largest = verdict.primary in (
        "prefill_bound",
        "decode_bandwidth_bound",
        "host_bound",
        "inefficient_kernel",
    )
    severity = _severity(share, verdict, rules, severity_rule)
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
        against=_against(verdict, *rule.false_positive_notes) if largest else rule.false_positive_notes,
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


def _blocked(facts: Facts, targets: Targets, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    kind, seen = blocked_class(facts, rules), facts.admission
    if kind is None or seen is None:
        return None
    rule = rules["SPY-QUE-001" if kind == "queue_bound" else "SPY-KVC-001"]
    held = seen.at_cap_share if kind == "queue_bound" else seen.blocked_share
    share = held * (facts.shares.prefill + facts.shares.decode)
    if share < rule.materiality_share:
        return None
    source = "gauges"
    evidence = (
        cite_blocked(seen, facts, book),
        book.add("queue.window_share", share, "ratio", "derived", n=len(facts.steps), source="engine steps and gauges",
                 method="the same steps over the window"),
        book.add("queue.waiting_p95", seen.waiting_p95, "requests", "measured", source=source,
                 method="95th percentile over time"),
        book.add("queue.kv_usage_p95", seen.kv_usage_p95, "ratio", "measured", source=source,
                 method="95th percentile over time"),
        book.add("queue.cap", seen.cap_requests, "requests", "measured" if seen.cap_is_known else "estimated",
                 source="engine settings" if seen.cap_is_known else "engine steps and gauges",
                 method="the cap in force" if seen.cap_is_known else "most requests that ran while others waited"),
    )  # fmt: skip
    against = list(rule.false_positive_notes)
    if facts.bounds["decode"].use is None:
        against.append(f"whether a larger batch has room is not known: {facts.bounds['decode'].reason}")
    advice = batch_cap_advice(facts, targets, rules, book) if kind == "queue_bound" else None
    kv_full = format_share(seen.kv_usage_p95 or 0.0)
    if kind == "queue_bound":
        text = (
            f"For {format_share(share)} of the window requests waited (95th percentile {seen.waiting_p95:.0f}) while "
            f"the batch stood at its cap of {seen.cap_requests}; the KV cache was {kv_full} "
            "full (95th percentile)."
        )
    else:
        text = (
            f"For {format_share(share)} of the window requests waited (95th percentile {seen.waiting_p95:.0f}) with "
            f"the KV cache {kv_full} full (95th percentile)."
        )
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=text,
        phase=None,
        share=share,
        evidence=evidence,
        against=tuple(against),
        advice=(advice,) if advice is not None else (),
    )


def _load_limited(facts: Facts, verdict: Verdict, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    rule = rules["SPY-LOD-001"]
    share = facts.shares.no_load
    if share < rule.materiality_share or verdict.primary != "load_limited":
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
        against=_against(verdict, *rule.false_positive_notes),
    )


def _between_steps(facts: Facts, verdict: Verdict, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    rule = rules["SPY-HST-001"]
    share = facts.shares.scheduler_gap
    if share < rule.materiality_share:
        return None
    evidence = (
        book.add(
            "window.scheduler_gap_share", share, "ratio", "measured", n=len(facts.steps), source="engine steps",
            method="time between steps with work in flight, over the window",
        ),
    )  # fmt: skip
    severity = _severity(share, verdict, rules, "SPY-DEC-001")
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
        against=_against(verdict, "a device that works on behind the host's span would look the same")
        if facts.device_kind != "cpu"
        else _against(verdict),
    )


def _compile(facts: Facts, rules: RuleBook, book: EvidenceBook) -> Finding | None:
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
