"""A recording as traces and spans for export: its profiler windows' traces, and its rows as tracks beside them.

All times are moved to one axis: CLOCK_MONOTONIC plus one offset to the wall clock, the first that a process noted. Each
trace is moved by the offset that held when it was taken, so that a wall clock that was set meanwhile moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from spyreprof.errors import UserError
from spyreprof.recording.imported_files import STEPS_SUFFIX, events_name, imported_traces, writer_name
from spyreprof.recording.source import READ_ERRORS
from spyreprof.recording.windows import CLOCK_SET_NS, MAX_TRACE_BYTES, Window
from spyreprof.trace.cache import load as load_columns
from spyreprof.trace.export import Mark, Part
from spyreprof.trace.own_tracks import UNKNOWN_PHASE, marks_of
from spyreprof.trace.reader import read_bytes

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.recording.processes import ProcessFacts
    from spyreprof.recording.rows import WindowRow
    from spyreprof.recording.store import Recording
    from spyreprof.trace.table import EventTable

_TOKENS = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")
_REQUEST = (
    "prompt_tokens", "output_tokens", "ttft_ns", "queue_ns", "cached_tokens", "reasoning_tokens", "max_tokens",
    "finish_reason", "preemptions",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What an export of a recording is made of.

    Attributes:
        notes: sentences about traces that are left out.
    """

    parts: tuple[Part, ...]
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]


class _Trace(NamedTuple):
    """A trace of the recording; `load` reads it each time, and its `window` is None for imported ones."""

    writer: str
    load: Callable[[], EventTable]
    window: WindowRow | None


def exported(recording: Recording) -> Exported:
    """Gather the traces, the steps, the profiler windows, the named phases and the requests of a recording."""
    offset_ns = _offset_ns(recording)
    labels = {writer: _label(process) for writer, process in recording.processes.items()}
    parts: list[Part] = []
    marks: list[Mark] = []
    notes: list[str] = []
    for trace in _traces(recording, notes):
        try:
            table = trace.load()
        except UserError as error:
            notes.append(error.problem)
            continue
        process = recording.processes.get(trace.writer)
        shift_ns = offset_ns - _offset_of(trace.window, process, table, offset_ns)
        label = labels.get(trace.writer, trace.writer)
        parts.append(Part(trace.load, trace.writer, label, shift_ns))
        marks.extend(marks_of(table, suffix=f" in traces of {label}", shift_ns=shift_ns))
    marks.extend(_steps(recording.steps, labels, offset_ns))
    marks.extend(_windows(recording.windows, labels, offset_ns))
    marks.extend(_phases(recording.phases, labels, offset_ns))
    marks.extend(_requests(recording.requests, offset_ns))
    return Exported(tuple(parts), tuple(marks), tuple(notes))


def _traces(recording: Recording, notes: list[str]) -> Iterator[_Trace]:
    names = set(recording.source.names())
    saved = [window for window in recording.windows if window.row.state == "saved" and window.row.file]
    for number, (writer, row) in enumerate(saved, start=1):
        file = row.file or ""
        if file.endswith(STEPS_SUFFIX):
            continue  # of an imported trace
        if file in names:
            yield _Trace(writer, partial(_read_window, recording, file, number), row)
        else:
            notes.append(f"The trace of profiler window {number} is missing.")
    for number in imported_traces(recording.source):
        events = recording.path / events_name(number)
        if events.is_dir():
            yield _Trace(writer_name(number), partial(load_columns, events, f"imported trace {number}"), None)
        else:
            notes.append(f"The events of imported trace {number} are not in the recording: export its own file.")


def _read_window(recording: Recording, file: str, number: int) -> EventTable:
    try:
        with recording.source.open(file) as stream:
            return read_bytes(stream.read(MAX_TRACE_BYTES), f"of profiler window {number}")
    except READ_ERRORS as error:
        raise UserError(
            f"The trace of profiler window {number} cannot be read.", "Copy the recording again."
        ) from error


def _offset_ns(recording: Recording) -> int:
    """From CLOCK_MONOTONIC to the wall clock; 0 where no process noted it."""
    anchors = sorted(anchor for process in recording.processes.values() for anchor in process.anchors)
    return anchors[0][1] - anchors[0][0] if anchors else 0


def _offset_of(row: WindowRow | None, process: ProcessFacts | None, table: EventTable, default_ns: int) -> int:
    """The clock's offset when a trace was taken: the first that puts it where its window was, else the nearest."""
    if row is None:
        return default_ns
    offsets_ns = process.clock_offsets_ns(row.t1) if process is not None else []
    if row.epoch_ns is not None and row.t1:
        offsets_ns.insert(0, row.epoch_ns - row.t1)
    if row.t1 and row.t2:
        low_ns, high_ns = row.t1 - CLOCK_SET_NS, row.t2 + CLOCK_SET_NS
        first_ns, last_ns = int(table.ts_ns.min()), int(table.ts_ns.max())
        for offset_ns in offsets_ns:
            if low_ns <= first_ns - offset_ns and last_ns - offset_ns <= high_ns:
                return offset_ns
    return offsets_ns[0] if offsets_ns else default_ns


def _label(process: ProcessFacts) -> str:
    if process.distributed is not None and process.distributed.rank is not None:
        return f"rank {process.distributed.rank}"
    return f"process {process.pid}" if process.pid is not None else process.writer


def _steps(steps: pd.DataFrame, labels: dict[str, str], offset_ns: int) -> Iterator[Mark]:
    columns = ("start_ns", "end_ns", "writer", "phase", *_TOKENS, "compiles", "profiled")
    for start_ns, end_ns, writer, phase, *rest in _rows(steps, columns):
        args = dict(zip((*_TOKENS, "compiles", "profiled"), rest, strict=True))
        yield Mark(
            f"step rows of {labels.get(writer, writer)}",
            start_ns + offset_ns,
            max(end_ns - start_ns, 0),
            phase or UNKNOWN_PHASE,
            args,
        )


def _windows(windows: list[Window], labels: dict[str, str], offset_ns: int) -> Iterator[Mark]:
    for writer, row in windows:
        if row.t0 is None or row.t3 is None or row.t3 < row.t0:
            continue
        name = f"profiler windows of {labels.get(writer, writer)}"
        args = {"state": row.state, "steps": row.steps, "operators": row.operators}
        yield Mark(name, row.t0 + offset_ns, row.t3 - row.t0, "profiler window", args)


def _phases(phases: pd.DataFrame, labels: dict[str, str], offset_ns: int) -> Iterator[Mark]:
    for start_ns, end_ns, writer, name in _rows(phases, ("start_ns", "end_ns", "writer", "name")):
        track = f"named phases of {labels.get(writer, writer)}"
        yield Mark(track, start_ns + offset_ns, end_ns - start_ns, name)


def _requests(requests: pd.DataFrame, offset_ns: int) -> Iterator[Mark]:
    columns = ("arrival_ns", "e2e_ns", "source", "failed", *_REQUEST)
    for arrival_ns, e2e_ns, source, failed, *rest in _rows(requests, columns):
        if arrival_ns is None or e2e_ns is None or e2e_ns < 0:
            continue
        args = {"failed": failed, **dict(zip(_REQUEST, rest, strict=True))}
        yield Mark(f"requests by {source}", arrival_ns + offset_ns, e2e_ns, "request", args)


def _rows(table: pd.DataFrame, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows of some columns as plain values, None for what is missing."""
    plain = [table[name].astype(object).where(table[name].notna(), None).tolist() for name in columns]
    return zip(*plain, strict=True)
