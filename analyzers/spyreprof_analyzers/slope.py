"""The slope test: step time regressed on the work that the step executed. It needs no hardware peak.

    cycle = fixed + b * generation requests + c * sum of their sequence lengths + d * context tokens + e * sum(q * k)

Cycle time is schedule start to next schedule start. Coefficients are non-negative and fitted on relative errors
with Huber weights. A narrow interval proves nothing here: a coefficient counts only where the data can tell it
from the others, so identifiability is tested apart and a term that fails is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import SlopeFit, SlopeTerm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import Rule, RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps

FIXED, PER_REQUEST, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_Q_K = (
    "fixed",
    "per_generation_request",
    "per_generation_sequence_token",
    "per_context_token",
    "per_query_key_product",
)
MAX_STEPS = 20_000
HUBER_LIMIT = 0.1  # relative error beyond which a step loses weight
REWEIGHTINGS = 8
REWEIGHTINGS_PER_DRAW = 2
BOOTSTRAPS = 40
BLOCK_STEPS = 25
# Idle time longer than this many median steps is no part of an engine's cycle.
IDLE_GAP_STEPS = 2


@dataclass(frozen=True, slots=True)
class StepModel:
    """Fitted coefficients in nanoseconds; None where the data cannot tell a term from the others."""

    fit: SlopeFit
    coefficients: dict[str, float]

    def identified(self, name: str) -> float | None:
        """The coefficient, when the data determine it."""
        for term in self.fit.terms:
            if term.name == name and term.identifiable:
                return term.ns_per_unit
        return None


def cycle_ns(steps: EngineSteps, idle_gap_ns: int) -> NDArray[np.int64]:
    """Start-to-start time of each step; before a gap longer than `idle_gap_ns`, the step plus the median gap."""
    if len(steps) == 0:
        return np.zeros(0, dtype=np.int64)
    gap = np.append(steps.start_ns[1:] - steps.end_ns[:-1], np.iinfo(np.int64).max)
    short = gap <= idle_gap_ns
    usual = int(np.median(gap[short])) if short.any() else 0
    return steps.duration_ns + np.where(short, np.maximum(gap, 0), usual)


def usual_cycle_ns(steps: EngineSteps) -> NDArray[np.int64]:
    """Cycle time of each step, in which only short gaps count as the engine's own."""
    median_ns = int(np.median(steps.duration_ns)) if len(steps) else 0
    return cycle_ns(steps, IDLE_GAP_STEPS * median_ns)


