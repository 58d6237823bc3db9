"""Where the host spends its time, from sampled Python stacks.

Functions are numbers here and names are no input: a sentence says `frame#3`, and the report puts the name in its place
once it has decided whether that name may be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.context import NOTHING_AGAINST

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context

_FUNCTIONS_SHOWN = 3
_PLACES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """What sampling saw of one process.

    Attributes:
        looks: looks at the process that the shares are taken from.
        rate_hz: looks per second that were asked for.
        working_share: looks that found the busiest thread working, 0 to 1.
        share_of_work: the busiest thread's part of all threads' working looks; None when nobody worked.
        functions: (frame, share) of the working looks of all threads, largest first.
        waits: (frame, share) of the looks, where the busiest thread waited, largest first.
        state_known: the kernel's state of the threads was seen, so that sleep in C code is told from work.
        cut_short: only windows that an end cut short were there, so that shares may be too small.
    """

    pid: int
    looks: int
    rate_hz: int
    working_share: float
    share_of_work: float | None
    functions: tuple[tuple[int, float], ...]
    waits: tuple[tuple[int, float], ...]
    state_known: bool
    cut_short: bool


def pid_of(writer: str) -> int | None:
    """The process id in a writer's name, `<pid>-<start>`; None where it is no such name."""
    pid, _, _ = writer.partition("-")
    return int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 18 else None


def process_stacks(
    stacks: pd.DataFrame | None, start_ns: int, end_ns: int, rules: RuleBook, pid: int | None = None
) -> ProcessStacks | None:
    """Sum up the windows whose middle lies in [start_ns, end_ns).

    Args:
        stacks: as in `AnalysisInputs.stacks`.
        start_ns, end_ns: what is judged.
        rules: what is worth a name.
        pid: the judged process; None takes the one that worked most.

    Returns:
        None when the process was not sampled there.
    """
    if stacks is None:
        return None
    middle = (stacks["start_ns"] + stacks["end_ns"]) // 2
    inside = stacks[(middle >= start_ns) & (middle < end_ns)]
    if pid is None and not inside.empty:
        worked = inside[~inside["waiting"].fillna(True)].groupby("pid")["count"].sum()
        pid = int(worked.idxmax()) if len(worked) else int(inside["pid"].iloc[0])
    mine = inside[inside["pid"] == pid]
    return _summed(mine, int(pid), rules) if pid is not None and not mine.empty else None


def _summed(mine: pd.DataFrame, pid: int, rules: RuleBook) -> ProcessStacks | None:
    rule = rules["SPY-HST-002"]
    running, sleeping = mine[~mine["with_sleeping"]], mine[mine["with_sleeping"]]
    # Without a window of running threads alone, what the table of waiting functions says is all there is.
    judged = running if len(running) else sleeping
    whole = judged[judged["complete"]]
    cut_short = whole.empty
    judged = judged if cut_short else whole
    looks = _looks(judged)
    if looks == 0:
        return None
    working = judged[~judged["waiting"].fillna(True)]
    by_thread = working.groupby("thread")["count"].sum()
    by_frame = working.groupby("frame")["count"].sum().sort_values(ascending=False, kind="stable")
    total = int(by_thread.sum())
    busiest = str(by_thread.idxmax()) if total else None
    worked = int(by_thread.max()) if total else 0
    return ProcessStacks(
        pid=pid,
        looks=looks,
        rate_hz=int(judged["rate_hz"].max()),
        working_share=min(worked / looks, 1.0),
        share_of_work=worked / total if total else None,
        functions=tuple(
            (int(frame), int(count) / total)
            for frame, count in by_frame.head(_FUNCTIONS_SHOWN).items()
            if count >= rule.threshold("min_function_share") * total
        ),
        waits=_waits(judged, sleeping, busiest, rule.threshold("min_wait_share")),
        state_known=len(running) > 0 and bool(judged["state_known"].fillna(True).all()),
        cut_short=cut_short,
    )


def _looks(windows: pd.DataFrame) -> int:
    return int(windows.drop_duplicates("start_ns")["looks"].sum())


