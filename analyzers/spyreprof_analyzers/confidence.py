"""How far a verdict can be trusted, by written criteria, with what lowers it in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.units import format_share
from spyreprof_analyzers.witnesses import larger_side, recompute_binds, recompute_takes_enough

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, Confidence, Witness, WitnessName
    from spyreprof.recording.schema import Peak
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.facts import Facts

# Classes that name a resource, which only the device trace can see.
_SEEN_BY_THE_TRACE = frozenset({"prefill_bound", "decode_bandwidth_bound", "inefficient_kernel", "interconnect_bound"})

# What a step is limited by is not what requests wait for where the batch cap or the KV cache holds them back.
_BEHIND_A_QUEUE = _SEEN_BY_THE_TRACE | {"host_bound"}
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
    if primary == "compile_bound":
        # its time is measured event by event; that steps and requests are few is what it does to an engine
        if facts.compilation.events < rules["SPY-CMP-001"].threshold("min_events"):
            lowering.append(f"only {facts.compilation.events} compilations in the window")
    else:
        lowering.extend(_few(facts, rules))
    if facts.shares.unexplained > rule.threshold("max_unexplained_share_high"):
        lowering.append(f"{format_share(facts.shares.unexplained)} of the window is unexplained")
    if facts.engines > 1:
        lowering.append("several processes ran steps; only the busiest is judged")
    if facts.overlap_share > rules["SPY-GEN-004"].threshold("max_overlap_share"):
        lowering.append("steps overlap: several threads run them")
    if not facts.finished:
        lowering.append("the recording was not finished")
    lowering += _unseen(primary, agree, facts)
    lowering += [*_close_calls(primary, facts, rules), *([facts.drift.said] if facts.drift is not None else [])]
    named = ", ".join(name.replace("_", " ") for name in agree) or "none"
    reasons = (f"witnesses that agree: {named}", *lowering)
    if not agree or facts.drift is not None or (len(agree) == 1 and (dissent or lowering)):
        return "low", reasons
    if len(agree) == 1 or lowering:
        return "medium", reasons
    return "high", reasons


def _unseen(primary: BoundClass, agree: list[WitnessName], facts: Facts) -> list[str]:
    """What nobody looked at, or not often enough."""
    found = []
    if primary in _SEEN_BY_THE_TRACE and "device_trace" not in agree:
        found.append("no device trace confirms the resource")
    once = [peak for peak in facts.peaks.usable.values() if peak.resource in _ROOFLINE and not measured_twice(peak)]
    if primary in _SEEN_BY_THE_TRACE and primary != "interconnect_bound" and once:
        found.append("the peaks were not measured both before and after the run")
    if primary in _BEHIND_A_QUEUE and _waiting_is_unknown(facts):
        found.append("whether requests waited for a place in the batch is not known")
    return found


def _waiting_is_unknown(facts: Facts) -> bool:
    """Neither gauges nor queue times tell, and the time to first tokens, which may be all waiting, is most of it."""
    times = facts.times
    if facts.admission is not None or (times is not None and times.queue_s is not None):
        return False
    return times is None or times.prefill_s >= times.decode_s


def _few(facts: Facts, rules: RuleBook) -> list[str]:
    rule, found = rules["SPY-GEN-001"], []
    if len(facts.steps) < rule.threshold("min_steps"):
        found.append(f"only {len(facts.steps)} steps in the window")
    if facts.requests_in_window is None:
        found.append("the number of finished requests is unknown")
    elif facts.requests_in_window < rule.threshold("min_requests"):
        found.append(f"only {facts.requests_in_window} requests in the window")
    return found


def _close_calls(primary: BoundClass, facts: Facts, rules: RuleBook) -> list[str]:
    shares, close = facts.shares, rules["SPY-GEN-001"].threshold("close_shares")
    ranked = sorted((shares.prefill, shares.decode, shares.no_load, shares.compile, shares.scheduler_gap))
    calls = []
    if primary not in ("queue_bound", "kv_capacity_bound") and ranked[-1] - ranked[-2] < close:
        calls.append("the two largest shares of the window are close")
    limit = rules["SPY-HST-001"].threshold("binding_window_share")
    if primary == "host_bound" and facts.device_kind == "cpu" and facts.host_share < limit + close:
        calls.append("the host's share of the window is close to its threshold")
    calls += [*_close_parts(primary, facts, rules), *_close_use(primary, facts, rules)]
    return [*calls, *_close_padding(primary, facts, rules), *_close_admission(primary, facts, rules)]


def _close_padding(primary: BoundClass, facts: Facts, rules: RuleBook) -> list[str]:
    seen = facts.padding
    if primary != "padding_bound" or seen is None or seen.low_share is None:
        return []
    limit = rules["SPY-PAD-001"].threshold("binding_window_share") + rules["SPY-GEN-001"].threshold("close_shares")
    calls = []
    if seen.low_share < limit:
        calls.append("the share of padding is close to its threshold")
    if seen.basis != "slope":
        calls.append("what padding costs is estimated from other steps")
    return calls


def _close_parts(primary: BoundClass, facts: Facts, rules: RuleBook) -> list[str]:
    """Where ranks communicate, what the verdict names must lead the other parts of a step."""
    found = facts.communication
    calls: list[str] = []
    part = "exposed_communication" if primary == "interconnect_bound" else "device_compute"
    named = primary == "interconnect_bound" or (found is not None and primary in _SEEN_BY_THE_TRACE)
    if named and _leads_by(part, facts) < rules["SPY-GEN-001"].threshold("close_shares"):
        calls.append("the two largest parts of a step are close")
    if primary == "interconnect_bound" and found is not None and not found.one_clock:
        calls.append("the ranks' clocks differ, and the one that was blocked least is taken for the last")
    return calls


def _close_use(primary: BoundClass, facts: Facts, rules: RuleBook) -> list[str]:
    use, rule = facts.bounds[larger_side(facts)].use, rules["SPY-GEN-003"]
    if use is None:
        return []
    close, most, calls = rules["SPY-GEN-001"].threshold("close_use"), max(use.values()), []
    if primary in ("prefill_bound", "decode_bandwidth_bound"):
        if most < rule.threshold("high_use") + close:
            calls.append("the peak use is close to its threshold")
        if most > 1.0 + close:
            calls.append("more than the measured peak was reached: the machine was busy when it was measured")
    if primary == "inefficient_kernel" and most >= rule.threshold("neither_use") - close:
        calls.append("the peak use is close to its threshold")
    return calls


def _close_admission(primary: BoundClass, facts: Facts, rules: RuleBook) -> list[str]:
    seen = facts.admission
    if seen is None:
        return []
    limit = rules["SPY-QUE-001"].threshold("blocked_share") + rules["SPY-GEN-001"].threshold("close_shares")
    calls = []
    if primary == "queue_bound":
        if seen.at_cap_with_room_share < limit:
            calls.append("the share of held-back time is close to its threshold")
        if not seen.cap_is_known:
            calls.append("the batch cap is inferred from what ran, not read from the engine")
    if primary == "kv_capacity_bound":
        preempted = recompute_binds(facts, rules)
        if not preempted and seen.kv_full_share < limit:
            calls.append("the share of time with a full KV cache is close to its threshold")
        # what recomputation alone takes names the cache whatever the cap is
        if not seen.cap_is_known and not (preempted and recompute_takes_enough(facts, rules)):
            calls.append("the batch cap is not known and may bind too")
    return calls


def _leads_by(part: str, facts: Facts) -> float:
    """How much more of the window one part of the larger phase's steps takes than any other part; 1 if not cut.

    Calls that could not be matched with those of all ranks may have been waiting, and count as that.
    """
    side = larger_side(facts)
    parts = {one.id.partition(".")[2]: one.share for one in facts.budget.parts if one.id.startswith(f"{side}.")}
    if part not in parts:
        return 1.0
    seen = facts.communication.exposed.get(side) if facts.communication is not None else None
    if seen is not None and seen.unsplit > 0:
        link = parts.get("exposed_communication", 0.0)
        unsplit = link * seen.unsplit / (seen.transfer + seen.unsplit)
        parts["exposed_communication"] = link - unsplit
        parts["waiting_for_ranks"] = parts.get("waiting_for_ranks", 0.0) + unsplit
    return parts.pop(part) - max(parts.values(), default=0.0)
