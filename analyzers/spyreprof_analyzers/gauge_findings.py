"""Findings on an engine whose steps were not seen: who waits and for what, by gauges, counters and settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.advice import QUEUE_TIME, length_of
from spyreprof_analyzers.arbitration import arbitrate
from spyreprof_analyzers.context import NOTHING_AGAINST
from spyreprof_analyzers.front_end import describe_outside
from spyreprof_analyzers.gauge_sharding import over_sharded_by_gauges, settings_that_slow
from spyreprof_analyzers.gauge_verdict import cite_gauges
from spyreprof_analyzers.kv_cache import (
    PEAK_PERCENTILE,
    cite_per_request,
    fewer_at_once,
    reserve_whole_prompts,
    usual_pressure,
)
from spyreprof_analyzers.kv_pressure import Preemptions, preempted_requests
from spyreprof_analyzers.kv_room import Shortage, longest, more_room, needed_factor
from spyreprof_analyzers.output_tokens import outputs_without_steps
from spyreprof_analyzers.stall import stall_finding
from spyreprof_analyzers.unservable import unservable

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyreprof.findings import Verdict
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.gauge_state import GaugeState
    from spyreprof_analyzers.stall import Stall

_NO_STEPS = "no engine step was seen: what a larger batch or cache would cost a step is not known"
_ORDER = {"high": 0, "medium": 1, "low": 2, "info": 3}


@dataclass(frozen=True, slots=True)
class GaugeContext:
    """What every finding without steps is concluded from, and where numbers are written down."""

    state: GaugeState
    stall: Stall | None
    inputs: AnalysisInputs
    verdict: Verdict
    rules: RuleBook
    book: EvidenceBook


def gauge_findings(context: GaugeContext) -> tuple[Finding, ...]:
    """All findings, most severe and largest first, with the advice that may stand together."""
    found = [finding for conclude in FINDINGS if (finding := conclude(context)) is not None]
    ranked = sorted(found, key=lambda finding: (_ORDER[finding.severity], -(finding.share or 0.0)))
    return arbitrate(ranked, context.verdict.primary, context.rules)


def at_cap(context: GaugeContext) -> Finding | None:
    """Requests waited with the batch at its cap and room in the KV cache."""
    state, rule = context.state, context.rules["SPY-QUE-001"]
    cap, share = context.inputs.settings.max_num_seqs, context.state.at_cap_with_room_share
    if context.verdict.primary != "queue_bound" or cap is None or share < rule.materiality_share:
        return None
    evidence = [
        *cite_gauges(state, context.book),
        context.book.add("queue.cap", cap, "requests", "measured", source="engine settings", method="the cap in force",
                         window="settings"),
        context.book.add("queue.at_cap_share", share, "ratio", "measured", source="/metrics gauges", n=state.known,
                         method="time with a waiting request, the batch at its cap and room in the KV cache"),
    ]  # fmt: skip
    advice = _larger_batch(context, cap)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=f"For {format_share(share)} of the time requests waited (95th percentile {state.waiting_p95:.0f}) while "
        f"the batch stood at its cap of {cap} and the KV cache was {format_share(state.kv_usage_p95 or 0.0)} full "
        "(95th percentile).",
        phase=None,
        share=share,
        evidence=tuple(evidence),
        against=(*rule.false_positive_notes, _NO_STEPS),
        advice=(advice,) if advice is not None else (),
    )


def _larger_batch(context: GaugeContext, cap: int) -> Advice | None:
    """The cap that memory and demand allow; None where that is no raise. Latency is not predicted without steps."""
    state, ratio = context.state, context.rules["SPY-QUE-001"].threshold("kv_fit_ratio")
    fits = _kv_fit(context, 90)
    if fits is None:
        return None
    limits = [
        ("KV capacity", fits, f"{ratio:g} x the KV cache over what one request holds of it"),
        ("demand", math.ceil(state.demand_p95), "95th percentile of running + waiting requests"),
    ]
    if context.inputs.settings.state_blocks is not None:
        blocks = context.inputs.settings.state_blocks
        limits.append(("state blocks", blocks, "one for each running request of a hybrid model"))
    binding, to, _ = min(limits, key=lambda limit: limit[1])
    if to <= cap:
        return None
    for name, value, method in limits:
        metric = f"max_num_seqs.by_{name.replace(' ', '_').lower()}"
        context.book.add(metric, value, "requests", "derived", method=method, source="/metrics gauges and settings")
    return Advice(
        id="max_num_seqs",
        setting="max_num_seqs",
        from_=cap,
        to=to,
        from_origin="measured",
        expected=(
            ExpectedChange(metric="output tokens/s", direction="up", high=to / cap - 1.0,
                           note="an upper limit from batch growth; nothing here tells the step time"),
            QUEUE_TIME,
        ),
        pays=(ExpectedChange(metric="ITL", direction="up", high=to / cap - 1.0,
                             note="at most in proportion to the batch; nothing here tells the step time"),),
        preconditions=(
            f"the KV cache fits {fits} requests as large as those that ran",
            f"the value is set by {binding}",
            "a latency target may allow less: record engine steps to have it predicted",
        ),
        test_arguments=f"--max-num-seqs {to}",
        refuted_if="output tokens per second do not rise, or requests still wait with the KV cache under 80 %",
    )  # fmt: skip


def _kv_fit(context: GaugeContext, percentile: float) -> int | None:
    """Requests that the KV cache holds to their end: by logged lengths, else by what running ones hold of it."""
    state, ratio = context.state, context.rules["SPY-QUE-001"].threshold("kv_fit_ratio")
    tokens, length = context.inputs.settings.kv_capacity_tokens, length_of(state.log, percentile)
    if tokens is not None and length is not None:
        return math.floor(ratio * tokens / length)
    return math.floor(ratio / state.resident_ratio) if state.resident_ratio is not None else None


def full(context: GaugeContext) -> Finding | None:
    """Requests waited for blocks of the KV cache."""
    state, rule, book = context.state, context.rules["SPY-KVC-001"], context.book
    if context.verdict.primary != "kv_capacity_bound":
        return None
    share = max(state.full_share, state.below_cap_share or 0.0) if state.preempts else state.full_share
    evidence = list(cite_gauges(state, book))
    if state.kv_usage_p95 is not None:
        evidence.append(
            book.add("queue.kv_usage_p95", state.kv_usage_p95, "ratio", "measured", source="/metrics gauges",
                     method="95th percentile over time", n=state.known)
        )  # fmt: skip
    factor = needed_factor(state.demand_p95, state.resident_ratio)
    if factor is not None:
        evidence.append(
            book.add("kv_cache.needed_factor", factor, "ratio", "derived", source="/metrics gauges",
                     method="95th percentile of running + waiting, times the share of the cache that one running "
                     "request holds")
        )  # fmt: skip
    text = f"For {format_share(share)} of the time requests waited (95th percentile {state.waiting_p95:.0f})"
    if state.kv_usage_p95 is not None:
        text += f" with the KV cache {format_share(state.kv_usage_p95)} full (95th percentile)"
    against = list(rule.false_positive_notes)
    if state.below_cap_share is None:
        against.append("the batch cap is not known, and may bind too")
    inputs = context.inputs
    lack = Shortage(factor, inputs.settings, inputs.model, inputs.device_kind, *longest(state.log))
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=f"{text}. Shorter outputs, or fewer bytes per cached token, make room.",
        phase=None,
        share=share,
        evidence=tuple(evidence),
        against=tuple(against),
        advice=more_room(lack, context.rules),
    )


def preempted(context: GaugeContext) -> Finding | None:
    """Running requests lost their blocks all through the window; what that cost is not known without steps."""
    state, rule = context.state, context.rules["SPY-KVC-002"]
    if state.preemptions is None or not state.preempts:
        return None
    each = preempted_requests(context.inputs.requests, context.inputs.counters, state.window)
    again_and_again = each is not None and each.p99 >= rule.threshold("min_preemptions_p99")
    if not again_and_again and usual_pressure(state.preemptions, each, state.finished, context.rules):
        return None
    cap, fits = context.inputs.settings.max_num_seqs, _kv_fit(context, PEAK_PERCENTILE)
    whole = reserve_whole_prompts(context.inputs.settings)
    fewer = fewer_at_once(cap, fits, None) if cap is not None and fits is not None and 1 <= fits < cap else None
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium",
        title=rule.title,
        text=f"{state.preemptions} times a running request lost its KV blocks to others, all through the window. What "
        "it cost to compute them again is not known.",
        phase=None,
        share=None,
        evidence=(
            *cite_gauges(state, context.book),
            *cite_per_request(Preemptions(state.preemptions, None, None, each), context.book),
        ),
        against=(*rule.false_positive_notes, _NO_STEPS),
        advice=tuple(advice for advice in (whole, fewer) if advice is not None),
    )


def prompts_fill_steps(context: GaugeContext) -> Finding | None:
    """Prompts fill the token budget while an engine that admits by first chunks fills its cache."""
    state, rule = context.state, context.rules["SPY-PRE-001"]
    whole = reserve_whole_prompts(context.inputs.settings)
    if context.verdict.primary != "prefill_bound" or state.waits_share < rule.materiality_share:
        return None
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium",
        title=rule.title,
        text=f"The engine computes {state.prompt_tokens_per_s or 0.0:.0f} prompt tokens a second and makes "
        f"{state.generation_tokens_per_s or 0.0:.0f}: {context.verdict.reason}.",
        phase="prefill",
        share=state.waits_share,
        evidence=cite_gauges(state, context.book),
        against=(*rule.false_positive_notes, _NO_STEPS),
        advice=(whole,) if whole is not None else (),
    )


def load_limited(context: GaugeContext) -> Finding | None:
    """Nobody was in the engine."""
    state, rule = context.state, context.rules["SPY-LOD-001"]
    if context.verdict.primary != "load_limited":
        return None
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="info",
        title=rule.title,
        text=f"No request was in the engine for {format_share(state.idle_share)} of the time.",
        phase=None,
        share=state.idle_share,
        evidence=cite_gauges(state, context.book),
        against=rule.false_positive_notes or (NOTHING_AGAINST,),
    )


def outside(context: GaugeContext) -> Finding | None:
    """Clients wait outside of the engine."""
    seen, rules = context.state.front_end, context.rules
    if seen is None or seen.outside_share < rules["SPY-HST-004"].threshold("min_outside_share"):
        return None
    severity = "medium" if context.verdict.primary == "host_bound" else "low"
    return describe_outside(seen, severity, None, context.inputs.settings, rules, context.book)  # type: ignore[arg-type]


def cannot_serve(context: GaugeContext) -> Finding | None:
    """Settings that do not go together."""
    inputs = context.inputs
    return unservable(inputs.settings, inputs.model, inputs.device_kind, context.rules, context.book)


def stands_still(context: GaugeContext) -> Finding | None:
    """Requests wait and nothing is computed."""
    length_ns = context.inputs.recording_end_ns - context.inputs.recording_start_ns
    return stall_finding(context.stall, context.rules, context.book, length_ns)


FINDINGS: tuple[Callable[[GaugeContext], Finding | None], ...] = (
    cannot_serve, stands_still, at_cap, full, preempted, prompts_fill_steps, load_limited, outside,
    outputs_without_steps, over_sharded_by_gauges, settings_that_slow,
)  # fmt: skip
