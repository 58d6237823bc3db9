"""Keeps built tables as Parquet beside the shards, so that a second look at a recording is quick.

A cache is a convenience: where it cannot be written or is damaged, the table is built from the shards again.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING

import msgspec
import pandas as pd
import pyarrow
import pyarrow.parquet

from spyreprof.recording import layout, schema
from spyreprof.recording.source import FolderSource, Source

if TYPE_CHECKING:
    from pathlib import Path

_METADATA = b"spyreprof"
# Raised whenever a table is built differently from the same shards.
_BUILDER_VERSION = 3

Build = Callable[[Counter[str]], pd.DataFrame]

_NULLABLE = {
    pyarrow.int64(): pd.Int64Dtype(),
    pyarrow.float64(): pd.Float64Dtype(),
    pyarrow.bool_(): pd.BooleanDtype(),
    pyarrow.string(): pd.StringDtype(),
    pyarrow.large_string(): pd.StringDtype(),
}


class _Origin(msgspec.Struct):
    """What a cached table was built from, and what was counted on the way."""

    key: str
    counts: dict[str, int]


def cached_table(
    source: Source, name: str, columns: tuple[schema.Column, ...], inputs: list[str], build: Build
) -> tuple[pd.DataFrame, Counter[str]]:
    """Read table `name` from the cache, or build it from the files `inputs` and cache it.

    Returns:
        The table, and what `build` counted when it ran on the very same inputs.
    """
    path = source.path / layout.TABLES / f"{name}.parquet" if isinstance(source, FolderSource) else None
    if path is None:
        counts: Counter[str] = Counter()
        return build(counts), counts
    # Taken before reading: rows that are appended meanwhile make the key stale, not the table wrong.
    key = _key(source, columns, inputs)
    found = _read(path, key, columns)
    if found is not None:
        return found
    counts = Counter()
    table = build(counts)
    with contextlib.suppress(OSError):
        _write(path, table, _Origin(key=key, counts=dict(counts)))
    return table, counts


def _key(source: Source, columns: tuple[schema.Column, ...], inputs: list[str]) -> str:
    parts = [
        layout.SCHEMA_VERSION,
        _BUILDER_VERSION,
        [astuple(column)[:2] for column in columns],
        [astuple(source.stamp(name)) for name in inputs],
    ]
    return msgspec.json.encode(parts).decode()


def _read(path: Path, key: str, columns: tuple[schema.Column, ...]) -> tuple[pd.DataFrame, Counter[str]] | None:
    # A recording may have been sent by someone else: a link in its place is not followed.
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            origin = msgspec.json.decode(metadata.get(_METADATA, b"null"), type=_Origin)
            if origin.key != key:
                return None
            # Nullable dtypes on the way: plain int64 with a missing value would pass through float64 and
            # lose the last digits of nanoseconds.
            table = file.read().replace_schema_metadata(None).to_pandas(types_mapper=_NULLABLE.get)
        typed = pd.DataFrame({column.name: table[column.name].astype(column.dtype) for column in columns})
    except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException, msgspec.MsgspecError):
        return None
    return typed, Counter(origin.counts)


def _write(path: Path, table: pd.DataFrame, origin: _Origin) -> None:
    if path.parent.is_symlink():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    arrow = pyarrow.Table.from_pandas(table, preserve_index=False)
    arrow = arrow.replace_schema_metadata({_METADATA: msgspec.json.encode(origin)})
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            pyarrow.parquet.write_table(arrow, file, compression="zstd")
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
