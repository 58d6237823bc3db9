"""Everything measured and derived about one engine, gathered before anything is concluded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from spyreprof.units import NS_PER_S
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL, UNKNOWN_PHASE

if TYPE_CHECKING:
    from spyreprof.findings import SteadyWindow, TimeBudget
    from spyreprof.recording.schema import EngineSettings, ModelFacts
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.bounds import Bound, Peaks
    from spyreprof_analyzers.communication import Communication
    from spyreprof_analyzers.compilation import Compilation
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.front_end import FrontEnd
    from spyreprof_analyzers.gauge_state import GaugeState
    from spyreprof_analyzers.host_stacks import ProcessStacks
    from spyreprof_analyzers.interference import Interference
    from spyreprof_analyzers.kv_pressure import Preemptions
    from spyreprof_analyzers.mixed_steps import MixedShare
    from spyreprof_analyzers.named_phases import NamedPart
    from spyreprof_analyzers.padding import Padding
    from spyreprof_analyzers.processes import ProcessUse
    from spyreprof_analyzers.reasoning import Reasoning
    from spyreprof_analyzers.request_log import RequestLog, RequestTimes
    from spyreprof_analyzers.scheduler import Admission
    from spyreprof_analyzers.slope import StepModel
    from spyreprof_analyzers.stall import Stall
    from spyreprof_analyzers.steady_state import LoadDrift
    from spyreprof_analyzers.step_curve import StepCurve
    from spyreprof_analyzers.step_models import DecodeModels
    from spyreprof_analyzers.time_budget import WallTime

Side = Literal["prefill", "decode"]

BYTES_PER_ELEMENT = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the judged window, 0 to 1. Mixed steps are split between prefill and decode."""

    prefill: float
    decode: float
    scheduler_gap: float
    compile: float
    no_load: float
    front_end: float
    waiting_unscheduled: float
    unexplained: float

    def of_side(self, side: Side) -> float:
        """Share of the window that a side's work took."""
        return self.prefill if side == "prefill" else self.decode

    def largest(self) -> str:
        """Name of the largest share that somebody could act on."""
        ranked = {
            "no_load": self.no_load,
            "decode": self.decode,
            "prefill": self.prefill,
            "scheduler_gap": self.scheduler_gap,
            "compile": self.compile,
            "front_end": self.front_end,
            "waiting_unscheduled": self.waiting_unscheduled,
        }
        return max(ranked, key=lambda name: ranked[name])


@dataclass(frozen=True, slots=True)
class Facts:
    """The picture of one engine in its steady-state window.

    `floors`: by side, the least time that its work needs over the time it took.
    `idle_client_share`: share of the window in which the request log shows no request in flight.
    `prefix_hit_ratio`: prompt tokens found in the prefix cache over those looked up.
    Each is None where an input is missing.
    """

    window: SteadyWindow
    steps: EngineSteps
    decode_steps: EngineSteps
    wall: WallTime
    budget: TimeBudget
    shares: Shares
    bounds: dict[Side, Bound]
    peaks: Peaks
    admission: Admission | None
    log: RequestLog | None
    times: RequestTimes | None
    model: StepModel | None
    curve: StepCurve
    decode_models: DecodeModels
    mixed: MixedShare
    parameters: ModelFacts
    settings: EngineSettings
    floors: dict[Side, Floors]
    idle_client_share: float | None
    requests_in_window: int | None
    preemptions: Preemptions | None
    interference: Interference | None
    reasoning: Reasoning | None
    prefix_hit_ratio: float | None
    sampled: ProcessStacks | None
    compilation: Compilation
    engines: int
    overlap_share: float
    finished: bool
    device_kind: str | None
    communication: Communication | None = None
    named_parts: tuple[NamedPart, ...] = ()
    processes: tuple[ProcessUse, ...] = ()
    engine_pid: int | None = None
    front_end: FrontEnd | None = None
    prefix_queried_tokens: float | None = None
    drift: LoadDrift | None = None
    padding: Padding | None = None
    gauge_state: GaugeState | None = None
    stall: Stall | None = None

    @property
    def weight_floor_ratio(self) -> float | None:
        """Time to read the weights once at the measured bandwidth, over the median decode step."""
        return self.floors["decode"].weights

    @property
    def flop_floor_ratio(self) -> float | None:
        """Time that the prompt tokens' matmuls need at the measured compute peak, over prefill time."""
        return self.floors["prefill"].flops

    @property
    def host_share(self) -> float:
        """Share of the window that the host took, in steps as far as they are cut by resource, and between them."""
        return self.shares.scheduler_gap + sum(part.share for part in self.budget.parts if part.id.endswith(".host"))

    @property
    def recompute_window_share(self) -> float | None:
        """Share of the window that recomputing preempted requests took: their share of what prefills computed."""
        if self.preemptions is None or self.preemptions.recomputed is None:
            return None
        return self.preemptions.recomputed.share * self.shares.prefill


