"""Short prompts that wait behind the chunks of a long one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers import intervals
from spyreprof_analyzers.token_budget import rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Time to the first token of short prompts, in seconds.

    `during_p95` of those that came while a long one was computed, `alone` the median of the others. `window_share`:
    long prompts were computed in that share of the window. `chunk_s`: a step with a full chunk.
    """

    during_p95: float
    alone: float
    held_up: int
    others: int
    long_prompts: int
    window_share: float
    budget: int
    chunk_s: float | None


def held_up(facts: Facts, rules: RuleBook) -> HeldUp | None:
    """Compare short prompts by when they came; None without arrivals and lengths, or with too few of either kind."""
    rule, log, budget = rules["SPY-HOL-001"], facts.log, _budget(facts)
    if log is None or log.arrival_ns is None or budget is None or np.isnan(log.prompt_tokens).any():
        return None
    inside = (log.arrival_ns >= facts.window.start_ns) & (log.arrival_ns < facts.window.end_ns)
    cached = np.nan_to_num(log.cached_tokens)
    computed = log.prompt_tokens - cached
    long_ones = computed > rule.threshold("long_prompt_ratio") * budget
    # what a cache holds of a long prompt is not computed; the rest of it still is one request
    short = (computed <= budget / 2) & inside
    if not long_ones.any():
        return None
    spans = intervals.union(
        np.stack((log.arrival_ns[long_ones], log.arrival_ns[long_ones] + log.ttft_ns[long_ones]), axis=1)
    )
    during = _within(log.arrival_ns, spans)
    ttft_s = log.ttft_ns / NS_PER_S
    least = rule.threshold("min_requests")
    if int((short & during).sum()) < least or int((short & ~during).sum()) < least:
        return None
    window = facts.window
    covered = intervals.total(intervals.clip(spans, window.start_ns, window.end_ns))
    return HeldUp(
        during_p95=float(np.percentile(ttft_s[short & during], 95)),
        alone=float(np.median(ttft_s[short & ~during])),
        held_up=int((short & during).sum()),
        others=int((short & ~during).sum()),
        long_prompts=int((long_ones & inside).sum()),
        window_share=covered / max(window.end_ns - window.start_ns, 1),
        budget=budget,
        chunk_s=_chunk_s(facts, budget),
    )


def _budget(facts: Facts) -> int | None:
    known = facts.settings.max_num_batched_tokens
    if known is not None:
        return known
    steps = facts.steps.where(facts.steps.counted)
    return int((steps.context_tokens + steps.generation_tokens).max()) if len(steps) else None


def _within(times: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which times lie in one of disjoint, sorted spans."""
    index = np.searchsorted(spans[:, 0], times, side="right") - 1
    return np.asarray((index >= 0) & (times < spans[np.maximum(index, 0), 1]))


def _chunk_s(facts: Facts, budget: int) -> float | None:
    """Median step that a chunk fills; None where none was seen."""
    steps = facts.steps.where(facts.steps.counted & (facts.steps.context_tokens >= 0.9 * budget))
    return float(np.median(steps.duration_ns)) / NS_PER_S if len(steps) else None


def behind_a_long_one(context: Context) -> Finding | None:
    """Short prompts wait many times as long while a long prompt is computed."""
    facts, rule, book = context.facts, context.rules["SPY-HOL-001"], context.book
    seen = held_up(facts, context.rules)
    if seen is None:
        _leave_open(facts, context.rules, book)
        return None
    if seen.during_p95 <= rule.threshold("slower_ratio") * seen.alone or seen.window_share < rule.materiality_share:
        return None
    source = facts.log.source if facts.log is not None else "requests"
    came = "time from arrival to first token of long prompts, over the window"
    evidence = (
        book.add("ttft.short_beside_long_p95", seen.during_p95, "s", "measured", n=seen.held_up, source=source,
                 method="95th percentile of short prompts that came while a long one was computed"),
        book.add("ttft.short_alone_p50", seen.alone, "s", "measured", n=seen.others, source=source,
                 method="median of short prompts that came at other times"),
        book.add("prompts.long_window_share", seen.window_share, "ratio", "measured", n=seen.long_prompts,
                 source=source, method=came),
    )  # fmt: skip
    advice = _smaller_share(facts, seen, context.rules)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(seen.window_share, rule),
        title=rule.title,
        text=f"For {format_share(seen.window_share)} of the window a prompt of more than "
        f"{rule.threshold('long_prompt_ratio'):g} chunks was computed. Short prompts that came meanwhile waited up to "
        f"{format_seconds(seen.during_p95)} for their first token (95th percentile), others "
        f"{format_seconds(seen.alone)} (median).",
        phase="prefill",
        share=seen.window_share,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
        advice=(advice,) if advice is not None else (),
    )  # fmt: skip


def _smaller_share(facts: Facts, seen: HeldUp, rules: RuleBook) -> Advice | None:
    """Half the budget for any one prompt; None where that is in force already, or the engine sets it itself."""
    now = facts.settings.long_prefill_token_threshold
    limit = now if now else seen.budget
    to = rounded(limit / 2, facts, rules)
    if facts.settings.platform == "spyre" or to < 1 or to >= limit:
        return None
    note = "short prompts no longer wait for the last chunk of a long one"
    if seen.chunk_s is not None:
        note += f": from {format_seconds(seen.during_p95)} to some steps of {format_seconds(seen.chunk_s)}"
    return Advice(
        id="long_prefill_token_threshold",
        setting="long_prefill_token_threshold",
        from_=now,
        to=to,
        from_origin="measured",
        expected=(ExpectedChange(metric="TTFT of short prompts", direction="down", note=note),),
        pays=(
            ExpectedChange(metric="TTFT of long prompts", direction="up",
                           note="they take more steps, some of them without others to share the budget with"),
        ),
        preconditions=(
            "chunked prefill is on",
            "versions of vLLM before 0.32 hold a long prompt to it even when it is alone",
        ),
        test_arguments=f"--long-prefill-token-threshold {to}",
        refuted_if="the 95th percentile of short prompts' first tokens does not fall",
    )  # fmt: skip


def _leave_open(facts: Facts, rules: RuleBook, book: EvidenceBook) -> None:
    """Steps show long prompts, but nobody tells how long the short ones waited."""
    budget = _budget(facts)
    if budget is None or (facts.log is not None and facts.log.arrival_ns is not None):
        return
    longest = int(facts.steps.context_seq_len_sum.max()) if len(facts.steps) else 0
    if longest > rules["SPY-HOL-001"].threshold("long_prompt_ratio") * budget:
        book.leave_open(
            "whether long prompts hold up short ones",
            "steps computed prompts of many chunks, but no log tells when requests came and what they waited",
            "record a load generator that writes its result",
        )
