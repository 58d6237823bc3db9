"""What is wrong with a trace, as data: what each fault does to what can be said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from spyreprof.trace.device_work import DeviceSpans
from spyreprof.trace.graphs import GraphLaunches, graph_launches
from spyreprof.trace.relations import Relations
from spyreprof.trace.roles import Roles
from spyreprof.trace.steps import StepTable
from spyreprof.trace.table import EventTable, Integers

# What a report may want to say about a trace.
Claim = Literal["device", "busy", "idle", "copies", "overlap", "kernel_time", "launch_lag", "steps", "counters"]
Unit = Literal["ns", "ratio", "ppm"]

Kind = Literal[
    "file_cut_short",
    "events_left_out",
    "cpu_only",
    "no_device_events",
    "device_ends_early",
    "graph_kernels_missing",
    "copies_missing",
    "copies_host_stamped",
    "copies_clock_unknown",
    "no_steps",
    "outside_steps",
    "profiler_overhead",
    "unlinked",
    "kernel_before_launch",
    "clock_drift",
    "clock_step",
    "zero_stamp",
    "zero_duration",
    "negative_duration",
    "overlong",
    "very_long",
    "far_from_rest",
    "duplicated_event",
    "duplicated_start",
    "out_of_order",
    "outside_parent",
    "sum_over_wall",
    "counter_failure",
    "counter_mismatch",
]

MAX_EXAMPLES = 5


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a trace.

    Attributes:
        count: how many events, or whatever the sentence counts, have it.
        worst: the largest deviation, in `worst_unit`; None where there is nothing to measure.
        examples: up to `MAX_EXAMPLES` places in the file's list of events, counted from 0.
        forbids: what cannot be said at all because of it.
        lowers: what can only be said with less confidence. Both are empty for a fault under its floor.
        sentence: for people.
    """

    kind: Kind
    count: int
    sentence: str
    worst: float | None = None
    worst_unit: Unit | None = None
    examples: tuple[int, ...] = ()
    forbids: tuple[Claim, ...] = ()
    lowers: tuple[Claim, ...] = ()


class Health(msgspec.Struct, frozen=True):
    """All faults of a trace; none for a clean one."""

    faults: tuple[Fault, ...] = ()

    def forbids(self, claim: Claim) -> tuple[Fault, ...]:
        """The faults for which a thing cannot be said; empty where it can."""
        return tuple(fault for fault in self.faults if claim in fault.forbids)

    def lowers(self, claim: Claim) -> tuple[Fault, ...]:
        """The faults for which a thing is less sure."""
        return tuple(fault for fault in self.faults if claim in fault.lowers)

    def reason(self, claim: Claim) -> str | None:
        """Why a thing cannot be said; None where it can."""
        return next((fault.sentence for fault in self.forbids(claim)), None)


@dataclass(frozen=True)
class Evidence:
    """What faults are looked for in."""

    table: EventTable
    found: Roles
    relations: Relations
    spans: DeviceSpans
    steps: StepTable

    @cached_property
    def graphs(self) -> GraphLaunches:
        """Launches of recorded graphs."""
        return graph_launches(self.table, self.found, self.relations)

    def examples(self, rows: Integers | Sequence[int]) -> tuple[int, ...]:
        """Places in the file of the first rows of the table."""
        chosen = np.asarray(rows[:MAX_EXAMPLES], np.int64)
        return tuple(self.table.row[chosen].tolist()) if len(self.table.row) else ()
