"""Values for the token budget of a step: small enough for running decodes, large enough for its fixed cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, TradeOff
from spyreprof.units import NS_PER_S, format_seconds
from spyreprof_analyzers.engine_steps import MIXED
from spyreprof_analyzers.prediction import predict_step
from spyreprof_analyzers.slope_tests import PER_CONTEXT_TOKEN

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof.targets import Targets
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts

SETTING = "max_num_batched_tokens"


def rounded(tokens: float, facts: Facts, rules: RuleBook) -> int:
    """A budget as engines take it: whole multiples, down; small ones of engines on a CPU stay as they are."""
    rule = rules["SPY-INT-001"]
    if facts.settings.platform == "spyre":
        step = int(rule.threshold("spyre_multiple"))
        return int(tokens) // step * step
    step = int(rule.threshold("multiple"))
    return int(tokens) // step * step if tokens >= step else int(tokens)


def smaller_budget(facts: Facts, targets: Targets, rules: RuleBook, book: EvidenceBook) -> Advice | None:
    """A budget whose steps meet the latency target, (target - decode step) / cost of a prompt token + decodes.

    Half the present one where no target is given or the cost of a token is not known; the choice is then the user's.
    None where steps with decodes do not reach that budget, it would not hold the batch, or the target is met already.
    """
    mixed = facts.steps.where(facts.steps.counted).of_phase(MIXED)
    if len(mixed) == 0:
        return None
    tokens = mixed.context_tokens + mixed.generation_tokens
    known = facts.settings.max_num_batched_tokens
    current = known or int(tokens.max())
    by_target = _by_target(facts, targets, rules)
    wanted = by_target if by_target is not None else current // 2
    # the engine takes no budget under its batch cap
    least = max(facts.settings.max_num_seqs or 0, _least(facts, rules))
    to = max(rounded(wanted, facts, rules), least)
    batch = int(mixed.generation_requests.max()) + int(mixed.context_requests.max())
    if by_target is not None and wanted < to:
        book.leave_open(
            "a token budget that meets the latency target",
            f"a step may hold {max(int(wanted), 0)} tokens for it, which is less than the engine or its batch takes",
            "give a wider --slo itl_p99, run fewer requests at once, or compute prompts on another engine",
        )
    if to <= batch or to >= current or float(np.percentile(tokens, 90)) <= to:
        return None
    now = float(np.percentile(mixed.duration_ns, 90)) / NS_PER_S
    return Advice(
        id=SETTING,
        setting=SETTING,
        from_=current,
        to=to,
        from_origin="measured" if known else "estimated",
        expected=(_shorter_gaps(facts, to, now, rules),),
        pays=(
            ExpectedChange(metric="TTFT", direction="up", note="a prompt takes more steps, each with decodes in it"),
            ExpectedChange(metric="prompt tokens/s", direction="down", note="smaller steps use the machine less well"),
        ),
        preconditions=(
            f"every step still holds all {batch} requests that ran at once",
            "the mean gap between tokens hardly falls: the prompts' work stays, in smaller pieces",
            *(() if by_target is None else ("the target is met by the usual full step; a rarer slow one may miss it",)),
        ),
        test_arguments=f"--max-num-batched-tokens {to}",
        refuted_if="the 99th percentile of the gap between tokens does not fall",
        trade_off=() if by_target is not None else _trade_off(facts, (current, now), to, max(batch + 1, least)),
    )


def _by_target(facts: Facts, targets: Targets, rules: RuleBook) -> float | None:
    """(target - decode step of the usual batch) / time per prompt token + that batch; None without target or cost.

    Where the steps do not tell what a token costs apart from the pairs of tokens, the largest size of which steps that
    held as many took no longer.
    """
    per_token = facts.model.identified(PER_CONTEXT_TOKEN) if facts.model is not None else None
    decode = facts.decode_steps.where(facts.decode_steps.counted)
    if targets.itl_p99_s is None or len(decode) == 0:
        return None
    if not per_token:
        return _by_curve(facts, targets.itl_p99_s)
    batch = round(float(np.median(decode.generation_requests)))
    step = predict_step(facts, batch, rules)
    if step is None:
        return None
    return (targets.itl_p99_s - step.seconds) * NS_PER_S / per_token + batch


def _by_curve(facts: Facts, target_s: float) -> float | None:
    """Tokens at which the median step reaches the target; None where no step was short enough, or all were."""
    tokens, step_s = facts.curve.tokens, facts.curve.step_s
    if len(tokens) < 2 or not step_s[0] < target_s < step_s[-1]:
        return None if len(tokens) < 2 else float(tokens[-1]) * 2 if target_s >= step_s[-1] else 0.0
    return float(np.interp(target_s, step_s, tokens))


def _least(facts: Facts, rules: RuleBook) -> int:
    return int(rules["SPY-INT-001"].threshold("spyre_least")) if facts.settings.platform == "spyre" else 0


def _shorter_gaps(facts: Facts, to: int, now_s: float, rules: RuleBook) -> ExpectedChange:
    predicted = facts.curve.at(to)
    within = rules["SPY-GEN-006"].threshold("max_band")
    if predicted is None or predicted[1] > within or predicted[0] >= now_s:
        return ExpectedChange(
            metric="ITL 99th percentile", direction="down", note="nothing here tells the time of a step of that size"
        )
    low, high = (float(max(1.0 - predicted[0] * (1.0 + sign * predicted[1]) / now_s, 0.0)) for sign in (1, -1))
    return ExpectedChange(
        metric="longest gap between tokens", direction="down", low=low, high=high,
        note=f"a step with a full budget goes from {format_seconds(now_s)} to about {format_seconds(predicted[0])}, "
        "from steps that held as many tokens",
    )  # fmt: skip


def _trade_off(facts: Facts, current: tuple[int, float], to: int, least: int) -> tuple[TradeOff, ...]:
    """Budgets from the present one, with its measured full step, down to what the engine and its batch take."""
    rows = [TradeOff(value=current[0], itl_s=current[1], throughput_ratio=None, fits_kv=None, extrapolated=False)]
    for value in (to, to // 2):
        told = facts.curve.at(value)
        if value >= least:
            rows.append(
                TradeOff(
                    value=value, itl_s=told[0] if told is not None else None, throughput_ratio=None, fits_kv=None,
                    extrapolated=told is None,
                )
            )  # fmt: skip
    return tuple(rows)


def larger_budget(facts: Facts, prompt_tokens: float, fixed_ns: float, per_token_ns: float, rules: RuleBook) -> int:
    """The least budget whose full step spends no more than the allowed part on its fixed cost, or holds a usual prompt.

    Args:
        facts: the engine's batch and platform.
        prompt_tokens: length of a usual long prompt.
        fixed_ns, per_token_ns: cost of a chunk and of each of its tokens.
        rules: what part is allowed.
    """
    rule = rules["SPY-PRE-002"]
    allowed = rule.threshold("max_fixed_share")
    enough = fixed_ns * (1.0 - allowed) / allowed / per_token_ns if per_token_ns > 0 else math.inf
    seen = facts.admission
    beside = round(seen.running_p95) if seen is not None else 0
    wanted = min(enough, prompt_tokens) + beside
    step = int(rules["SPY-INT-001"].threshold("spyre_multiple" if facts.settings.platform == "spyre" else "multiple"))
    most = rule.threshold("spyre_most" if facts.settings.platform == "spyre" else "most_tokens")
    return int(min(math.ceil(wanted / step) * step, most))
