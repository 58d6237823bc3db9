"""Advice on a larger batch: min(KV capacity, latency target, demand), with its range, its price and its test."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, TradeOff
from spyreprof.units import format_seconds
from spyreprof_analyzers.prediction import predict_step, why_withheld

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof.targets import Targets
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts
    from spyreprof_analyzers.prediction import StepPrediction
    from spyreprof_analyzers.request_log import RequestLog


WITHIN_TARGET = "a larger batch within the latency target"


def usual_length(facts: Facts, percentile: float = 90) -> float | None:
    """Prompt and output tokens of a request, a percentile over requests; None where the log lacks a length."""
    return length_of(facts.log, percentile)


def length_of(log: RequestLog | None, percentile: float) -> float | None:
    """Prompt and output tokens of a logged request, a percentile over requests; None where the log lacks a length."""
    if log is None:
        return None
    length = float(np.percentile(log.prompt_tokens + log.output_tokens, percentile))
    return length if length > 0 else None  # NaN is not above


def kv_fit(facts: Facts, rules: RuleBook, percentile: float = 90) -> int | None:
    """Requests whose prompt and output fit the KV cache together, at a percentile of the observed lengths."""
    tokens, length = facts.settings.kv_capacity_tokens, usual_length(facts, percentile)
    if tokens is None or length is None:
        return None
    return math.floor(rules["SPY-QUE-001"].threshold("kv_fit_ratio") * tokens / length)


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
    if facts.settings.state_blocks is not None:
        limits["state blocks"] = facts.settings.state_blocks
    latency = _largest_within(facts, targets, current, min(limits.values()), rules, book)
    if latency is not None:
        limits["latency target"] = latency
    to = min(limits.values())
    if to <= current:
        if latency is not None and latency <= current:
            book.leave_open(
                WITHIN_TARGET,
                "the present batch already takes what the target allows a decode step",
                "give a wider --slo itl_p99, or shorten the step itself",
            )
        return None
    binding = min(limits, key=lambda name: limits[name])
    methods = {
        "KV capacity": "0.9 x KV tokens over the 90th percentile of prompt + output tokens",
        "demand": "95th percentile of running + waiting requests",
        "state blocks": "one for each running request of a hybrid model",
        "latency target": "largest batch whose predicted step meets the target",
    }
    for name, value in limits.items():
        metric = f"max_num_seqs.by_{name.replace(' ', '_').lower()}"
        book.add(metric, value, "requests", "derived", method=methods[name], source="gauges and requests")
    now, then = predict_step(facts, current, rules), predict_step(facts, to, rules)
    others = ", ".join(f"{name} allows {value}" for name, value in limits.items() if name != binding)
    return Advice(
        id="max_num_seqs",
        setting="max_num_seqs",
        from_=current,
        to=to,
        from_origin="measured" if facts.settings.max_num_seqs else "estimated",
        expected=(throughput_change(facts, current, to, (now, then), rules), QUEUE_TIME),
        pays=(latency_price(current, to, now, then),),
        preconditions=(
            f"the KV cache fits {fits} requests of the lengths seen here (90th percentile)",
            f"the value is set by the {binding} of {limits[binding]}; {others}",
        ),
        test_arguments=f"--max-num-seqs {to}",
        refuted_if="output tokens per second do not rise, or requests still wait with the KV cache under 80 %",
        trade_off=() if targets.itl_p99_s is not None else _trade_off(facts, (current, to), fits, rules),
    )


def _largest_within(
    facts: Facts, targets: Targets, low: int, high: int, rules: RuleBook, book: EvidenceBook
) -> int | None:
    """Largest batch size up to `high` whose predicted 99th percentile meets the ITL target.

    The tail is the predicted median times the present ratio of 99th percentile to median at the cap; prefill that
    interrupts decode comes on top. None without a target, or where nothing predicts the step.
    """
    if targets.itl_p99_s is None:
        return None
    decode = facts.decode_steps
    at_cap = decode.duration_ns[decode.generation_requests == low]
    enough = rules["SPY-GEN-006"].threshold("min_steps_for_tail")
    if predict_step(facts, low, rules) is None or len(at_cap) < enough:
        book.leave_open(
            WITHIN_TARGET,
            "too few decode steps at the present cap to predict their tail",
            "record for longer",
        )
        return None
    tail = float(np.percentile(at_cap, 99) / np.median(at_cap))
    best = low
    for batch in range(low, max(low, high) + 1):
        predicted = predict_step(facts, batch, rules)
        if predicted is None:
            # not the target binds here but what the recording tells
            book.leave_open(
                WITHIN_TARGET,
                f"nothing in the recording predicts the step of a batch beyond {best}: "
                f"{why_withheld(facts, batch, rules)}",
                "record once at a larger cap",
            )
            break
        if predicted.seconds * tail > targets.itl_p99_s:
            break
        best = batch
    return best


def arrival_ratio(facts: Facts, rules: RuleBook) -> float | None:
    """Arrivals over completions while requests still arrived: no cap lets more through than arrives.

    None for a closed loop: its clients send as fast as they are served.
    """
    log = facts.log
    if log is None or log.arrival_ns is None or len(log) < 2:
        return None
    if _closed_loop(log.arrival_ns, log.arrival_ns + log.e2e_ns, rules["SPY-GEN-006"].threshold("closed_loop_spread")):
        return None
    start = max(facts.window.start_ns, int(log.arrival_ns.min()))
    end = min(facts.window.end_ns, int(log.arrival_ns.max()))
    ends = log.arrival_ns + log.e2e_ns
    arrived = int(((log.arrival_ns >= start) & (log.arrival_ns <= end)).sum())
    finished = int(((ends >= start) & (ends <= end)).sum())
    return max(arrived / finished, 1.0) if arrived and finished else None


def _closed_loop(arrival_ns: NDArray[np.int64], end_ns: NDArray[np.int64], spread: float) -> bool:
    """Were requests sent as others ended? Then the number in flight hardly differs from one arrival to the next."""
    in_flight = np.arange(len(arrival_ns)) - np.searchsorted(np.sort(end_ns), np.sort(arrival_ns), side="right")
    low, middle, high = np.percentile(in_flight, (25, 50, 75))
    return bool(high - low <= spread * max(middle, 1.0))


QUEUE_TIME = ExpectedChange(
    metric="queue time", direction="down", note="multiplies any error of the step time, so no number is given"
)


def _gain(facts: Facts, current: int, to: int, now_s: float, then_s: float) -> float:
    """Relative gain in output tokens per second. Only decode time shrinks; prompts cost what they cost."""
    prefill, decode = facts.shares.prefill, facts.shares.decode
    shrunk = decode * (then_s / to) / (now_s / current)
    return (prefill + decode) / max(prefill + shrunk, 1e-9) - 1.0


def throughput_change(
    facts: Facts,
    current: int,
    to: int,
    steps: tuple[StepPrediction | None, StepPrediction | None],
    rules: RuleBook,
) -> ExpectedChange:
    """Output tokens per second at the new cap, as long as enough requests arrive to fill it."""
    now, then = steps
    arrivals = arrival_ratio(facts, rules)
    ceiling = arrivals - 1.0 if arrivals is not None else None
    if now is None or then is None:
        limits = [limit for limit in (to / current - 1.0, ceiling) if limit is not None]
        return ExpectedChange(
            metric="output tokens/s",
            direction="up",
            high=min(limits) if min(limits) > 0 else None,
            note="an upper limit from batch growth and arrivals; the step time of the larger batch is withheld: "
            f"{why_withheld(facts, to, rules) or 'that of the present one is not told'}",
        )
    low, high = (_gain(facts, current, to, now.seconds, then.seconds * (1.0 + sign * then.band)) for sign in (1, -1))
    note = f"step time from {then.basis}"
    if ceiling is not None and ceiling < high:
        note += f"; no more than arrivals allow (+{ceiling:.0%} over what finished)"
        low, high = min(low, ceiling), ceiling
    return ExpectedChange(metric="output tokens/s", direction="up", low=max(low, 0.0), high=high, note=note)


def latency_price(current: int, to: int, now: StepPrediction | None, then: StepPrediction | None) -> ExpectedChange:
    """What the larger batch costs each token of output."""
    if now is None or then is None:
        return ExpectedChange(
            metric="ITL",
            direction="up",
            high=to / current - 1.0,
            note="at most in proportion to the batch; nothing here tells the step time of the larger batch",
        )
    rise = then.seconds / now.seconds
    return ExpectedChange(
        metric="ITL",
        direction="up",
        low=max(rise * (1.0 - then.band) - 1.0, 0.0),
        high=max(rise * (1.0 + then.band) - 1.0, 0.0),
        note=f"from {format_seconds(now.seconds)} to about {format_seconds(then.seconds)} per token, from {then.basis}",
    )


def _trade_off(facts: Facts, span: tuple[int, int], fits: int, rules: RuleBook) -> tuple[TradeOff, ...]:
    """Batch sizes from the present one to the advised, doubling."""
    current, to = span
    sizes = [current]
    while sizes[-1] * 2 < to:
        sizes.append(sizes[-1] * 2)
    sizes.append(to)
    base = predict_step(facts, current, rules)
    rows = []
    for size in sizes:
        predicted = predict_step(facts, size, rules)
        ratio = None
        if predicted is not None and base is not None:
            ratio = 1.0 + _gain(facts, current, size, base.seconds, predicted.seconds)
        rows.append(
            TradeOff(
                value=size,
                itl_s=predicted.seconds if predicted is not None else None,
                throughput_ratio=ratio,
                fits_kv=size <= fits,
                extrapolated=predicted is None or not predicted.measured,
            )
        )
    return tuple(rows)
