"""A time in which requests wait and nothing is computed: a defect or a dead engine, not a matter of tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Finding
from spyreprof.recording.counters import series
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.gauge_state import PROGRESS, deferred_now
from spyreprof_analyzers.scheduler import gauges

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from spyreprof.findings import SteadyWindow
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest time in which requests waited and nothing was computed.

    `running`, `waiting`, `deferred` and `kv_usage` are those of its end; None where they were not seen. `at_cap` says
    that running and deferred requests together stand at the batch cap; None where that is not known.
    """

    start_ns: int
    end_ns: int
    running: float
    waiting: float
    deferred: float | None
    kv_usage: float | None
    at_cap: bool | None

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    def share_of(self, window: SteadyWindow) -> float:
        """Share of a window that it takes, 0 to 1."""
        inside = min(self.end_ns, window.end_ns) - max(self.start_ns, window.start_ns)
        return max(inside, 0) / max(window.end_ns - window.start_ns, 1)


def stalled(inputs: AnalysisInputs, rules: RuleBook) -> Stall | None:
    """Find the longest stall of one engine; None where there is none, or nothing would show progress.

    Steps, compilations, counters of tokens and requests, and any move of the gauges are progress.
    """
    seen = gauges(inputs.counters, inputs.polls, inputs.recording_end_ns)
    counters = [found for name in PROGRESS if (found := series(inputs.counters, name)).shape[1] > 0]
    if seen is None or not counters:
        return None
    waits = (seen.waiting >= 1) & ~np.isnan(seen.running)
    moved = [_rises(found) for found in counters]
    moved += [_changes(seen.time_ns, values) for values in (seen.running, seen.kv_usage_ratio)]
    progress = np.sort(np.concatenate(moved))
    busy = [
        *zip(inputs.steps["start_ns"].tolist(), inputs.steps["end_ns"].tolist(), strict=True),
        *((one.start_ns, one.end_ns) for one in inputs.compiles),
        *((one.start_ns, one.end_ns) for one in inputs.pauses),
    ]
    start, end = _longest(seen.time_ns, waits, progress, busy)
    rule = rules["SPY-BUG-001"]
    if (end - start) / NS_PER_S < rule.threshold("min_stall"):
        return None
    last = int(np.searchsorted(seen.time_ns, end, side="right")) - 1
    running, waiting, usage = float(seen.running[last]), float(seen.waiting[last]), float(seen.kv_usage_ratio[last])
    deferred, cap = deferred_now(inputs.counters, end), inputs.settings.max_num_seqs
    held = running + (deferred or 0.0)
    return Stall(
        start_ns=start,
        end_ns=end,
        running=running,
        waiting=waiting,
        deferred=deferred,
        kv_usage=None if np.isnan(usage) else usage,
        at_cap=held >= rules["SPY-QUE-001"].threshold("at_cap_ratio") * cap if cap is not None else None,
    )


def _rises(found: pd.DataFrame) -> NDArray[np.int64]:
    """Times at which any series of a counter changed."""
    values = found.to_numpy(dtype=np.float64)
    changed = (np.diff(values, axis=0) != 0).any(axis=1)
    times: NDArray[np.int64] = found.index.to_numpy(dtype=np.int64)[1:][changed]
    return times


def _changes(time_ns: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    before, after = values[:-1], values[1:]
    times: NDArray[np.int64] = time_ns[1:][(before != after) & ~np.isnan(before) & ~np.isnan(after)]
    return times


def _longest(
    time_ns: NDArray[np.int64], waits: NDArray[np.bool_], progress: NDArray[np.int64], busy: list[tuple[int, int]]
) -> tuple[int, int]:
    """The longest stretch of waiting moments with no progress between neighbours."""
    between = np.searchsorted(progress, time_ns, side="right")
    covered = np.zeros(len(time_ns), dtype=np.bool_)
    starts = np.sort(np.asarray([start for start, _ in busy], dtype=np.int64))
    ends = np.sort(np.asarray([end for _, end in busy], dtype=np.int64))
    if len(busy):
        # inside of a step, or with one since the moment before
        begun, ended = np.searchsorted(starts, time_ns, side="right"), np.searchsorted(ends, time_ns, side="right")
        covered = (begun > ended) | (np.diff(begun, prepend=begun[:1]) > 0)
    apart = np.diff(between, prepend=between[:1]) > 0
    idle = waits & ~covered
    begins = idle & (apart | ~np.concatenate(([False], idle[:-1])))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(time_ns)), 0))
    length = np.where(idle, time_ns - time_ns[first], 0)
    last = int(np.argmax(length))
    return int(time_ns[first[last]]), int(time_ns[first[last]] + length[last])


def stands_still(context: Context) -> Finding | None:
    """Requests wait and nothing is computed."""
    window = context.facts.window
    length_ns = (window.end_ns - window.start_ns) / max(window.share_of_recording, 1e-9)
    return stall_finding(context.facts.stall, context.rules, context.book, round(length_ns))


def stall_finding(stall: Stall | None, rules: RuleBook, book: EvidenceBook, recording_ns: int) -> Finding | None:
    """The finding that requests wait and nothing is computed; no setting is advised against it."""
    if stall is None:
        return None
    rule = rules["SPY-BUG-001"]
    evidence = [
        book.add("stall.seconds", stall.seconds, "s", "measured", source="/metrics", window="recording",
                 method="longest time with a waiting request and without any change of counters and gauges"),
        book.add("stall.running", stall.running, "requests", "measured", source="/metrics gauges", window="recording",
                 method="at its end"),
        book.add("stall.waiting", stall.waiting, "requests", "measured", source="/metrics gauges", window="recording",
                 method="at its end"),
    ]  # fmt: skip
    text = (
        f"For {format_seconds(stall.seconds)} {stall.waiting:.0f} requests waited, {stall.running:.0f} ran, and no "
        "counter of work moved"
    )
    if stall.kv_usage is not None:
        evidence.append(
            book.add("stall.kv_usage", stall.kv_usage, "ratio", "measured", source="/metrics gauges",
                     window="recording", method="at its end")
        )  # fmt: skip
        text += f", with {format_share(stall.kv_usage)} of the KV cache in use"
    if stall.deferred is not None:
        evidence.append(
            book.add("stall.deferred", stall.deferred, "requests", "measured", source="/metrics gauges",
                     window="recording", method="waiting requests that are deferred, at its end")
        )  # fmt: skip
    roomy = stall.kv_usage is not None and stall.kv_usage < rules["SPY-QUE-001"].threshold("max_kv_usage")
    if stall.at_cap and stall.deferred:
        text += (
            ". Running and deferred requests together stand at the batch cap: a scheduler that counts deferred "
            "requests as running admits nobody any more. This is the mark of a defect of the engine; upgrade it, or "
            "restart it"
        )
    elif stall.running == 0 and roomy:
        text += (
            ". Nothing runs and there is room: the first request in line fits nowhere, or the scheduler is stuck. "
            "No batch or memory setting helps; look at the longest waiting request and at the engine's log"
        )
    else:
        text += ". The engine does not get on with its work; look at its log, and at its devices"
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        # requests that run may be in one very long step
        severity="high" if (stall.at_cap and stall.deferred) or stall.running == 0 else "medium",
        title=rule.title,
        text=f"{text}.",
        phase=None,
        share=min(stall.seconds * NS_PER_S / max(recording_ns, 1), 1.0),
        evidence=tuple(evidence),
        against=rule.false_positive_notes,
    )
