"""What polled gauges and counters tell of one engine, without any of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import SteadyWindow
from spyreprof.recording.counters import delta, series
from spyreprof.units import NS_PER_S
from spyreprof_analyzers.front_end import front_end
from spyreprof_analyzers.kv_pressure import PREEMPTIONS, PROMPT_TOKENS, prefix_hit_ratio, usual_prompt_tokens
from spyreprof_analyzers.processes import process_use
from spyreprof_analyzers.request_log import FINISHED, RequestTimes, request_log, request_times
from spyreprof_analyzers.scheduler import blocks_of, gauges, kv_state
from spyreprof_analyzers.steady_state import drift_of_gauges

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.front_end import FrontEnd
    from spyreprof_analyzers.request_log import RequestLog
    from spyreprof_analyzers.scheduler import Gauges
    from spyreprof_analyzers.steady_state import LoadDrift

GENERATION_TOKENS = "vllm:generation_tokens"
_E2E = "vllm:e2e_request_latency_seconds"
_ITL = "vllm:inter_token_latency_seconds"
# Counters that rise while an engine gets on with its work.
PROGRESS = (GENERATION_TOKENS, PROMPT_TOKENS, FINISHED, "vllm:request_success")
# In how many equal parts of the window preemptions must go on to be more than an accident.
_FIFTHS = 5


@dataclass(frozen=True, slots=True)
class GaugeState:
    """Gauges and counters of one engine in the window that is judged. None where a number was not seen.

    Attributes:
        window: a steady stretch of the gauges.
        known: moments of the time grid at which running and waiting are both known, of `moments`.
        running_mean, waiting_mean, running_p95, waiting_p95, demand_p95: requests; demand is running + waiting.
        kv_usage_mean, kv_usage_p95: of the KV cache, 0 to 1.
        idle_share: of known time, with no request in the engine.
        waits_share: with a request waiting.
        below_cap_share: while one waits, below a known batch cap; None where the cap is not known.
        at_cap_with_room_share: while one waits, at a known cap, with room in the KV cache for another.
        full_share: while one waits, with a KV cache that takes no other.
        full_below_cap_share: that, below a known batch cap.
        room_below_cap_share: while one waits, below a known cap, with room in the KV cache.
        running_varies: whether the running requests go up and down while others wait.
        preemptions: rise of their counter; `preempts` says that they go on all through the window.
        progress: whether a counter of the engine's work rises; None where none was seen.
        prompt_tokens_per_s, generation_tokens_per_s: rises over the window.
        itl_mean_s: mean gap between tokens, from the engine's histogram.
        times: where finished requests spent their time.
        front_end: what clients wait for outside of the engine.
        drift: that the load never held.
    """

    window: SteadyWindow
    moments: int
    known: int
    running_mean: float
    waiting_mean: float
    running_p95: float
    waiting_p95: float
    demand_p95: float
    kv_usage_mean: float | None
    kv_usage_p95: float | None
    idle_share: float
    waits_share: float
    below_cap_share: float | None
    at_cap_with_room_share: float
    full_share: float
    full_below_cap_share: float
    room_below_cap_share: float
    running_varies: bool
    preemptions: int | None
    preempts: bool
    progress: bool | None
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    itl_mean_s: float | None
    times: RequestTimes | None
    log: RequestLog | None
    finished: int | None
    front_end: FrontEnd | None = None
    drift: LoadDrift | None = None

    @property
    def span_s(self) -> float:
        """Length of the window."""
        return (self.window.end_ns - self.window.start_ns) / NS_PER_S

    @property
    def resident_ratio(self) -> float | None:
        """Share of the KV cache that one running request holds, on average; None where it is not known."""
        if self.kv_usage_mean is None or self.running_mean < 1 or self.kv_usage_mean <= 0:
            return None
        return self.kv_usage_mean / self.running_mean


def gauge_state(inputs: AnalysisInputs, rules: RuleBook, window: SteadyWindow | None = None) -> GaugeState | None:
    """Gather what one engine's gauges and counters tell; None where running or waiting was never seen.

    Args:
        inputs: of one engine.
        rules: thresholds.
        window: to look at; None finds a steady stretch of the gauges.
    """
    seen = gauges(inputs.counters, inputs.polls, inputs.recording_end_ns)
    if seen is None:
        return None
    if window is None:
        window = _steady(seen, inputs, rules)
        if window is None:
            return None
    within = seen.within(window)
    demand = within.running + within.waiting
    known = ~np.isnan(demand)
    if not known.any():
        return None
    rule, counters, settings = rules["SPY-QUE-001"], inputs.counters, inputs.settings
    log = request_log(inputs.requests)
    # without arrivals a log is of all engines together, and its times are of none of them
    own_log = log if log is not None and log.arrival_ns is not None else None
    need = blocks_of(settings, usual_prompt_tokens(log, counters, prefix_hit_ratio(counters, window), window))
    full, room = kv_state(within.kv_usage_ratio, settings.kv_blocks, need, rules)
    waits, cap = known & (within.waiting >= 1), settings.max_num_seqs
    at_cap = waits & (within.running >= rule.threshold("at_cap_ratio") * cap) if cap is not None else waits & False
    below_cap = waits & ~at_cap if cap is not None else waits & False

    def share(chosen: NDArray[np.bool_]) -> float:
        return int(np.count_nonzero(chosen)) / int(np.count_nonzero(known))

    def rise(name: str) -> float | None:
        return delta(counters, name, start_ns=window.start_ns, end_ns=window.end_ns)

    usage = within.kv_usage_ratio[~np.isnan(within.kv_usage_ratio)]
    preempted, finished = rise(PREEMPTIONS), rise(FINISHED)
    rises = [found for name in PROGRESS if (found := rise(name)) is not None]
    span_s = (window.end_ns - window.start_ns) / NS_PER_S
    prompt, generated = rise(PROMPT_TOKENS), rise(GENERATION_TOKENS)
    times = request_times(counters, own_log, None, window)
    itl_sum, itl_count = rise(f"{_ITL}_sum"), rise(f"{_ITL}_count")
    return GaugeState(
        window=window,
        drift=drift_of_gauges(within, window, rules),
        moments=len(within.time_ns),
        known=int(np.count_nonzero(known)),
        running_mean=float(within.running[known].mean()),
        waiting_mean=float(within.waiting[known].mean()),
        running_p95=float(np.percentile(within.running[known], 95)),
        waiting_p95=float(np.percentile(within.waiting[known], 95)),
        demand_p95=float(np.percentile(demand[known], 95)),
        kv_usage_mean=float(usage.mean()) if len(usage) else None,
        kv_usage_p95=float(np.percentile(usage, 95)) if len(usage) else None,
        idle_share=share(known & (demand == 0)),
        waits_share=share(waits),
        below_cap_share=share(below_cap) if cap is not None else None,
        at_cap_with_room_share=share(at_cap & room),
        full_share=share(waits & full),
        full_below_cap_share=share(below_cap & full),
        room_below_cap_share=share(below_cap & room),
        running_varies=_varies(within.running[waits], rules),
        preemptions=round(preempted) if preempted is not None else None,
        preempts=preempted is not None and _goes_on(counters, window, preempted, rules),
        progress=any(found > 0 for found in rises) if rises else None,
        prompt_tokens_per_s=prompt / span_s if prompt is not None and span_s > 0 else None,
        generation_tokens_per_s=generated / span_s if generated is not None and span_s > 0 else None,
        itl_mean_s=itl_sum / itl_count if itl_sum is not None and itl_count else None,
        times=times,
        log=log,
        finished=round(finished) if finished is not None else None,
        front_end=_front_end(inputs, own_log, times, window, rules),
    )


def _front_end(
    inputs: AnalysisInputs, log: RequestLog | None, times: RequestTimes | None, window: SteadyWindow, rules: RuleBook
) -> FrontEnd | None:
    """What clients wait for outside of the engine; by end-to-end times where the engine tells no others."""
    processes = process_use(inputs.usage, window.start_ns, window.end_ns, rules)
    if log is not None and (times is None or times.source == log.source):
        total_s, count = (
            delta(inputs.counters, f"{_E2E}_{part}", start_ns=window.start_ns, end_ns=window.end_ns)
            for part in ("sum", "count")
        )
        if total_s is not None and count:
            # all of the engine's time stands for the part to the first token, which makes the part outside no larger
            times = RequestTimes(0.0, total_s, 0.0, round(count), "/metrics histograms")
    return front_end(log, times, window, processes, frozenset(), rules)


def _varies(running: NDArray[np.float64], rules: RuleBook) -> bool:
    if len(running) == 0:
        return False
    low, high = np.percentile(running, (5, 95))
    return bool(high - low > (1.0 - rules["SPY-QUE-001"].threshold("at_cap_ratio")) * high)


def _goes_on(counters: pd.DataFrame, window: SteadyWindow, total: float, rules: RuleBook) -> bool:
    """Do preemptions go on in every fifth of the window?"""
    if total < rules["SPY-KVC-002"].threshold("min_preemptions"):
        return False
    ends = np.linspace(window.start_ns, window.end_ns, _FIFTHS + 1).astype(np.int64).tolist()
    parts = [delta(counters, PREEMPTIONS, start_ns=start, end_ns=end) for start, end in pairwise(ends)]
    return all(part is not None and part > 0 for part in parts)


def _steady(seen: Gauges, inputs: AnalysisInputs, rules: RuleBook) -> SteadyWindow | None:
    """From the first to the last moment at which as many requests ran as in the middle half; all of it under one."""
    known = np.flatnonzero(~np.isnan(seen.running) & ~np.isnan(seen.waiting))
    if len(known) < 2:
        return None
    start, end = int(seen.time_ns[known[0]]), int(seen.time_ns[known[-1]])
    middle = known[
        (seen.time_ns[known] >= start + (end - start) // 4) & (seen.time_ns[known] <= end - (end - start) // 4)
    ]
    level = float(np.median(seen.running[middle])) if len(middle) else 0.0
    basis = "from the first to the last answer of the metrics page"
    if level >= 1:
        ratio = rules["SPY-GEN-002"].threshold("level_ratio")
        reached = known[seen.running[known] >= ratio * level]
        if len(reached) > 1:
            start, end = int(seen.time_ns[reached[0]]), int(seen.time_ns[reached[-1]])
            basis = f"while at least {ratio:.0%} of the usual running requests ({level:.0f}) ran"
    length = max(inputs.recording_end_ns - inputs.recording_start_ns, 1)
    # a gauge holds until the next moment of the grid
    end = min(end + int(seen.time_ns[1] - seen.time_ns[0]), inputs.recording_end_ns)
    if end <= start:
        return None
    return SteadyWindow(start_ns=start, end_ns=end, share_of_recording=min((end - start) / length, 1.0), basis=basis)


def deferred_now(counters: pd.DataFrame, time_ns: int) -> float | None:
    """Requests that wait for something other than room, by the breakdown of the waiting gauge; None without one.

    The breakdown is part of the waiting gauge and is never added to it.
    """
    found = series(counters, "vllm:num_requests_waiting_by_reason", {"reason": "deferred"})
    before = found[found.index <= time_ns]
    if found.shape[1] != 1 or before.empty:
        return None
    value = float(before.iloc[-1, 0])
    return value if value >= 0 else None
