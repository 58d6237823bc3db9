"""A verdict on an engine whose steps were not seen: from its gauges, counters, request times and settings.

Each class needs evidence of its own, so that a metric that is missing takes a class away and never puts another in its
place. What a step waits for is seen in no gauge: a resource is named only where the model's size and a peak say what
its steps must take at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import NotJudged, Verdict, Witness
from spyreprof.units import NS_PER_S, format_share
from spyreprof_analyzers.bounds import usable_peaks
from spyreprof_analyzers.front_end import front_end_binds
from spyreprof_analyzers.verdict import HEADLINES, SAYS_OF_THE_LOAD, steady_state_missing, undetermined

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, Confidence
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.gauge_state import GaugeState
    from spyreprof_analyzers.request_log import RequestTimes
    from spyreprof_analyzers.stall import Stall

NO_STEP = "no engine step was seen"
STEPS_OBTAIN = (
    "record an engine that annotates its steps (vLLM, SGLang), or mark them with `spyreprof_agent`; see "
    "`spyreprof doctor`"
)
METRICS_OBTAIN = "name the engine's page: record with `--metrics-url`, or attach with `--url`, http://HOST:PORT/metrics"
_SETTINGS_OBTAIN = (
    "vLLM does not export it: record the engine's own process, or export it as a label of a `scheduler_config_info` "
    "metric"
)
_BYTES = {"float64": 8.0, "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "float8_e4m3fn": 1.0}


@dataclass(frozen=True, slots=True)
class Said:
    """A class with its reason, the share of the window that it concerns, and how the headline says it."""

    primary: BoundClass
    reason: str
    share: float | None = None
    headline: str | None = None


def decide_by_gauges(
    state: GaugeState | None, inputs: AnalysisInputs, stall: Stall | None, rules: RuleBook, book: EvidenceBook
) -> Verdict:
    """Reach a verdict without steps, or abstain and say what is missing.

    Args:
        state: gauges and counters of the engine; None where they were not seen.
        inputs: of the engine, for settings, model and peaks.
        stall: a time in which requests waited and nothing was computed.
        rules: thresholds.
        book: takes the numbers that are cited.
    """
    if state is None:
        return undetermined(NO_STEP, (_missing_steps(inputs),), ())
    rule = rules["SPY-GEN-007"]
    if state.span_s < rule.threshold("min_span"):
        reason = f"{NO_STEP}, and the gauges tell of {state.span_s:.1f} s alone"
        return undetermined(reason, (_missing_steps(inputs),), _witnesses("undetermined", state, rules, book))
    if stall is not None and stall.share_of(state.window) >= rule.threshold("majority"):
        reason = "requests wait and nothing is computed: the engine does not get on with its work"
        return undetermined(reason, (_missing_steps(inputs),), _witnesses("undetermined", state, rules, book))
    said, unsteady = _class_of(state, inputs, rules), steady_state_missing(state.drift)
    if said.primary == "undetermined":
        missing = (_missing_steps(inputs), *_missing_metrics(state, inputs), *([unsteady] if unsteady else []))
        return undetermined(said.reason, missing, _witnesses("undetermined", state, rules, book))
    if unsteady is not None and said.primary in SAYS_OF_THE_LOAD:
        missing = (unsteady, _missing_steps(inputs))
        return undetermined(unsteady.reason, missing, _witnesses("undetermined", state, rules, book))
    views = _witnesses(said.primary, state, rules, book)
    confidence, reasons = _confidence(state, inputs, views, rules)
    headline = said.headline or HEADLINES[said.primary].format(read="weights")
    share = f" ({format_share(said.share)} of the time)" if said.share is not None else ""
    return Verdict(
        primary=said.primary,
        confidence=confidence,
        secondary=(),
        headline=f"{headline}{share}.",
        reason=f"{said.reason}; from gauges and counters alone, without engine steps",
        witnesses=views,
        confidence_reasons=reasons,
    )


def _class_of(state: GaugeState, inputs: AnalysisInputs, rules: RuleBook) -> Said:
    most = rules["SPY-GEN-007"].threshold("majority")
    answers = (
        _kv(state, rules),
        _queue(state, rules),
        _in_front(state, rules),
        _idle(state, rules),
        _by_floor(state, inputs, rules),
        _prompts_fill_steps(state, inputs, rules),
    )
    for answer in answers:
        if answer is not None:
            return answer
    if _clients_have_more(state, rules) and state.waits_share < most:
        return Said(
            "undetermined", "clients hold more requests in flight than the engine does, and no process shows why"
        )
    if state.waits_share < most:
        return Said("undetermined", f"{NO_STEP}, and gauges do not show what running requests wait for{_hint(state)}")
    if state.kv_usage_mean is None:
        return Said("undetermined", "requests wait, and the use of the KV cache was not seen")
    if state.below_cap_share is None:
        return Said("undetermined", "requests wait, and the batch cap is not known")
    if state.full_share >= most and state.below_cap_share < most:
        return Said("undetermined", "requests wait with both the batch at its cap and the KV cache full")
    if state.progress is None:
        return Said("undetermined", "requests wait, and no counter tells whether the engine gets on with its work")
    return Said("undetermined", f"requests wait below the batch cap with room in the KV cache, and {NO_STEP}")


def _kv(state: GaugeState, rules: RuleBook) -> Said | None:
    """Requests wait below the cap with a full KV cache, or it runs out so that running requests are preempted."""
    most = rules["SPY-GEN-007"].threshold("majority")
    if state.waits_share < most:
        return None
    if state.full_below_cap_share >= most:
        reason = "requests waited below the batch cap with the KV cache full"
        return Said("kv_capacity_bound", reason, state.full_below_cap_share)
    if state.preempts and state.full_share >= most:
        reason = "requests waited with the KV cache full, and running ones were preempted all the time"
        return Said("kv_capacity_bound", reason, state.full_share)
    if state.preempts and (state.below_cap_share or 0.0) >= most:
        reason = "requests waited below the batch cap, and running ones were preempted all the time"
        return Said("kv_capacity_bound", reason, state.below_cap_share)
    if state.below_cap_share is None and state.full_share >= most and state.running_varies:
        reason = "requests waited with the KV cache full, and the number that ran went up and down as under no cap"
        return Said("kv_capacity_bound", reason, state.full_share)
    return None


def _queue(state: GaugeState, rules: RuleBook) -> Said | None:
    if state.at_cap_with_room_share < rules["SPY-GEN-007"].threshold("majority") or not state.progress:
        return None
    reason = "requests waited with the batch at its cap and room in the KV cache"
    return Said("queue_bound", reason, state.at_cap_with_room_share)


def _in_front(state: GaugeState, rules: RuleBook) -> Said | None:
    """Nobody waits in the engine, and clients wait outside of it, with a process there at the limit of one core."""
    rule, seen = rules["SPY-GEN-007"], state.front_end
    if state.waits_share > rule.threshold("max_waits_share") or not _clients_have_more(state, rules):
        return None
    if seen is None or not front_end_binds(seen, rules) or seen.outside_share < rule.threshold("majority"):
        return None
    return Said(
        "host_bound",
        f"{format_share(seen.outside_share)} of the time to the first token passes outside of the engine, in which "
        "nobody waits, and a process stands at the limit of one core",
        None,
        "The host binds: clients wait for the process in front of the engine",
    )


def _idle(state: GaugeState, rules: RuleBook) -> Said | None:
    """Nobody in the engine for most of the time; where clients have requests on their way, it is no want of load."""
    rule = rules["SPY-GEN-007"]
    if state.idle_share <= rule.threshold("majority") or state.waits_share > rule.threshold("max_waits_share"):
        return None
    if _clients_have_more(state, rules):
        return None
    return Said("load_limited", "no request in the engine for most of the time", state.idle_share)


def _clients_have_more(state: GaugeState, rules: RuleBook) -> bool:
    """Do clients hold more requests in flight than the engine does? By Little's law, from their end-to-end times."""
    # without arrivals it may be the log of other engines too
    if state.log is None or state.log.arrival_ns is None or state.span_s <= 0:
        return False
    rule, in_flight = rules["SPY-GEN-007"], float(state.log.e2e_ns.sum()) / NS_PER_S / state.span_s
    seen = state.running_mean + state.waiting_mean
    return in_flight > rule.threshold("max_in_flight_ratio") * seen + rule.threshold("in_flight_slack")


