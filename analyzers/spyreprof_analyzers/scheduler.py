"""What the scheduler's gauges and step rows say: who waited, and for what.

An engine whose step had token budget left and which still admitted nobody was held back by its batch cap or by the
KV cache. That is seen without knowing any setting: a step well under the largest step's tokens, while requests
wait. What is left of the KV cache then tells the two apart: where block counts and prompt lengths are known, it is
full for a request that waits once a usual prompt no longer fits, whatever share of it that leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.recording.counters import answered, series

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from spyreprof.findings import SteadyWindow
    from spyreprof.recording.schema import EngineSettings
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"


@dataclass(frozen=True, slots=True)
class GaugeSamples:
    """Gauge samples within a stretch of time."""

    samples: int
    max_running: float
    max_waiting: float


# A gauge holds until the next poll; the grid is finer than the recorder's polls (2 Hz), so none is missed.
GRID_NS = 250_000_000
# Eleven days. Whoever claims a longer stretch gets a coarser grid, in the same memory.
MAX_GRID_TIMES = 4_000_000
# Larger values are no counts of requests.
_MAX_GAUGE = 2.0**53
# Within this time after a change the last poll may still show the state before it.
POLL_LAG_NS = 600_000_000


@dataclass(frozen=True, slots=True)
class Gauges:
    """Scheduler gauges on an even time grid, arrays of shape (n,); NaN where a gauge is absent."""

    time_ns: NDArray[np.int64]
    running: NDArray[np.float64]
    waiting: NDArray[np.float64]
    kv_usage_ratio: NDArray[np.float64]

    def between(self, start_ns: int, end_ns: int) -> GaugeSamples:
        """Samples that speak for [start, end): polled inside of it, not carried in from before."""
        low, high = np.searchsorted(self.time_ns, (start_ns + POLL_LAG_NS, end_ns))
        running, waiting = self.running[low:high], self.waiting[low:high]
        count = int(np.count_nonzero(~np.isnan(running) & ~np.isnan(waiting)))
        if count == 0:
            return GaugeSamples(0, 0.0, 0.0)
        return GaugeSamples(count, float(np.nanmax(running)), float(np.nanmax(waiting)))

    def within(self, window: SteadyWindow) -> Gauges:
        """Samples of the window."""
        inside = (self.time_ns >= window.start_ns) & (self.time_ns < window.end_ns)
        return Gauges(self.time_ns[inside], self.running[inside], self.waiting[inside], self.kv_usage_ratio[inside])


@dataclass(frozen=True, slots=True)
class Admission:
    """How admission went in the window.

    Attributes:
        blocked_share: share of step time in steps that had token budget left while requests waited.
        at_cap_share: the part of it in which as many requests ran as the batch cap allows.
        at_cap_with_room_share: the part of that in which the KV cache would have taken another request.
        kv_full_share: the part of `blocked_share` in which it would not, and a known batch cap did not bind; where
            lengths are known, also what one more request would need to its end, beside those that run.
        below_cap_share: the part of `blocked_share` in which a known batch cap did not bind.
        prompt_blocks: KV blocks that a usual prompt needs; None where that is not known, and the gauge alone decides.
        cap_requests: the cap, or where it is not known the most requests that ran while others waited; None when
            none waited. `cap_is_known` tells the two apart.
        kv_usage_p95, waiting_p95, demand_p95: percentiles of the gauges; demand is running + waiting, `demand_mean` its
            mean over time.
    """

    blocked_share: float
    at_cap_share: float
    at_cap_with_room_share: float
    kv_full_share: float
    below_cap_share: float
    prompt_blocks: int | None
    cap_requests: int | None
    cap_is_known: bool
    kv_usage_p95: float | None
    waiting_p95: float
    running_p95: float
    demand_p95: float
    demand_mean: float


def gauges(counters: pd.DataFrame, polls: pd.DataFrame | None, end_ns: int) -> Gauges | None:
    """Read the three gauges, up to the end of the recording; NaN while their page did not answer.

    Returns:
        None when running or waiting was never seen, or when several engines export them: their queues are not one.
    """
    running, waiting = series(counters, RUNNING), series(counters, WAITING)
    if running.shape[1] != 1 or waiting.shape[1] != 1:
        return None
    usage = series(counters, KV_USAGE)
    # after the last row nothing is known any more; the recorder's last poll writes one
    last_ns = int(counters["time_ns"].max())
    if polls is not None and not polls.empty:
        last_ns = max(last_ns, int(polls["time_ns"].max()))
    last_ns = min(last_ns + POLL_LAG_NS, end_ns, np.iinfo(np.int64).max)
    first_ns = int(running.index[0])
    apart_ns = max(GRID_NS, (last_ns - first_ns) // MAX_GRID_TIMES)
    times = np.arange(first_ns, last_ns, apart_ns, dtype=np.int64)
    if len(times) == 0:
        return None
    return Gauges(
        time_ns=times,
        running=_carried(running, polls, times),
        waiting=_carried(waiting, polls, times),
        kv_usage_ratio=_carried(usage, polls, times) if usage.shape[1] == 1 else np.full(len(times), np.nan),
    )


def admission(
    steps: EngineSteps,
    seen: Gauges,
    settings: EngineSettings,
    prompt_tokens: float | None,
    rules: RuleBook,
    request_tokens: float | None = None,
) -> Admission | None:
    """Judge admission over the window's steps and gauge samples; None without either.

    Args:
        steps, seen: of the window.
        settings: in force. Where the batch cap is not known, the largest number of running requests while others
            waited stands for it.
        prompt_tokens: what a usual prompt must compute, or None when it is not known.
        rules: thresholds.
        request_tokens: what a request holds when it ends, on average, or None when it is not known.
    """
    known = steps.where(steps.counted)
    if len(known) == 0 or len(seen.time_ns) == 0:
        return None
    demand = seen.running + seen.waiting
    if np.isnan(demand).all():
        return None
    rule, cap = rules["SPY-QUE-001"], settings.max_num_seqs
    tokens = known.context_tokens + known.generation_tokens
    had_budget = tokens < rule.threshold("token_budget_ratio") * tokens.max()
    middle = known.start_ns + known.duration_ns // 2
    waiting = _seen_at(seen, seen.waiting, middle)
    # one waiting request may just have arrived; it counts when it is still there at the step's middle
    blocked = had_budget & (waiting >= 1)
    in_step = (known.context_requests + known.generation_requests).astype(np.float64)
    # a scheduler may leave running requests out of a step, so the gauge counts too
    running = np.fmax(in_step, _seen_at(seen, seen.running, middle))
    cap_requests = int(running[blocked].max()) if blocked.any() else None
    at_cap = blocked & (running >= rule.threshold("at_cap_ratio") * (cap or cap_requests or 1))
    below_cap = blocked & ~at_cap if cap is not None else blocked
    need = blocks_of(settings, prompt_tokens)
    usage_then = _seen_at(seen, seen.kv_usage_ratio, middle)
    full, room = kv_state(usage_then, settings.kv_blocks, need, rules)
    # a cache with much room left is not full, whatever lengths say
    promised = (usage_then >= rule.threshold("max_kv_usage")) & promised_away(running, settings, request_tokens)

    def share(chosen: NDArray[np.bool_]) -> float:
        return int(known.duration_ns[chosen].sum()) / max(int(known.duration_ns.sum()), 1)

    usage = seen.kv_usage_ratio[~np.isnan(seen.kv_usage_ratio)]
    return Admission(
        blocked_share=share(blocked),
        at_cap_share=share(at_cap),
        at_cap_with_room_share=share(at_cap & room),
        kv_full_share=share(below_cap & (full | (promised if cap is not None else False))),
        below_cap_share=share(below_cap),
        prompt_blocks=need,
        cap_requests=cap or cap_requests,
        cap_is_known=cap is not None,
        kv_usage_p95=float(np.percentile(usage, 95)) if len(usage) else None,
        waiting_p95=float(np.nanpercentile(seen.waiting, 95)),
        running_p95=float(np.nanpercentile(seen.running, 95)),
        demand_p95=float(np.nanpercentile(demand, 95)),
        demand_mean=float(np.nanmean(demand)),
    )


def promised_away(
    running: NDArray[np.float64], settings: EngineSettings, request_tokens: float | None
) -> NDArray[np.bool_]:
    """Whether those that run need the KV cache up to their end, so that it holds no other beside them.

    An engine that keeps room for outputs admits nobody then, with its gauge still below full.
    """
    tokens = settings.kv_capacity_tokens
    if tokens is None or request_tokens is None:
        return np.zeros(len(running), dtype=np.bool_)
    promised: NDArray[np.bool_] = (running + 1) * request_tokens > tokens
    return promised


def blocks_of(settings: EngineSettings, tokens: float | None) -> int | None:
    """KV blocks that hold so many tokens; None where the blocks are not known."""
    if settings.kv_blocks is None or not settings.block_size or tokens is None:
        return None
    return max(math.ceil(tokens / settings.block_size), 1)


def kv_state(
    usage_ratio: NDArray[np.float64], kv_blocks: int | None, need: int | None, rules: RuleBook
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the KV cache could not take another request, and whether it surely could; neither where unknown."""
    rule = rules["SPY-QUE-001"]
    full = usage_ratio >= rule.threshold("kv_full_usage")
    if need is None or kv_blocks is None:
        return full, usage_ratio < rule.threshold("max_kv_usage")
    free = np.rint((1.0 - usage_ratio) * kv_blocks)
    return full | (free < need), ~full & (free >= need)


def _carried(values: pd.DataFrame, polls: pd.DataFrame | None, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """The single column at each time: its last value; NaN before the first, without an answer, and where absurd."""
    endpoint = int(values.columns[0][0])
    carried = _at(values.index.to_numpy(dtype=np.int64), values.iloc[:, 0].to_numpy(dtype=np.float64), times)
    sane = (carried >= 0) & (carried <= _MAX_GAUGE)
    return np.where(sane & answered(polls, endpoint, times), carried, np.nan)


def _at(sample_ns: NDArray[np.int64], values: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    index = np.searchsorted(sample_ns, times, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)


def _seen_at(grid: Gauges, values: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    """A gauge at times within the grid; NaN outside of it."""
    known = times <= grid.time_ns[-1] + GRID_NS
    return np.where(known, _at(grid.time_ns, values, times), np.nan)
