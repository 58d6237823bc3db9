"""What dominates the p99, and what tokens and requests cost, for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spyreprof.report.figures import UNKNOWN, count, spell
from spyreprof.report.page import Column, Page
from spyreprof.units import format_share

if TYPE_CHECKING:
    from spyreprof.report.model import Conditions, Report, Spread
    from spyreprof.request_figures import Cost, CostLine, RequestCost, TailLatency

_LATENCIES = {"ttft": "ttft", "itl": "itl mean", "itl_max": "itl max", "e2e": "e2e"}
_NOTHING = "-"


def draw_tails(page: Page, report: Report, show_all: bool) -> None:
    """The slowest requests beside the median ones, part by part; nothing where they were not compared."""
    if not report.tails:
        return
    page.blank()
    page.paragraph("What dominates the p99: time of the slowest requests, and of the median ones", style="bold")
    for tail in report.tails:
        page.labelled(_LATENCIES[tail.metric], _said(tail), indent=2, label_width=13)
    shown = [tail for tail in report.tails if show_all or tail.dominant is not None]
    if shown:
        # Each latency's slowest requests, and beside them its median ones.
        columns = [Column("share in %", numeric=False)]
        columns += [Column(heading) for tail in shown for heading in (_LATENCIES[tail.metric], "median")]
        page.table(columns, _rows(shown), indent=2)
    for note in dict.fromkeys(note for tail in report.tails for note in tail.notes):
        page.paragraph(f"{note[:1].upper()}{note[1:]}.", indent=2, style="dim")


def _said(tail: TailLatency) -> str:
    text = (
        f"{tail.dominant or 'nothing dominates'}: {spell(tail.slowest_mean_s, 's')} ({tail.slowest:,} slowest of "
        f"{tail.requests:,}) against {spell(tail.median_mean_s, 's')} (median {tail.median:,}); {tail.reason}"
    ).replace("_", " ")
    if tail.target_p99_s is not None:
        met = {True: "met", False: "missed", None: "not judged"}[tail.target_met]
        text += f"; target {spell(tail.target_p99_s, 's')} {met}"
    return text


def _rows(tails: list[TailLatency]) -> list[list[str]]:
    rows = []
    for place, part in enumerate(tails[0].parts):
        cells = [share for tail in tails for share in (tail.parts[place].slowest_share, tail.parts[place].median_share)]
        # A part that took no time anywhere is left out; one that nobody could see is not.
        if any(share is None or share > 0 for share in cells):
            spelled = [UNKNOWN if share is None else f"{share * 100:.1f}" for share in cells]
            rows.append(["not known" if part.id == "unknown" else part.id.replace("_", " "), *spelled])
    return rows


def draw_cost(page: Page, report: Report, show_all: bool) -> None:
    """The window's cost by what it was spent on, and two requests; nothing without a price."""
    cost = report.cost
    if cost is None:
        return
    page.blank()
    page.paragraph(f"Cost at your price of {spell_amount(cost.price_per_hour)} an hour, in its currency", style="bold")
    page.labelled("for", _conditions(report.conditions, cost), indent=2, label_width=5)
    columns = [Column("time of", numeric=False), Column("share"), Column("amount"), Column("tokens")]
    columns += [Column("per million"), Column("all in")]
    page.table(columns, [_line(line) for line in cost.lines], indent=2)
    whole = (
        f"{spell_amount(cost.amount)} for {spell(cost.window_ns, 'ns')} in all; 'all in' spreads what is of no token"
    )
    page.paragraph(f"{whole}.", indent=2, style="dim")
    for request in cost.requests:
        page.labelled(f"request p{request.percentile}", _request(request), indent=2, label_width=13)
    for note in cost.notes if show_all else ():
        page.paragraph(f"{note[:1].upper()}{note[1:]}.", indent=2, style="dim")


def _conditions(conditions: Conditions, cost: Cost) -> str:
    """What the amounts hold for, each by its name or as unknown."""
    devices = UNKNOWN if cost.devices is None else f"{cost.devices}"
    return ", ".join((
        f"model {conditions.model or UNKNOWN}",
        f"precision {conditions.precision or UNKNOWN}",
        f"hardware {conditions.hardware or UNKNOWN}",
        f"device {conditions.device_kind or UNKNOWN}",
        f"devices {devices}",
        f"batch {_mean(conditions.batch)}",
        f"sequence length {_mean(conditions.context)}",
    ))  # fmt: skip


def _mean(spread: Spread | None) -> str:
    return UNKNOWN if spread is None else count(spread.mean)


def _line(line: CostLine) -> list[str]:
    of_tokens = line.id not in {"overhead", "idle_capacity", "unexplained"}
    per_million = (line.per_million_tokens, line.all_in_per_million_tokens)
    if not of_tokens:
        cells = [_NOTHING] * 3
    else:
        cells = [UNKNOWN if line.tokens is None else f"{line.tokens:,}"]
        cells += [
            (UNKNOWN if line.tokens is None else _NOTHING) if one is None else spell_amount(one) for one in per_million
        ]
    return [line.id.replace("_", " "), format_share(line.share), spell_amount(line.amount), *cells]


def _request(request: RequestCost) -> str:
    cached = f" ({request.cached_tokens:,} cached)" if request.cached_tokens else ""
    lengths = f"{request.prompt_tokens:,} prompt tokens{cached}, {request.output_tokens:,} output tokens"
    cuts = []
    for of in ("context", "output"):
        changes = [
            f"{cut.cut_ratio * 100:.0f} % less: {cut.change_ratio * 100:+.1f} %" for cut in request.cuts if cut.of == of
        ]
        cuts.append(f"{of} {', '.join(changes)}")
    return f"{spell_amount(request.amount)}, {lengths}; {'; '.join(cuts)}"


def spell_amount(value: float) -> str:
    """Spell an amount of money with three significant digits, and never as a power of ten."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude < 1e-9:
        return "0" if value == 0 else f"{value:.1e}"
    return f"{value:.{2 - math.floor(math.log10(magnitude))}f}"