def _by_floor(state: GaugeState, inputs: AnalysisInputs, rules: RuleBook) -> Said | None:
    """What the work needs at least, where the size of the model and a peak tell; only where nobody waits."""
    if state.waits_share > rules["SPY-GEN-007"].threshold("max_waits_share") or _clients_have_more(state, rules):
        return None
    parameters, peaks = inputs.model, usable_peaks(inputs.peaks, rules)
    if parameters.parameter_bytes is None:
        return None
    devices = max(inputs.settings.tensor_parallel or 1, 1) * max(inputs.settings.pipeline_parallel or 1, 1)
    size = parameters.active_parameter_bytes or parameters.parameter_bytes
    # it may be the size of one device's part already: the smaller answer is the one that cannot mislead
    read = (size - (parameters.embedding_bytes or 0)) / devices
    if read <= 0:
        return None
    highest = rules["SPY-GEN-003"].threshold("max_floor_ratio")
    bandwidth, compute = peaks.usable.get("memory_bandwidth"), peaks.usable.get("compute")
    if bandwidth is not None and state.itl_mean_s and _decodes(state.times):
        floor = read / bandwidth.value / state.itl_mean_s
        if rules["SPY-DEC-001"].threshold("min_weight_floor_ratio") <= floor <= highest:
            reason = f"reading the weights once takes {format_share(floor)} of the mean gap between tokens"
            return Said("decode_bandwidth_bound", reason, None)
    element = _BYTES.get(parameters.dtype or "")
    if compute is not None and element is not None and state.prompt_tokens_per_s:
        floor = 2.0 * read / element * state.prompt_tokens_per_s / compute.value
        if rules["SPY-GEN-003"].threshold("high_use") <= floor <= highest:
            reason = f"the arithmetic of the prompts alone takes {format_share(floor)} of the time at the compute peak"
            return Said("prefill_bound", reason, floor)
    return None


