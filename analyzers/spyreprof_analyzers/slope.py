"""The slope test: cycle time regressed on the work that the steps executed. It needs no hardware peak.

    decode:        cycle = fixed + b * generation requests + c * sum of their sequence lengths
    with prompts:  cycle = constant + f * generation requests + d * context tokens + e * sum(q * k)

Cycle time is schedule start to next schedule start. The two kinds of steps are fitted apart: where reading the weights
hides behind arithmetic, or the other way round, they share no constant. Within one kind, a slope that changes with
the size of the step is a knee, and only the side on which most of the time was spent is fitted.

A narrow interval proves nothing here: a coefficient counts only where the data can tell it from the others, so that
is tested apart (`slope_tests`), and a term that fails is refused by name. Intervals hold how much the speed of the
machine moves, too: from one run to the next it moves more than within one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import SlopeFit, SlopeTerm
from spyreprof.units import format_share
from spyreprof_analyzers import regression, slope_tests
from spyreprof_analyzers.engine_steps import DECODE, UNKNOWN
from spyreprof_analyzers.slope_tests import FIXED, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_Q_K, PER_REQUEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.regression import Regression

# Of the steps with prompts: what they cost without any token of a prompt. It is fitted and not reported.
RULE = "SPY-GEN-005"
CONSTANT, PER_DECODE_BESIDE = "constant", "per_generation_request_beside_prompts"
MAX_STEPS = 20_000
TOGETHER = "moves together with"
SMALL = "too small to tell from none"
UNCERTAIN = "uncertain by"
# Idle time longer than this many median steps is no part of an engine's cycle.
IDLE_GAP_STEPS = 2
# One knee leaves two sides; a side may have another.
MOST_KNEES = 2


@dataclass(frozen=True, slots=True)
class Regime:
    """The fit of one kind of steps between two sizes.

    Attributes:
        names: its columns, of which `regression` has one coefficient each.
        low, high: the smallest and largest size in it: requests of decode steps, tokens of prompts.
        knee: the size at which the slope changes and the fit was cut, None where there is none.
        drift: how much the machine's speed moves between runs, a relative standard deviation.
        refused: by name, why a coefficient is not determined; also of columns that were left out.
        joint: what was estimated, with its interval, of columns that were left out.
        mean_ns: mean cycle time.
        means: mean of each column.
    """

    names: tuple[str, ...]
    regression: Regression
    steps: int
    low: int
    high: int
    knee: int | None
    drift: float
    refused: dict[str, str]
    joint: dict[str, tuple[float, float, float]]
    mean_ns: float
    means: dict[str, float]

    def term(self, name: str) -> SlopeTerm | None:
        """A coefficient as it is reported; None where the steps hold no such work."""
        if name in self.names:
            place = self.names.index(name)
            value = float(self.regression.coefficients[place])
            half = self.half_width(value, float(np.sqrt(max(self.regression.covariance[place, place], 0.0))))
            low, high = max(value - half, 0.0), value + half
        elif name in self.joint:
            value, low, high = self.joint[name]
        elif name in self.refused:
            return SlopeTerm(name=name, ns_per_unit=None, identifiable=False, reason=self.refused[name])
        else:
            return None
        return SlopeTerm(
            name=name, ns_per_unit=value, low=low, high=high,
            identifiable=name not in self.refused, reason=self.refused.get(name),
        )  # fmt: skip

    def half_width(self, value: float, deviation: float) -> float:
        """Half of a 90 % interval: what the steps scatter, and what the machine drifts."""
        return float(np.hypot(self.regression.quantile * deviation, regression.NORMAL_90 * self.drift * value))

    def predict(self, row: dict[str, float]) -> tuple[float, float, float]:
        """Cycle time of a step in nanoseconds, relative half of its 90 % interval, leverage over that of the data."""
        values = np.array([row.get(name, 0.0) for name in self.names])
        predicted, deviation = self.regression.predict(values)
        band = self.half_width(predicted, deviation) / predicted if predicted > 0 else float("inf")
        return predicted, band, self.regression.leverage_ratio(values)

    def small(self, name: str) -> bool:
        """Whether a coefficient was refused because it hardly takes time, which is an answer too."""
        return self.refused.get(name, "").startswith(SMALL)

    def predicts(self) -> bool:
        """Whether other batches may be predicted: what is merely uncertain makes the prediction's band wider."""
        return self.refused.get(PER_REQUEST, SMALL).startswith((SMALL, UNCERTAIN))

    def apart(self, name: str) -> bool:
        """Whether a column does not move together with another one."""
        return not self.refused.get(name, "").startswith(TOGETHER)

    def share(self, name: str) -> float | None:
        """The part of the cycles that a determined coefficient accounts for."""
        if name not in self.names or name in self.refused:
            return None
        value = float(self.regression.coefficients[self.names.index(name)])
        return min(value * self.means[name] / self.mean_ns, 1.0)


