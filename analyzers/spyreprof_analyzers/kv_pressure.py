"""What the engine's counters and step rows say of KV cache: what a request needs of it, and what preemption costs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.recording.counters import delta, series

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import SteadyWindow
    from spyreprof.recording.schema import EngineSettings
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.request_log import RequestLog

PREEMPTIONS = "vllm:num_preemptions"
PROMPT_TOKENS = "vllm:prompt_tokens"
# The reader finds the other spellings of the first.
_PREEMPTED_BUCKETS = ("vllm:request_num_preemptions_bucket", "ray_vllm:request_num_preemptions_bucket")
PREFIX_QUERIES, PREFIX_HITS = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"
PROMPT_LENGTH_SUM, PROMPT_LENGTH_COUNT = "vllm:request_prompt_tokens_sum", "vllm:request_prompt_tokens_count"

# The head of the line is seldom a short one: short ones are admitted sooner.
USUAL_PROMPT_PERCENTILE = 90

IMPLAUSIBLE = (
    "prefills computed more than the prompts that got through and what preempted requests can have lost: prompts that "
    "were given up are among it"
)
LIMIT_UNKNOWN = "neither the size of the KV cache nor the length of a request is known, to check the counters by"


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Prompt and output tokens that preempted requests computed again.

    Attributes:
        tokens: the estimate; `low` and `high` allow for requests in the middle of their prefill at either end.
        context_tokens: all tokens that prefills computed in the same stretch.
    """

    tokens: int
    low: int
    high: int
    context_tokens: int

    @property
    def share(self) -> float:
        """Of the tokens that prefills computed."""
        return self.tokens / max(self.context_tokens, 1)

    @property
    def low_share(self) -> float:
        """The least share that the ends of the stretch allow."""
        return self.low / max(self.context_tokens, 1)


@dataclass(frozen=True, slots=True)
class PerRequest:
    """How often finished requests were preempted: the 99th percentile, and the share that was at all.

    The share is None where the engine's histogram has no boundary at none.
    """

    requests: int
    p99: float
    preempted_share: float | None


@dataclass(frozen=True, slots=True)
class Preemptions:
    """Preemptions in the window, and what they cost.

    `recomputed` is None where that cannot be told; `reason` says why, where more than missing counters is to blame.
    `per_request` is None where no request tells how often it was preempted.
    """

    count: int
    recomputed: Recomputed | None
    reason: str | None = None
    per_request: PerRequest | None = None


def prefix_hit_ratio(counters: pd.DataFrame, window: SteadyWindow) -> float | None:
    """Prompt tokens found in the prefix cache over those looked up; None where nothing was looked up."""
    queries, hits = (
        delta(counters, name, start_ns=window.start_ns, end_ns=window.end_ns) for name in (PREFIX_QUERIES, PREFIX_HITS)
    )
    return min(hits / queries, 1.0) if queries and hits is not None else None


def prefix_queried_tokens(counters: pd.DataFrame, window: SteadyWindow) -> float | None:
    """Prompt tokens that were looked up in the prefix cache in the window; None without such a counter."""
    return delta(counters, PREFIX_QUERIES, start_ns=window.start_ns, end_ns=window.end_ns)


def usual_prompt_tokens(
    log: RequestLog | None, counters: pd.DataFrame, hit_ratio: float | None, window: SteadyWindow
) -> float | None:
    """Tokens of a usual prompt that the cache does not hold yet.

    The request log gives the 90th percentile of lengths; without it the engine's histogram gives their mean.
    """
    length: float | None = None
    if log is not None and not np.isnan(log.prompt_tokens).all():
        length = float(np.nanpercentile(log.prompt_tokens, USUAL_PROMPT_PERCENTILE))
    else:
        total, count = (
            delta(counters, name, start_ns=window.start_ns, end_ns=window.end_ns)
            for name in (PROMPT_LENGTH_SUM, PROMPT_LENGTH_COUNT)
        )
        length = total / count if total and count else None
    return length * (1.0 - (hit_ratio or 0.0)) if length is not None else None


def mean_request_tokens(log: RequestLog | None, hit_ratio: float | None) -> float | None:
    """KV tokens of its own that a request holds when it ends, on average; None where the log lacks a length."""
    if log is None:
        return None
    mean = float((log.prompt_tokens * (1.0 - (hit_ratio or 0.0)) + log.output_tokens).mean())
    return mean if mean > 0 else None  # NaN is not above


