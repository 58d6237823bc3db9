"""Padding: what steps execute beyond what their requests need, and what it costs.

An engine that computes a batch as a rectangle pads every sequence to the longest one, prompts to whole chunks, and the
batch to a size that it has a program for. How much was padding is counted; what it cost is told by the slope of step
time over executed work, or else by steps of like batches that held little padding, wherever in the recording they ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.context import NOTHING_AGAINST
from spyreprof_analyzers.engine_steps import DECODE
from spyreprof_analyzers.slope_tests import PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_REQUEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.facts import Facts
    from spyreprof_analyzers.request_log import RequestLog
    from spyreprof_analyzers.slope import StepModel

SETTING = "routing by length"


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding of the window's steps.

    Attributes:
        steps: steps that tell what they executed.
        waste_ratio: of the sequence tokens that decode steps executed, those that no request holds, weighted by time;
            None without decode steps that tell.
        prompt_waste_ratio: of the prompt tokens that steps executed, those of no prompt; None without any.
        low_share, high_share: of the window, the time that padding takes; None where nothing tells its cost.
        basis: what told it.
    """

    steps: int
    waste_ratio: float | None
    prompt_waste_ratio: float | None
    low_share: float | None = None
    high_share: float | None = None
    basis: Literal["slope", "steps with little padding"] | None = None

    @property
    def window_share(self) -> float | None:
        """The middle of both shares."""
        if self.low_share is None or self.high_share is None:
            return None
        return (self.low_share + self.high_share) / 2


def padding(
    steps: EngineSteps, everything: EngineSteps, model: StepModel | None, judged_ns: int, rules: RuleBook
) -> Padding | None:
    """Hold what was executed against what was scheduled; None where most steps do not tell what they executed.

    Args:
        steps: the window's steps.
        everything: all steps of the recording, to compare with.
        model: step time over executed work.
        judged_ns: length of the window.
        rules: how much padding is little, and how many steps make a comparison.
    """
    told = _telling(steps)
    if len(told) == 0 or 2 * int(told.duration_ns.sum()) < int(steps.duration_ns.sum()):
        return None
    decode, length = _decode(told), max(judged_ns, 1)
    prompts = told.where(told.context_tokens > 0)
    found = Padding(
        steps=len(told),
        waste_ratio=_waste(decode.generation_seq_len_sum, decode.executed_generation_seq_len_sum, decode.duration_ns),
        prompt_waste_ratio=_waste(prompts.context_tokens, prompts.executed_context_tokens, prompts.duration_ns),
    )
    by_slope = _by_slope(told, decode, model)
    if by_slope is not None:
        low, high = (min(ns / length, 1.0) for ns in by_slope)
        return Padding(found.steps, found.waste_ratio, found.prompt_waste_ratio, low, high, "slope")
    compared = _by_comparison(decode, _decode(_telling(everything)), rules)
    if compared is not None:
        low, high = (min(ns / length, 1.0) for ns in compared)
        basis: Literal["steps with little padding"] = "steps with little padding"
        return Padding(found.steps, found.waste_ratio, found.prompt_waste_ratio, low, high, basis)
    return found


def padding_binds(facts: Facts, rules: RuleBook) -> bool:
    """Does padding, at the least that it can have cost, take a binding part of the window?"""
    seen = facts.padding
    least = rules["SPY-PAD-001"].threshold("binding_window_share")
    return seen is not None and seen.low_share is not None and seen.low_share >= least


def _telling(steps: EngineSteps) -> EngineSteps:
    return steps.where(steps.counted & (steps.told_executed > 0) & (steps.compiles == 0))


def _decode(steps: EngineSteps) -> EngineSteps:
    return steps.where((steps.phase == DECODE) & (steps.generation_seq_len_sum > 0))


def _waste(scheduled: NDArray[np.int64], executed: NDArray[np.int64], weight_ns: NDArray[np.int64]) -> float | None:
    if len(scheduled) == 0 or not weight_ns.any():
        return None
    return float(np.average(1.0 - scheduled / np.maximum(executed, 1), weights=weight_ns))


