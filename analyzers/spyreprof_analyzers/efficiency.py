"""Steps that take many times what their reads and their arithmetic need: no peak binds them, whatever it looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import NS_PER_S, format_share
from spyreprof_analyzers.bounds import Bound
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.memory_reads import decode_reads, read_floor_ratio

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts, Floors, Side
    from spyreprof_analyzers.profile import StepSplit


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The most that reads and arithmetic of a side's steps can have taken, over the time they took."""

    side: Side
    reads: float
    flops: float

    @property
    def most(self) -> float:
        """The larger of the two."""
        return max(self.reads, self.flops)


def efficiency(facts: Facts, rules: RuleBook) -> Efficiency | None:
    """Of the larger phase; None where a size or a peak is missing.

    Where what a token keeps in the cache is not known, it is taken for more than any model keeps.
    """
    side: Side = "prefill" if facts.shares.prefill > facts.shares.decode else "decode"
    found = facts.floors[side]
    if found.weights is None or found.flops is None:
        return None
    reads = found.weights
    if side == "decode":
        known = decode_reads(facts)
        whole = read_floor_ratio(facts, known) if known is not None else None
        most = found.weights + _cache_at_most(facts, rules)
        reads = whole if whole is not None else most
    return Efficiency(side, reads, found.flops)


def _cache_at_most(facts: Facts, rules: RuleBook) -> float:
    """Reading the cached tokens of a step, at more bytes each than any model has, over the step; 1 if not counted."""
    steps = facts.decode_steps.where(facts.decode_steps.generation_seq_len_sum >= 0)
    peak = facts.peaks.usable.get("memory_bandwidth")
    if len(steps) == 0 or peak is None:
        return 1.0
    tokens, mean_s = float(steps.generation_seq_len_sum.mean()), float(steps.duration_ns.mean()) / NS_PER_S
    return tokens * rules["SPY-EFF-001"].threshold("max_kv_bytes_per_token") / peak.value / max(mean_s, 1e-9)


def far_from_both(facts: Facts, rules: RuleBook) -> Efficiency | None:
    """The efficiency, where it is so low that neither peak can be what binds; else None."""
    found = efficiency(facts, rules)
    return found if found is not None and found.most < rules["SPY-EFF-001"].threshold("min_efficiency") else None


def steps_far_from_peaks(context: Context) -> Finding | None:
    """The larger phase takes many times what it needs, and no resource explains it."""
    facts, rule, book = context.facts, context.rules["SPY-EFF-001"], context.book
    found = far_from_both(facts, context.rules)
    if found is None or facts.bounds[found.side].resource in ("host", "interconnect", "inefficient_kernel"):
        return None
    if context.verdict.primary == "compile_bound":  # compilations inside of the steps take their time
        return None
    share = facts.shares.of_side(found.side)
    if share < rule.materiality_share:
        return None
    evidence = (
        cite_share(found.side, facts, book),
        book.add(f"{found.side}.read_efficiency", found.reads, "ratio", "derived", n=len(facts.steps),
                 source="model size, bandwidth peak, engine steps",
                 method="the most that reading weights and cache can take at the bandwidth peak, over the step"),
        book.add(f"{found.side}.compute_efficiency", found.flops, "ratio", "estimated", n=len(facts.steps),
                 source="model size, compute peak, engine steps",
                 method="2 FLOPs per weight and token at the compute peak, over the step"),
    )  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(share, rule),
        title=rule.title,
        text=f"Reading all that a {found.side} step needs takes at most {format_share(found.reads)} of it at the "
        f"bandwidth peak, and its arithmetic {format_share(found.flops)} at the compute peak. Neither binds: something "
        "else takes the time, and only a profile of the step tells what.",
        phase=found.side,
        share=share,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
    )


def without_lost_kernels(
    bounds: dict[Side, Bound],
    splits: dict[str, StepSplit],
    floor_of: dict[Side, Floors],
    rules: RuleBook,
    book: EvidenceBook,
) -> dict[Side, Bound]:
    """The bounds, less those whose trace shows less device work than the steps must have had: kernels are missing.

    Only for accelerators: on a CPU operators are counted, and a cache may hold what the floor reads from memory.
    What such a trace says of a step's parts goes out of `splits` too.
    """
    checked = dict(bounds)
    for side, bound in bounds.items():
        split = splits.get(side)
        if split is None:
            continue
        least = max(floor_of[side].weights or 0.0, floor_of[side].flops or 0.0)
        if split.host + least <= rules["SPY-GEN-003"].threshold("max_floor_ratio"):
            continue
        reason = (
            f"profiled steps show no device work for {format_share(split.host)} of their time, but what a step must "
            f"read or compute takes at least {format_share(least)} of it: kernels are missing from the trace"
        )
        # use of a peak inside the kernels that were recorded holds whatever is missing beside them
        if bound.resource in ("host", "inefficient_kernel", "undetermined"):
            checked[side] = Bound("undetermined", reason, bound.peak_use, bound.evidence)
        for name in (side, "mixed") if side == "prefill" else (side,):
            splits.pop(name, None)
        book.leave_open(
            f"where {side} steps spend their time", reason,
            "profile fewer steps at once, or without captured graphs, so that no kernel is lost",
        )  # fmt: skip
    return checked
