"""What a decode step would take at a batch size, as far as this recording tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.units import NS_PER_S
from spyreprof_analyzers.slope import FIXED, PER_CACHED_TOKEN, PER_REQUEST

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.facts import Facts


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """Median decode step at a batch size: seconds, relative band, and what it rests on."""

    seconds: float
    band: float
    basis: str
    measured: bool


def predict_step(facts: Facts, batch: int, rules: RuleBook) -> StepPrediction | None:
    """The decode step at a batch size; None where nothing in the recording tells it within the allowed band.

    Best first: steps of that very size, the fitted step model within the sizes seen, steps that held as many tokens.
    """
    rule = rules["SPY-GEN-006"]
    drift, max_band = rule.threshold("machine_drift"), rule.threshold("max_band")
    decode = facts.decode_steps.where(facts.decode_steps.counted)
    same = decode.duration_ns[decode.generation_requests == batch]
    if len(same) >= rule.threshold("min_steps_at_size"):
        return StepPrediction(float(np.median(same)) / NS_PER_S, drift, "decode steps of this size", True)
    modelled, curve = _from_model(facts, decode, batch), facts.curve.at(round(batch * _tokens_per_request(decode)))
    if modelled is not None and batch <= rule.threshold("extrapolation") * int(decode.generation_requests.max()):
        band = max(rule.threshold("model_band"), abs(curve[0] / modelled - 1.0) / 2 if curve is not None else 0.0)
        return StepPrediction(modelled, band, "fitted step model", False) if band <= max_band else None
    if curve is None or curve[1] > max_band:
        return None
    if modelled is not None and abs(curve[0] / modelled - 1.0) > rule.threshold("max_disagreement"):
        return None
    return StepPrediction(curve[0], curve[1], "steps that held as many tokens", False)


def _from_model(facts: Facts, decode: EngineSteps, batch: int) -> float | None:
    """Seconds by the linear model, where its terms are determined."""
    model = facts.model
    known = decode.where(decode.generation_seq_len_sum >= 0)
    if model is None or len(known) == 0:
        return None
    fixed, per_request = model.identified(FIXED), model.identified(PER_REQUEST)
    if fixed is None or per_request is None:
        return None
    length = float(known.generation_seq_len_sum.sum() / max(known.generation_requests.sum(), 1))
    cached = model.coefficients.get(PER_CACHED_TOKEN, 0.0) * length * batch
    return (fixed + per_request * batch + cached) / NS_PER_S


def _tokens_per_request(decode: EngineSteps) -> float:
    """Rows that one request pushes through the weights in a decode step: more than one with speculative tokens."""
    requests = int(decode.generation_requests.sum())
    return int(decode.generation_tokens.sum()) / requests if requests else 1.0
