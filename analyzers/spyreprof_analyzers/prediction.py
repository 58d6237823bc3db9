"""What a decode step would take at a batch size, as far as this recording tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.units import NS_PER_S, format_share

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.facts import Facts


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """Cycle time of a decode step at a batch size: seconds, relative band, and what it rests on."""

    seconds: float
    band: float
    basis: str
    measured: bool


def predict_step(facts: Facts, batch: int, rules: RuleBook) -> StepPrediction | None:
    """The decode step at a batch size; None where nothing in the recording tells it within the allowed band."""
    found = _predict(facts, batch, rules)
    return found if isinstance(found, StepPrediction) else None


def why_withheld(facts: Facts, batch: int, rules: RuleBook) -> str | None:
    """Why no step time is given for a batch size; None where one is."""
    found = _predict(facts, batch, rules)
    return found if isinstance(found, str) else None


def _predict(facts: Facts, batch: int, rules: RuleBook) -> StepPrediction | str:
    """The prediction, or why there is none.

    Best first: steps of that very size; then the geometric mean of the models that reach it. Its band is that of one
    model together with how far the models lie apart. Far beyond the sizes seen, steps that held as many tokens must be
    among them.
    """
    rule, models = rules["SPY-GEN-006"], facts.decode_models
    drift, max_band = rule.threshold("machine_drift"), rule.threshold("max_band")
    median_ns, count = models.medians.get(batch, (0.0, 0))
    if count >= rule.threshold("min_steps_at_size"):
        return StepPrediction(median_ns / NS_PER_S, drift, "decode steps of this size", True)
    line = models.by_line(batch, rule.threshold("extrapolation"), rule.threshold("max_leverage_ratio"))
    by_tokens = models.by_tokens(batch)
    far = batch > rule.threshold("extrapolation") * models.largest
    if far and by_tokens is None:
        return "no step held as many tokens, and the batch is far beyond those seen"
    by_sizes = models.by_sizes(batch, rule.threshold("min_steps_per_point"))
    known = {"line": line[0] if line is not None else None, "sizes": by_sizes, "tokens": by_tokens}
    told = {name: value for name, value in known.items() if value is not None}
    if line is not None and not models.prompts_apart and not far:
        # a prompt's tokens cannot stand in for decodes where what each of the two costs is not known apart
        told.pop("tokens", None)
    if line is None and "sizes" in told and batch > models.largest:
        # beyond the sizes seen the medians go on like the line does, and what refuses the line refuses them
        del told["sizes"]
    if not told:
        return models.no_line or "it is too far from the steps seen"
    middle = float(np.exp(np.mean(np.log(list(told.values())))))
    apart = max(max(told.values()) / middle, middle / min(told.values())) - 1.0
    beyond = batch > models.largest
    own = max(rule.threshold("model_band") if beyond or len(told) == 1 else drift, line[1] if line is not None else 0.0)
    spread = max(told.values()) / min(told.values()) - 1.0
    band = float(np.hypot(own, apart)) if spread > rule.threshold("max_disagreement") else max(own, apart)
    if band > max_band:
        return f"the models of a step differ by {format_share(spread)} there, a band of \u00b1{format_share(band)}"
    names = {"line": "fitted line", "sizes": "batch sizes seen", "tokens": "steps that held as many tokens"}
    basis = names["tokens"] if set(told) == {"tokens"} else f"the mean of {len(told)} step models"
    if len(told) == 1 and "tokens" not in told:
        basis = f"the {names[next(iter(told))]}"
    if beyond:
        basis += ", beyond the batch sizes seen"
    return StepPrediction(middle / NS_PER_S, band, basis, False)
