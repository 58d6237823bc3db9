"""Engines side by side: does one keep requests waiting while another has room?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.scheduler import GRID_NS, MAX_GRID_TIMES, gauges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.engines import Engine
    from spyreprof_analyzers.scheduler import Gauges


@dataclass(frozen=True, slots=True)
class Imbalance:
    """How unevenly engines of one model are loaded.

    Attributes:
        share: of the time in which all were seen and any held a request, that was uneven while requests waited.
        fullest, emptiest: numbers of the engines that stood out most.
        demand: by engine, the mean of running + waiting in that time; `waiting` and `kv_usage` alike.
    """

    share: float
    fullest: int
    emptiest: int
    demand: dict[int, float]
    waiting: dict[int, float]
    kv_usage: dict[int, float | None]


def imbalance(engines: Sequence[Engine], rules: RuleBook) -> Imbalance | None:
    """Compare the gauges of engines that serve one model; None with fewer than two, or where they are even."""
    by_model: dict[int | None, list[Engine]] = {}
    for engine in engines:
        by_model.setdefault(engine.model, []).append(engine)
    found = [uneven for group in by_model.values() if (uneven := _uneven(group, rules)) is not None]
    return max(found, key=lambda one: one.share, default=None)


def _uneven(engines: Sequence[Engine], rules: RuleBook) -> Imbalance | None:
    seen = {
        engine.number: found
        for engine in engines
        if (found := gauges(engine.inputs.counters, engine.inputs.polls, engine.inputs.recording_end_ns)) is not None
    }
    if len(seen) < 2:
        return None
    start = max(int(one.time_ns[0]) for one in seen.values())
    end = min(int(one.time_ns[-1]) for one in seen.values())
    # a longer stretch gets a coarser grid, as that of the gauges
    apart_ns = max(GRID_NS, (end - start) // MAX_GRID_TIMES)
    times = np.arange(start, end + 1, apart_ns, dtype=np.int64)
    if len(times) == 0:
        return None
    numbers = sorted(seen)
    running, waiting, usage = (
        np.stack([_at(seen[number], name, times) for number in numbers])
        for name in ("running", "waiting", "kv_usage_ratio")
    )
    demand = running + waiting
    known = ~np.isnan(demand).any(axis=0)
    busy = known & (demand.sum(axis=0) > 0)
    if not busy.any():
        return None
    rule = rules["SPY-IMB-001"]
    least, high, low = rule.threshold("min_difference"), demand.max(axis=0), demand.min(axis=0)
    uneven = (high - low > least * high) & (high - low >= rule.threshold("min_requests"))
    full, free = usage.max(axis=0), usage.min(axis=0)
    # KV use differs too where it is known; a cache that is hardly used is no sign of anything
    uneven |= (full - free > least) & (high >= rule.threshold("min_requests"))
    # at the engine with the most to do somebody waits, and elsewhere fewer than there
    fullest = demand.argmax(axis=0)
    at = np.arange(len(times))
    waits = (waiting[fullest, at] >= 1) & (waiting.min(axis=0) < waiting[fullest, at])
    chosen = busy & uneven & waits
    share = int(chosen.sum()) / int(busy.sum())
    if share < rule.threshold("min_share"):
        return None
    means = {number: float(demand[place, chosen].mean()) for place, number in enumerate(numbers)}
    return Imbalance(
        share=share,
        fullest=max(numbers, key=lambda number: means[number]),
        emptiest=min(numbers, key=lambda number: means[number]),
        demand=means,
        waiting={number: float(waiting[place, chosen].mean()) for place, number in enumerate(numbers)},
        kv_usage={
            number: float(usage[place, chosen].mean()) if not np.isnan(usage[place, chosen]).any() else None
            for place, number in enumerate(numbers)
        },
    )


def _at(seen: Gauges, name: str, times: NDArray[np.int64]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = getattr(seen, name)
    return values[np.searchsorted(seen.time_ns, times, side="right") - 1]


def uneven_load(found: Imbalance | None, data_parallel: bool, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    """The finding that engines are loaded unevenly, with the numbers of each engine.

    Args:
        found: how unevenly.
        data_parallel: the engines are ranks of one server, whose own balancer spreads requests.
        rules: thresholds.
        book: takes the numbers.
    """
    rule = rules["SPY-IMB-001"]
    if found is None or found.share < rule.materiality_share:
        return None
    evidence = [
        book.add("engines.uneven_share", found.share, "ratio", "derived", source="/metrics gauges",
                 method="time in which engines differed by more than 30 % while requests waited, over time with load")
    ]  # fmt: skip
    before = book.engine
    for number in sorted(found.demand):
        book.engine = number
        evidence += [
            book.add(f"engine.{name}", value, unit, "measured", source="/metrics gauges", method="mean over that time")
            for name, value, unit in (
                ("demand", found.demand[number], "requests"),
                ("waiting", found.waiting[number], "requests"),
                ("kv_usage", found.kv_usage[number], "ratio"),
            )
            if value is not None
        ]
    book.engine = before
    most, least = found.fullest, found.emptiest
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="high" if found.share >= rule.threshold("high_severity_share") else "medium",
        title=rule.title,
        text=f"For {format_share(found.share)} of the time engine {most} held {found.demand[most]:.0f} requests, of "
        f"which {found.waiting[most]:.0f} waited, and engine {least} held {found.demand[least]:.0f}. Means over the "
        f"{len(found.demand)} engines describe none of them.",
        phase=None,
        share=found.share,
        evidence=tuple(evidence),
        against=rule.false_positive_notes,
        advice=(_route(data_parallel),),
    )


def _route(data_parallel: bool) -> Advice:
    return Advice(
        id="routing",
        setting="data-parallel load balancing" if data_parallel else "routing of clients",
        from_=None,
        to="by the KV cache in use and the requests that wait, not by counts or turns",
        from_origin="measured",
        expected=(
            ExpectedChange(metric="queue time", direction="down", note="of the requests that wait at the full engine"),
            ExpectedChange(metric="output tokens/s", direction="up", note="engines with room take a part of the load"),
        ),
        pays=(
            ExpectedChange(metric="prefix cache hits", direction="down",
                           note="where requests leave the engine that holds their beginning"),
        ),
        preconditions=("requests may go to any of the engines",),
        test_arguments="",
        test_note="it is a setting of the balancer or of the clients, not of the engine",
        refuted_if="running + waiting requests still differ by more than 30 % across engines while requests wait",
    )  # fmt: skip