def _by_slope(told: EngineSteps, decode: EngineSteps, model: StepModel | None) -> tuple[float, float] | None:
    """Nanoseconds of padding by the fitted costs, low and high; None where a cost that it needs is not determined."""
    extra = {
        PER_CACHED_TOKEN: int((decode.executed_generation_seq_len_sum - decode.generation_seq_len_sum).sum()),
        PER_REQUEST: int((decode.executed_generation_requests - decode.generation_requests).sum()),
        PER_CONTEXT_TOKEN: int((told.executed_context_tokens - told.context_tokens).sum()),
    }
    terms = {term.name: term for term in model.fit.terms} if model is not None else {}
    low = high = 0.0
    for name, amount in extra.items():
        if amount == 0:
            continue
        term = terms.get(name)
        if term is None or not term.identifiable or term.low is None or term.high is None:
            return None
        low, high = low + amount * term.low, high + amount * term.high
    return low, high


def _by_comparison(padded: EngineSteps, others: EngineSteps, rules: RuleBook) -> tuple[float, float] | None:
    """Nanoseconds of padding against decode steps of like batches with little of it; None with too few of these.

    What a larger batch takes by itself is at most in proportion to it, which the lower number leaves out.
    """
    rule, like = rules["SPY-PAD-001"], rules["SPY-GEN-003"].threshold("max_batch_ratio")
    ratio = rule.threshold("little_padding_ratio")
    much = padded.where(padded.executed_generation_seq_len_sum > ratio * padded.generation_seq_len_sum)
    if len(much) == 0:
        return None
    batch = float(np.median(much.generation_requests))
    little = others.executed_generation_seq_len_sum <= ratio * others.generation_seq_len_sum
    near = (others.generation_requests >= batch / like) & (others.generation_requests <= batch * like)
    chosen = others.where(little & near)
    if len(chosen) < rule.threshold("min_steps_to_compare"):
        return None
    usual_ns, usual_batch = float(np.median(chosen.duration_ns)), float(np.median(chosen.generation_requests))
    usual_length = float(np.median(chosen.executed_generation_seq_len_sum))
    executed, scheduled = much.executed_generation_seq_len_sum, much.generation_seq_len_sum
    longer = executed > usual_length
    if not longer.any():
        return None
    # of what was executed beyond those steps, a part belongs to requests
    of_padding = np.clip((executed - scheduled) / np.maximum(executed - usual_length, 1.0), 0.0, 1.0)
    by_batch = np.maximum(much.generation_requests / max(usual_batch, 1.0), 1.0)
    low, high = (
        float((np.clip(much.duration_ns - usual_ns * scale, 0.0, None) * of_padding)[longer].sum())
        for scale in (by_batch, np.ones(len(much)))
    )
    return low, high


def padded(context: Context) -> Finding | None:
    """Padding takes a material part of the window."""
    facts, book, rule = context.facts, context.book, context.rules["SPY-PAD-001"]
    seen = facts.padding
    if seen is None:
        if facts.settings.platform == "spyre":
            book.leave_open(
                "padding",
                "the steps do not tell what they executed",
                "mark steps with `spyreprof_agent` and give what was executed, padding included",
            )
        return None
    wasted = max(seen.waste_ratio or 0.0, seen.prompt_waste_ratio or 0.0)
    if seen.low_share is None or seen.high_share is None or seen.window_share is None:
        if wasted >= rule.threshold("much_padding"):
            book.leave_open(
                "what padding costs",
                f"{format_share(wasted)} of the tokens that steps execute are padding, and no steps of like batches "
                "with little of it were seen",
                "record the same load once without its longest requests",
            )
        return None
    if seen.low_share < rule.materiality_share:
        return None
    basis = "step time over executed work" if seen.basis == "slope" else "steps of like batches with little padding"
    evidence = [
        book.add(
            "padding.window_share", seen.window_share, "ratio", "estimated", source="engine steps", n=seen.steps,
            low=seen.low_share, high=seen.high_share, method=f"time of padding over the window, by {basis}",
        ),
    ]  # fmt: skip
    said = []
    for name, what, value in (
        ("waste_ratio", "sequence tokens", seen.waste_ratio),
        ("prompt_waste_ratio", "prompt tokens", seen.prompt_waste_ratio),
    ):
        if value:
            said.append(f"{format_share(value)} of the {what}")
            evidence.append(
                book.add(f"padding.{name}", value, "ratio", "measured", source="engine steps", n=seen.steps,
                         method=f"{what} that were executed and belong to no request, over those executed")
            )  # fmt: skip
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(seen.window_share, rule),
        title=rule.title,
        text=f"Of what steps executed, {' and '.join(said) or 'a part of each batch'} were padding. It took "
        f"{format_share(seen.low_share)} to {format_share(seen.high_share)} of the window.",
        phase="decode" if (seen.waste_ratio or 0.0) >= (seen.prompt_waste_ratio or 0.0) else "prefill",
        share=seen.window_share,
        evidence=tuple(evidence),
        against=context.against(*rule.false_positive_notes) or (NOTHING_AGAINST,),
        advice=_apart(facts, seen, context.rules),
    )


