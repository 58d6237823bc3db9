"""What tokens and requests cost, from the user's price of an hour. Exact: the lines add up to hours times price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from spyreprof.request_figures import Cost, CostCut, CostLine, RequestCost
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.findings import SteadyWindow
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.request_figures import CostLineName
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts
    from spyreprof_analyzers.request_log import RequestLog

TOPIC = "cost"
OPTION = "give what an hour of everything that was recorded costs: `spyreprof report --price-per-hour PRICE`"
CUTS = (Fraction(1, 10), Fraction(1, 4), Fraction(1, 2))
_NS_PER_HOUR = 3600 * NS_PER_S
_MILLION = 1_000_000
# Lines that are time of steps, and so of tokens; the rest is nobody's.
_OF_TOKENS: frozenset[CostLineName] = frozenset(("input", "output", "visible_output", "reasoning"))
# More are no count: a damaged recording may hold any number.
_MOST_TOKENS = 2.0**40
# With reasoning known of fewer requests it is not set apart.
_MIN_KNOWN_RATIO = 0.95

ATTRIBUTION = (
    "input is the time of prefill and output that of decode, mixed steps divided between them; overhead is compilation "
    "and the time between steps while requests are there; idle capacity is the time without any request"
)
LINEAR = (
    "a cut takes away its tokens' own time: with context that of prefill alone, though decode reads less too; it is a "
    "saving only where the time is used by others or given back"
)


@dataclass(frozen=True, slots=True)
class Attribution:
    """The judged window by what it was spent on, in nanoseconds that add up to it, and the tokens of each line.

    Tokens are None where nobody counted them.
    """

    ns: dict[CostLineName, int]
    tokens: dict[CostLineName, int | None]

    @property
    def whole_ns(self) -> int:
        """The judged window."""
        return sum(self.ns.values())

    def amount(self, line: CostLineName, price_per_hour: Fraction) -> Fraction:
        """What a line costs, exactly."""
        return price_per_hour * self.ns[line] / _NS_PER_HOUR

    def all_in(self, line: CostLineName, price_per_hour: Fraction) -> Fraction | None:
        """The same with its part of the lines that are nobody's; None where no tokens were made."""
        used = sum(ns for name, ns in self.ns.items() if name in _OF_TOKENS)
        if used == 0 or line not in _OF_TOKENS:
            return None
        return price_per_hour * self.whole_ns / _NS_PER_HOUR * self.ns[line] / used


def withheld(price_per_hour: Fraction | None, book: EvidenceBook, reason: str, obtain: str) -> None:
    """Say why there is no cost, where a price was given."""
    if price_per_hour is not None:
        book.leave_open(TOPIC, reason, obtain)


def cost(inputs: AnalysisInputs, facts: Facts, price_per_hour: Fraction | None, book: EvidenceBook) -> Cost | None:
    """Price tokens and requests; None, and said why, without a price or where it would be nobody's.

    Args:
        inputs: kind of device, settings.
        facts: the judged window of the engine.
        price_per_hour: the user's, for everything that was recorded.
        book: takes what is left open.
    """
    if price_per_hour is None:
        book.leave_open(TOPIC, "no price was given", OPTION)
        return None
    if facts.engines != 1:
        book.leave_open(
            TOPIC, "several engines ran, and the price is for all of them together", "record one engine by itself"
        )
        return None
    spent = attribute(facts)
    notes = [ATTRIBUTION]
    if spent.tokens["cached"] is not None:
        notes.append("cached tokens take no step of their own; reading them is a part of the steps of decode")
    if "output" in spent.ns:
        notes.append("no reasoning tokens are known for nearly all requests, so that output is one line")
    requests = _requests(spent, facts, price_per_hour)
    if requests:
        notes.append(LINEAR)
    else:
        notes.append("no request with prompt and output lengths is known, so that none is priced")
    return Cost(
        price_per_hour=float(price_per_hour),
        window_ns=spent.whole_ns,
        amount=float(price_per_hour * spent.whole_ns / _NS_PER_HOUR),
        devices=_devices(inputs),
        lines=tuple(_line(name, spent, price_per_hour) for name in spent.ns),
        requests=requests,
        notes=tuple(notes),
    )


