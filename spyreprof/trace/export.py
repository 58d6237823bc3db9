"""Traces as Chrome trace-event JSON that Perfetto opens without losing an event.

Times are microseconds with three decimals since `baseTimeNanoseconds`, so that each nanosecond is kept. Metadata events
stand first. Perfetto wants numbers for processes and threads: those of the trace are kept where they are numbers from 0
to 2^31 - 1; others, and those that two sources share, get numbers from `FIRST_NUMBER` on and their old one as name.
Complete events that overlap without nesting, of which Perfetto drops all but one, are moved to further threads with the
same name and "(overlapping 2)" and so on; flow events go with the span that they point at.

What Perfetto does not show is spelled as it does: `S`/`F` as `b`/`e`, `T` and `p` as `n`, begun events that never ended
on a thread of their own, and complete events without a duration, marks and unknown types as instant events with their
type in `args`. `args` holds what `columns` keeps of the arguments, and `row`, the event's place in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from spyreprof.trace.export_text import SpelledColumns, microseconds, spell, spell_value
from spyreprof.trace.table import MISSING, EventTable, Identity, Integers
from spyreprof.trace.tracks import SubTracks, crossing_tracks

FIRST_NUMBER = 2_000_000_000
OWN_CATEGORY = "spyreprof"
# So long before the first event time begins.
LEAD_NS = 1000
_BLOCK_ROWS = 4096
_INT64_END = 2**63

_KEPT_PHASES = frozenset(("X", "B", "b", "n", "s", "t", "f", "C", "i"))
_SPELLED = {"S": "b", "T": "n", "p": "n", "I": "i", "R": "i"}
_FLOWS = ("s", "t", "f")


class Mark(NamedTuple):
    """A span of a track of our own, on the axis of the exported times.

    Attributes:
        track: name of the track.
        args: plain values; None for what is unknown, which is left out.
    """

    track: str
    start_ns: int
    dur_ns: int
    name: str
    args: Mapping[str, int | float | str | None] = {}


@dataclass(frozen=True)
class Part:
    """One trace of an export.

    Attributes:
        load: reads the trace; called twice, so that of several only one need be in memory.
        source: parts of one source share their processes.
        label: stands behind the names of processes where there are several sources.
        shift_ns: added to all times.
    """

    load: Callable[[], EventTable]
    source: str = ""
    label: str = ""
    shift_ns: int = 0


@dataclass
class _Plan:
    """Where the events of a part go; `sub` is the sub-track of each event, None where all are on the first."""

    pids: list[int]
    tids: dict[tuple[int, int, int], int]
    sub: Integers | None


@dataclass
class _Names:
    """Numbers and metadata events, handed out in order."""

    several: bool
    taken_pids: dict[int, tuple[str, Identity | None]] = field(default_factory=dict)
    pids: dict[tuple[str, Identity | None], int] = field(default_factory=dict)
    tids: dict[tuple[int, Identity | None, int], int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    _next: int = FIRST_NUMBER

    def fresh(self) -> int:
        self._next += 1
        return self._next - 1

    def process(self, part: Part, pid: Identity | None, table: EventTable) -> int:
        key = (part.source, pid)
        if key in self.pids:
            return self.pids[key]
        kept = _is_plain(pid) and pid not in self.taken_pids
        number = int(pid) if kept and pid is not None else self.fresh()
        self.pids[key] = number
        self.taken_pids[number] = key
        name = table.metadata.process_names.get(pid) if pid is not None else None
        if name is None and not (kept and not self.several):
            name = "events without a process" if pid is None else str(pid)
        if name is not None:
            name = f"{name} ({part.label})" if self.several and part.label else name
            self.name_process(number, name)
        if pid is not None and pid in table.metadata.labels:
            self._add("process_labels", number, 0, {"labels": table.metadata.labels[pid]})
        self._add("process_sort_index", number, 0, {"sort_index": len(self.pids)})
        return number

    def name_process(self, number: int, name: str) -> None:
        self._add("process_name", number, 0, {"name": name})

    def thread(self, pid: int, tid: Identity | None, sub: int, name: str | None) -> int:
        key = (pid, tid, sub)
        if key in self.tids:
            return self.tids[key]
        kept = sub == 0 and _is_plain(tid)
        number = int(tid) if kept and tid is not None else self.fresh()
        self.tids[key] = number
        if name is None and not kept:
            name = "events without a thread" if tid is None else str(tid)
        if name is not None:
            suffix = {0: "", _NEVER_ENDED: " (never ended)"}.get(sub, f" (overlapping {sub + 1})")
            self._add("thread_name", pid, number, {"name": name + suffix})
        self._add("thread_sort_index", pid, number, {"sort_index": len(self.tids)})
        return number

    def _add(self, name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self.events.append({"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args})


# The sub-track of begun events that never ended: open to the end of the trace, they would enclose all that follows.
_NEVER_ENDED = -1


def _is_plain(identity: Identity | None) -> bool:
    return isinstance(identity, int) and 0 <= identity < FIRST_NUMBER


def export_trace(
    parts: Sequence[Part], marks: Sequence[Mark], write: Callable[[bytes], object], *, own_process: str = OWN_CATEGORY
) -> None:
    """Write one JSON document.

    Args:
        parts: the traces; those of one source must be of one process or file.
        marks: tracks of our own; they become a process of their own.
        write: takes piece after piece.
        own_process: name of that process.
    """
    names = _Names(several=len({part.source for part in parts}) > 1)
    plans, first_ns, last_ns = [], [mark.start_ns for mark in marks], [mark.start_ns + mark.dur_ns for mark in marks]
    header: dict[str, Any] = {}
    only: EventTable | None = None
    for part in parts:
        table = part.load()
        plans.append(_plan(part, table, names))
        if len(table):
            first_ns.append(int(table.ts_ns.min()) + part.shift_ns)
            last_ns.append(int(table.ts_ns.max()) + part.shift_ns)
        if len(parts) == 1:
            header, only = _header(table), table
    base_ns = max(min(first_ns, default=LEAD_NS) - LEAD_NS, 1 - _INT64_END)
    if max(last_ns, default=0) - base_ns >= _INT64_END:
        # Stamps gone wild: nothing but the epoch has all of them in reach.
        base_ns = 0
    own = _own_tracks(marks, names, own_process) if marks else []
    fields = header | {"displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns}
    text = ",\n".join(f"{spell(key)}: {spell_value(value)}" for key, value in fields.items())
    write(f'{{\n{text},\n"traceEvents": [\n'.encode())
    lines = _Lines(write)
    for event in names.events:
        lines.add(spell_value(event))
    for part, plan in zip(parts, plans, strict=True):
        table = only if only is not None else part.load()
        for line in _event_lines(table, plan, part.shift_ns - base_ns):
            lines.add(line)
    for mark, pid, tid in own:
        lines.add(_mark_line(mark, pid, tid, base_ns))
    lines.flush()
    write(b"\n]}\n")


class _Lines:
    """Elements of a list, gathered to pieces of some size."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self._lines, self._begun = write, [""] * 0, False

    def add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= _BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self._write(((",\n" if self._begun else "") + ",\n".join(self._lines)).encode())
            self._begun = True
            self._lines.clear()


