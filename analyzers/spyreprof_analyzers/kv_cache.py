"""Findings about the KV cache: it keeps requests out, or preempts them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.advice import QUEUE_TIME, arrival_ratio, kv_fit, latency_price, throughput_change, usual_length
from spyreprof_analyzers.facts import cite_blocked
from spyreprof_analyzers.kv_room import Shortage, longest, more_room, needed_factor
from spyreprof_analyzers.prediction import predict_step
from spyreprof_analyzers.witnesses import blocked_class, held_share, recompute_binds

if TYPE_CHECKING:
    from spyreprof.recording.schema import EngineSettings
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts
    from spyreprof_analyzers.kv_pressure import PerRequest, Preemptions, Recomputed
    from spyreprof_analyzers.prediction import StepPrediction

# A request is at its longest when it ends: a cap that holds nearly all of them to their end is set by this percentile.
PEAK_PERCENTILE = 95
_OTHER_WAYS = "Shorter outputs, or fewer bytes per cached token, make room in the same way."


def full(context: Context) -> Finding | None:
    """Requests wait because the KV cache cannot take them."""
    facts, rules, book = context.facts, context.rules, context.book
    seen, rule = facts.admission, rules["SPY-KVC-001"]
    if seen is None or blocked_class(facts, rules) != "kv_capacity_bound":
        return None
    held = held_share("kv_capacity_bound", facts, rules)
    share = held * (facts.shares.prefill + facts.shares.decode)
    if share < rule.materiality_share:
        return None
    source = "engine steps and gauges"
    method = "the part of it below the batch cap in which the KV cache could not take another request"
    if recompute_binds(facts, rules):
        # who waits below the cap of an engine that preempts waits for blocks, whatever the gauge says
        method = "the part of it below the batch cap, in a window in which running requests lost their blocks"
    evidence = [
        cite_blocked(seen, facts, book),
        book.add("kv_cache.full_share", held, "ratio", "derived", n=len(facts.steps), source=source, method=method),
        book.add("kv_cache.window_share", share, "ratio", "derived", n=len(facts.steps), source=source,
                 method="the same steps over the window"),
        book.add("queue.waiting_p95", seen.waiting_p95, "requests", "measured", source="gauges",
                 method="95th percentile over time"),
    ]  # fmt: skip
    text = f"For {format_share(share)} of the window requests waited (95th percentile {seen.waiting_p95:.0f})"
    if seen.kv_usage_p95 is not None:
        evidence.append(
            book.add("queue.kv_usage_p95", seen.kv_usage_p95, "ratio", "measured", source="gauges",
                     method="95th percentile over time"),
        )  # fmt: skip
        text += f" with the KV cache {format_share(seen.kv_usage_p95)} full (95th percentile)"
    if seen.prompt_blocks is not None:
        evidence.append(
            book.add("kv_cache.prompt_blocks", seen.prompt_blocks, "blocks", "derived", source="request lengths",
                     method="KV blocks of a usual prompt, without what the prefix cache holds")
        )  # fmt: skip
        text += f"; a usual prompt needs {seen.prompt_blocks} of its {facts.settings.kv_blocks} blocks"
    against = list(rule.false_positive_notes)
    if not seen.cap_is_known:
        against.append("the batch cap is not known, and may bind too")
    state = facts.gauge_state
    factor = needed_factor(seen.demand_p95, state.resident_ratio if state is not None else None)
    if factor is not None:
        evidence.append(
            book.add("kv_cache.needed_factor", factor, "ratio", "derived", source="gauges",
                     method="95th percentile of running + waiting, times the share of the cache that one running "
                     "request holds")
        )  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=f"{text}. {_OTHER_WAYS}",
        phase=None,
        share=share,
        evidence=tuple(evidence),
        against=tuple(against),
        advice=_ways(facts, factor, rules),
    )


def _ways(facts: Facts, factor: float | None, rules: RuleBook) -> tuple[Advice, ...]:
    """What makes room, the cheapest first; how many blocks, only where memory is not the device's."""
    lack = Shortage(factor, facts.settings, facts.parameters, facts.device_kind, *longest(facts.log))
    blocks = _more_blocks(facts, rules) if not lack.on_accelerator else None
    return (*((blocks,) if blocks is not None else ()), *more_room(lack, rules))


