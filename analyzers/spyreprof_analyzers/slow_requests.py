"""What dominates the p99: what the slowest requests spend their time on that the median ones do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from spyreprof.findings import Finding, SteadyWindow
from spyreprof.request_figures import TailLatency, TailPart
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.request_log import FINISHED, in_window, marked_requests, request_log, time_per_output_token_ns
from spyreprof_analyzers.request_time import request_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.findings import LatencySummary, Severity
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.request_figures import TailPartName
    from spyreprof.rules import Rule, RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.facts import Facts
    from spyreprof_analyzers.request_log import RequestLog
    from spyreprof_analyzers.request_time import Parts, RequestTime

    Metric = Literal["ttft", "itl", "itl_max", "e2e"]

TOPIC = "what dominates the 99th percentile of latencies"
PARTS: tuple[TailPartName, ...] = (
    "queue", "prefill", "decode", "interference", "preemption", "compile", "between_steps", "front_end", "unknown",
)  # fmt: skip
IN_WORDS: dict[TailPartName, str] = {
    "queue": "the queue",
    "prefill": "prefill",
    "decode": "decode",
    "interference": "prompts of others between their tokens",
    "preemption": "preemption, which makes them wait and be computed again",
    "compile": "compilation",
    "between_steps": "time in which no engine step ran",
    "front_end": "the time outside the engine, at its front end or on the network",
    "unknown": "time that nothing here takes apart",
}
NAMES: dict[Metric, str] = {
    "ttft": "time to first token",
    "itl": "mean gap between tokens",
    "itl_max": "largest gap between tokens",
    "e2e": "end-to-end latency",
}


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Requests by one latency. `per` divides their parts: tokens for a mean gap, else 1."""

    metric: Metric
    value_ns: NDArray[np.float64]
    per: NDArray[np.float64]


def tail_latencies(
    inputs: AnalysisInputs,
    everything: EngineSteps,
    facts: Facts,
    latencies: tuple[LatencySummary, ...],
    rules: RuleBook,
    book: EvidenceBook,
) -> tuple[TailLatency, ...]:
    """Compare the slowest requests with the median ones, latency by latency; without enough of them say so.

    Args:
        inputs: the request table, counters, compilations and pauses.
        everything: all steps of the judged engine.
        facts: window and number of engines.
        latencies: those with a target lend it to the comparison.
        rules: thresholds.
        book: takes what is left open.
    """
    times = request_time(*_logs(inputs), everything, inputs, facts.engines, rules)
    if times is None:
        _leave_open(inputs, book)
        return ()
    return _compared(times, facts.window, latencies, rules, book)


def without_steps(
    inputs: AnalysisInputs, window: SteadyWindow | None, rules: RuleBook, book: EvidenceBook
) -> tuple[tuple[TailLatency, ...], Finding | None]:
    """The same where no engine step was seen: the program's marks still tell queue from prefill, and nothing else does.

    Args:
        inputs: the request table, counters and pauses.
        window: a steady stretch; None for the whole recording.
        rules: thresholds.
        book: takes what is left open.
    """
    times = request_time(*_logs(inputs), None, inputs, 1, rules)
    if times is None or "queue" in times.untold:
        _leave_open(inputs, book)
        return (), None
    if window is None:
        start, end = inputs.recording_start_ns, inputs.recording_end_ns
        window = SteadyWindow(start_ns=start, end_ns=end + 1, share_of_recording=1.0, basis="the whole recording")
    tails = _compared(times, window, (), rules, book)
    return tails, _finding(tails, rules, book)


def _logs(inputs: AnalysisInputs) -> tuple[RequestLog | None, RequestLog | None]:
    """A client's log and the program's marks."""
    marked, log = marked_requests(inputs.requests), request_log(inputs.requests)
    return (log if log is not None and (marked is None or log.source != marked.source) else None), marked


def _compared(
    times: RequestTime,
    window: SteadyWindow,
    latencies: tuple[LatencySummary, ...],
    rules: RuleBook,
    book: EvidenceBook,
) -> tuple[TailLatency, ...]:
    rule = rules["SPY-P99-001"]
    chosen = np.flatnonzero(in_window(times.log, window) & times.clear)
    least = int(rule.threshold("min_requests"))
    if len(chosen) < least:
        book.leave_open(
            TOPIC,
            f"{len(chosen)} requests of the steady state can be taken apart; the slowest hundredth needs {least}",
            "let that many arrive in the steady state: those that were there before it are not compared",
        )
        return ()
    later = np.where(times.log.output_tokens > 1, times.log.output_tokens - 1, np.nan)
    ones = np.ones(len(times.log))
    found = []
    for ranking in (
        _Ranking("ttft", times.log.ttft_ns.astype(np.float64), ones),
        _Ranking("itl", time_per_output_token_ns(times.log), later),
        _Ranking("itl_max", times.log.itl_max_ns, ones),
        _Ranking("e2e", times.log.e2e_ns.astype(np.float64), ones),
    ):
        known = chosen[~np.isnan(ranking.value_ns[chosen])]
        if len(known) >= least and not (ranking.metric == "itl_max" and times.timeline is None):
            found.append(_with_target(_tail(ranking, known, times, rule), latencies))
    return tuple(found)


