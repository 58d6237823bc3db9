"""Prompts that are computed in many small chunks, each of which pays what a step costs however little it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.engine_steps import MIXED, PREFILL
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.slope_tests import PER_CONTEXT_TOKEN
from spyreprof_analyzers.token_budget import SETTING, larger_budget

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts

_LONG_PROMPT_PERCENTILE = 90
_MODEL_BAND = 0.15


@dataclass(frozen=True, slots=True)
class Chunks:
    """Steps with prompt tokens that fill the budget.

    `full_share` is their part of the time of all steps with prompts; `fixed_ns` what one of them takes without its
    tokens, `per_token_ns` what a token adds.
    """

    budget: int
    full_share: float
    step_ns: float
    tokens: float
    fixed_ns: float
    per_token_ns: float
    steps: int

    @property
    def fixed_share(self) -> float:
        """Part of a full step that is there however many tokens it holds."""
        return self.fixed_ns / self.step_ns if self.step_ns > 0 else 0.0


def full_chunks(facts: Facts, rules: RuleBook) -> Chunks | None:
    """Cut the usual full step into its fixed cost and that of its tokens; None where the two cannot be told apart."""
    rule, model = rules["SPY-PRE-002"], facts.model
    steps = facts.steps.where(facts.steps.counted & np.isin(facts.steps.phase, (PREFILL, MIXED)))
    budget = facts.settings.max_num_batched_tokens
    if model is None or model.prompts is None or budget is None or len(steps) == 0:
        return None
    per_token = model.identified(PER_CONTEXT_TOKEN)
    if per_token is None and model.prompts.small(PER_CONTEXT_TOKEN):
        per_token = 0.0  # tokens hardly take time, which is an answer too
    if per_token is None:
        return None
    full = steps.where(steps.context_tokens + steps.generation_tokens >= rule.threshold("full_budget_ratio") * budget)
    if len(full) < rules["SPY-GEN-006"].threshold("min_steps_at_size"):
        return None
    step, tokens = float(np.median(full.duration_ns)), float(np.median(full.context_tokens))
    # decodes that share the step are part of what it costs without prompt tokens
    return Chunks(
        budget=budget,
        full_share=int(full.duration_ns.sum()) / max(int(steps.duration_ns.sum()), 1),
        step_ns=step,
        tokens=tokens,
        fixed_ns=max(step - per_token * tokens, 0.0),
        per_token_ns=per_token,
        steps=len(full),
    )


def small_chunks(context: Context) -> Finding | None:
    """Most of the time of full chunks is there however many tokens they hold."""
    facts, rule, book = context.facts, context.rules["SPY-PRE-002"], context.book
    share, seen = facts.shares.prefill, full_chunks(facts, context.rules)
    if seen is None or share < rule.materiality_share:
        return None
    if seen.full_share < rule.threshold("min_full_share") or seen.fixed_share < rule.threshold("min_fixed_share"):
        return None
    evidence = (
        cite_share("prefill", facts, book),
        book.add("prefill.full_chunk_share", seen.full_share, "ratio", "measured", n=seen.steps, source="engine steps",
                 method="time of steps that fill the token budget, over that of all steps with prompt tokens"),
        book.add("prefill.fixed_share", seen.fixed_share, "ratio", "derived", n=seen.steps, source="engine steps",
                 method="median full step less the fitted cost of its prompt tokens, over the step"),
    )  # fmt: skip
    advice = _larger(context, seen)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(share, rule),
        title=rule.title,
        text=f"Steps that fill the budget of {seen.budget} tokens take {format_seconds(seen.step_ns / NS_PER_S)}, of "
        f"which {format_share(seen.fixed_share)} is there however many prompt tokens they hold. A prompt that needs "
        "several such steps pays that for each of them.",
        phase="prefill",
        share=share,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
        advice=(advice,) if advice is not None else (),
    )


def _larger(context: Context, seen: Chunks) -> Advice | None:
    """A budget that holds a usual long prompt or makes the fixed cost small; None where decodes would wait too long."""
    facts, rules, target = context.facts, context.rules, context.targets.itl_p99_s
    if facts.log is None or np.isnan(facts.log.prompt_tokens).any() or _decodes_wait(context):
        return None
    prompts = facts.log.prompt_tokens
    to = larger_budget(
        facts, float(np.percentile(prompts, _LONG_PROMPT_PERCENTILE)), seen.fixed_ns, seen.per_token_ns, rules
    )
    longest_s = (seen.fixed_ns + seen.per_token_ns * to) / NS_PER_S
    if to <= seen.budget or (target is not None and longest_s > target):
        return None
    spyre = ("the new chunk is compiled and warmed up before it serves",) if facts.settings.platform == "spyre" else ()
    return Advice(
        id="larger_token_budget",
        setting=SETTING,
        from_=seen.budget,
        to=to,
        from_origin="measured",
        expected=(_faster(prompts, seen, to),),
        pays=(
            ExpectedChange(
                metric="longest gap between tokens", direction="up", low=0.0,
                high=max(longest_s * (1.0 + _MODEL_BAND) * NS_PER_S / seen.step_ns - 1.0, 0.0),
                note=f"a full step takes about {format_seconds(longest_s)}, and decodes in it wait as long",
            ),
            ExpectedChange(metric="KV cache", direction="down", note="activations of a larger step take memory"),
        ),
        preconditions=("decodes that run beside prompts may wait for a step that long", *spyre),
        test_arguments=f"--max-num-batched-tokens {to}",
        refuted_if="prompt tokens per second of prefill time do not rise",
    )  # fmt: skip


def _decodes_wait(context: Context) -> bool:
    """Do prompts hold up decodes already? Then larger steps would make that worse."""
    seen, rule = context.facts.interference, context.rules["SPY-INT-001"]
    return seen is not None and min(seen.extra_wait_share, seen.window_share) >= rule.materiality_share


def _faster(prompts: np.ndarray, seen: Chunks, to: int) -> ExpectedChange:
    """Time of the logged prompts in chunks of either size, one after the other."""

    def time_ns(chunk: float) -> float:
        return float((np.ceil(prompts / chunk) * seen.fixed_ns + prompts * seen.per_token_ns).sum())

    saved = 1.0 - time_ns(to) / time_ns(max(seen.tokens, 1.0))
    return ExpectedChange(
        metric="prefill time", direction="down", low=max(saved - _MODEL_BAND * (1.0 - saved), 0.0),
        high=min(saved + _MODEL_BAND * (1.0 - saved), 1.0),
        note="the logged prompts in chunks of either size, by the fitted cost of a chunk and of its tokens",
    )  # fmt: skip
