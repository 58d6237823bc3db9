"""Chrome trace JSON to events: a fast way for sound files, and a salvaging way for the rest."""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from spyreprof.trace.quality import NOT_AN_OBJECT, UNREADABLE

# Below 2^43 µs a double still tells nanoseconds apart: its spacing is 2^-10 µs. Above, only the text does.
EXACT_BELOW_US = float(2**43)
# A file with more unreadable events than this is not a damaged trace but something else.
MAX_UNREADABLE = 10_000


class Event(msgspec.Struct):
    """One event as it stands in the file. `ts` and `dur` are microseconds: a number, or its text."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: Any = None
    # in place of `args` in traces of the older Spyre stack
    attr: Any = None


class Header(msgspec.Struct):
    """The object form's fields beside its events. `events` is None when there is no such list."""

    events: list[Event] | None = msgspec.field(name="traceEvents", default=None)
    base_time: Any = msgspec.field(name="baseTimeNanoseconds", default=None)
    schema_version: Any = msgspec.field(name="schemaVersion", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    device_properties: Any = msgspec.field(name="deviceProperties", default=None)


@dataclass
class Decoded:
    """The content of a trace file. `header.events` is None when it is no trace at all."""

    header: Header
    dropped: Counter[str] = field(default_factory=Counter)
    truncated_at_byte: int | None = None
    replaced_bytes: int = 0


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # Millions of new objects and not one cycle among them: collecting triples the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def decode(data: bytes) -> Decoded:
    """Decode a whole trace, array or object form, cut short or not."""
    with _no_garbage_collection():
        data = _as_utf8(data)
        try:
            header = _decode_sound(data, None)
            if any(_needs_text(event) for event in header.events or ()):
                header = _decode_sound(data, Decimal)
            return Decoded(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _salvage(data)


def _as_utf8(data: bytes) -> bytes:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace").encode()
    return data


def _decode_sound(data: bytes, float_hook: type[Decimal] | None) -> Header:
    if data.lstrip()[:1] == b"[":
        events = msgspec.json.Decoder(list[Event], float_hook=float_hook).decode(data)
        return Header(events=events)
    return msgspec.json.Decoder(Header, float_hook=float_hook).decode(data)


def _needs_text(event: Event) -> bool:
    ts, dur = event.ts, event.dur
    return (isinstance(ts, float) and not -EXACT_BELOW_US < ts < EXACT_BELOW_US) or (
        isinstance(dur, float) and not -EXACT_BELOW_US < dur < EXACT_BELOW_US
    )


# Where an event may begin, when the one before it could not be read to its end.
_NEXT_EVENT = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:')
_SPACE = re.compile(r"[\s,]*")
_KEY = re.compile(r'\s*,?\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_EVENTS_KEY = re.compile(r'"traceEvents"\s*:\s*\[')


def _salvage(data: bytes) -> Decoded:
    """Read event by event, leaving out what is damaged; what the fast way refuses as a whole ends here."""
    text = data.decode("utf-8", errors="replace")
    decoded = Decoded(Header(), replaced_bytes=_replaced(data, text))
    decoder = json.JSONDecoder(parse_float=Decimal, strict=False)
    start = _read_header(text, decoder, decoded.header)
    if start is None:
        return decoded
    events: list[Event] = []
    position = start
    while True:
        position = _match_end(_SPACE, text, position)
        if position >= len(text):
            # The array form may legally lack its closing bracket; the object form is cut.
            if text.lstrip()[:1] != "[":
                decoded.truncated_at_byte = _byte_offset(text, position)
            break
        if text[position] == "]":
            # All events are there, but what follows them may be cut.
            if text.lstrip()[:1] == "{" and not text.rstrip().endswith("}"):
                decoded.truncated_at_byte = _byte_offset(text, len(text))
            break
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError, ArithmeticError):
            following = _NEXT_EVENT.search(text, position + 1)
            if following is None or decoded.dropped[UNREADABLE] >= MAX_UNREADABLE:
                if following is None and _is_cut(text, position):
                    decoded.truncated_at_byte = _byte_offset(text, position)
                else:
                    decoded.dropped[UNREADABLE] += 1
                break
            decoded.dropped[UNREADABLE] += 1
            position = following.start()
            continue
        if isinstance(value, dict):
            events.append(_event_of(value))
        else:
            decoded.dropped[NOT_AN_OBJECT] += 1
    decoded.header.events = events
    return decoded


def _read_header(text: str, decoder: json.JSONDecoder, header: Header) -> int | None:
    """Read the fields before the events into `header`; the value is where the events begin."""
    begin = _match_end(_SPACE, text, 0)
    if text[begin : begin + 1] == "[":
        return begin + 1
    if text[begin : begin + 1] != "{":
        return None
    position = begin + 1
    fields = {
        "baseTimeNanoseconds": "base_time",
        "schemaVersion": "schema_version",
        "distributedInfo": "distributed",
        "deviceProperties": "device_properties",
    }
    while key := _KEY.match(text, position):
        if key.group(1) == '"traceEvents"':
            break
        try:
            value, position = decoder.raw_decode(text, key.end())
        except (ValueError, RecursionError, ArithmeticError):
            break
        if name := fields.get(key.group(1)[1:-1]):
            setattr(header, name, value)
    begin_events = _EVENTS_KEY.search(text, position)
    return begin_events.end() if begin_events else None


def _is_cut(text: str, position: int) -> bool:
    """Whether the text from `position` on lacks its end, rather than being wrong somewhere inside."""
    return not text.rstrip().endswith(("}", "]")) or text.count("{", position) > text.count("}", position)


def _event_of(value: dict[str, Any]) -> Event:
    return Event(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=value.get("pid"),
        tid=value.get("tid"),
        ts=value.get("ts"),
        dur=value.get("dur"),
        id=value.get("id"),
        args=value.get("args"),
        attr=value.get("attr"),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _byte_offset(text: str, position: int) -> int:
    return len(text[:position].encode())


def _replaced(data: bytes, text: str) -> int:
    mark = "\N{REPLACEMENT CHARACTER}"
    return text.count(mark) - data.count(mark.encode()) if mark in text else 0
