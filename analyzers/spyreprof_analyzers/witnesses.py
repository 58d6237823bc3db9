"""Three independent views of the run: the device trace, the engine, the requests.

Each is asked alone what it would conclude, from its own evidence; only then are they compared. A witness that cannot
see a question stays silent rather than agreeing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from spyreprof.findings import Witness
from spyreprof.units import format_share
from spyreprof_analyzers.communication import link_binds
from spyreprof_analyzers.facts import (
    cite_at_cap,
    cite_blocked,
    cite_floors,
    cite_flop_floor,
    cite_share,
    cite_weight_floor,
)
from spyreprof_analyzers.interconnect import (
    blocked_unclearly,
    cite_rows,
    cite_trace,
    outweighs_link,
    rows_text,
    sees_link,
    trace_text,
)
from spyreprof_analyzers.padding import padding_binds

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, Resource
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts, Side

_CLASS_OF: dict[tuple[str, str], BoundClass] = {
    ("prefill", "compute"): "prefill_bound",
    ("decode", "memory_bandwidth"): "decode_bandwidth_bound",
}


def bound_class(side: Side, resource: Resource) -> BoundClass:
    """The verdict class of what binds a phase; a pair that no class describes is undetermined."""
    if resource == "host":
        return "host_bound"
    if resource == "interconnect":
        return "interconnect_bound"
    if resource == "inefficient_kernel":
        return "inefficient_kernel"
    return _CLASS_OF.get((side, resource), "undetermined")


def larger_side(facts: Facts) -> Side:
    """The phase that took more of the window."""
    return "prefill" if facts.shares.prefill > facts.shares.decode else "decode"


def device_trace_says(facts: Facts, rules: RuleBook) -> BoundClass | None:
    """What the profiled steps of the larger phase show; None when they show nothing."""
    side = larger_side(facts)
    said = bound_class(side, facts.bounds[side].resource)
    if said == "interconnect_bound" and not sees_link(facts, side, rules):
        return None
    return None if said == "undetermined" else said


def engine_says(facts: Facts, rules: RuleBook) -> BoundClass | None:
    """What steps, gauges and model size show, without any trace."""
    largest = facts.shares.largest()
    if largest == "no_load":
        return "load_limited"
    if largest == "compile":
        return "compile_bound" if compilation_held_steps_up(facts, rules) else None
    blocked = blocked_class(facts, rules)
    if blocked is not None:
        return blocked
    if largest == "scheduler_gap":
        return "host_bound"
    if padding_binds(facts, rules):
        return "padding_bound"
    side = larger_side(facts)
    # from the rows of all steps; what else a step holds is for the trace to say
    if link_binds(facts.communication, side, None, rules):
        return "interconnect_bound"
    if blocked_unclearly(facts, side, rules):
        return None
    floor = facts.weight_floor_ratio if side == "decode" else facts.flop_floor_ratio
    if largest != side or floor is None or not outweighs_link(floor, facts, side):
        return None
    if side == "decode":
        enough = rules["SPY-DEC-001"].threshold("min_weight_floor_ratio")
        return "decode_bandwidth_bound" if floor >= enough else None
    return "prefill_bound" if floor >= rules["SPY-GEN-003"].threshold("high_use") else None


def requests_say(facts: Facts, rules: RuleBook) -> BoundClass | None:
    """What request times show: which side the time of a request goes to. They cannot tell resources apart."""
    idle = rules["SPY-LOD-001"].threshold("idle_client_share")
    if facts.idle_client_share is not None and facts.idle_client_share > idle:
        return "load_limited"
    times = facts.times
    if times is None or times.total_s <= 0:
        return None
    if times.queue_s is not None and times.queue_s >= times.total_s / 2:
        return "queue_bound"
    # what decodes wait for the prompts of others is prefill's; where that turns the answer, there is none
    added = times.decode_s * (facts.interference.extra_wait_share if facts.interference is not None else 0.0)
    if times.decode_s - added >= times.prefill_s + added:
        return "decode_bandwidth_bound"
    # without queue times, waiting and prefill are one sum: which of them it was is not for this witness to say
    return "prefill_bound" if times.queue_s is not None and times.prefill_s > times.decode_s else None


def compilation_held_steps_up(facts: Facts, rules: RuleBook) -> bool:
    """Do step rows tell of it too? Steps that compiled hold most of the compilers' time."""
    enough = rules["SPY-CMP-001"].threshold("min_share_in_steps")
    return facts.compilation.steps > 0 and facts.compilation.steps_share >= enough * facts.shares.compile


