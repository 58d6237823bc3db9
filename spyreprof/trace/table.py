"""Trace events as columns: what every analysis of a trace starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spyreprof.trace.quality import TraceQuality as TraceQuality  # noqa: PLC0414  part of a table

# Stands in code columns for an absent value, in id columns for an absent id, in `dur_ns` for no duration.
MISSING = -1
# Ids that are no int64 stand in id columns as OTHER_ID, OTHER_ID - 1, ... and are found in `id_values`.
OTHER_ID = -(2**62)

Identity = int | str
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TraceMetadata:
    """What the trace says about itself beside its events. None where it says nothing.

    Attributes:
        base_time_ns: `baseTimeNanoseconds`, already added to every time of the table; 0 without one.
        devices: entries of `deviceProperties`; `has_device_properties` tells an empty list from none.
        labels: `process_labels` by process, such as "CPU" or "GPU 0".
        other: further top-level fields with a plain value, such as "traceName" or "vllm_version".
    """

    schema_version: int | None = None
    base_time_ns: int = 0
    distributed: dict[str, Any] | None = None
    has_device_properties: bool = False
    devices: tuple[dict[str, Any], ...] = ()
    process_names: dict[Identity, str] = field(default_factory=dict)
    thread_names: dict[tuple[Identity, Identity], str] = field(default_factory=dict)
    labels: dict[Identity, str] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CounterSamples:
    """Values of counter events (`ph` C): one entry for each number of each event; arrays have shape (m,).

    Attributes:
        row: index of the event in its table.
        series_code: into `series_values`: the key of the number in the event's args.
    """

    row: Integers
    series_code: Codes
    value: npt.NDArray[np.float64]
    series_values: tuple[str, ...]


@dataclass(frozen=True)
class EventTable:
    """The events of one trace, by track (process and thread), start, and longer before shorter; shape (n,) each.

    Columns named `*_code` index the tuple of values beside them; `MISSING` where the event has no such field.

    Attributes:
        ts_ns: start, absolute nanoseconds since the epoch (`baseTimeNanoseconds` + `ts`), exact.
        dur_ns: duration; `MISSING` where there is none.
        row: place of the event in the file's list, counted from 0 over all its elements.
        correlation, external_id: `args.correlation` and `args.External id`; `MISSING` where absent.
        flow_id: the event's own `id` (flows and asynchronous events); `MISSING` where absent.
        dims_code: into `dims_values`, the JSON text of `args["Input Dims"]`.
        types_code: into `types_values`, the JSON text of `args["Input type"]`.
        args: further columns by name, only those that some event has: see `columns.ARG_COLUMNS`. Texts are codes into
            `text_values`. Read them with `arg`, which gives int64 however they are held.
        id_values: ids that are no int64; see `OTHER_ID`.
    """

    ts_ns: Integers
    dur_ns: Integers
    ph_code: Codes
    cat_code: Codes
    name_code: Codes
    pid_code: Codes
    tid_code: Codes
    correlation: Integers
    external_id: Integers
    dims_code: Codes
    types_code: Codes
    ph_values: tuple[str, ...]
    cat_values: tuple[str, ...]
    name_values: tuple[str, ...]
    pid_values: tuple[Identity, ...]
    tid_values: tuple[Identity, ...]
    dims_values: tuple[str, ...]
    types_values: tuple[str, ...]
    quality: TraceQuality
    metadata: TraceMetadata
    row: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    flow_id: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    args: Mapping[str, Integers | Codes] = field(default_factory=dict)
    text_values: tuple[str, ...] = ()
    id_values: tuple[Identity, ...] = ()
    counters: CounterSamples | None = None

    def __len__(self) -> int:
        return len(self.ts_ns)

    def arg(self, name: str) -> Integers:
        """A column of `args`; all `MISSING` where no event has it. Shape (n,)."""
        found = self.args.get(name)
        return found.astype(np.int64, copy=False) if found is not None else np.full(len(self), MISSING, np.int64)

    def has_category(self, *categories: str) -> Flags:
        """Which events are of one of the categories; shape (n,)."""
        return np.isin(self.cat_code, _codes(self.cat_values, categories))

    def has_phase(self, *phases: str) -> Flags:
        """Which events are of one of the event types (`ph`); shape (n,)."""
        return np.isin(self.ph_code, _codes(self.ph_values, phases))

    def tracks(self) -> Integers:
        """One number per (process, thread); shape (n,)."""
        return (self.pid_code.astype(np.int64) + 1) * (len(self.tid_values) + 1) + self.tid_code + 1

    def identity(self, value: int) -> Identity | None:
        """What an entry of an id column stands for: a number, a text, or None where absent."""
        if value == MISSING:
            return None
        return self.id_values[OTHER_ID - value] if value <= OTHER_ID else value

    def name(self, index: int) -> str:
        """The name of one event; empty when it has none."""
        code = int(self.name_code[index])
        return self.name_values[code] if code != MISSING else ""

    def text(self, code: int) -> str | None:
        """A text of `args` by its code."""
        return self.text_values[code] if code != MISSING else None


def _codes(values: tuple[str, ...], wanted: tuple[str, ...]) -> list[int]:
    return [code for code, value in enumerate(values) if value in wanted]
