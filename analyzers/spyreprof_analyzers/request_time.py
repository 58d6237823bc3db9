"""Where the time of each single request went: queue, prefill, decode, what interrupted it, and what nobody saw."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.recording.counters import delta
from spyreprof_analyzers import intervals
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL, UNKNOWN_PHASE
from spyreprof_analyzers.interference import usual_step_ns
from spyreprof_analyzers.kv_pressure import PREEMPTIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.request_figures import TailPartName
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.request_log import RequestLog

    Parts = dict[TailPartName, NDArray[np.int64]]

# A century and a half, which fits an integer whatever a damaged recording says.
_LONGEST_NS = 2.0**62

QUEUE_UNKNOWN = (
    "a load generator's log does not tell when a request was scheduled, so that the time to its first token stays whole"
)
ENGINES_UNKNOWN = "several engines ran, and the log does not tell which of them had a request"
STEPS_INCOMPLETE = "the step rows do not hold the tokens that the requests got, so that their decode stays whole"
STEPS_UNSEEN = "no engine step was seen, so that the decode of requests stays whole"
MATCHED = "requests of the load generator were matched with the program's marks by arrival and lengths"


@dataclass(frozen=True, slots=True)
class RequestTime:
    """Time of requests by what it was spent on: integer nanoseconds, arrays of shape (n,).

    Attributes:
        log: the requests.
        clear: mask of those that no profiler pause touches.
        first: parts of the time to first token; they add up to it.
        later: parts of the time after it; they add up to that.
        untold: parts that this source cannot tell. Their time is in "unknown", except for the front end, where the
            requests were timed inside of it.
        notes: why, and how the requests were put together.
        timeline: what the engine did; None where its steps cannot be set beside the requests.
    """

    log: RequestLog
    clear: NDArray[np.bool_]
    first: Parts
    later: Parts
    untold: frozenset[TailPartName]
    notes: tuple[str, ...]
    timeline: Timeline | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the engine did, as disjoint sorted spans by kind, and when its steps that generate ended."""

    spans: dict[TailPartName, NDArray[np.int64]]
    generated_ns: NDArray[np.int64]
    speculates: bool

    def cut(self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> Parts:
        """Cut each [start, end) by what the engine did in it; "between_steps" is when no step ran."""
        parts: Parts = {
            kind: intervals.covered_before(spans, end_ns) - intervals.covered_before(spans, start_ns)
            for kind, spans in self.spans.items()
        }
        parts["between_steps"] = end_ns - start_ns - _sum(parts, len(start_ns))
        return parts


def request_time(
    client: RequestLog | None,
    marked: RequestLog | None,
    everything: EngineSteps | None,
    inputs: AnalysisInputs,
    engines: int,
    rules: RuleBook,
) -> RequestTime | None:
    """Take apart the time of every request.

    Args:
        client: a load generator's log.
        marked: the program's own marks.
        everything: all steps of the judged engine, those in profiler windows too; None where none was seen.
        inputs: compilations, pauses and counters.
        engines: how many ran; steps of one say nothing of requests that may have been another's.
        rules: thresholds.

    Returns:
        None where no requests with times on the recording's clock are there.
    """
    joined = _joined(client, marked, rules)
    if joined is None:
        return None
    log, engine, untold, notes = joined
    timeline, why = None, STEPS_UNSEEN if everything is None else ENGINES_UNKNOWN
    if everything is not None and engines == 1:
        timeline, why = _timeline(everything, log, inputs, rules), STEPS_INCOMPLETE
    if timeline is None:
        notes.append(why)
        untold |= {"decode", "interference", "preemption", "compile", "between_steps"}
    start, begun = _known(log.arrival_ns), _known(engine.arrival_ns)
    shown_first, shown_end = start + log.ttft_ns, start + log.e2e_ns
    engine_first, engine_end = begun + engine.ttft_ns, begun + engine.e2e_ns
    first = _first_parts(begun, engine, engine_first, timeline)
    first["front_end"] = begun - start + shown_first - engine_first
    after = np.maximum(engine_end - shown_first, 0)
    later: Parts = {"front_end": shown_end - shown_first - after}
    if timeline is None:
        later["unknown"] = after
    else:
        later |= timeline.cut(shown_first, shown_first + after)
        if not _preempt(later, after, engine, timeline, inputs, rules, marked="queue" not in untold):
            untold.add("preemption")
    pauses = intervals.union(intervals.as_spans((p.start_ns, p.end_ns) for p in inputs.pauses))
    paused = intervals.covered_before(pauses, shown_end) - intervals.covered_before(pauses, start)
    return RequestTime(log, paused == 0, first, later, frozenset(untold), tuple(notes), timeline)


def _joined(
    client: RequestLog | None, marked: RequestLog | None, rules: RuleBook
) -> tuple[RequestLog, RequestLog, set[TailPartName], list[str]] | None:
    """The requests as somebody saw them and as the engine did, what neither tells, and why; None without any.

    A client's requests are seen from outside where they can be matched with the program's marks; else the marks count,
    which know the queue, and then the client alone.
    """
    if marked is not None and (marked.arrival_ns is None or np.isnan(marked.queue_ns).all()):
        marked = None
    if client is not None and client.arrival_ns is None:
        client = None
    if client is not None and marked is not None:
        matches = _matches(client, marked)
        if float((matches >= 0).mean()) >= rules["SPY-P99-001"].threshold("min_matched_ratio"):
            return client.where(matches >= 0), marked.where(matches[matches >= 0]), set(), [MATCHED]
    if marked is not None:
        return marked, marked, {"front_end"}, []
    if client is not None:
        return client, client, {"queue", "prefill", "front_end"}, [QUEUE_UNKNOWN]
    return None


def _first_parts(
    begun: NDArray[np.int64], engine: RequestLog, engine_first: NDArray[np.int64], timeline: Timeline | None
) -> Parts:
    """Parts of the time to first token inside the engine. Where the queue is not known, what ran is "unknown"."""
    told = ~np.isnan(engine.queue_ns)
    queue = np.minimum(np.where(told, np.nan_to_num(engine.queue_ns), 0), _LONGEST_NS).astype(np.int64)
    ran = engine_first - begun - queue
    parts: Parts = {"queue": queue}
    if timeline is not None:
        cut = timeline.cut(begun + queue, engine_first)
        parts |= {"compile": cut["compile"], "between_steps": cut["between_steps"]}
        ran = ran - cut["compile"] - cut["between_steps"]
    parts["prefill"], parts["unknown"] = np.where(told, ran, 0), np.where(told, 0, ran)
    return parts


def _preempt(
    later: Parts,
    after: NDArray[np.int64],
    engine: RequestLog,
    timeline: Timeline,
    inputs: AnalysisInputs,
    rules: RuleBook,
    *,
    marked: bool,
) -> bool:
    """Take out of the time after the first token the steps that went by without a token for their request.

    A running request gets a token from every step that generates, so that those beyond its tokens passed while it was
    preempted: waiting, and being computed again. That is sure where the program says that the request was preempted,
    and taken for it where the program's own times show more than a few such steps and the engine counted preemptions.
    Elsewhere tokens may as well have been late at the client, or the scheduler passed the request over: "unknown".

    Returns:
        Whether preemption is told. Where a step may give several tokens, that of a preempted request is not.
    """
    counted = delta(inputs.counters, PREEMPTIONS)
    unsaid = np.isnan(engine.preemptions)
    preempted = np.nan_to_num(engine.preemptions) > 0
    names: tuple[TailPartName, ...] = ("decode", "interference", "compile", "between_steps", "unknown")
    if timeline.speculates:
        for name in names:
            later[name] = np.where(preempted, after if name == "unknown" else 0, later[name])
        return not (preempted.any() or (unsaid.any() and counted != 0))
    begun = _known(engine.arrival_ns)
    steps = np.searchsorted(timeline.generated_ns, begun + engine.e2e_ns, side="right")
    steps -= np.searchsorted(timeline.generated_ns, begun + engine.ttft_ns, side="right")
    missed = np.maximum(steps - np.maximum(engine.output_tokens - 1, 0).astype(np.int64), 0)
    slack = rules["SPY-P99-001"].threshold("min_missed_steps")
    missed = np.where(preempted | (missed >= slack), missed, 0)
    lost = after * missed // np.maximum(steps, 1)
    kept = after - lost
    for name in names[1:]:
        later[name] = np.where(lost > 0, later[name] * kept // np.maximum(after, 1), later[name])
    later["decode"] = kept - sum(later[name] for name in names[1:])
    known = preempted | (unsaid & marked & bool(counted))
    later["preemption"] = np.where(known, lost, 0)
    later["unknown"] = later["unknown"] + np.where(known, 0, lost)
    return not unsaid.any() or counted == 0 or (marked and counted is not None)


def _timeline(everything: EngineSteps, log: RequestLog, inputs: AnalysisInputs, rules: RuleBook) -> Timeline | None:
    """What the engine did; None where the steps do not hold the tokens that the requests got."""
    rule = rules["SPY-P99-001"]
    if not everything.counted.all() or np.isnan(log.output_tokens).any():
        return None
    wanted = float(np.maximum(log.output_tokens - 1, 0).sum())
    if int(everything.generation_tokens.sum()) < rule.threshold("min_tokens_in_steps") * wanted:
        return None
    # Steps of pipelined engines overlap: the later one counts from the end of the earlier.
    reach = np.maximum.accumulate(np.concatenate((everything.start_ns[:1], everything.end_ns[:-1])))
    begin = np.maximum(everything.start_ns, reach)
    end = np.maximum(everything.end_ns, begin)
    alone = everything.of_phase(DECODE)
    mixed = everything.phase == MIXED
    at = np.where(everything.phase == PREFILL, begin, end)
    unsplit = everything.phase == UNKNOWN_PHASE
    if len(alone) >= rules["SPY-INT-001"].threshold("min_decode_steps"):
        least = rules["SPY-INT-001"].threshold("min_steps_per_size")
        usual = usual_step_ns(alone, everything.generation_requests, least)
        at = np.where(mixed, np.minimum(begin + usual, end), at)
    else:
        unsplit |= mixed
    compiles = intervals.union(intervals.as_spans((c.start_ns, c.end_ns) for c in inputs.compiles))

    def spans(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        pairs = np.stack((left, right), axis=1)
        return intervals.subtract(intervals.union(pairs[pairs[:, 1] > pairs[:, 0]]), compiles)

    generating = everything.generation_requests > 0
    return Timeline(
        spans={
            "decode": spans(begin[~unsplit], at[~unsplit]),
            "interference": spans(at[~unsplit], end[~unsplit]),
            "unknown": spans(begin[unsplit], end[unsplit]),
            "compile": compiles,
        },
        generated_ns=np.sort(everything.end_ns[generating]),
        speculates=bool((everything.generation_tokens > everything.generation_requests).any()),
    )


def _matches(client: RequestLog, marked: RequestLog) -> NDArray[np.int64]:
    """For each request of the client the mark that is the same request, -1 where there is none.

    Of marks with the same lengths the first that lies within the client's request, in the order of arrival.
    """
    waiting: dict[tuple[float, float], deque[int]] = defaultdict(deque)
    begun, start = _known(marked.arrival_ns), _known(client.arrival_ns)
    for mark in marked.in_order(begun).tolist():
        waiting[_lengths(marked, mark)].append(mark)
    found = np.full(len(client), -1, dtype=np.int64)
    for at in client.in_order(start).tolist():
        candidates = waiting[_lengths(client, at)]
        while candidates and begun[candidates[0]] < start[at]:
            candidates.popleft()
        if candidates:
            mark, shift = candidates[0], begun[candidates[0]] - start[at]
            inside = (
                shift + marked.ttft_ns[mark] <= client.ttft_ns[at] and shift + marked.e2e_ns[mark] <= client.e2e_ns[at]
            )
            if inside:
                found[at] = candidates.popleft()
    return found


def _lengths(log: RequestLog, at: int) -> tuple[float, float]:
    return float(np.nan_to_num(log.prompt_tokens[at], nan=-1.0)), float(np.nan_to_num(log.output_tokens[at], nan=-1.0))


def _known(times_ns: NDArray[np.int64] | None) -> NDArray[np.int64]:
    if times_ns is None:
        raise ValueError("requests without arrivals were not left out")
    return times_ns


def _sum(parts: Parts, length: int) -> NDArray[np.int64]:
    return sum(parts.values(), start=np.zeros(length, dtype=np.int64))
