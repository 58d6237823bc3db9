"""From the batches of a file to its table: one dictionary, absolute times, one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spyreprof.trace.columns import ARG_COLUMNS, PAIR_ARGS
from spyreprof.trace.encode import Batch, Encoder
from spyreprof.trace.metadata import MetadataEvents, trace_metadata
from spyreprof.trace.quality import TIME_RANGE, ZERO_TIME, TraceQuality
from spyreprof.trace.stream import Reading, Window
from spyreprof.trace.table import MISSING, OTHER_ID, Codes, CounterSamples, EventTable, Flags, Integers

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
# No trace that counts from its own start is that long.
_YEAR_NS = 365 * 24 * 3600 * 10**9
# Of the trace-event format.
_KNOWN_PHASES = frozenset("BEXIiCbnesStTpfFPNODMVvRc()") | {"="}

CODE_COLUMNS = ("ph", "cat", "name", "pid", "tid")
ID_COLUMNS = ("correlation", "external_id", "flow_id", *(c.name for c in ARG_COLUMNS if c.kind == "id"))
TEXT_COLUMNS = tuple(c.name for c in ARG_COLUMNS if c.kind == "text")
_ARGUMENTS = (*(c.name for c in ARG_COLUMNS), PAIR_ARGS)
# Which dictionary a column's codes index.
DICTIONARIES: dict[str, str] = {name: name for name in (*CODE_COLUMNS, "dims", "types")} | dict.fromkeys(
    TEXT_COLUMNS, "text"
)
VALUES = (*CODE_COLUMNS, "dims", "types", "text", "ids", "series")


@dataclass
class PartFacts:
    """What is known of a part of a file beside its columns; a file read by one process has one part.

    Attributes:
        elements: of the list of events, readable or not.
        rows: kept.
        values: distinct values by dictionary, see `VALUES`.
        fields: the fields beside the events.
        folded: how many times a value shared a code because there were too many different ones.
        names: what the metadata events say.
    """

    elements: int
    rows: int
    values: dict[str, list[Any]]
    fields: dict[str, Any]
    dropped: dict[str, int]
    repaired: dict[str, int]
    metadata_events: int
    names: MetadataEvents
    negative_duration: int
    folded: int
    truncated_at_byte: int | None
    windows: list[Window]
    found: bool
    exact_doubles: bool


def part_facts(encoder: Encoder, reading: Reading, rows: int) -> PartFacts:
    """Sum up a part that has been read to its end."""
    codes = {
        "ph": encoder.ph,
        "cat": encoder.cat,
        "name": encoder.name,
        "pid": encoder.pid,
        "tid": encoder.tid,
        "dims": encoder.arguments.dims,
        "types": encoder.arguments.types,
        "text": encoder.arguments.texts,
        "ids": encoder.arguments.ids.codes,
        "series": encoder.series,
    }
    return PartFacts(
        elements=encoder.rows,
        rows=rows,
        values={name: found.values_list for name, found in codes.items()},
        fields=reading.envelope.fields,
        dropped=dict(encoder.dropped),
        repaired=dict(reading.repaired),
        metadata_events=encoder.metadata.count,
        names=encoder.metadata,
        negative_duration=encoder.negative_duration,
        folded=sum(found.folded for found in codes.values()),
        truncated_at_byte=reading.truncated_at_byte,
        windows=reading.windows,
        found=reading.envelope.found,
        exact_doubles=reading.exact_doubles,
    )


class Part(Protocol):
    """One part's columns."""

    facts: PartFacts

    def names(self) -> set[str]:
        """Columns that some event has."""

    def take(self, name: str) -> npt.NDArray[Any]:
        """One column over all rows of the part; it may be taken once."""


