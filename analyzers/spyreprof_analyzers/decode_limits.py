"""A decode batch that reads memory, could be larger by the device's arithmetic, and is held back by the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.advice import throughput_change
from spyreprof_analyzers.decode_advice import shorter_cache, shorter_weights
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.memory_reads import DecodeReads, decode_reads, dtype_bytes, read_floor_ratio
from spyreprof_analyzers.prediction import predict_step

if TYPE_CHECKING:
    from spyreprof.findings import Advice
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts


@dataclass(frozen=True, slots=True)
class CacheLimit:
    """`floor_ratio`: reads over the decode step; `ridge`: requests at which arithmetic takes as long as the weights."""

    reads: DecodeReads
    floor_ratio: float
    ridge: float
    kv_usage: float


def cache_limit(facts: Facts) -> CacheLimit | None:
    """What a decode step reads and how full the cache is; None where a size, a peak or a gauge is missing."""
    reads, seen = decode_reads(facts), facts.admission
    compute, bandwidth = (facts.peaks.usable.get(name) for name in ("compute", "memory_bandwidth"))
    size = dtype_bytes(facts.parameters.dtype)
    if (
        reads is None
        or seen is None
        or seen.kv_usage_p95 is None
        or size is None
        or compute is None
        or bandwidth is None
    ):
        return None
    floor = read_floor_ratio(facts, reads)
    # weights are read once for all rows and multiplied for each: 2 FLOPs per weight and row
    ridge = compute.value * size / (2.0 * bandwidth.value)
    return CacheLimit(reads, floor, ridge, seen.kv_usage_p95) if floor is not None else None


def batch_held_by_the_cache(context: Context) -> Finding | None:
    """Decode reads memory for most of its step, more requests would share that read, and the cache takes no more."""
    facts, rule, book = context.facts, context.rules["SPY-DEC-002"], context.book
    seen, share = cache_limit(facts), facts.shares.decode
    if seen is None or share < rule.materiality_share:
        return None
    if seen.floor_ratio < rule.threshold("min_floor_ratio") or seen.kv_usage < rule.threshold("min_kv_usage"):
        return None
    if seen.reads.batch >= seen.ridge:
        return None
    evidence = (
        cite_share("decode", facts, book),
        book.add("decode.read_floor_ratio", seen.floor_ratio, "ratio", "derived",
                 source="model size, peaks, engine steps",
                 method="weights and cache that a step reads at the bandwidth peak, over the mean decode step"),
        book.add("decode.weight_share_of_reads", seen.reads.weight_share, "ratio", "derived", source="model size",
                 method="weights over weights and cache"),
        book.add("decode.ridge_requests", seen.ridge, "requests", "derived", source="peaks",
                 method="compute peak x bytes of a weight / (2 x bandwidth peak)"),
        book.add("queue.kv_usage_p95", seen.kv_usage, "ratio", "measured", source="gauges",
                 method="95th percentile over time"),
    )  # fmt: skip
    severity = context.severity(share, rule)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if severity == "high" else severity,
        title=rule.title,
        text=f"Reading weights and cache takes {format_share(seen.floor_ratio)} of a decode step of "
        f"{seen.reads.batch:.0f} requests; arithmetic would bind from about {seen.ridge:.0f}. The KV cache is "
        f"{format_share(seen.kv_usage)} full (95th percentile) and holds no more. Of what is read "
        f"{format_share(seen.reads.weight_share)} is weights.",
        phase="decode",
        share=share,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
        advice=_advice(context, seen),
    )


def _advice(context: Context, seen: CacheLimit) -> tuple[Advice, ...]:
    """A cache of shorter elements holds twice the requests; shorter weights leave room, where weights are the most."""
    facts, rules = context.facts, context.rules
    batch = max(round(seen.reads.batch), 1)
    steps = predict_step(facts, batch, rules), predict_step(facts, 2 * batch, rules)
    gain = throughput_change(facts, batch, 2 * batch, steps, rules)
    cache = tuple(
        msgspec.structs.replace(one, expected=(gain, *one.expected))
        for one in shorter_cache(facts, 1.0 - seen.reads.weight_share)
    )
    if seen.reads.weight_share < rules["SPY-DEC-001"].threshold("min_weight_share"):
        return cache
    return (*cache, *shorter_weights(facts, seen.reads.weight_share))
