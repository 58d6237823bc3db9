"""Device counters in traces of the older Spyre stack (flex): five 32-bit ticks for each device operation.

The ticks mark where an operation begins, has its input, is prepared, has computed and has written its output. The
trace shows each of these four phases as a span of its own, named by the end of its name, and repeats all five ticks on
every one. The counters' clock is not written anywhere, so it is fitted on the spans' durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spyreprof.trace.columns import TICKS
from spyreprof.trace.table import MISSING, Codes, EventTable, Flags, Integers

# The counters wrap around: differences are taken modulo this, right for phases of less than one turn.
TICK_MODULUS = 2**32
# A span whose ticks differ from its duration by more than this is not told by the trace's clock.
CLOCK_TOLERANCE_RATIO = 0.01


class Phase(NamedTuple):
    """A phase of a device operation, from one tick to the next.

    Attributes:
        name: as the stack calls it.
        suffixes: how names of its spans end.
        first_tick: index of the tick at which it begins, from 0.
    """

    name: str
    suffixes: tuple[str, ...]
    first_tick: int


INPUT = Phase("DmaI", (" DmaI",), 0)
PREPARATION = Phase("Prep", (" Cmpt Prep", " Prep"), 1)
EXECUTION = Phase("Cmpt Exec", (" Cmpt Exec",), 2)
OUTPUT = Phase("DmaO", (" DmaO",), 3)
PHASES = (INPUT, PREPARATION, EXECUTION, OUTPUT)


@dataclass(frozen=True)
class TickClock:
    """How fast the counters of a trace tick by its own spans.

    Attributes:
        ticks_per_us: median over the spans.
        spans: how many it was fitted on.
        outliers: indices into the table of spans that it does not fit; shape (m,).
    """

    ticks_per_us: float
    spans: int
    outliers: Integers


def is_flex(table: EventTable) -> bool:
    """Whether events of the table carry these counters."""
    return all(column.name in table.args for column in TICKS)


def phase_codes(table: EventTable) -> Codes:
    """Index into `PHASES` of each event by the end of its name, `MISSING` for others; shape (n,)."""
    by_name = np.full(len(table.name_values) + 1, MISSING, np.int32)
    for code, name in enumerate(table.name_values):
        for number, phase in enumerate(PHASES):
            if name.endswith(phase.suffixes):
                by_name[code] = number
    # An event without a name has the code -1, which is the entry at the end.
    return by_name[table.name_code]


def tick_differences(table: EventTable) -> Integers:
    """Ticks that each phase of the event's operation took, unwrapped; shape (n, 4) in the order of `PHASES`.

    `MISSING` where one of the two counters is absent or no 32-bit number.
    """
    ticks = np.stack([table.arg(column.name) for column in TICKS], axis=1)
    good = (ticks >= 0) & (ticks < TICK_MODULUS)
    differences: Integers = np.where(good[:, 1:] & good[:, :-1], np.diff(ticks, axis=1) % TICK_MODULUS, MISSING)
    return differences


def span_ticks(table: EventTable) -> Integers:
    """Ticks of the very phase that each span shows, `MISSING` for other events; shape (n,)."""
    phase = phase_codes(table)
    found = np.full(len(table), MISSING, np.int64)
    shown = np.flatnonzero(phase != MISSING)
    # the phases are listed in the order of their ticks
    found[shown] = tick_differences(table)[shown, phase[shown]]
    return found


def tick_clock(table: EventTable) -> TickClock | None:
    """Fit the counters' clock; None where no span has both ticks and a duration."""
    ticks = span_ticks(table)
    told: Flags = (ticks > 0) & (table.dur_ns > 0)
    if not told.any():
        return None
    index = np.flatnonzero(told)
    dur_us: npt.NDArray[np.float64] = table.dur_ns[index] / 1000
    rate = float(np.median(ticks[index] / dur_us))
    # A duration is known to the nanosecond and a difference to the tick: short spans may be off by one of each.
    slack = CLOCK_TOLERANCE_RATIO * ticks[index] + rate / 1000 + 1
    return TickClock(rate, len(index), index[np.abs(dur_us * rate - ticks[index]) > slack])
