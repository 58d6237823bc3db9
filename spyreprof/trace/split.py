"""Where a large trace can be divided between two processes."""

from __future__ import annotations

import re
from typing import IO

_LOOK_BYTES = 2**20
# An event ends, and one begins with its type or name. Whether it really is a place between two events only decoding all
# that stands before it can tell.
_PLACE = re.compile(rb'\n?\s*\}\s*,\s*(?=\{\s*"(?:ph|name)"\s*:)')
_GZIP = b"\x1f\x8b"
_ASCII_BEGIN = re.compile(rb"[\s\xef\xbb\xbf]*[\[{]")


def find_place(stream: IO[bytes], size_bytes: int) -> int | None:
    """A byte near the middle where an event seems to begin; None without one, and for text that is no plain UTF-8."""
    stream.seek(0)
    head = stream.read(4)
    if head.startswith(_GZIP) or b"\0" in head or not _ASCII_BEGIN.match(head):
        return None
    middle = size_bytes // 2
    stream.seek(middle)
    match = _PLACE.search(stream.read(_LOOK_BYTES))
    return middle + match.end() if match else None


def is_array(stream: IO[bytes]) -> bool:
    """Whether the file is a bare list."""
    stream.seek(0)
    begin = stream.read(_LOOK_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    return begin.startswith(b"[")
