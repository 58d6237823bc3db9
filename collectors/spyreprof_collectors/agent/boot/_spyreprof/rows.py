"""One row as one line of JSON, without the json module: start-up of every child process pays for imports."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def encode(row: dict[str, object]) -> str:
    """Write a row of str, int, float, bool, None, lists and dicts as JSON, in ASCII, without a line end.

    Raises:
        TypeError: a value of another type.
    """
    return _encode(row)


def encode_step(row: tuple[int, int, str, int, bool]) -> str:
    """Write a step row: start and end in ns, a name that needs no escaping, compilations, window open."""
    start_ns, end_ns, name, compiles, profiled = row
    tail = f',"c":{compiles}' if compiles else ""
    if profiled:
        tail += ',"p":1'
    return f'{{"t0":{start_ns},"t1":{end_ns},"n":"{name}"{tail}}}'


def encode_collective(row: list[Any]) -> str:
    """Write a row of `collectives.py`, whose operation is a word of ours."""
    start_ns, end_ns, name, moved, group, size, rank, seq, blocking, launched_ns, peer, of_two = row
    text = (
        f'{{"t0":{_encode(start_ns)},"t1":{_encode(end_ns)},"op":"{name}","bytes":{_encode(moved)},"group":{group},'
        f'"size":{size},"rank":{rank},"seq":{seq},"blocking":{_encode(blocking)}'
    )
    if launched_ns is not None:
        text += f',"tl":{launched_ns}'
    if of_two:
        text += f',"peer":{_encode(peer)}'
    return text + "}"


def _encode(value: object) -> str:
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        # NaN and infinities have no JSON form, and a number that is none is a missing one.
        return float.__repr__(value) if value - value == 0.0 else "null"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quote(str(key))}:{_encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_encode, value)) + "]"
    raise TypeError(type(value).__name__)


def _quote(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if 0x20 <= code < 0x7F:
        return character
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