def _waits(
    running: pd.DataFrame, sleeping: pd.DataFrame, thread: str | None, least: float
) -> tuple[tuple[int, float], ...]:
    """Where a thread waits: how much more often it is found in a place than found running there."""
    looks_running, looks_sleeping = _looks(running), _looks(sleeping)
    if thread is None and len(sleeping):
        # nobody worked: the thread that is there most is as good as any
        thread = str(sleeping.groupby("thread")["count"].sum().idxmax())
    if thread is None or looks_sleeping == 0 or looks_running == 0:
        return ()
    present = sleeping[sleeping["thread"] == thread].groupby(["frame", "waiting"])["count"].sum()
    worked = running[(running["thread"] == thread) & ~running["waiting"].fillna(True)].groupby("frame")["count"].sum()
    shares = [
        (int(frame), int(count) / looks_sleeping - (0.0 if waits else int(worked.get(frame, 0)) / looks_running))
        for (frame, waits), count in present.items()
    ]
    # What lies within the noise of the two kinds of windows is no wait.
    found = sorted((share for share in shares if share[1] >= least), key=lambda share: -share[1])
    return tuple(found[:_PLACES_SHOWN])


def where_the_host_spends(context: Context) -> Finding | None:
    """Of the judged process, in the judged window. Where host time matters and nobody looked, the question is open."""
    facts = context.facts
    found = describe(facts.sampled, context.rules, context.book, of="the process that runs the steps")
    host_binds = any(bound.resource == "host" for bound in facts.bounds.values())
    if found is None and (host_binds or facts.shares.scheduler_gap >= context.rules["SPY-HST-001"].materiality_share):
        looks = 0 if facts.sampled is None else facts.sampled.looks
        context.book.leave_open(
            "what the host does between and beside kernels",
            f"only {looks} looks at the Python stacks fell into the window"
            if looks
            else "no Python stacks were sampled",
            "record with `--py-spy`, for a minute or more",
        )
    return found


def describe(seen: ProcessStacks | None, rules: RuleBook, book: EvidenceBook, of: str) -> Finding | None:
    """Say what sampling saw.

    Args:
        seen: None where nothing was sampled.
        rules: thresholds.
        book: where numbers are written down.
        of: which process this is, in words.
    """
    rule = rules["SPY-HST-002"]
    if seen is None or seen.looks < rule.threshold("min_looks"):
        return None
    source = f"py-spy, {seen.rate_hz} looks a second"

    def write(metric: str, value: float, method: str) -> str:
        return book.add(f"host.{metric}", value, "ratio", "measured", n=seen.looks, source=source, method=method)

    evidence = [
        write("busiest_thread_working_share", seen.working_share,
              "looks that found the busiest thread of the process running, in no function that waits, over all looks"),
    ]  # fmt: skip
    worked = "worked" if seen.state_known else "worked, or slept inside C code,"
    text = (
        f"In {seen.looks:,} looks at {of} its busiest Python thread {worked} in {format_share(seen.working_share)} and "
        f"waited in {format_share(1.0 - seen.working_share)}."
    )
    if seen.share_of_work is not None:
        evidence.append(
            write("busiest_thread_share_of_work", seen.share_of_work, "its working looks over those of all threads")
        )
        text += f" It did {format_share(seen.share_of_work)} of the work of all threads."
    if seen.functions:
        named = [f"frame#{frame} ({format_share(share)})" for frame, share in seen.functions]
        text += f" Working looks ended most often in {_listed(named)}."
        evidence += [
            write("function_share", share, f"working looks whose innermost Python function is frame#{frame}")
            for frame, share in seen.functions
        ]
    if seen.waits:
        named = [f"frame#{frame} ({format_share(share)} of the looks)" for frame, share in seen.waits]
        text += f" It waited in or below {_listed(named)}."
    against = list(rule.false_positive_notes)
    if not seen.state_known:
        against.append("this Python does not tell py-spy which thread sleeps: sleep inside C code was counted as work")
    if seen.cut_short:
        against.append("only windows that the end of the process cut short were there: shares may be too small")
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="info",
        title=rule.title,
        text=text,
        phase=None,
        share=None,
        evidence=tuple(evidence),
        against=tuple(against) or (NOTHING_AGAINST,),
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
