"""What the profiled steps say about a phase: where a step's time goes, and how hard matmuls worked.

A profiler slows a step down, and a window of few steps may fall on a slow moment. So the trace gives shares of a step
and its FLOPs and bytes; the time comes from the many steps of the same shape that ran without a profiler.

A step's time is cut into resources. On a CPU device the operators themselves are the device work; the host share is
the time between operators plus a measured dispatch cost for each operator. On an accelerator the device work is
the union of its kernels, and the host share is the rest of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyreprof.rules import RuleBook
    from spyreprof.trace.profiled import ProfiledStep
    from spyreprof_analyzers.engine_steps import EngineSteps

# Operators that do the work which a roofline speaks about.
ROOFLINE_KINDS = ("matmul", "attention")


@dataclass(frozen=True, slots=True)
class PhaseProfile:
    """Sums over the profiled steps of one phase. All times in nanoseconds.

    `roofline_ns` is time inside matmul and attention operators whose FLOPs and bytes are known, at the speed of the
    unprofiled steps; `usual_steps` says how many profiled steps had such steps to compare with. `modelled_ratio` is
    the share of matmul and attention time whose FLOPs and bytes are known. `excess_ns` is what profiled steps took
    longer than their like. `device_busy_ns` is None on a CPU device.
    """

    steps: int
    step_ns: int
    kind_ns: dict[str, int]
    kind_count: dict[str, int]
    roofline_ns: int
    usual_steps: int
    modelled_ratio: float
    flops: int
    bytes: int
    attention_bytes: int
    excess_ns: int
    gap_ns: int
    operators: int
    device_busy_ns: int | None


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Shares of a step's time, 0 to 1, summing to 1. `unassigned` belongs to no resource.

    `host` is the least that the host can have taken: all that the profiler added is taken off it. `host_high` is its
    share if that fell on everything alike. `waiting_for_ranks` is time blocked in collectives in which no data
    moves; None where only the profiled steps tell of communication.
    """

    device_compute: float
    exposed_communication: float
    exposed_copy: float
    host: float
    unassigned: float
    host_high: float
    waiting_for_ranks: float | None = None

    @property
    def assigned_ratio(self) -> float:
        """Share of step time that some resource accounts for."""
        return 1.0 - self.unassigned


def phase_profile(steps: Iterable[ProfiledStep], unprofiled: EngineSteps, rules: RuleBook) -> PhaseProfile | None:
    """Add up profiled steps that were not disturbed; None when there are none.

    Args:
        steps: profiled steps of one phase.
        unprofiled: the window's other steps, for the usual duration of a step of the same shape.
        rules: what is the same shape, and what is disturbed.
    """
    usual = [(step, usual_step_ns(step, unprofiled, rules)) for step in steps]
    # without the time that collectives blocked it nothing may be left of a step
    stretch = [(s.end_ns - s.start_ns) / ns for s, ns in usual if ns and s.end_ns > s.start_ns]
    least = min(stretch, default=0.0)
    limit = rules["SPY-GEN-003"].threshold("max_stretch_ratio") * least
    usual = [(s, ns) for s, ns in usual if not ns or (s.end_ns - s.start_ns) / ns <= limit]
    chosen = [step for step, _ in usual]
    if not chosen:
        return None
    kind_ns: dict[str, int] = {}
    kind_count: dict[str, int] = {}
    roofline_ns = flops = moved = attention_bytes = usual_steps = excess_ns = modelled_ns = roofline_all_ns = 0
    for step, usual_ns in usual:
        usual_steps += usual_ns is not None
        scale = _to_usual_speed(step, usual_ns)
        if usual_ns is not None:
            excess_ns += max(step.end_ns - step.start_ns - usual_ns, 0)
        for operator in step.operators:
            kind_ns[operator.kind] = kind_ns.get(operator.kind, 0) + operator.ns
            kind_count[operator.kind] = kind_count.get(operator.kind, 0) + operator.count
            if operator.kind in ROOFLINE_KINDS:
                roofline_ns += int(operator.ns_with_model * scale)
                modelled_ns += operator.ns_with_model
                roofline_all_ns += operator.ns
                flops += operator.flops or 0
                moved += operator.bytes or 0
                attention_bytes += (operator.bytes or 0) if operator.kind == "attention" else 0
    busy = [step.device_busy_ns for step in chosen if step.device_busy_ns is not None]
    return PhaseProfile(
        steps=len(chosen),
        step_ns=sum(step.end_ns - step.start_ns for step in chosen),
        kind_ns=kind_ns,
        kind_count=kind_count,
        roofline_ns=roofline_ns,
        usual_steps=usual_steps,
        modelled_ratio=modelled_ns / roofline_all_ns if roofline_all_ns else 0.0,
        flops=flops,
        bytes=moved,
        attention_bytes=attention_bytes,
        excess_ns=excess_ns,
        gap_ns=sum(step.gap_ns for step in chosen),
        operators=sum(step.operator_count for step in chosen),
        device_busy_ns=sum(busy) if len(busy) == len(chosen) else None,
    )


