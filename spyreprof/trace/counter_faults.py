"""Counters of a device's own clock beside its events: how fast they tick, and where they fail.

How many ticks a microsecond has is fitted on each trace and never assumed: it differs between cards and settings.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from spyreprof.trace.flex import CLOCK_TOLERANCE_RATIO, TICK_MODULUS, is_flex, tick_clock
from spyreprof.trace.health import Evidence, Fault
from spyreprof.trace.table import MISSING, Flags, Integers

# A Spyre kernel has five ticks, as the older stack has: begin, input, prepared, computed, written.
TICKS = 5
_SPANS = ((2, 3), (0, 4))  # read: what a kernel's duration covers is not told; the pair that fits better is taken
_CHUNK = 4096
# Fewer spans than this do not tell a clock from chance.
MIN_SPANS = 5  # guessed
# More outliers than this part, and the counters tell nothing of the durations.
BAD_RATIO = 0.05  # guessed


class CounterClock(msgspec.Struct, frozen=True):
    """How fast a device's counters tick by the durations of its spans.

    Attributes:
        ticks_per_us: median.
        spans: how many it was fitted on.
        outliers: spans that differ from it by more than `flex.CLOCK_TOLERANCE_RATIO`.
    """

    ticks_per_us: float
    spans: int
    outliers: int


def counter_clock(evidence: Evidence) -> tuple[CounterClock | None, tuple[Fault, ...]]:
    """The clock of the trace's counters, None where it has none that tick, and their faults."""
    if is_flex(evidence.table):
        fitted = tick_clock(evidence.table)
        if fitted is None:
            return None, ()
        clock = CounterClock(fitted.ticks_per_us, fitted.spans, len(fitted.outliers))
        return clock, tuple(_mismatch(evidence, clock, fitted.outliers))
    return _of_cycles(evidence)


def _of_cycles(evidence: Evidence) -> tuple[CounterClock | None, tuple[Fault, ...]]:
    table = evidence.table
    code = table.arg("cycles_ts")
    rows = np.flatnonzero((code != MISSING) & evidence.found.device_work)
    if not len(rows):
        return None, ()
    codes, place = np.unique(code[rows], return_inverse=True)
    ticks, readable = _parsed([table.text_values[one] for one in codes.tolist()])
    ticks, readable = ticks[place.reshape(-1)], readable[place.reshape(-1)]
    dead: Flags = readable & ~ticks.any(axis=1)
    faults = list(_failures(evidence, rows[dead | ~readable], len(rows)))
    alive = np.flatnonzero(readable & ~dead & (table.dur_ns[rows] > 0))
    if len(alive) < MIN_SPANS:
        return None, tuple(faults)
    clock, outliers = _fit(ticks[alive], table.dur_ns[rows[alive]] / 1000)
    if clock is None:
        return None, tuple(faults)
    return clock, (*faults, *_mismatch(evidence, clock, rows[alive[outliers]]))


def _parsed(texts: list[str]) -> tuple[Integers, Flags]:
    """Five ticks from each text, and whether it holds them; shapes (n, 5) and (n,)."""
    ticks, readable = np.zeros((len(texts), TICKS), np.int64), np.zeros(len(texts), np.bool_)
    decoder = msgspec.json.Decoder(list[tuple[int, int, int, int, int]])
    for first in range(0, len(texts), _CHUNK):
        chunk = texts[first : first + _CHUNK]
        try:
            ticks[first : first + len(chunk)] = decoder.decode("[" + ",".join(chunk) + "]")
            readable[first : first + len(chunk)] = True
        except (msgspec.MsgspecError, OverflowError, ValueError):
            for at, text in enumerate(chunk, first):
                try:
                    ticks[at] = decoder.decode(f"[{text}]")[0]
                    readable[at] = True
                except (msgspec.MsgspecError, OverflowError, ValueError, IndexError):
                    continue
    return ticks, readable


def _failures(evidence: Evidence, rows: Integers, of: int) -> Iterator[Fault]:
    if len(rows):
        bad = len(rows) > BAD_RATIO * of
        yield Fault(
            kind="counter_failure",
            count=len(rows),
            sentence=f"Device work whose counters are all zero or unreadable, because reading them failed: "
            f"{len(rows):,} of {of:,}.",
            examples=evidence.examples(rows),
            forbids=("counters",) if len(rows) == of else (),
            lowers=("counters",) if bad else (),
        )


def _fit(ticks: Integers, dur_us: npt.NDArray[np.float64]) -> tuple[CounterClock | None, Integers]:
    best: tuple[float, CounterClock, Integers] | None = None
    for first, last in _SPANS:
        passed = ticks[:, last] - ticks[:, first]
        small = (ticks >= 0).all(axis=1) & (ticks < TICK_MODULUS).all(axis=1)
        passed = np.where(small, passed % TICK_MODULUS, passed)
        told = np.flatnonzero(passed > 0)
        if len(told) < MIN_SPANS:
            continue
        rate = float(np.median(passed[told] / dur_us[told]))
        off = np.abs(dur_us[told] * rate - passed[told])
        slack = CLOCK_TOLERANCE_RATIO * passed[told] + rate / 1000 + 1
        spread = float(np.median(off / passed[told]))
        outliers = told[off > slack]
        if best is None or spread < best[0]:
            best = spread, CounterClock(rate, len(told), len(outliers)), outliers
    return (None, ticks[:0, 0]) if best is None else best[1:]


def _mismatch(evidence: Evidence, clock: CounterClock, rows: Integers) -> Iterator[Fault]:
    if len(rows):
        bad = len(rows) > BAD_RATIO * clock.spans
        yield Fault(
            kind="counter_mismatch",
            count=len(rows),
            sentence=f"Device work that differs from the device's own counters by more than "
            f"{CLOCK_TOLERANCE_RATIO:.0%}: "
            f"{len(rows):,} of {clock.spans:,}. The counters tick {clock.ticks_per_us:,.1f} times per us.",
            examples=evidence.examples(rows),
            lowers=("kernel_time", "counters") if bad else (),
        )
