"""Damaged JSON text to sound JSON text: one event at a time, in one pass, without recursion."""

from __future__ import annotations

import re

from spyreprof.trace.quality import (
    CONTROL_CHARACTER,
    LONE_SURROGATE,
    NOT_FINITE,
    STRAY_BACKSLASH,
    STRAY_QUOTE,
    TOO_DEEP,
    TRAILING_COMMA,
)

# Deeper values become null: nothing that reads an event's arguments may depend on how deep they are.
MAX_DEPTH = 200
# Longer numbers take time by the square of their length, and 1e999999 is as long in the end. Python's limit is 4300.
MAX_DIGITS = 4000

_EVENT_KEYS = "ph|cat|pid|tid|ts|dur|args|attr|tts|tdur|tidelta|bp|sf|cname|scope|bind_id"
# Fields of the object form beside its events. An unknown one ends no list, since arguments hold lists too.
_HEADER_KEYS = (
    "traceName|displayTimeUnit|baseTimeNanoseconds|schemaVersion|deviceProperties|distributedInfo|otherData"
    "|stackFrames|systemTraceEvents|powerTraceAsString|controllerTraceDataKey|record_shapes|profile_memory"
    "|with_stack|with_flops|with_modules"
)
# No unbounded repetition of a group anywhere: such a pattern takes memory by the length of a hostile text.
_KEY = r'"(?:[^"\\]|\\.){0,200}"\s*:'
_NAME_OR_ID = r'"(?:name|id)"\s*:\s*(?:"(?:[^"\\]|\\.){0,2000}"|[^"{}\[\],]{0,40})\s*,\s*'
# `name` and `id` begin many an object; only an event goes on with another field of events.
EVENT = (
    rf'\{{\s*(?:"(?:{_EVENT_KEYS})"\s*:'
    rf'|{_NAME_OR_ID}(?:{_NAME_OR_ID})?"(?:ph|cat|pid|tid|ts|dur|args|attr)"\s*:)'
)
HEADER = rf'"(?:{_HEADER_KEYS})"\s*:'
_PLACE = re.compile(rf"{EVENT}|(?:\]\s*)?,\s*{HEADER}")
# What stands before an argument or inside a text, not before an event.
_NO_EVENT_BEHIND = ':"(=\\'

_SPACE = re.compile(r"\s*")
_COLON = re.compile(r"\s*:")
_SOUND_SCALAR = (
    rf"(?:-?(?:0|[1-9]\d{{0,{MAX_DIGITS - 1}}})(?:\.\d{{1,{MAX_DIGITS}}})?(?:[eE][-+]?\d{{1,3}})?"
    r"|true|false|null)(?=[\s,}\]])"
)
_LONG_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?(?=[\s,}\]])")
_SCALAR = re.compile(_SOUND_SCALAR)
# What takes the place of times that are numbers of no measure, and how their keys stand before the colon.
_BEYOND_TIME = "1e400"
_TIMES = (['"ts"'], ['"dur"'])
# As C, C++ and Python print them.
_NO_NUMBER = re.compile(
    r"[-+]?(?:nan(?:\((?:ind|snan)\))?|inf(?:inity)?|1\.#(?:inf|ind|qnan|snan)\d*)(?=[\s,}\]])", re.IGNORECASE
)
_CUT_SCALAR = re.compile(r"[\w.+#-]*\Z")
_BRACKET_OR_QUOTE = re.compile(r'[\[\]{}"]')
_QUOTE = re.compile(r'\\.|"', re.DOTALL)

# What follows the quotation mark that ends a text; any other one belongs to the text.
_ENDS_IN_LIST = re.compile(r'\s*(?:,\s*["\-\dtfnNI{\[]|(?:,\s*)?\]\s*[,}\]])')
_ENDS_IN_OBJECT = re.compile(rf"\s*(?:,\s*{_KEY}|(?:,\s*)?\}}\s*[,}}\]])")
_ENDS_IN_EVENT = re.compile(rf"\s*(?:,\s*{_KEY}|(?:,\s*)?\}}\s*(?:[,\]{{]|\Z))")
_KEY_AT_ONCE = re.compile(rf"\s*{_KEY}")
_NEXT_KEY = re.compile(rf"\s*,\s*{_KEY}")

_ESCAPE = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r'|([bfnrt](?=\w))|(["\\/bfnrt]|u[0-9a-fA-F]{4}))?|["\x00-\x1f]'
)
_BACKSLASH = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(\\)')

