"""What each witness says of one phase, beside the bound that the device trace gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Witness
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.communication import link_binds
from spyreprof_analyzers.decode_cost import cite_share, decode_cost, method_of
from spyreprof_analyzers.engine_steps import MIXED, PREFILL
from spyreprof_analyzers.facts import cite_flop_floor, cite_weight_floor
from spyreprof_analyzers.interconnect import cite_rows, cite_trace, outweighs_link, rows_text, sees_link, trace_text
from spyreprof_analyzers.slope_tests import FIXED, PER_CONTEXT_TOKEN, PER_Q_K, PER_REQUEST
from spyreprof_analyzers.witnesses import bound_class

if TYPE_CHECKING:
    from spyreprof.findings import BoundClass, SlopeTerm
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts, Side
    from spyreprof_analyzers.slope import StepModel


def phase_views(side: Side, facts: Facts, rules: RuleBook, book: EvidenceBook) -> tuple[Witness, ...]:
    """Peaks, slope test and requests on one side of the work; each None where it has nothing to say."""
    bound = facts.bounds[side]
    said: BoundClass | None = bound_class(side, bound.resource)
    text, cited, found = bound.reason, bound.evidence, facts.communication
    if said == "interconnect_bound" and found is not None and side in found.exposed:
        # the rows of collectives are the engine's; the trace is asked apart
        said = said if sees_link(facts, side, rules) else None
        text, cited = trace_text(facts, side) or text, cite_trace(side, found, book)
    trace = Witness(
        name="device_trace",
        says=None if said == "undetermined" else said,
        agrees=None,
        text=text,
        evidence=cited,
    )
    return trace, _compared(_engine(side, facts, rules, book), trace.says), _requests(side, facts, book)


def _compared(view: Witness, trace: BoundClass | None) -> Witness:
    """Whether a view agrees with the trace; None where one of them is silent."""
    if view.says is None or trace is None:
        return view
    return Witness(name=view.name, says=view.says, agrees=view.says == trace, text=view.text, evidence=view.evidence)


def _engine(side: Side, facts: Facts, rules: RuleBook, book: EvidenceBook) -> Witness:
    """Rows of collectives where they bind by themselves or are what the phase is judged by; else floors and slopes."""
    found = facts.communication
    binds = link_binds(found, side, None, rules)
    told = found is not None and side in found.exposed
    if found is not None and told and (binds or facts.bounds[side].resource == "interconnect"):
        return Witness(
            name="engine", says="interconnect_bound" if binds else None, agrees=None,
            text=rows_text(found.exposed[side], rules), evidence=cite_rows(side, found, book),
        )  # fmt: skip
    return _decode_engine(facts, rules, book) if side == "decode" else _prefill_engine(facts, rules, book)


def _decode_engine(facts: Facts, rules: RuleBook, book: EvidenceBook) -> Witness:
    pieces: list[str] = []
    cited: list[str] = []
    says: BoundClass | None = None
    floor = facts.weight_floor_ratio
    if floor is not None:
        cited.append(cite_weight_floor(floor, book))
        pieces.append(f"reading the weights once takes {format_share(floor)} of a decode step")
        enough = rules["SPY-DEC-001"].threshold("min_weight_floor_ratio")
        if floor >= enough and outweighs_link(floor, facts, "decode"):
            says = "decode_bandwidth_bound"
    model, cost = facts.model, decode_cost(facts.model)
    if model is not None and cost is not None:
        per_request = next((term for term in model.fit.terms if term.name == PER_REQUEST), None)
        fixed = model.identified(FIXED)
        if fixed is None:
            reason = next((term.reason for term in model.fit.terms if term.name == FIXED), None)
            pieces.append(f"slope test: {reason or 'fixed cost, not split'}")
        elif per_request is not None and per_request.ns_per_unit is not None:
            cited.extend(
                _cite_slope(term, model, book) for term in model.fit.terms if term.name in (FIXED, PER_REQUEST)
            )
            grows = format_seconds(per_request.ns_per_unit / NS_PER_S)
            told = f"{grows} per request" if per_request.identifiable else f"per request {per_request.reason}"
            pieces.append(f"slope test: {format_seconds(fixed / NS_PER_S)} fixed and {told}")
        if cost.cache is not None:
            cited.append(cite_share("cache", cost.cache, model, book))
            pieces.append(f"slope test: reading the KV cache takes {format_share(cost.cache)} of a decode step")
    return Witness(
        name="engine", says=says, agrees=None, text="; ".join(pieces) or "nothing to go by", evidence=tuple(cited)
    )


def _prefill_engine(facts: Facts, rules: RuleBook, book: EvidenceBook) -> Witness:
    pieces: list[str] = []
    cited: list[str] = []
    says: BoundClass | None = None
    floor = facts.flop_floor_ratio
    if floor is not None:
        cited.append(cite_flop_floor(floor, book))
        pieces.append(f"the prompt tokens' matmuls would take {format_share(floor)} of its time at peak")
        if floor >= rules["SPY-GEN-003"].threshold("high_use") and outweighs_link(floor, facts, "prefill"):
            says = "prefill_bound"
    model = facts.model
    per_token = model.identified(PER_CONTEXT_TOKEN) if model is not None else None
    steps = facts.steps.where(facts.steps.counted & (facts.steps.context_q_k_sum >= 0))
    steps = steps.where((steps.phase == PREFILL) | (steps.phase == MIXED))
    if model is not None and per_token is not None and len(steps):
        # where the q x k term moves with the tokens, it is part of what they cost
        quadratic = (model.identified(PER_Q_K) or 0.0) * float(steps.context_q_k_sum.sum())
        grown = per_token * float(steps.context_tokens.sum()) + quadratic
        share = min(grown / max(int(steps.duration_ns.sum()), 1), 1.0)
        cited.extend(_cite_slope(term, model, book) for term in model.fit.terms if term.name == PER_CONTEXT_TOKEN)
        cited.append(
            book.add(
                "prefill.token_cost_share", share, "ratio", "derived", n=len(steps), source="engine steps",
                method="fitted cost of prompt tokens and of their q x k, over the time of those steps",
            )
        )  # fmt: skip
        pieces.append(f"slope test: {format_share(share)} of its time grows with the prompt tokens")
    elif model is not None:
        term = next((term for term in model.fit.terms if term.name == PER_CONTEXT_TOKEN), None)
        if term is not None:
            pieces.append(f"slope test: cost per prompt token not determined ({term.reason})")
    return Witness(
        name="engine", says=says, agrees=None, text="; ".join(pieces) or "nothing to go by", evidence=tuple(cited)
    )


def _requests(side: Side, facts: Facts, book: EvidenceBook) -> Witness:
    times = facts.times
    if times is None or times.total_s <= 0:
        return Witness(name="requests", says=None, agrees=None, text="no request log and no histograms")
    share = (times.decode_s if side == "decode" else times.prefill_s) / times.total_s
    cited = book.add(
        f"requests.{side}_share", share, "ratio", "measured", n=times.requests, source=times.source,
        method=f"{side} time over all time of finished requests",
    )  # fmt: skip
    name = "waiting and prefill" if side == "prefill" and times.queue_s is None else side
    return Witness(
        name="requests",
        says=None,
        agrees=None,
        text=f"{format_share(share)} of request time is {name}",
        evidence=(cited,),
    )


def _cite_slope(term: SlopeTerm, model: StepModel, book: EvidenceBook) -> str:
    return book.add(
        f"slope.{term.name}_ns", term.ns_per_unit, "ns", "derived", n=model.fit.n_steps, source="engine steps",
        low=term.low, high=term.high, method=method_of(model),
    )  # fmt: skip
