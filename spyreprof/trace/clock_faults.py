"""Faults of clocks: device work that starts before its launch, and clocks of host and device that part.

Only work that found its device idle tells of clocks: other work waits for its predecessor, so that its distance from
its launch says how full the queue was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spyreprof.trace.health import Evidence, Fault
from spyreprof.trace.roles import Role
from spyreprof.trace.table import MISSING, Integers
from spyreprof.units import NS_PER_S, format_seconds

# More kernels than this part before their launches, and no launch lag can be told.
EARLY_RATIO = 0.01  # guessed
# A device that paused so long before a kernel had nothing queued.
IDLE_BEFORE_NS = 5_000  # measured: kernels of a full queue follow each other within 1 to 3 us
BINS = 32  # guessed
MIN_BINS = 8  # guessed
MIN_PER_BIN = 3  # guessed
# Changes of the lag up to this are what launches differ by.
MIN_DRIFT_NS = 50_000  # guessed
MIN_STEP_NS = 1_000_000  # guessed
# And the change must stand out this much from the scatter around it.
SCATTERS = 4.0  # guessed


def clock_faults(evidence: Evidence) -> Iterator[Fault]:
    """Faults of the clocks of host and device."""
    yield from _before_launch(evidence)
    lags = _idle_lags(evidence)
    if lags is None:
        return
    step = _step(lags)
    if step is not None:
        yield step
    else:
        yield from _drift(lags)


def _before_launch(evidence: Evidence) -> Iterator[Fault]:
    spans, table = evidence.spans, evidence.table
    launch = evidence.relations.launch[spans.row]
    linked = np.flatnonzero((launch != MISSING) & ~spans.is_role(Role.COPY, Role.FILL))
    lag = spans.start_ns[linked] - table.ts_ns[launch[linked]]
    early = np.flatnonzero(lag < 0)
    if not len(early):
        return
    shift, worst = int(-np.median(lag[early])), int(-lag.min())
    many = len(early) > EARLY_RATIO * len(linked)
    yield Fault(
        kind="kernel_before_launch",
        count=len(early),
        sentence=f"Kernels that start before their launch: {len(early):,} of {len(linked):,}, by "
        f"{format_seconds(shift / NS_PER_S)} in the middle and {format_seconds(worst / NS_PER_S)} at most. The clocks "
        f"of "
        "host and device differ.",
        worst=float(worst),
        worst_unit="ns",
        examples=evidence.examples(spans.row[linked[early]]),
        forbids=("launch_lag",) if many else (),
        lowers=("steps",) if many else ("launch_lag",),
    )


class _Lags(NamedTuple):
    """The least lag in each stretch of the trace that has enough; shape (k,)."""

    time_ns: npt.NDArray[np.float64]
    lag_ns: npt.NDArray[np.float64]


def _idle_lags(evidence: Evidence) -> _Lags | None:
    spans, table = evidence.spans, evidence.table
    if len(spans) < MIN_BINS * MIN_PER_BIN:
        return None
    order = np.lexsort((spans.start_ns, spans.device))
    device, start = spans.device[order], spans.start_ns[order]
    idle = np.zeros(len(order), np.bool_)
    for own in np.split(np.arange(len(order)), np.flatnonzero(np.diff(device)) + 1):
        reached = np.maximum.accumulate(spans.clipped_end_ns[order[own]])
        idle[own[1:]] = start[own[1:]] - reached[:-1] > IDLE_BEFORE_NS
    launch = evidence.relations.launch[spans.row[order]]
    kernels = ~spans.is_role(Role.COPY, Role.FILL)[order]
    chosen = np.flatnonzero(idle & kernels & (launch != MISSING))
    if len(chosen) < MIN_BINS * MIN_PER_BIN:
        return None
    time = start[chosen] - int(start[chosen].min())
    lag = start[chosen] - table.ts_ns[launch[chosen]]
    return _least(time, lag)


def _least(time: Integers, lag: Integers) -> _Lags | None:
    bin_ = np.minimum((time / max(int(time.max()), 1) * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bin_, minlength=BINS)
    least, middle = np.full(BINS, np.inf), np.zeros(BINS)
    np.minimum.at(least, bin_, lag.astype(np.float64))
    np.add.at(middle, bin_, time.astype(np.float64))
    good = np.flatnonzero(count >= MIN_PER_BIN)
    if len(good) < MIN_BINS:
        return None
    return _Lags(middle[good] / count[good], least[good])


def _scatter(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _step(lags: _Lags) -> Fault | None:
    """A jump of one clock: two levels, each steady."""
    jumps = np.abs(np.diff(lags.lag_ns))
    at = int(jumps.argmax()) + 1
    before, after = lags.lag_ns[:at], lags.lag_ns[at:]
    if min(len(before), len(after)) < MIN_PER_BIN:
        return None
    jump_ns = float(np.median(after) - np.median(before))
    noise_ns = max(_scatter(before), _scatter(after))
    if abs(jump_ns) < MIN_STEP_NS or abs(jump_ns) < SCATTERS * max(np.ptp(before), np.ptp(after), noise_ns):
        return None
    return Fault(
        kind="clock_step",
        count=1,
        sentence=f"The clocks of host and device jump apart by {format_seconds(abs(jump_ns) / NS_PER_S)} within the "
        "trace: one of them was set.",
        worst=abs(jump_ns),
        worst_unit="ns",
        forbids=("launch_lag",),
        lowers=("steps", "idle"),
    )


def _drift(lags: _Lags) -> Iterator[Fault]:
    """A slope of the least lag over time: the median of the slopes between all pairs of stretches."""
    first, second = np.triu_indices(len(lags.time_ns), 1)
    apart = lags.time_ns[second] - lags.time_ns[first]
    good = apart > 0
    slope = float(np.median((lags.lag_ns[second] - lags.lag_ns[first])[good] / apart[good]))
    total_ns = slope * float(lags.time_ns[-1] - lags.time_ns[0])
    scatter_ns = _scatter(lags.lag_ns - slope * lags.time_ns)
    if abs(total_ns) < MIN_DRIFT_NS or abs(total_ns) < SCATTERS * scatter_ns:
        return
    yield Fault(
        kind="clock_drift",
        count=1,
        sentence=f"The clocks of host and device drift apart by {abs(slope) * 1e6:,.0f} us per second, "
        f"{format_seconds(abs(total_ns) / NS_PER_S)} over the trace.",
        worst=abs(slope) * 1e6,
        worst_unit="ppm",
        lowers=("launch_lag", "steps"),
    )
