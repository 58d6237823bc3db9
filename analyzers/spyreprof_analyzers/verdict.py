"""The headline: the largest share that somebody can act on, with a confidence that has written reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import NotJudged, Verdict
from spyreprof.units import format_share
from spyreprof_analyzers.witnesses import (
    blocked_class,
    bound_class,
    device_trace_says,
    engine_says,
    held_share,
    larger_side,
    recompute_binds,
    witnesses,
)

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, Confidence, Witness
    from spyreprof.recording.schema import Peak
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.bounds import Bound
    from spyreprof_analyzers.facts import Facts

HEADLINES: dict[str, str] = {
    "prefill_bound": "Prefill binds: prompt processing is limited by compute",
    "decode_bandwidth_bound": "Decode binds: every step is limited by reading {read} from memory",
    "interconnect_bound": "The interconnect binds: steps wait for communication",
    "host_bound": "The host binds: the device waits for it",
    "queue_bound": "The batch cap binds: requests wait while the KV cache has room",
    "kv_capacity_bound": "KV capacity binds: requests wait because the KV cache is full",
    "compile_bound": "Compilation binds: it takes the largest share of the window",
    "inefficient_kernel": "Kernels bind: they reach neither the compute nor the bandwidth peak",
    "load_limited": "Nothing binds: the engine is idle for want of requests",
    "undetermined": "Undetermined",
}


def decide(facts: Facts, rules: RuleBook, book: EvidenceBook) -> Verdict:
    """Reach a verdict, or abstain and say what is missing."""
    refusal = _refusal(facts, rules)
    if refusal is not None:
        return undetermined(refusal, (), witnesses("undetermined", facts, rules, book))
    primary, reason = _primary(facts, rules)
    if primary == "undetermined":
        missing = (
            NotJudged(
                topic="what binds the largest phase",
                reason=reason,
                obtain="record with a profiler window and calibration on a quiet machine (the defaults of `record`)",
            ),
        )
        return undetermined(reason, missing, witnesses("undetermined", facts, rules, book))
    views = witnesses(primary, facts, rules, book)
    confidence, reasons = _confidence(primary, facts, views, rules)
    return Verdict(
        primary=primary,
        confidence=confidence,
        secondary=_secondary(primary, facts, rules),
        headline=f"{_headline(primary, facts)} ({format_share(_share(primary, facts, rules))} of the window).",
        reason=reason,
        witnesses=views,
        confidence_reasons=reasons,
    )


def _headline(primary: BoundClass, facts: Facts) -> str:
    read = "the KV cache" if facts.bounds["decode"].reads_kv else "weights"
    return HEADLINES[primary].format(read=read)


def undetermined(reason: str, missing: tuple[NotJudged, ...], views: tuple[Witness, ...]) -> Verdict:
    """The verdict that abstains."""
    return Verdict(
        primary="undetermined",
        confidence=None,
        secondary=(),
        headline=f"Undetermined: {reason}.",
        reason=reason,
        witnesses=views,
        missing=missing,
    )


_WITHOUT_A_CLASS = {
    "front_end": "clients waited while the engine was idle is the largest share: the front end or the client binds",
    "waiting_unscheduled": "requests waited while nothing was scheduled is the largest share of the window",
}


def _refusal(facts: Facts, rules: RuleBook) -> str | None:
    rule = rules["SPY-GEN-001"]
    if len(facts.steps) < rule.threshold("min_steps_any"):
        return f"the window holds only {len(facts.steps)} engine steps"
    limit = rule.threshold("max_unexplained_share")
    if facts.shares.unexplained > limit:
        return f"{format_share(facts.shares.unexplained)} of the window is unexplained (limit {format_share(limit)})"
    return None


_BLOCKED: dict[str, str] = {
    "kv_capacity_bound": "requests waited below the batch cap, with token budget left and the KV cache full",
    "queue_bound": "requests waited with the batch at its cap, token budget left and room in the KV cache",
}
_PREEMPTED = "the KV cache ran out: running requests lost their blocks and were computed again"


def _may_grow(bound: Bound, rules: RuleBook) -> bool:
    """A batch whose matmuls use the compute peak gains nothing from growing."""
    return bound.use is None or bound.use["compute"] < rules["SPY-GEN-003"].threshold("high_use")


def _primary(facts: Facts, rules: RuleBook) -> tuple[BoundClass, str]:
    largest = facts.shares.largest()
    if largest == "no_load":
        return "load_limited", "no request in flight is the largest share of the window"
    if largest == "compile":
        return "compile_bound", "compilation is the largest share of the window"
    if largest in _WITHOUT_A_CLASS:
        return "undetermined", _WITHOUT_A_CLASS[largest]
    side = larger_side(facts)
    bound = facts.bounds[side]
    blocked = blocked_class(facts, rules)
    if blocked is not None and (recompute_binds(facts, rules) or _may_grow(bound, rules)):
        return blocked, _BLOCKED[blocked] if not recompute_binds(facts, rules) else _PREEMPTED
    if largest == "scheduler_gap":
        if facts.device_kind != "cpu":
            return "undetermined", "between the host's spans of two steps the device may still work on the first"
        return "host_bound", "time between steps with work in flight is the largest share of the window"
    said = bound_class(side, bound.resource)
    if said != "undetermined":
        return said, bound.reason
    engine = engine_says(facts, rules)
    # only where the trace saw nothing; where it saw something unclear, the engine does not overrule it
    if engine is not None and bound.use is None and not facts.peaks.refused:
        return engine, f"from engine steps and model size alone; {bound.reason}"
    reasons = [bound.reason, *facts.peaks.refused.values()]
    return "undetermined", f"{side} takes the largest share, but {'; '.join(dict.fromkeys(reasons))}"


# Classes that name a resource, which only the device trace can see.
_SEEN_BY_THE_TRACE = frozenset({"prefill_bound", "decode_bandwidth_bound", "inefficient_kernel", "interconnect_bound"})


_ROOFLINE = frozenset({"compute", "memory_bandwidth"})


def measured_twice(peak: Peak) -> bool:
    """Whether drift of the machine would have been seen; a declared peak does not drift."""
    return peak.origin != "measured" or (peak.before is not None and peak.after is not None)


def _confidence(
    primary: BoundClass, facts: Facts, views: tuple[Witness, ...], rules: RuleBook
) -> tuple[Confidence, tuple[str, ...]]:
    """High needs two witnesses, no dissent, and enough steps, requests and explained time."""
    agree = [view.name for view in views if view.agrees]
    dissent = [view.name for view in views if view.agrees is False]
    rule = rules["SPY-GEN-001"]
    lowering: list[str] = []
    if dissent:
        lowering.append(f"{', '.join(name.replace('_', ' ') for name in dissent)} dissents")
    if len(facts.steps) < rule.threshold("min_steps"):
        lowering.append(f"only {len(facts.steps)} steps in the window")
    if facts.requests_in_window is None:
        lowering.append("the number of finished requests is unknown")
    elif facts.requests_in_window < rule.threshold("min_requests"):
        lowering.append(f"only {facts.requests_in_window} requests in the window")
    if facts.shares.unexplained > rule.threshold("max_unexplained_share_high"):
        lowering.append(f"{format_share(facts.shares.unexplained)} of the window is unexplained")
    if facts.engines > 1:
        lowering.append("several processes ran steps; only the busiest is judged")
    if facts.overlap_share > rules["SPY-GEN-004"].threshold("max_overlap_share"):
        lowering.append("steps overlap: several threads run them")
    if not facts.finished:
        lowering.append("the recording was not finished")
    if primary in _SEEN_BY_THE_TRACE and "device_trace" not in agree:
        lowering.append("no device trace confirms the resource")
    once = [peak for peak in facts.peaks.usable.values() if peak.resource in _ROOFLINE and not measured_twice(peak)]
    if primary in _SEEN_BY_THE_TRACE and primary != "interconnect_bound" and once:
        lowering.append("the peaks were not measured both before and after the run")
    lowering.extend(_close_calls(primary, facts, rules))
    named = ", ".join(name.replace("_", " ") for name in agree) or "none"
    reasons = (f"witnesses that agree: {named}", *lowering)
    if not agree or (len(agree) == 1 and (dissent or lowering)):
        return "low", reasons
    if len(agree) == 1 or lowering:
        return "medium", reasons
    return "high", reasons


def _close_calls(primary: BoundClass, facts: Facts, rules: RuleBook) -> list[str]:
    shares, general = facts.shares, rules["SPY-GEN-001"]
    close_shares, close_use = general.threshold("close_shares"), general.threshold("close_use")
    ranked = sorted((shares.prefill, shares.decode, shares.no_load, shares.compile, shares.scheduler_gap))
    calls = []
    if primary not in ("queue_bound", "kv_capacity_bound") and ranked[-1] - ranked[-2] < close_shares:
        calls.append("the two largest shares of the window are close")
    use = facts.bounds[larger_side(facts)].use
    if use is not None and primary in ("prefill_bound", "decode_bandwidth_bound"):
        high = rules["SPY-GEN-003"].threshold("high_use")
        if max(use.values()) < high + close_use:
            calls.append("the peak use is close to its threshold")
        if max(use.values()) > 1.0 + close_use:
            calls.append("more than the measured peak was reached: the machine was busy when it was measured")
    if primary == "interconnect_bound" and _link_leads_by(facts) < close_shares:
        calls.append("the two largest parts of a step are close")
    if primary == "queue_bound" and facts.admission is not None:
        limit = rules["SPY-QUE-001"].threshold("blocked_share")
        if facts.admission.at_cap_with_room_share < limit + close_shares:
            calls.append("the share of held-back time is close to its threshold")
        if not facts.admission.cap_is_known:
            calls.append("the batch cap is inferred from what ran, not read from the engine")
    if primary == "kv_capacity_bound" and not recompute_binds(facts, rules) and facts.admission is not None:
        limit = rules["SPY-QUE-001"].threshold("blocked_share")
        if facts.admission.kv_full_share < limit + close_shares:
            calls.append("the share of time with a full KV cache is close to its threshold")
        if not facts.admission.cap_is_known:
            calls.append("the batch cap is not known and may bind too")
    return calls


def _link_leads_by(facts: Facts) -> float:
    """How much more of the window goes to communication than to any other part of the larger phase; 1 if not cut."""
    side = larger_side(facts)
    parts = {part.id.partition(".")[2]: part.share for part in facts.budget.parts if part.id.startswith(f"{side}.")}
    link = parts.pop("exposed_communication", None)
    return 1.0 if link is None else link - max(parts.values(), default=0.0)


def _share(primary: BoundClass, facts: Facts, rules: RuleBook) -> float:
    if primary == "load_limited":
        return facts.shares.no_load
    if primary == "compile_bound":
        return facts.shares.compile
    if primary in ("queue_bound", "kv_capacity_bound"):
        held = held_share(primary, facts, rules) * (facts.shares.prefill + facts.shares.decode)
        return max(held, facts.recompute_window_share or 0.0) if primary == "kv_capacity_bound" else held
    if primary == "host_bound" and facts.shares.largest() == "scheduler_gap":
        return facts.shares.scheduler_gap
    return facts.shares.prefill if larger_side(facts) == "prefill" else facts.shares.decode


def _secondary(primary: BoundClass, facts: Facts, rules: RuleBook) -> tuple[BoundClass, ...]:
    """What else holds: the larger phase's bound behind a queue or light load, and low load behind decode."""
    found: list[BoundClass] = []
    if primary in ("queue_bound", "kv_capacity_bound", "load_limited"):
        trace = device_trace_says(facts, rules)
        if trace is not None:
            found.append(trace)
    if primary == "decode_bandwidth_bound" and _never_waits(facts):
        found.append("load_limited")
    smaller = "decode" if larger_side(facts) == "prefill" else "prefill"
    share = facts.shares.decode if smaller == "decode" else facts.shares.prefill
    if primary in ("prefill_bound", "decode_bandwidth_bound") and share >= rules["SPY-GEN-001"].threshold(
        "secondary_share"
    ):
        other = bound_class(smaller, facts.bounds[smaller].resource)  # type: ignore[index, arg-type]
        if other not in ("undetermined", primary):
            found.append(other)
    return tuple(dict.fromkeys(found))


def _never_waits(facts: Facts) -> bool:
    seen = facts.admission
    return seen is not None and seen.waiting_p95 < 1 and seen.running_p95 <= 2