def fit_step_model(steps: EngineSteps, cycles_ns: NDArray[np.int64], rules: RuleBook) -> StepModel | None:
    """Fit the model on steps whose tokens are known; None with too few of them.

    Args:
        steps: the window's steps, shape (n,).
        cycles_ns: their cycle times, shape (n,).
        rules: what makes a term identifiable.
    """
    rule = rules["SPY-GEN-005"]
    usable = (
        steps.counted
        & (steps.context_q_k_sum >= 0)
        & (steps.generation_seq_len_sum >= 0)
        & (steps.compiles == 0)
        & (cycles_ns > 0)
    )
    if int(usable.sum()) < rule.threshold("min_steps"):
        return None
    # evenly thinned, so that a long recording costs no more: its coefficients no longer move
    usable[np.flatnonzero(usable)] = np.arange(int(usable.sum())) % -(-int(usable.sum()) // MAX_STEPS) == 0
    chosen, cycles = steps.where(usable), cycles_ns[usable].astype(np.float64)
    columns = {
        FIXED: np.ones(len(chosen)),
        PER_REQUEST: chosen.generation_requests.astype(np.float64),
        PER_CACHED_TOKEN: chosen.generation_seq_len_sum.astype(np.float64),
        PER_CONTEXT_TOKEN: chosen.context_tokens.astype(np.float64),
        PER_Q_K: chosen.context_q_k_sum.astype(np.float64),
    }
    present = {name: column for name, column in columns.items() if name == FIXED or column.any()}
    design = np.stack(list(present.values()), axis=1)
    solved = _solve(design, cycles)
    low, high = _bootstrap(design, cycles)
    residual = float(np.median(np.abs(design @ solved / cycles - 1.0)))
    refusals = _refusals(chosen, present, rule)
    terms = tuple(
        SlopeTerm(
            name=name,
            ns_per_unit=float(solved[i]),
            low=float(low[i]),
            high=float(high[i]),
            identifiable=name not in refusals,
            reason=refusals.get(name),
        )
        for i, name in enumerate(present)
    )
    return StepModel(
        fit=SlopeFit(n_steps=len(chosen), terms=terms, relative_residual=residual),
        coefficients={name: float(value) for name, value in zip(present, solved, strict=True)},
    )


def _solve(
    design: NDArray[np.float64], cycles: NDArray[np.float64], reweightings: int = REWEIGHTINGS
) -> NDArray[np.float64]:
    """Non-negative least squares on relative errors, reweighted by Huber's rule."""
    # Where nothing is fitted, nobody waits for the quarter of a second that this takes.
    from scipy.optimize import lsq_linear

    scale = design.max(axis=0)
    relative = design / scale / cycles[:, None]
    weight = np.ones(len(cycles))
    solution = np.zeros(design.shape[1])
    for _ in range(reweightings):
        root = np.sqrt(weight)
        # scipy's step towards the open bound multiplies zero by infinity, harmlessly
        with np.errstate(invalid="ignore"):
            solution = lsq_linear(relative * root[:, None], root, bounds=(0.0, np.inf)).x
        error = np.abs(relative @ solution - 1.0)
        weight = np.minimum(1.0, HUBER_LIMIT / np.maximum(error, 1e-12))
    return np.asarray(solution / scale)


def _bootstrap(
    design: NDArray[np.float64], cycles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of the 90 % interval of a moving-block bootstrap. Seeded: the same steps give the same numbers."""
    random = np.random.default_rng(0)
    count = len(cycles)
    # beyond this many rows the interval no longer depends on the count, only the time does
    blocks = min(-(-count // BLOCK_STEPS), 80)
    draws = []
    for _ in range(BOOTSTRAPS):
        starts = random.integers(0, max(count - BLOCK_STEPS, 1), size=blocks)
        rows = (starts[:, None] + np.arange(BLOCK_STEPS)).ravel()
        rows = rows[rows < count]
        if (design[rows].max(axis=0) > 0).all():
            draws.append(_solve(design[rows], cycles[rows], REWEIGHTINGS_PER_DRAW))
    if not draws:
        return np.full(design.shape[1], np.nan), np.full(design.shape[1], np.nan)
    low, high = np.percentile(np.stack(draws), (5, 95), axis=0)
    return low, high


def _refusals(steps: EngineSteps, present: dict[str, NDArray[np.float64]], rule: Rule) -> dict[str, str]:
    """Terms that the data cannot determine, with the reason."""
    reasons: dict[str, str] = {}
    per_size, min_sizes = int(rule.threshold("min_steps_per_size")), int(rule.threshold("min_sizes"))
    if PER_REQUEST in present:
        decode = steps.generation_requests[(steps.context_tokens == 0)]
        sizes, counts = np.unique(decode, return_counts=True)
        seen = int((counts >= per_size).sum())
        if len(sizes) == 0 or seen < min_sizes:
            reasons[PER_REQUEST] = f"{seen} of {min_sizes} batch sizes needed have {per_size} decode steps or more"
        elif counts.max() > rule.threshold("max_share_of_one_size") * counts.sum():
            reasons[PER_REQUEST] = f"{counts.max() / counts.sum():.0%} of the decode steps have one batch size"
        if PER_REQUEST in reasons:
            # with one batch size, weights, host and requests are one constant
            reasons[FIXED] = "fixed cost, not split: the batch hardly varied"
    for left, right in ((PER_REQUEST, PER_CACHED_TOKEN), (PER_CONTEXT_TOKEN, PER_Q_K)):
        if left in present and right in present:
            varied = present[left].std() > 0 and present[right].std() > 0
            if varied and abs(float(np.corrcoef(present[left], present[right])[0, 1])) > rule.threshold(
                "max_correlation"
            ):
                reasons.setdefault(right, f"moves together with {left}")
    if PER_CONTEXT_TOKEN in present:
        chunks = present[PER_CONTEXT_TOKEN][present[PER_CONTEXT_TOKEN] > 0]
        if chunks.std() < rule.threshold("min_chunk_variation") * chunks.mean():
            reasons[PER_CONTEXT_TOKEN] = "every prefill step held nearly the same number of prompt tokens"
    return reasons
