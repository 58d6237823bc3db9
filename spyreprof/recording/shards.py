"""Reads shards line by line, in bounded memory, and counts what it could not use.

A process may be killed at any byte, a disk may fill up: a bad line costs itself and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple, TypeVar

import msgspec

from spyreprof.recording import layout
from spyreprof.recording.source import READ_ERRORS, Source

Row = TypeVar("Row")

# A whole /metrics page is one row; the largest seen are a few megabytes.
MAX_LINE_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20

# Keys of the counts that readers keep.
CUT_LINES = "cut_lines"
UNREADABLE_ROWS = "unreadable_rows"
UNKNOWN_ROWS = "unknown_rows"
UNREADABLE_FILES = "unreadable_files"
OVERLONG_LINES = "overlong_lines"


class Shard(NamedTuple):
    """A shard file and what its name says."""

    name: str
    kind: str
    writer: str


def find_shards(source: Source, kind: str) -> list[Shard]:
    """The shards of one kind, in order of their names."""
    return [shard for shard in all_shards(source) if shard.kind == kind]


def all_shards(source: Source) -> list[Shard]:
    """Every file of the shards folder whose name is `<kind>-<writer>.jsonl`."""
    found = []
    for name in source.names():
        folder, _, file = name.rpartition("/")
        kind, dash, writer = file.removesuffix(".jsonl").partition("-")
        if folder == layout.SHARDS and file.endswith(".jsonl") and dash and kind and writer:
            found.append(Shard(name, kind, writer))
    return found


def read_lines(source: Source, name: str, counts: Counter[str]) -> Iterator[tuple[bytes, bool]]:
    """Yield (line, whole). `whole` is False for a last line without its newline."""
    try:
        with source.open(name) as file:
            yield from _split(file, counts)
    except READ_ERRORS:
        counts[UNREADABLE_FILES] += 1


def _split(file: IO[bytes], counts: Counter[str]) -> Iterator[tuple[bytes, bool]]:
    rest = b""
    skipping = False
    while chunk := file.read(_CHUNK_BYTES):
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            if skipping:
                skipping = False
            elif line := rest + piece:
                yield line, True
            rest = b""
        if not skipping:
            rest += pieces[-1]
            if len(rest) > MAX_LINE_BYTES:
                counts[OVERLONG_LINES] += 1
                rest, skipping = b"", True
    if rest:
        yield rest, False


def read_rows(source: Source, name: str, row_type: type[Row], counts: Counter[str]) -> Iterator[Row]:
    """Yield the typed rows of a shard that holds one kind of row. Bad lines are counted in `counts`."""
    decode = msgspec.json.Decoder(row_type).decode
    for line, whole in read_lines(source, name, counts):
        try:
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            counts[UNREADABLE_ROWS if whole else CUT_LINES] += 1


def read_mixed_rows(source: Source, name: str, row_types: Mapping[str, Any], counts: Counter[str]) -> Iterator[Any]:
    """Yield the rows of a shard whose rows name their kind in `k`, typed by kind. Unknown kinds are counted."""
    kind_of = msgspec.json.Decoder(_Kind).decode
    decoders = {kind: msgspec.json.Decoder(row_type).decode for kind, row_type in row_types.items()}
    for line, whole in read_lines(source, name, counts):
        try:
            decode = decoders.get(kind_of(line).k)
            if decode is None:
                counts[UNKNOWN_ROWS] += 1
                continue
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            counts[UNREADABLE_ROWS if whole else CUT_LINES] += 1


class _Kind(msgspec.Struct):
    k: str = ""
