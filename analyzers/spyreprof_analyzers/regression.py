"""Non-negative robust regression on relative errors, with errors that allow for neighbours that resemble each other.

Steps that follow each other are disturbed together, so the variance is that of sums over stretches of neighbours: what
a moving-block bootstrap would draw, without the draws. It is that of the estimate without the bound at zero: a bound
that is reached makes a bootstrap's interval narrow, and proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

REWEIGHTINGS = 8
# Relative errors beyond this many usual ones lose weight; the usual one is taken within these limits.
HUBER_ERRORS = 2.5
LEAST_HUBER_LIMIT, MOST_HUBER_LIMIT = 0.03, 0.1
# The median of absolute errors, times this, is the standard deviation of a normal distribution.
MEDIAN_TO_DEVIATION = 1.4826
# Neighbours: at least so many rows, at most this part of all.
MIN_BLOCK, BLOCKS = 10, 10
# Half-width of a 90 % interval in standard deviations, with many rows.
NORMAL_90 = 1.645
# A prediction cannot be less than this part of the usual one: rows are divided by it.
LEAST_PREDICTION = 0.05


@dataclass(frozen=True, slots=True)
class Regression:
    """A fit of `target = design @ coefficients`, p terms on n rows.

    Attributes:
        coefficients: shape (p,), not negative unless left free.
        covariance: shape (p, p), of the estimate without the bound at zero.
        inverse: shape (p, p), of the weighted sums of squares of relative rows.
        max_leverage: the largest leverage of a row of the data.
        residual: shape (n,), target over prediction less one.
        quantile: half-width of a 90 % interval in standard deviations.
    """

    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]
    inverse: NDArray[np.float64]
    max_leverage: float
    residual: NDArray[np.float64]
    quantile: float

    def predict(self, row: NDArray[np.float64]) -> tuple[float, float]:
        """Prediction for a row of shape (p,), and its standard deviation."""
        return float(row @ self.coefficients), math.sqrt(max(float(row @ self.covariance @ row), 0.0))

    def leverage_ratio(self, row: NDArray[np.float64]) -> float:
        """Leverage of a row of shape (p,) over the largest in the data; infinite where nothing is predicted."""
        predicted = float(row @ self.coefficients)
        if predicted <= 0 or self.max_leverage <= 0:
            return float("inf")
        return float(row @ self.inverse @ row) / predicted**2 / self.max_leverage


def fit(design: NDArray[np.float64], target: NDArray[np.float64], free: int | None = None) -> Regression:
    """Fit by Huber's rule on relative errors.

    Args:
        design: shape (n, p), no column all zero, n > p.
        target: shape (n,), positive.
        free: a column whose coefficient may be negative.
    """
    scale = np.abs(design).max(axis=0)
    scaled = design / scale
    usual = float(np.median(target))
    weight, predicted = np.ones(len(target)), target
    solution = np.zeros(design.shape[1])
    for _ in range(REWEIGHTINGS):
        rows = scaled / predicted[:, None]
        weighted = rows * weight[:, None]
        solution = _bounded(weighted.T @ rows, weighted.T @ (target / predicted), free)
        predicted = np.maximum(scaled @ solution, LEAST_PREDICTION * usual)
        error = np.abs(target / predicted - 1.0)
        limit = huber_limit(error)
        weight = np.minimum(1.0, limit / np.maximum(error, 1e-12))
    rows = scaled / predicted[:, None]
    residual = target / predicted - 1.0
    inside = (np.abs(residual) <= limit).astype(np.float64)
    bread = _inverse((rows * inside[:, None]).T @ rows)
    covariance = bread @ _sums_of_neighbours(rows * (weight * residual)[:, None]) @ bread
    inverse = _inverse((rows * weight[:, None]).T @ rows)
    count = len(target) / block_length(len(target))
    return Regression(
        coefficients=solution / scale,
        covariance=covariance / np.outer(scale, scale),
        inverse=inverse / np.outer(scale, scale),
        max_leverage=float(np.einsum("ij,jk,ik->i", rows, inverse, rows).max()),
        residual=residual,
        quantile=NORMAL_90 * (1.0 + (NORMAL_90**2 + 1.0) / (4.0 * max(count - 1.0, 1.0))),
    )


def huber_limit(error: NDArray[np.float64]) -> float:
    """Absolute relative error from which a row loses weight."""
    usual = HUBER_ERRORS * MEDIAN_TO_DEVIATION * float(np.median(error))
    return min(max(usual, LEAST_HUBER_LIMIT), MOST_HUBER_LIMIT)


def block_length(rows: int) -> int:
    """How many neighbours are taken together."""
    return min(max(MIN_BLOCK, rows // BLOCKS), rows)


def explained_by_others(design: NDArray[np.float64], column: int) -> float:
    """Multiple correlation, 0 to 1, of one column of a design with the others, a constant among them."""
    others = np.delete(design, column, axis=1)
    own = design[:, column]
    spread = float(((own - own.mean()) ** 2).sum())
    if spread <= 0:
        return 1.0
    others = np.column_stack((np.ones(len(own)), others / np.maximum(np.abs(others).max(axis=0), 1e-300)))
    left = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
    return float(np.sqrt(max(1.0 - float((left**2).sum()) / spread, 0.0)))


def _bounded(gram: NDArray[np.float64], moment: NDArray[np.float64], free: int | None) -> NDArray[np.float64]:
    """The minimum of x'Gx/2 - m'x with x >= 0: of all sets of positive terms, the best that is one.

    With at most six terms, trying every set is exact and faster than any search.
    """
    best, best_value = np.zeros(len(moment)), 0.0
    for chosen in _sets(len(moment)):
        picked = list(chosen)
        part = gram[np.ix_(picked, picked)]
        try:
            found = np.linalg.solve(part, moment[picked])
        except np.linalg.LinAlgError:
            continue
        if any(value < 0 and place != free for place, value in zip(picked, found.tolist(), strict=True)):
            continue
        value = -float(moment[picked] @ found) / 2.0
        if value < best_value and np.isfinite(value):
            best = np.zeros(len(moment))
            best[picked], best_value = found, value
    return best


@lru_cache(maxsize=8)
def _sets(terms: int) -> tuple[tuple[int, ...], ...]:
    return tuple(chosen for size in range(1, terms + 1) for chosen in combinations(range(terms), size))


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.pinv(matrix, hermitian=True))


def _sums_of_neighbours(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of the sum of all rows, shape (p, p), from the sums over all stretches of neighbours."""
    length = block_length(len(scores))
    running = np.concatenate((np.zeros((1, scores.shape[1])), np.cumsum(scores, axis=0)))
    sums = running[length:] - running[:-length]
    centred = sums - sums.mean(axis=0)
    return np.asarray(centred.T @ centred * (len(scores) / length / len(sums)))