def attribute(facts: Facts) -> Attribution:
    """Divide the judged window among the kinds of tokens, overhead and idle capacity."""
    wall, steps = facts.wall, facts.steps
    mixed_ns = wall.phase_ns["mixed"]
    of_prefill = min(max(round(mixed_ns * facts.mixed.ratio), 0), mixed_ns)
    input_ns = wall.phase_ns["prefill"] + of_prefill
    output_ns = wall.phase_ns["decode"] + mixed_ns - of_prefill
    counted = bool(steps.counted.all())
    input_tokens = int(steps.context_tokens.sum()) if counted else None
    output_tokens = int(steps.generation_tokens.sum()) if counted else None
    gaps = wall.gaps.ns
    ns: dict[CostLineName, int] = {"input": input_ns, "cached": 0}
    tokens: dict[CostLineName, int | None] = {
        "input": input_tokens,
        "cached": _cached(facts.prefix_hit_ratio, input_tokens),
    }
    thought = _reasoning(facts)
    if thought is None:
        ns["output"], tokens["output"] = output_ns, output_tokens
    else:
        of_time, of_tokens = thought
        reasoning_ns = min(round(output_ns * of_time), output_ns)
        reasoning = None if output_tokens is None else min(round(output_tokens * of_tokens), output_tokens)
        ns |= {"visible_output": output_ns - reasoning_ns, "reasoning": reasoning_ns}
        visible = None if output_tokens is None or reasoning is None else output_tokens - reasoning
        tokens |= {"visible_output": visible, "reasoning": reasoning}
    ns["overhead"] = wall.compile_ns + gaps["scheduler_gap"] + gaps["waiting_unscheduled"] + gaps["front_end"]
    ns["idle_capacity"] = gaps["no_load"]
    ns["unexplained"] = gaps["unexplained"] + wall.phase_ns["unknown"]
    return Attribution(ns, tokens)


def _cached(hit_ratio: float | None, computed: int | None) -> int | None:
    """Prompt tokens that the cache held, from those that were computed and the share that was not."""
    if hit_ratio is None or computed is None or hit_ratio >= 1.0:
        return None
    return round(computed * hit_ratio / (1.0 - hit_ratio))


def _reasoning(facts: Facts) -> tuple[float, float] | None:
    """Share of reasoning in decode time and in output tokens; None where it is not known of nearly all requests."""
    log = facts.log
    if log is None:
        return None
    inside = _there(log, facts.window) & (log.output_tokens > 0)
    known = inside & (log.reasoning_tokens <= log.output_tokens)
    if not known.any() or known.sum() < _MIN_KNOWN_RATIO * inside.sum():
        return None
    thought, output = log.reasoning_tokens[known], log.output_tokens[known]
    decode_ns = (log.e2e_ns - log.ttft_ns)[known]
    by_tokens = float(thought.sum() / output.sum())
    if decode_ns.sum() <= 0:
        return by_tokens, by_tokens
    # fsum: the same in whatever order the requests came
    return math.fsum(decode_ns * (thought / output)) / float(decode_ns.sum()), by_tokens


def _there(log: RequestLog, window: SteadyWindow) -> NDArray[np.bool_]:
    """Requests that were there in the window, whenever they came: their lengths count, not their times."""
    if log.arrival_ns is None:
        return np.ones(len(log), dtype=np.bool_)
    return (log.arrival_ns < window.end_ns) & (log.arrival_ns + log.e2e_ns > window.start_ns)


