"""From a recording's tables to a diagnosis. Pure: no argv, no file names, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from spyreprof.findings import Diagnosis, ExcludedTime, LatencySummary, PhaseReport
from spyreprof.targets import Targets
from spyreprof.units import NS_PER_S
from spyreprof_analyzers import intervals
from spyreprof_analyzers.book import EvidenceBook
from spyreprof_analyzers.bounds import phase_bound, usable_peaks
from spyreprof_analyzers.communication import (
    communication,
    own_profiled,
    own_steps,
    ranks_of,
    with_communication,
)
from spyreprof_analyzers.compilation import compilation
from spyreprof_analyzers.conclusions import findings
from spyreprof_analyzers.context import Context
from spyreprof_analyzers.engine_steps import (
    DECODE,
    MIXED,
    PHASE_NAMES,
    PREFILL,
    EngineSteps,
    busiest_writer,
    engine_steps,
)
from spyreprof_analyzers.facts import Facts, floors, shares_of, with_unsplit_unknown
from spyreprof_analyzers.gaps import requests_in_flight
from spyreprof_analyzers.host_stacks import pid_of, process_stacks
from spyreprof_analyzers.interconnect import open_questions, with_link
from spyreprof_analyzers.interference import interference
from spyreprof_analyzers.kv_pressure import (
    most_tokens_lost,
    preemptions,
    prefix_hit_ratio,
    usual_prompt_tokens,
)
from spyreprof_analyzers.named_phases import named_parts
from spyreprof_analyzers.phase_views import phase_views
from spyreprof_analyzers.profile import StepSplit, phase_profile, step_split, unlike
from spyreprof_analyzers.reasoning import reasoning
from spyreprof_analyzers.request_log import (
    in_window,
    latencies,
    marked_requests,
    request_log,
    request_times,
    summarise,
)
from spyreprof_analyzers.scheduler import admission, gauges
from spyreprof_analyzers.slope import cycle_ns, fit_step_model
from spyreprof_analyzers.steady_state import steady_window
from spyreprof_analyzers.step_curve import step_curve
from spyreprof_analyzers.time_budget import time_budget, wall_time
from spyreprof_analyzers.verdict import decide
from spyreprof_analyzers.without_steps import what_was_seen

if TYPE_CHECKING:
    from spyreprof.findings import SlopeFit, SteadyWindow
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof.trace.profiled import ProfiledStep
    from spyreprof_analyzers.bounds import Bound
    from spyreprof_analyzers.communication import Communication, Ranks
    from spyreprof_analyzers.facts import Side
    from spyreprof_analyzers.profile import PhaseProfile
    from spyreprof_analyzers.request_log import RequestLog
    from spyreprof_analyzers.slope import StepModel

# Idle time shorter than this many median steps belongs to the engine's cycle.
IDLE_GAP_STEPS = 2


def diagnose(inputs: AnalysisInputs, rules: RuleBook, targets: Targets) -> Diagnosis:
    """Conclude what can be concluded, and say what cannot.

    Args:
        inputs: tables and facts of one recording.
        rules: thresholds.
        targets: the user's latency targets.
    """
    book = EvidenceBook()
    writer = busiest_writer(inputs.steps)
    everything = engine_steps(inputs.steps, writer) if writer is not None else None
    if writer is None or everything is None or len(everything) < 2:
        return what_was_seen(inputs, rules, book)
    ranks = ranks_of(inputs, writer, rules)
    everything = ranks.steps.get(ranks.judged, everything)
    inputs = _of_engine(inputs, ranks)
    window = steady_window(everything, inputs, rules)
    steps = _steps_of(everything, window, inputs)
    profiles = _profiles(inputs, steps, ranks, rules)
    facts = _facts(inputs, everything, window, profiles, ranks, rules, book)
    verdict = decide(facts, rules, book)
    _open_questions(inputs, facts, book)
    open_questions(facts, _calls_of_accelerator(inputs), book)
    return Diagnosis(
        window=window,
        time_budget=facts.budget,
        phases=_phase_reports(facts, profiles, inputs, rules, book),
        latencies=_latencies(facts, targets, book),
        verdict=verdict,
        findings=findings(Context(facts, verdict, targets, rules, book)),
        not_judged=(*verdict.missing, *book.not_judged),
        evidence=book.evidence,
    )


def _facts(
    inputs: AnalysisInputs,
    everything: EngineSteps,
    window: SteadyWindow,
    profiles: _Profiles,
    ranks: Ranks,
    rules: RuleBook,
    book: EvidenceBook,
) -> Facts:
    steps = _steps_of(everything, window, inputs)
    seen = gauges(inputs.counters, inputs.polls, inputs.recording_end_ns)
    in_span = seen.within(window) if seen is not None else None
    log = request_log(inputs.requests)
    in_flight = None
    if log is not None and log.arrival_ns is not None:
        in_flight = requests_in_flight(log.arrival_ns, log.arrival_ns + log.e2e_ns, steps, rules)
    peaks = usable_peaks(inputs.peaks, rules)
    found = communication(ranks, steps, inputs, rules)
    splits = _splits(profiles, inputs, found)
    wall = wall_time(window, steps, inputs, in_flight, seen, rules)
    excluded = _excluded(inputs, window, wall.paused_ns)
    budget = time_budget(wall, splits, excluded)
    bounds: dict[Side, Bound] = {
        side: with_link(
            side,
            phase_bound(side, profiles.of[side], splits.get(side), peaks, rules, book, profiles.unlike[side]),
            found,
            splits.get(side),
            rules,
            book,
        )
        for side in profiles.of
    }
    times = request_times(inputs.counters, log, marked_requests(inputs.requests), window)
    hit_ratio = prefix_hit_ratio(inputs.counters, window)
    prompt_tokens = usual_prompt_tokens(log, inputs.counters, hit_ratio, window)
    finished = times.requests if times is not None else None
    median_step = int(np.median(steps.duration_ns)) if len(steps) else 0
    return Facts(
        window=window,
        steps=steps,
        decode_steps=steps.of_phase(DECODE),
        wall=wall,
        budget=budget,
        shares=shares_of(wall, budget, steps),
        bounds=bounds,
        peaks=peaks,
        admission=admission(steps, in_span, inputs.settings, prompt_tokens, rules) if in_span is not None else None,
        log=log,
        times=times,
        model=fit_step_model(steps, cycle_ns(steps, IDLE_GAP_STEPS * median_step), rules),
        parameters=inputs.model,
        settings=inputs.settings,
        curve=step_curve(steps, rules),
        floors={side: floors(side, steps, inputs.model, peaks, rules) for side in bounds},
        idle_client_share=_idle_client_share(log, in_flight, window),
        requests_in_window=int(in_window(log, window).sum()) if log is not None else finished,
        preemptions=preemptions(
            inputs.counters, everything, prompt_tokens, most_tokens_lost(inputs.settings, log), window
        ),
        interference=interference(steps, wall.judged_ns, rules),
        reasoning=reasoning(log, window),
        prefix_hit_ratio=hit_ratio,
        compilation=compilation(steps, inputs.compiles, wall),
        engines=_engines(inputs, ranks),
        sampled=process_stacks(inputs.stacks, window.start_ns, window.end_ns, pid_of(ranks.judged)),
        overlap_share=wall.overlap_ns / max(int(steps.duration_ns.sum()), 1),
        finished=inputs.finished,
        device_kind=inputs.device_kind,
        communication=found,
        named_parts=named_parts(inputs.named_phases, window, ranks.judged),
    )


def _engines(inputs: AnalysisInputs, ranks: Ranks) -> int:
    """Processes that ran steps; ranks of one group that all left rows are one engine."""
    ran = set(inputs.steps["writer"].unique())
    return len(ran - set(ranks.writers)) + 1 if ranks.complete else len(ran)


def _calls_of_accelerator(inputs: AnalysisInputs) -> bool:
    calls = inputs.collectives
    return calls is not None and inputs.device_kind != "cpu" and bool((calls["size"] > 1).any())


def _steps_of(everything: EngineSteps, window: SteadyWindow, inputs: AnalysisInputs) -> EngineSteps:
    """Steps that lie in the window and outside of profiler pauses."""
    inside = (everything.start_ns >= window.start_ns) & (everything.end_ns <= window.end_ns)
    return with_unsplit_unknown(everything.where(inside & everything.clear_of(inputs.pauses)))


def _of_engine(inputs: AnalysisInputs, ranks: Ranks) -> AnalysisInputs:
    """The same inputs with the profiled steps and compilations of one process alone.

    A pause of any rank holds up all of them.
    """
    return replace(
        inputs,
        profiled_steps=tuple(step for step in inputs.profiled_steps if step.writer in (None, "", ranks.judged)),
        pauses=tuple(pause for pause in inputs.pauses if pause.writer in (None, *ranks.writers)),
        compiles=tuple(compiled for compiled in inputs.compiles if compiled.writer in (None, ranks.judged)),
    )


@dataclass(frozen=True, slots=True)
class _Profiles:
    """Profiles by side, and why a side has none although steps were profiled."""

    of: dict[Side, PhaseProfile | None]
    unlike: dict[Side, str | None]


def _profiles(inputs: AnalysisInputs, steps: EngineSteps, ranks: Ranks, rules: RuleBook) -> _Profiles:
    """Profiled steps by side, without the time that collectives blocked them.

    A mixed step's matmuls are sized by its prompt tokens, so it counts as prefill.
    """
    profiled_steps = own_profiled(inputs.profiled_steps, ranks)
    steps = own_steps(steps, ranks)
    chosen: dict[Side, list[ProfiledStep]] = {
        "prefill": [step for step in profiled_steps if (step.context_tokens or 0) > 0],
        "decode": [step for step in profiled_steps if step.context_tokens == 0 and (step.generation_requests or 0) > 0],
    }
    codes: dict[Side, tuple[int, ...]] = {"prefill": (PREFILL, MIXED), "decode": (DECODE,)}
    reasons: dict[Side, str | None] = {}
    for side, profiled in chosen.items():
        same = steps.where(np.isin(steps.phase, codes[side]))
        reasons[side] = unlike(profiled, same, rules) if profiled else None
    return _Profiles(
        of={side: phase_profile(chosen[side], steps) if reasons[side] is None else None for side in chosen},
        unlike=reasons,
    )


def _splits(profiles: _Profiles, inputs: AnalysisInputs, found: Communication | None) -> dict[str, StepSplit]:
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


def _excluded(inputs: AnalysisInputs, window: SteadyWindow, paused_ns: int) -> tuple[ExcludedTime, ...]:
    parts = (
        (
            "before the steady state (start, load, warm-up, ramp-up)",
            window.start_ns - inputs.recording_start_ns,
        ),
        ("after the steady state (drain, exit)", inputs.recording_end_ns - window.end_ns),
        ("profiler windows and the pauses they cause", paused_ns),
    )
    return tuple(ExcludedTime(reason=reason, ns=ns) for reason, ns in parts if ns > 0)


def _idle_client_share(log: RequestLog | None, in_flight: np.ndarray | None, window: SteadyWindow) -> float | None:
    if log is None or in_flight is None:
        return None
    busy = intervals.total(intervals.clip(in_flight, window.start_ns, window.end_ns))
    return 1.0 - busy / max(window.end_ns - window.start_ns, 1)


def _latencies(facts: Facts, targets: Targets, book: EvidenceBook) -> tuple[LatencySummary, ...]:
    """The window's latencies, each beside the user's target for it."""
    wanted = {"ttft": targets.ttft_p99_s, "itl": targets.itl_p99_s}
    found = [_against_target(row, wanted.pop(row.metric, None)) for row in _measured_latencies(facts)]
    judged = {row.metric: row.target_met for row in found}
    for metric, target_s in (("ttft", targets.ttft_p99_s), ("itl", targets.itl_p99_s)):
        if target_s is not None and judged.get(metric) is None:
            book.leave_open(
                f"whether the {metric.upper()} target is met",
                "a 99th percentile needs a hundred samples in the window",
                "record for longer, with a load generator that writes its result",
            )
    return tuple(found)


def _against_target(row: LatencySummary, target_s: float | None) -> LatencySummary:
    if target_s is None:
        return row
    met = None if row.p99_s is None else row.p99_s <= target_s
    return msgspec.structs.replace(row, target_p99_s=target_s, target_met=met)


def _measured_latencies(facts: Facts) -> tuple[LatencySummary, ...]:
    rows = list(latencies(facts.log, facts.window)) if facts.log is not None else []
    steps = facts.steps
    median_step = int(np.median(steps.duration_ns)) if len(steps) else 0
    cycles = cycle_ns(steps, IDLE_GAP_STEPS * median_step)[steps.generation_requests > 0]
    itl = summarise("itl", cycles / NS_PER_S, "cycle time of engine steps that generate")
    if itl is not None:
        rows.append(itl)
    return tuple(rows)


def _phase_reports(
    facts: Facts,
    profiles: _Profiles,
    inputs: AnalysisInputs,
    rules: RuleBook,
    book: EvidenceBook,
) -> tuple[PhaseReport, ...]:
    splits = _splits(profiles, inputs, facts.communication)
    reports = []
    for code, name in enumerate(PHASE_NAMES[:3]):
        steps = facts.steps.of_phase(code)
        if len(steps) == 0:
            continue
        side: Side = "decode" if code == DECODE else "prefill"
        bound = facts.bounds[side]
        split = splits.get(name)
        time_ns = facts.wall.phase_ns[name]
        known = bool(steps.counted.all())
        requests = steps.context_requests + steps.generation_requests
        reports.append(
            PhaseReport(
                phase=name,  # type: ignore[arg-type]
                steps=len(steps),
                time_ns=time_ns,
                share=time_ns / max(facts.wall.judged_ns, 1),
                context_tokens=int(steps.context_tokens.sum()) if known else None,
                generation_tokens=int(steps.generation_tokens.sum()) if known else None,
                step_time_p50_ns=int(np.percentile(steps.duration_ns, 50)),
                step_time_p99_ns=int(np.percentile(steps.duration_ns, 99)) if len(steps) >= 100 else None,
                batch_mean=float(requests.mean()) if known else None,
                bound=bound.resource,
                reason=bound.reason,
                assigned_ratio=split.assigned_ratio if split is not None else None,
                peak_use=bound.peak_use,
                slope=_slope(facts.model, name),
                views=phase_views(side, facts, rules, book),
                evidence=bound.evidence,
            )
        )
    return tuple(reports)


def _slope(model: StepModel | None, phase: str) -> SlopeFit | None:
    """The one fitted model covers all phases; it is shown with decode, where its slopes matter most."""
    return model.fit if model is not None and phase == "decode" else None


def _open_questions(inputs: AnalysisInputs, facts: Facts, book: EvidenceBook) -> None:
    ran = {"prefill": facts.shares.prefill > 0, "decode": facts.shares.decode > 0}
    for side, bound in facts.bounds.items():
        unseen = bound.use is None and bound.peak_use == () and not bound.evidence
        if inputs.profiled_steps and ran[side] and unseen:
            book.leave_open(
                f"what binds {side}",
                bound.reason,
                "record longer, so that a profiler window falls on usual steps of this phase",
            )
    if not inputs.profiled_steps:
        book.leave_open(
            "where time inside a step goes",
            "the recording holds no profiler window",
            "record without `--profile-window off`, long enough for 20 steps before the window",
        )
    for resource, reason in facts.peaks.refused.items():
        book.leave_open(f"use of the {resource.replace('_', ' ')} peak", reason, "record again on a quiet machine")
    if not inputs.peaks:
        book.leave_open(
            "use of peaks",
            "no peak of this machine was measured",
            "record without `--no-calibrate`",
        )
    if facts.admission is None:
        book.leave_open(
            "queueing and KV capacity",
            "vLLM's gauges of running and waiting requests were not seen, or those of several engines were",
            "record one engine, with `--metrics-url http://HOST:PORT/metrics` where its port is not found",
        )
    if facts.log is None:
        book.leave_open(
            "latency of single requests",
            "no request log was found",
            "let the load generator write its result JSON (vllm bench serve --save-result --save-detailed)",
        )
