"""Profiler windows: how long each held the program up, and what its trace says about the steps inside."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.recording.imported_files import STEPS_SUFFIX
from spyreprof.recording.imported_files import read_steps as read_stored_steps
from spyreprof.recording.rows import WindowRow
from spyreprof.recording.schema import Interval
from spyreprof.recording.shards import find_shards, read_mixed_rows
from spyreprof.recording.source import READ_ERRORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from spyreprof.recording.processes import ProcessFacts
    from spyreprof.recording.source import Source
    from spyreprof.trace.profiled import ProfiledStep

LOST_TRACES = "lost_traces"
MAX_TRACE_BYTES = 2 * 2**30
# A wall clock that moved by more was set; a slewed one moves by half a millisecond a second.
CLOCK_SET_NS = 50_000_000
PAUSE_REASON = "profiler window"


class Window(NamedTuple):
    """A window's row and the process that it belongs to."""

    writer: str
    row: WindowRow


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """Profiled steps of all windows, and sentences about windows that could not be used.

    `lost_traces` counts those that are missing, cut short or unreadable, or cannot be placed in time.
    """

    steps: tuple[ProfiledStep, ...]
    notes: tuple[str, ...]
    lost_traces: int = 0


def read_windows(source: Source, counts: Counter[str]) -> list[Window]:
    """Every window and every refusal of one, by process and time."""
    windows = [
        Window(shard.writer, row)
        for shard in find_shards(source, layout.KIND_WINDOW)
        for row in read_mixed_rows(source, shard.name, {"window": WindowRow}, counts)
    ]
    return sorted(windows, key=lambda window: (window.writer, window.row.t0 or 0))


def pauses(windows: list[Window], steps: pd.DataFrame, last_ns: Mapping[str, int]) -> tuple[Interval, ...]:
    """From the opening of each window until the program went on; saved or not, it was held up.

    Of a process that was killed inside a window, all until its end is one. A process that is killed leaves no row of
    its window at all, so that its profiled steps are a pause of their own.

    Args:
        windows: windows and refusals.
        steps: the step table.
        last_ns: by writer, when a process last said something of itself, where that is known.
    """
    ends = steps.groupby("writer")["end_ns"].max()
    found: list[Interval] = []
    for writer, row in windows:
        if row.t0 is None:
            continue
        resumed_ns = row.t3
        if resumed_ns is None and row.t1 is not None:
            resumed_ns = max(last_ns.get(writer, 0), int(ends.get(writer, 0)))
        if resumed_ns is not None and resumed_ns > row.t0:
            found.append(Interval(row.t0, resumed_ns, PAUSE_REASON, writer))
    profiled = steps.loc[steps["profiled"].fillna(False), "writer"].unique()
    return (*found, *(pause for writer in profiled for pause in _without_a_row(str(writer), steps, found)))


def _without_a_row(writer: str, steps: pd.DataFrame, known: list[Interval]) -> list[Interval]:
    """Stretches of profiled steps of one process that lie in none of its pauses."""
    mine = steps[steps["writer"] == writer]
    start_ns, end_ns = (mine[name].to_numpy(dtype=np.int64) for name in ("start_ns", "end_ns"))
    alone = mine["profiled"].fillna(False).to_numpy(dtype=np.bool_)
    for pause in known:
        if pause.writer == writer:
            # Not in place: the array may be the table's own.
            alone = alone & ((start_ns < pause.start_ns) | (end_ns > pause.end_ns))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], alone, [False]))))
    return [
        Interval(int(start_ns[first]), int(end_ns[first:after].max()), PAUSE_REASON, writer)
        for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]


def _moved_ns(steps: tuple[ProfiledStep, ...], row: WindowRow, offsets_ns: list[int]) -> int | None:
    """By how much the clock's offset differs from the first of `offsets_ns`; None where none of them can be right.

    The wall clock may have been set between a window and the anchor next to it. The right offset puts the steps
    between the times at which recording began and ended, which are on the other clock.
    """
    if not steps or not row.t1 or not row.t2 or max(offsets_ns) - min(offsets_ns) < CLOCK_SET_NS:
        return 0
    first_ns, last_ns = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
    # Exactly between them if any does: one that is set by the length of a window comes close too.
    for slack_ns in (0, CLOCK_SET_NS):
        for offset_ns in offsets_ns:
            moved_ns = offset_ns - offsets_ns[0]
            if row.t1 - slack_ns <= first_ns - moved_ns and last_ns - moved_ns <= row.t2 + slack_ns:
                return moved_ns
    return None


def profiled_steps(source: Source, windows: list[Window], processes: dict[str, ProcessFacts]) -> WindowSteps:
    """Read the traces of all saved windows.

    Windows are numbered from 1 across processes. A trace that cannot be read costs itself and a sentence.
    """
    from spyreprof.trace.profiled import profiled_steps as steps_of
    from spyreprof.trace.reader import read_bytes

    steps: list[ProfiledStep] = []
    notes: list[str] = []
    lost: set[int] = set()
    names = set(source.names())
    saved = [window for window in windows if window.row.state == "saved" and window.row.file]
    stored, damaged = _of_imported(source, saved)
    for number, (writer, row) in enumerate(saved, start=1):
        if row.file is None or row.file.endswith(STEPS_SUFFIX):
            continue
        process = processes.get(writer)
        offsets_ns = process.clock_offsets_ns(row.t1) if process is not None else []
        if row.epoch_ns is not None and row.t1:
            offsets_ns.insert(0, row.epoch_ns - row.t1)
        lost.add(number)
        if row.file not in names:
            notes.append(f"The trace of profiler window {number} is missing.")
            continue
        if process is None or not offsets_ns:
            notes.append(f"Profiler window {number} cannot be placed in time: its process left no clock anchor.")
            continue
        try:
            with source.open(row.file) as file:
                table = read_bytes(file.read(MAX_TRACE_BYTES), f"of profiler window {number}")
        except UserError as error:
            notes.append(error.problem)
            continue
        except READ_ERRORS:
            notes.append(f"The trace of profiler window {number} cannot be read.")
            continue
        if table.quality.truncated_at_byte is None:
            lost.discard(number)
        notes.extend(f"Profiler window {number}: {sentence}" for sentence in table.quality.sentences())
        device_kind = (process.torch.device_kind if process.torch else None) or "cpu"
        found = steps_of(table, offsets_ns[0], number, device_kind=device_kind, writer=writer)
        moved_ns = _moved_ns(found, row, offsets_ns)
        if moved_ns is None:
            lost.add(number)
            notes.append(f"Profiler window {number} cannot be placed in time: the wall clock was set meanwhile.")
            continue
        if moved_ns:
            found = steps_of(table, offsets_ns[0] + moved_ns, number, device_kind=device_kind, writer=writer)
        if not found:
            notes.append(f"The trace of profiler window {number} holds no engine step.")
        steps.extend(found)
    if damaged:
        notes.append(f"Imported traces whose steps are missing or damaged: {damaged:,}.")
    steps = sorted([*steps, *stored], key=lambda step: step.start_ns)
    return WindowSteps(tuple(steps), tuple(notes), len(lost) + damaged)


def _of_imported(source: Source, saved: list[Window]) -> tuple[list[ProfiledStep], int]:
    """Steps of windows that are imported traces, which were taken apart before; and how many cannot be had."""
    steps: list[ProfiledStep] = []
    damaged = 0
    for number, (writer, row) in enumerate(saved, start=1):
        if row.file is not None and row.file.endswith(STEPS_SUFFIX):
            stored = read_stored_steps(source, row.file, number, writer)
            damaged += stored is None
            steps.extend(stored or ())
    return steps, damaged
