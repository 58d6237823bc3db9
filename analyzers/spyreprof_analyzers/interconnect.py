"""What is concluded from communication: the link binds a phase, or the ranks wait for a late one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import NS_PER_S, format_rate, format_seconds, format_share
from spyreprof_analyzers.bounds import Bound
from spyreprof_analyzers.communication import link_binds
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL
from spyreprof_analyzers.host_advice import on_gpu

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.communication import Communication, Exposed, LateRank
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts, Side
    from spyreprof_analyzers.profile import StepSplit

SOURCE = "collective calls"
SIDES: tuple[Side, ...] = ("prefill", "decode")


def with_link(
    side: Side,
    bound: Bound,
    found: Communication | None,
    split: StepSplit | None,
    rules: RuleBook,
    book: EvidenceBook,
) -> Bound:
    """What binds a phase once communication has been measured; without that, as the profiled steps say."""
    if found is None or side not in found.exposed:
        return bound
    if link_binds(found, side, split, rules):
        return Bound("interconnect", rows_text(found.exposed[side], rules), evidence=_cite_shares(side, found, book))
    unclear = _unclear(found.exposed[side], found.reason, split, rules)
    if unclear is not None:
        return Bound("undetermined", unclear, evidence=(*bound.evidence, *_cite_shares(side, found, book)))
    return bound


def rows_text(share: Exposed, rules: RuleBook) -> str:
    """What the rows of collectives show of a side's steps."""
    text = f"{format_share(share.transfer)} of step time moves data between ranks"
    if share.waiting >= rules["SPY-NET-002"].threshold("material_wait_ratio"):
        text += f", and {format_share(share.waiting)} waits for another rank"
    return text


def _unclear(share: Exposed, missing: str | None, split: StepSplit | None, rules: RuleBook) -> str | None:
    """Why the largest part of a step, blocked in collectives but not moving data, cannot be laid at any door."""
    unclear = share.unsplit + share.waiting
    others = max(split.device_compute, split.host) if split is not None else 1.0 - share.total
    if unclear < rules["SPY-NET-001"].threshold("min_transfer_share") or unclear <= max(others, share.transfer):
        return None
    blocked = f"collectives block {format_share(share.total)} of step time"
    if share.unsplit >= share.waiting:
        return f"{blocked}, for the link or for a late rank: {missing or 'not all ranks made the same calls'}"
    return f"{blocked}, mostly waiting for other ranks of which none stands out"


def blocked_unclearly(facts: Facts, side: Side, rules: RuleBook) -> bool:
    """Whether collectives block a material share of the steps that is neither transfer nor waiting for a late rank."""
    found = facts.communication
    if found is None or side not in found.exposed or found.late is not None:
        return False
    share = found.exposed[side]
    return share.unsplit + share.waiting >= rules["SPY-NET-001"].threshold("min_transfer_share")


def outweighs_link(floor: float, facts: Facts, side: Side) -> bool:
    """Whether the least time that the work needs is more of a step than moving data takes."""
    found = facts.communication
    return found is None or side not in found.exposed or floor >= found.exposed[side].transfer


def sees_link(facts: Facts, side: Side, rules: RuleBook) -> bool:
    """Whether profiled steps show data moving for a material share of their time; waiting for a rank does not count."""
    found = facts.communication
    if found is None:  # the trace alone said so
        return True
    seen = found.exposed[side].trace_transfer if side in found.exposed else None
    return seen is not None and seen >= rules["SPY-NET-001"].threshold("min_transfer_share")


def trace_text(facts: Facts, side: Side) -> str | None:
    """What profiled steps show of collectives; None where there are no rows to compare with."""
    found = facts.communication
    if found is None or side not in found.exposed:
        return None
    seen = found.exposed[side].trace
    if seen is None:
        return f"{side}: no profiled step"
    return f"{side}: for {format_share(seen)} of profiled step time a collective blocked and no operator ran"


def transfer_share(facts: Facts, side: Side) -> float | None:
    """Share of the window in which steps of a side wait for data to move; None where no rows of collectives tell."""
    found = facts.communication
    if found is None or side not in found.exposed:
        return None
    return found.exposed[side].transfer * facts.shares.of_side(side)