def _line(name: CostLineName, spent: Attribution, price_per_hour: Fraction) -> CostLine:
    amount, all_in, tokens = (
        spent.amount(name, price_per_hour),
        spent.all_in(name, price_per_hour),
        spent.tokens.get(name),
    )
    return CostLine(
        id=name,
        ns=spent.ns[name],
        share=spent.ns[name] / max(spent.whole_ns, 1),
        amount=float(amount),
        tokens=tokens,
        per_million_tokens=float(amount * _MILLION / tokens) if tokens else None,
        all_in_per_million_tokens=float(all_in * _MILLION / tokens) if tokens and all_in is not None else None,
    )


def _requests(spent: Attribution, facts: Facts, price_per_hour: Fraction) -> tuple[RequestCost, ...]:
    """The requests at the median and at the 95th percentile of cost, and the same with fewer tokens."""
    log = facts.log
    per_input = _per_token(spent, ("input",), price_per_hour)
    per_output = _per_token(spent, ("output", "visible_output", "reasoning"), price_per_hour)
    if log is None or per_input is None or per_output is None:
        return ()
    sane = (log.prompt_tokens <= _MOST_TOKENS) & (log.output_tokens <= _MOST_TOKENS)
    known = np.flatnonzero(_there(log, facts.window) & sane & (log.output_tokens > 0))
    if len(known) == 0:
        return ()
    prompt, output = log.prompt_tokens[known].astype(np.int64), log.output_tokens[known].astype(np.int64)
    cached = _cached_of(log.cached_tokens[known], prompt, facts.prefix_hit_ratio)
    computed = prompt - (cached if cached is not None else 0)
    # The first token of a request comes with its prefill.
    later = output - 1
    ranked = np.lexsort((later, prompt, computed * float(per_input) + later * float(per_output)))

    def at(percentile: Literal[50, 95]) -> RequestCost:
        place = int(ranked[-(-len(ranked) * percentile // 100) - 1])
        context, made = int(computed[place]), int(later[place])
        whole = context * per_input + made * per_output
        parts: tuple[tuple[Literal["context", "output"], Fraction], ...] = (
            ("context", context * per_input),
            ("output", made * per_output),
        )
        cuts = tuple(
            CostCut(
                of=of,
                cut_ratio=float(cut),
                amount=float(whole - part * cut),
                change_ratio=float(-part * cut / whole) if whole else 0.0,
            )
            for of, part in parts
            for cut in CUTS
        )
        return RequestCost(
            percentile=percentile,
            prompt_tokens=int(prompt[place]),
            cached_tokens=int(cached[place]) if cached is not None else None,
            output_tokens=int(output[place]),
            amount=float(whole),
            cuts=cuts,
        )

    return (at(50), at(95))


def _per_token(spent: Attribution, lines: tuple[CostLineName, ...], price_per_hour: Fraction) -> Fraction | None:
    there = [name for name in lines if name in spent.ns]
    counts = [spent.tokens[name] for name in there]
    tokens = sum(count for count in counts if count is not None)
    if None in counts or tokens == 0:
        return None
    return sum((spent.amount(name, price_per_hour) for name in there), start=Fraction(0)) / tokens


def _cached_of(
    cached: NDArray[np.float64], prompt: NDArray[np.int64], hit_ratio: float | None
) -> NDArray[np.int64] | None:
    """Cached tokens of each request: its own count, else the engine's ratio; None where neither is known."""
    if not np.isnan(cached).any():
        return np.minimum(cached, prompt).astype(np.int64)
    return np.rint(prompt * hit_ratio).astype(np.int64) if hit_ratio is not None else None


def _devices(inputs: AnalysisInputs) -> int | None:
    """Devices behind the price; None where nobody counted them."""
    if inputs.device_kind == "cpu":
        return 1
    settings = inputs.settings
    sizes = (settings.tensor_parallel, settings.pipeline_parallel, settings.data_parallel)
    if None in sizes:
        return None
    return int(np.prod([size for size in sizes if size is not None]))
