"""What stands around the list of events: the fields before and behind it, in whatever order and size."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from spyreprof.trace.text import Text

# Real headers hold device properties and messages of the profiler, a few kilobytes; a value that is longer than this is
# passed over, not kept.
MAX_VALUE_BYTES = 2**22
# A file without a list of events in its first bytes is no trace: nothing else writes that much before it.
MAX_HEAD_BYTES = 2**28

_PIECE_BYTES = 2**20
_SPACE = re.compile(rb"[\s,]*")
_KEY = re.compile(rb'"((?:[^"\\]|\\.){0,256})"\s*:\s*')
_KEY_BYTES = 1024
_STRUCTURE = re.compile(rb'[\[\]{}"\\]')
_SCALAR_END = re.compile(rb"[\s,\]}]")
_QUOTE = re.compile(rb'["\\]')
_EVENTS = b"traceEvents"
_LIST = ord("[")
_OBJECT = ord("{")


@dataclass
class Envelope:
    """The fields beside the events.

    Attributes:
        found: a list of events was found.
        array_form: the file is the bare list, which may lack its closing bracket.
        fields: decoded values by key; None for one that is too long; one that is no JSON is left out.
        closed: the object's closing bracket was met.
    """

    found: bool = False
    array_form: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    closed: bool = False


class _Window:
    """The part of a text that is being looked at; what lies behind is let go."""

    def __init__(self, text: Text, data: bytes) -> None:
        self.text = text
        self.data = data
        self.at = 0
        self.passed_bytes = 0
        self.ended = False

    def fill(self) -> bool:
        """Read on; False at the end of the text."""
        piece = self.text.read(_PIECE_BYTES)
        self.passed_bytes += self.at
        self.data = self.data[self.at :] + piece
        self.at = 0
        self.ended = not piece
        return bool(piece)

    def skip_space(self) -> int | None:
        """The next byte that is no white space or comma; None at the end."""
        while True:
            match = _SPACE.match(self.data, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.data):
                return self.data[self.at]
            if not self.fill():
                return None


def read_head(text: Text, envelope: Envelope) -> tuple[bytes, int]:
    """Read up to the first event.

    Returns:
        What was read beyond the list's opening bracket, and the number of bytes of text before that.
    """
    window = _Window(text, b"")
    first = window.skip_space()
    if first == _LIST:
        envelope.array_form = envelope.found = True
        return window.data[window.at + 1 :], window.passed_bytes + window.at + 1
    if first == _OBJECT:
        window.at += 1
        _read_fields(window, envelope, stop_at_events=True)
    return window.data[window.at :], window.passed_bytes + window.at


def read_tail(text: Text, envelope: Envelope, rest: bytes) -> None:
    """Read the fields behind the list of events; `rest` is what was read beyond its closing bracket."""
    if not envelope.array_form:
        _read_fields(_Window(text, rest), envelope, stop_at_events=False)


def _read_fields(window: _Window, envelope: Envelope, *, stop_at_events: bool) -> None:
    while window.passed_bytes + window.at < MAX_HEAD_BYTES:
        first = window.skip_space()
        if first is None or first != ord('"'):
            envelope.closed = first == ord("}")
            return
        while (key := _KEY.match(window.data, window.at)) is None or key.end() == len(window.data):
            if len(window.data) - window.at > _KEY_BYTES or not window.fill():
                return
        window.at = key.end()
        if stop_at_events and key.group(1) == _EVENTS and window.data[window.at] == _LIST:
            window.at += 1
            envelope.found = True
            return
        value, whole = _pass_value(window)
        if not whole:
            return
        name = key.group(1).decode(errors="replace")
        if name not in envelope.fields:
            if value is None:
                envelope.fields[name] = None
                continue
            try:
                decoded = json.loads(value)
            except (ValueError, RecursionError):
                continue
            if decoded is not None:
                envelope.fields[name] = decoded


def _pass_value(window: _Window) -> tuple[bytes | None, bool]:
    """Step over one JSON value, counting brackets, so that neither its depth nor its length matters.

    Returns:
        Its text, None where that is too long to be kept; and whether it ends before the text does.
    """
    end_of = _Nesting() if window.data[window.at] in b'{["' else _Scalar()
    kept: list[bytes] | None = []
    kept_bytes = 0
    while True:
        begin = window.at
        done = end_of.advance(window)
        kept_bytes += window.at - begin
        if kept is not None:
            kept.append(window.data[begin : window.at])
            if kept_bytes > MAX_VALUE_BYTES:
                kept = None
        if done:
            return (b"".join(kept) if kept is not None else None), True
        if not window.fill():
            return None, False


class _Scalar:
    """Finds the end of a number, true, false, null, or of whatever stands in their place."""

    def advance(self, window: _Window) -> bool:
        match = _SCALAR_END.search(window.data, window.at)
        window.at = match.start() if match else len(window.data)
        return match is not None


class _Nesting:
    """Finds the end of an object, a list or a string."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False

    def advance(self, window: _Window) -> bool:
        """Move on to the end of the value, or to where more text is needed; whether it is the end."""
        while match := (_QUOTE if self._in_string else _STRUCTURE).search(window.data, window.at):
            sign = match.group()
            if sign == b"\\":
                if match.end() == len(window.data):
                    # what it escapes stands in the next piece
                    window.at = match.start()
                    return False
                window.at = match.end() + 1
                continue
            window.at = match.end()
            if sign == b'"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if sign in b"{[" else -1
            if not self._in_string and self._depth <= 0:
                return True
        window.at = len(window.data)
        return False