def _decodes(times: RequestTimes | None) -> bool:
    return times is not None and times.decode_s > times.prefill_s + (times.queue_s or 0.0)


def _prompts_fill_steps(state: GaugeState, inputs: AnalysisInputs, rules: RuleBook) -> Said | None:
    """Requests wait below the cap with room in the KV cache and nobody is preempted: what is left is the token budget.

    A running request makes a token per step, which tells how many steps there are, and so how many prompt tokens a
    step holds.
    """
    rule, budget = rules["SPY-GEN-007"], inputs.settings.max_num_batched_tokens
    if budget is None or state.preemptions is None or state.preempts or not state.generation_tokens_per_s:
        return None
    if state.room_below_cap_share < rule.threshold("majority") or not state.prompt_tokens_per_s:
        return None
    per_step = state.prompt_tokens_per_s * state.running_mean / state.generation_tokens_per_s
    if per_step < rule.threshold("min_budget_ratio") * budget:
        return None
    return Said(
        "prefill_bound",
        f"requests wait below the batch cap with room in the KV cache, and steps hold about {per_step:.0f} prompt "
        f"tokens at a budget of {budget}",
        state.room_below_cap_share,
        "Prefill binds: prompts fill the token budget of the steps",
    )


def _hint(state: GaugeState) -> str:
    """Which side the time of requests goes to, where their times tell."""
    times = state.times
    if times is None or times.total_s <= 0 or times.queue_s is None:
        return ""
    parts = {"the queue": times.queue_s, "prefill": times.prefill_s, "decode": times.decode_s}
    name = max(parts, key=lambda part: parts[part])
    return f"; {format_share(parts[name] / times.total_s)} of request time goes to {name}"


def _missing_steps(inputs: AnalysisInputs) -> NotJudged:
    seen = not (inputs.counters.empty and inputs.usage.empty)
    return NotJudged(topic="what binds the engine" if seen else "everything", reason=NO_STEP, obtain=STEPS_OBTAIN)


def _missing_metrics(state: GaugeState, inputs: AnalysisInputs) -> tuple[NotJudged, ...]:
    """What gauges and settings would have told, where they are lacking."""
    found = []
    if state.kv_usage_mean is None:
        reason = "vllm:kv_cache_usage_perc was not seen"
        found.append(NotJudged(topic="whether the KV cache holds requests back", reason=reason, obtain=METRICS_OBTAIN))
    if inputs.settings.max_num_seqs is None and state.waits_share > 0:
        reason = "max_num_seqs is not known"
        found.append(NotJudged(topic="whether the batch cap binds", reason=reason, obtain=_SETTINGS_OBTAIN))
    if state.preemptions is None and state.waits_share > 0:
        reason = "vllm:num_preemptions was not seen"
        found.append(NotJudged(topic="whether requests are preempted", reason=reason, obtain=METRICS_OBTAIN))
    if state.times is None:
        reason = "the histograms of queue, prefill and decode time were not seen"
        found.append(NotJudged(topic="where requests spend their time", reason=reason, obtain=METRICS_OBTAIN))
    return tuple(found)


def _witnesses(primary: BoundClass, state: GaugeState, rules: RuleBook, book: EvidenceBook) -> tuple[Witness, ...]:
    """The engine by its gauges, and its requests by their times; no trace was taken."""
    engine = Witness(
        name="engine",
        says=None if primary == "undetermined" else primary,
        agrees=None if primary == "undetermined" else True,
        text=f"requests waited for {format_share(state.waits_share)} of the time, none was in the engine for "
        f"{format_share(state.idle_share)}",
        evidence=cite_gauges(state, book),
    )
    trace = Witness(name="device_trace", says=None, agrees=None, text="the recording holds no profiled step")
    return (trace, engine, _requests(primary, state, rules, book))