def host_binds(facts: Facts, rules: RuleBook) -> bool:
    """Does the host take most of the window? Only where time between steps cannot hide work of a device."""
    limit = rules["SPY-HST-001"].threshold("binding_window_share")
    return facts.device_kind == "cpu" and facts.host_share >= limit


def far_from_floors(facts: Facts, rules: RuleBook) -> bool:
    """Does neither reading the weights nor the arithmetic explain a step of the larger phase? False if not known."""
    found, limit = facts.floors[larger_side(facts)], rules["SPY-GEN-003"].threshold("neither_use")
    known = found.weights is not None and found.flops is not None
    return known and (found.weights or 0.0) < limit and (found.flops or 0.0) < limit


def blocked_class(facts: Facts, rules: RuleBook) -> BoundClass | None:
    """queue_bound or kv_capacity_bound when admission was held back for most of the time; else None."""
    if recompute_binds(facts, rules):
        return "kv_capacity_bound"
    seen, enough = facts.admission, rules["SPY-QUE-001"].threshold("blocked_share")
    if seen is None:
        return None
    if seen.kv_full_share >= enough:
        return "kv_capacity_bound"
    if preemption_costs(facts, rules):
        return None  # a batch that loses its blocks is not held back by its cap
    return "queue_bound" if seen.at_cap_with_room_share >= enough else None


def held_share(kind: BoundClass, facts: Facts, rules: RuleBook) -> float:
    """Share of step time in which admission was held back for that reason."""
    seen = facts.admission
    if seen is None:
        return 0.0
    if kind == "queue_bound":
        return seen.at_cap_with_room_share
    return seen.below_cap_share if recompute_binds(facts, rules) else seen.kv_full_share


def recompute_binds(facts: Facts, rules: RuleBook) -> bool:
    """Do preemptions name the KV cache? Blocks ran out, so whoever waits below the cap waits for them.

    A fifth of the window spent on recomputation names it even where nobody else waits.
    """
    seen, rule = facts.preemptions, rules["SPY-KVC-002"]
    if seen is None or seen.recomputed is None or seen.count < rule.threshold("min_preemptions"):
        return False
    if seen.recomputed.low_share < rule.threshold("min_recomputed_share"):
        return False
    waits = facts.admission.below_cap_share if facts.admission is not None else 0.0
    return waits >= rules["SPY-QUE-001"].threshold("blocked_share") or recompute_takes_enough(facts, rules)


def preemption_costs(facts: Facts, rules: RuleBook) -> bool:
    """Is recomputing preempted requests a material part of prefill and of the window?"""
    seen, rule, lost = facts.preemptions, rules["SPY-KVC-002"], facts.recompute_window_share
    if seen is None or seen.recomputed is None or lost is None or seen.count < rule.threshold("min_preemptions"):
        return False
    return seen.recomputed.low_share >= rule.threshold("min_recomputed_share") and lost >= rule.materiality_share


def recompute_takes_enough(facts: Facts, rules: RuleBook) -> bool:
    """Does recomputing preempted requests, at the least that the counters allow, take a binding part of the window?"""
    if facts.preemptions is None or facts.preemptions.recomputed is None:
        return False
    lost = facts.preemptions.recomputed.low_share * facts.shares.prefill
    return lost >= rules["SPY-KVC-002"].threshold("binding_window_share")


def witnesses(primary: BoundClass, facts: Facts, rules: RuleBook, book: EvidenceBook) -> tuple[Witness, ...]:
    """Compare the three views with the verdict. Where there is none, nobody agrees and nobody dissents."""
    views = (
        _device_trace(primary, facts, rules, book),
        _engine(primary, facts, rules, book),
        _requests(primary, facts, rules, book),
    )
    if primary == "undetermined":
        return tuple(msgspec.structs.replace(view, agrees=None) for view in views)
    return views


