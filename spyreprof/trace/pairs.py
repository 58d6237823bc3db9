"""Begin and end events become complete ones.

Within one thread, begin (`B`) and end (`E`) events are matched in the order of their times, in file order where times
are equal. An end closes the innermost open begin of its name and arguments, else of its name; one without a name
closes the innermost. Spans of one thread may therefore cross, which the trace-event format forbids and files contain.

Asynchronous pairs (`b`/`e`, `S`/`F`) are matched by category and id. They get a duration and keep their event type:
they overlap whatever their thread does, so they are no part of its call stack.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from spyreprof.trace.columns import PAIR_ARGS
from spyreprof.trace.table import MISSING, Codes, CounterSamples, EventTable, Flags, Integers

BEGINS = ("B", "b", "S")
ENDS = ("E", "e", "F")

_COMPLETE = "X"


# What may differ between two spellings of the same arguments.
_SPELLING = b' \t\r\n"'


def arguments_key(args: Mapping[str, Any] | None) -> int:
    """What the column `PAIR_ARGS` holds of the arguments of a begin or end event; `MISSING` for none."""
    if not args:
        return MISSING
    try:
        return zlib.crc32(json.dumps(args, default=float).encode().translate(None, _SPELLING))
    except (ValueError, TypeError, RecursionError):
        return zlib.crc32(b"")


def join(table: EventTable) -> EventTable:
    """Make complete events of begin and end events. A table without such events comes back as it is.

    A complete event has the columns of its begin; what the begin lacks is taken from the end. A begin without an end
    keeps its type and has no duration; an end without a begin is left out. All are counted in the table's quality.
    """
    if not table.has_phase(*BEGINS, *ENDS).any():
        return table
    calls = _synchronous(table)
    tasks = _asynchronous(table)
    begin = np.concatenate((calls.begin, tasks.begin))
    end = np.concatenate((calls.end, tasks.end))
    is_begin = table.has_phase(*BEGINS)
    is_end = table.has_phase(*ENDS)
    dur_ns = table.dur_ns.copy()
    dur_ns[is_begin] = MISSING
    dur_ns[begin] = table.ts_ns[end] - table.ts_ns[begin]
    ph_code, ph_values = _completed(table, calls.begin)
    order = np.lexsort((table.row, -dur_ns, table.ts_ns, table.tid_code, table.pid_code))
    order = order[~is_end[order]]

    def merged(column: Integers) -> Integers:
        taken = column.copy()
        taken[begin] = np.where(column[begin] == MISSING, column[end], column[begin])
        moved: Integers = taken[order]
        return moved

    def merged_codes(column: Codes) -> Codes:
        return merged(column.astype(np.int64)).astype(np.int32)

    return replace(
        table,
        ts_ns=table.ts_ns[order],
        dur_ns=dur_ns[order],
        ph_code=ph_code[order],
        ph_values=ph_values,
        cat_code=merged_codes(table.cat_code),
        name_code=merged_codes(table.name_code),
        pid_code=table.pid_code[order],
        tid_code=table.tid_code[order],
        correlation=merged(table.correlation),
        external_id=merged(table.external_id),
        dims_code=merged_codes(table.dims_code),
        types_code=merged_codes(table.types_code),
        row=table.row[order],
        flow_id=table.flow_id[order],
        args={name: merged(table.arg(name)) for name in table.args if name != PAIR_ARGS},
        counters=_moved(table, order),
        quality=replace(
            table.quality,
            events_kept=len(order),
            zero_duration=table.quality.zero_duration + int((dur_ns[begin] == 0).sum()),
            paired=len(begin),
            unmatched_begin=int(is_begin.sum()) - len(begin),
            unmatched_end=int(is_end.sum()) - len(end),
            crossed=calls.crossed,
        ),
    )


def _completed(table: EventTable, begin: Integers) -> tuple[Codes, tuple[str, ...]]:
    values = table.ph_values if _COMPLETE in table.ph_values else (*table.ph_values, _COMPLETE)
    codes = table.ph_code.copy()
    codes[begin] = values.index(_COMPLETE)
    return codes, values


def _moved(table: EventTable, order: Integers) -> CounterSamples | None:
    if table.counters is None:
        return None
    place = np.full(len(table), MISSING, np.int64)
    place[order] = np.arange(len(order))
    return replace(table.counters, row=place[table.counters.row])


class _Pairs(NamedTuple):
    """Indices into the table; shape (m,) each."""

    begin: Integers
    end: Integers
    crossed: int = 0


def _synchronous(table: EventTable) -> _Pairs:
    return _matched(table, np.flatnonzero(table.has_phase("B", "E")), table.tracks())


def _asynchronous(table: EventTable) -> _Pairs:
    """Pairs by category and id, of one process where possible: files of several ranks give one id several times."""
    left = np.flatnonzero(table.has_phase("b", "e", "S", "F") & (table.flow_id != MISSING))
    found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for columns in (("cat_code", "flow_id", "pid_code"), ("cat_code", "flow_id")):
        group = np.zeros(len(table), np.int64)
        if len(left):
            keys = np.stack([getattr(table, name)[left].astype(np.int64) for name in columns], axis=1)
            group[left] = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        pairs = _matched(table, left, group)
        found[0].append(pairs.begin)
        found[1].append(pairs.end)
        left = np.setdiff1d(left, np.concatenate((pairs.begin, pairs.end)))
    return _Pairs(np.concatenate(found[0]), np.concatenate(found[1]))


class _Events(NamedTuple):
    """Begin and end events by track, time and file order; shape (m,) each. `place` is theirs in the table."""

    place: Integers
    track: Integers
    ts_ns: Integers
    is_begin: Flags
    name: Codes
    args: Integers


def _matched(table: EventTable, index: Integers, group: Integers) -> _Pairs:
    index = index[np.lexsort((table.row[index], table.ts_ns[index], group[index]))]
    is_begin = table.has_phase(*BEGINS)
    args = table.arg(PAIR_ARGS)[index]
    events = _Events(index, group[index], table.ts_ns[index], is_begin[index], table.name_code[index], args)
    begin, end, odd = _nested(events)
    crossed = 0
    begins, ends = [index[begin]], [index[end]]
    for low, high in odd:
        first, last = _search(events, low, high)
        crossed += _crossings(events.ts_ns[first], events.ts_ns[last])
        begins.append(index[first])
        ends.append(index[last])
    return _Pairs(np.concatenate(begins), np.concatenate(ends), crossed)


def _nested(events: _Events) -> tuple[Integers, Integers, list[tuple[int, int]]]:
    """Pairs of all tracks on which every end belongs to the innermost open begin, and the ranges of other tracks."""
    count = len(events.place)
    if not count:
        empty = np.zeros(0, np.int64)
        return empty, empty, []
    starts = np.flatnonzero(np.r_[True, events.track[1:] != events.track[:-1]])
    stops = np.r_[starts[1:], count]
    track = np.repeat(np.arange(len(starts)), stops - starts)
    step = np.where(events.is_begin, 1, -1)
    depth = np.cumsum(step)
    depth -= (depth - step)[starts][track]
    level = np.where(events.is_begin, depth, depth + 1)
    odd = np.zeros(len(starts), np.bool_)
    odd[track[level < 1]] = True
    # At one level of one track, begins and ends take turns.
    by_level = np.lexsort((level, track))
    ends_at = np.flatnonzero(~events.is_begin[by_level])
    ends_at = ends_at[~odd[track[by_level[ends_at]]]]
    end, begin = by_level[ends_at], by_level[ends_at - 1]
    same_name = (events.name[end] == MISSING) | (events.name[end] == events.name[begin])
    same_args = (
        (events.args[end] == MISSING) | (events.args[begin] == MISSING) | (events.args[end] == events.args[begin])
    )
    odd[track[end[~(same_name & same_args)]]] = True
    good = ~odd[track[end]]
    return begin[good], end[good], [(int(starts[at]), int(stops[at])) for at in np.flatnonzero(odd)]


class _OpenBegins:
    """The begins of one track that no end has closed yet, innermost last."""

    def __init__(self) -> None:
        self._all: list[int] = []
        self._by_name: defaultdict[int, list[int]] = defaultdict(list)
        self._by_name_and_args: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._closed: set[int] = set()

    def open(self, at: int, name: int, args: int) -> None:
        self._all.append(at)
        self._by_name[name].append(at)
        self._by_name_and_args[name, args].append(at)

    def close(self, name: int, args: int) -> int | None:
        """The begin that an end belongs to, or None."""
        if name == MISSING:
            return self._last(self._all)
        found = self._last(self._by_name_and_args[name, args]) if args != MISSING else None
        return self._last(self._by_name[name]) if found is None else found

    def _last(self, candidates: list[int]) -> int | None:
        # Closed ones are taken off only when they come to the end of a list: each is taken off each list once.
        while candidates:
            at = candidates.pop()
            if at not in self._closed:
                self._closed.add(at)
                return at
        return None


def _search(events: _Events, low: int, high: int) -> tuple[Integers, Integers]:
    """Pairs of one track where an end may belong to any open begin, as (begins, ends)."""
    open_begins = _OpenBegins()
    begins: list[int] = []
    ends: list[int] = []
    # An end may stand before its begin when both have the same time.
    early: list[tuple[int, int, int]] = []

    def close(at: int, name: int, args: int) -> bool:
        begin = open_begins.close(name, args)
        if begin is not None:
            begins.append(begin)
            ends.append(at)
        return begin is not None

    now = None
    for at, ts_ns, is_begin, name, args in _rows(events, low, high):
        if ts_ns != now:
            for end in early:
                close(*end)
            early.clear()
            now = ts_ns
        if is_begin:
            open_begins.open(at, name, args)
        elif not close(at, name, args):
            early.append((at, name, args))
    for end in early:
        close(*end)
    return np.asarray(begins, np.int64), np.asarray(ends, np.int64)


def _rows(events: _Events, low: int, high: int) -> Iterator[tuple[int, int, bool, int, int]]:
    part = slice(low, high)
    return zip(
        range(low, high),
        events.ts_ns[part].tolist(),
        events.is_begin[part].tolist(),
        events.name[part].tolist(),
        events.args[part].tolist(),
        strict=True,
    )


def _crossings(begin_ns: Integers, end_ns: Integers) -> int:
    """How many spans begin inside another one, later than it, and end after it."""
    order = np.lexsort((-end_ns, begin_ns))
    crossed = 0
    open_ends: list[int] = []
    same_begin: list[int] = []
    now = None
    for begin, end in zip(begin_ns[order].tolist(), end_ns[order].tolist(), strict=True):
        if begin != now:
            for earlier in same_begin:
                heappush(open_ends, earlier)
            same_begin.clear()
            now = begin
        while open_ends and open_ends[0] <= begin:
            heappop(open_ends)
        crossed += bool(open_ends) and open_ends[0] < end
        same_begin.append(end)
    return crossed