def link(context: Context) -> Finding | None:
    """Moving data between ranks binds the larger part of the steps."""
    facts, book, found = context.facts, context.book, context.facts.communication
    rule = context.rules["SPY-NET-001"]
    sides = [side for side in SIDES if facts.bounds[side].resource == "interconnect"]
    if not sides:
        return None
    side = max(sides, key=facts.shares.of_side)
    if found is None or side not in found.exposed:
        return _seen_by_the_trace_alone(context, side)
    share = transfer_share(facts, side)
    if share is None or share < rule.materiality_share:
        return None
    exposed = found.exposed[side]
    evidence = [*_cite_shares(side, found, book), *_cite_messages(found, book)]
    text = (
        f"{format_share(share)} of the window: in {side} steps {format_share(exposed.transfer)} of the time data moves "
        f"between {found.ranks} ranks while the step waits for it ({found.calls_per_step:.0f} calls of a step"
    )
    if found.message_bytes is not None:
        text += f", usually {found.message_bytes / 1000:.0f} kB each"
    if found.bytes_per_step is not None:
        text += f", {found.bytes_per_step / 1e6:.3g} MB in all"
    text += ")."
    if found.wire_bytes_per_s is not None:
        text += f" Meanwhile a rank sends {format_rate(found.wire_bytes_per_s, 'B/s')}."
    each_s = _call_s(context, side, exposed.transfer, found.calls_per_step)
    small = found.message_bytes is not None and found.message_bytes <= rule.threshold("small_message_bytes")
    if each_s is not None:
        evidence.append(
            book.add("communication.call_s", each_s, "s", "derived", n=found.calls, source=SOURCE,
                     method="transfer time of a step over its calls")
        )  # fmt: skip
        text += f" A call takes {format_seconds(each_s)}"
        text += ", at this size for what a call costs and not for its bytes." if small else "."
    against = []
    if exposed.waiting > 0:
        against.append(f"{format_share(exposed.waiting)} of step time is waiting for another rank, link or no link")
    if not found.one_clock:
        against.append("the ranks' clocks differ: the rank that was blocked least is taken for one that did not wait")
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(share, rule),
        title=rule.title,
        text=text,
        phase=side,
        share=share,
        evidence=tuple(evidence),
        against=context.against(*against, *rule.false_positive_notes),
        advice=_own_all_reduce(facts, small=small),
    )


def _seen_by_the_trace_alone(context: Context, side: Side) -> Finding | None:
    """Profiled steps alone show communication; they cannot tell transfer from waiting for a late rank."""
    facts, rule = context.facts, context.rules["SPY-NET-001"]
    share = sum(part.share for part in facts.budget.parts if part.id == f"{side}.exposed_communication")
    if share < rule.materiality_share:
        return None
    bound = facts.bounds[side]
    severity = context.severity(share, rule)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if severity == "high" else severity,
        title=rule.title,
        text=f"{format_share(share)} of the window: in {side} steps {bound.reason}.",
        phase=side,
        share=share,
        evidence=bound.evidence,
        against=context.against(
            "one rank's trace does not tell moving data from waiting for a late rank", *rule.false_positive_notes
        ),
        advice=_own_all_reduce(facts, small=None),
    )


def _call_s(context: Context, side: Side, transfer: float, calls: float) -> float | None:
    """Transfer time of a call, in seconds; None without calls."""
    phases = {"prefill": (PREFILL, MIXED), "decode": (DECODE,)}[side]
    steps = context.facts.steps.where(np.isin(context.facts.steps.phase, phases))
    if len(steps) == 0 or calls <= 0:
        return None
    return transfer * float(steps.duration_ns.mean()) / NS_PER_S / calls


def _own_all_reduce(facts: Facts, *, small: bool | None) -> tuple[Advice, ...]:
    """The engine's own all-reduce, made for small messages of one machine, where it is known to be off."""
    settings = facts.settings
    if settings.custom_all_reduce is not False or small is False or settings.link == "network":
        return ()
    if not on_gpu(settings, facts.device_kind):
        return ()
    return (
        Advice(
            id="custom_all_reduce",
            setting="disable_custom_all_reduce",
            from_="on",
            to="off",
            from_origin="measured",
            expected=(ExpectedChange(metric="ITL", direction="down", note="a call of small messages costs less"),),
            pays=(ExpectedChange(metric="device memory", direction="up", note="buffers that the ranks share"),),
            preconditions=("the devices of one machine reach each other's memory",),
            test_arguments="--no-disable-custom-all-reduce",
            refuted_if="the time of a step in communication does not fall",
        ),
    )


