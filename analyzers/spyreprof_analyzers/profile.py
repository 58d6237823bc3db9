"""What the profiled steps say about a phase: where a step's time goes, and how hard matmuls worked.

A step's time is cut into resources. On a CPU device the operators themselves are the device work; the host share is
the time between operators plus a measured dispatch cost for each operator. On an accelerator the device work is
the union of its kernels, and the host share is the rest of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyreprof.trace.profiled import ProfiledStep

# Operators that do the work which a roofline speaks about.
ROOFLINE_KINDS = ("matmul", "attention")


@dataclass(frozen=True, slots=True)
class PhaseProfile:
    """Sums over the profiled steps of one phase. All times in nanoseconds.

    `roofline_ns` is time inside matmul and attention operators whose FLOPs and bytes are known;
    `roofline_unknown_ns` the time of those without. `device_busy_ns` is None on a CPU device.
    """

    steps: int
    step_ns: int
    kind_ns: dict[str, int]
    roofline_ns: int
    roofline_unknown_ns: int
    flops: int
    bytes: int
    gap_ns: int
    operators: int
    device_busy_ns: int | None


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Shares of a step's time, 0 to 1, summing to 1. `unassigned` belongs to no resource."""

    device_compute: float
    exposed_communication: float
    exposed_copy: float
    host: float
    unassigned: float

    @property
    def assigned_ratio(self) -> float:
        """Share of step time that some resource accounts for."""
        return 1.0 - self.unassigned


def phase_profile(steps: Iterable[ProfiledStep]) -> PhaseProfile | None:
    """Add up profiled steps; None when there are none."""
    chosen = list(steps)
    if not chosen:
        return None
    kind_ns: dict[str, int] = {}
    roofline_ns = roofline_unknown_ns = flops = moved = 0
    for step in chosen:
        for operator in step.operators:
            kind_ns[operator.kind] = kind_ns.get(operator.kind, 0) + operator.ns
            if operator.kind in ROOFLINE_KINDS:
                roofline_ns += operator.ns_with_model
                roofline_unknown_ns += operator.ns - operator.ns_with_model
                flops += operator.flops or 0
                moved += operator.bytes or 0
    busy = [step.device_busy_ns for step in chosen if step.device_busy_ns is not None]
    return PhaseProfile(
        steps=len(chosen),
        step_ns=sum(step.end_ns - step.start_ns for step in chosen),
        kind_ns=kind_ns,
        roofline_ns=roofline_ns,
        roofline_unknown_ns=roofline_unknown_ns,
        flops=flops,
        bytes=moved,
        gap_ns=sum(step.gap_ns for step in chosen),
        operators=sum(step.operator_count for step in chosen),
        device_busy_ns=sum(busy) if len(busy) == len(chosen) else None,
    )


def step_split(
    profile: PhaseProfile, dispatch_ns_per_operator: float | None, unprofiled_step_ns: float | None
) -> StepSplit:
    """Cut the profiled step time into resources.

    Args:
        profile: sums of the phase.
        dispatch_ns_per_operator: measured cost of dispatching one operator; None counts only gaps as host.
        unprofiled_step_ns: mean duration of the same phase's steps without a profiler. What the profiled steps
            took longer is the profiler's doing and is taken off the host share, where it falls.
    """
    if profile.device_busy_ns is not None:
        return _accelerator_split(profile)
    communication = profile.kind_ns.get("communication", 0)
    unassigned = profile.kind_ns.get("other", 0)
    work = sum(profile.kind_ns.values()) - communication - unassigned
    dispatch = min(profile.operators * (dispatch_ns_per_operator or 0.0), float(work))
    host = profile.gap_ns + dispatch
    excess = 0.0
    if unprofiled_step_ns is not None:
        excess = min(max(profile.step_ns - profile.steps * unprofiled_step_ns, 0.0), host)
    length = max(profile.step_ns - excess, 1.0)
    return StepSplit(
        device_compute=(work - dispatch) / length,
        exposed_communication=communication / length,
        exposed_copy=0.0,
        host=(host - excess) / length,
        unassigned=unassigned / length,
    )


def _accelerator_split(profile: PhaseProfile) -> StepSplit:
    busy = profile.device_busy_ns or 0
    communication = min(profile.kind_ns.get("communication", 0), busy)
    copies = min(profile.kind_ns.get("copy", 0), busy - communication)
    length = max(profile.step_ns, 1)
    # a device that works past the end of the host's span would make more than a whole
    busy_in_step = min(busy, length)
    scale = busy_in_step / busy if busy else 0.0
    return StepSplit(
        device_compute=(busy - communication - copies) * scale / length,
        exposed_communication=communication * scale / length,
        exposed_copy=copies * scale / length,
        host=(length - busy_in_step) / length,
        unassigned=0.0,
    )
