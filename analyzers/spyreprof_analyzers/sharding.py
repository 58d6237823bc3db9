"""A model over more devices than it needs: weights and KV cache would fit fewer, and the many are not used well."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.memory_reads import decode_reads, kv_bytes_per_token, read_floor_ratio
from spyreprof_analyzers.witnesses import larger_side

if TYPE_CHECKING:
    from spyreprof.recording.schema import EngineSettings, ModelFacts
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts

# The Spyre stack runs with these alone.
_SPYRE_SIZES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How many devices hold the model, and how many could.

    Attributes:
        now, fewer: tensor-parallel sizes.
        weight_bytes: weights of one device now; with fewer they grow in proportion.
        room_bytes: what one device holds now: its weights and its whole KV cache.
        kv_tokens: KV tokens that a replica over `fewer` devices would hold.
    """

    now: int
    fewer: int
    weight_bytes: float
    room_bytes: float
    kv_tokens: int


def fewer_devices(
    settings: EngineSettings, model: ModelFacts, used_kv_ratio: float | None, longest: float, fit_ratio: float
) -> Sharding | None:
    """The smallest tensor-parallel size at which weights and the present load fit.

    What a device has is known from what it holds: its weights and its KV cache. Replicas share the load, so that each
    device keeps as many bytes of cache as now, as long as heads divide; the longest request must fit one replica.

    Args:
        settings: sizes in force.
        model: bytes of one rank, and what its cache holds for a token.
        used_kv_ratio: use of the cache at its usual most.
        longest: tokens of the longest request seen.
        fit_ratio: how full memory may be planned.

    Returns:
        None where one device is all there is, a number is missing, or nothing smaller fits.
    """
    now, capacity = settings.tensor_parallel, settings.kv_capacity_tokens
    per_token = kv_bytes_per_token(model, settings)
    if now is None or now <= 1 or capacity is None or per_token is None or used_kv_ratio is None:
        return None
    if not model.parameter_bytes:
        return None
    room = model.parameter_bytes + capacity * per_token
    used_tokens = used_kv_ratio * capacity
    for size in range(1, now):
        if now % size or (settings.platform == "spyre" and size not in _SPYRE_SIZES):
            continue
        weights = model.parameter_bytes * now / size
        each = kv_bytes_per_token(model, replace(settings, tensor_parallel=size))
        if each is None:
            return None
        tokens = int((room - weights) / each)
        if weights + used_tokens * size / now * each <= fit_ratio * room and tokens >= longest:
            return Sharding(now, size, float(model.parameter_bytes), room, tokens)
    return None


def link_share(facts: Facts) -> float | None:
    """Share of the larger phase's steps in which data moves or ranks wait for it; None where nothing tells."""
    side = larger_side(facts)
    if facts.communication is not None and side in facts.communication.exposed:
        return facts.communication.exposed[side].transfer
    parts = [part for part in facts.budget.parts if part.id.startswith(f"{side}.")]
    told = sum(part.share for part in parts if part.id.endswith(".exposed_communication"))
    whole = sum(part.share for part in parts if not part.id.endswith(".not_split"))
    return told / whole if whole > 0 else None


def over_sharded(context: Context) -> Finding | None:
    """The model is divided among more devices than it needs, which communicate more than they compute."""
    facts, rule, book = context.facts, context.rules["SPY-TP-001"], context.book
    share = facts.shares.prefill + facts.shares.decode
    used = facts.admission.kv_usage_p95 if facts.admission is not None else None
    found = fewer_devices(facts.settings, facts.parameters, used, longest_request(facts), rule.threshold("fit_ratio"))
    if found is None or share < rule.materiality_share:
        _leave_open(facts, used, book)
        return None
    link, reads = link_share(facts), decode_reads(facts)
    floor = read_floor_ratio(facts, reads) if reads is not None else None
    much_link = link is not None and link >= context.rules["SPY-NET-001"].threshold("min_transfer_share")
    little_use = floor is not None and floor < rule.threshold("max_floor_ratio")
    if not much_link and not little_use:
        return None
    said, evidence = [], [cite_share("decode", facts, book), *cite_sharding(found, book)]
    if much_link and link is not None:
        said.append(f"{format_share(link)} of its step time goes into communication")
        evidence.append(
            book.add("sharding.communication_share", link, "ratio", "derived", source="profiled steps or collectives",
                     method="exposed communication of the larger phase over its step time")
        )  # fmt: skip
    if floor is not None:
        said.append(f"a device needs {format_share(floor)} of a decode step to read its part of weights and cache")
        evidence.append(
            book.add("sharding.read_floor_ratio", floor, "ratio", "derived", source="model size, peaks, engine steps",
                     method="bytes that one device must read over the bandwidth peak, over the mean decode step")
        )  # fmt: skip
    replicas = found.now // found.fewer
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if context.severity(share, rule) == "high" else context.severity(share, rule),
        title=rule.title,
        text=f"The model is divided among {found.now} devices, and {found.fewer} could hold it: {'; '.join(said)}. "
        f"{replicas} replicas would serve the same requests with less communication.",
        phase=None,
        share=share,
        evidence=tuple(evidence),
        against=context.against(*rule.false_positive_notes),
        advice=(_advice(found, replicas, facts),),
    )


