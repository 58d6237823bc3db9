"""What a decode step's time grows with, by the slope test: the KV cache, requests, and what is left as a fixed cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spyreprof.units import format_share
from spyreprof_analyzers.slope_tests import FIXED, PER_CACHED_TOKEN, PER_REQUEST

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.bounds import Bound
    from spyreprof_analyzers.slope import StepModel

EXECUTED = "non-negative robust regression of cycle time on executed work, padding included"
SCHEDULED = "non-negative robust regression of cycle time on scheduled work, since nothing tells what was executed"


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Shares of the mean decode step that the slope test determines, 0 to 1; None where it does not."""

    fixed: float | None
    requests: float | None
    cache: float | None


def decode_cost(model: StepModel | None) -> DecodeCost | None:
    """What the fitted coefficients make of a decode step; None without a fit of decode steps."""
    if model is None or model.decode is None:
        return None
    share = model.decode.share
    return DecodeCost(fixed=share(FIXED), requests=share(PER_REQUEST), cache=share(PER_CACHED_TOKEN))


def method_of(model: StepModel) -> str:
    """How a coefficient was found, and on which work."""
    return EXECUTED if model.fit.executed else SCHEDULED


def with_decode_cost(
    bound: Bound, model: StepModel | None, weight_floor: float | None, rules: RuleBook, book: EvidenceBook
) -> Bound:
    """What binds decode, with what the slope test says of it.

    Memory that binds is told apart into weights and KV cache. Where no profiled step tells anything, a step that is
    mostly fixed is called that: only profiled steps, or the time that the weights need at the least, tell weights from
    the host in it.
    """
    cost = decode_cost(model)
    if cost is None or model is None:
        return bound
    if bound.resource == "memory_bandwidth" and cost.cache is not None:
        return replace(
            bound,
            reason=f"{bound.reason}; by the slope test {format_share(cost.cache)} of a decode step reads the KV cache",
            evidence=(*bound.evidence, cite_share("cache", cost.cache, model, book)),
        )
    mostly = rules["SPY-GEN-005"].threshold("mostly_fixed_share")
    if (
        bound.resource == "undetermined"
        and bound.use is None
        and weight_floor is None
        and cost.fixed is not None
        and cost.fixed >= mostly
    ):
        return replace(
            bound,
            resource="fixed_cost",
            reason=f"{format_share(cost.fixed)} of a decode step is a fixed cost, not split into weights and host: "
            f"{bound.reason}",
            evidence=(*bound.evidence, cite_share("fixed", cost.fixed, model, book)),
        )
    return bound


def cite_share(part: str, value: float, model: StepModel, book: EvidenceBook) -> str:
    """Write down a part of the decode step; the value is its evidence id."""
    return book.add(
        f"decode.slope_{part}_share", value, "ratio", "derived", n=model.fit.n_steps, source="engine steps",
        method=f"fitted cost over the mean decode step; {method_of(model)}",
    )  # fmt: skip
