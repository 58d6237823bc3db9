"""The request witness: what clients saw, from the load generator's log and the engine's request histograms."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from spyreprof.findings import LatencySummary
from spyreprof.recording.counters import delta
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from spyreprof.findings import SteadyWindow

QUEUE, PREFILL, DECODE = (
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
)
FINISHED = "vllm:e2e_request_latency_seconds_count"

# Source of the rows that the program marked itself; all others are a client's.
_PROGRAM = "agent"

# Percentiles from fewer samples than this say more about luck than about the server.
MIN_FOR_P90 = 10
MIN_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Finished requests of one source, arrays of shape (n,), times in nanoseconds.

    `arrival_ns` is None when the log holds no start times. Whatever else the log lacks is NaN: token counts, the time
    in the queue, the largest gap between tokens, `max_tokens` that the request allowed, `at_limit` (1 where it ended
    because it reached them, 0 where it ended otherwise), preemptions. `source` says whose log it is.
    """

    arrival_ns: NDArray[np.int64] | None
    e2e_ns: NDArray[np.int64]
    ttft_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    cached_tokens: NDArray[np.float64]
    reasoning_tokens: NDArray[np.float64]
    queue_ns: NDArray[np.float64]
    source: str
    itl_max_ns: NDArray[np.float64]
    max_tokens: NDArray[np.float64]
    at_limit: NDArray[np.float64]
    preemptions: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.e2e_ns)

    def in_order(self, *first: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of the requests by these values, then by arrival and times: the same in whatever order they came."""
        arrival = (self.arrival_ns,) if self.arrival_ns is not None else ()
        return np.lexsort(
            (self.output_tokens, self.prompt_tokens, self.e2e_ns, self.ttft_ns, *arrival, *reversed(first))
        )

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> RequestLog:
        """The requests that a mask of length n, or their places in order, select."""
        found: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, values in found.items():
            found[name] = values[chosen] if isinstance(values, np.ndarray) else values
        return RequestLog(**found)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Where finished requests spent their time, in request-seconds; None where a part was not seen."""

    queue_s: float | None
    prefill_s: float
    decode_s: float
    requests: int
    source: str

    @property
    def total_s(self) -> float:
        """Time of all parts that were seen."""
        return (self.queue_s or 0.0) + self.prefill_s + self.decode_s


def request_log(table: pd.DataFrame) -> RequestLog | None:
    """Take the requests that finished; None when there are none.

    The program's own marks and a load generator's log tell of the same requests. The client's view is taken where
    there is one; what it lacks is not filled up from the other, whose rows it cannot be matched with.
    """
    client = _finished(table[~_marked(table)], "load generator's log")
    return client if client is not None else marked_requests(table)


def marked_requests(table: pd.DataFrame) -> RequestLog | None:
    """Take the finished requests that the program marked itself; None when there are none."""
    return _finished(table[_marked(table)], "requests marked by the program")


def _marked(table: pd.DataFrame) -> NDArray[np.bool_]:
    return (table["source"].fillna("") == _PROGRAM).to_numpy(dtype=np.bool_)


def _finished(table: pd.DataFrame, source: str) -> RequestLog | None:
    done = table[~table["failed"].fillna(False) & table["ttft_ns"].notna() & table["e2e_ns"].notna()]
    if done.empty:
        return None
    # Sums of fractions depend on their order, and files of results come in any.
    done = done.sort_values(["arrival_ns", "e2e_ns", "ttft_ns"], kind="stable")
    arrival = done["arrival_ns"]
    return RequestLog(
        arrival_ns=arrival.to_numpy(dtype=np.int64) if arrival.notna().all() else None,
        e2e_ns=done["e2e_ns"].to_numpy(dtype=np.int64),
        ttft_ns=done["ttft_ns"].to_numpy(dtype=np.int64),
        prompt_tokens=done["prompt_tokens"].to_numpy(dtype=np.float64, na_value=np.nan),
        output_tokens=done["output_tokens"].to_numpy(dtype=np.float64, na_value=np.nan),
        cached_tokens=done["cached_tokens"].to_numpy(dtype=np.float64, na_value=np.nan),
        reasoning_tokens=done["reasoning_tokens"].to_numpy(dtype=np.float64, na_value=np.nan),
        queue_ns=done["queue_ns"].to_numpy(dtype=np.float64, na_value=np.nan),
        source=source,
        itl_max_ns=done["itl_max_ns"].to_numpy(dtype=np.float64, na_value=np.nan),
        max_tokens=done["max_tokens"].to_numpy(dtype=np.float64, na_value=np.nan),
        at_limit=(done["finish_reason"] == "length").to_numpy(dtype=np.float64, na_value=np.nan),
        preemptions=done["preemptions"].to_numpy(dtype=np.float64, na_value=np.nan),
    )


def request_times(
    counters: pd.DataFrame, log: RequestLog | None, marked: RequestLog | None, window: SteadyWindow
) -> RequestTimes | None:
    """Queue, prefill and decode time of the requests that finished in the window.

    The engine's histograms tell queue and prefill apart, and so does a program that marks its requests. Without them
    the client's log knows only time to first token, in which both are one; that sum then stands as prefill and
    `queue_s` is None.
    """
    queue, prefill, decode, finished = (
        delta(counters, name, start_ns=window.start_ns, end_ns=window.end_ns)
        for name in (QUEUE, PREFILL, DECODE, FINISHED)
    )
    if queue is not None and prefill is not None and decode is not None and finished:
        return RequestTimes(queue, prefill, decode, int(finished), "/metrics histograms")
    # Marks speak where they know the queue, for whoever has a part of a request's time must have all of it.
    if marked is not None and not np.isnan(marked.queue_ns).any():
        return _times(marked, window, queue_known=True)
    return _times(log, window, queue_known=False) if log is not None else None


def _times(log: RequestLog, window: SteadyWindow, *, queue_known: bool) -> RequestTimes:
    inside = in_window(log, window)
    queue_s = float(log.queue_ns[inside].sum()) / NS_PER_S if queue_known else None
    return RequestTimes(
        queue_s,
        float(log.ttft_ns[inside].sum()) / NS_PER_S - (queue_s or 0.0),
        float((log.e2e_ns - log.ttft_ns)[inside].sum()) / NS_PER_S,
        int(inside.sum()),
        log.source,
    )


def in_window(log: RequestLog, window: SteadyWindow) -> NDArray[np.bool_]:
    """Mask of requests that arrived in the window; all of them when arrivals are unknown."""
    if log.arrival_ns is None:
        return np.ones(len(log), dtype=np.bool_)
    return (log.arrival_ns >= window.start_ns) & (log.arrival_ns < window.end_ns)


def latencies(log: RequestLog, window: SteadyWindow) -> tuple[LatencySummary, ...]:
    """Percentiles of TTFT, TPOT and end-to-end latency of the window's requests."""
    inside = in_window(log, window)
    rows = (
        ("ttft", log.ttft_ns[inside].astype(np.float64)),
        ("tpot", time_per_output_token_ns(log)[inside]),
        ("e2e", log.e2e_ns[inside].astype(np.float64)),
    )
    summaries = (summarise(metric, values / NS_PER_S, log.source) for metric, values in rows)
    return tuple(summary for summary in summaries if summary is not None)


def time_per_output_token_ns(log: RequestLog) -> NDArray[np.float64]:
    """Decode time over output tokens after the first; NaN with fewer than two. Chunks of several tokens are no gap."""
    later = np.where(log.output_tokens > 1, log.output_tokens - 1, np.nan)
    return np.asarray((log.e2e_ns - log.ttft_ns) / later)


def summarise(metric: str, seconds: NDArray[np.float64], source: str) -> LatencySummary | None:
    """Percentiles of one latency; None without samples, and a percentile is None where samples are too few."""
    values = seconds[~np.isnan(seconds)]
    count = len(values)
    if count == 0:
        return None
    return LatencySummary(
        metric=metric,
        n=count,
        mean_s=float(values.mean()),
        p50_s=float(np.percentile(values, 50)),
        p90_s=float(np.percentile(values, 90)) if count >= MIN_FOR_P90 else None,
        p99_s=float(np.percentile(values, 99)) if count >= MIN_FOR_P99 else None,
        source=source,
    )
