"""What steps must hold before a coefficient of the slope test means anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyreprof.units import NS_PER_S, format_share
from spyreprof_analyzers import regression

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook

FIXED, PER_REQUEST, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_Q_K = (
    "fixed",
    "per_generation_request",
    "per_generation_sequence_token",
    "per_context_token",
    "per_query_key_product",
)
# The speed of a machine is looked at in stretches this long, or as many as there is time for.
STRETCH_NS = 8 * NS_PER_S
MIN_STRETCHES = 3
MIN_STEPS_PER_STRETCH = 10
# Variance of a median over that of a mean.
MEDIAN_VARIANCE = 1.57
# A knee is looked for at so many sizes, in so many steps at most.
KNEE_CANDIDATES = 10
KNEE_STEPS = 4_000
KNEE_SIDE_STEPS = 50


def machine_drift(start_ns: NDArray[np.int64], residual: NDArray[np.float64], floor: float) -> float:
    """Relative standard deviation of the machine's speed between two runs, as far as one run tells.

    Two runs differ by sqrt(2) times what stretches of one scatter, at least by what its halves do, and never by less
    than the floor: within a run a machine drifts less than from one run to the next.

    Args:
        start_ns, residual: start and relative error of each step, shape (n,), n > 0.
        floor: the least that is believed.
    """
    half = len(residual) // 2
    spread = abs(float(np.median(residual[:half]) - np.median(residual[half:]))) if half else 0.0
    stretch = (start_ns - start_ns[0]) // STRETCH_NS
    codes, counts = np.unique(stretch, return_counts=True)
    enough = counts >= MIN_STEPS_PER_STRETCH
    within = 0.0
    if int(enough.sum()) >= MIN_STRETCHES:
        medians = [float(np.median(residual[stretch == code])) for code in codes[enough]]
        # medians of few steps scatter without any drift
        usual = regression.MEDIAN_TO_DEVIATION * float(np.median(np.abs(residual - np.median(residual))))
        scatter = MEDIAN_VARIANCE * usual**2 * float((1.0 / counts[enough]).mean())
        within = max(float(np.var(medians, ddof=1)) - scatter, 0.0) ** 0.5 * 2.0**0.5
    return max(within, spread, floor)


def refusals(columns: dict[str, NDArray[np.float64]], size: NDArray[np.int64], rules: RuleBook) -> dict[str, str]:
    """Terms of which the steps hold too few different amounts, with the reason.

    Args:
        columns: work of the steps, shape (n,) each.
        size: requests of decode steps, or prompt tokens; shape (n,).
        rules: how many are enough.
    """
    rule, reasons = rules["SPY-GEN-005"], dict[str, str]()
    if PER_REQUEST in columns:
        _sizes, counts = np.unique(size, return_counts=True)
        seen = int((counts >= rule.threshold("min_steps_per_size")).sum())
        needed, least = int(rule.threshold("min_sizes")), int(rule.threshold("min_steps_per_size"))
        if seen < needed:
            reasons[PER_REQUEST] = f"{seen} of {needed} batch sizes needed have {least} decode steps or more"
        elif counts.max() > rule.threshold("max_share_of_one_size") * counts.sum():
            reasons[PER_REQUEST] = (
                f"{format_share(counts.max() / counts.sum())} of the decode steps have one batch size"
            )
    if PER_CONTEXT_TOKEN in columns and size.std() < rule.threshold("min_chunk_variation") * size.mean():
        reasons[PER_CONTEXT_TOKEN] = "every prefill step held nearly the same number of prompt tokens"
    return reasons


def knee(
    design: NDArray[np.float64], size: NDArray[np.int64], cycles: NDArray[np.float64], rules: RuleBook
) -> int | None:
    """The size at which the cost of one more changes; None where a line holds.

    Args:
        design: shape (n, p), its second column the size where it varied at all.
        size, cycles: of each step, shape (n,).
        rules: how large a change is one.
    """
    rule = rules["SPY-GEN-005"]
    if design.shape[1] < 2 or len(np.unique(size)) < rule.threshold("min_sizes"):
        return None
    thin = slice(None, None, -(-len(size) // KNEE_STEPS))
    design, size, cycles = design[thin], size[thin], cycles[thin]
    least = max(rule.threshold("min_steps_per_size"), KNEE_SIDE_STEPS)
    best, found = rule.threshold("min_knee_deviations"), None
    values = np.unique(np.quantile(np.unique(size), np.linspace(0.0, 1.0, KNEE_CANDIDATES + 2)[1:-1]).astype(np.int64))
    for value in values.tolist():
        # at the smallest size the part beyond it is the size again
        if value == size.min() or min(int((size <= value).sum()), int((size > value).sum())) < least:
            continue
        beyond = np.maximum(size - value, 0).astype(np.float64)
        fitted = regression.fit(np.column_stack((design, beyond)), cycles, free=design.shape[1])
        slope, bend = float(fitted.coefficients[1]), float(fitted.coefficients[-1])
        deviations = abs(bend) / max(float(np.sqrt(max(fitted.covariance[-1, -1], 0.0))), 1e-300)
        change = abs(bend) / max(slope, slope + bend, 1e-300)
        weight = abs(bend) * float(beyond.max()) / float(np.median(cycles))
        if (
            deviations > best
            and change >= rule.threshold("min_knee_change")
            and weight >= rule.threshold("small_share")
        ):
            best, found = deviations, value
    return found