class MemoryPart:
    """A part whose batches are held in memory; as a sink it takes them."""

    facts: PartFacts

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._names: set[str] = set()
        self._counters: list[tuple[Integers, Codes, npt.NDArray[np.float64]]] = []
        self._sizes: list[int] = []
        self.rows = 0

    def __call__(self, batch: Batch) -> None:
        """Take a batch."""
        if len(batch.counter_row):
            self._counters.append((batch.counter_row + self.rows, batch.counter_series, batch.counter_value))
        self._batches.append(batch)
        self._sizes.append(len(batch))
        self._names |= set(batch.columns)
        self.rows += len(batch)

    def names(self) -> set[str]:
        """Columns that some event has."""
        return self._names | ({"counter_row", "counter_series", "counter_value"} if self._counters else set())

    def take(self, name: str) -> npt.NDArray[Any]:
        """One column over all rows; it is let go."""
        counters = ("counter_row", "counter_series", "counter_value")
        if name in counters:
            return np.concatenate([found[counters.index(name)] for found in self._counters])
        pieces = []
        for batch, rows in zip(self._batches, self._sizes, strict=True):
            column = batch.columns.pop(name, None)
            pieces.append(column if column is not None else np.full(rows, MISSING, np.int64))
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def assemble(parts: Sequence[Part]) -> EventTable:
    """Make one table of the parts of a file, in the file's order; the parts' columns are used up."""
    facts = [part.facts for part in parts]
    merged = _Merged(facts)
    column = _column_reader(parts, merged)
    dropped = Counter[str]()
    for fact in facts:
        dropped.update(fact.dropped)
    names = facts[0].names
    for fact in facts[1:]:
        names.merge(fact.names)
    fields = {key: value for fact in reversed(facts) for key, value in fact.fields.items()}
    metadata = trace_metadata(fields, names)
    ts_ns, keep = _absolute(column("ts_ns"), metadata.base_time_ns)
    dur_ns = column("dur_ns")
    cat = column("cat").astype(np.int32)
    zero = keep & _zero_times(ts_ns, dur_ns, cat, merged.values["cat"])
    for reason, wrong in ((TIME_RANGE, ~keep), (ZERO_TIME, zero)):
        if wrong.any():
            dropped[reason] += int(wrong.sum())
    kept = np.flatnonzero(keep & ~zero)
    pid, tid = column("pid").astype(np.int32), column("tid").astype(np.int32)
    order = kept[sort_order(pid[kept], tid[kept], ts_ns[kept], dur_ns[kept])]
    del kept
    ph = column("ph").astype(np.int32)[order]

    def ordered(name: str) -> npt.NDArray[Any]:
        # What all rows lack needs no order.
        found = any(name in part.names() for part in parts)
        return column(name)[order] if found else _all_missing(len(order))

    def codes(name: str) -> Codes:
        return ordered(name).astype(np.int32)

    complete = np.isin(ph, [code for code, value in enumerate(merged.values["ph"]) if value == "X"])
    dur_ns = dur_ns[order]
    values = merged.values
    negative = sum(fact.negative_duration for fact in facts)
    return EventTable(
        ts_ns=ts_ns[order],
        dur_ns=dur_ns,
        ph_code=ph,
        cat_code=cat[order],
        name_code=codes("name"),
        pid_code=pid[order],
        tid_code=tid[order],
        correlation=ordered("correlation"),
        external_id=ordered("external_id"),
        dims_code=codes("dims"),
        types_code=codes("types"),
        ph_values=tuple(values["ph"]),
        cat_values=tuple(values["cat"]),
        name_values=tuple(values["name"]),
        pid_values=tuple(values["pid"]),
        tid_values=tuple(values["tid"]),
        dims_values=tuple(values["dims"]),
        types_values=tuple(values["types"]),
        row=ordered("row"),
        flow_id=ordered("flow_id"),
        args={name: _compact(ordered(name)) for name in _ARGUMENTS if any(name in part.names() for part in parts)},
        text_values=tuple(values["text"]),
        id_values=tuple(values["ids"]),
        counters=_counters(parts, merged, order, len(ts_ns)),
        quality=TraceQuality(
            events_read=sum(fact.elements for fact in facts),
            events_kept=len(order),
            metadata_events=sum(fact.metadata_events for fact in facts),
            dropped=dict(dropped),
            repaired=dict(sum((Counter(fact.repaired) for fact in facts), Counter[str]())),
            truncated_at_byte=next((f.truncated_at_byte for f in facts if f.truncated_at_byte is not None), None),
            zero_duration=int((complete & (dur_ns == 0)).sum()),
            negative_duration=negative,
            missing_duration=max(int((complete & (dur_ns == MISSING)).sum()) - negative, 0),
            unknown_phases=_unknown_phases(ph, values["ph"]),
            stack_samples=_stack_samples(fields),
            folded_values=sum(fact.folded for fact in facts),
        ),
        metadata=metadata,
    )


def _stack_samples(fields: Mapping[str, Any]) -> int | None:
    samples = fields.get("samples", ())
    if samples is None:
        return None  # too long to be kept
    return len(samples) if isinstance(samples, list) else 0