def _leave_open(inputs: AnalysisInputs, book: EvidenceBook) -> None:
    """Say that single requests, or engine steps beside them, are missing, and how to get them."""
    obtain = "run a load generator that writes its result on this machine, or mark requests with `spyreprof_agent`"
    if len(inputs.requests) and inputs.requests["arrival_ns"].notna().any():
        reason, obtain = "no engine step was seen beside the requests", "record an engine whose steps are seen"
    elif (inputs.counters["name"] == FINISHED).any():
        reason = "the engine's histograms are sums over all requests, and no log tells of single ones on this clock"
    else:
        reason = "no log tells of single requests on this recording's clock"
    book.leave_open(TOPIC, reason, obtain)


def _tail(ranking: _Ranking, known: NDArray[np.int64], times: RequestTime, rule: Rule) -> TailLatency:
    count = len(known)
    order = times.log.in_order(ranking.value_ns)
    ranked = order[np.isin(order, known)]
    slow = ranked[-max(int(rule.threshold("min_slowest")), -(-count // 100)) :]
    middle = ranked[count * 2 // 5 : -(-count * 3 // 5)]
    parts_of = {at: _parts(ranking.metric, times, group, rule) for at, group in (("slow", slow), ("middle", middle))}
    total = {at: sum(int(values.sum()) for values in parts.values()) for at, parts in parts_of.items()}
    untold = times.untold - {name for parts in parts_of.values() for name in parts if parts[name].any()}
    rows = []
    for name in PARTS:
        if name in untold:
            rows.append(TailPart(id=name, slowest_ns=None, slowest_share=None, median_ns=None, median_share=None,
                                 excess_s=None))  # fmt: skip
            continue
        ns = {at: int(parts[name].sum()) if name in parts else 0 for at, parts in parts_of.items()}
        mean = {
            at: float((parts_of[at][name] / ranking.per[group]).mean()) if name in parts_of[at] else 0.0
            for at, group in (("slow", slow), ("middle", middle))
        }
        rows.append(
            TailPart(
                id=name,
                slowest_ns=ns["slow"],
                slowest_share=ns["slow"] / max(total["slow"], 1),
                median_ns=ns["middle"],
                median_share=ns["middle"] / max(total["middle"], 1),
                excess_s=(mean["slow"] - mean["middle"]) / NS_PER_S,
            )
        )
    means = {at: float(ranking.value_ns[group].mean()) / NS_PER_S for at, group in (("slow", slow), ("middle", middle))}
    log = times.log
    tokens = [
        None if np.isnan(counts[group]).any() else float(counts[group].mean())
        for counts in (log.prompt_tokens, log.output_tokens)
        for group in (slow, middle)
    ]
    dominant, share, reason = _dominant(rows, means["slow"], means["middle"], rule)
    if dominant in ("decode", "prefill"):
        slow_tokens, median_tokens = tokens[2:] if dominant == "decode" else tokens[:2]
        reason += _why(dominant, ranking.metric, slow_tokens, median_tokens, rule)
    return TailLatency(
        metric=ranking.metric,
        requests=count,
        slowest=len(slow),
        median=len(middle),
        slowest_mean_s=means["slow"],
        median_mean_s=means["middle"],
        slowest_ns=total["slow"],
        median_ns=total["middle"],
        parts=tuple(rows),
        dominant=dominant,
        dominant_share=share,
        slowest_prompt_tokens=tokens[0],
        median_prompt_tokens=tokens[1],
        slowest_output_tokens=tokens[2],
        median_output_tokens=tokens[3],
        reason=reason,
        source=log.source,
        notes=times.notes,
    )


def _parts(metric: Metric, times: RequestTime, group: NDArray[np.int64], rule: Rule) -> Parts:
    """Parts of the time that a latency is about, of some requests."""
    if metric == "itl_max":
        return _of_largest_gap(times, group, rule.threshold("max_gap_mismatch"))
    stages = {"ttft": (times.first,), "itl": (times.later,), "e2e": (times.first, times.later)}[metric]
    parts: Parts = {}
    for stage in stages:
        for name, values in stage.items():
            parts[name] = parts[name] + values[group] if name in parts else values[group]
    return parts


def _of_largest_gap(times: RequestTime, group: NDArray[np.int64], tolerance: float) -> Parts:
    """What the engine did in the longest stretch between two steps that generate, of each request.

    Where that stretch is not about as long as the largest gap that was seen, the gap came from elsewhere, or tokens
    come several at once: then nothing is known of it.
    """
    log, timeline = times.log, times.timeline
    if timeline is None or log.arrival_ns is None:
        raise ValueError("the largest gap was asked for without steps")
    first, end = log.arrival_ns + log.ttft_ns, log.arrival_ns + log.e2e_ns
    low = np.searchsorted(timeline.generated_ns, first[group], side="right")
    high = np.searchsorted(timeline.generated_ns, end[group], side="right")
    begins, ends = np.zeros((2, len(group)), dtype=np.int64)
    for place, request in enumerate(group.tolist()):
        bounds = np.concatenate((first[request : request + 1], timeline.generated_ns[low[place] : high[place]]))
        if len(bounds) > 1:
            widest = int(np.argmax(np.diff(bounds)))
            begins[place], ends[place] = bounds[widest], bounds[widest + 1]
    seen = log.itl_max_ns[group].astype(np.int64)
    alike = np.abs(ends - begins - seen) <= tolerance * seen
    parts: Parts = {name: np.where(alike, values, 0) for name, values in timeline.cut(begins, ends).items()}
    rest = seen - sum(parts.values())
    # What the client saw less than the engine took is taken off its decode, then off the others.
    for name in ("decode", "interference", "between_steps", "compile"):
        taken = np.minimum(np.maximum(-rest, 0), parts[name])
        parts[name], rest = parts[name] - taken, rest + taken
    parts["unknown"] = parts["unknown"] + rest
    return parts


def _dominant(
    rows: list[TailPart], slow_s: float, middle_s: float, rule: Rule
) -> tuple[TailPartName | None, float | None, str]:
    """The part that makes most of the difference, its share of it, and why that or none."""
    if slow_s < rule.threshold("min_tail_ratio") * middle_s:
        return None, None, "the slowest requests are hardly slower than the median ones"
    more = {row.id: max(row.excess_s or 0.0, 0.0) for row in rows}
    whole = sum(more.values())
    largest = max(more, key=lambda name: more[name])
    if whole <= 0.0:
        return None, None, "no part takes more time than in the median requests"
    share = more[largest] / whole
    if largest == "unknown":
        return None, None, f"{format_share(share)} of the difference lies in {IN_WORDS['unknown']}"
    if share < rule.threshold("min_dominant_share"):
        return (
            None,
            None,
            f"no part makes most of the difference; the largest is {IN_WORDS[largest]}, {format_share(share)}",
        )
    return largest, share, f"{format_share(share)} of the difference is {IN_WORDS[largest]}"


def _why(part: TailPartName, metric: Metric, slow: float | None, middle: float | None, rule: Rule) -> str:
    """Whether the slowest have more tokens to compute, or take longer for each."""
    if slow is None or not middle:
        return ""
    # A gap is a gap, however many follow.
    if metric in ("itl", "itl_max") or slow < rule.threshold("min_tail_ratio") * middle:
        return "; their steps take longer, not their number"
    kind = "generate" if part == "decode" else "bring prompts of"
    return f"; they {kind} {slow:.0f} tokens, the median ones {middle:.0f}"


def _with_target(tail: TailLatency, latencies: tuple[LatencySummary, ...]) -> TailLatency:
    name = {"itl_max": "itl"}.get(tail.metric, tail.metric)
    row = next((row for row in latencies if row.metric == name), None)
    if row is None or row.target_p99_s is None:
        return tail
    return msgspec.structs.replace(tail, target_p99_s=row.target_p99_s, target_met=row.target_met)


def dominated(context: Context) -> Finding | None:
    """One part makes most of what the slowest requests take more."""
    return _finding(context.tails, context.rules, context.book)


def _finding(tails: tuple[TailLatency, ...], rules: RuleBook, book: EvidenceBook) -> Finding | None:
    rule = rules["SPY-P99-001"]
    told = [tail for tail in tails if tail.dominant is not None]
    if not told:
        return None
    evidence, said = [], []
    for tail in told:
        where = f"p99.{tail.metric}"
        for group, value, count in (
            ("slowest", tail.slowest_mean_s, tail.slowest),
            ("median", tail.median_mean_s, tail.median),
        ):
            evidence.append(
                book.add(f"{where}.{group}_mean", value, "s", "measured", n=count, source=tail.source,
                         method=f"mean over the {group} requests by this latency")
            )  # fmt: skip
        evidence.append(
            book.add(f"{where}.{tail.dominant}_share", tail.dominant_share, "ratio", "derived", n=tail.requests,
                     source=tail.source,
                     method="what the slowest requests spend more on this part than the median ones, over all that "
                     "they spend more")
        )  # fmt: skip
        missed = ", and the target is missed" if tail.target_met is False else ""
        said.append(
            f"{NAMES[tail.metric]} {format_seconds(tail.slowest_mean_s)} against "
            f"{format_seconds(tail.median_mean_s)}{missed}: {tail.reason}"
        )
    slowest, of = told[0].slowest, told[0].requests
    severity: Severity = "medium" if any(tail.target_met is False for tail in told) else "info"
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=f"The slowest {slowest} of {of} requests against the median ones: {'; '.join(said)}.",
        phase=None,
        share=None,
        evidence=tuple(evidence),
        against=(*dict.fromkeys(note for tail in told for note in tail.notes), *rule.false_positive_notes),
    )
