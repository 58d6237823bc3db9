"""From the text of a trace to batches of columns: windows cut where an event ends, each decoded at once.

A cut is a guess until the text before it has been decoded: a list of whole events decodes only where the cut lies
between two of them. What does not decode is divided further, and the part that is really damaged is read event by event
(`repair`). Everything else of the file takes the quick way.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from spyreprof.errors import UserError
from spyreprof.trace.encode import Batch, DigitEvent, DoubleEvent, Encoder
from spyreprof.trace.envelope import Envelope, read_head, read_tail
from spyreprof.trace.quality import NOT_UTF8
from spyreprof.trace.repair import MAX_EVENT_BYTES, parse_events
from spyreprof.trace.stamps import InexactError
from spyreprof.trace.text import Text

# What becomes of a window this small stays in the processor's cache: a tenth less time than with 4 MB, and less memory.
WINDOW_BYTES = 2**19
# A window that does not decode is divided into parts of about this size, so that one bad event slows down only these.
_PART_BYTES = 2**16
# More unreadable elements than this mean that the file is something else.
MAX_UNREADABLE = 100_000

_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|attr|id|s|bp|cname)"\s*:)')
_TAIL_BYTES = 2**13
_PADDING = b" \t\r\n,"

_DOUBLES = msgspec.json.Decoder(list[DoubleEvent])
_DIGITS = msgspec.json.Decoder(list[DigitEvent])

Sink = Callable[[Batch], None]


class Window(NamedTuple):
    """Where a stretch of the file's list of events begins: number of its first element, and byte of the text."""

    first_row: int
    offset: int


@dataclass
class Reading:
    """What became of a file.

    Attributes:
        repaired: what was mended -> number of events.
        truncated_at_byte: where the text breaks off inside the list of events or behind it; None for a whole file.
        windows: where stretches of events begin, in order.
        exact_doubles: times were read as doubles; else from their digits.
        empty: there was no text at all.
        ends_between_events: the text was used up, and it ended cleanly behind an event, the list still open.
    """

    envelope: Envelope
    repaired: Counter[str] = field(default_factory=Counter)
    truncated_at_byte: int | None = None
    windows: list[Window] = field(default_factory=list)
    exact_doubles: bool = True
    empty: bool = False
    ends_between_events: bool = False


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Millions of new objects and not one cycle among them: collecting triples the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_events(
    text: Text, encoder: Encoder, sink: Sink, *, window_bytes: int = WINDOW_BYTES, digits: bool = False
) -> Reading:
    """Read a trace, handing on batch after batch.

    Args:
        text: the whole file.
        encoder: holds dictionaries and counts.
        sink: takes each batch.
        window_bytes: about how much text is decoded at once.
        digits: read all times from their digits, whether or not doubles would do.
    """
    envelope = Envelope()
    with no_garbage_collection():
        rest, offset = read_head(text, envelope)
        reader = _Stream(text, encoder, sink, Reading(envelope, exact_doubles=not digits), offset)
        reader.reading.empty = not (envelope.found or offset or rest or text.truncated)
        if envelope.found:
            reader.read_list(rest, window_bytes)
    return reader.reading


def read_part(text: Text, encoder: Encoder, sink: Sink, *, offset: int, array_form: bool) -> Reading:
    """Read events from the middle of a file on: `text` begins between two of them, at byte `offset`."""
    reader = _Stream(text, encoder, sink, Reading(Envelope(found=True, array_form=array_form)), offset)
    with no_garbage_collection():
        reader.read_list(b"", WINDOW_BYTES)
    return reader.reading


