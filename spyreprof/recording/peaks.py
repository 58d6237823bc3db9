"""Peaks of the machine: measured around the run, or declared in a hardware file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from spyreprof.recording import layout
from spyreprof.recording.rows import Calibration, CalibrationResult
from spyreprof.recording.schema import Peak
from spyreprof.recording.source import READ_ERRORS

if TYPE_CHECKING:
    from spyreprof.hardware.profile import HardwareProfile, Value
    from spyreprof.recording.source import Source

UNREADABLE_CALIBRATIONS = "unreadable_calibrations"
_MAX_BYTES = 2**24
# A matrix-vector product that reaches this much of the plain read rate is bound by memory. A guess: one thread was
# seen at 0.70, two threads with a single-threaded product at 0.36.
_NEAR_PLAIN_READ = 0.5

Resource = Literal["compute", "memory_bandwidth", "dispatch"]
Measure = Callable[[CalibrationResult], float | None]


def measured_peaks(
    source: Source, threads: int | None, dtype: str | None, *, on_cpu: bool, counts: Counter[str]
) -> tuple[Peak, ...]:
    """The calibration's peaks for the program's thread count.

    Args:
        source: the recording.
        threads: intra-op threads of the program; None gives no peaks, since they differ by that.
        dtype: the model's dtype, e.g. "float32"; None takes the only one measured, or float32.
        on_cpu: the program computes on the CPU. Else what was measured says nothing about its device, apart from
            the cost of dispatching an operator.
        counts: files that cannot be read are counted here.

    Returns:
        For rates the larger of both measurements, for the dispatch cost the smaller: whatever disturbs a
        measurement makes the machine look slower than it is.
    """
    before = _result(source, layout.CALIBRATION_BEFORE, threads, counts)
    after = _result(source, layout.CALIBRATION_AFTER, threads, counts)
    peaks = [_peak("dispatch", "ns/operator", min, lambda result: result.dispatch_ns_per_operator, before, after)]
    if on_cpu:
        peaks += [
            _peak("compute", "flop/s", max, lambda result: _flops_per_s(result, dtype), before, after),
            _peak("memory_bandwidth", "bytes/s", max, _read_measure(before, after), before, after),
        ]
    return tuple(peak for peak in peaks if peak is not None)


def declared_peaks(hardware: HardwareProfile, dtype: str | None) -> tuple[Peak, ...]:
    """The peaks that a hardware file declares; that of compute for `dtype`, or the only one if it is unknown."""
    by_dtype = hardware.compute_flops_per_s
    compute = by_dtype.get(dtype) if dtype is not None else None
    if dtype is None and len(by_dtype) == 1:
        compute = next(iter(by_dtype.values()))
    declared: tuple[tuple[Resource, Value | None], ...] = (
        ("compute", compute),
        ("memory_bandwidth", hardware.memory_bytes_per_s),
    )
    return tuple(
        Peak(
            resource=resource,
            value=value.value,
            unit=value.unit,
            origin="assumed" if value.kind == "assumed" else "declared",
            source=f"hardware file {hardware.name}",
        )
        for resource, value in declared
        if value is not None
    )


def _result(source: Source, name: str, threads: int | None, counts: Counter[str]) -> CalibrationResult | None:
    if threads is None or name not in source.names():
        return None
    try:
        with source.open(name) as file:
            calibration = msgspec.json.decode(file.read(_MAX_BYTES), type=Calibration)
    except (*READ_ERRORS, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        counts[UNREADABLE_CALIBRATIONS] += 1
        return None
    return next((result for result in calibration.results if result.threads == threads), None)


def _flops_per_s(result: CalibrationResult, dtype: str | None) -> float | None:
    measured = result.gemm_flops_per_s or {}
    if dtype is None:
        return next(iter(measured.values())) if len(measured) == 1 else measured.get("float32")
    # Another dtype's peak is no peak for this one.
    return measured.get(dtype)


def _read_measure(before: CalibrationResult | None, after: CalibrationResult | None) -> Measure:
    """What stands for the memory's read rate: the matrix-vector product, unless it is far from a plain sum.

    The product is what decode does, and near the plain rate memory binds it. Some BLAS libraries run it on one
    thread, however many there are; then it is the library that binds, and only the sum shows what memory can do.
    """
    results = [result for result in (before, after) if result is not None]
    product = max((_positive(result.read_bytes_per_s) or 0.0 for result in results), default=0.0)
    plain = max((_positive(result.stream_bytes_per_s) or 0.0 for result in results), default=0.0)
    if product < _NEAR_PLAIN_READ * plain:
        return lambda result: result.stream_bytes_per_s
    return lambda result: result.read_bytes_per_s


def _peak(
    resource: Resource,
    unit: str,
    best: Callable[[list[float]], float],
    measure: Measure,
    before: CalibrationResult | None,
    after: CalibrationResult | None,
) -> Peak | None:
    values = [_positive(measure(result)) if result is not None else None for result in (before, after)]
    known = [value for value in values if value is not None]
    if not known:
        return None
    when = "before and after" if len(known) == 2 else "before" if values[0] is not None else "after"
    return Peak(
        resource=resource,
        value=best(known),
        unit=unit,
        origin="measured",
        source=f"measured on this machine {when} the run",
        before=values[0],
        after=values[1],
    )


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0 < value < float("inf") else None