def _device_trace(primary: BoundClass, facts: Facts, rules: RuleBook, book: EvidenceBook) -> Witness:
    side = larger_side(facts)
    bound = facts.bounds[side]
    said = device_trace_says(facts, rules)
    cited = bound.evidence
    found = facts.communication
    if primary == "interconnect_bound" and found is not None and (spoken := trace_text(facts, side)) is not None:
        agrees = said == primary if said is not None else None
        cited = cite_trace(side, found, book)
        return Witness(name="device_trace", says=said, agrees=agrees, text=spoken, evidence=cited)
    if primary in ("load_limited", "compile_bound", "kv_capacity_bound", "padding_bound", "undetermined"):
        return Witness(
            name="device_trace", says=said, agrees=None, evidence=cited,
            text=f"a trace of single steps cannot see this; of {side} it shows: {bound.reason}",
        )  # fmt: skip
    if primary == "host_bound" and said != primary:
        return Witness(
            name="device_trace", says=said, agrees=None, evidence=cited,
            text=f"of the time between steps a trace sees nothing; of {side} it shows: {bound.reason}",
        )  # fmt: skip
    if primary == "queue_bound":
        if bound.use is None:
            return Witness(name="device_trace", says=said, agrees=None, text=bound.reason, evidence=cited)
        # room in the compute peak is what a larger batch would use
        compute, rule = bound.use["compute"], rules["SPY-GEN-003"]
        if compute < rule.threshold("neither_use"):
            room, spoken = True, "a larger batch has room"
        elif compute >= rule.threshold("high_use"):
            room, spoken = False, "little room for a larger batch"
        else:
            room, spoken = None, "some room for a larger batch"
        return Witness(
            name="device_trace",
            says="queue_bound" if room else said,
            agrees=room,
            text=f"{side}: {bound.reason}; {spoken}",
            evidence=cited,
        )
    if said is None:
        return Witness(name="device_trace", says=None, agrees=None, text=bound.reason, evidence=cited)
    return Witness(
        name="device_trace", says=said, agrees=said == primary, text=f"{side}: {bound.reason}", evidence=cited
    )


def _engine(primary: BoundClass, facts: Facts, rules: RuleBook, book: EvidenceBook) -> Witness:
    said = engine_says(facts, rules)
    cited: list[str] = []
    text = ""
    shares = facts.shares
    spoken = (
        f"prefill {format_share(shares.prefill)}, decode {format_share(shares.decode)}, "
        f"no load {format_share(shares.no_load)} of the window"
    )
    cited.extend(cite_share(name, facts, book) for name in ("prefill", "decode", "no_load"))
    if primary in ("queue_bound", "kv_capacity_bound") and facts.admission is not None:
        seen = facts.admission
        cited.append(cite_blocked(seen, facts, book))
        text = f"{format_share(seen.blocked_share)} of step time had token budget left while requests waited; "
        if primary == "queue_bound":
            cited.append(cite_at_cap(seen, facts, book))
            text += f"{format_share(seen.at_cap_share)} ran with the batch at its cap; "
    elif primary == "compile_bound":
        hit = facts.compilation
        text = (
            f"{hit.steps} of {len(facts.steps)} steps compiled and took {format_share(hit.steps_share)} of the window; "
        )
    elif primary in ("inefficient_kernel", "host_bound") and said is None and far_from_floors(facts, rules):
        return _far_from_floors(primary, spoken, cited, facts, rules, book)
    elif primary == "interconnect_bound" and said == primary and facts.communication is not None:
        side, found = larger_side(facts), facts.communication
        cited.extend(cite_rows(side, found, book))
        text = f"{rows_text(found.exposed[side], rules)}; "
    elif primary == "padding_bound" and facts.padding is not None and facts.padding.low_share is not None:
        text = (
            f"steps executed more than their requests need for {format_share(facts.padding.low_share)} of the window; "
        )
    elif primary == "decode_bandwidth_bound" and facts.weight_floor_ratio is not None:
        cited.append(cite_weight_floor(facts.weight_floor_ratio, book))
        text = f"reading the weights once takes {format_share(facts.weight_floor_ratio)} of a decode step; "
    elif primary == "prefill_bound" and facts.flop_floor_ratio is not None:
        cited.append(cite_flop_floor(facts.flop_floor_ratio, book))
        text = f"the prompt tokens' matmuls would take {format_share(facts.flop_floor_ratio)} of prefill time at peak; "
    if said is None:
        return Witness(
            name="engine",
            says=None,
            agrees=None,
            text=f"cannot tell the resource: {spoken}",
            evidence=tuple(cited),
        )
    return Witness(name="engine", says=said, agrees=said == primary, text=text + spoken, evidence=tuple(cited))


