"""How much of the processors each process used, and which of them stood at its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.host_stacks import ProcessStacks


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Mean use of processors of one process over the judged time.

    `cpus` is processor time over time; `busiest_thread` the same of its busiest thread, None where threads were not
    sampled. `samples` is how often it was looked at.
    """

    pid: int
    cpus: float
    busiest_thread: float | None
    samples: int


def process_use(usage: pd.DataFrame, start_ns: int, end_ns: int, rules: RuleBook) -> tuple[ProcessUse, ...]:
    """Use of every process that was sampled for long enough in [start_ns, end_ns], by its id.

    Args:
        usage: columns of `spyreprof.recording.schema.USAGE`.
        start_ns, end_ns: what is judged.
        rules: how long is enough.
    """
    least_ns = rules["SPY-OBS-001"].threshold("min_span") * NS_PER_S
    inside = usage[(usage["time_ns"] >= start_ns) & (usage["time_ns"] <= end_ns)]
    found = []
    for pid, rows in inside.groupby("pid", sort=True):
        whole = rows[rows["tid"].isna()].sort_values("time_ns", kind="stable")
        rate = _rate(whole, least_ns)
        if rate is None:
            continue
        rates = (_rate(thread, least_ns) for _, thread in rows[rows["tid"].notna()].groupby("tid"))
        threads = [known for known in rates if known is not None]
        found.append(ProcessUse(int(pid), rate, max(threads, default=None), len(whole)))
    return tuple(found)


def _rate(rows: pd.DataFrame, least_ns: float) -> float | None:
    """Processor time over time between the first and the last row; None where that is too short."""
    if len(rows) < 2:
        return None
    span_ns = int(rows["time_ns"].max()) - int(rows["time_ns"].min())
    if span_ns < least_ns:
        return None
    return max(int(rows["cpu_ns"].max()) - int(rows["cpu_ns"].min()), 0) / span_ns


def at_limit(use: ProcessUse, rules: RuleBook) -> bool:
    """Does one core limit the process: a thread that fills one, or all its threads together no more than one?"""
    rule = rules["SPY-HST-004"]
    full = rule.threshold("full_core_ratio")
    if use.busiest_thread is not None and use.busiest_thread >= full:
        return True
    return full <= use.cpus <= rule.threshold("max_one_core")


def share_one_interpreter(sampled: ProcessStacks | None, rules: RuleBook) -> bool:
    """Do threads that each work for a part of the time fill one core together, as threads of one interpreter do?

    One thread that is always found at work may be spinning while it waits, which tells nothing.
    """
    if sampled is None or not sampled.share_of_work or sampled.looks < rules["SPY-HST-002"].threshold("min_looks"):
        return False
    rule = rules["SPY-HST-004"]
    together = sampled.working_share / sampled.share_of_work
    return together >= rule.threshold("full_core_ratio") and sampled.working_share <= rule.threshold(
        "max_of_one_thread"
    )
