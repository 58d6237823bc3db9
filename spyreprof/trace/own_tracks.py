"""What a trace shows beyond its events, as spans for tracks of our own: engine steps by phase, and idle devices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyreprof.trace.annotations import StepWork
from spyreprof.trace.export import Mark
from spyreprof.trace.faults import Examined, examine
from spyreprof.trace.intervals import union_of
from spyreprof.trace.table import EventTable

# A trace with more gaps than this shows the longest ones.
MAX_GAPS = 200_000
UNKNOWN_PHASE = "step"


def marks_of(table: EventTable, *, suffix: str = "", shift_ns: int = 0) -> list[Mark]:
    """The engine steps of a trace, and the time in which each device did nothing.

    Where device work is missing from the trace, nobody can tell when a device was idle, and nothing is said of it.

    Args:
        suffix: stands behind the names of the tracks.
        shift_ns: added to all times.
    """
    trace = examine(table)
    return [*_steps(trace, suffix, shift_ns), *_idle(trace, suffix, shift_ns)]


def _steps(trace: Examined, suffix: str, shift_ns: int) -> Iterator[Mark]:
    steps, table = trace.steps, trace.table
    columns = (steps.row.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), steps.works)
    for row, start_ns, end_ns, work in zip(*columns, strict=True):
        name = work.phase if work is not None and work.phase is not None else UNKNOWN_PHASE
        args = step_args(work) if work is not None else {}
        shown = {**args, "name": table.name(row), "row": int(table.row[row]) if len(table.row) else None}
        yield Mark(f"engine steps{suffix}", start_ns + shift_ns, end_ns - start_ns, name, shown)


def step_args(work: StepWork) -> dict[str, int | float | str | None]:
    """What a step had to do, as arguments of its span."""
    return {
        "context_requests": work.context_requests,
        "context_tokens": work.context_tokens,
        "generation_requests": work.generation_requests,
        "generation_tokens": work.generation_tokens,
    }


def _idle(trace: Examined, suffix: str, shift_ns: int) -> Iterator[Mark]:
    if trace.health.reason("idle") is not None:
        return
    spans = trace.spans
    for device in np.unique(spans.device).tolist():
        own = spans.device == device
        start, end = spans.start_ns[own], spans.clipped_end_ns[own]
        gaps = union_of(start, end).gaps(int(start.min()), int(end.max()))
        starts, lengths = gaps.starts_ns, gaps.ends_ns - gaps.starts_ns
        if len(starts) > MAX_GAPS:
            longest = np.sort(np.argsort(-lengths, kind="stable")[:MAX_GAPS])
            starts, lengths = starts[longest], lengths[longest]
        track = f"device {spans.lanes.device_values[device]} idle{suffix}"
        for at_ns, length_ns in zip(starts.tolist(), lengths.tolist(), strict=True):
            yield Mark(track, at_ns + shift_ns, length_ns, "idle")
