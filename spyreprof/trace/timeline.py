"""How busy something was over time: shares of buckets that spans cover, as counter tracks show them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from spyreprof.trace.device_work import DeviceSpans
from spyreprof.trace.table import Integers

# A bucket is a power of ten of nanoseconds, so that people can read the axis.
MAX_BUCKETS = 100


class BusyOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """How busy one device was in each bucket of its window, which `DeviceTime` tells.

    Attributes:
        bucket_ns: length of a bucket, a power of ten; the last one also takes what is left.
        ratios: by bucket, at most `MAX_BUCKETS`; None for a bucket of no length.
    """

    bucket_ns: int
    ratios: tuple[float | None, ...]


def busy_over_time(spans: DeviceSpans, most: int) -> tuple[BusyOverTime, ...]:
    """The busy share of each device over its window, for the first devices in the order of `device_times`."""
    found = []
    for device in np.unique(spans.device)[:most].tolist():
        chosen = spans.device == device
        start, end = spans.start_ns[chosen], spans.clipped_end_ns[chosen]
        edges = bucket_edges(int(start.min()), int(end.max()))
        ratios = busy_ratios(start, np.maximum(end - start, 0), edges)
        known = tuple(None if np.isnan(ratio) else min(ratio, 1.0) for ratio in ratios.tolist())
        found.append(BusyOverTime(bucket_ns=int(edges[1] - edges[0]), ratios=known))
    return tuple(found)


def bucket_edges(start_ns: int, end_ns: int) -> Integers:
    """Edges of 10 to 100 buckets of a round size over a window; the last one also takes what is left. Shape (k + 1,).

    A window shorter than 10 ns has fewer.
    """
    size_ns = 1
    while (end_ns - start_ns) > size_ns * MAX_BUCKETS:
        size_ns *= 10
    count = max((end_ns - start_ns) // size_ns, 1)
    edges: Integers = start_ns + size_ns * np.arange(count + 1, dtype=np.int64)
    edges[-1] = end_ns
    return edges


def busy_ratios(start_ns: Integers, dur_ns: Integers, edges_ns: Integers) -> npt.NDArray[np.float64]:
    """Share of each bucket during which at least one span runs; NaN for a bucket of no length.

    Args:
        start_ns: where the spans begin, in any order; shape (n,).
        dur_ns: how long they take, not negative; shape (n,).
        edges_ns: of the buckets, rising; shape (k + 1,).
    """
    widths = np.diff(edges_ns)
    if not len(start_ns):
        return np.where(widths > 0, 0.0, np.nan)
    order = np.argsort(start_ns, kind="stable")
    begin = start_ns[order]
    end = np.maximum.accumulate(begin + dur_ns[order])
    # What a span adds to the union of those before it lies between these two.
    fresh = np.maximum(begin, np.r_[begin[0], end[:-1]])
    covered = np.r_[0, np.cumsum(np.maximum(end - fresh, 0))]
    last = np.searchsorted(fresh, edges_ns, side="right")
    # Of the last span that began before an edge, what lies behind the edge does not count yet.
    beyond = np.maximum(end[np.maximum(last - 1, 0)] - edges_ns, 0) * (last > 0)
    busy_ns = np.diff(covered[last] - beyond)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios: npt.NDArray[np.float64] = busy_ns / widths
    return ratios
