"""Builds the table of Python stacks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd

from spyreprof.recording import layout, schema
from spyreprof.recording.rows import StacksRow
from spyreprof.recording.shards import find_shards, read_rows
from spyreprof.recording.tables import frame as table_of
from spyreprof.recording.waiting import is_waiting

if TYPE_CHECKING:
    from spyreprof.recording.source import Source

_LARGEST = 2**63 - 1


def read_stacks(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The stacks table, ordered by window."""
    rows: list[tuple[object, ...]] = []
    for shard in find_shards(source, layout.KIND_STACKS):
        for row in read_rows(source, shard.name, StacksRow, counts):
            if row.t1 >= row.t0:
                rows.extend(_rows_of(row))
    rows.sort(key=lambda row: (row[0], row[2]))
    names = [column.name for column in schema.STACKS]
    return table_of(schema.STACKS, {name: [row[i] for row in rows] for i, name in enumerate(names)})


def number_frames(table: pd.DataFrame) -> tuple[pd.DataFrame, tuple[tuple[str, str], ...]]:
    """Replace function and file by one number, the most frequent first.

    Returns:
        The table with `frame` (Int64, NA where there is none), and (function, file) by number.
    """
    known = table[table["function"].notna()]
    totals = known.groupby(["function", "file"], sort=True)["count"].sum().sort_values(ascending=False, kind="stable")
    frames = tuple((str(function), str(file)) for function, file in totals.index)
    numbers = {frame: number for number, frame in enumerate(frames)}
    pairs = zip(table["function"], table["file"], strict=True)
    found = [numbers.get((function, file)) if function is not pd.NA else None for function, file in pairs]
    return table.drop(columns=["function", "file"]).assign(frame=pd.array(found, dtype="Int64")), frames


def _rows_of(row: StacksRow) -> list[tuple[object, ...]]:
    start = (row.t0, row.t1, row.pid)
    window = (row.samples, row.rate_hz, row.sleeping)
    seen: Counter[tuple[str, tuple[str, str]]] = Counter()
    for thread in row.threads:
        for numbers, count in thread.stacks:
            if numbers and numbers[-1] < len(row.frames):
                seen[thread.thread, row.frames[numbers[-1]]] += count
    if not seen:
        return [(*start, None, *window, None, row.complete, None, None, None, 0)]
    return [
        (*start, thread, *window, thread.isdigit(), row.complete, *frame, is_waiting(*frame), min(count, _LARGEST))
        for (thread, frame), count in seen.items()
    ]
