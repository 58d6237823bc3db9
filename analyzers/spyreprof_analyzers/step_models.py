"""Three models of what a decode step takes, which err in different ways, so that where they agree is believed.

The line (LIN) is the slope test's. The sizes (ISO) are the medians of the batch sizes seen, made to rise, with the last
slope beyond. The tokens (TOK) are a rising curve over all tokens of a step, prompts included, beside the work that is
no token: a step that held 4 decodes and 12 prompt tokens pushed 16 rows through the weights, and so would 16 decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof_analyzers import regression
from spyreprof_analyzers.engine_steps import DECODE, UNKNOWN
from spyreprof_analyzers.slope_tests import FIXED, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_REQUEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.slope import Regime, StepModel

MAX_STEPS = 4_000
REWEIGHTINGS = 4
# What a change of the curve's slope from one stretch to the next costs, against the error of one step.
SMOOTHING = 1e-3
# Columns of the curve's design that are no tokens: decodes, their lengths, any prompt, query x key lengths.
OTHER_WORK = 4


@dataclass(frozen=True, slots=True)
class TokenCurve:
    """Cycle time over a step's tokens: not falling, and straight between `knots` (shape (k,)).

    `weights` has shape (k + 5,): a constant, the slope after each knot, and what decodes, their cached tokens, any
    prompt at all, and query x key lengths add. `most_tokens` is how far steps tell it.
    """

    knots: NDArray[np.float64]
    weights: NDArray[np.float64]
    most_tokens: float


@dataclass(frozen=True, slots=True)
class DecodeModels:
    """What the window tells of decode steps. Times are cycles in nanoseconds.

    Attributes:
        medians: by batch size, the median cycle and the number of steps.
        line: the slope test's fit, where the cost per request is determined; why it is not otherwise.
        curve: the token curve; None with too few steps.
        prompts_apart: in steps with prompts, their tokens do not move together with the decodes beside them.
        largest: the largest batch with enough steps; 0 where none has.
        tokens_per_request, executed_per_request, length: of decode steps, on average.
    """

    medians: dict[int, tuple[float, int]]
    line: Regime | None
    no_line: str | None
    curve: TokenCurve | None
    prompts_apart: bool
    largest: int
    tokens_per_request: float
    executed_per_request: float
    length: float | None

    def by_line(self, batch: int, extrapolation: float, leverage: float) -> tuple[float, float] | None:
        """Cycle time and relative half of its interval by the line; None across a knee, or too far from the steps."""
        if self.line is None:
            return None
        rows = batch * self.executed_per_request
        if self.line.knee is not None and not self._same_side(rows, extrapolation):
            return None
        work = {FIXED: 1.0, PER_REQUEST: rows, PER_CACHED_TOKEN: rows * (self.length or 0.0)}
        predicted, band, ratio = self.line.predict(work)
        near = self.line.low <= rows * extrapolation and rows <= extrapolation * self.line.high
        return (predicted, band) if predicted > 0 and (near or ratio <= leverage) else None

    def _same_side(self, rows: float, extrapolation: float) -> bool:
        line = self.line
        if line is None or line.knee is None:
            return True
        return rows <= line.knee if line.knee == line.high else line.knee <= rows <= extrapolation * line.high

    def by_sizes(self, batch: int, least: float) -> float | None:
        """Cycle time by the medians of the sizes with at least so many steps; None below the first of them."""
        known = sorted(size for size, (_, count) in self.medians.items() if count >= least)
        if len(known) < 2 or batch < known[0]:
            return None
        risen = not_falling(
            np.array([self.medians[size][0] for size in known]),
            np.array([self.medians[size][1] for size in known], dtype=np.float64),
        )
        if batch <= known[-1]:
            return float(np.interp(batch, known, risen))
        slope = (risen[-1] - risen[-2]) / (known[-1] - known[-2])
        return float(risen[-1] + slope * (batch - known[-1]))

    def by_tokens(self, batch: int) -> float | None:
        """Cycle time by the token curve; None beyond the tokens that steps held."""
        tokens = batch * self.tokens_per_request
        if self.curve is None or not self.curve.knots[0] <= tokens <= self.curve.most_tokens:
            return None
        lengths = batch * self.executed_per_request * (self.length or 0.0)
        row = _token_rows(self.curve.knots, *(np.array([v]) for v in (tokens, float(batch), lengths, 0.0, 0.0)))
        predicted = float((row @ self.curve.weights)[0])
        return predicted if predicted > 0 else None


def decode_models(
    steps: EngineSteps, cycles_ns: NDArray[np.int64], model: StepModel | None, rules: RuleBook
) -> DecodeModels:
    """Fit all three on the window's steps, shape (n,), with their cycle times."""
    known = steps.counted & (steps.compiles == 0) & (cycles_ns > 0)
    usable, cycles = steps.where(known), cycles_ns[known].astype(np.float64)
    alone = usable.phase == DECODE
    decode, times = usable.where(alone), cycles[alone]
    sizes = np.unique(decode.generation_requests)
    medians = {int(s): (float(np.median(own := times[decode.generation_requests == s])), len(own)) for s in sizes}
    enough = rules["SPY-GEN-006"].threshold("min_steps_at_size")
    line, no_line = (None, "too few decode steps ran alone") if model is None or model.decode is None else (
        model.decode, model.decode.refused.get(PER_REQUEST)
    )  # fmt: skip
    if line is not None and not line.predicts():
        line = None
    told = decode.where(decode.executed_generation_seq_len_sum != UNKNOWN)
    rows, requests = int(told.executed_generation_requests.sum()), int(decode.generation_requests.sum())
    return DecodeModels(
        medians=medians,
        line=line,
        no_line=no_line,
        curve=_token_curve(usable, cycles, int(rules["SPY-GEN-006"].threshold("min_steps_per_point"))),
        prompts_apart=model is not None and model.prompts is not None and model.prompts.apart(PER_CONTEXT_TOKEN),
        largest=max((size for size, (_, count) in medians.items() if count >= enough), default=0),
        tokens_per_request=int(decode.generation_tokens.sum()) / requests if requests else 1.0,
        executed_per_request=int(decode.executed_generation_requests.sum()) / requests if requests else 1.0,
        length=int(told.executed_generation_seq_len_sum.sum()) / rows if rows else None,
    )