def with_unsplit_unknown(steps: EngineSteps, rules: RuleBook) -> EngineSteps:
    """The same steps, with mixed ones of which neither counts nor decode steps tell prefill's part as unknown."""
    if len(steps.of_phase(DECODE)) >= rules["SPY-GEN-001"].threshold("min_decode_steps"):
        return steps
    return replace(steps, phase=np.where((steps.phase == MIXED) & ~steps.counted, UNKNOWN_PHASE, steps.phase))


def shares_of(wall: WallTime, budget: TimeBudget, of_prefill: MixedShare) -> Shares:
    """Shares of the window by what somebody could act on; `of_prefill` is prefill's part of mixed steps."""
    length = max(wall.judged_ns, 1)
    ratio = of_prefill.ratio
    mixed = wall.phase_ns["mixed"]
    return Shares(
        prefill=(wall.phase_ns["prefill"] + mixed * ratio) / length,
        decode=(wall.phase_ns["decode"] + mixed * (1.0 - ratio)) / length,
        scheduler_gap=wall.gaps.ns["scheduler_gap"] / length,
        compile=wall.compile_ns / length,
        no_load=wall.gaps.ns["no_load"] / length,
        front_end=wall.gaps.ns["front_end"] / length,
        waiting_unscheduled=wall.gaps.ns["waiting_unscheduled"] / length,
        unexplained=budget.unexplained_share,
    )


@dataclass(frozen=True, slots=True)
class Floors:
    """The least time that the work of a phase needs, over the time it took; None where an input is missing.

    `weights`: reading the weights once per step at the bandwidth peak. `flops`: two FLOPs per weight and token at the
    compute peak.
    """

    weights: float | None
    flops: float | None


def floors(side: Side, steps: EngineSteps, parameters: ModelFacts, peaks: Peaks, rules: RuleBook) -> Floors:
    """Both floors of one side of the window's steps; mixed steps, sized by their prompt tokens, are prefill's."""
    least = rules["SPY-GEN-001"].threshold("min_decode_steps")
    codes, enough = ((DECODE,), least) if side == "decode" else ((PREFILL, MIXED), 1)
    chosen = steps.where(np.isin(steps.phase, codes))
    if parameters.parameter_bytes is None or len(chosen) < enough:
        return Floors(None, None)
    read = parameters.parameter_bytes - (parameters.embedding_bytes or 0)
    median_ns = float(np.median(chosen.duration_ns))
    if read <= 0 or median_ns <= 0:
        return Floors(None, None)
    bandwidth, compute = peaks.usable.get("memory_bandwidth"), peaks.usable.get("compute")
    weights = flops = None
    if bandwidth is not None:
        weights = _plausible(read / bandwidth.value * NS_PER_S / median_ns, rules)
    size = BYTES_PER_ELEMENT.get(parameters.dtype or "")
    if compute is not None and size is not None and chosen.counted.all():
        tokens = float(chosen.context_tokens.sum() + (chosen.generation_tokens.sum() if side == "decode" else 0))
        needed_ns = 2.0 * read / size * tokens / compute.value * NS_PER_S
        flops = _plausible(needed_ns / max(int(chosen.duration_ns.sum()), 1), rules)
    return Floors(weights, flops)