def recompute(context: Context) -> Finding | None:
    """Preempted requests are computed again."""
    facts, rules, book = context.facts, context.rules, context.book
    seen, rule = facts.preemptions, rules["SPY-KVC-002"]
    if seen is None or seen.count < rule.threshold("min_preemptions"):
        return None
    again, lost = seen.recomputed, facts.recompute_window_share
    if again is None or lost is None:
        book.leave_open(
            "what preemption costs",
            seen.reason
            or "requests were preempted, but step rows and prompt counters do not show what was computed again",
            "poll /metrics of the engine through the whole run"
            if seen.reason is None
            else "record a load whose requests run to their end, with a load generator that writes its result",
        )
        return _often(context, seen)
    if lost < rule.materiality_share or again.low_share < rule.threshold("min_recomputed_share"):
        return None  # some preemption is normal pressure, as long as it costs little
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(lost, rule),
        title=rule.title,
        text=f"{seen.count} times a running request lost its KV blocks to others. About "
        f"{format_share(again.share)} of the tokens that prefills computed had been computed before, which is "
        f"{format_share(lost)} of the window.",
        phase="prefill",
        share=lost,
        evidence=(*_cite_recomputed(seen.count, again, lost, book), *cite_per_request(seen, book)),
        against=rule.false_positive_notes,
        advice=_admit_fewer(facts, lost, rules),
    )


def _often(context: Context, seen: Preemptions) -> Finding | None:
    """Preemption that goes on in many steps or hits requests again and again, at a cost that is not known."""
    facts, rules, book = context.facts, context.rules, context.book
    rule = rules["SPY-KVC-002"]
    steps = min(seen.count / max(len(facts.steps), 1), 1.0)
    each = seen.per_request
    told = again_and_again = each is not None and each.p99 >= rule.threshold("min_preemptions_p99")
    if not again_and_again:
        if steps < rule.threshold("min_preempted_step_share"):
            return None
        usual = usual_pressure(seen.count, each, facts.requests_in_window, rules)
        if usual:
            return None
        told = usual is not None
    evidence = [
        book.add("kv_cache.preemptions", seen.count, "preemptions", "measured", source="/metrics counters",
                 method="rise of vllm:num_preemptions over the window"),
        book.add("kv_cache.preempted_step_share", steps, "ratio", "estimated", n=len(facts.steps),
                 source="engine steps and /metrics counters", method="preemptions over steps, one to a step at most"),
        *cite_per_request(seen, book),
    ]  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if told and context.verdict.primary != "load_limited" else "low",
        title=rule.title,
        text=f"{seen.count} times a running request lost its KV blocks to others, in up to {format_share(steps)} of "
        f"the steps{_per_request(each)}. What it cost to compute them again is not known.",
        phase=None,
        share=None,
        evidence=tuple(evidence),
        against=rule.false_positive_notes,
        advice=_admit_fewer(facts, None, rules),
    )


def _per_request(each: PerRequest | None) -> str:
    if each is None:
        return ""
    return f"; one request in a hundred lost them {each.p99:.0f} times or more often"


def usual_pressure(count: int, each: PerRequest | None, finished: int | None, rules: RuleBook) -> bool | None:
    """Were only a few requests preempted, as under usual pressure? None where neither tells how many."""
    limit = rules["SPY-KVC-002"].threshold("usual_preempted_share")
    if each is not None and each.preempted_share is not None:
        return each.preempted_share < limit
    return count / finished < limit if finished else None


def cite_per_request(seen: Preemptions, book: EvidenceBook) -> tuple[str, ...]:
    """Write down how often requests were preempted, where they tell it."""
    each = seen.per_request
    if each is None:
        return ()
    return (
        book.add("kv_cache.preemptions_per_request_p99", each.p99, "preemptions", "measured", n=each.requests,
                 source="requests", method="99th percentile over finished requests"),
    )  # fmt: skip


def _cite_recomputed(count: int, again: Recomputed, lost: float, book: EvidenceBook) -> tuple[str, ...]:
    return (
        book.add("kv_cache.preemptions", count, "preemptions", "measured", source="/metrics counters",
                 method="rise of vllm:num_preemptions over the window"),
        book.add("kv_cache.recomputed_tokens", again.tokens, "tokens", "estimated", low=again.low, high=again.high,
                 source="engine steps and /metrics counters",
                 method="tokens that prefills computed, less prompts that got through prefill and were not cached"),
        book.add("kv_cache.recomputed_share", again.share, "ratio", "estimated", source="engine steps and counters",
                 method="recomputed tokens over all that prefills computed"),
        book.add("kv_cache.recompute_window_share", lost, "ratio", "estimated", source="engine steps and counters",
                 method="that share of prefill time, over the window"),
    )  # fmt: skip


