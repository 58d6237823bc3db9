"""The one door to profiler traces: `read(path)` gives their events as columns."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spyreprof.errors import UserError
from spyreprof.trace import pairs
from spyreprof.trace.columns import ARG_COLUMNS, PAIR_ARGS
from spyreprof.trace.decode import EXACT_BELOW_US, Decoded, Event, decode
from spyreprof.trace.quality import NO_PHASE, NO_TIME, NOT_UTF8, TIME_RANGE, ZERO_TIME, TraceQuality
from spyreprof.trace.table import MISSING, OTHER_ID, CounterSamples, EventTable, Identity, TraceMetadata

if TYPE_CHECKING:
    import os

# Decoding needs about four times the text in memory.
MAX_TEXT_BYTES = 4 * 2**30
_CHUNK_BYTES = 2**22
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# No trace that counts from its own start is that long.
_YEAR_NS = 365 * 24 * 3600 * 10**9
_INT64 = range(-(2**63), 2**63)

# How the older Spyre stack spells arguments.
_OLD_KEYS = {"bytes": "Bytes", "Peer": "Peers"}
# Of the trace-event format.
_KNOWN_PHASES = frozenset("BEXIiCbnesStTpfFPNODMVvRc()") | {"="}
_COMPLETE = "X"
_METADATA = "M"


def read(path: str | os.PathLike[str]) -> EventTable:
    """Read a profiler trace, plain or gzipped, whatever its name.

    Raises:
        UserError: it cannot be read, is empty, is no trace, or holds no events.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"The trace {path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
        ) from error
    return read_bytes(data, str(path))


def read_bytes(data: bytes, label: str) -> EventTable:
    """Read a profiler trace from memory; `label` stands for it in sentences.

    Raises:
        UserError: as for `read`.
    """
    if not data:
        raise UserError(f"The trace {label} is empty.", "Record it again; a profiler that is killed writes nothing.")
    text, cut_stream = _unzip(data, label)
    decoded = decode(text)
    if cut_stream and decoded.truncated_at_byte is None:
        decoded.truncated_at_byte = len(text)
    if decoded.header.events is None:
        raise UserError(
            f"{label} is not a profiler trace: it has no list of trace events.",
            "Pass a file that torch.profiler's export_chrome_trace wrote.",
        )
    table = pairs.join(_build(decoded, decoded.header.events))
    if not len(table):
        only = ", only metadata" if table.quality.metadata_events else ""
        raise UserError(
            " ".join((f"The trace {label} holds no timed events{only}.", *table.quality.sentences())),
            "Record it again while the program runs steps.",
        )
    return table


def _unzip(data: bytes, label: str) -> tuple[bytes, bool]:
    """Decompress by content; the flag says that the compressed stream is cut short."""
    if not data.startswith(b"\x1f\x8b"):
        if len(data) > MAX_TEXT_BYTES:
            raise _too_large(label)
        return data, False
    pieces: list[bytes] = []
    total_bytes = 0
    rest = data
    # gzip files may be concatenated.
    while rest.startswith(b"\x1f\x8b"):
        stream = zlib.decompressobj(wbits=31)
        try:
            while not stream.eof:
                piece = stream.decompress(rest, _CHUNK_BYTES)
                rest = stream.unconsumed_tail
                pieces.append(piece)
                total_bytes += len(piece)
                if total_bytes > MAX_TEXT_BYTES:
                    raise _too_large(label)
                if not piece and not rest and not stream.eof:
                    return b"".join(pieces), True
        except zlib.error:
            return b"".join(pieces), True
        rest = stream.unused_data
    return b"".join(pieces), False


def _too_large(label: str) -> UserError:
    return UserError(
        f"The trace {label} holds more than {MAX_TEXT_BYTES / 2**30:.0f} GiB of text, too much to read at once.",
        "Record fewer steps, or without stacks and memory.",
    )