@dataclass(frozen=True, slots=True)
class StepModel:
    """What steps cost: of decode steps and of steps with prompts; each None with too few of them."""

    fit: SlopeFit
    decode: Regime | None
    prompts: Regime | None

    def identified(self, name: str) -> float | None:
        """The coefficient in nanoseconds, when the data determine it."""
        for term in self.fit.terms:
            if term.name == name and term.identifiable:
                return term.ns_per_unit
        return None


@dataclass(slots=True)
class _Columns:
    """The work of some steps, column by column, with the times that it took."""

    columns: dict[str, NDArray[np.float64]]
    cycles: NDArray[np.float64]
    start_ns: NDArray[np.int64]
    size: NDArray[np.int64]
    refused: dict[str, str] = field(default_factory=dict)

    def where(self, mask: NDArray[np.bool_]) -> _Columns:
        kept = {name: column[mask] for name, column in self.columns.items()}
        return _Columns(kept, self.cycles[mask], self.start_ns[mask], self.size[mask], dict(self.refused))

    def design(self, names: tuple[str, ...]) -> NDArray[np.float64]:
        return np.stack([self.columns[name] for name in names], axis=1)


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


def fit_step_model(
    steps: EngineSteps, cycles_ns: NDArray[np.int64], rules: RuleBook, own_machine: bool | None = None
) -> StepModel | None:
    """Fit the model on steps whose tokens are known; None with too few of them.

    Args:
        steps: the window's steps, shape (n,).
        cycles_ns: their cycle times, shape (n,).
        rules: what makes a term identifiable.
        own_machine: nobody else uses the machine; None where unknown, which counts as shared.
    """
    rule = rules[RULE]
    usable = steps.counted & (steps.compiles == 0) & (cycles_ns > 0)
    if int(usable.sum()) < rule.threshold("min_steps"):
        return None
    # evenly thinned, so that a long recording costs no more: its coefficients no longer move
    usable[np.flatnonzero(usable)] = np.arange(int(usable.sum())) % -(-int(usable.sum()) // MAX_STEPS) == 0
    chosen, cycles = steps.where(usable), cycles_ns[usable].astype(np.float64)
    floor = rule.threshold("own_machine_drift" if own_machine else "machine_drift")
    decode = _regime(_decode_columns(chosen, cycles), rules, floor)
    prompts = _regime(_prompt_columns(chosen, cycles), rules, floor)
    if decode is None and prompts is None:
        return None
    terms = [
        term
        for regime, names in ((decode, (FIXED, PER_REQUEST, PER_CACHED_TOKEN)), (prompts, (PER_CONTEXT_TOKEN, PER_Q_K)))
        if regime is not None
        for name in names
        if (term := regime.term(name)) is not None
    ]
    residuals = np.concatenate([r.regression.residual for r in (decode, prompts) if r is not None])
    return StepModel(
        fit=SlopeFit(
            n_steps=len(residuals),
            terms=tuple(terms),
            relative_residual=float(np.median(np.abs(residuals))),
            executed=bool((chosen.told_executed > 0).all()),
            drift_ratio=max(r.drift for r in (decode, prompts) if r is not None),
            batch_low=decode.low if decode is not None else None,
            batch_high=decode.high if decode is not None else None,
            knee_requests=decode.knee if decode is not None else None,
        ),
        decode=decode,
        prompts=prompts,
    )


def _decode_columns(steps: EngineSteps, cycles: NDArray[np.float64]) -> _Columns:
    mask = steps.phase == DECODE
    chosen = steps.where(mask)
    requests, lengths = chosen.executed_generation_requests, chosen.executed_generation_seq_len_sum
    made = _Columns(
        {FIXED: np.ones(len(chosen)), PER_REQUEST: requests.astype(np.float64)},
        cycles[mask], chosen.start_ns, requests,
    )  # fmt: skip
    return _with_known(made, PER_CACHED_TOKEN, lengths, "the lengths of the sequences are not told")


def _prompt_columns(steps: EngineSteps, cycles: NDArray[np.float64]) -> _Columns:
    mask = steps.context_tokens > 0
    chosen = steps.where(mask)
    tokens, beside = chosen.executed_context_tokens, chosen.executed_generation_requests.astype(np.float64)
    made = _Columns(
        {CONSTANT: np.ones(len(chosen)), PER_CONTEXT_TOKEN: tokens.astype(np.float64)},
        cycles[mask], chosen.start_ns, tokens,
    )  # fmt: skip
    if beside.any():
        made.columns[PER_DECODE_BESIDE] = beside
    return _with_known(made, PER_Q_K, chosen.context_q_k_sum, "the lengths of the prompts are not told")


def _with_known(made: _Columns, name: str, values: NDArray[np.int64], reason: str) -> _Columns:
    """Add a column that some steps may not tell: without them where they are few, else without the column."""
    known = values != UNKNOWN
    if 2 * int(known.sum()) < len(known):
        made.refused[name] = reason
        return made
    made.columns[name] = values.astype(np.float64)
    return made.where(known)


def _regime(rows: _Columns, rules: RuleBook, floor: float) -> Regime | None:
    """Fit one kind of steps, on one side of a knee, without the terms that cannot be told apart."""
    if len(rows.cycles) < rules[RULE].threshold("min_steps_of_kind"):
        return None
    rows, knee = _one_side(rows, rules)
    refused = dict(rows.refused)
    joint: dict[str, tuple[float, float, float]] = {}
    names = _separable(rows, rules, refused)
    while True:
        fitted = regression.fit(rows.design(names), rows.cycles)
        regime = Regime(
            names, fitted, len(rows.cycles), int(rows.size.min()), int(rows.size.max()), knee,
            slope_tests.machine_drift(rows.start_ns, fitted.residual, floor), refused, joint,
            float(rows.cycles.mean()), {name: float(rows.columns[name].mean()) for name in names},
        )  # fmt: skip
        # what nothing determines makes the other terms uncertain; left out, its cost is theirs
        vague = next((n for n in (PER_CACHED_TOKEN, PER_Q_K) if n in names and _too_wide(regime, n, rules)), None)
        if vague is None or len(names) == 1:
            break
        term, reason = regime.term(vague), _too_wide(regime, vague, rules)
        if term is not None and term.ns_per_unit is not None and reason is not None:
            joint[vague], refused[vague] = (term.ns_per_unit, term.low or 0.0, term.high or 0.0), reason
        names = tuple(name for name in names if name != vague)
    too_alike = slope_tests.refusals(rows.columns, rows.size, rules)
    refused.update({name: reason for name, reason in too_alike.items() if regime.apart(name)})
    for name in names:
        if name not in (*refused, CONSTANT, PER_DECODE_BESIDE):
            reason = _moves(rows, names, name, rules) or _too_wide(regime, name, rules)
            if reason is not None:
                refused[name] = reason
    if not regime.predicts():
        # with one batch size, weights, host and requests are one constant
        refused[FIXED] = f"fixed cost, not split: cost per request unknown, {refused[PER_REQUEST]}"
    return regime


def _separable(rows: _Columns, rules: RuleBook, refused: dict[str, str]) -> tuple[str, ...]:
    """The columns that are not the others in disguise; of two that move together the first stays."""
    names: tuple[str, ...] = tuple(rows.columns)[:1]
    for name in tuple(rows.columns)[1:]:
        column = rows.columns[name]
        design = rows.design((*names, name))
        if column.std() == 0 or len(rows.cycles) <= len(names) + 1:
            refused[name] = "it did not vary"
        elif len(names) > 1 and regression.explained_by_others(design[:, 1:], len(names) - 1) > rules[RULE].threshold(
            "max_correlation"
        ):
            refused[name] = f"{TOGETHER} {names[1]}, which holds its cost"
        else:
            names = (*names, name)
    if PER_DECODE_BESIDE in refused and rows.columns[PER_DECODE_BESIDE].std() > 0:
        refused[PER_CONTEXT_TOKEN] = f"{TOGETHER} the decodes of the same steps"
    return names


def _too_wide(regime: Regime, name: str, rules: RuleBook) -> str | None:
    """Why a coefficient's interval says too little; None where it says enough."""
    term = regime.term(name)
    if term is None or term.ns_per_unit is None or term.high is None:
        return None
    half = term.high - term.ns_per_unit
    if half <= rules[RULE].threshold("max_half_width") * term.ns_per_unit:
        return None
    most = term.high * regime.means[name] / regime.mean_ns
    if most <= rules[RULE].threshold("small_share"):
        return f"{SMALL}: at most {format_share(most)} of a step"
    if term.ns_per_unit <= 0:
        return f"not told from none: at most {format_share(min(most, 1.0))} of a step"
    return f"{UNCERTAIN} {format_share(half / term.ns_per_unit)}"


def _moves(rows: _Columns, names: tuple[str, ...], name: str, rules: RuleBook) -> str | None:
    """Why a coefficient is not the same in both halves of the window; None where it is, or where a half cannot tell."""
    half = len(rows.cycles) // 2
    if half < rules[RULE].threshold("min_steps_of_kind"):
        return None
    found = []
    later = np.arange(len(rows.cycles)) >= half
    for part in (~later, later):
        own = rows.where(part)
        if not set(names) <= set(_separable(own, rules, {})):
            return None
        fitted = regression.fit(own.design(names), own.cycles)
        place = names.index(name)
        value, deviation = fitted.coefficients[place], float(np.sqrt(max(fitted.covariance[place, place], 0.0)))
        if value <= 0 or fitted.quantile * deviation > rules[RULE].threshold("max_half_width") * value:
            return None
        found.append(float(value))
    moved = abs(found[0] - found[1]) / (sum(found) / 2)
    if moved <= rules[RULE].threshold("max_move_between_halves"):
        return None
    return f"moves by {format_share(moved)} between the halves of the window"


def _one_side(rows: _Columns, rules: RuleBook) -> tuple[_Columns, int | None]:
    """The side of a knee on which most of the time was spent, and where the knee is."""
    knee = None
    for _ in range(MOST_KNEES):
        refused: dict[str, str] = {}
        found = slope_tests.knee(rows.design(_separable(rows, rules, refused)), rows.size, rows.cycles, rules)
        if found is None:
            break
        below, above = rows.size <= found, rows.size >= found
        chosen = below if rows.cycles[below].sum() >= rows.cycles[above].sum() else above
        if int(chosen.sum()) < rules[RULE].threshold("min_steps_of_kind"):
            break
        rows, knee = rows.where(chosen), found
    return rows, knee
