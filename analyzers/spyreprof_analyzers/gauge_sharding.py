"""Devices of an engine whose steps were not seen: how far a step, as gauges and counters tell it, is from its reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import ExpectedChange, Finding
from spyreprof.units import format_seconds, format_share
from spyreprof_analyzers.bounds import usable_peaks
from spyreprof_analyzers.host_advice import slow_settings
from spyreprof_analyzers.memory_reads import kv_bytes_per_token, weight_bytes
from spyreprof_analyzers.sharding import cite_sharding, fewer_devices, shard_advice

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.gauge_findings import GaugeContext

_AGAINST = "no engine step was seen: the step is the running requests over the tokens they got"


@dataclass(frozen=True, slots=True)
class StepByGauges:
    """A step as gauges tell it: `seconds` from one token of a request to its next, `floor_ratio` the least it needs.

    The floor is reading a device's weights and the cache in use once, over the step.
    """

    seconds: float
    floor_ratio: float


def step_by_gauges(context: GaugeContext, rules: RuleBook) -> StepByGauges | None:
    """Running requests over tokens per second; None without decodes enough, or a size or the peak missing."""
    state, settings, model = context.state, context.inputs.settings, context.inputs.model
    peak = usable_peaks(context.inputs.peaks, rules).usable.get("memory_bandwidth")
    rate, capacity = state.generation_tokens_per_s, settings.kv_capacity_tokens
    per_token = kv_bytes_per_token(model, settings)
    if peak is None or not rate or capacity is None or per_token is None or state.kv_usage_mean is None:
        return None
    if state.running_mean < 1 or settings.speculative_tokens:
        return None  # more than one token of a request in a step
    if (state.prompt_tokens_per_s or 0.0) > rate:
        return None  # steps are for prompts then
    weights = weight_bytes(model, state.running_mean)
    if weights is None:
        return None
    step_s = state.running_mean / rate
    reads = weights + state.kv_usage_mean * capacity * per_token
    return StepByGauges(step_s, reads / peak.value / step_s)


def over_sharded_by_gauges(context: GaugeContext) -> Finding | None:
    """The model would fit fewer devices, and a device reads for a small part of what a step takes."""
    rule, state, book = context.rules["SPY-TP-001"], context.state, context.book
    log = state.log
    longest = float((log.prompt_tokens + log.output_tokens).max()) if log is not None and len(log) else 0.0
    fits = fewer_devices(
        context.inputs.settings, context.inputs.model, state.kv_usage_p95, longest, rule.threshold("fit_ratio")
    )
    step = step_by_gauges(context, context.rules)
    if fits is None or step is None or step.floor_ratio >= rule.threshold("max_floor_ratio"):
        return None
    replicas = fits.now // fits.fewer
    price = ExpectedChange(
        metric="ITL", direction="up",
        note=f"each device reads {replicas:g} times the weights in a step; what communication gives back is not known",
    )  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if context.verdict.primary != "load_limited" else "low",
        title=rule.title,
        text=f"The model is divided among {fits.now} devices, and {fits.fewer} could hold it: a device needs "
        f"{format_share(step.floor_ratio)} of a step of {format_seconds(step.seconds)} to read its part of weights and "
        f"cache. {replicas} replicas would serve the same requests with less communication.",
        phase=None,
        share=None,
        evidence=(*cite_step(context, step), *cite_sharding(fits, book)),
        against=(*rule.false_positive_notes, _AGAINST),
        advice=(shard_advice(fits, replicas, price),),
    )


def settings_that_slow(context: GaugeContext) -> Finding | None:
    """Settings that are known to hold up the host, while a step takes many times what it reads."""
    rule = context.rules["SPY-HST-005"]
    step = step_by_gauges(context, context.rules)
    advice = slow_settings(context.inputs.settings, context.inputs.device_kind)
    if not advice or step is None or step.floor_ratio >= rule.threshold("max_floor_ratio"):
        return None
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="medium" if context.verdict.primary != "load_limited" else "low",
        title=rule.title,
        text=f"A step takes {format_seconds(step.seconds)}, of which reading weights and cache needs "
        f"{format_share(step.floor_ratio)}; the settings in force leave work to the host: "
        f"{', '.join(one.setting for one in advice)}.",
        phase=None,
        share=None,
        evidence=cite_step(context, step),
        against=(*rule.false_positive_notes, _AGAINST),
        advice=advice,
    )


def cite_step(context: GaugeContext, step: StepByGauges) -> tuple[str, ...]:
    """Write down the step that gauges tell of; the values are evidence ids."""
    return (
        context.book.add("engine.step_s", step.seconds, "s", "estimated", source="/metrics gauges and counters",
                         method="running requests over tokens generated per second"),
        context.book.add("engine.read_floor_ratio", step.floor_ratio, "ratio", "estimated",
                         source="model size, gauges, bandwidth peak",
                         method="reading one device's weights and cache once, over that step"),
    )  # fmt: skip