class _Stream:
    def __init__(self, text: Text, encoder: Encoder, sink: Sink, reading: Reading, offset: int) -> None:
        self.reading = reading
        self._text = text
        self._encoder = encoder
        self._sink = sink
        self._offset = offset  # of the first byte that is not used up
        self._resync = False

    def read_list(self, rest: bytes, window_bytes: int) -> None:
        """Read the list of events, of which `rest` is the beginning, and what follows it."""
        data, ended = rest, False
        while not ended:
            # As much again of an event that is longer than a window: looking for its end stays linear.
            piece = self._text.read(max(window_bytes, len(data)))
            final = not piece
            data = data + piece if data else piece
            end = len(data) if final else self._last_boundary(data)
            if end < 0:
                # One event is longer than a window; a window that is longer than an event may be is no event's.
                if len(data) <= MAX_EVENT_BYTES:
                    continue
                end = len(data)
            consumed, ended = self._take(data, end, final=final)
            self._offset += consumed
            data = data[consumed:]
            if final and not ended:
                break
        self._finish(data, ended)

    def _finish(self, data: bytes, ended: bool) -> None:
        envelope = self.reading.envelope
        if ended:
            read_tail(self._text, envelope, data)
        whole = ended and (envelope.array_form or envelope.closed)
        if self._text.truncated or not (whole or envelope.array_form):
            self._cut(self._offset)
        if self._text.replaced:
            self.reading.repaired[NOT_UTF8] += self._text.replaced

    def _cut(self, offset: int) -> None:
        if self.reading.truncated_at_byte is None:
            self.reading.truncated_at_byte = offset

    @staticmethod
    def _last_boundary(data: bytes) -> int:
        """Where the last event that is whole seems to end, behind its comma; -1 where no such place is found."""
        for begin in (max(len(data) - _TAIL_BYTES, 0), 0):
            last = -1
            for match in _BOUNDARY.finditer(data, begin):
                last = match.end()
            if last >= 0:
                return last
        return -1

    def _take(self, data: bytes, end: int, *, final: bool) -> tuple[int, bool]:
        """Decode data[:end]; how much of it was used up, and whether the list ended there."""
        if not self._resync and self._quick(data, 0, end):
            self.reading.ends_between_events = final
            return end, False
        at, size = 0, _PART_BYTES
        while at < end:
            until = self._next_boundary(data, at + size, end)
            if not self._resync and self._quick(data, at, until):
                at, size = until, _PART_BYTES
                self.reading.ends_between_events = final and at == end
                continue
            last = final and until == end
            parsed = parse_events(
                data[at:until],
                final=last,
                array_form=self.reading.envelope.array_form,
                dropped=self._encoder.dropped,
                repaired=self.reading.repaired,
                resync=self._resync,
                on_drop=self._check_damage,
            )
            if parsed.events:
                first_row = self._encoder.rows
                self._emit(self._encoder.values(parsed.events), first_row, at)
            self._resync = parsed.skipping
            at += parsed.consumed
            if parsed.ended:
                return at, True
            if parsed.truncated:
                self._cut(self._offset + at)
            if last or (until == end and at < end):
                return (end if last else at), False
            # The part ends inside of an event: what looked like a boundary was none. Doubling keeps the work linear.
            size = _PART_BYTES if parsed.consumed else 2 * size
        return at, False

    def _quick(self, data: bytes, begin: int, end: int) -> bool:
        """Decode a stretch of whole events at once; False where that is not what it is."""
        chunk = b"[" + data[begin:end].rstrip(_PADDING) + b"]"
        if len(chunk) <= 2:
            return True
        batch, first_row = None, self._encoder.rows
        try:
            if not chunk.isascii():
                # Nobody looks at the texts of all arguments: bytes that are not UTF-8 are to be counted there too.
                chunk.decode()
            if self.reading.exact_doubles:
                try:
                    batch = self._encoder.doubles(_DOUBLES.decode(chunk))
                except InexactError:
                    # The stamps of one file are alike: the rest is read so as well.
                    self.reading.exact_doubles = False
                except msgspec.ValidationError:
                    # Times may be spelled as texts.
                    pass
            if batch is None:
                batch = self._encoder.digits(_DIGITS.decode(chunk))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        self._emit(batch, first_row, begin)
        return True

    def _emit(self, batch: Batch, first_row: int, begin: int) -> None:
        self.reading.windows.append(Window(first_row, self._offset + begin))
        if len(batch):
            self._sink(batch)

    @staticmethod
    def _next_boundary(data: bytes, at: int, end: int) -> int:
        match = _BOUNDARY.search(data, at, end) if at < end else None
        return match.end() if match else end

    def _check_damage(self, elements: int) -> None:
        """Give up on a file that is mostly damage; `elements` were met since the last batch."""
        if sum(self._encoder.dropped.values()) > MAX_UNREADABLE > (self._encoder.rows + elements) // 2:
            raise UserError(
                f"More than {MAX_UNREADABLE:,} elements of the trace cannot be read.",
                "Check that the file is a trace, and copy it again.",
            )
