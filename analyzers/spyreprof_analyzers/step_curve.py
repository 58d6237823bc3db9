"""Step time over the tokens in a step: what a larger decode batch would cost, without having seen one.

A step that held 4 decodes and 12 prompt tokens pushed 16 rows through the weights, and so would 16 decodes. Steps with
prompt tokens therefore stand in for batches beyond the cap. What they cannot show is the KV cache that more decodes
would read; where attention is a material part of a step the curve is too low, and it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps

# Points of the curve are this factor apart.
POINT_RATIO = 2.0**0.5


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Median step time at rising token counts, non-decreasing.

    `spread` is half the relative quartile distance, and at least the drift of the machine.
    """

    tokens: NDArray[np.float64]
    step_s: NDArray[np.float64]
    spread: NDArray[np.float64]

    def at(self, tokens: int) -> tuple[float, float] | None:
        """Step seconds and their relative band at a token count; None outside of what was seen."""
        if len(self.tokens) < 2 or not self.tokens[0] <= tokens <= self.tokens[-1]:
            return None
        seconds = float(np.interp(tokens, self.tokens, self.step_s))
        spread = float(np.interp(tokens, self.tokens, self.spread))
        return seconds, spread


def step_curve(steps: EngineSteps, rules: RuleBook) -> StepCurve:
    """Bin steps of known tokens by their total token count; bins with too few steps are left out."""
    rule = rules["SPY-GEN-006"]
    drift = rule.threshold("machine_drift")
    known = steps.where(steps.counted & (steps.compiles == 0))
    total = known.context_tokens + known.generation_tokens
    points: list[tuple[float, float, float, int]] = []
    if len(known):
        bins = np.round(np.log(np.maximum(total, 1)) / np.log(POINT_RATIO)).astype(np.int64)
        for code in np.unique(bins):
            chosen = bins == code
            count = int(chosen.sum())
            if count < rule.threshold("min_steps_per_point"):
                continue
            seconds = known.duration_ns[chosen] / NS_PER_S
            low, middle, high = np.percentile(seconds, (25, 50, 75))
            if middle <= 0:
                continue
            points.append((float(np.median(total[chosen])), float(middle), float((high - low) / 2 / middle), count))
    columns = list(zip(*points, strict=True)) or [(), (), (), ()]
    return StepCurve(
        tokens=np.array(columns[0], dtype=np.float64),
        step_s=np.maximum.accumulate(np.array(columns[1], dtype=np.float64))
        if points
        else np.zeros(0, dtype=np.float64),
        spread=np.maximum(np.array(columns[2], dtype=np.float64), drift),
    )
