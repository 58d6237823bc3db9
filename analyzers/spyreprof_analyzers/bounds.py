"""What binds inside one phase: the two-sided use of measured peaks, then the host share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import PeakUse
from spyreprof.units import NS_PER_S, format_rate, format_share

if TYPE_CHECKING:
    from spyreprof.findings import Resource
    from spyreprof.recording.schema import Peak
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.profile import PhaseProfile, StepSplit


_PEAK_METHODS = {"measured": "best rate seen on this machine", "declared": "from a hardware file"}


@dataclass(frozen=True, slots=True)
class Bound:
    """What binds a phase, why, and the numbers behind it. `use` holds the use of each peak, where both are known.

    `reads_kv` says that attention moved most of the bytes: the KV cache rather than weights.
    """

    resource: Resource
    reason: str
    peak_use: tuple[PeakUse, ...] = ()
    evidence: tuple[str, ...] = ()
    use: dict[str, float] | None = None
    reads_kv: bool = False


@dataclass(frozen=True, slots=True)
class Peaks:
    """Ceilings that may be used, and the reason for each that may not."""

    usable: dict[str, Peak]
    refused: dict[str, str]


def usable_peaks(peaks: tuple[Peak, ...], rules: RuleBook) -> Peaks:
    """Drop a peak whose measurements before and after the run disagree: the machine was not itself."""
    limit = rules["SPY-GEN-003"].threshold("max_peak_drift")
    usable: dict[str, Peak] = {}
    refused: dict[str, str] = {}
    for peak in peaks:
        drift = peak_drift(peak)
        if drift is not None and drift > limit:
            refused[peak.resource] = (
                f"the {peak.resource.replace('_', ' ')} peak measured before and after the run differs by "
                f"{format_share(drift)} (limit {format_share(limit)})"
            )
        else:
            usable[peak.resource] = peak
    return Peaks(usable, refused)


def peak_drift(peak: Peak) -> float | None:
    """Relative difference of the two measurements; None when there are not two."""
    if not peak.before or not peak.after:
        return None
    return abs(peak.before - peak.after) / max(peak.before, peak.after)


def phase_bound(
    phase: str,
    profile: PhaseProfile | None,
    split: StepSplit | None,
    peaks: Peaks,
    rules: RuleBook,
    book: EvidenceBook,
    unlike: str | None = None,
) -> Bound:
    """Judge one phase from its profiled steps.

    Args:
        phase: its name in evidence.
        profile, split: sums of its profiled steps and how they are cut; None when there are none to go by.
        peaks: ceilings that may be used.
        rules: thresholds.
        book: takes the numbers.
        unlike: why the profiled steps do not speak for the phase, when that is why there is no profile.

    Returns:
        "host" when most of the step passes outside device work, even with all that the profiler added taken off; else
        the resource whose peak the matmul and attention operators use highly while they use little of the other;
        "inefficient_kernel" when they use neither; "undetermined" with the reason otherwise.
    """
    if profile is None or split is None:
        return Bound("undetermined", unlike or "no profiled step of this phase")
    rule = rules["SPY-GEN-003"]
    source = f"{profile.steps} profiled {phase} steps"
    cited = [
        book.add(
            f"{phase}.assigned_ratio", split.assigned_ratio, "ratio", "derived", n=profile.steps, source=source,
            window="profiled", method="share of profiled step time that belongs to a resource",
        ),
        book.add(
            f"{phase}.host_ratio", split.host, "ratio", "derived", n=profile.steps, source=source, window="profiled",
            method="time outside operators plus measured dispatch cost per operator, over step time",
        ),
    ]  # fmt: skip
    if split.assigned_ratio < rule.threshold("min_assigned_ratio"):
        return Bound(
            "undetermined",
            f"only {format_share(split.assigned_ratio)} of profiled step time belongs to a resource",
            evidence=tuple(cited),
        )
    # where time in collectives was measured, the rest of the step is judged here, and the link apart from it
    measured = split.waiting_for_ranks is not None
    beside = split.exposed_communication + (split.waiting_for_ranks or 0.0) if measured else 0.0
    host_share = rule.threshold("host_share") * (1.0 - beside)
    if split.host >= host_share and split.host > 0:
        outside = f"{format_share(split.host)} of step time passes outside device work"
        if profile.usual_steps < rule.threshold("min_usual_ratio") * profile.steps:
            reason = f"{outside}, but too few unprofiled steps are like these to tell what the profiler added"
            return Bound("undetermined", reason, evidence=tuple(cited))
        return Bound("host", outside, evidence=tuple(cited))
    if not measured and split.exposed_communication >= rule.threshold("host_share"):
        return Bound(
            "interconnect",
            f"{format_share(split.exposed_communication)} of step time is exposed communication",
            evidence=tuple(cited),
        )
    uses, missing = _peak_use(phase, profile, peaks, rules, book)
    cited.extend(evidence for use in uses.values() for evidence in use.evidence)
    if missing:
        return Bound("undetermined", missing, tuple(uses.values()), tuple(cited))
    compute, bandwidth = uses["compute"].use_ratio, uses["memory_bandwidth"].use_ratio
    resource, reason = _two_sided(compute, bandwidth, rules)
    if resource == "inefficient_kernel" and split.host_high >= host_share:
        resource = "undetermined"
        reason += f"; up to {format_share(split.host_high)} of step time may be the host's, so kernels are not blamed"
    return Bound(
        resource,
        reason,
        tuple(uses.values()),
        tuple(cited),
        {"compute": compute, "memory_bandwidth": bandwidth},
        reads_kv=2 * profile.attention_bytes > profile.bytes,
    )


def _peak_use(
    phase: str, profile: PhaseProfile, peaks: Peaks, rules: RuleBook, book: EvidenceBook
) -> tuple[dict[str, PeakUse], str | None]:
    """Use of both peaks inside matmul and attention operators; and what is missing, in words."""
    if profile.roofline_ns == 0:
        return {}, "the profiled operators carry no shapes, so their FLOPs and bytes are unknown"
    if profile.modelled_ratio < rules["SPY-GEN-003"].threshold("min_modelled_ratio"):
        return (
            {},
            f"FLOPs and bytes are known for only {format_share(profile.modelled_ratio)} of matmul and attention time",
        )
    uses: dict[str, PeakUse] = {}
    missing: str | None = None
    source = f"{profile.steps} profiled {phase} steps"
    for resource, amount, unit in (
        ("compute", profile.flops, "flop"),
        ("memory_bandwidth", profile.bytes, "B"),
    ):
        peak = peaks.usable.get(resource)
        if peak is None:
            missing = peaks.refused.get(resource, f"no {resource.replace('_', ' ')} peak of this machine is known")
            continue
        achieved = amount / profile.roofline_ns * NS_PER_S
        ratio = achieved / peak.value
        cited = (
            book.add(
                f"{phase}.matmul.{resource}_per_s", achieved, peak.unit, "derived", n=profile.steps, source=source,
                window="profiled",
                method="FLOPs or bytes from operator shapes over time inside matmul and attention operators, at the "
                f"speed of unprofiled steps of the same shape ({profile.usual_steps} of {profile.steps} had some)",
            ),
            book.add(
                f"peak.{resource}_per_s", peak.value, peak.unit, peak.origin, source=peak.source,
                window="calibration" if peak.origin == "measured" else "settings",
                method=f"{_PEAK_METHODS.get(peak.origin, 'given')}: {format_rate(peak.value, unit + '/s')}",
            ),
            book.add(
                f"{phase}.matmul.{resource}_use", ratio, "ratio", "derived", n=profile.steps, source=source,
                window="profiled", method="achieved over peak",
            ),
        )  # fmt: skip
        uses[resource] = PeakUse(
            resource=resource,  # type: ignore[arg-type]
            achieved_per_s=achieved,
            peak_per_s=peak.value,
            use_ratio=ratio,
            peak_origin=peak.origin,
            evidence=cited,
        )
    return uses, missing


def _two_sided(compute: float, bandwidth: float, rules: RuleBook) -> tuple[Resource, str]:
    rule = rules["SPY-GEN-003"]
    high, low, neither = (rule.threshold(name) for name in ("high_use", "low_use", "neither_use"))
    spoken = (
        f"matmul and attention use {format_share(compute)} of the compute peak "
        f"and {format_share(bandwidth)} of the bandwidth peak"
    )
    if compute >= high and bandwidth <= low:
        return "compute", spoken
    if bandwidth >= high and compute <= low:
        return "memory_bandwidth", spoken
    if compute < neither and bandwidth < neither:
        return "inefficient_kernel", f"{spoken}: neither is near"
    return "undetermined", f"{spoken}: not clearly one of the two"