def _more_blocks(facts: Facts, rules: RuleBook) -> Advice | None:
    """KV blocks that hold all who asked for a place, up to the batch cap; None when that is no raise."""
    seen, settings, length = facts.admission, facts.settings, usual_length(facts)
    if seen is None or length is None or settings.kv_blocks is None or not settings.block_size:
        return None
    wanted = min(math.ceil(seen.demand_p95), settings.max_num_seqs or math.ceil(seen.demand_p95))
    now = max(round(seen.running_p95), 1)
    each = math.ceil(length / settings.block_size)
    to = math.ceil(wanted * each / rules["SPY-QUE-001"].threshold("kv_fit_ratio"))
    if to <= settings.kv_blocks or wanted <= now:
        return None
    before, after = predict_step(facts, now, rules), predict_step(facts, wanted, rules)
    usual = min(max(round(seen.demand_mean), now), wanted)
    gain = _gain_with_room(facts, usual, wanted, rules) or throughput_change(facts, now, wanted, (before, after), rules)
    price = _step_price(facts, after) or latency_price(now, wanted, before, after)
    growth = to / settings.kv_blocks
    return Advice(
        id="kv_blocks",
        setting="KV cache blocks",
        from_=settings.kv_blocks,
        to=to,
        from_origin="measured",
        # where the larger batch is predicted to bring no more tokens, less waiting is all that is promised
        expected=(gain, QUEUE_TIME) if gain.high is None or gain.high > 0 else (QUEUE_TIME,),
        pays=(
            ExpectedChange(metric="memory of the KV cache", direction="up", low=growth - 1.0, high=growth - 1.0,
                           origin="derived", note="in proportion to its blocks"),
            price,
        ),
        preconditions=(
            f"memory for {growth:.1f} times the present KV cache",
            f"{wanted} requests of {each} {'block' if each == 1 else 'blocks'} each, and a tenth to spare: the 95th "
            "percentile of running + waiting, up to the batch cap",
        ),
        test_arguments=f"--num-gpu-blocks-override {to}",
        refuted_if="requests wait as long as before",
    )  # fmt: skip


def _gain_with_room(facts: Facts, usual: int, wanted: int, rules: RuleBook) -> ExpectedChange | None:
    """Output tokens per second where nobody is preempted any more; None where nobody is now, or the step is not told.

    From a batch of all who asked for a place on average, to one of all who ever did.

    Who is preempted leaves the batch again, so that most steps hold fewer than run at most: what counts is the time
    that a token of output takes now. Recomputation gives its time back.
    """
    lost, decode = facts.recompute_window_share, facts.decode_steps.where(facts.decode_steps.counted)
    tokens = int(decode.generation_tokens.sum())
    least, then = predict_step(facts, usual, rules), predict_step(facts, wanted, rules)
    if not lost or least is None or then is None or tokens == 0:
        return None
    per_request = tokens / max(int(decode.generation_requests.sum()), 1)
    token_s_now = int(decode.duration_ns.sum()) / NS_PER_S / tokens
    arrivals = arrival_ratio(facts, rules)

    def gain(batch: int, step_s: float) -> float:
        shrunk = step_s / (batch * per_request) / token_s_now
        found = 1.0 / max(1.0 - lost - facts.shares.decode * (1.0 - shrunk), 0.1) - 1.0
        return max(found if arrivals is None else min(found, arrivals - 1.0), 0.0)

    return ExpectedChange(
        metric="output tokens/s", direction="up",
        low=gain(usual, least.seconds * (1.0 + least.band)), high=gain(wanted, then.seconds * (1.0 - then.band)),
        note=f"recomputation gone, and {usual} to {wanted} requests in a step; step time from {then.basis}",
    )  # fmt: skip


def _step_price(facts: Facts, then: StepPrediction | None) -> ExpectedChange | None:
    """What a larger batch costs a step where requests are preempted now; None where they are not.

    The time between tokens as clients see it holds their pauses as well, and these go.
    """
    if not facts.recompute_window_share or then is None or len(facts.decode_steps) == 0:
        return None
    now_s = float(np.median(facts.decode_steps.duration_ns)) / NS_PER_S
    low, high = (max(then.seconds * (1.0 + sign * then.band) / now_s - 1.0, 0.0) for sign in (-1, 1))
    return ExpectedChange(
        metric="decode step time", direction="up", low=low, high=high,
        note=f"from {format_seconds(now_s)} to about {format_seconds(then.seconds)}, from {then.basis}; requests that "
        "are preempted no more do not pause in their output, so that the mean time per token may fall",
    )  # fmt: skip


def _admit_fewer(facts: Facts, lost: float | None, rules: RuleBook) -> tuple[Advice, ...]:
    """Whole prompts first, where the engine admits by their first chunk; then a cap that the cache holds."""
    whole = reserve_whole_prompts(facts.settings)
    fewer = _smaller_batch(facts, lost, rules)
    return tuple(advice for advice in (whole, fewer) if advice is not None)