def _build(decoded: Decoded, events: list[Event]) -> EventTable:
    header = decoded.header
    base_ns = _whole_number(header.base_time) or 0
    timed: list[Event] = []
    metadata: list[Event] = []
    dropped = Counter(decoded.dropped)
    rows: list[int] = []
    for row, event in enumerate(events):
        if event.ph == _METADATA:
            metadata.append(event)
        elif event.ph is None:
            dropped[NO_PHASE] += 1
        elif event.ts is None:
            dropped[NO_TIME] += 1
        else:
            timed.append(event)
            rows.append(row)
    ts_ns, good = _nanoseconds([event.ts for event in timed], base_ns)
    zero = good & _zero_times(timed, ts_ns)
    for reason, wrong in ((TIME_RANGE, ~good), (ZERO_TIME, zero)):
        if wrong.any():
            dropped[reason] += int(wrong.sum())
    keep = good & ~zero
    if not keep.all():
        timed = [event for event, kept in zip(timed, keep, strict=True) if kept]
        rows = [row for row, kept in zip(rows, keep, strict=True) if kept]
        ts_ns = ts_ns[keep]
    dur_ns, has_duration = _nanoseconds([event.dur for event in timed], 0)
    negative = has_duration & (dur_ns < 0)
    complete = np.fromiter((event.ph == _COMPLETE for event in timed), np.bool_, len(timed))
    dur_ns[~has_duration | negative] = MISSING
    ph = _encode(event.ph for event in timed)
    cat = _encode(event.cat for event in timed)
    name = _encode(event.name for event in timed)
    pid = _encode(_identity(event.pid) for event in timed)
    tid = _encode(_identity(event.tid) for event in timed)
    dims = _encode(_json_list(event, "Input Dims") for event in timed)
    types = _encode(_json_list(event, "Input type") for event in timed)
    phases = Counter(event.ph for event in timed if event.ph not in _KNOWN_PHASES)
    ids: dict[Identity, int] = {}
    texts: dict[str, int] = {}
    columns = _arg_columns(timed, ids, texts)
    order = np.lexsort((np.arange(len(timed)), -dur_ns, ts_ns, tid.codes, pid.codes))
    table = EventTable(
        ts_ns=ts_ns[order],
        dur_ns=dur_ns[order],
        correlation=_ids([_arg(event, "correlation") for event in timed], ids)[order],
        external_id=_ids([_external_id(event) for event in timed], ids)[order],
        ph_code=ph.codes[order],
        cat_code=cat.codes[order],
        name_code=name.codes[order],
        pid_code=pid.codes[order],
        tid_code=tid.codes[order],
        dims_code=dims.codes[order],
        types_code=types.codes[order],
        ph_values=ph.values,
        cat_values=cat.values,
        name_values=name.values,
        pid_values=pid.values,
        tid_values=tid.values,
        dims_values=dims.values,
        types_values=types.values,
        row=np.asarray(rows, np.int64)[order],
        flow_id=_ids([event.id for event in timed], ids)[order],
        args={name: column[order] for name, column in columns.items()},
        text_values=tuple(texts),
        id_values=tuple(ids),
        counters=_counters([timed[at] for at in order]),
        quality=TraceQuality(
            events_read=len(events) + sum(decoded.dropped.values()),
            events_kept=len(timed),
            metadata_events=len(metadata),
            dropped=dict(dropped),
            truncated_at_byte=decoded.truncated_at_byte,
            zero_duration=int((complete & (dur_ns == 0)).sum()),
            negative_duration=int(negative.sum()),
            missing_duration=int((complete & ~has_duration).sum()),
            unknown_phases={str(phase): count for phase, count in phases.items()},
            repaired={NOT_UTF8: decoded.replaced_bytes} if decoded.replaced_bytes else {},
        ),
        metadata=_metadata(decoded, metadata, base_ns),
    )
    return table