def _apart(facts: Facts, seen: Padding, rules: RuleBook) -> tuple[Advice, ...]:
    """Serve long requests apart from short ones; nothing where sequences are not what is padded."""
    rule, decode_share = rules["SPY-PAD-001"], facts.shares.decode
    if (seen.waste_ratio or 0.0) < rule.threshold("much_padding") or seen.low_share is None or seen.high_share is None:
        return ()
    if decode_share <= 0:
        return ()
    longest = short_length(facts.log, facts.window.start_ns, facts.window.end_ns, rule.threshold("much_padding"))
    low, high = (min(share / decode_share, 1.0) for share in (seen.low_share, seen.high_share))
    narrow = high - low <= rules["SPY-GEN-006"].threshold("max_band") * (low + high)
    return (
        Advice(
            id="separate_long_requests",
            setting=SETTING,
            from_="requests of all lengths in one batch",
            to=f"requests of more than {longest} tokens apart" if longest is not None else "long requests apart",
            from_origin="measured",
            expected=(
                ExpectedChange(
                    metric="ITL", direction="down", low=low if narrow else None, high=high if narrow else None,
                    note="of the requests that are then no longer padded",
                ),
            ),
            pays=(
                ExpectedChange(
                    metric="TTFT", direction="up",
                    note="of the long requests, which wait for an engine or a time of their own",
                ),
            ),
            preconditions=("a second engine serves the long requests, or they run at another time",),
            test_arguments="",
            test_note="under the same load without its long requests",
            refuted_if="the median gap between tokens does not fall",
        ),
    )  # fmt: skip


def short_length(log: RequestLog | None, start_ns: int, end_ns: int, least: float) -> int | None:
    """The length, prompt and output, that parts requests so that the padding of both groups is least.

    Each request counts for as long as it ran between the two times.

    Args:
        log: requests, or None.
        start_ns, end_ns: the window.
        least: how much smaller the two rectangles together must be than the one, 0 to 1.

    Returns:
        None where lengths or arrivals are unknown, and where no length parts them well.
    """
    if log is None or log.arrival_ns is None:
        return None
    ran_ns = np.minimum(log.arrival_ns + log.e2e_ns, end_ns) - np.maximum(log.arrival_ns, start_ns)
    lengths = log.prompt_tokens + log.output_tokens
    known = (ran_ns > 0) & ~np.isnan(lengths)
    if int(known.sum()) < 2 or not known[ran_ns > 0].all():
        return None
    order = np.argsort(lengths[known], kind="stable")
    tokens, weight = lengths[known][order], ran_ns[known][order].astype(np.float64)
    before = np.cumsum(weight)[:-1]
    two = before * tokens[:-1] + (weight.sum() - before) * tokens[-1]
    best = int(np.argmin(two))
    return int(tokens[best]) if two[best] <= (1.0 - least) * weight.sum() * tokens[-1] else None
