"""The table of named parts of an engine's work, as its program marked them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spyreprof.recording import layout, schema
from spyreprof.recording.rows import PhaseRow
from spyreprof.recording.shards import find_shards, read_rows
from spyreprof.recording.tables import frame

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.recording.source import Source

BACKWARD_PHASES = "backward_phases"

# Names that say nothing of whose program it is. Any other name is a number in a report.
PUBLIC_NAMES = {
    "admit", "attention", "batch", "broadcast", "build", "cache", "collate", "communicate", "copy", "decode",
    "detokenize", "dispatch", "draft", "embed", "encode", "evict", "execute", "forward", "gather", "generate",
    "launch", "logits", "model", "pad", "plan", "postprocess", "prefill", "prepare", "preprocess", "process",
    "receive", "sample", "schedule", "scheduler", "scatter", "send", "speculate", "stream", "synchronize", "tokenize",
    "transfer", "update", "verify", "wait",
}  # fmt: skip


def read_phases(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The table of named parts, ordered by start. Rows that end before they begin are dropped and counted."""
    rows: list[tuple[int, int, str, str]] = []
    for shard in find_shards(source, layout.KIND_PHASES):
        for row in read_rows(source, shard.name, PhaseRow, counts):
            if row.t1 < row.t0:
                counts[BACKWARD_PHASES] += 1
            else:
                rows.append((row.t0, row.t1, shard.writer, row.n))
    rows.sort()
    columns = {column.name: [row[place] for row in rows] for place, column in enumerate(schema.PHASES)}
    return frame(schema.PHASES, columns)


def public_phases(table: pd.DataFrame) -> pd.DataFrame:
    """The same table with names fit for a report: those of `PUBLIC_NAMES`, and "part 1", "part 2" for the others."""
    foreign = sorted(set(table["name"]) - PUBLIC_NAMES)
    numbers = {name: f"part {number}" for number, name in enumerate(foreign, start=1)}
    named: pd.DataFrame = table.assign(name=table["name"].map(lambda name: numbers.get(name, name)).astype("string"))
    return named
