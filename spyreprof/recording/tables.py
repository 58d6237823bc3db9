"""Builds the step and usage tables from their shards, with exactly the columns of `schema.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pandas as pd

from spyreprof.recording import layout, schema
from spyreprof.recording.rows import CollectiveRow, StepRow, SystemRow, UsageRow
from spyreprof.recording.shards import find_shards, read_mixed_rows, read_rows
from spyreprof.trace.annotations import StepWork, parse_step_name, step_source

if TYPE_CHECKING:
    from spyreprof.recording.processes import ProcessFacts
    from spyreprof.recording.source import Source

DUPLICATE_STEPS = "duplicate_steps"
UNKNOWN_STEP_NAMES = "unknown_step_names"
BACKWARD_STEPS = "backward_steps"
BACKWARD_COLLECTIVES = "backward_collectives"
STEAL_PERMILLE = "steal_permille"

# Rows of processes do not name their kind.
_USAGE_ROWS = {"": UsageRow, "system": SystemRow}

_parse = lru_cache(maxsize=4096)(parse_step_name)


def frame(columns: tuple[schema.Column, ...], values: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Make a table with the declared columns and dtypes; a column without values is all-missing."""
    length = max((len(column) for column in values.values()), default=0)
    table: pd.DataFrame = pd.DataFrame(
        {column.name: pd.Series(values.get(column.name, [None] * length), dtype=column.dtype) for column in columns}
    )
    return table


def read_steps(source: Source, processes: Mapping[str, ProcessFacts], counts: Counter[str]) -> pd.DataFrame:
    """The step table, ordered by start. Rows that cannot be steps are dropped and counted."""
    rows: list[tuple[int, int, str, StepWork, int, bool, str]] = []
    for shard in find_shards(source, layout.KIND_STEPS):
        seen: set[int] = set()
        for row in read_rows(source, shard.name, StepRow, counts):
            work = _parse(row.n)
            if work is None:
                counts[UNKNOWN_STEP_NAMES] += 1
            elif row.t0 in seen:
                counts[DUPLICATE_STEPS] += 1
            elif row.t1 < row.t0:
                counts[BACKWARD_STEPS] += 1
            else:
                seen.add(row.t0)
                rows.append((row.t0, row.t1, shard.writer, work, row.c, bool(row.p), step_source(row.n)))
    rows.sort(key=lambda row: (row[0], row[1], row[2]))
    works = [row[3] for row in rows]
    return frame(
        schema.STEPS,
        {
            "start_ns": [row[0] for row in rows],
            "end_ns": [row[1] for row in rows],
            "writer": [row[2] for row in rows],
            "rank": [_rank(processes.get(row[2])) for row in rows],
            "source": [row[6] for row in rows],
            **{field: [getattr(work, field) for work in works] for field in StepWork._fields},
            "compiles": [row[4] for row in rows],
            "profiled": [row[5] for row in rows],
        },
    )


def _rank(process: ProcessFacts | None) -> int | None:
    return process.distributed.rank if process is not None and process.distributed is not None else None


def read_collectives(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The table of collective calls, ordered by launch. Rows that cannot be calls are dropped and counted."""
    rows: list[tuple[str, CollectiveRow]] = []
    for shard in find_shards(source, layout.KIND_COLLECTIVES):
        for row in read_rows(source, shard.name, CollectiveRow, counts):
            launch_ns = row.t0 if row.tl is None else row.tl
            if launch_ns is None or (row.t0 is None) != (row.t1 is None) or (row.t1 or 0) < (row.t0 or 0):
                counts[BACKWARD_COLLECTIVES] += 1
            else:
                row.tl = launch_ns
                rows.append((shard.writer, row))
    rows.sort(key=lambda row: (row[1].tl or 0, row[0]))
    return frame(
        schema.COLLECTIVES,
        {
            "launch_ns": [row.tl for _, row in rows],
            "start_ns": [row.t0 for _, row in rows],
            "end_ns": [row.t1 for _, row in rows],
            "writer": [writer for writer, _ in rows],
            **{field: [getattr(row, field) for _, row in rows] for field in _COLLECTIVE_FIELDS},
        },
    )


_COLLECTIVE_FIELDS = ("op", "bytes", "group", "size", "rank", "seq", "peer", "blocking")


def read_usage(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The usage table, ordered by time: one row per sample of a process, and of each of its busiest threads.

    The share of time that the hypervisor took away goes into `counts` under `STEAL_PERMILLE`.
    """
    time_ns: list[int] = []
    pid: list[int] = []
    tid: list[int | None] = []
    cpu_ns: list[int] = []
    rss_bytes: list[int | None] = []
    system: list[SystemRow] = []
    for shard in find_shards(source, layout.KIND_USAGE):
        for row in read_mixed_rows(source, shard.name, _USAGE_ROWS, counts):
            if isinstance(row, SystemRow):
                system.append(row)
            else:
                threads = [(thread, cpu, None) for thread, _name, cpu in row.threads]
                for thread, cpu, rss in [(None, row.cpu_ns, row.rss_bytes), *threads]:
                    time_ns.append(row.t)
                    pid.append(row.pid)
                    tid.append(thread)
                    cpu_ns.append(cpu)
                    rss_bytes.append(rss)
    steal = _steal_ratio(system)
    if steal is not None:
        counts[STEAL_PERMILLE] = round(steal * 1000)
    table = frame(
        schema.USAGE,
        {"time_ns": time_ns, "pid": pid, "tid": tid, "cpu_ns": cpu_ns, "rss_bytes": rss_bytes},
    )
    ordered: pd.DataFrame = table.sort_values("time_ns", kind="stable", ignore_index=True)
    return ordered


def _steal_ratio(system: list[SystemRow]) -> float | None:
    known = sorted(
        (row.t, row.steal_ns, row.cpu_total_ns)
        for row in system
        if row.steal_ns is not None and row.cpu_total_ns is not None
    )
    if len(known) < 2 or known[-1][2] <= known[0][2]:
        return None
    return max(0.0, (known[-1][1] - known[0][1]) / (known[-1][2] - known[0][2]))