def _header(table: EventTable) -> dict[str, Any]:
    said = table.metadata
    fields: dict[str, Any] = dict(said.other)
    if said.schema_version is not None:
        fields["schemaVersion"] = said.schema_version
    if said.has_device_properties or said.devices:
        fields["deviceProperties"] = said.devices
    if said.distributed is not None:
        fields["distributedInfo"] = said.distributed
    return fields


def _plan(part: Part, table: EventTable, names: _Names) -> _Plan:
    pids = [names.process(part, pid, table) for pid in table.pid_values]
    if (table.pid_code == MISSING).any():
        pids.append(names.process(part, None, table))
    sub = _sub_tracks(table)
    places = sub if sub is not None else np.zeros(len(table), np.int64)
    tids: dict[tuple[int, int, int], int] = {}
    distinct = np.unique(np.stack((table.pid_code.astype(np.int64), table.tid_code, places), axis=1), axis=0)
    order = np.lexsort((distinct[:, 2] == _NEVER_ENDED, distinct[:, 1], distinct[:, 0]))
    for pid_code, tid_code, place in distinct[order].tolist():
        pid = table.pid_values[pid_code] if pid_code != MISSING else None
        tid = table.tid_values[tid_code] if tid_code != MISSING else None
        name = table.metadata.thread_names.get((pid, tid)) if pid is not None and tid is not None else None
        tids[pid_code, tid_code, place] = names.thread(pids[pid_code], tid, place, name)
    return _Plan(pids, tids, sub)


