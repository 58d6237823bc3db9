"""Shards: append-only JSON lines, one row per line, whole rows per write."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors.folder import FILE_MODE

LAUNCHER = "launcher"
# A process shard holds a few hundred rows; a larger one is not ours to read whole.
_MAX_SHARD_BYTES = 64_000_000


class ShardWriter:
    """Appends rows to one shard of the launcher; a full disk stops the shard, not the recorder."""

    def __init__(self, recording: Path, kind: str) -> None:
        self.path = recording / layout.SHARDS / f"{kind}-{LAUNCHER}.jsonl"
        self.rows = 0
        self.fault: str | None = None
        self._descriptor: int | None = None

    def write(self, *rows: Mapping[str, object]) -> None:
        """Append rows in one write, so that a kill cuts at most the last line."""
        if self.fault is not None or not rows:
            return
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, FILE_MODE)
            data = text.encode("utf-8")
            if os.write(self._descriptor, data) != len(data):
                # The next row would be glued to a cut one.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.fault = f"writing {self.path.name} failed: {error.strerror or error}"
            return
        self.rows += len(rows)

    def close(self) -> None:
        """Close the file; rows written later are dropped."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self.fault = self.fault or "closed"


class ShardTail:
    """Reads the whole lines that were added to a shard since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield new rows; a last line that is not finished is left for the next look."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_SHARD_BYTES)
        except OSError:
            return
        end = data.rfind(b"\n") + 1
        self._offset += end
        yield from _parse(data[:end])


def shard_paths(recording: Path, kind: str) -> list[tuple[str, Path]]:
    """List (writer, path) of one kind of shard, ordered by name."""
    prefix, suffix = f"{kind}-", ".jsonl"
    folder = recording / layout.SHARDS
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    return [
        (name[len(prefix) : -len(suffix)], folder / name)
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    ]


def read_rows(path: Path) -> list[dict[str, object]]:
    """Read a whole shard; a cut or broken line is left out."""
    return list(ShardTail(path).rows())


def count_rows(path: Path) -> int:
    """Count the whole lines of a shard without decoding them."""
    total = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                total += chunk.count(b"\n")
    except OSError:
        return total
    return total


def _parse(data: bytes) -> Iterator[dict[str, object]]:
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