# Most fields of a damaged event are sound; these are passed over together.
_PLAIN = r'"[^"\\\x00-\x1f]*"'
_PLAIN_FIELDS = re.compile(rf'(?:{_PLAIN}\s*:\s*(?:{_PLAIN}(?=\s*,\s*{_KEY})|{_SOUND_SCALAR})\s*,\s*(?=")){{1,20}}')


class BrokenError(Exception):
    """The text cannot be mended; `at` is where that became clear."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class IncompleteError(Exception):
    """The text ends before the event does; `in_text` says whether inside quotation marks."""

    def __init__(self, *, in_text: bool) -> None:
        super().__init__(in_text)
        self.in_text = in_text


def next_place(text: str, at: int, first: int = 0) -> int | None:
    """Where, from `at` on, an event begins or the list ends; what stands before `first` is not looked at."""
    for found in _PLACE.finditer(text, at):
        place = before = found.start()
        if text[place] != "{":
            return place
        while before > first and (before == place or text[before].isspace()):
            before -= 1
        if before < place and text[before] not in _NO_EVENT_BEHIND:
            return place
    return None


class Fence:
    """Where the next event begins, so that one without an end does not swallow it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._from = 0
        self._at = -1

    def behind(self, at: int) -> int:
        """The first such place from `at` on; the text's length when there is none."""
        if not self._from <= at <= self._at:
            place = next_place(self._text, at)
            self._from, self._at = at, len(self._text) if place is None else place
        return self._at

    def moved(self, text: str, by: int) -> Fence:
        """The same for the text without its first `by` characters."""
        fence = Fence(text)
        if self._from <= by <= self._at:
            fence._at = self._at - by
        return fence


def mend(text: str, start: int, fence: Fence, marks: set[str], *, cautious: bool) -> tuple[str, int]:
    """Make sound JSON of the object or list at `start`; the second value is where it ends in `text`.

    Reasons of `quality` go to `marks`. The cautious way takes a text that has quotation marks inside to go on until its
    brackets are closed.

    Raises:
        BrokenError: it cannot be mended.
        IncompleteError: `text` ends inside it.
    """
    return _Mender(text, start, fence, marks, cautious=cautious).mend()