def _sub_tracks(table: EventTable) -> Integers | None:
    """The sub-track of each event; shape (n,). None where all are on their first one."""
    spans = np.flatnonzero(table.has_phase("X") & (table.dur_ns != MISSING))
    begun = np.flatnonzero(table.has_phase("B"))
    track = table.tracks()
    odd = crossing_tracks(track[spans], table.ts_ns[spans], table.ts_ns[spans] + table.dur_ns[spans])
    if not odd and not len(begun):
        return None
    sub = np.zeros(len(table), np.int64)
    sub[begun] = _NEVER_ENDED
    wanted = table.has_phase(*_FLOWS)
    wanted[spans] = True
    for own in odd:
        first = int(spans[own.start])
        low = int(np.searchsorted(track, track[first], "left"))
        high = int(np.searchsorted(track, track[first], "right"))
        rows = low + np.flatnonzero(wanted[low:high])
        places = SubTracks()
        sub[rows] = [
            places.around(start) if dur == MISSING else places.place(start, start + dur)
            for start, dur in zip(table.ts_ns[rows].tolist(), table.dur_ns[rows].tolist(), strict=True)
        ]
    return sub


def _event_lines(table: EventTable, plan: _Plan, shift_ns: int) -> Iterator[str]:
    spelled = SpelledColumns(table)
    for begin in range(0, len(table), _BLOCK_ROWS):
        block = slice(begin, min(begin + _BLOCK_ROWS, len(table)))
        pid, tid = table.pid_code[block].tolist(), table.tid_code[block].tolist()
        sub = plan.sub[block].tolist() if plan.sub is not None else [0] * len(pid)
        rows = zip(
            [table.ph_values[code] for code in table.ph_code[block].tolist()],
            [plan.pids[code] for code in pid],
            [plan.tids[key] for key in zip(pid, tid, sub, strict=True)],
            [time + shift_ns for time in table.ts_ns[block].tolist()],
            table.dur_ns[block].tolist(),
            spelled.described(block),
            spelled.ids(table.flow_id, block) if len(table.flow_id) else [""] * len(pid),
            spelled.arguments(block),
            strict=True,
        )
        for phase, pid_number, tid_number, time_ns, dur_ns, described, flow_id, args in rows:
            where = f'"pid":{pid_number},"tid":{tid_number}'
            yield from _spelled_event(phase, where, time_ns, dur_ns, described, flow_id, args)


def _spelled_event(
    phase: str, where: str, time_ns: int, dur_ns: int, described: str, flow_id: str, args: str
) -> Iterator[str]:
    shown = _SPELLED.get(phase, phase)
    if shown not in _KEPT_PHASES or (shown == "X" and dur_ns == MISSING):
        args = f'"ph":{spell(phase)}{"," if args else ""}{args}'
        shown = "i"
    rest = f"{described}{flow_id},{where},"
    if shown == "X":
        yield f'{{"ph":"X",{rest}"ts":{microseconds(time_ns)},"dur":{microseconds(dur_ns)},"args":{{{args}}}}}'
        return
    if shown == "i":
        rest += '"s":"t",'
    elif shown == "f":
        rest += '"bp":"e",'
    yield f'{{"ph":"{shown}",{rest}"ts":{microseconds(time_ns)},"args":{{{args}}}}}'
    if shown == "b" and dur_ns != MISSING:
        # The same arguments: a reader that matches by them finds the two again.
        yield f'{{"ph":"e",{rest}"ts":{microseconds(time_ns + dur_ns)},"args":{{{args}}}}}'


def _own_tracks(marks: Sequence[Mark], names: _Names, name: str) -> list[tuple[Mark, int, int]]:
    pid = names.fresh()
    names.name_process(pid, name)
    tracks: dict[str, list[Mark]] = {}
    for mark in marks:
        tracks.setdefault(mark.track, []).append(mark)
    placed = []
    for track, own in tracks.items():
        places = SubTracks()
        for mark in sorted(own, key=lambda one: (one.start_ns, -one.dur_ns)):
            sub = places.place(mark.start_ns, mark.start_ns + mark.dur_ns)
            placed.append((mark, pid, names.thread(pid, f"\0{track}", sub, track)))
    return placed


def _mark_line(mark: Mark, pid: int, tid: int, base_ns: int) -> str:
    args = ",".join(f"{spell(key)}:{spell_value(value)}" for key, value in mark.args.items() if value is not None)
    return (
        f'{{"ph":"X","name":{spell(mark.name)},"cat":"{OWN_CATEGORY}","pid":{pid},"tid":{tid},'
        f'"ts":{microseconds(mark.start_ns - base_ns)},"dur":{microseconds(mark.dur_ns)},"args":{{{args}}}}}'
    )
