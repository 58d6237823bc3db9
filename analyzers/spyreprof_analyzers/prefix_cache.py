"""Findings on the prefix cache: off while prompts take the time, or on and of little use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.facts import cite_share

if TYPE_CHECKING:
    from spyreprof.findings import Severity
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts


def caching_is_off(context: Context) -> Finding | None:
    """Prompts take a material share, and what they share is computed each time.

    How much they share is not visible while caching is off, so that the gain has a ceiling and no prediction.
    """
    facts, rules, book = context.facts, context.rules, context.book
    rule, share = rules["SPY-PFX-001"], facts.shares.prefill
    if facts.settings.prefix_caching is not False or share < rule.materiality_share:
        return None
    severity: Severity = "low"
    if context.verdict.primary != "load_limited" and share >= rule.threshold("medium_severity_share"):
        severity = "medium"
    evidence = [
        cite_share("prefill", facts, book),
        book.add("prefix_cache.enabled", 0, "", "measured", source="engine settings",
                 method="enable_prefix_caching in force: 1 on, 0 off"),
    ]  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=f"Prefill takes {format_share(share)} of the window and every prompt is computed from its start. How much "
        "the prompts share cannot be seen while caching is off; it can save at most that.",
        phase="prefill",
        share=share,
        evidence=tuple(evidence),
        against=rule.false_positive_notes,
        advice=() if _all_too_short(facts) else (_switch_on(share, findable_tokens(facts)),),
    )


def _all_too_short(facts: Facts) -> bool:
    """Is every prompt shorter than what the cache could find?"""
    size, longest = findable_tokens(facts), _longest_prompt(facts)
    return size is not None and longest is not None and longest < size


def _switch_on(share: float, size: int | None) -> Advice:
    piece = f" of {size} tokens or more" if size is not None else ""
    return Advice(
        id="enable_prefix_caching",
        setting="enable_prefix_caching",
        from_="off",
        to="on",
        from_origin="measured",
        expected=(
            ExpectedChange(
                metric="prefill time", direction="down", high=1.0,
                note=f"a ceiling and no prediction: prefill is {format_share(share)} of the window, and only what "
                "prompts share is saved",
            ),
            ExpectedChange(metric="TTFT", direction="down", note="for prompts whose beginning was computed before"),
        ),
        pays=(ExpectedChange(metric="KV cache", direction="up", note="blocks keep old prompts until they are needed"),),
        preconditions=(f"prompts share a beginning{piece}: a system prompt, examples, earlier turns",),
        test_arguments="--enable-prefix-caching",
        refuted_if="vllm:prefix_cache_hits does not rise, or prefill time does not fall",
    )  # fmt: skip


def finds_little(context: Context) -> Finding | None:
    """The cache is on and asked, and holds little of the prompts: what that costs, and whether it could hold more."""
    facts, rule, book = context.facts, context.rules["SPY-PFX-002"], context.book
    hit, queried, share = facts.prefix_hit_ratio, facts.prefix_queried_tokens, facts.shares.prefill
    if facts.settings.prefix_caching is not True or hit is None or queried is None:
        return None
    if queried < rule.threshold("min_queried_tokens") or hit >= rule.threshold("low_hit_ratio"):
        return None
    if share < rule.materiality_share:
        return None
    evidence = [
        cite_share("prefill", facts, book),
        *cite_hit_ratio(facts, book),
        book.add("prefix_cache.queried_tokens", queried, "tokens", "measured", source="/metrics counters",
                 method="rise of vllm:prefix_cache_queries over the window"),
    ]  # fmt: skip
    missed_s = share * facts.wall.judged_ns / NS_PER_S
    found, missed = ("none", "them") if hit == 0 else (format_share(hit), "the rest")
    text = (
        f"Of {queried:,.0f} prompt tokens that were looked up the prefix cache held {found}. Computing {missed} took "
        f"{format_seconds(missed_s)}, {format_share(share)} of the window; it is what sharing could save at most."
    )
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="low",
        title=rule.title,
        text=f"{text} {_why(facts, hit)}",
        phase="prefill",
        share=share,
        evidence=tuple(evidence),
        against=context.against(*rule.false_positive_notes),
    )


def _why(facts: Facts, hit: float) -> str:
    """Whether the cache could have found more: it holds whole blocks alone."""
    size, longest = findable_tokens(facts), _longest_prompt(facts)
    if size is None:
        return "Only whole blocks are found; how long they are is not known."
    blocks = f"Only whole blocks of {size} tokens are found"
    if longest is not None and longest < size:
        return f"{blocks}, and no prompt is that long (at most {longest:.0f}): nothing can be found."
    if hit == 0:
        return f"{blocks}: the prompts share no beginning of that length, or differ in their first tokens."
    return (
        f"{blocks}. What changes from prompt to prompt, such as times and ids, belongs behind what stays; replicas "
        "find what they computed themselves."
    )


def findable_tokens(facts: Facts) -> int | None:
    """The least beginning that the cache can find: a block, and on Spyre a whole chunk; None where it is not known."""
    if facts.settings.platform == "spyre":
        return facts.settings.max_num_batched_tokens
    return facts.settings.block_size


def _longest_prompt(facts: Facts) -> float | None:
    log = facts.log
    if log is None or len(log) == 0 or np.isnan(log.prompt_tokens).any():
        return None
    return float(log.prompt_tokens.max())


def cite_hit_ratio(facts: Facts, book: EvidenceBook) -> tuple[str, ...]:
    """Write down how much of the prompts the prefix cache held; nothing where that is not known."""
    if facts.prefix_hit_ratio is None:
        return ()
    return (
        book.add("prefix_cache.hit_ratio", facts.prefix_hit_ratio, "ratio", "measured", source="/metrics counters",
                 method="prompt tokens found in the prefix cache over prompt tokens looked up"),
    )  # fmt: skip
