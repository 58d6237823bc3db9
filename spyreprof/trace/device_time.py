"""Where the time of each device went: busy, idle, computing, communicating, copying.

The window of a device lasts from the start of its first work to the end of its last: what the program did before is no
idle time of the device. Busy is the time in which at least one stream works. Communication and copies are exposed where
nothing hides them: communication where nothing computes, copies where nothing computes or communicates, so that
computing + exposed communication + exposed copies = busy. Only where copies carry the host's stamps, or may, is all of
their time exposed, whatever they seem to overlap with, and busy may be less than that sum. A sum of durations counts
what runs side by side several times; it is called a raw sum and never time.
"""

from __future__ import annotations

import msgspec
import numpy as np

from spyreprof.trace.device_work import CopiesClock, DeviceSpans
from spyreprof.trace.intervals import Intervals, sum_of, union_lengths, union_of
from spyreprof.trace.roles import Role
from spyreprof.trace.table import Flags, Identity, Integers

WINDOW_BASIS = "from the start of the device's first work to the end of its last"
NO_COPIES = "the capture holds no copies"
NO_OVERLAP: dict[CopiesClock, str] = {
    "host": "copies carry the host's time stamps, so what they overlap with is unknown",
    "unknown": "the trace does not tell by which clock copies are stamped, so what they overlap with is unknown",
}
# Files merged from more ranks than this show the first ones.
MAX_DEVICES = 64


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """How one device spent its window. Unions over its streams; None is unknown, with its reason beside it.

    Attributes:
        device: its number, or the process where the trace does not number devices.
        start_ns, end_ns: the window; see `WINDOW_BASIS`.
        idle_ns: window less busy; None where parts of the device's work are not in the trace, see `idle_reason`.
        compute_ns: kernels and fills.
        copy_ns: None where the capture holds no copies, see `copy_reason`: it may have lost them.
        exposed_copy_ns: all of `copy_ns` where copies are, or may be, stamped by the host: no credit for an overlap.
        hidden_communication_ns: `communication_ns` less what is exposed.
        hidden_copy_ns: None also where copies are, or may be, stamped by the host, see `overlap_reason`.
        raw_sum_ns: sum of the durations as the trace has them.
        clipped_sum_ns: sum after clipping spans at the start of the next of their stream.
        overlong: spans that were clipped.
    """

    device: Identity | None
    streams: int
    events: int
    start_ns: int
    end_ns: int
    window_basis: str = WINDOW_BASIS
    busy_ns: int
    idle_ns: int | None
    idle_reason: str | None
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    hidden_communication_ns: int
    copy_ns: int | None
    copy_reason: str | None
    exposed_copy_ns: int | None
    hidden_copy_ns: int | None
    overlap_reason: str | None
    raw_sum_ns: int
    clipped_sum_ns: int
    overlong: int

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


def device_times(spans: DeviceSpans, *, idle_reason: str | None = None) -> tuple[DeviceTime, ...]:
    """The time of each device, at most `MAX_DEVICES`, in the order of `spans.lanes.device_values`.

    Args:
        idle_reason: why idle time cannot be told, as device work is missing from the trace; None where it can.
    """
    order = np.argsort(spans.device, kind="stable")
    bounds = np.flatnonzero(np.diff(spans.device[order], prepend=-1, append=-1))[: MAX_DEVICES + 1]
    pieces = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return tuple(_device_time(spans, order[first:last], idle_reason) for first, last in pieces)


def _device_time(spans: DeviceSpans, chosen: Integers, idle_reason: str | None) -> DeviceTime:
    start, end, raw_end = spans.start_ns[chosen], spans.clipped_end_ns[chosen], spans.end_ns[chosen]
    role = spans.role[chosen]
    communicates, copies = role == Role.COMMUNICATION_KERNEL, role == Role.COPY
    busy = union_of(start, end)
    compute = _where(start, end, ~communicates & ~copies)
    communication = _where(start, end, communicates)
    copy = _where(start, end, copies)
    exposed_communication_ns = communication.difference(compute).length_ns
    any_copy = bool(copies.any())
    no_overlap = NO_OVERLAP.get(spans.copies_clock) if any_copy else NO_COPIES
    exposed_copy_ns = (
        copy.length_ns if no_overlap is not None else copy.difference(compute).difference(communication).length_ns
    )
    begin_ns, finish_ns = int(start.min()), int(end.max())
    return DeviceTime(
        device=spans.lanes.device_values[int(spans.device[chosen[0]])],
        streams=len(np.unique(spans.lane[chosen])),
        events=len(chosen),
        start_ns=begin_ns,
        end_ns=finish_ns,
        busy_ns=busy.length_ns,
        idle_ns=finish_ns - begin_ns - busy.length_ns if idle_reason is None else None,
        idle_reason=idle_reason,
        compute_ns=compute.length_ns,
        communication_ns=communication.length_ns,
        exposed_communication_ns=exposed_communication_ns,
        hidden_communication_ns=communication.length_ns - exposed_communication_ns,
        copy_ns=copy.length_ns if any_copy else None,
        copy_reason=None if any_copy else NO_COPIES,
        exposed_copy_ns=exposed_copy_ns if any_copy else None,
        hidden_copy_ns=copy.length_ns - exposed_copy_ns if no_overlap is None else None,
        overlap_reason=no_overlap,
        raw_sum_ns=sum_of(raw_end - start),
        clipped_sum_ns=int((end - start).sum()),
        overlong=int(spans.overlong[chosen].sum()),
    )


def _where(starts_ns: Integers, ends_ns: Integers, chosen: Flags) -> Intervals:
    return union_of(starts_ns[chosen], ends_ns[chosen])


def busy_by_key(spans: DeviceSpans, key: Integers, n_keys: int) -> Integers:
    """How long the devices were busy for each step or phase, a moment in which several work counting once.

    Args:
        key: shape (m,), of each span, negative for none.

    Returns:
        Nanoseconds, shape (n_keys,).
    """
    own = np.flatnonzero(key >= 0)
    return union_lengths(key[own], spans.start_ns[own], spans.clipped_end_ns[own], n_keys)