class _Merged:
    """The dictionaries of several parts as one, and how each part's codes change."""

    def __init__(self, facts: Sequence[PartFacts]) -> None:
        self.values: dict[str, list[Any]] = {}
        self._maps: list[dict[str, Integers]] = [{} for _ in facts]
        for name in VALUES:
            codes: dict[Any, int] = {}
            for fact, maps in zip(facts, self._maps, strict=True):
                # 1 and "1" are different values, 1 and True cannot both occur
                maps[name] = np.asarray(
                    [*(codes.setdefault(value, len(codes)) for value in fact.values[name]), MISSING], np.int64
                )
            self.values[name] = list(codes)

    def codes(self, part: int, dictionary: str, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Codes of a part as codes of all; `MISSING` is the last entry of the map."""
        changed: npt.NDArray[Any] = self._maps[part][dictionary][codes]
        return changed

    def ids(self, part: int, ids: Integers) -> Integers:
        """Ids of a part, of which those that are no int64 are numbered anew."""
        other = ids <= OTHER_ID
        if not other.any():
            return ids
        return np.where(other, OTHER_ID - self._maps[part]["ids"][np.where(other, OTHER_ID - ids, MISSING)], ids)


def _column_reader(parts: Sequence[Part], merged: _Merged) -> Callable[[str], npt.NDArray[Any]]:
    first_rows = np.cumsum([0, *(part.facts.elements for part in parts)])

    def column(name: str) -> npt.NDArray[Any]:
        if not any(name in part.names() for part in parts):
            # One value that stands for all rows takes no memory.
            return _all_missing(sum(part.facts.rows for part in parts))
        pieces = []
        for number, part in enumerate(parts):
            if name not in part.names():
                pieces.append(np.full(part.facts.rows, MISSING, np.int64))
                continue
            piece = part.take(name)
            if len(parts) > 1:
                if name == "row":
                    piece = piece + int(first_rows[number])
                elif name in DICTIONARIES:
                    piece = merged.codes(number, DICTIONARIES[name], piece)
                elif name in ID_COLUMNS:
                    piece = merged.ids(number, piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    return column


def _all_missing(rows: int) -> Integers:
    """`MISSING` for all rows, which takes no memory."""
    return np.broadcast_to(np.int64(MISSING), rows)


def _compact(column: Integers) -> Integers | Codes:
    """Half of the memory where the values allow it; `EventTable.arg` gives them back as int64."""
    fits = not len(column) or (int(column.min()) >= -(2**31) and int(column.max()) < 2**31)
    return column.astype(np.int32) if fits else column


def _counters(parts: Sequence[Part], merged: _Merged, order: Integers, rows: int) -> CounterSamples | None:
    found = []
    before = 0
    for number, part in enumerate(parts):
        if "counter_row" in part.names():
            series = merged.codes(number, "series", part.take("counter_series"))
            found.append((part.take("counter_row") + before, series, part.take("counter_value")))
        before += part.facts.rows
    if not found:
        return None
    row, series, value = (np.concatenate([piece[at] for piece in found]) for at in range(3))
    place = np.full(rows, MISSING, np.int64)
    place[order] = np.arange(len(order))
    row = place[row]
    there = row != MISSING
    return CounterSamples(row[there], series[there].astype(np.int32), value[there], tuple(merged.values["series"]))


def sort_order(pid: Codes, tid: Codes, ts_ns: Integers, dur_ns: Integers) -> Integers:
    """The order by track, start, longer first, and else as it was; shape (n,)."""
    if not len(ts_ns):
        return np.zeros(0, np.int64)
    track = (pid.astype(np.int64) + 1) * (int(tid.max()) + 2) + tid + 1
    since = ts_ns - ts_ns.min()
    bits = int(since.max()).bit_length()
    if bits + int(track.max()).bit_length() > 62 or (since < 0).any():
        return np.lexsort((-dur_ns, ts_ns, track))
    key = (track << bits) | since
    # Files are nearly sorted, which a merge sort makes use of.
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    equal = sorted_key[1:] == sorted_key[:-1]
    if equal.any():
        tied = np.flatnonzero(np.concatenate(([False], equal)) | np.concatenate((equal, [False])))
        places = order[tied]
        order[tied] = places[np.lexsort((-dur_ns[places], sorted_key[tied]))]
    return order


def _absolute(ts_ns: Integers, base_ns: int) -> tuple[Integers, Flags]:
    """Times with the file's base added, and which of them are in range."""
    good = np.ones(len(ts_ns), np.bool_)
    if not base_ns or not len(ts_ns):
        return ts_ns, good
    if not -(2**63) < base_ns < 2**63:
        return ts_ns, ~good
    good = ts_ns <= 2**63 - 1 - base_ns if base_ns > 0 else ts_ns >= -(2**63) - base_ns
    return np.where(good, ts_ns, 0) + base_ns, good


def _zero_times(ts_ns: Integers, dur_ns: Integers, cat: Codes, cat_values: Iterable[str]) -> Flags:
    """Device records that were never filled in: they are stamped 0 and would stretch the trace over decades.

    In a trace that counts from 0 only a device record without duration is taken for one.
    """
    zero: Flags = ts_ns == 0
    if not zero.any() or zero.all():
        return np.zeros(len(ts_ns), np.bool_)
    if np.median(ts_ns[~zero]) > _YEAR_NS:
        return zero
    device = np.isin(cat, [code for code, value in enumerate(cat_values) if value in _DEVICE])
    return zero & device & (dur_ns <= 0)


def _unknown_phases(ph: Codes, values: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(ph, minlength=len(values)) if len(ph) else np.zeros(len(values), np.int64)
    return {value: int(n) for value, n in zip(values, counts.tolist(), strict=True) if n and value not in _KNOWN_PHASES}