def most_tokens_lost(settings: EngineSettings, log: RequestLog | None) -> float | None:
    """The most tokens that one preemption can make the engine compute again; None where nothing limits them.

    No request holds more than the whole KV cache, nor more than the longest prompt with its output.
    """
    limits = []
    if settings.kv_blocks is not None and settings.block_size:
        limits.append(float(settings.kv_blocks * settings.block_size))
    if log is not None:
        lengths = log.prompt_tokens + log.output_tokens
        if not np.isnan(lengths).all():
            limits.append(float(np.nanmax(lengths)))
    return min(limits, default=None)


def preempted_requests(requests: pd.DataFrame, counters: pd.DataFrame, window: SteadyWindow) -> PerRequest | None:
    """How often requests were preempted: from their own rows, else from the engine's histogram; None without either."""
    if "preemptions" in requests.columns:
        told = requests["preemptions"].dropna().to_numpy(dtype=np.float64)
        if len(told):
            return PerRequest(len(told), float(np.percentile(told, 99)), float((told > 0).mean()))
    bounds: dict[float, float] = {}
    for label in _upper_bounds(counters):
        # one boundary, summed over whatever else tells the series apart
        rise = delta(counters, _PREEMPTED_BUCKETS[0], {"le": label}, start_ns=window.start_ns, end_ns=window.end_ns)
        bounds[float(label)] = rise or 0.0
    total = bounds.get(math.inf, 0.0)
    if total <= 0:
        return None
    p99 = next(bound for bound in sorted(bounds) if bounds[bound] >= 0.99 * total)
    never = bounds.get(0.0)
    return PerRequest(round(total), p99, 1.0 - never / total if never is not None else None)


def _upper_bounds(counters: pd.DataFrame) -> set[str]:
    """Labels of the histogram's boundaries that are numbers."""
    found = set()
    for text in counters.loc[counters["name"].isin(_PREEMPTED_BUCKETS), "labels"].unique():
        label = json.loads(text).get("le", "")
        try:
            number = float(label)
        except (ValueError, TypeError):
            continue
        if not math.isnan(number):
            found.add(label)
    return found


def preemptions(
    counters: pd.DataFrame,
    everything: EngineSteps,
    prompt_tokens: float | None,
    most_lost: float | None,
    window: SteadyWindow,
) -> Preemptions | None:
    """Count preemptions in the window and what they had computed again; None where the engine does not count them.

    What prefills computed, less what the prompts that got through prefill held and the prefix cache did not, was
    computed again. Both sides are taken over the same stretch: between two polls of the page. Prompts that were given
    up are not counted either; where the preempted requests cannot have lost as much, nothing is said.

    Args:
        counters: the counter table.
        everything: all steps, those in profiler windows too.
        prompt_tokens: length of a usual prompt, for the error at the ends of the stretch.
        most_lost: tokens that one preemption can cost at most.
        window: that is judged.
    """
    count = delta(counters, PREEMPTIONS, start_ns=window.start_ns, end_ns=window.end_ns)
    if count is None:
        return None
    again = _recomputed(counters, everything, prompt_tokens, window) if count else None
    if again is not None and most_lost is None:
        return Preemptions(round(count), None, LIMIT_UNKNOWN)
    if again is not None and most_lost is not None and again.low > count * most_lost:
        return Preemptions(round(count), None, IMPLAUSIBLE)
    return Preemptions(round(count), again)


def _recomputed(
    counters: pd.DataFrame, everything: EngineSteps, prompt_tokens: float | None, window: SteadyWindow
) -> Recomputed | None:
    prompts = series(counters, PROMPT_TOKENS)
    if prompts.shape[1] != 1:
        return None
    polled = prompts.index.to_numpy(dtype=np.int64)
    polled = polled[(polled >= window.start_ns) & (polled <= window.end_ns)]
    if len(polled) < 2:
        return None
    first, last = int(polled[0]), int(polled[-1])
    steps = everything.where((everything.end_ns > first) & (everything.end_ns <= last))
    through = delta(counters, PROMPT_TOKENS, start_ns=first, end_ns=last)
    if through is None or len(steps) == 0 or not steps.counted.all():
        return None
    # without the counter of hits they are taken for computed, which makes what was computed again too small
    found = delta(counters, PREFIX_HITS, start_ns=first, end_ns=last) or 0.0
    context = int(steps.context_tokens.sum())
    again = context - round(through - found)
    largest_step = int(steps.context_tokens.max())
    error = 2 * round(max(prompt_tokens or 0.0, largest_step) + largest_step)
    return Recomputed(again, max(again - error, 0), max(again + error, 0), context) if again > 0 else None