def late_rank(context: Context) -> Finding | None:
    """The ranks wait for one of them."""
    facts, book, found = context.facts, context.book, context.facts.communication
    late = found.late if found is not None else None
    if found is None or late is None:
        return None
    rule = context.rules["SPY-NET-002"]
    worked = facts.shares.prefill + facts.shares.decode
    share = late.others_share * worked
    if share < rule.materiality_share:
        return None
    text = (
        f"Rank {late.rank} is the last to reach its collectives in {format_share(late.share_of_steps)} of its steps, "
        f"by {format_seconds(late.late_ns / NS_PER_S)} (median of a step's sum). Another rank waits for it for "
        f"{format_share(late.others_share)} of its step time."
    )
    if late.judged:
        side: Side = "prefill" if facts.shares.prefill > facts.shares.decode else "decode"
        bound = facts.bounds[side]
        if bound.resource == "undetermined":
            text += f" What binds rank {late.rank} is not known: {bound.reason}."
        else:
            text += f" Rank {late.rank} itself: {bound.reason}."
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(share, rule),
        title=rule.title,
        text=text,
        phase=None,
        share=share,
        evidence=_cite_late(late, book),
        against=(
            f"{format_share(1.0 - late.margin)} of the waiting between ranks is for another rank",
            *rule.false_positive_notes,
        ),
    )


def link_questions(facts: Facts, accelerator_calls: bool, book: EvidenceBook) -> None:
    """Say what about communication was not judged."""
    found = facts.communication
    if found is not None and found.reason is not None:
        book.leave_open(
            "whether the link or a late rank costs the time in collectives",
            found.reason,
            "record all ranks into one recording: start them from one recorded command on one machine",
        )
    if accelerator_calls:
        book.leave_open(
            "waiting between ranks",
            "on an accelerator a call of a collective returns before it runs",
            "see the communication time of profiled steps",
        )


def _cite_shares(side: Side, found: Communication, book: EvidenceBook) -> tuple[str, ...]:
    return (*cite_rows(side, found, book), *cite_trace(side, found, book))


def cite_rows(side: Side, found: Communication, book: EvidenceBook) -> tuple[str, ...]:
    """Write down what the rows of collectives say of all steps of a side; the values are its evidence ids."""
    share = found.exposed[side]
    return (
        book.add(
            f"{side}.transfer_share", share.transfer, "ratio", "measured", n=share.steps, source=SOURCE,
            method="blocked time after the last rank had arrived, over step time"
            if found.one_clock else "the shortest blocked time of any rank, over step time",
        ),
        book.add(
            f"{side}.rank_wait_share", share.waiting, "ratio", "measured", n=share.steps, source=SOURCE,
            method="the rest of the blocked time, over step time",
        ),
    )  # fmt: skip


def cite_trace(side: Side, found: Communication, book: EvidenceBook) -> tuple[str, ...]:
    """Write down what profiled steps of a side show of collectives; the values are its evidence ids."""
    share = found.exposed[side]
    if share.trace is None or share.trace_transfer is None:
        return ()
    return (
        book.add(
            f"{side}.trace_exposed_share", share.trace, "ratio", "measured", source="profiled steps", window="profiled",
            method="time in which a collective blocked and no operator ran, over profiled step time",
        ),
        book.add(
            f"{side}.trace_transfer_share", share.trace_transfer, "ratio", "derived", source="profiled steps",
            window="profiled", method="the part of it after the last rank had arrived",
        ),
    )  # fmt: skip


def _cite_messages(found: Communication, book: EvidenceBook) -> tuple[str, ...]:
    cited = []
    if found.bytes_per_step is not None:
        cited.append(
            book.add(
                "communication.bytes_per_step", found.bytes_per_step, "B", "measured", n=found.calls, source=SOURCE,
                method="bytes of one rank's calls, over steps",
            )
        )  # fmt: skip
    if found.message_bytes is not None:
        cited.append(
            book.add(
                "communication.message_bytes", found.message_bytes, "B", "measured", n=found.calls, source=SOURCE,
                method="median over calls that carry data",
            )
        )  # fmt: skip
    if found.wire_bytes_per_s is not None:
        cited.append(
            book.add(
                "communication.sent_bytes_per_s", found.wire_bytes_per_s, "B/s", "derived", n=found.calls,
                source=SOURCE,
                method="bytes that a rank must send, 2(n-1)/n of an all-reduce, over transfer time",
            )
        )  # fmt: skip
    return tuple(cited)


def _cite_late(late: LateRank, book: EvidenceBook) -> tuple[str, ...]:
    return (
        book.add(
            "communication.late_ns", late.late_ns, "ns", "measured", n=late.steps, source=SOURCE,
            method="longest wait of another rank for the last one, summed over a step; median over steps",
        ),
        book.add(
            "communication.late_steps", late.share_of_steps, "ratio", "measured", n=late.steps, source=SOURCE,
            method="steps with a material wait for that rank, over its steps",
        ),
        book.add(
            "communication.others_wait_share", late.others_share, "ratio", "measured", source=SOURCE,
            method="largest share of another rank's step time that is waiting for the last one",
        ),
        book.add(
            "communication.late_margin", late.margin, "ratio", "measured", source=SOURCE,
            method="waiting for that rank over all waiting between ranks",
        ),
    )  # fmt: skip
