"""What was asked of the engine, as far as a log of requests tells: how many, how long, and how they arrived."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.recording.counters import delta
from spyreprof.report.model import Arrivals, Lengths, Load
from spyreprof.report.throughput import LOGS
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_LOOKED_UP_AND_HIT = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
# Fewer arrivals show no pattern.
_MIN_ARRIVALS = 30
# All of them within this part of the whole time came at once.
_AT_ONCE_RATIO = 0.05
# A client that waits for an answer sends its next request within this time, or this part of a request's length.
_TURN_NS = 10_000_000
_TURN_RATIO = 0.02
_CLOSED_RATIO = 0.9
# Where so many arrivals would follow an end by chance, or so few more do, nothing is told by it.
_CHANCE_LIMIT = 0.5
_CHANCE_MARGIN = 0.25
# Clients that think before they send again are a fixed number of clients still: it is reached time and again.
_AT_MOST_RATIO = 0.1


def load_of(requests: pd.DataFrame, counters: pd.DataFrame) -> Load | None:
    """Describe the requests of the whole recording, as the client saw them; as the program did where no client told.

    Returns:
        None without requests.
    """
    for source, name in LOGS.items():
        mine = requests[requests["source"] == source]
        if len(mine):
            return _of_one_source(mine, name, _cached_ratio(mine, counters))
    return None


def _cached_ratio(requests: pd.DataFrame, counters: pd.DataFrame) -> float | None:
    """By the engine's counters, else by what the requests themselves tell, if all of them do."""
    looked_up, hit = (delta(counters, name) for name in _LOOKED_UP_AND_HIT)
    if looked_up is not None and hit is not None:
        return min(1.0, hit / looked_up) if looked_up > 0 else None
    told = requests[["cached_tokens", "prompt_tokens"]]
    if told.isna().to_numpy().any() or not (prompt_tokens := int(told["prompt_tokens"].sum())):
        return None
    return min(1.0, int(told["cached_tokens"].sum()) / prompt_tokens)


def _of_one_source(requests: pd.DataFrame, name: str, cached_ratio: float | None) -> Load:
    arrivals_ns, ends_ns = _times(requests)
    span_s = (int(arrivals_ns[-1]) - int(arrivals_ns[0])) / NS_PER_S if len(arrivals_ns) > 1 else 0.0
    return Load(
        requests=len(requests),
        source=name,
        arrivals=_pattern(arrivals_ns, ends_ns),
        arrivals_per_s=(len(arrivals_ns) - 1) / span_s if span_s > 0 else None,
        most_in_flight=_most_in_flight(arrivals_ns, ends_ns),
        prompt_tokens=_lengths(requests["prompt_tokens"]),
        output_tokens=_lengths(requests["output_tokens"]),
        cached_ratio=cached_ratio,
    )


def _times(requests: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted arrivals and sorted ends; both empty where one is not known of all."""
    ends = requests["arrival_ns"] + requests["e2e_ns"]
    if requests["arrival_ns"].isna().any() or ends.isna().any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.sort(requests["arrival_ns"].to_numpy(np.int64)), np.sort(ends.to_numpy(np.int64))


def _most_in_flight(arrivals_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]) -> int | None:
    return int(_in_flight(arrivals_ns, ends_ns).max()) if len(arrivals_ns) else None


def _in_flight(arrivals_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Requests in flight at each arrival, with the one that arrives."""
    count: NDArray[np.int64] = np.arange(1, len(arrivals_ns) + 1) - np.searchsorted(ends_ns, arrivals_ns, side="right")
    return count


def _pattern(arrivals_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]) -> Arrivals | None:
    """Closed loop where arrivals follow ends, open loop where they do so no more often than by chance."""
    count, most = len(arrivals_ns), _most_in_flight(arrivals_ns, ends_ns)
    if count < _MIN_ARRIVALS or most is None:
        return None
    span_ns = int(ends_ns[-1]) - int(arrivals_ns[0])
    if span_ns <= 0 or int(arrivals_ns[-1]) - int(arrivals_ns[0]) <= _AT_ONCE_RATIO * span_ns:
        return "at_once"
    later = arrivals_ns[most:]
    if len(later) < _MIN_ARRIVALS:
        return None
    # The k-th end may be of any request: what counts is that somebody's answer came just before.
    last_end = np.searchsorted(ends_ns, later, side="right") - 1
    known = last_end >= 0
    turn_ns = max(_TURN_NS, _TURN_RATIO * most * span_ns / count)
    follows = float((known & (later - ends_ns[np.maximum(last_end, 0)] <= turn_ns)).mean())
    chance = 1 - math.exp(-count / span_ns * turn_ns)
    if follows >= _CLOSED_RATIO and chance <= _CHANCE_LIMIT:
        return "closed_loop"
    at_most = float((_in_flight(arrivals_ns, ends_ns) == most).mean())
    is_open = follows <= chance + _CHANCE_MARGIN and chance <= _CHANCE_LIMIT and at_most <= _AT_MOST_RATIO
    return "open_loop" if is_open else None


def _lengths(tokens: pd.Series) -> Lengths | None:
    known = tokens.dropna().astype("float64")
    if known.empty:
        return None
    return Lengths(mean=float(known.mean()), p50=float(known.quantile(0.5)), p90=float(known.quantile(0.9)))
