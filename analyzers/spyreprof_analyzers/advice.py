"""Advice on the batch cap: min(KV capacity, latency target, demand), with its range, its price and its test."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, TradeOff
from spyreprof.units import NS_PER_S, format_seconds
from spyreprof_analyzers.engine_steps import DECODE
from spyreprof_analyzers.slope import FIXED, PER_CACHED_TOKEN, PER_REQUEST

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof.targets import Targets
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts

# A predicted value whose band is wider than this on either side is no prediction.
MAX_BAND = 0.25
# Beyond this multiple of the largest batch seen, a prediction is extrapolated.
EXTRAPOLATION = 1.5


def kv_fit(facts: Facts, rules: RuleBook) -> int | None:
    """Requests whose prompt and output fit the KV cache together, at the 90th percentile of observed lengths."""
    settings, log = facts.settings, facts.log
    if settings.kv_blocks is None or settings.block_size is None or log is None:
        return None
    length = float(np.percentile(log.prompt_tokens + log.output_tokens, 90))
    if length <= 0:
        return None
    ratio = rules["SPY-QUE-001"].threshold("kv_fit_ratio")
    return math.floor(ratio * settings.kv_blocks * settings.block_size / length)


def step_seconds(facts: Facts, batch: int) -> tuple[float, bool] | None:
    """Predicted decode cycle at a batch size, in seconds, and whether it is extrapolated.

    None where the data do not determine the slope per request.
    """
    model = facts.model
    if model is None:
        return None
    fixed, per_request = model.identified(FIXED), model.identified(PER_REQUEST)
    decode = facts.steps.of_phase(DECODE)
    if fixed is None or per_request is None or len(decode) == 0:
        return None
    length = float(decode.generation_seq_len_sum.sum() / max(decode.generation_requests.sum(), 1))
    cached = model.coefficients.get(PER_CACHED_TOKEN, 0.0) * length * batch
    seconds = (fixed + per_request * batch + cached) / NS_PER_S
    return seconds, batch > EXTRAPOLATION * int(decode.generation_requests.max())


def batch_cap_advice(facts: Facts, targets: Targets, rules: RuleBook, book: EvidenceBook) -> Advice | None:
    """Raise `max_num_seqs` to what memory, latency target and demand allow; None when that is no raise.

    The first of the three that binds is named. Without a latency target the trade-off table stands beside the value.
    """
    seen = facts.admission
    if seen is None or seen.cap_requests is None:
        return None
    current = facts.settings.max_num_seqs or seen.cap_requests
    fits, demand = kv_fit(facts, rules), math.ceil(seen.demand_p95)
    if fits is None:
        book.leave_open(
            "the largest batch that fits the KV cache",
            "the KV block count or the request lengths are unknown",
            "poll /metrics (vllm:cache_config_info) and record a load generator's result",
        )
        return None
    limits = {"KV capacity": fits, "demand": demand}
    latency = _largest_within(facts, targets, current, min(limits.values()))
    if latency is not None:
        limits["latency target"] = latency
    to = min(limits.values())
    if to <= current:
        return None
    binding = min(limits, key=lambda name: limits[name])
    methods = {
        "KV capacity": "0.9 x KV tokens over the 90th percentile of prompt + output tokens",
        "demand": "95th percentile of running + waiting requests",
        "latency target": "largest batch whose predicted step meets the target",
    }
    for name, value in limits.items():
        metric = f"max_num_seqs.by_{name.replace(' ', '_').lower()}"
        book.add(metric, value, "requests", "derived", method=methods[name], source="gauges and requests")
    return Advice(
        id="max_num_seqs",
        setting="max_num_seqs",
        from_=current,
        to=to,
        from_origin="measured" if facts.settings.max_num_seqs else "estimated",
        expected=_expected(facts, current, to),
        pays=_price(facts, current, to),
        preconditions=(
            f"the KV cache fits {fits} requests of the lengths seen here (90th percentile)",
            f"the value is set by {binding}; the other limits are higher",
        ),
        test_arguments=f"--max-num-seqs {to}",
        refuted_if="output tokens per second do not rise, or requests still wait with the KV cache under 80 %",
        trade_off=() if targets.itl_p99_s is not None else _trade_off(facts, current, to, fits),
    )


def _largest_within(facts: Facts, targets: Targets, low: int, high: int) -> int | None:
    """Largest batch size up to `high` whose predicted step meets the ITL target; None without target or model."""
    if targets.itl_p99_s is None or step_seconds(facts, low) is None:
        return None
    best = low
    for batch in range(low, max(low, high) + 1):
        predicted = step_seconds(facts, batch)
        if predicted is None or predicted[0] > targets.itl_p99_s:
            break
        best = batch
    return best


def _ceiling_ratio(facts: Facts, current: int, to: int) -> float:
    """No more throughput than the batch grows, nor than requests arrive.

    Arrivals and completions are compared while requests still arrived: a load that ends leaves a queue to drain.
    """
    ceiling = to / current
    log = facts.log
    if log is not None and log.arrival_ns is not None and len(log) > 1:
        start = max(facts.window.start_ns, int(log.arrival_ns.min()))
        end = min(facts.window.end_ns, int(log.arrival_ns.max()))
        ends = log.arrival_ns + log.e2e_ns
        arrived = int(((log.arrival_ns >= start) & (log.arrival_ns <= end)).sum())
        finished = int(((ends >= start) & (ends <= end)).sum())
        if arrived and finished:
            ceiling = min(ceiling, max(arrived / finished, 1.0))
    return ceiling


def _expected(facts: Facts, current: int, to: int) -> tuple[ExpectedChange, ...]:
    before, after = step_seconds(facts, current), step_seconds(facts, to)
    queue = ExpectedChange(
        metric="queue time",
        direction="down",
        note="multiplies any error of the step time, so no number is given",
    )
    if before is not None and after is not None and not after[1]:
        gain = (to / after[0]) / (current / before[0]) - 1.0
        if gain > 0:
            return (
                ExpectedChange(
                    metric="output tokens/s",
                    direction="up",
                    low=gain * (1 - MAX_BAND),
                    high=gain * (1 + MAX_BAND),
                ),
                queue,
            )
    ceiling = _ceiling_ratio(facts, current, to) - 1.0
    return (
        ExpectedChange(
            metric="output tokens/s",
            direction="up",
            high=ceiling if ceiling > 0 else None,
            note="an upper limit from batch growth and arrivals; batch sizes beyond the cap were not seen, so the "
            "gain itself is not predicted",
        ),
        queue,
    )


def _price(facts: Facts, current: int, to: int) -> tuple[ExpectedChange, ...]:
    before, after = step_seconds(facts, current), step_seconds(facts, to)
    if before is not None and after is not None and not after[1]:
        rise = after[0] / before[0] - 1.0
        return (
            ExpectedChange(
                metric="ITL",
                direction="up",
                low=max(rise * (1 - MAX_BAND), 0.0),
                high=rise * (1 + MAX_BAND),
                note=f"from {format_seconds(before[0])} to about {format_seconds(after[0])} per token",
            ),
        )
    return (
        ExpectedChange(
            metric="ITL",
            direction="up",
            high=to / current - 1.0,
            note="at most in proportion to the batch; its slope cannot be told from batches of one size",
        ),
    )


def _trade_off(facts: Facts, current: int, to: int, fits: int) -> tuple[TradeOff, ...]:
    """Batch sizes from the present one to the advised, doubling."""
    sizes = [current]
    while sizes[-1] * 2 < to:
        sizes.append(sizes[-1] * 2)
    sizes.append(to)
    base = step_seconds(facts, current)
    rows = []
    for size in sizes:
        predicted = step_seconds(facts, size)
        known = predicted is not None and base is not None
        rows.append(
            TradeOff(
                value=size,
                itl_s=predicted[0] if predicted is not None else _measured_itl(facts, size),
                throughput_ratio=(size / predicted[0]) / (current / base[0]) if known else None,  # type: ignore[index]
                fits_kv=size <= fits,
                extrapolated=predicted[1] if predicted is not None else size > current,
            )
        )
    return tuple(rows)


def _measured_itl(facts: Facts, batch: int) -> float | None:
    """Median decode step at exactly this batch size, in seconds; None when it was hardly seen."""
    decode = facts.steps.of_phase(DECODE)
    same = decode.duration_ns[decode.generation_requests == batch]
    return float(np.median(same)) / NS_PER_S if len(same) >= 20 else None