def cite_gauges(state: GaugeState, book: EvidenceBook) -> tuple[str, ...]:
    """Write down the gauges in the judged window; the values are their evidence ids."""
    method = "mean over the window of the gauge's polls"
    cited = [
        book.add("gauges.running_mean", state.running_mean, "requests", "measured", source="/metrics gauges",
                 method=method, n=state.known),
        book.add("gauges.waiting_mean", state.waiting_mean, "requests", "measured", source="/metrics gauges",
                 method=method, n=state.known),
        book.add("gauges.waits_share", state.waits_share, "ratio", "measured", source="/metrics gauges",
                 method="time with a waiting request over the window", n=state.known),
        book.add("gauges.idle_share", state.idle_share, "ratio", "measured", source="/metrics gauges",
                 method="time without a request in the engine over the window", n=state.known),
    ]  # fmt: skip
    if state.kv_usage_mean is not None:
        cited.append(
            book.add("gauges.kv_usage_mean", state.kv_usage_mean, "ratio", "measured", source="/metrics gauges",
                     method=method, n=state.known)
        )  # fmt: skip
    if state.preemptions is not None:
        cited.append(
            book.add("gauges.preemptions", state.preemptions, "preemptions", "measured", source="/metrics counters",
                     method="rise of vllm:num_preemptions over the window")
        )  # fmt: skip
    return tuple(cited)


def _requests(primary: BoundClass, state: GaugeState, rules: RuleBook, book: EvidenceBook) -> Witness:
    times = state.times
    if times is None or times.total_s <= 0:
        return Witness(name="requests", says=None, agrees=None, text="no request log and no histograms")
    parts = {"queue": times.queue_s, "prefill": times.prefill_s, "decode": times.decode_s}
    cited = tuple(
        book.add(f"requests.{name}_share", seconds / times.total_s, "ratio", "measured", n=times.requests,
                 source=times.source, method=f"{name} time over all time of finished requests")
        for name, seconds in parts.items() if seconds is not None
    )  # fmt: skip
    text = ", ".join(
        f"{name} {format_share(seconds / times.total_s)} of request time"
        for name, seconds in parts.items()
        if seconds is not None
    )
    queued = times.queue_s is not None and times.queue_s >= times.total_s / 2
    says: BoundClass | None = "queue_bound" if queued else "decode_bandwidth_bound" if _decodes(times) else None
    if primary == "undetermined" or says is None or primary in ("load_limited", "host_bound"):
        return Witness(name="requests", says=says, agrees=None, text=text, evidence=cited)
    waits = primary in ("queue_bound", "kv_capacity_bound")
    if primary == "prefill_bound" and queued:
        return Witness(
            name="requests", says=says, agrees=None, evidence=cited,
            text=f"{text}: requests wait, and cannot tell what for",
        )  # fmt: skip
    agrees: bool | None = queued if waits else says == primary
    if primary == "kv_capacity_bound" and not queued:
        agrees = None  # preempted requests wait inside, where their time counts as decode
    return Witness(name="requests", says=says, agrees=agrees, text=text, evidence=cited)


def _confidence(
    state: GaugeState, inputs: AnalysisInputs, views: tuple[Witness, ...], rules: RuleBook
) -> tuple[Confidence, tuple[str, ...]]:
    """Medium needs request times that agree, a minute, and enough finished requests; without steps nothing is high."""
    rule = rules["SPY-GEN-007"]
    agree = [view.name.replace("_", " ") for view in views if view.agrees]
    dissent = [view.name.replace("_", " ") for view in views if view.agrees is False]
    lowering = []
    if "requests" not in agree:
        lowering.append("request times do not confirm it")
    if dissent:
        lowering.append(f"{', '.join(dissent)} dissents")
    if state.span_s < rule.threshold("min_span_medium"):
        lowering.append(f"only {state.span_s:.0f} s of gauges")
    if state.finished is None:
        lowering.append("the number of finished requests is unknown")
    elif state.finished < rules["SPY-GEN-001"].threshold("min_requests"):
        lowering.append(f"only {state.finished} requests in the window")
    if state.known < rule.threshold("min_known_ratio") * state.moments:
        lowering.append("the metrics page did not answer for part of the time")
    if not inputs.finished:
        lowering.append("the recording was not finished")
    if state.drift is not None:
        lowering.append(state.drift.said)
    reasons = (f"witnesses that agree: {', '.join(agree)}", "no engine step was seen: medium at most", *lowering)
    return ("low" if lowering else "medium"), reasons
