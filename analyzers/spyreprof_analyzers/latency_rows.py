"""Latencies of the window, each beside the user's target for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from spyreprof.units import NS_PER_S
from spyreprof_analyzers.request_log import latencies, summarise
from spyreprof_analyzers.slope import usual_cycle_ns

if TYPE_CHECKING:
    from spyreprof.findings import LatencySummary
    from spyreprof.targets import Targets
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts


def latency_rows(facts: Facts, targets: Targets, book: EvidenceBook) -> tuple[LatencySummary, ...]:
    """The window's latencies, each beside the user's target for it."""
    wanted = {"ttft": targets.ttft_p99_s, "itl": targets.itl_p99_s}
    found = [_against_target(row, wanted.pop(row.metric, None)) for row in _measured_latencies(facts)]
    judged = {row.metric: row.target_met for row in found}
    for metric, target_s in (("ttft", targets.ttft_p99_s), ("itl", targets.itl_p99_s)):
        if target_s is not None and judged.get(metric) is None:
            book.leave_open(
                f"whether the {metric.upper()} target is met",
                "a 99th percentile needs a hundred samples in the window",
                "record for longer, with a load generator that writes its result",
            )
    return tuple(found)


def _against_target(row: LatencySummary, target_s: float | None) -> LatencySummary:
    if target_s is None:
        return row
    met: bool | None = None
    if row.p99_s is not None:
        met = row.p99_s <= target_s
    elif any(lower is not None and lower > target_s for lower in (row.p90_s, row.p50_s)):
        met = False  # the 99th percentile is no less than these
    return msgspec.structs.replace(row, target_p99_s=target_s, target_met=met)


def _measured_latencies(facts: Facts) -> tuple[LatencySummary, ...]:
    rows = list(latencies(facts.log, facts.window)) if facts.log is not None else []
    steps = facts.steps
    cycles = usual_cycle_ns(steps)[steps.generation_requests > 0]
    itl = summarise("itl", cycles / NS_PER_S, "cycle time of engine steps that generate")
    if itl is not None:
        rows.append(itl)
    return tuple(rows)
