"""One event of a trace as its file has it: what the columns leave out is looked up when somebody asks."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spyreprof.errors import UserError
from spyreprof.trace import cache
from spyreprof.trace.encode import Encoder
from spyreprof.trace.reader import unreadable
from spyreprof.trace.repair import MAX_EVENT_BYTES, parse_events
from spyreprof.trace.stream import WINDOW_BYTES, Reading, Window, read_events
from spyreprof.trace.text import Text, open_text
from spyreprof.trace.version import COLUMNS_VERSION

# A stretch ends where the next one begins; of one that runs on for longer than this, no more is looked at.
_MOST_BYTES = MAX_EVENT_BYTES + 2 * WINDOW_BYTES
_PIECE_BYTES = 2**20
_SEPARATORS = re.compile(r"[\s,]*")
_MENDED = msgspec.json.Encoder(decimal_format="number")
_NO_EVENT = "Rows are counted from 0 over all elements of the file's list; an export for Perfetto shows them as `row`."


def event_windows(path: str | os.PathLike[str]) -> list[Window]:
    """Where stretches of events begin in a trace file; reads all of it and keeps nothing else.

    Raises:
        UserError: it cannot be read, or is no trace.
    """
    encoder = Encoder()
    try:
        with Path(path).open("rb") as stream:
            reading: Reading = read_events(open_text(stream, str(path)), encoder, lambda batch: None)
    except OSError as error:
        raise unreadable(path, error) from error
    if not reading.windows:
        raise UserError(
            f"{path} holds no trace events.",
            "Pass Chrome trace-event JSON, as torch.profiler's export_chrome_trace writes.",
        )
    return reading.windows


def stored_windows(directory: Path) -> list[Window] | None:
    """Where stretches of events begin in the file whose columns lie here; None where this cannot be told."""
    try:
        index = json.loads((directory / cache.INDEX).read_bytes())
        facts = [cache.read_facts(directory / f"part-{number}") for number in range(int(index["parts"]))]
        if index["version"] != COLUMNS_VERSION:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    before, windows = 0, []
    for part in facts:
        windows += [Window(before + window.first_row, window.offset) for window in part.windows]
        before += part.elements
    return windows


def raw_event(path: str | os.PathLike[str], row: int, windows: Sequence[Window]) -> str:
    """The JSON text of one event, as it stands in the file; one that had to be mended is spelled anew.

    Args:
        path: the trace, plain or gzipped.
        row: the event's place in the file's list, as in `EventTable.row`.
        windows: where stretches of the list begin, ascending, as the reader found them.

    Raises:
        UserError: the file has no such event, it is damaged beyond reading, or the file changed.
    """
    place = bisect_right(windows, row, key=lambda window: window.first_row) - 1 if row >= 0 else -1
    if place < 0:
        raise UserError(f"{path} has no event {row:,}.", _NO_EVENT)
    window = windows[place]
    following = windows[place + 1].offset if place + 1 < len(windows) else None
    try:
        with Path(path).open("rb") as stream:
            data, array_form, final = _stretch(open_text(stream, str(path)), window.offset, following)
    except OSError as error:
        raise unreadable(path, error) from error
    text = _as_it_stands(data, row - window.first_row)
    if text is None:
        text = _mended(data, row - window.first_row, final=final, array_form=array_form)
    if text is None:
        raise UserError(f"{path} has no readable event {row:,}.", _NO_EVENT)
    return text


def _stretch(text: Text, offset: int, following: int | None) -> tuple[bytes, bool, bool]:
    """The text from `offset` to where the next stretch begins; whether the file is a bare list; whether it ended."""
    at, array_form = 0, None
    kept: list[bytes] = []
    end = min(following if following is not None else offset + _MOST_BYTES, offset + _MOST_BYTES)
    while at < end:
        piece = text.read(min(_PIECE_BYTES, end - at))
        if not piece:
            return b"".join(kept), bool(array_form), True
        if array_form is None and piece.strip():
            array_form = piece.lstrip().startswith(b"[")
        if at + len(piece) > offset:
            kept.append(piece[max(offset - at, 0) : end - at])
        at += len(piece)
    return b"".join(kept), bool(array_form), following is None and at <= end and not text.read(1)


def _as_it_stands(data: bytes, number: int) -> str | None:
    """The text of an element of a list without damage; None where there is any before its end."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str)
    try:
        text = data.decode()
        at = 0
        for left in range(number, -1, -1):
            begin = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
            value, at = decoder.raw_decode(text, begin)
            if not isinstance(value, dict):
                return None
            if not left:
                return text[begin:at]
    except (ValueError, RecursionError):
        pass
    return None


def _mended(data: bytes, number: int, *, final: bool, array_form: bool) -> str | None:
    parsed = parse_events(data, final=final, array_form=array_form, dropped=Counter(), repaired=Counter())
    if number >= len(parsed.events) or parsed.events[number] is None:
        return None
    try:
        return _MENDED.encode(parsed.events[number]).decode()
    except RecursionError:
        return None
