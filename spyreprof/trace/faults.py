"""Everything that is wrong with a trace: the one place that asks all who look for faults."""

from __future__ import annotations

from typing import NamedTuple

from spyreprof.trace.capture_faults import capture_faults
from spyreprof.trace.clock_faults import clock_faults
from spyreprof.trace.counter_faults import CounterClock, counter_clock
from spyreprof.trace.device_work import DeviceSpans, device_spans
from spyreprof.trace.health import Claim, Evidence, Fault, Health
from spyreprof.trace.relations import Relations, relate
from spyreprof.trace.roles import Roles, roles
from spyreprof.trace.stamp_faults import stamp_faults
from spyreprof.trace.steps import StepTable, step_table
from spyreprof.trace.table import EventTable

__all__ = ["Claim", "Examined", "Fault", "Health", "examine"]


class Examined(NamedTuple):
    """A trace with its faults, and what they were found by."""

    table: EventTable
    found: Roles
    relations: Relations
    spans: DeviceSpans
    steps: StepTable
    health: Health
    counters: CounterClock | None
    evidence: Evidence


def examine(table: EventTable) -> Examined:
    """Find the faults of a trace: those of the capture first, then clocks, stamps and counters."""
    found = roles(table)
    relations = relate(table, found)
    spans = device_spans(table, found)
    steps = step_table(table, found)
    evidence = Evidence(table, found, relations, spans, steps)
    counters, of_counters = counter_clock(evidence)
    health = Health((*capture_faults(evidence), *clock_faults(evidence), *stamp_faults(evidence), *of_counters))
    return Examined(table, found, relations, spans, steps, health, counters, evidence)