def reserve_whole_prompts(settings: EngineSettings) -> Advice | None:
    """Admit a prompt only where all of it fits; None where that is so, or not known."""
    if settings.reserve_full_prompt is not False:
        return None
    fewer = ExpectedChange(metric="preemptions", direction="down", note="of prompts that did not fit as a whole")
    return Advice(
        id="reserve_full_prompt",
        setting="scheduler_reserve_full_isl",
        from_="off",
        to="on",
        from_origin="measured",
        expected=(fewer,),
        pays=(ExpectedChange(metric="queue time", direction="up", note="requests wait outside instead of inside"),),
        preconditions=("the engine admits a prompt by its first chunk alone",),
        test_arguments="--scheduler-reserve-full-isl",
        refuted_if="vllm:num_preemptions rises as before",
    )


def _smaller_batch(facts: Facts, lost: float | None, rules: RuleBook) -> Advice | None:
    """A cap that lets in only as many as the cache holds to their end.

    None where that is not known or no cut, and where the smaller batch is predicted to bring no more than it loses.
    Without a prediction, or where what is lost is not known, fewer preemptions are all that is promised; and without
    one only where steps that get no shorter would lose no more than recomputation took.
    """
    cap, fits = facts.settings.max_num_seqs, kv_fit(facts, rules, PEAK_PERCENTILE)
    if cap is None or fits is None or not 1 <= fits < cap:
        return None
    gain = _gain_without_recompute(facts, fits, lost, rules) if lost is not None else None
    if gain is not None and (gain.high is None or gain.high <= 0):
        return None
    if gain is None and lost is not None and _loses_at_worst(facts, fits) > lost:
        return None
    return fewer_at_once(cap, fits, gain)


def _loses_at_worst(facts: Facts, fits: int) -> float:
    """Time that at most `fits` requests in a step would add, over the window, if no step got shorter by that."""
    decode = facts.decode_steps.where(facts.decode_steps.counted)
    if len(decode) == 0:
        return math.inf  # nothing tells how many run
    now = int(decode.generation_requests.sum()) / len(decode)
    return facts.shares.decode * (max(now / fits, 1.0) - 1.0)


def fewer_at_once(cap: int, fits: int, gain: ExpectedChange | None) -> Advice:
    """Lower `max_num_seqs` to what the cache holds."""
    fewer = ExpectedChange(metric="preemptions", direction="down", note="the cache holds all who run to their end")
    slower = ExpectedChange(
        metric="output tokens/s", direction="down", note="where steps of fewer requests are hardly shorter"
    )
    waits = ExpectedChange(metric="queue time", direction="up", note="requests wait outside instead of inside")
    return Advice(
        id="max_num_seqs_to_fit",
        setting="max_num_seqs",
        from_=cap,
        to=fits,
        from_origin="measured",
        expected=(gain,) if gain is not None else (fewer,),
        pays=(waits,) if gain is not None else (slower, waits),
        preconditions=("more KV memory does the same without a smaller batch",),
        test_arguments=f"--max-num-seqs {fits}",
        refuted_if="vllm:num_preemptions still rises, or output tokens per second fall",
    )


def _gain_without_recompute(facts: Facts, fits: int, lost: float, rules: RuleBook) -> ExpectedChange | None:
    """Output tokens per second with at most `fits` requests in a step and nothing computed again.

    Recomputation gives its time back; the same tokens take more steps where the batch was larger. None where the step
    of that size is not predicted.
    """
    decode = facts.decode_steps.where(facts.decode_steps.counted)
    then = predict_step(facts, fits, rules)
    tokens = int(decode.generation_tokens.sum())
    if then is None or tokens == 0:
        return None
    per_request = tokens / max(int(decode.generation_requests.sum()), 1)
    token_s_now = int(decode.duration_ns.sum()) / NS_PER_S / tokens

    def gain(step_s: float) -> float:
        slower = step_s / (fits * per_request) / token_s_now
        # at least as slow as now where the batch was no larger anyway
        return 1.0 / max(1.0 - lost + facts.shares.decode * (max(slower, 1.0) - 1.0), 0.1) - 1.0

    return ExpectedChange(
        metric="output tokens/s", direction="up",
        low=gain(then.seconds * (1.0 + then.band)), high=gain(then.seconds * (1.0 - then.band)),
        note=f"recomputation gone, decode steps of at most {fits} requests; step time from {then.basis}",
    )  # fmt: skip
