"""What each event of a trace is: a role for every row, told once for each distinct category and name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from spyreprof.trace.dialects import GENERIC, Dialect, Mark, dialect_named, dialects
from spyreprof.trace.table import MISSING, Codes, EventTable, Flags, Identity, Integers

__all__ = ["Lanes", "Role", "Roles", "device_of", "roles"]


class Role(IntEnum):
    """What an event is. Values are stored nowhere."""

    OTHER = 0
    HOST_OP = 1  # an operator on the CPU
    HOST_PYTHON = 2  # a Python function
    HOST_ANNOTATION = 3  # a span that the program named
    RUNTIME_LAUNCH = 4  # a call that hands work to the device
    RUNTIME_WAIT = 5  # a call that blocks the host until the device is ready
    RUNTIME_OTHER = 6
    GRAPH_LAUNCH = 7  # a call that hands a recorded graph of kernels to the device
    COMPILE = 8
    KERNEL = 9
    COMMUNICATION_KERNEL = 10
    COPY = 11
    FILL = 12
    DEVICE_WAIT = 13  # the device waits: a row of its track that is no work
    DEVICE_ANNOTATION = 14  # the host's annotation, repeated on the device's track
    CONTAINER = 15  # encloses device work on its stream
    MEMORY = 16  # an allocation or release
    FLOW = 17
    COUNTER = 18
    PROFILER = 19  # the profiler's own: sums, marks, overhead


WORK = (Role.KERNEL, Role.COMMUNICATION_KERNEL, Role.COPY, Role.FILL)
RUNTIME = (Role.RUNTIME_LAUNCH, Role.RUNTIME_WAIT, Role.RUNTIME_OTHER, Role.GRAPH_LAUNCH)
LAUNCHES = (Role.RUNTIME_LAUNCH, Role.GRAPH_LAUNCH)
ON_DEVICE = (*WORK, Role.DEVICE_WAIT, Role.DEVICE_ANNOTATION, Role.CONTAINER)
ON_HOST = (Role.HOST_OP, Role.HOST_PYTHON, Role.HOST_ANNOTATION, *RUNTIME, Role.COMPILE)

_SPAN_PHASES = ("X", "B")
_FLOW_PHASES = ("s", "t", "f")
_INSTANT_PHASES = ("i", "I", "R", "n")
# Up to this many combinations of codes are tabulated; above, they are sorted.
_DENSE = 2**24


@dataclass(frozen=True)
class Roles:
    """What the events of a table are; arrays have shape (n,).

    Attributes:
        role: values of `Role`.
        device_work: kernels, communication kernels, copies and fills with a duration that enclose no others.
        dialect: who wrote the trace.
    """

    role: npt.NDArray[np.int8]
    device_work: Flags
    dialect: Dialect

    def has(self, *wanted: Role) -> Flags:
        """Which events have one of the roles; shape (n,)."""
        among = np.zeros(len(Role), np.bool_)
        among[list(wanted)] = True
        return among[self.role]


@dataclass(frozen=True)
class Lanes:
    """On which device and stream each event of a device's track ran; `MISSING` for other events. Shape (n,).

    Attributes:
        device: into `device_values`.
        lane: into `lane_values`.
        device_values: the number of the device, or the process where the trace does not number its devices.
        lane_values: (device, stream or thread) of each lane.
    """

    device: Codes
    lane: Codes
    device_values: tuple[Identity | None, ...]
    lane_values: tuple[tuple[int, Identity | None], ...]


def roles(table: EventTable) -> Roles:
    """Tell what each event is."""
    sorts = _sorts(table)
    dialect = _recognise(table, sorts)
    role = _by_rules(table, sorts, dialect)
    instant = table.has_phase(*_INSTANT_PHASES)
    kept = (role == Role.MEMORY) | (role == Role.PROFILER)
    role[~table.has_phase(*_SPAN_PHASES) & ~(instant & kept)] = Role.OTHER
    role[table.has_phase(*_FLOW_PHASES)] = Role.FLOW
    role[table.has_phase("C")] = Role.COUNTER
    collective = table.args.get("collective")
    if collective is not None:
        role[(role == Role.KERNEL) & (collective != MISSING)] = Role.COMMUNICATION_KERNEL
    timed = table.dur_ns != MISSING
    found = Roles(role, np.zeros(len(table), np.bool_), dialect)
    if dialect.containers:
        role[_containers(table, found)] = Role.CONTAINER
    return Roles(role, found.has(*WORK) & timed, dialect)


@dataclass(frozen=True)
class _Sorts:
    """The distinct (process, category, name) of a table's events.

    `process` has one code per row, 0 for processes whose name means nothing; `process_values` are their names.
    """

    process: npt.NDArray[np.int64]
    process_values: tuple[str, ...]
    category: npt.NDArray[np.int64]
    name: npt.NDArray[np.int64]
    code: npt.NDArray[np.int64]


def _sorts(table: EventTable) -> _Sorts:
    known = {
        process
        for dialect in dialects()
        for mark in (*dialect.marks, *dialect.rules)
        for process in mark.processes or ()
    }
    values = ("", *sorted(known & set(table.metadata.process_names.values())))
    place = {name: code for code, name in enumerate(values)}
    by_pid = [place.get(table.metadata.process_names.get(pid, ""), 0) for pid in table.pid_values]
    process = np.asarray([*by_pid, 0], np.int64)[table.pid_code]
    # Codes are shifted by one, so that 0 stands for an absent text.
    n_categories, n_names = len(table.cat_values) + 1, len(table.name_values) + 1
    key = (process * n_categories + table.cat_code + 1) * n_names + table.name_code + 1
    distinct, code = distinct_codes(key, len(values) * n_categories * n_names)
    return _Sorts(
        process=distinct // (n_categories * n_names),
        process_values=values,
        category=distinct // n_names % n_categories,
        name=distinct % n_names,
        code=code,
    )


def distinct_codes(key: npt.NDArray[np.int64], end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct values of a key in [0, end), ascending, and which of them each entry is."""
    if end > max(_DENSE, len(key)):
        values, codes = np.unique(key, return_inverse=True)
        return values, codes.reshape(-1)
    seen = np.zeros(end, np.bool_)
    seen[key] = True
    values = np.flatnonzero(seen)
    place = np.zeros(end, np.int64)
    place[values] = np.arange(len(values))
    return values, place[key]


