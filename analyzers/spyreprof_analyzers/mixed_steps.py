"""Whose time a mixed step is: how much of it prefill is answerable for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof_analyzers.engine_steps import DECODE, MIXED
from spyreprof_analyzers.slope import CONSTANT, PER_DECODE_BESIDE
from spyreprof_analyzers.slope_tests import PER_CONTEXT_TOKEN, PER_Q_K

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.slope import Regime, StepModel


@dataclass(frozen=True, slots=True)
class MixedShare:
    """Prefill's part of the time of mixed steps, 0 to 1, and in words what they were split by."""

    ratio: float
    basis: str


BY_MODEL = "by the fitted cost of their prompt tokens"
BY_DECODE = "at the median decode step"
BY_TOKENS = "by their tokens"


def mixed_share(steps: EngineSteps, model: StepModel | None, rules: RuleBook) -> MixedShare:
    """Split the mixed steps of the window.

    Where the cost of a prompt token is determined, prefill's part is what its terms make of the predicted step. Else
    the decodes of a mixed step would have taken a decode step of their own, and what goes beyond the median decode
    step is prefill's. With too few decode steps seen, tokens decide; steps whose tokens are not known are not mixed
    then.
    """
    mixed = steps.of_phase(MIXED)
    if len(mixed) == 0:
        return MixedShare(0.0, BY_DECODE)
    usual = _without_model(steps, mixed, rules)
    if model is None or model.prompts is None or PER_CONTEXT_TOKEN in model.prompts.refused:
        return usual
    parts, told = _by_model(mixed, model.prompts)
    time_ns = mixed.duration_ns.astype(np.float64)
    if float(time_ns[told].sum()) < float(time_ns.sum()) / 2:
        return usual
    of_prefill = float((parts * time_ns)[told].sum()) + usual.ratio * float(time_ns[~told].sum())
    return MixedShare(min(of_prefill / max(float(time_ns.sum()), 1.0), 1.0), BY_MODEL)


def _by_model(mixed: EngineSteps, regime: Regime) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Prefill's part of each mixed step, shape (n,), and a mask of those that the fit speaks for."""
    tokens = mixed.executed_context_tokens
    told = mixed.counted & (tokens >= regime.low) & (tokens <= regime.high)
    if PER_Q_K in regime.names:
        told &= mixed.context_q_k_sum >= 0
    work = {
        CONSTANT: np.ones(len(mixed)),
        PER_CONTEXT_TOKEN: tokens.astype(np.float64),
        PER_DECODE_BESIDE: mixed.executed_generation_requests.astype(np.float64),
        PER_Q_K: mixed.context_q_k_sum.astype(np.float64),
    }
    costs = dict(zip(regime.names, regime.regression.coefficients.tolist(), strict=True))
    predicted = sum((costs.get(name, 0.0) * column for name, column in work.items()), np.zeros(len(mixed)))
    of_prompts = costs.get(PER_CONTEXT_TOKEN, 0.0) * work[PER_CONTEXT_TOKEN] + costs.get(PER_Q_K, 0.0) * work[PER_Q_K]
    return np.clip(of_prompts / np.maximum(predicted, 1e-9), 0.0, 1.0), told


def _without_model(steps: EngineSteps, mixed: EngineSteps, rules: RuleBook) -> MixedShare:
    decode = steps.of_phase(DECODE)
    if len(decode) >= rules["SPY-GEN-001"].threshold("min_decode_steps"):
        alone = np.minimum(mixed.duration_ns, int(np.median(decode.duration_ns)))
        return MixedShare(1.0 - int(alone.sum()) / max(int(mixed.duration_ns.sum()), 1), BY_DECODE)
    context, generation = int(mixed.context_tokens.sum()), int(mixed.generation_tokens.sum())
    return MixedShare(context / max(context + generation, 1), BY_TOKENS)
