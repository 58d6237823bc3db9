"""The finding that prefix caching is off while prompts take the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
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
        advice=(_switch_on(share),),
    )


def _switch_on(share: float) -> Advice:
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
        preconditions=("prompts begin with the same tokens: a system prompt, examples, earlier turns",),
        test_arguments="--enable-prefix-caching",
        refuted_if="vllm:prefix_cache_hits does not rise, or prefill time does not fall",
    )  # fmt: skip


def cite_hit_ratio(facts: Facts, book: EvidenceBook) -> tuple[str, ...]:
    """Write down how much of the prompts the prefix cache held; nothing where that is not known."""
    if facts.prefix_hit_ratio is None:
        return ()
    return (
        book.add("prefix_cache.hit_ratio", facts.prefix_hit_ratio, "ratio", "measured", source="/metrics counters",
                 method="prompt tokens found in the prefix cache over prompt tokens looked up"),
    )  # fmt: skip