def _far_from_floors(
    primary: BoundClass, spoken: str, cited: list[str], facts: Facts, rules: RuleBook, book: EvidenceBook
) -> Witness:
    """A step that neither floor explains: it agrees that no peak is near, and cannot tell kernels from the host.

    Of the host it sees the time between steps, and agrees where that alone is material.
    """
    side = larger_side(facts)
    found = facts.floors[side]
    text = (
        f"reading the weights once takes {format_share(found.weights or 0.0)} and the arithmetic "
        f"{format_share(found.flops or 0.0)} of a {side} step, so that no peak is near; "
    )
    agrees: bool | None = True
    if primary == "host_bound":
        shares = facts.shares
        between = shares.scheduler_gap / max(shares.scheduler_gap + shares.prefill + shares.decode, 1e-9)
        enough = facts.device_kind == "cpu" and between >= rules["SPY-HST-001"].threshold("min_between_steps")
        agrees = True if enough else None
        text += f"{format_share(between)} of the time with work passes between steps; "
        if not enough:
            text += "whether kernels or the host take the rest, it cannot tell; "
    return Witness(
        name="engine",
        says=primary if agrees else None,
        agrees=agrees,
        text=text + spoken,
        evidence=(*cited, *cite_floors(side, facts, book)),
    )


def _untold(facts: Facts) -> str:
    if facts.times is not None and facts.times.queue_s is not None:
        return "decodes wait for the prompts of others, so that the two cannot be told apart"
    return "waiting and prefill cannot be told apart"


def _requests(primary: BoundClass, facts: Facts, rules: RuleBook, book: EvidenceBook) -> Witness:
    said = requests_say(facts, rules)
    times = facts.times
    if times is None and facts.idle_client_share is None:
        return Witness(name="requests", says=None, agrees=None, text="no request log and no histograms")
    cited: list[str] = []
    pieces: list[str] = []
    if facts.idle_client_share is not None:
        cited.append(
            book.add(
                "requests.idle_share", facts.idle_client_share, "ratio", "measured", n=facts.requests_in_window,
                source=facts.log.source if facts.log is not None else "request log",
                method="share of the window with no request in flight",
            )
        )  # fmt: skip
        if said == "load_limited":
            pieces.append(f"no request in flight for {format_share(facts.idle_client_share)} of the window")
    if times is not None and times.total_s > 0:
        for name, value in (
            ("queue", times.queue_s),
            ("prefill", times.prefill_s),
            ("decode", times.decode_s),
        ):
            if value is None:
                continue
            cited.append(
                book.add(
                    f"requests.{name}_share", value / times.total_s, "ratio", "measured", n=times.requests,
                    source=times.source, method=f"{name} time over all time of finished requests",
                )
            )  # fmt: skip
            pieces.append(f"{name} {format_share(value / times.total_s)} of request time")
    text = ", ".join(pieces)
    if said is None:
        return Witness(
            name="requests", says=None, agrees=None, evidence=tuple(cited),
            text=f"{text or 'request times are too few'}: {_untold(facts)}",
        )  # fmt: skip
    if said == "queue_bound" and primary == "prefill_bound":
        return Witness(
            name="requests", says=said, agrees=None, evidence=tuple(cited),
            text=f"{text}: requests wait, and cannot tell what for",
        )  # fmt: skip
    if primary in ("compile_bound", "host_bound", "inefficient_kernel", "interconnect_bound", "padding_bound"):
        return Witness(
            name="requests",
            says=said,
            agrees=None,
            text=f"{text}: cannot see resources",
            evidence=tuple(cited),
        )
    if primary == "kv_capacity_bound":
        return Witness(
            name="requests", says=said, agrees=True if said == "queue_bound" else None, text=text,
            evidence=tuple(cited),
        )  # fmt: skip
    # of prefill and decode requests know only the side, which is all that their agreement means
    return Witness(name="requests", says=said, agrees=said == primary, text=text, evidence=tuple(cited))
