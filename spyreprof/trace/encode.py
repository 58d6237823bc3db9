"""Decoded events to columns, a batch at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from spyreprof.trace import stamps
from spyreprof.trace.arguments import (
    NO_ARGS,
    ArgumentCodes,
    arguments_of,
    decode_arguments,
    decoded,
    plain_arguments,
)
from spyreprof.trace.codes import IdentityCodes, ValueCodes
from spyreprof.trace.columns import ARG_COLUMNS, CORRELATION, DIMS, EXTERNAL_ID, EXTERNAL_ID_OLD, PAIR_ARGS, TYPES
from spyreprof.trace.metadata import MetadataEvents
from spyreprof.trace.pairs import BEGINS, ENDS, arguments_key
from spyreprof.trace.quality import NO_PHASE, NO_TIME, NOT_AN_OBJECT, TIME_RANGE
from spyreprof.trace.table import MISSING, Codes, Flags, Integers

_EMPTY = msgspec.Raw(b"")
_METADATA = "M"
_COMPLETE = "X"
_COUNTER = "C"
# The event types that carry an id of their own: flows, asynchronous events, objects.
_WITH_ID = ("s", "t", "f", "b", "n", "e", "S", "T", "p", "F", "N", "O", "D", "(", ")")
_WITH_ATTR = ("B", "E", "X")

_ALL_ARGUMENTS = (EXTERNAL_ID, EXTERNAL_ID_OLD, CORRELATION, DIMS, TYPES, *ARG_COLUMNS)


class _Common(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    id: int | str | None = None
    args: msgspec.Raw = NO_ARGS
    # The older Spyre stack writes its arguments here.
    attr: msgspec.Raw = NO_ARGS


class DoubleEvent(_Common, gc=False):
    """One event as it stands in the file, times as doubles."""

    ts: float | None = None
    dur: float | None = None


class DigitEvent(_Common, gc=False):
    """One event as it stands in the file, times as they are spelled."""

    ts: msgspec.Raw = _EMPTY
    dur: msgspec.Raw = _EMPTY


@dataclass
class Batch:
    """Columns of some events of a file, in the file's order: shape (n,) each, times relative to the file's base.

    Attributes:
        columns: "ts_ns", "dur_ns", "row", "flow_id", the codes "ph", "cat", "name", "pid", "tid", and those arguments
            that some event has.
        counter_row: index into the batch of each counter value; shape (m,), like `counter_series`, `counter_value`.
    """

    columns: dict[str, Integers | Codes]
    counter_row: Integers
    counter_series: Codes
    counter_value: np.ndarray[Any, np.dtype[np.float64]]

    def __len__(self) -> int:
        return len(self.columns["ts_ns"])


@dataclass
class Encoder:
    """Makes batches, and keeps the dictionaries and counts that all batches of a file share."""

    ph: ValueCodes = field(default_factory=ValueCodes)
    cat: ValueCodes = field(default_factory=ValueCodes)
    name: ValueCodes = field(default_factory=ValueCodes)
    pid: IdentityCodes = field(default_factory=IdentityCodes)
    tid: IdentityCodes = field(default_factory=IdentityCodes)
    series: ValueCodes = field(default_factory=ValueCodes)
    arguments: ArgumentCodes = field(default_factory=ArgumentCodes)
    metadata: MetadataEvents = field(default_factory=MetadataEvents)
    dropped: Counter[str] = field(default_factory=Counter)
    negative_duration: int = 0
    rows: int = 0

    def doubles(self, events: Sequence[DoubleEvent]) -> Batch:
        """Encode events whose times are doubles.

        Raises:
            InexactError: one is too large; nothing was counted.
        """
        ts = stamps.from_doubles(list(map(attrgetter("ts"), events)))
        dur = stamps.from_doubles(list(map(attrgetter("dur"), events)))
        return self._typed(events, ts, dur, ~ts.good)

    def digits(self, events: Sequence[DigitEvent]) -> Batch:
        """Encode events whose times are text."""
        texts = list(map(attrgetter("ts"), events))
        ts = stamps.from_digits(texts)
        absent = np.zeros(len(events), np.bool_)
        for index in np.flatnonzero(~ts.good).tolist():
            absent[index] = bytes(texts[index]) in (b"", b"null")
        complete = np.flatnonzero(self.ph.encode(list(map(attrgetter("ph"), events))) == self.ph[_COMPLETE])
        found = stamps.from_digits([events[index].dur for index in complete.tolist()])
        dur = stamps.Nanoseconds(np.zeros(len(events), np.int64), np.zeros(len(events), np.bool_))
        dur.ns[complete], dur.good[complete] = found
        return self._typed(events, ts, dur, absent)

    def _typed(
        self,
        events: Sequence[DoubleEvent] | Sequence[DigitEvent],
        ts: stamps.Nanoseconds,
        dur: stamps.Nanoseconds,
        absent: Flags,
    ) -> Batch:
        ph = self.ph.encode(list(map(attrgetter("ph"), events)))
        described = np.flatnonzero(ph == self.ph[_METADATA])
        if len(described):
            self.metadata.add([events[index] for index in described.tolist()])
        row = np.arange(self.rows, self.rows + len(events))
        self.rows += len(events)
        keep = self._keep(ph, ts, absent)
        ts_ns, dur_ns = ts.ns, self._durations(dur, keep, ph)
        if not keep.all():
            kept = np.flatnonzero(keep)
            events = [events[index] for index in kept.tolist()]
            ph, row, ts_ns, dur_ns = ph[kept], row[kept], ts_ns[kept], dur_ns[kept]
        cat = self.cat.encode(list(map(attrgetter("cat"), events)))
        columns: dict[str, Integers | Codes] = {
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "row": row,
            "ph": ph,
            "cat": cat,
            "name": self.name.encode(list(map(attrgetter("name"), events))),
            "pid": self.pid.encode(list(map(attrgetter("pid"), events))),
            "tid": self.tid.encode(list(map(attrgetter("tid"), events))),
        }
        with_id = np.flatnonzero(np.isin(ph, self._known(self.ph, _WITH_ID)))
        if len(with_id):
            ids = [events[index].id for index in with_id.tolist()]
            _scatter(columns, "flow_id", with_id, self.arguments.ids.column(ids), len(events))
        paired = np.flatnonzero(np.isin(ph, self._known(self.ph, BEGINS + ENDS)))
        if len(paired):
            told = [decoded(events[index].args) or decoded(events[index].attr) for index in paired.tolist()]
            _scatter(columns, PAIR_ARGS, paired, np.asarray(list(map(arguments_key, told)), np.int64), len(events))
        for category, index in self._categories(cat):
            raws = [events[place].args for place in index.tolist()]
            self._put_arguments(columns, index, decode_arguments(category, raws, self.arguments))
        bare = self._bare(columns)
        self._attributes(columns, {at: decoded(events[at].attr) for at in bare if events[at].attr != NO_ARGS})
        samples = np.flatnonzero(ph == self.ph[_COUNTER])
        return self._batch(columns, samples, [decoded(events[index].args) for index in samples.tolist()])

    def _categories(self, cat: Codes | Integers) -> Iterator[tuple[str | None, Integers]]:
        """Each category among some events, with the places of its events."""
        for code in np.unique(cat).tolist():
            yield self.cat.values_list[code] if code != MISSING else None, np.flatnonzero(cat == code)

    @staticmethod
    def _put_arguments(columns: dict[str, Any], index: Integers, found: Mapping[str, Integers]) -> None:
        for name, values in found.items():
            there = values != MISSING
            _scatter(columns, name, index[there], values[there], len(columns["ts_ns"]))

    def _bare(self, columns: Mapping[str, Any]) -> list[int]:
        """Where events may be of the older Spyre stack, which have no category."""
        known = self._known(self.ph, _WITH_ATTR)
        bare: list[int] = np.flatnonzero((columns["cat"] == MISSING) & np.isin(columns["ph"], known)).tolist()
        return bare

    def _attributes(self, columns: dict[str, Any], told: Mapping[int, dict[str, Any] | None]) -> None:
        """The arguments of the older Spyre stack."""
        rows = {index: _flex(attributes) for index, attributes in told.items() if attributes}
        if rows:
            found = arguments_of(list(rows.values()), _ALL_ARGUMENTS, self.arguments)
            self._put_arguments(columns, np.fromiter(rows, np.int64, len(rows)), found)

    def values(self, elements: Sequence[dict[str, Any] | None]) -> Batch:
        """Encode events that came as plain values, one by one; None is an element that was dropped already."""
        row = np.arange(self.rows, self.rows + len(elements))
        self.rows += len(elements)
        present = [index for index, element in enumerate(elements) if element is not None]
        events = [element for element in elements if element is not None]
        row = row[present]
        ph = self.ph.encode([_text(event.get("ph")) for event in events])
        described = np.flatnonzero(ph == self.ph[_METADATA])
        self.metadata.add_values([events[index] for index in described.tolist()])
        ts = stamps.from_values([event.get("ts") for event in events])
        absent = np.fromiter((event.get("ts") is None for event in events), np.bool_, len(events))
        keep = self._keep(ph, ts, absent)
        dur_ns = self._durations(stamps.from_values([event.get("dur") for event in events]), keep, ph)
        kept = np.flatnonzero(keep)
        events = [events[index] for index in kept.tolist()]
        columns: dict[str, Integers | Codes] = {
            "ts_ns": ts.ns[kept],
            "dur_ns": dur_ns[kept],
            "row": row[kept],
            "ph": ph[kept],
            "cat": self.cat.encode([_text(event.get("cat")) for event in events]),
            "name": self.name.encode([_text(event.get("name")) for event in events]),
            "pid": self.pid.encode([_hashable(event.get("pid")) for event in events]),
            "tid": self.tid.encode([_hashable(event.get("tid")) for event in events]),
        }
        with_id = np.flatnonzero(np.isin(columns["ph"], self._known(self.ph, _WITH_ID)))
        ids = self.arguments.ids.column([events[index].get("id") for index in with_id.tolist()])
        _scatter(columns, "flow_id", with_id, ids, len(events))
        args = [_mapping(event.get("args")) for event in events]
        attributes = [_mapping(event.get("attr")) for event in events]
        paired = np.flatnonzero(np.isin(columns["ph"], self._known(self.ph, BEGINS + ENDS)))
        if len(paired):
            keys = [arguments_key(args[index] or attributes[index]) for index in paired.tolist()]
            _scatter(columns, PAIR_ARGS, paired, np.asarray(keys, np.int64), len(events))
        for category, index in self._categories(columns["cat"]):
            rows = [args[place] for place in index.tolist()]
            self._put_arguments(columns, index, plain_arguments(category, rows, self.arguments))
        self._attributes(columns, {at: attributes[at] for at in self._bare(columns)})
        samples = np.flatnonzero(columns["ph"] == self.ph[_COUNTER])
        return self._batch(columns, samples, [args[index] for index in samples.tolist()])

    def _keep(self, ph: Codes, ts: stamps.Nanoseconds, absent: Flags) -> Flags:
        """Which events have a place in time; the others are counted by reason, those that only name things are not."""
        timed = ph != self.ph[_METADATA]
        no_phase = timed & (ph == MISSING)
        timed &= ~no_phase
        for reason, wrong in (
            (NO_PHASE, no_phase),
            (NO_TIME, timed & absent),
            (TIME_RANGE, timed & ~ts.good & ~absent),
        ):
            if wrong.any():
                self.dropped[reason] += int(wrong.sum())
        keep: Flags = timed & ts.good
        return keep

    def _durations(self, dur: stamps.Nanoseconds, keep: Flags, ph: Codes) -> Integers:
        # Only complete events have one, however the times are read.
        good = dur.good & (ph == self.ph[_COMPLETE])
        negative = good & (dur.ns < 0)
        self.negative_duration += int((negative & keep).sum())
        return np.where(good & ~negative, dur.ns, MISSING)

    def _batch(self, columns: dict[str, Any], samples: Integers, args: Sequence[Mapping[str, Any] | None]) -> Batch:
        found = [
            (row, self.series[key], number)
            for row, mapping in zip(samples.tolist(), args, strict=True)
            for key, value in (mapping or {}).items()
            if (number := _number(value)) is not None
        ]
        row, series, value = zip(*found, strict=True) if found else ((), (), ())
        return Batch(columns, np.asarray(row, np.int64), np.asarray(series, np.int32), np.asarray(value, np.float64))

    @staticmethod
    def _known(codes: ValueCodes, values: Sequence[str]) -> list[int]:
        return [codes[value] for value in values if value in codes]


def _scatter(columns: dict[str, Any], name: str, index: Integers, values: Integers, size: int) -> None:
    column = columns.get(name)
    if column is None:
        column = columns[name] = np.full(size, MISSING, np.int64)
    column[index] = values


def _flex(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The older Spyre stack's names for arguments, turned into today's."""
    renamed = dict(attributes)
    if "Bytes" in renamed:
        renamed["bytes"] = renamed.pop("Bytes")
    if "Peers" in renamed:
        renamed["Peer"] = renamed.pop("Peers")
    return renamed


def _mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return NOT_AN_OBJECT if isinstance(value, (dict, list)) else str(value)


def _hashable(value: Any) -> Any:
    return str(value)[:256] if isinstance(value, (dict, list, bool)) else value


def _number(value: Any) -> float | None:
    """The value of a counter; None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None
