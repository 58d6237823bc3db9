"""The parts of an engine's own work that its program named, as shares of the judged window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Finding
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers import intervals
from spyreprof_analyzers.context import NOTHING_AGAINST

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import SteadyWindow
    from spyreprof_analyzers.context import Context

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class NamedPart:
    """One named part of the engine's work in the judged window.

    Attributes:
        name: as the program named it, where that is common knowledge; else "part 1", "part 2".
        share: time in which it ran over the window, 0 to 1. Parts may lie inside one another and inside steps.
        count: how often it ran.
        median_ns: its usual duration.
    """

    name: str
    share: float
    count: int
    median_ns: int


def named_parts(phases: pd.DataFrame | None, window: SteadyWindow, writer: str) -> tuple[NamedPart, ...]:
    """Sum up the parts of one process that begin in the window, largest share first."""
    if phases is None:
        return ()
    start_ns = phases["start_ns"]
    mine = phases[(phases["writer"] == writer) & (start_ns >= window.start_ns) & (start_ns < window.end_ns)]
    found = []
    for name, rows in mine.groupby("name"):
        spans = rows[["start_ns", "end_ns"]].to_numpy(dtype=np.int64)
        busy_ns = intervals.total(intervals.clip(intervals.union(spans), window.start_ns, window.end_ns))
        share = busy_ns / max(window.end_ns - window.start_ns, 1)
        found.append(NamedPart(str(name), share, len(rows), int(np.median(spans[:, 1] - spans[:, 0]))))
    return tuple(sorted(found, key=lambda part: (-part.share, part.name)))


def named_parts_of_the_host(context: Context) -> Finding | None:
    """Say what share of the window each named part took."""
    rule, parts = context.rules["SPY-HST-003"], context.facts.named_parts
    if not parts:
        return None
    evidence = tuple(
        context.book.add(
            f"host.{part.name.replace(' ', '_')}_share", part.share, "ratio", "measured", n=part.count,
            source="parts named by the program", method="time inside the part over the window",
        )
        for part in parts[:_SHOWN]
    )  # fmt: skip
    said = ", ".join(
        f"{part.name} {format_share(part.share)} ({part.count:,} times, "
        f"usually {format_seconds(part.median_ns / NS_PER_S)})"
        for part in parts[:_SHOWN]
    )
    more = f"; {len(parts) - _SHOWN} smaller parts are left out" if len(parts) > _SHOWN else ""
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="info",
        title=rule.title,
        text=f"Of the window: {said}{more}. Parts may lie inside one another and inside steps.",
        phase=None,
        share=None,
        evidence=evidence,
        against=rule.false_positive_notes or (NOTHING_AGAINST,),
    )
