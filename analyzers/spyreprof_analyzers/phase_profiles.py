"""Which profiled steps speak for which side of the work, and how a step of each phase is cut by resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof_analyzers.communication import own_profiled, own_steps, with_communication
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL
from spyreprof_analyzers.profile import StepSplit, phase_profile, step_split, unlike

if TYPE_CHECKING:
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof.trace.profiled import ProfiledStep
    from spyreprof_analyzers.communication import Communication, Ranks
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.facts import Side
    from spyreprof_analyzers.profile import PhaseProfile


@dataclass(frozen=True, slots=True)
class PhaseProfiles:
    """Profiles by side, and why a side has none although steps were profiled."""

    of: dict[Side, PhaseProfile | None]
    unlike: dict[Side, str | None]


def phase_profiles(inputs: AnalysisInputs, steps: EngineSteps, ranks: Ranks, rules: RuleBook) -> PhaseProfiles:
    """Profiled steps by side, without the time that collectives blocked them.

    Steps of which the profiler lost device work do not speak for anything. A mixed step's matmuls are sized by its
    prompt tokens, so it counts as prefill.
    """
    profiled_steps = own_profiled(inputs.profiled_steps, ranks)
    steps = own_steps(steps, ranks)
    chosen: dict[Side, list[ProfiledStep]] = {
        "prefill": [step for step in profiled_steps if (step.context_tokens or 0) > 0],
        "decode": [step for step in profiled_steps if step.context_tokens == 0 and (step.generation_requests or 0) > 0],
    }
    codes: dict[Side, tuple[int, ...]] = {"prefill": (PREFILL, MIXED), "decode": (DECODE,)}
    reasons: dict[Side, str | None] = {}
    of: dict[Side, PhaseProfile | None] = {}
    for side, profiled in chosen.items():
        same = steps.where(np.isin(steps.phase, codes[side]))
        complete = [step for step in profiled if step.graphs_without_work == 0]
        if profiled and not complete:
            reasons[side] = (
                "the profiler recorded no device work of graphs that its steps launched; a short run without recorded "
                "graphs would show it"
            )
        else:
            reasons[side] = unlike(complete, same, rules) if complete else None
        of[side] = phase_profile(complete, steps, rules) if reasons[side] is None else None
    return PhaseProfiles(of=of, unlike=reasons)


def phase_splits(profiles: PhaseProfiles, inputs: AnalysisInputs, found: Communication | None) -> dict[str, StepSplit]:
    """Resource shares per phase name. Mixed steps take the shares of steps with prompt tokens."""
    dispatch = next((peak.value for peak in inputs.peaks if peak.resource == "dispatch"), None)
    splits: dict[str, StepSplit] = {}
    sides: tuple[tuple[Side, tuple[str, ...]], ...] = (("prefill", ("prefill", "mixed")), ("decode", ("decode",)))
    for side, names in sides:
        profile = profiles.of[side]
        if profile is not None:
            exposed = found.exposed.get(side) if found is not None else None
            splits.update(dict.fromkeys(names, with_communication(step_split(profile, dispatch), exposed)))
    return splits