def usual_step_ns(step: ProfiledStep, unprofiled: EngineSteps, rules: RuleBook) -> int | None:
    """Median duration of unprofiled steps with as many decodes and nearly as many prompt tokens."""
    if step.context_tokens is None or step.generation_requests is None:
        return None
    rule = rules["SPY-GEN-003"]
    tolerance = rule.threshold("shape_tolerance") * step.context_tokens
    near = np.abs(unprofiled.context_tokens - step.context_tokens) <= tolerance
    same = near & (unprofiled.generation_requests == step.generation_requests)
    if int(same.sum()) < rule.threshold("min_usual_steps"):
        return None
    return int(np.median(unprofiled.duration_ns[same]))


def _to_usual_speed(step: ProfiledStep, usual_ns: int | None) -> float:
    """Factor that brings operator time of a profiled step to the speed of usual steps.

    What a profiled step takes longer falls on the time between operators first, where a profiler costs; only what is
    left was a slower machine.
    """
    length = step.end_ns - step.start_ns
    if usual_ns is None or length <= 0:
        return 1.0
    if usual_ns >= length:
        return usual_ns / length
    work = max(length - step.gap_ns, 1)
    return min(usual_ns / work, 1.0)


def step_split(profile: PhaseProfile, dispatch_ns_per_operator: float | None) -> StepSplit:
    """Cut the profiled step time into resources.

    Args:
        profile: sums of the phase.
        dispatch_ns_per_operator: measured cost of dispatching one operator; None counts only gaps as host.

    Dispatch is paid once per operator and is no more than its time; views and allocations do nothing else, so that
    such an operator counts as unassigned only for what it took beyond. What profiled steps took longer than their
    like is the profiler's doing, and is taken off the host share first, where it falls.
    """
    if profile.device_busy_ns is not None:
        return _accelerator_split(profile)
    dispatch = {
        kind: min(profile.kind_count[kind] * (dispatch_ns_per_operator or 0.0), float(ns))
        for kind, ns in profile.kind_ns.items()
        if kind != "communication"
    }
    communication = profile.kind_ns.get("communication", 0)
    unassigned = profile.kind_ns.get("other", 0) - dispatch.get("other", 0.0)
    host = profile.gap_ns + sum(dispatch.values())
    work = sum(profile.kind_ns.values()) + profile.gap_ns - host - communication - unassigned
    excess = min(float(profile.excess_ns), host)
    length = max(profile.step_ns - excess, 1.0)
    return StepSplit(
        device_compute=work / length,
        exposed_communication=communication / length,
        exposed_copy=0.0,
        host=(host - excess) / length,
        unassigned=unassigned / length,
        host_high=host / max(profile.step_ns, 1.0),
    )


def _accelerator_split(profile: PhaseProfile) -> StepSplit:
    busy = profile.device_busy_ns or 0
    communication = min(profile.kind_ns.get("communication", 0), busy)
    copies = min(profile.kind_ns.get("copy", 0), busy - communication)
    excess = min(profile.excess_ns, max(profile.step_ns - busy, 0))
    length = max(profile.step_ns - excess, 1)
    # a device that works past the end of the host's span would make more than a whole
    busy_in_step = min(busy, length)
    scale = busy_in_step / busy if busy else 0.0
    return StepSplit(
        device_compute=(busy - communication - copies) * scale / length,
        exposed_communication=communication * scale / length,
        exposed_copy=copies * scale / length,
        host=(length - busy_in_step) / length,
        unassigned=0.0,
        host_high=(profile.step_ns - min(busy, profile.step_ns)) / max(profile.step_ns, 1),
    )


def unlike(steps: list[ProfiledStep], unprofiled: EngineSteps, rules: RuleBook) -> str | None:
    """Why profiled steps do not speak for a phase; None when they do.

    Args:
        steps: profiled steps of one phase, at least one, with known tokens.
        unprofiled: the window's steps of that phase.
        rules: how near is near enough.
    """
    if len(unprofiled) == 0:
        return None
    rule = rules["SPY-GEN-003"]
    if any((step.context_tokens or 0) > 0 for step in steps):
        what, ratio = "prompt tokens", rule.threshold("max_chunk_ratio")
        shown = float(np.median([step.context_tokens or 0 for step in steps]))
        sizes = unprofiled.context_tokens
    else:
        what, ratio = "requests", rule.threshold("max_batch_ratio")
        shown = float(np.median([step.generation_requests or 0 for step in steps]))
        sizes = unprofiled.generation_requests
    like = (sizes >= shown / ratio) & (sizes <= shown * ratio)
    share = int(unprofiled.duration_ns[like].sum()) / max(int(unprofiled.duration_ns.sum()), 1)
    needed = rule.threshold("min_like_share")
    if share >= needed:
        return None
    return (
        f"the profiled steps held {shown:g} {what}; steps like them took {format_share(share)} of this phase's time, "
        f"and {format_share(needed)} is needed: they do not speak for it"
    )
