"""What `spyreprof.load` gives to a notebook: the tables of a recording as the analyzers see them, and their columns.

Names of files, functions and hosts stand in these tables as they are. Unlike a report, they are not redacted.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from spyreprof.errors import UserError
from spyreprof.inputs import STACKS, InputKind, identify, not_read
from spyreprof.recording import schema
from spyreprof.recording.import_cache import Entry, entry_for
from spyreprof.recording.store import Recording, open_recording

if TYPE_CHECKING:
    from spyreprof.recording.manifest import Manifest

# Each is an attribute of `Tables`, with the columns that it has.
TABLES: dict[str, tuple[schema.Column, ...]] = {
    "steps": schema.STEPS,
    "requests": schema.REQUESTS,
    "counters": schema.COUNTERS,
    "polls": schema.POLLS,
    "usage": schema.USAGE,
    "collectives": schema.COLLECTIVES,
    "phases": schema.PHASES,
    "stacks": schema.STACKS,
}
_RECORDED = (InputKind.RECORDING, InputKind.PACKED_RECORDING)
# By how a name ends; every other number is what its meaning says.
_UNITS = {
    "_ns": "ns",
    "_hz": "Hz",
    "bytes": "bytes",
    "_tokens": "tokens",
    "_seq_len_sum": "tokens",
    "_q_k_sum": "token pairs",
    "_requests": "requests",
}


class Tables:
    """The tables of one recording, each built when first asked for.

    All are pandas DataFrames with the columns that `columns` describes. Times are CLOCK_MONOTONIC nanoseconds. What
    could not be captured is missing (pandas NA), never 0; a table of what was not captured at all has no rows. The
    step and request analyzers are given these same tables.
    """

    def __init__(self, recording: Recording, kept: Entry | None = None) -> None:
        self._recording = recording
        # A recording made of a trace may lie in a temporary folder that goes when this goes.
        self._kept = kept

    @property
    def steps(self) -> pd.DataFrame:
        """Engine steps by start."""
        return self._recording.steps

    @property
    def requests(self) -> pd.DataFrame:
        """Requests by arrival; one that two sources saw has two rows, told apart by `source`."""
        return self._recording.requests

    @property
    def counters(self) -> pd.DataFrame:
        """Samples of polled /metrics pages by time; one that has not changed since the poll before has no row."""
        return self._recording.counters

    @property
    def polls(self) -> pd.DataFrame:
        """Polls of /metrics pages by time, those without an answer among them."""
        return self._recording.polls

    @property
    def usage(self) -> pd.DataFrame:
        """Processor time and memory of processes and of their busiest threads by time."""
        return self._recording.usage

    @property
    def collectives(self) -> pd.DataFrame:
        """Calls of collectives, sends and receives by launch."""
        return self._recording.collectives

    @property
    def phases(self) -> pd.DataFrame:
        """Named parts of the engine's own work by start."""
        return self._recording.phases

    @property
    def stacks(self) -> pd.DataFrame:
        """Innermost Python frames by window of py-spy."""
        return self._recording.stacks

    @property
    def manifest(self) -> Manifest:
        """What was run, on which machine, and how it ended."""
        return self._recording.manifest

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing or damaged, in sentences; empty where nothing is. Reads the whole recording."""
        return tuple(self._recording.quality.notes)

    @cached_property
    def columns(self) -> pd.DataFrame:
        """What each column of each table means: `table`, `column`, `dtype`, `unit`, `origin` and `meaning`.

        The origin is that of the values: measured, or derived from what was.
        """
        described: pd.DataFrame = pd.DataFrame(
            [
                (table, column.name, column.dtype, unit_of(column), column.origin, column.meaning)
                for table, columns in TABLES.items()
                for column in columns
            ],
            columns=["table", "column", "dtype", "unit", "origin", "meaning"],
        )
        return described

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(getattr(self, name)):,}" for name in TABLES)
        return f"<spyreprof recording: rows of {sizes}>"


def unit_of(column: schema.Column) -> str:
    """The unit of a column, which its name ends with; empty for texts and for plain numbers."""
    return next((unit for ending, unit in _UNITS.items() if column.name.endswith(ending)), "")


def load_tables(path: str | os.PathLike[str], run: int | None = None) -> Tables:
    """Open a recording, or make one of a trace that was not recorded by spyreprof.

    Args:
        path: a recording (folder or packed), or a trace of torch.profiler.
        run: of a repeated recording the run to open, counted from 1.

    Raises:
        UserError: it holds no tables, cannot be read, or several runs and none was named.
        TypeError: it is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"load takes the path of a recording as text or pathlib.Path, not {type(path).__name__}")
    if not os.fspath(path):
        raise UserError("The path is empty.", "Name the folder that `spyreprof record` made, or a trace.")
    kind = identify(path)
    if kind in _RECORDED:
        return Tables(open_recording(path, run))
    if kind is InputKind.REPORT:
        raise UserError(f"{path} is a report: its tables stayed in the recording.", "Load the recording.")
    if kind in STACKS:
        raise UserError(
            f"{path} is {kind.value}: call stacks have no tables.",
            "Read it with `spyreprof report`, or load a recording.",
        )
    if kind is not InputKind.TRACE:
        raise not_read(path, kind)
    if run is not None:
        raise UserError(f"{path} is a trace, which holds no numbered runs.", "Leave the number of the run out.")
    from spyreprof.recording.imported import import_files

    trace = Path(path)
    entry = entry_for([trace])
    if not entry.complete:
        entry.fill(lambda folder: import_files([trace], folder))
    return Tables(open_recording(entry.path), entry)
