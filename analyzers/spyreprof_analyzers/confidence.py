"""How far a verdict can be trusted, by written criteria, with what lowers it in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.units import format_share
from spyreprof_analyzers.witnesses import larger_side, recompute_binds

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, Confidence, Witness
    from spyreprof.recording.schema import Peak
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.facts import Facts

# Classes that name a resource, which only the device trace can see.
_SEEN_BY_THE_TRACE = frozenset({"prefill_bound", "decode_bandwidth_bound", "inefficient_kernel", "interconnect_bound"})


_ROOFLINE = frozenset({"compute", "memory_bandwidth"})


def measured_twice(peak: Peak) -> bool:
    """Whether drift of the machine would have been seen; a declared peak does not drift."""
    return peak.origin != "measured" or (peak.before is not None and peak.after is not None)


def confidence_in(
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
