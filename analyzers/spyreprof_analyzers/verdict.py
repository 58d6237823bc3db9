"""The headline: the largest share that somebody can act on, with a confidence that has written reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import NotJudged, Verdict
from spyreprof.units import format_share
from spyreprof_analyzers.confidence import confidence_in
from spyreprof_analyzers.efficiency import far_from_both
from spyreprof_analyzers.front_end import front_end_binds
from spyreprof_analyzers.host_gaps import gaps_are_the_hosts
from spyreprof_analyzers.interconnect import transfer_share
from spyreprof_analyzers.padding import padding_binds
from spyreprof_analyzers.witnesses import (
    blocked_class,
    bound_class,
    device_trace_says,
    engine_says,
    held_share,
    host_binds,
    larger_side,
    recompute_binds,
    witnesses,
)

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, Witness
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.bounds import Bound
    from spyreprof_analyzers.facts import Facts, Side
    from spyreprof_analyzers.steady_state import LoadDrift

HEADLINES: dict[str, str] = {
    "prefill_bound": "Prefill binds: prompt processing is limited by compute",
    "decode_bandwidth_bound": "Decode binds: every step is limited by reading {read} from memory",
    "interconnect_bound": "The interconnect binds: steps wait for communication",
    "host_bound": "The host binds: the device waits for it",
    "queue_bound": "The batch cap binds: requests wait while the KV cache has room",
    "kv_capacity_bound": "KV capacity binds: requests wait because the KV cache is full",
    "compile_bound": "Compilation binds: it takes the largest share of the window",
    "padding_bound": "Padding binds: steps execute more than their requests need",
    "inefficient_kernel": "Kernels bind: they reach neither the compute nor the bandwidth peak",
    "load_limited": "Nothing binds: the engine is idle for want of requests",
    "undetermined": "Undetermined",
}


def decide(facts: Facts, rules: RuleBook, book: EvidenceBook) -> Verdict:
    """Reach a verdict, or abstain and say what is missing."""
    refusal = _refusal(facts, rules)
    if refusal is not None:
        return undetermined(refusal.reason, (refusal,), witnesses("undetermined", facts, rules, book))
    primary, reason = _primary(facts, rules)
    unsteady = steady_state_missing(facts.drift)
    if unsteady is not None and primary in SAYS_OF_THE_LOAD:
        return undetermined(unsteady.reason, (unsteady,), witnesses("undetermined", facts, rules, book))
    if primary == "undetermined":
        missing = NotJudged(
            topic="what binds the largest phase",
            reason=reason,
            obtain=_obtain(facts),
        )
        return undetermined(reason, (missing,), witnesses("undetermined", facts, rules, book))
    views = witnesses(primary, facts, rules, book)
    confidence, reasons = confidence_in(primary, facts, views, rules)
    return Verdict(
        primary=primary,
        confidence=confidence,
        secondary=_secondary(primary, facts, rules),
        headline=f"{_headline(primary, facts, rules)} ({format_share(_share(primary, facts, rules))} of the window).",
        reason=reason,
        witnesses=views,
        confidence_reasons=reasons,
    )


def _computes_in_decode(facts: Facts) -> bool:
    """Decode is the larger phase, and its steps are bound by arithmetic, as those of a large batch are."""
    return larger_side(facts) == "decode" and facts.bounds["decode"].resource == "compute"


def _obtain(facts: Facts) -> str:
    """What would settle it; not what the recording holds already."""
    bound = facts.bounds[larger_side(facts)]
    if _computes_in_decode(facts):
        return "nothing: a larger batch brings no more tokens here, faster arithmetic does"
    if bound.use is not None:
        return "both peaks and profiled steps are there: record once more with a batch or prompts of another size"
    return "record with a profiler window and calibration on a quiet machine (the defaults of `record`)"


def _headline(primary: BoundClass, facts: Facts, rules: RuleBook) -> str:
    if primary == "kv_capacity_bound" and recompute_binds(facts, rules):
        return _HEADLINE_OF_PREEMPTION
    if primary == "interconnect_bound" and facts.communication is not None:
        return _HEADLINE_OF_LINK
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


# What they say is how much load there was.
SAYS_OF_THE_LOAD = frozenset({"load_limited", "queue_bound", "kv_capacity_bound"})


def _refusal(facts: Facts, rules: RuleBook) -> NotJudged | None:
    """Why the window as a whole cannot be judged, and what would help."""
    rule, seen = rules["SPY-GEN-001"], facts.compilation
    if len(facts.steps) < rule.threshold("min_steps_any"):
        return NotJudged(
            topic="what binds the engine",
            reason=f"the window holds only {len(facts.steps)} engine steps",
            obtain="record for longer",
        )
    if seen.all_warm_up:
        return NotJudged(
            topic="what binds the engine once it is warm",
            reason=f"the window is all warm-up: {seen.steps} of its {len(facts.steps)} steps compiled",
            obtain="record on until steps no longer compile, or begin after each shape of the load was compiled once",
        )
    limit = rule.threshold("max_unexplained_share")
    if facts.shares.unexplained > limit:
        return NotJudged(
            topic="what binds the engine",
            reason=f"{format_share(facts.shares.unexplained)} of the window is unexplained "
            f"(limit {format_share(limit)})",
            obtain="mark the steps with their tokens, and record a request log or the metrics page beside them",
        )
    return None


def steady_state_missing(drift: LoadDrift | None) -> NotJudged | None:
    """That the load never held, where it did not."""
    if drift is None:
        return None
    return NotJudged(
        topic="the steady state",
        reason=f"there is no steady state: {drift.said}",
        obtain="hold the load for a minute or longer: as many requests, or as many arrivals a second, all along",
    )


_BLOCKED: dict[str, str] = {
    "kv_capacity_bound": "requests waited below the batch cap, with token budget left and the KV cache full",
    "queue_bound": "requests waited with the batch at its cap, token budget left and room in the KV cache",
}
_PREEMPTED = "the KV cache ran out: running requests lost their blocks and were computed again"
_HEADLINE_OF_PREEMPTION = "KV capacity binds: running requests lose their KV blocks and are computed again"
# What profiled steps alone show of communication is waiting for other ranks as well.
_HEADLINE_OF_LINK = "The interconnect binds: steps wait for data that moves between ranks"


def _may_grow(bound: Bound, rules: RuleBook) -> bool:
    """A batch whose matmuls use the compute peak gains nothing from growing."""
    return bound.use is None or bound.use["compute"] < rules["SPY-GEN-003"].threshold("high_use")


def _primary(facts: Facts, rules: RuleBook) -> tuple[BoundClass, str]:
    largest = facts.shares.largest()
    if largest == "no_load":
        return "load_limited", "no request in flight is the largest share of the window"
    if largest == "compile":
        if 2 * facts.compilation.beside_share > facts.shares.compile:
            return "undetermined", "something was compiled for most of the window, but steps ran on beside it"
        return "compile_bound", "compilation is the largest share of the window"
    if largest == "front_end" and front_end_binds(facts.front_end, rules):
        return "host_bound", "clients waited while the engine was idle, behind a process at the limit of one core"
    if largest in _WITHOUT_A_CLASS:
        return "undetermined", _WITHOUT_A_CLASS[largest]
    side = larger_side(facts)
    bound = facts.bounds[side]
    blocked = blocked_class(facts, rules)
    if blocked is not None and (recompute_binds(facts, rules) or _may_grow(bound, rules)):
        return blocked, _BLOCKED[blocked] if not recompute_binds(facts, rules) else _PREEMPTED
    if largest == "scheduler_gap":
        why = gaps_are_the_hosts(facts, rules)
        if why is None:
            return "undetermined", "between the host's spans of two steps the device may still work on the first"
        reason = "time between steps with work in flight is the largest share of the window"
        return "host_bound", reason if facts.device_kind == "cpu" else f"{reason}; {why}"
    return _inside_steps(side, facts, rules)


def _inside_steps(side: Side, facts: Facts, rules: RuleBook) -> tuple[BoundClass, str]:
    """What binds while steps run, where nobody is kept out of them."""
    if padding_binds(facts, rules) and facts.padding is not None:
        return "padding_bound", f"padding takes at least {format_share(facts.padding.low_share or 0.0)} of the window"
    bound = facts.bounds[side]
    said = bound_class(side, bound.resource)
    if said not in ("host_bound", "interconnect_bound") and host_binds(facts, rules):
        share = format_share(facts.host_share)
        return "host_bound", f"{share} of the window passes outside device work, in steps and between them"
    far = far_from_both(facts, rules) if said in ("prefill_bound", "decode_bandwidth_bound") else None
    if far is not None:
        return "undetermined", f"{bound.reason}, but steps take far more than both peaks explain"
    if said != "undetermined":
        return said, bound.reason
    engine = engine_says(facts, rules)
    # only where the trace saw nothing; where it saw something unclear, the engine does not overrule it
    if engine is not None and bound.use is None and not facts.peaks.refused:
        return engine, f"from engine steps and model size alone; {bound.reason}"
    reasons = [bound.reason, *facts.peaks.refused.values()]
    if _computes_in_decode(facts):
        reasons.append("at this batch decode is limited by arithmetic and no longer by reading, which no class names")
    return "undetermined", f"{side} takes the largest share, but {'; '.join(dict.fromkeys(reasons))}"


def _share(primary: BoundClass, facts: Facts, rules: RuleBook) -> float:
    if primary == "load_limited":
        return facts.shares.no_load
    if primary == "compile_bound":
        return facts.shares.compile
    if primary == "padding_bound" and facts.padding is not None:
        return facts.padding.window_share or 0.0
    if primary in ("queue_bound", "kv_capacity_bound"):
        held = held_share(primary, facts, rules) * (facts.shares.prefill + facts.shares.decode)
        return max(held, facts.recompute_window_share or 0.0) if primary == "kv_capacity_bound" else held
    if primary == "host_bound":
        return facts.host_share
    if primary == "interconnect_bound":
        return _link_share(facts)
    return facts.shares.prefill if larger_side(facts) == "prefill" else facts.shares.decode


def _link_share(facts: Facts) -> float:
    """Share of the window in which steps of the larger phase wait for data to move between ranks."""
    share = transfer_share(facts, larger_side(facts))
    if share is None:  # the profiled steps alone tell of it
        return sum(part.share for part in facts.budget.parts if part.id.endswith(".exposed_communication"))
    return share


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