def _plausible(ratio: float, rules: RuleBook) -> float | None:
    """A floor cannot lie above what it is the floor of: then not all weights were read, or the peak is wrong."""
    return ratio if ratio <= rules["SPY-GEN-003"].threshold("max_floor_ratio") else None


def cite_share(name: Literal["prefill", "decode", "no_load"], facts: Facts, book: EvidenceBook) -> str:
    """Write down a share of the window; the value is its evidence id."""
    method = f"step time of the phase over the window; mixed steps split {facts.mixed.basis}"
    if name == "no_load":
        method = "time between steps with no request in flight over the window"
        if facts.wall.gaps.no_load_basis != "none":
            method += f", by the {facts.wall.gaps.no_load_basis}"
    value = {"prefill": facts.shares.prefill, "decode": facts.shares.decode, "no_load": facts.shares.no_load}[name]
    guessed = name == "no_load" and facts.wall.gaps.no_load_basis == "next step"
    return book.add(
        f"window.{name}_share",
        value,
        "ratio",
        "estimated" if guessed else "derived",
        method=method,
        source="engine steps",
        n=len(facts.steps),
    )


def cite_blocked(seen: Admission, facts: Facts, book: EvidenceBook) -> str:
    """Write down how much step time had budget left while requests waited; the value is its evidence id."""
    return book.add(
        "scheduler.blocked_share",
        seen.blocked_share,
        "ratio",
        "derived",
        method="step time with token budget left while requests waited, over all step time",
        source="engine steps and gauges",
        n=len(facts.steps),
    )


def cite_at_cap(seen: Admission, facts: Facts, book: EvidenceBook) -> str:
    """Write down how much of that step time ran with the batch at its cap; the value is its evidence id."""
    return book.add(
        "scheduler.at_cap_share",
        seen.at_cap_share,
        "ratio",
        "derived" if seen.cap_is_known else "estimated",
        method="the part of it in which as many requests ran as the batch cap allows, over all step time",
        source="engine steps and gauges",
        n=len(facts.steps),
    )


def cite_weight_floor(ratio: float, book: EvidenceBook) -> str:
    """Write down how much of a decode step reading the weights must take; the value is its evidence id."""
    return book.add(
        "decode.weight_floor_ratio",
        ratio,
        "ratio",
        "derived",
        method="time to read all weights once at the bandwidth peak, over the median decode step",
        source="model size, bandwidth peak, engine steps",
    )


def cite_flop_floor(ratio: float, book: EvidenceBook) -> str:
    """Write down how much of prefill time its matmuls need at peak; the value is its evidence id."""
    return book.add(
        "prefill.flop_floor_ratio",
        ratio,
        "ratio",
        "estimated",
        method="2 FLOPs per weight and prompt token at the compute peak, over the time of those steps",
        source="model size, compute peak, engine steps",
    )


def cite_floors(side: Side, facts: Facts, book: EvidenceBook) -> tuple[str, ...]:
    """Write down both floors of a phase, where they are known; the values are their evidence ids."""
    found, source = facts.floors[side], "model size, peaks, engine steps"
    cited = []
    if found.weights is not None:
        cited.append(
            book.add(f"{side}.weight_floor_ratio", found.weights, "ratio", "derived", source=source,
                     method="time to read all weights once at the bandwidth peak, over the median step")
        )  # fmt: skip
    if found.flops is not None:
        cited.append(
            book.add(f"{side}.flop_floor_ratio", found.flops, "ratio", "estimated", source=source,
                     method="2 FLOPs per weight and token at the compute peak, over the time of those steps")
        )  # fmt: skip
    return tuple(cited)
