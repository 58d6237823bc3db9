"""The slow way to events: one by one, for a stretch of a trace that the fast way refuses as a whole."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from spyreprof.trace.mend import EVENT, HEADER, MAX_DIGITS, BrokenError, Fence, IncompleteError, mend, next_place
from spyreprof.trace.quality import (
    CONTROL_CHARACTER,
    LONE_SURROGATE,
    NOT_AN_OBJECT,
    NOT_FINITE,
    NOT_UTF8,
    OVERSIZED,
    UNREADABLE,
)

MAX_EVENT_BYTES = 2**24
# A failing decoder counts the lines before the fault: text that is done with is cut off, or time grows with its square.
_DONE_CHARACTERS = 2**16
# Behind junk the beginning of an event must be seen whole, with what stands before it.
_TAIL_CHARACTERS = 2**13
# What is cut of an escape, a number or a word is not longer.
_CUT_CHARACTERS = 8

_SEPARATORS = re.compile(r"[\s,]*")
_FOLLOWS = re.compile(r"\s*(?:([,\]{])|\Z)")
_UNDECIDED_BRACKET = re.compile(r"\]\s*(?:,\s*)?\Z")
_PLAIN_END = re.compile(r'\]\s*(?:\Z|\}|,\s*")')
# Someone put a bracket too many around events.
_LIST_OF_EVENTS = re.compile(rf"\[\s*(?={EVENT})")
_LAST_BRACKET = {False: re.compile(r"\]\s*\}\s*\Z"), True: re.compile(r"\]\s*\Z")}
_HEADER = re.compile(HEADER)
_LIST_END = re.compile(rf"\]\s*,\s*{HEADER}")
_EVENT = re.compile(EVENT)
_EVENT_BEHIND_JUNK = re.compile(rf"[^{{]{{1,4}}?(?={EVENT})")
# An element, not only a bracket too many.
_SOMETHING = re.compile(r'[\w"{\[]')
# Behind what looks like a whole event: the rest of it.
_REST_OF_EVENT = re.compile(r'"\s*[:,}]')
_CUT_SCALAR = re.compile(r"[\w.+-]+\Z")
_HALF_ESCAPE = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def _decimal(digits: str) -> Decimal:
    if len(digits) > MAX_DIGITS:
        raise ValueError("too many digits")
    try:
        number = Decimal(digits)
    except ArithmeticError as error:
        raise ValueError("too large an exponent") from error
    if number and number.adjusted() > MAX_DIGITS:
        raise ValueError("too large an exponent")
    return number


class Parsed(NamedTuple):
    """What was read of a stretch of the list of events.

    Attributes:
        events: one for each element of the list; None for one that is left out, so that row numbers stay the file's.
        consumed: bytes used up; the caller puts more behind the rest and calls again.
        ended: the list's closing bracket was met; `consumed` is just behind it. Where it is missing, a field of the
            object form was met, and `consumed` is before that.
        truncated: the text ends inside the list in a way that is not legal; `consumed` is where the part begins that
            is no whole event.
        skipping: an element that is left out runs on behind the data; call again with `resync`.
    """

    events: list[dict[str, Any] | None]
    consumed: int
    ended: bool
    truncated: bool
    skipping: bool


def parse_events(
    data: bytes,
    *,
    final: bool,
    array_form: bool,
    dropped: Counter[str],
    repaired: Counter[str],
    resync: bool = False,
    on_drop: Callable[[int], None] | None = None,
) -> Parsed:
    """Read the elements of the list of events from `data`, which begins with one.

    Integers are exact at any size, decimal fractions are `Decimal`. What is damaged is mended or left out, and counted
    by its reason in `repaired` and `dropped`, once for each event. The outcome does not depend on where `data` ends.

    Args:
        data: text of the list, in UTF-8 more or less.
        final: nothing follows `data` in the file.
        array_form: the list is the file, so that its closing bracket may be absent.
        dropped: reason -> events left out; counted up.
        repaired: reason -> events mended; counted up.
        resync: the last call was `skipping`.
        on_drop: called after each event that is left out with the number of elements so far; it may raise to give up.
    """
    stretch = _Stretch(data, final=final, array_form=array_form, dropped=dropped, repaired=repaired)
    stretch.on_drop = on_drop
    return stretch.read(resync=resync)


class _Element(NamedTuple):
    value: Any
    end: int
    marks: frozenset[str]


class _Stretch:
    on_drop: Callable[[int], None] | None = None

    def __init__(
        self, data: bytes, *, final: bool, array_form: bool, dropped: Counter[str], repaired: Counter[str]
    ) -> None:
        # Bytes that are not UTF-8 become lone surrogates, from which the very bytes can be had again.
        self._text = data.decode("utf-8", "surrogateescape")
        self._size_bytes = len(data)
        self._has_other_bytes = _NOT_UTF8.search(self._text) is not None
        self._has_half_escapes = "\\ud" in self._text or "\\uD" in self._text
        self._final = final
        self._array_form = array_form
        self._dropped = dropped
        self._repaired = repaired
        self._at = 0
        self._forgotten_bytes = 0
        self._fence = Fence(self._text)
        # Behind an element that was left out, until the next event: a closing bracket may be one inside of it.
        self._lost = False
        self._events: list[dict[str, Any] | None] = []
        self._marks: set[str] = set()
        self._strict = json.JSONDecoder(parse_float=_decimal, parse_constant=self._no_number)
        self._tolerant = json.JSONDecoder(parse_float=_decimal, parse_constant=self._no_number, strict=False)

    def read(self, *, resync: bool) -> Parsed:
        if resync:
            self._lost = True
            if not _EVENT.match(self._text) and not self._go_on_behind(0, 0):
                return self._nothing_more()
        parsed = None
        while parsed is None:
            parsed = self._step()
        return parsed

    def _step(self) -> Parsed | None:
        """Read one element, or what stands between two; the value is the outcome when that is the end."""
        if self._at > _DONE_CHARACTERS:
            self._forget()
        self._at = _end(_SEPARATORS, self._text, self._at)
        if self._at == len(self._text):
            return self._outcome(truncated=self._final and not self._array_form)
        if self._text[self._at] == "]":
            return self._bracket()
        if _HEADER.match(self._text, self._at):
            return self._outcome(ended=True)
        if nested := _LIST_OF_EVENTS.match(self._text, self._at):
            self._at = nested.end()
            return None
        try:
            element = self._element(self._at)
        except IncompleteError as error:
            return self._incomplete(error)
        except BrokenError as error:
            return self._leave_out(UNREADABLE, error.at)
        if element.end - self._at > MAX_EVENT_BYTES // 4 and self._bytes(self._at, element.end) > MAX_EVENT_BYTES:
            self._drop(OVERSIZED)
        elif isinstance(element.value, dict):
            self._events.append(element.value)
            self._repaired.update(element.marks)
            self._lost &= "ph" not in element.value
        else:
            self._drop(NOT_AN_OBJECT)
        self._at = element.end
        return None

    def _bracket(self) -> Parsed | None:
        if not self._final and _UNDECIDED_BRACKET.match(self._text, self._at):
            return self._outcome()
        if self._lost:
            last = self._final and _LAST_BRACKET[self._array_form].match(self._text, self._at)
            if not last and not _LIST_END.match(self._text, self._at):
                return None if self._go_on_behind(self._at, self._at + 1) else self._nothing_more()
        elif not _PLAIN_END.match(self._text, self._at):
            if self._next(self._at, self._at + 1) is not None:
                return self._leave_out(UNREADABLE, self._at + 1)
            if not self._final and self._bytes(self._at, len(self._text)) <= MAX_EVENT_BYTES:
                return self._outcome()
        self._at += 1
        return self._outcome(ended=True)

    # -- one element

    def _element(self, start: int) -> _Element:
        """Read the element at `start`, mending it where that is needed."""
        first = self._as_it_stands(start)
        if first is not None and (
            self._is_followed(first.end) or _EVENT_BEHIND_JUNK.match(self._text, first.end) is not None
        ):
            return first
        if self._text[start] not in "{[":
            if first is None and _CUT_SCALAR.match(self._text, start):
                raise IncompleteError(in_text=False)
            raise BrokenError(start)
        broken: list[int] = []
        incomplete = None
        for cautious in (True, False):
            marks: set[str] = set()
            try:
                sound, end = mend(self._text, start, self._fence, marks, cautious=cautious)
                element = self._mended(sound, end, marks)
                if self._is_followed(end):
                    return element
                first = first or element
            except BrokenError as error:
                broken.append(error.at)
            except IncompleteError as error:
                if not self._final:
                    raise
                incomplete = error
        if first is not None:
            following = self._next(first.end, first.end)
            if following is None and not self._final:
                raise IncompleteError(in_text=False)
            if not _REST_OF_EVENT.search(self._text, first.end, len(self._text) if following is None else following):
                return first
            broken.append(first.end)
        if incomplete is not None and not broken:
            raise incomplete
        raise BrokenError(min(broken))

    def _as_it_stands(self, start: int) -> _Element | None:
        self._marks.clear()
        extra: set[str] = set()
        try:
            value, end = self._strict.raw_decode(self._text, start)
        except RecursionError:
            return None
        except json.JSONDecodeError as error:
            self._need_more(start, error)
            if not error.msg.startswith("Invalid control character"):
                return None
            self._marks.clear()
            try:
                value, end = self._tolerant.raw_decode(self._text, start)
            except json.JSONDecodeError as second:
                self._need_more(start, second)
                return None
            except (ValueError, RecursionError):
                return None
            extra.add(CONTROL_CHARACTER)
        except ValueError:
            return None
        extra |= self._marks
        if self._has_other_bytes or self._has_half_escapes:
            raw = self._text[start:end]
            characters = self._characters(raw, extra)
            if characters != raw:
                value = self._tolerant.decode(characters)
        return _Element(value, end, frozenset(extra))

    def _need_more(self, start: int, error: json.JSONDecodeError) -> None:
        """Ask for more text where the fault may be no other than that the text ends here."""
        at_end = error.pos >= len(self._text) - _CUT_CHARACTERS or error.msg.startswith("Unterminated string")
        if at_end and not self._final and self._bytes(start, len(self._text)) <= MAX_EVENT_BYTES:
            raise IncompleteError(in_text=False)

    def _mended(self, sound: str, end: int, marks: set[str]) -> _Element:
        try:
            value = self._strict.decode(self._characters(sound, marks))
        except (ValueError, RecursionError):
            raise BrokenError(end) from None
        return _Element(value, end, frozenset(marks))

    def _characters(self, raw: str, marks: set[str]) -> str:
        """The JSON text without bytes that are not UTF-8 and without halves of surrogate pairs."""
        if self._has_other_bytes and _NOT_UTF8.search(raw):
            marks.add(NOT_UTF8)
            raw = raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if self._has_half_escapes and "\\u" in raw:
            whole = _HALF_ESCAPE.sub(lambda found: "\\ufffd" if found.group(2) else found.group(), raw)
            if whole != raw:
                marks.add(LONE_SURROGATE)
                raw = whole
        return raw

    def _no_number(self, _text: str) -> None:
        self._marks.add(NOT_FINITE)

    def _is_followed(self, end: int) -> bool:
        """Whether what stands behind an element is what may stand there."""
        follows = _FOLLOWS.match(self._text, end)
        if follows is not None and follows.group(1) is None and not self._final:
            raise IncompleteError(in_text=False)
        return follows is not None

    # -- what cannot be read

    def _incomplete(self, error: IncompleteError) -> Parsed | None:
        if not self._final:
            if self._bytes(self._at, len(self._text)) <= MAX_EVENT_BYTES:
                return self._outcome()
            return self._leave_out(OVERSIZED, self._at)
        # A text without its end runs on to the end of the file, which is whole for all that.
        if error.in_text and _LAST_BRACKET[self._array_form].search(self._text, max(self._at, len(self._text) - 200)):
            return self._leave_out(UNREADABLE, self._at)
        return self._outcome(truncated=True)

    def _leave_out(self, reason: str, at: int) -> Parsed | None:
        start = self._at
        found = self._go_on_behind(start, at)
        if not found and not self._final and self._bytes(start, len(self._text)) <= MAX_EVENT_BYTES:
            return self._outcome()
        if _SOMETHING.search(self._text, start, self._at if found else len(self._text)):
            self._drop(reason)
        return None if found else self._nothing_more()

    def _go_on_behind(self, start: int, at: int) -> bool:
        following = self._next(start, at)
        if following is None:
            return False
        self._at = following
        self._lost = True
        return True

    def _next(self, start: int, at: int) -> int | None:
        """Where, from `at` on, the event behind the one at `start` begins, or the list ends."""
        if at == start and (found := _EVENT_BEHIND_JUNK.match(self._text, at)):
            return found.end()
        return next_place(self._text, at, start)

    def _nothing_more(self) -> Parsed:
        """The outcome where no other event is in sight."""
        text = self._text
        self._lost = True
        if not self._final:
            keep = max(self._at, len(text) - _TAIL_CHARACTERS)
            # A brace that white space follows may begin an event; but no more is kept of megabytes of white space.
            least = max(self._at, keep - _TAIL_CHARACTERS)
            while keep > least and (text[keep] == "{" or text[keep].isspace()):
                keep -= 1
            self._at = keep
            return self._outcome()
        if last := _LAST_BRACKET[self._array_form].search(text, self._at):
            self._at = last.start() + 1
            return self._outcome(ended=True)
        self._at = len(text)
        return self._outcome(truncated=not text.rstrip().endswith(("}", "]")))

    def _drop(self, reason: str) -> None:
        self._events.append(None)
        self._dropped[reason] += 1
        if self.on_drop is not None:
            self.on_drop(len(self._events))

    # -- where we are

    def _bytes(self, start: int, end: int) -> int:
        return len(self._text[start:end].encode("utf-8", "surrogateescape"))

    def _forget(self) -> None:
        self._forgotten_bytes += self._bytes(0, self._at)
        self._text = self._text[self._at :]
        self._fence = self._fence.moved(self._text, self._at)
        self._at = 0

    def _outcome(self, *, ended: bool = False, truncated: bool = False) -> Parsed:
        return Parsed(
            self._events,
            consumed=self._forgotten_bytes + self._bytes(0, self._at),
            ended=ended,
            truncated=truncated,
            skipping=self._lost and not (ended or self._final),
        )


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
