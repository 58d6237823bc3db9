"""Prefill that interrupts decode: how much longer running decodes waited because prompts shared or took their step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL
from spyreprof_analyzers.token_budget import smaller_budget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.engine_steps import EngineSteps


@dataclass(frozen=True, slots=True)
class Interference:
    """What prefill adds to the time that running decodes wait for their next token.

    Attributes:
        extra_wait_share: added waiting over all waiting of running decodes, both in request-seconds.
        window_share: the added time itself over the judged window, however many decodes waited.
        slowest_mixed_share: of the slowest hundredth of the steps that generate, the share with prompt tokens in
            them, of those that compiled nothing; None with too few steps.
        interrupted_steps: steps with prompt tokens in which decodes ran or waited.

    Of steps that compiled nobody knows what prompts added: they count as waiting, and add nothing.
    """

    extra_wait_share: float
    window_share: float
    slowest_mixed_share: float | None
    interrupted_steps: int


def interference(steps: EngineSteps, judged_ns: int, rules: RuleBook) -> Interference | None:
    """Measure it; None where too few decode steps ran alone to tell what a step takes without prompts.

    Args:
        steps: the window's steps, shape (n,).
        judged_ns: length of the window.
        rules: how many steps are enough.
    """
    rule, steps = rules["SPY-INT-001"], steps.where(steps.counted)
    warm = steps.compiles == 0
    alone = steps.where(warm & (steps.phase == DECODE))
    if len(alone) < rule.threshold("min_decode_steps"):
        return None
    decoding = np.where(np.isin(steps.phase, (DECODE, MIXED)), steps.generation_requests, 0)
    decoding = np.where(steps.phase == PREFILL, _decodes_left_out(steps), decoding)
    with_prompts = warm & np.isin(steps.phase, (PREFILL, MIXED)) & (decoding > 0)
    # a step without them costs nothing where no decode waits to be in it
    usual = np.where(steps.phase == MIXED, usual_step_ns(alone, decoding, rule.threshold("min_steps_per_size")), 0)
    extra_ns = np.where(with_prompts, np.maximum(steps.duration_ns - usual, 0), 0)
    waited = int((steps.duration_ns * decoding).sum())
    generating = steps.where(warm & np.isin(steps.phase, (DECODE, MIXED)))
    slowest: float | None = None
    if len(generating) >= rule.threshold("min_steps_for_tail"):
        tail = generating.duration_ns >= np.percentile(generating.duration_ns, 99)
        slowest = float((generating.phase[tail] == MIXED).mean())
    return Interference(
        extra_wait_share=int((extra_ns * decoding).sum()) / max(waited, 1),
        window_share=int(extra_ns.sum()) / max(judged_ns, 1),
        slowest_mixed_share=slowest,
        interrupted_steps=int(with_prompts.sum()),
    )


def usual_step_ns(alone: EngineSteps, decoding: NDArray[np.int64], least: float) -> NDArray[np.int64]:
    """The median step of as many decodes and no prompt; between sizes that were seen, a line.

    Args:
        alone: at least one step that decodes only.
        decoding: for each step in question, how many requests it decodes, shape (n,).
        least: so many steps of a size make a median.

    Returns:
        Nanoseconds, shape (n,).
    """
    order = np.argsort(alone.generation_requests, kind="stable")
    sizes, first, counts = np.unique(alone.generation_requests[order], return_index=True, return_counts=True)
    enough = counts >= least if (counts >= least).any() else counts > 0
    of_size = np.split(alone.duration_ns[order], first[1:])
    medians = [float(np.median(ns)) for ns, told in zip(of_size, enough.tolist(), strict=True) if told]
    return np.interp(decoding, sizes[enough], medians).astype(np.int64)


def _decodes_left_out(steps: EngineSteps) -> NDArray[np.int64]:
    """For each step of prompts alone, how many decodes went on after it that had begun before it, at least.

    Between two steps that generate, requests end and others finish their prefill. The later step holds at most as many
    new ones as prompts were begun in between; the rest went on.
    """
    prompts = steps.phase == PREFILL
    generating = np.flatnonzero(~prompts)
    if len(generating) == 0:
        return np.zeros(len(steps), dtype=np.int64)
    requests, after = steps.context_requests, np.maximum(steps.generation_requests[generating], 0)
    # a chunk of the prompts that the step before worked on begins none
    goes_on = np.zeros(len(steps), dtype=np.bool_)
    goes_on[1:] = prompts[1:] & prompts[:-1] & (requests[1:] == requests[:-1])
    goes_on[1:] &= steps.context_seq_len_sum[1:] == steps.context_seq_len_sum[:-1] + steps.context_tokens[1:]
    begun = np.concatenate(([0], np.cumsum(np.where(prompts & ~goes_on, requests, 0))))
    since = np.concatenate(([0], generating[:-1] + 1))
    before = np.concatenate(([0], (after + np.maximum(requests[generating], 0))[:-1]))
    went_on = np.maximum(np.minimum(before, after - (begun[generating] - begun[since])), 0)
    # prompts after the last of them are followed by no step that could tell
    following = np.cumsum(~prompts)
    told = prompts & (following < len(generating))
    return np.where(told, went_on[np.minimum(following, len(generating) - 1)], 0)


def interrupted(context: Context) -> Finding | None:
    """Running decodes wait for prompts of others."""
    facts, rules, book = context.facts, context.rules, context.book
    seen, rule = facts.interference, rules["SPY-INT-001"]
    if seen is None:
        return None
    # either alone says little: a tenth of the window matters if decodes feel it, and the other way round
    material = min(seen.extra_wait_share, seen.window_share)
    if material < rule.materiality_share:
        return None
    source = "engine steps"
    evidence = [
        book.add("interference.extra_wait_share", seen.extra_wait_share, "ratio", "derived", source=source,
                 n=seen.interrupted_steps,
                 method="step time beyond the median decode step of the same batch, times the decodes that waited, "
                 "over all waiting of running decodes"),
        book.add("interference.window_share", seen.window_share, "ratio", "derived", source=source,
                 n=seen.interrupted_steps, method="the same time beyond it, over the window"),
    ]  # fmt: skip
    text = (
        f"{format_share(seen.extra_wait_share)} of the time that running decodes wait for their next token is added by "
        f"prompts in the same step or in a step between: {format_share(seen.window_share)} of the window."
    )
    if seen.slowest_mixed_share is not None:
        evidence.append(
            book.add("interference.slowest_mixed_share", seen.slowest_mixed_share, "ratio", "measured", source=source,
                     method="of steps that generate and are at or above the 99th percentile, those with prompt tokens")
        )  # fmt: skip
        text += f" Of the slowest hundredth of steps, {format_share(seen.slowest_mixed_share)} held prompt tokens."
    advice = smaller_budget(facts, context.targets, rules, book)
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(material, rule),
        title=rule.title,
        text=text,
        phase="mixed",
        share=seen.window_share,
        evidence=tuple(evidence),
        against=rule.false_positive_notes,
        advice=(advice,) if advice is not None else (),
    )
