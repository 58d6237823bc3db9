"""The text of a trace file, read forward in pieces: plain or gzipped by content, in any Unicode encoding."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from spyreprof.errors import UserError

_GZIP = b"\x1f\x8b"
_COMPRESSED_BYTES = 2**18
# Traces compress 10- to 50-fold; DEFLATE reaches 1032-fold on input that was made to fill memory or time.
_MOST_EXPANDED = 300
_FREE_BYTES = 2**28

# By what the first bytes of a file are, longest first; a file without a mark begins with an ASCII character.
_MARKS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
# Without a mark, by which of the first four bytes are zero.
_UNMARKED = {"x000": "utf-32-le", "000x": "utf-32-be", "x0x0": "utf-16-le", "0x0x": "utf-16-be"}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Text(Protocol):
    """Text in UTF-8 that is read once, forward.

    Attributes:
        truncated: the compressed stream broke off; known when all has been read.
        replaced: code units that stood for no character and were replaced, where the text was in another encoding.
    """

    @property
    def truncated(self) -> bool: ...  # noqa: D102 - the class says it

    @property
    def replaced(self) -> int: ...  # noqa: D102

    def read(self, size: int) -> bytes:
        """About `size` bytes of text; empty only at the end."""


class Readable(Protocol):
    """Bytes that are read forward."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty only at the end."""


def open_text(stream: Readable, label: str, *, stop: int | None = None) -> Text:
    """Find out how the text of `stream` is stored and read it from there.

    Args:
        stream: at the place where the text begins; need not be seekable.
        label: what sentences call it.
        stop: bytes of a plain file after which to stop, relative to where the stream stands; None for its end.
    """
    head = _read_full(stream, 4)
    if stop is not None:
        return _Plain(stream, head, stop)
    if head.startswith(_GZIP):
        text: Text = _Inflated(stream, head, label)
        head = text.read(4)
    else:
        text = _Plain(stream, head[:0], None)
    mark, encoding = _encoding(head)
    text = _Prefixed(head[len(mark) :], text)
    return text if encoding is None else _Recoded(text, encoding)


def _read_full(stream: Readable, size: int) -> bytes:
    pieces = []
    while size and (piece := stream.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _encoding(head: bytes) -> tuple[bytes, str | None]:
    """The mark that the text begins with, and its encoding where that is not UTF-8."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return mark, None if encoding == "utf-8" else encoding
    return b"", _UNMARKED.get("".join("0" if byte == 0 else "x" for byte in head))


class _Plain:
    truncated = False
    replaced = 0

    def __init__(self, stream: Readable, head: bytes, stop: int | None) -> None:
        self._stream, self._head = stream, head
        self._left = stop

    def read(self, size: int) -> bytes:
        if self._head:
            piece, self._head = self._head, b""
        else:
            piece = self._stream.read(size if self._left is None else min(size, self._left))
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        return piece


class _Prefixed:
    """A text of which the first bytes were looked at already."""

    def __init__(self, head: bytes, rest: Text) -> None:
        self._head, self._rest = head, rest

    @property
    def truncated(self) -> bool:
        return self._rest.truncated

    @property
    def replaced(self) -> int:
        return self._rest.replaced

    def read(self, size: int) -> bytes:
        head, self._head = self._head, b""
        return head + self._rest.read(size) if head else self._rest.read(size)


class _Inflated:
    """The content of a gzip file; its members may be concatenated."""

    replaced = 0

    def __init__(self, stream: Readable, head: bytes, label: str) -> None:
        self.truncated = False
        self._inflate, self._errors = _inflater()
        self._member = self._inflate()
        self._stream, self._label = stream, label
        self._input = head
        self._read_bytes, self._written_bytes = len(head), 0
        self._ended = False

    def read(self, size: int) -> bytes:
        while not self._ended:
            if self._member.eof:
                self._next_member()
                continue
            if not self._input:
                self._input = self._fill()
            # Without input too: isal may have taken all of it in and hold back what it gives.
            try:
                piece: bytes = self._member.decompress(self._input, size)
            except self._errors:
                self.truncated = self._ended = True
                break
            if not piece and not self._input and not self._member.eof:
                self.truncated = self._ended = True
                break
            self._input = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if piece:
                self._written_bytes += len(piece)
                self._check_ratio()
                return piece
        return b""

    def _fill(self) -> bytes:
        piece = self._stream.read(_COMPRESSED_BYTES)
        self._read_bytes += len(piece)
        return piece

    def _next_member(self) -> None:
        rest = self._input
        while len(rest) < len(_GZIP) and (more := self._fill()):
            rest += more
        if rest.startswith(_GZIP):
            self._member, self._input = self._inflate(), rest
        else:
            # Padding, or whatever a tape or a tool left behind the last member.
            self._ended = True

    def _check_ratio(self) -> None:
        if self._written_bytes > max(_FREE_BYTES, _MOST_EXPANDED * self._read_bytes):
            raise UserError(
                f"{self._label} expands more than {_MOST_EXPANDED}-fold, which no trace does.",
                "Decompress it first if it is one.",
            )


def _inflater() -> tuple[Callable[[], Any], Any]:
    try:
        from isal import isal_zlib
    except ImportError:
        return (lambda: zlib.decompressobj(wbits=31)), (zlib.error,)
    return (lambda: isal_zlib.decompressobj(wbits=31)), (zlib.error, isal_zlib.error)


class _Recoded:
    """A text of another encoding, as UTF-8."""

    def __init__(self, raw: Text, encoding: str) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ended = False
        self.replaced = 0

    @property
    def truncated(self) -> bool:
        return self._raw.truncated

    def read(self, size: int) -> bytes:
        while not self._ended:
            piece = self._raw.read(size)
            self._ended = not piece
            text = self._decoder.decode(piece, final=not piece)
            if text:
                self.replaced += text.count(_REPLACEMENT)
                return text.encode("utf-8", errors="replace")
        return b""