def _nanoseconds(values: list[Any], base_ns: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Microseconds, as numbers or text, to `base_ns` + nanoseconds; the flags say which could be read."""
    ns = np.zeros(len(values), np.int64)
    good = np.ones(len(values), np.bool_)
    if all(type(value) in (float, int) and -EXACT_BELOW_US < value < EXACT_BELOW_US for value in values):
        us = np.asarray(values, np.float64)
        whole_us = np.trunc(us)
        # The fraction by itself: the product of the whole value may be rounded to a half, which goes either way.
        ns[:] = whole_us.astype(np.int64) * 1000 + np.rint((us - whole_us) * 1000).astype(np.int64)
        if base_ns in _INT64 and (not len(ns) or base_ns + int(ns.max()) in _INT64):
            return ns + base_ns, good
    for index, value in enumerate(values):
        try:
            exact = Decimal(value) if isinstance(value, (str, Decimal)) else value
            whole = base_ns + round(exact * 1000)
        except (ArithmeticError, InvalidOperation, TypeError, ValueError):
            whole = None
        if whole is None or whole not in _INT64 or isinstance(value, bool):
            good[index] = False
        else:
            ns[index] = whole
    return ns, good


def _zero_times(events: list[Event], ts_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Device records that were never filled in: they are stamped 0 and would stretch the trace over decades.

    In a trace that counts from 0 only a device record without duration is taken for one.
    """
    zero: npt.NDArray[np.bool_] = ts_ns == 0
    if not zero.any() or zero.all():
        return np.zeros(len(events), np.bool_)
    if np.median(ts_ns[~zero]) > _YEAR_NS:
        return zero
    zero &= np.fromiter((event.cat in _DEVICE and not event.dur for event in events), np.bool_, len(events))
    return zero


class _Encoded(NamedTuple):
    """Codes into `values`; `MISSING` for None."""

    codes: npt.NDArray[np.int32]
    values: tuple[Any, ...]


def _encode(values: Iterable[Any]) -> _Encoded:
    codes: dict[Any, int] = {}
    column = [MISSING if value is None else codes.setdefault(value, len(codes)) for value in values]
    return _Encoded(np.asarray(column, np.int32), tuple(codes))


def _identity(value: Any) -> Identity | None:
    """A process or thread id: an integer of any size, or a text."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    whole = _whole_number(value) if isinstance(value, (float, Decimal)) else None
    return str(value) if whole is None else whole


def _arg(event: Event, key: str) -> Any:
    if isinstance(event.args, dict):
        return event.args.get(key)
    if isinstance(event.attr, dict):
        found = event.attr.get(key)
        return event.attr.get(_OLD_KEYS[key]) if found is None and key in _OLD_KEYS else found
    return None


def _external_id(event: Event) -> Any:
    found = _arg(event, "External id")
    return _arg(event, "external id") if found is None else found


def _json_list(event: Event, key: str) -> str | None:
    value = _arg(event, key)
    return json.dumps(value) if isinstance(value, list) else None


def _arg_columns(events: list[Event], ids: dict[Identity, int], texts: dict[str, int]) -> dict[str, Any]:
    columns = {}
    for name, key, kind in ARG_COLUMNS:
        values = [_arg(event, key) for event in events]
        if any(value is not None for value in values):
            if kind == "text":
                words = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
                columns[name] = np.asarray([MISSING if w is None else texts.setdefault(w, len(texts)) for w in words])
            else:
                columns[name] = _ids(values, ids)
    if any(event.ph in pairs.ENDS for event in events):
        columns[PAIR_ARGS] = np.asarray([_pair_args(event) for event in events], np.int64)
    return columns


def _pair_args(event: Event) -> int:
    args = event.args or event.attr
    if event.ph not in pairs.BEGINS + pairs.ENDS or not isinstance(args, dict):
        return MISSING
    return pairs.arguments_key(args)


def _counters(events: list[Event]) -> CounterSamples | None:
    series: dict[str, int] = {}
    found = [
        (row, series.setdefault(key, len(series)), float(value))
        for row, event in enumerate(events)
        if event.ph == "C" and isinstance(event.args, dict)
        for key, value in event.args.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    if not found:
        return None
    row, code, value = zip(*found, strict=True)
    return CounterSamples(np.asarray(row), np.asarray(code, np.int32), np.asarray(value), tuple(series))


def _ids(values: list[Any], others: dict[Identity, int]) -> npt.NDArray[np.int64]:
    ids = np.full(len(values), MISSING, np.int64)
    for index, value in enumerate(values):
        whole = _whole_number(value) if value is not None else None
        if whole is not None and -(2**62) < whole < 2**63:
            ids[index] = whole
        elif isinstance(value, (str, int)) and not isinstance(value, bool):
            ids[index] = OTHER_ID - others.setdefault(value, len(others))
    return ids


def _whole_number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return None
    try:
        if isinstance(value, str) and value.startswith("0x"):
            return int(value, 16)
        if not isinstance(value, (int, str)) and not -1e30 < value < 1e30:
            # int() of a number with a huge exponent would not end
            return None
        number = int(value)
        return number if isinstance(value, str) or number == value else None
    except (ValueError, ArithmeticError):
        return None


def _metadata(decoded: Decoded, events: list[Event], base_ns: int) -> TraceMetadata:
    processes: dict[Identity, str] = {}
    threads: dict[tuple[Identity, Identity], str] = {}
    for event in events:
        label = _arg(event, "name")
        pid, tid = _identity(event.pid), _identity(event.tid)
        if isinstance(label, str) and pid is not None:
            if event.name == "process_name":
                processes[pid] = label
            elif event.name == "thread_name" and tid is not None:
                threads[pid, tid] = label
    header = decoded.header
    return TraceMetadata(
        schema_version=_whole_number(header.schema_version),
        base_time_ns=base_ns,
        distributed=header.distributed if isinstance(header.distributed, dict) else None,
        has_device_properties=bool(header.device_properties),
        process_names=processes,
        thread_names=threads,
    )
