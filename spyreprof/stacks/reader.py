"""The one door to stack files: `read(path)` gives their profiles."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from spyreprof.errors import UserError
from spyreprof.stacks.chrome_samples import read_chrome_samples
from spyreprof.stacks.collapsed import read_collapsed
from spyreprof.stacks.profile import StackProfile
from spyreprof.stacks.speedscope import read_speedscope
from spyreprof.trace.text import Text, open_text

if TYPE_CHECKING:
    import os

# A JSON file has to be held as a whole, in some ten times its size.
MAX_JSON_BYTES = 2**28
_PIECE_BYTES = 2**20
_SPACE = b" \t\r\n"


def read(path: str | os.PathLike[str]) -> tuple[StackProfile, ...]:
    """Read a file of stacks, plain or gzipped, in any Unicode encoding, whatever its name.

    Returns:
        Its profiles, of which at least one has samples.

    Raises:
        UserError: it cannot be read, is empty, too large, damaged, or holds no stacks.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            return _read(stream, str(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def read_samples_of_trace(path: str | os.PathLike[str]) -> tuple[StackProfile, ...]:
    """Read the samples that stand beside the events of a Chrome trace, whatever else it holds.

    Raises:
        UserError: as for `read`.
    """
    try:
        with Path(path).open("rb") as stream:
            text = open_text(stream, str(path))
            return read_chrome_samples(_whole(b"", text, str(path)), str(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def read_bytes(data: bytes, label: str) -> tuple[StackProfile, ...]:
    """Read a file of stacks from memory; `label` stands for it in sentences.

    Raises:
        UserError: as for `read`.
    """
    return _read(io.BytesIO(data), label)


def _read(stream: IO[bytes], label: str) -> tuple[StackProfile, ...]:
    text = open_text(stream, label)
    head = b""
    while not head and (piece := text.read(_PIECE_BYTES)):
        head = piece.lstrip(_SPACE)
    if not head:
        raise UserError(f"The stack file {label} is empty.", "Record it again.")
    if not head.startswith(b"{"):
        return (read_collapsed(_Rest(head, text), label),)
    data = _whole(head, text, label)
    return read_chrome_samples(data, label) if _is_trace(data) else read_speedscope(data, label)


def _unreadable(path: str | os.PathLike[str], error: OSError) -> UserError:
    return UserError(
        f"The stack file {path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
    )


class _Keys(msgspec.Struct):
    """The keys that tell the two formats apart: names of events and frames may be any word."""

    frames: msgspec.Raw | None = msgspec.field(name="stackFrames", default=None)
    shared: msgspec.Raw | None = None


def _is_trace(data: bytes) -> bool:
    if b'"stackFrames"' not in data:
        return False
    try:
        keys = msgspec.json.decode(data, type=_Keys)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True  # whichever it is, its reader says what is wrong
    return keys.frames is not None and keys.shared is None


def _whole(head: bytes, text: Text, label: str) -> bytes:
    pieces, total_bytes = [head], len(head)
    while piece := text.read(_PIECE_BYTES):
        pieces.append(piece)
        total_bytes += len(piece)
        if total_bytes > MAX_JSON_BYTES:
            raise UserError(
                f"The stack file {label} holds more than {MAX_JSON_BYTES / 2**20:.0f} MiB of JSON, "
                "too much to read at once.",
                "Record for a shorter time, or write collapsed stacks, which are read line by line.",
            )
    if text.truncated:
        raise UserError(f"The stack file {label} is cut short.", "Copy it again.")
    return b"".join(pieces)


class _Rest:
    """A text of which the beginning was read already."""

    def __init__(self, head: bytes, text: Text) -> None:
        self._head, self._text = head, text

    @property
    def truncated(self) -> bool:
        return self._text.truncated

    @property
    def replaced(self) -> int:
        return self._text.replaced

    def read(self, size: int) -> bytes:
        head, self._head = self._head, b""
        return head or self._text.read(size)