class _Mender:
    def __init__(self, text: str, start: int, fence: Fence, marks: set[str], *, cautious: bool) -> None:
        self._text = text
        self._at = start
        self._fence = fence
        self._marks = marks
        self._cautious = cautious
        self._out: list[str] = []
        # The brackets that are to be closed.
        self._open: list[str] = []
        self._expected = "value"
        # Right behind an opening bracket.
        self._may_close = False

    def mend(self) -> tuple[str, int]:
        while True:
            self._at = _end(_SPACE, self._text, self._at)
            if self._at == len(self._text):
                raise IncompleteError(in_text=False)
            char = self._text[self._at]
            if char in "}]" and (self._expected == "after" or self._may_close):
                self._close(char)
                if not self._open:
                    return "".join(self._out), self._at
            elif self._expected == "after":
                self._comma(char)
            elif char == '"':
                if self._expected == "key" and (plain := _PLAIN_FIELDS.match(self._text, self._at)):
                    self._out.append(plain.group())
                    self._at, self._may_close = plain.end(), False
                else:
                    self._string()
            elif self._expected == "key":
                raise BrokenError(self._at)
            elif char in "{[":
                self._bracket(char)
            else:
                self._scalar()

    def _value_is(self, sound: str, at: int) -> None:
        self._out.append(sound)
        self._at = at
        self._expected, self._may_close = "after", False

    def _close(self, char: str) -> None:
        if self._open.pop() != char:
            raise BrokenError(self._at)
        self._value_is(char, self._at + 1)

    def _comma(self, char: str) -> None:
        if char != ",":
            raise BrokenError(self._at)
        self._at = _end(_SPACE, self._text, self._at + 1)
        if self._text[self._at : self._at + 1] == self._open[-1]:
            self._marks.add(TRAILING_COMMA)
        else:
            self._out.append(",")
            self._expected = "key" if self._open[-1] == "}" else "value"

    def _bracket(self, char: str) -> None:
        # A list or an object without an end: events hold no events.
        if self._open and self._fence.behind(self._at) == self._at:
            raise BrokenError(self._at)
        if len(self._open) == MAX_DEPTH:
            self._marks.add(TOO_DEEP)
            self._value_is("null", self._end_of_brackets())
            return
        self._out.append(char)
        self._open.append("}" if char == "{" else "]")
        self._at += 1
        self._expected, self._may_close = "key" if char == "{" else "value", True

    def _end_of_brackets(self) -> int:
        """Where the brackets that open here are closed again."""
        at, depth, fence = self._at, 0, self._fence.behind(self._at)
        while found := _BRACKET_OR_QUOTE.search(self._text, at):
            if found.start() > fence:
                raise BrokenError(fence)
            at = found.end()
            char = found.group()
            if char == '"':
                at = next((mark.end() for mark in _QUOTE.finditer(self._text, at) if mark.group() == '"'), at)
            else:
                depth += 1 if char in "{[" else -1
                if not depth:
                    return at
        raise IncompleteError(in_text=False)

    def _scalar(self) -> None:
        if found := _SCALAR.match(self._text, self._at):
            self._value_is(found.group(), found.end())
        elif found := _NO_NUMBER.match(self._text, self._at):
            self._marks.add(NOT_FINITE)
            self._value_is("null", found.end())
        elif len(self._open) > 1 and (found := _LONG_NUMBER.match(self._text, self._at)):
            # An argument: no reader of arguments has a use for it, the quick one does not even look at it.
            self._value_is("null", found.end())
        elif self._out[-2:-1] in _TIMES and (found := _LONG_NUMBER.match(self._text, self._at)):
            # The quick reader takes it for a number, which no time is.
            self._value_is(_BEYOND_TIME, found.end())
        elif _CUT_SCALAR.match(self._text, self._at):
            raise IncompleteError(in_text=False)
        else:
            raise BrokenError(self._at)

    def _string(self) -> None:
        is_key = self._expected == "key"
        begin = self._at + 1
        end, at = self._end_of_string(begin, is_key=is_key)
        self._value_is(_sound(self._text[begin:end], self._marks), at)
        if is_key:
            self._out.append(":")
            self._at = _end(_COLON, self._text, at)
            self._expected = "value"

    def _end_of_string(self, begin: int, *, is_key: bool) -> tuple[int, int]:
        """Where the text that begins here ends, without and with its quotation mark."""
        if is_key:
            ending = _COLON
        elif self._open[-1] == "]":
            ending = _ENDS_IN_LIST
        else:
            ending = _ENDS_IN_EVENT if len(self._open) == 1 else _ENDS_IN_OBJECT
        fence = self._fence.behind(begin)
        counted, balance, inside = begin, 0, False
        for quote in _QUOTE.finditer(self._text, begin):
            start, end = quote.span()
            if start > fence:
                raise BrokenError(fence)
            if quote.group() == '"':
                if self._cautious:
                    balance += _balance(self._text[counted:start])
                    counted = start
                # Brackets of a text without quotation marks inside need not be closed.
                if not (inside and balance) and ending.match(self._text, end):
                    return start, end
                # Between two fields a comma is missing; it is not guessed.
                if not is_key and _KEY_AT_ONCE.match(self._text, end):
                    raise BrokenError(start)
                inside = True
            elif quote.group() == '\\"' and (_NEXT_KEY if self._cautious or is_key else ending).match(self._text, end):
                # A path that ends with a backslash: behind an escaped mark no sound text goes on like that.
                return end - 1, end
        raise IncompleteError(in_text=True)


def _balance(passage: str) -> int:
    return passage.count("{") + passage.count("[") - passage.count("}") - passage.count("]")


def _sound(raw: str, marks: set[str]) -> str:
    """A JSON string of what stands between quotation marks."""
    # Who leaves one backslash alone leaves all alone: in C:\x\new there is no line break.
    alone = "\\" in raw and any(found.group(1) for found in _BACKSLASH.finditer(raw))

    def mended(found: re.Match[str]) -> str:
        whole: str = found.group()
        pair, half, letter, escape = found.groups()
        if pair or escape or (letter and not alone):
            return whole
        if half:
            marks.add(LONE_SURROGATE)
            return "\\ufffd"
        if whole == '"':
            marks.add(STRAY_QUOTE)
            return '\\"'
        if whole.startswith("\\"):
            marks.add(STRAY_BACKSLASH)
            return "\\" + whole
        marks.add(CONTROL_CHARACTER)
        return f"\\u{ord(whole):04x}"

    return f'"{_ESCAPE.sub(mended, raw)}"'


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