def longest_request(facts: Facts) -> float:
    """Prompt and output of the longest request seen, or the longest mean sequence of a step; 0 where nothing tells."""
    seen = [0.0]
    if facts.log is not None:
        lengths = facts.log.prompt_tokens + facts.log.output_tokens
        seen += lengths[~np.isnan(lengths)].tolist()
    steps = facts.steps.where((facts.steps.generation_seq_len_sum > 0) & (facts.steps.generation_requests > 0))
    if len(steps):
        seen.append(float((steps.generation_seq_len_sum / steps.generation_requests).max()))
    return max(seen)


def _leave_open(facts: Facts, used: float | None, book: EvidenceBook) -> None:
    settings = facts.settings
    if (settings.tensor_parallel or 1) > 1 and (
        used is None or kv_bytes_per_token(facts.parameters, settings) is None or settings.kv_capacity_tokens is None
    ):
        book.leave_open(
            "whether fewer devices could hold the model",
            "sizes of the model, of its KV cache, or the use of the cache are not known",
            "record the engine's own process, with its metrics page polled",
        )


def cite_sharding(found: Sharding, book: EvidenceBook) -> tuple[str, ...]:
    """Write down what a device holds; the values are evidence ids."""
    return (
        book.add("sharding.tensor_parallel", found.now, "devices", "measured", source="engine settings",
                 window="settings", method="tensor-parallel size in force"),
        book.add("sharding.weights_per_device", found.weight_bytes, "bytes", "measured", source="model",
                 window="settings", method="parameters of one rank"),
        book.add("sharding.room_per_device", found.room_bytes, "bytes", "derived", source="model and engine settings",
                 window="settings", method="parameters of one rank and its whole KV cache"),
    )  # fmt: skip


def _advice(found: Sharding, replicas: int, facts: Facts) -> Advice:
    grows = found.now / found.fewer
    least = _least_step_ratio(found, facts)
    price = ExpectedChange(
        metric="ITL", direction="up",
        low=least - 1.0 if least is not None and least > 1.0 else None,
        note=f"each device reads {grows:g} times the weights in a step; what communication gives back is not predicted",
    )  # fmt: skip
    return shard_advice(found, replicas, price)


def shard_advice(found: Sharding, replicas: int, price: ExpectedChange) -> Advice:
    """Fewer devices in an engine, and more engines."""
    return Advice(
        id="tensor_parallel_size",
        setting="tensor_parallel_size",
        from_=found.now,
        to=found.fewer,
        from_origin="measured",
        expected=(
            ExpectedChange(
                metric="output tokens/s of all devices", direction="up",
                note=f"with {replicas} replicas and enough requests to fill them; how much is for the test to tell",
            ),
        ),
        pays=(price,),
        preconditions=(
            f"a replica's KV cache holds about {found.kv_tokens:,} tokens, and no request is longer",
            "requests are spread over the replicas",
        ),
        test_arguments=f"--tensor-parallel-size {found.fewer} --data-parallel-size {replicas}",
        refuted_if="output tokens per second of all devices do not rise under the same load",
    )  # fmt: skip


def _least_step_ratio(found: Sharding, facts: Facts) -> float | None:
    """The least decode step over fewer devices against the present one, by the bytes to read; None without a peak."""
    reads = decode_reads(facts)
    if reads is None:
        return None
    grown = replace(reads, weight_bytes=reads.weight_bytes * found.now / found.fewer)
    return read_floor_ratio(facts, grown)