def _groups(table: EventTable, sorts: _Sorts) -> list[tuple[str, str, slice]]:
    """Runs of distinct sorts with one process and category: (category, process, where)."""
    n_categories = len(table.cat_values) + 1
    group = sorts.process * n_categories + sorts.category
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(starts[1:], len(group))
    categories = ("", *table.cat_values)
    return [
        (categories[int(sorts.category[first])], sorts.process_values[int(sorts.process[first])], slice(first, last))
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _recognise(table: EventTable, sorts: _Sorts) -> Dialect:
    groups = _groups(table, sorts)
    names = ("", *table.name_values)

    def occurs(mark: Mark) -> bool:
        for category, process, where in groups:
            if mark.may_fit(category, process) and (
                not mark.asks_for_name or any(mark.fits_name(names[code]) for code in sorts.name[where].tolist())
            ):
                return True
        return False

    for dialect in dialects():
        if any(occurs(mark) for mark in dialect.marks):
            return dialect
    return dialect_named(GENERIC)


def _by_rules(table: EventTable, sorts: _Sorts, dialect: Dialect) -> npt.NDArray[np.int8]:
    names = ("", *table.name_values)
    of_sort = np.full(len(sorts.name), Role.OTHER, np.int8)
    for category, process, where in _groups(table, sorts):
        rules = dialect.rules_for(category, process)
        if rules and not rules[0].asks_for_name:
            of_sort[where] = Role[rules[0].role]
        elif rules:
            of_sort[where] = [
                next((Role[rule.role] for rule in rules if rule.fits_name(names[code])), Role.OTHER)
                for code in sorts.name[where].tolist()
            ]
    return of_sort[sorts.code]


def _containers(table: EventTable, found: Roles) -> Integers:
    """Device rows that enclose other device work or waits on their stream."""
    lanes = device_of(table, found)
    rows = np.flatnonzero(found.has(*WORK, Role.DEVICE_WAIT) & (table.dur_ns > 0))
    order = np.lexsort((-table.dur_ns[rows], table.ts_ns[rows], lanes.lane[rows]))
    rows = rows[order]
    lane, start = lanes.lane[rows], table.ts_ns[rows]
    end = start + table.dur_ns[rows]
    # Sorted by start with the longer first, an enclosing row stands before what it encloses. Whether it encloses
    # anything shows on its next neighbour: that one begins within it and, unless the two cross, ends within it.
    inside = (lane[1:] == lane[:-1]) & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    enclosing: Integers = rows[:-1][inside & ~same & found.has(*WORK)[rows[:-1]]]
    return enclosing


def device_of(table: EventTable, found: Roles) -> Lanes:
    """The device and stream of each event on a device's track.

    A device is what `args.device` and the process say together: files merged from several ranks have several devices
    of one number. Rows without the argument belong to the device of their process.
    """
    rows = np.flatnonzero(found.has(*ON_DEVICE))
    device, lane = np.full(len(table), MISSING, np.int32), np.full(len(table), MISSING, np.int32)
    if not len(rows):
        return Lanes(device, lane, (), ())
    number = table.arg("device")[rows]
    pid = table.pid_code[rows]
    told = number != MISSING
    # the first device told of a process stands for its rows that tell none
    pids, first = np.unique(pid[told], return_index=True)
    of_pid = np.full(len(table.pid_values) + 1, MISSING, np.int64)
    of_pid[pids] = number[told][first]
    number = np.where(told, number, of_pid[pid])
    devices, device_code = _distinct_pairs(pid.astype(np.int64), number)
    stream = table.arg("stream")[rows] if found.dialect.lane == "stream" else np.full(len(rows), MISSING, np.int64)
    # A thread that is a number is the same lane as a stream of that number.
    tids = table.tid_values
    of_tid = [tid if isinstance(tid, int) and 0 <= tid < 2**61 else -2 - code for code, tid in enumerate(tids)]
    thread = np.asarray([*of_tid, MISSING], np.int64)[table.tid_code[rows]]
    streams = np.where(stream != MISSING, stream, thread)
    lanes, lane_code = _distinct_pairs(device_code, streams)
    device[rows], lane[rows] = device_code, lane_code

    def stream_value(value: int) -> Identity | None:
        return tids[-2 - value] if -2 - len(tids) < value <= -2 else table.identity(value)

    return Lanes(
        device=device,
        lane=lane,
        device_values=tuple(
            table.identity(n) if n != MISSING else (table.pid_values[p] if p != MISSING else None) for p, n in devices
        ),
        lane_values=tuple((d, stream_value(s)) for d, s in lanes),
    )


def _distinct_pairs(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
    """The distinct pairs of two columns, ascending, and which of them each row is."""
    firsts, first_code = np.unique(first, return_inverse=True)
    seconds, second_code = np.unique(second, return_inverse=True)
    key = first_code.reshape(-1) * len(seconds) + second_code.reshape(-1)
    distinct, code = distinct_codes(key, len(firsts) * len(seconds))
    pairs = zip(firsts[distinct // len(seconds)].tolist(), seconds[distinct % len(seconds)].tolist(), strict=True)
    return list(pairs), code
