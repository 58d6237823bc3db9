"""Trace events as columns: what every analysis of a trace starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Stands in code columns for an absent value, in id columns for an absent id, in `dur_ns` for no duration.
MISSING = -1

Identity = int | str


@dataclass(frozen=True)
class TraceQuality:
    """What became of the file's events.

    Attributes:
        events_read: events found in the file.
        events_kept: rows of the table.
        metadata_events: names and sort orders of processes and threads; they become `TraceMetadata`.
        dropped: reason -> number of events left out.
        truncated_at_byte: where reading stopped when the file (or its compressed stream) is cut short.
        zero_duration: complete events that took no time; they are kept.
        negative_duration: complete events that end before they begin; kept without a duration.
        missing_duration: complete events without a duration; kept without one.
        unknown_phases: event type (`ph`) that the trace-event format does not define -> number; they are kept.
        replaced_bytes: bytes that are not UTF-8, shown as a replacement character.
    """

    events_read: int
    events_kept: int
    metadata_events: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    truncated_at_byte: int | None = None
    zero_duration: int = 0
    negative_duration: int = 0
    missing_duration: int = 0
    unknown_phases: dict[str, int] = field(default_factory=dict)
    replaced_bytes: int = 0

    @property
    def truncated(self) -> bool:
        """Whether the file is cut short, so that later events are missing."""
        return self.truncated_at_byte is not None

    def sentences(self) -> tuple[str, ...]:
        """What a reader of the report must know; empty for a clean file."""
        said = []
        if self.truncated_at_byte is not None:
            said.append(
                f"The trace is cut short at byte {self.truncated_at_byte:,}; "
                f"{self.events_kept:,} complete events before it are used."
            )
        said.extend(f"Events of the trace left out, {why}: {n:,}." for why, n in sorted(self.dropped.items()))
        for name, count in (
            ("Events of the trace that end before they begin", self.negative_duration),
            ("Events of the trace without a duration", self.missing_duration),
            ("Events of the trace of a type that its format does not define", sum(self.unknown_phases.values())),
            ("Bytes of the trace that are not UTF-8", self.replaced_bytes),
        ):
            if count:
                said.append(f"{name}: {count:,}.")
        return tuple(said)


@dataclass(frozen=True)
class TraceMetadata:
    """What the trace says about itself beside its events. None where it says nothing."""

    schema_version: int | None = None
    base_time_ns: int = 0
    distributed: dict[str, Any] | None = None
    has_device_properties: bool = False
    process_names: dict[Identity, str] = field(default_factory=dict)
    thread_names: dict[tuple[Identity, Identity], str] = field(default_factory=dict)


@dataclass(frozen=True)
class EventTable:
    """The events of one trace, in the order of the file; all arrays have shape (n,).

    Columns named `*_code` index the tuple of values beside them; `MISSING` where the event has no such field.

    Attributes:
        ts_ns: start, absolute nanoseconds since the epoch (`baseTimeNanoseconds` + `ts`), exact.
        dur_ns: duration; `MISSING` where there is none.
        correlation, external_id: `args.correlation` and `args.External id`; `MISSING` where absent.
        dims_code: into `dims_values`, the JSON text of `args["Input Dims"]`.
        types_code: into `types_values`, the JSON text of `args["Input type"]`.
    """

    ts_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.int64]
    ph_code: npt.NDArray[np.int32]
    cat_code: npt.NDArray[np.int32]
    name_code: npt.NDArray[np.int32]
    pid_code: npt.NDArray[np.int32]
    tid_code: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.int64]
    external_id: npt.NDArray[np.int64]
    dims_code: npt.NDArray[np.int32]
    types_code: npt.NDArray[np.int32]
    ph_values: tuple[str, ...]
    cat_values: tuple[str, ...]
    name_values: tuple[str, ...]
    pid_values: tuple[Identity, ...]
    tid_values: tuple[Identity, ...]
    dims_values: tuple[str, ...]
    types_values: tuple[str, ...]
    quality: TraceQuality
    metadata: TraceMetadata

    def __len__(self) -> int:
        return len(self.ts_ns)

    def has_category(self, *categories: str) -> npt.NDArray[np.bool_]:
        """Which events are of one of the categories; shape (n,)."""
        return np.isin(self.cat_code, _codes(self.cat_values, categories))

    def has_phase(self, *phases: str) -> npt.NDArray[np.bool_]:
        """Which events are of one of the event types (`ph`); shape (n,)."""
        return np.isin(self.ph_code, _codes(self.ph_values, phases))

    def name(self, index: int) -> str:
        """The name of one event; empty when it has none."""
        code = int(self.name_code[index])
        return self.name_values[code] if code != MISSING else ""


def _codes(values: tuple[str, ...], wanted: tuple[str, ...]) -> list[int]:
    return [code for code, value in enumerate(values) if value in wanted]
