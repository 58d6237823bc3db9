"""The work of devices as clean spans: clipped on their streams, and without stamps that are far from all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from spyreprof.trace.intervals import clip_to_next
from spyreprof.trace.roles import Lanes, Role, Roles, device_of
from spyreprof.trace.table import MISSING, EventTable, Flags, Integers

# Spans of a device that end this long after the last event began are taken for badly stamped; and so is a small group
# of events that stands further than this, and further than the rest is long, behind or before the rest.
FAR_NS = 1_000_000_000  # read: torch-spyre takes events of more than 1 s for over-extended
# At most this part of the events can be such a group; of more, nobody can say which of the two is right.
FAR_SHARE = 0.01  # guessed
# In small traces a single event is a larger part than that.
FAR_EVENTS = 2  # guessed


# "device" also where there are no copies.
CopiesClock = Literal["device", "host", "unknown"]
# Of these it is not known whether their profilers ask the device when a copy ran; one that does tells its stream.
_OF_NO_KNOWN_CLOCK = ("unnamed", "privateuse1")  # guessed


@dataclass(frozen=True)
class DeviceSpans:
    """Device work by device, stream and start; arrays have shape (m,).

    Attributes:
        row: in the table.
        role: values of `Role`.
        device, lane: into the values of `lanes`.
        start_ns, end_ns: as the trace has them.
        clipped_end_ns: cut where the next span of the stream starts.
        overlong: spans that reach beyond it.
        far: rows of device work that are left out, being stamped far from all other events; shape (k,).
        copies_clock: whose times the copies bear: "host" where they tell how long its call took.
    """

    row: Integers
    role: Integers
    device: Integers
    lane: Integers
    start_ns: Integers
    end_ns: Integers
    clipped_end_ns: Integers
    overlong: Flags
    far: Integers
    lanes: Lanes
    copies_clock: CopiesClock

    def __len__(self) -> int:
        return len(self.row)

    def is_role(self, *wanted: Role) -> Flags:
        """Which spans have one of the roles; shape (m,)."""
        return np.isin(self.role, [int(role) for role in wanted])


def device_spans(table: EventTable, found: Roles) -> DeviceSpans:
    """The work of all devices of a trace. What no launch is known of is work all the same."""
    lanes = device_of(table, found)
    far = far_rows(table)
    kept = np.ones(len(table), np.bool_)
    kept[far] = False
    rows = np.flatnonzero(found.device_work & kept)
    start = table.ts_ns[rows]
    order = np.lexsort((-table.dur_ns[rows], start, lanes.lane[rows]))
    rows, start = rows[order], start[order]
    end, lane = start + table.dur_ns[rows], lanes.lane[rows].astype(np.int64)
    clipped = clip_to_next(lane, start, end)
    endless = _endless(table, kept & ~found.device_work, start, clipped.ends_ns)
    role = found.role[rows].astype(np.int64)
    good = np.flatnonzero(~endless)
    return DeviceSpans(
        row=rows[good],
        role=role[good],
        device=lanes.device[rows[good]].astype(np.int64),
        lane=lane[good],
        start_ns=start[good],
        end_ns=end[good],
        clipped_end_ns=clipped.ends_ns[good],
        overlong=clipped.clipped[good],
        far=np.sort(np.concatenate((far[found.device_work[far]], rows[endless]))),
        lanes=lanes,
        copies_clock=_copies_clock(table, found, rows[role == Role.COPY]),
    )


def _copies_clock(table: EventTable, found: Roles, copies: Integers) -> CopiesClock:
    if not len(copies):
        return "device"
    if found.dialect.name == "spyre":
        return "host"  # read: its plug-in stamps copies on the host
    unnamed = found.dialect.name in _OF_NO_KNOWN_CLOCK and bool((table.arg("stream")[copies] == MISSING).any())
    return "unknown" if unnamed else "device"


def _endless(table: EventTable, others: Flags, starts_ns: Integers, ends_ns: Integers) -> Flags:
    """Which device spans go on long after everything else; none where these are many, or all there is."""
    late = np.zeros(len(starts_ns), np.bool_)
    if not len(starts_ns):
        return late
    timed = np.flatnonzero(others & (table.dur_ns != MISSING))
    # a long kernel at the end is real where the host waits for it
    reached = int((table.ts_ns[timed] + table.dur_ns[timed]).max()) if len(timed) else int(starts_ns.max())
    late = ends_ns > max(reached, int(starts_ns.max())) + FAR_NS
    return late if late.sum() <= _most(len(starts_ns) + len(timed)) else np.zeros(len(late), np.bool_)


def far_rows(table: EventTable) -> Integers:
    """Spans that begin so far from all others that the trace would seem to last that long. Ascending."""
    rows = np.flatnonzero(table.dur_ns != MISSING)
    order = np.argsort(table.ts_ns[rows], kind="stable")
    low, high = _core(table.ts_ns[rows[order]])
    found: Integers = np.sort(rows[np.concatenate((order[:low], order[high:]))])
    return found


def _core(starts_ns: Integers) -> tuple[int, int]:
    """Where, among ascending starts, the group begins and ends that holds nearly all of them."""
    low, high = 0, len(starts_ns)
    most = _most(high)
    gaps = np.diff(starts_ns)
    for gap in np.flatnonzero(gaps > FAR_NS)[::-1][:most].tolist():
        if len(starts_ns) - gap - 1 <= most and gaps[gap] > starts_ns[gap] - starts_ns[0]:
            high = gap + 1
    for gap in np.flatnonzero(gaps[: high - 1] > FAR_NS)[:most].tolist():
        if gap + 1 <= most and gaps[gap] > starts_ns[high - 1] - starts_ns[gap + 1]:
            low = gap + 1
    return low, high


def _most(count: int) -> int:
    """How many of so many events can be stamped far from the rest; in a handful, nobody can say which ones are."""
    return max(FAR_EVENTS, int(count * FAR_SHARE)) if count > 2 * FAR_EVENTS else 0