def not_falling(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest values, by weighted squares, of which none is less than the one before it."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (last, last_weight, last_count), (left, left_weight, left_count) = blocks.pop(), blocks.pop()
            both = left_weight + last_weight
            blocks.append(((left * left_weight + last * last_weight) / both, both, left_count + last_count))
    return np.concatenate([np.full(count, value) for value, _, count in blocks]) if blocks else np.zeros(0)


def _token_curve(steps: EngineSteps, cycles: NDArray[np.float64], least: int) -> TokenCurve | None:
    if len(steps) < 4 * least:
        return None
    thin = slice(None, None, -(-len(steps) // MAX_STEPS))
    chosen, times = steps.where(np.arange(len(steps)) % thin.step == 0), cycles[thin]
    tokens = (chosen.executed_context_tokens + chosen.generation_tokens).astype(np.float64)
    # so far as several steps reach
    most = float(np.sort(tokens)[-least])
    knots = _knots(float(max(tokens.min(), 1.0)), most)
    if len(knots) < 2:
        return None
    design = _token_rows(
        knots, tokens, chosen.generation_requests.astype(np.float64),
        np.maximum(chosen.executed_generation_seq_len_sum, 0).astype(np.float64),
        (chosen.context_tokens > 0).astype(np.float64), np.maximum(chosen.context_q_k_sum, 0).astype(np.float64),
    )  # fmt: skip
    return TokenCurve(knots, _rising(design, times, len(knots)), most)


def _knots(first: float, last: float) -> NDArray[np.float64]:
    """From the first number of tokens to the last, each about 1.4 times the one before."""
    between = [2**power * factor for power in range(30) for factor in (1.0, 1.5)]
    return np.array([first, *(knot for knot in between if first < knot < last)])


def _token_rows(
    knots: NDArray[np.float64],
    tokens: NDArray[np.float64],
    requests: NDArray[np.float64],
    lengths: NDArray[np.float64],
    prompts: NDArray[np.float64],
    q_k: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Shape (n, k + 5): a constant, how far each stretch between knots is passed, and the work that is no token."""
    passed = np.clip(tokens[:, None] - knots, 0.0, np.append(np.diff(knots), np.inf))
    return np.column_stack((np.ones(len(tokens)), passed, requests, lengths, prompts, q_k))


def _rising(design: NDArray[np.float64], times: NDArray[np.float64], knots: int) -> NDArray[np.float64]:
    """Non-negative weights by Huber's rule on relative errors, the slopes of the curve lightly smoothed."""
    # Where nothing is fitted, nobody waits for the quarter of a second that this takes.
    from scipy.optimize import nnls

    scale = np.maximum(design.max(axis=0), 1e-300)
    usual = float(np.median(times))
    # slopes as time per token, so that equal slopes cost nothing; a change counts by the time that it makes
    width = design[:, 1 : knots + 1].max(axis=0)
    bends = np.zeros((knots - 1 + OTHER_WORK, design.shape[1]))
    for place in range(knots - 1):
        bends[place, place + 1], bends[place, place + 2] = -1.0, 1.0
        bends[place] *= min(width[place], width[place + 1]) / usual
    for place in range(OTHER_WORK):
        # what tokens explain as well is theirs
        column = knots + 1 + place
        bends[knots - 1 + place, column] = design[:, column].max() / usual
    bends *= np.sqrt(SMOOTHING * len(times))
    weight, predicted = np.ones(len(times)), times
    solution = np.zeros(design.shape[1])
    for _ in range(REWEIGHTINGS):
        root = np.sqrt(weight)
        rows = np.vstack((design * (root / predicted)[:, None], bends)) / scale
        right = np.concatenate((times / predicted * root, np.zeros(len(bends))))
        # a root of the sums has the same least squares as all rows, and few of its own
        sums = rows.T @ rows
        triangle = np.linalg.cholesky(sums + np.eye(len(sums)) * (1e-10 * float(np.trace(sums)))).T
        solution = nnls(triangle, np.linalg.solve(triangle.T, rows.T @ right))[0] / scale
        predicted = np.maximum(design @ solution, regression.LEAST_PREDICTION * usual)
        error = np.abs(times / predicted - 1.0)
        weight = np.minimum(1.0, regression.huber_limit(error) / np.maximum(error, 1e-12))
    return np.asarray(solution)
