"""From a recording's tables to a diagnosis. Pure: no argv, no file names, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Diagnosis, ExcludedTime, LatencySummary, NotJudged, PhaseReport
from spyreprof.targets import Targets
from spyreprof.units import NS_PER_S
from spyreprof_analyzers import intervals
from spyreprof_analyzers.book import EvidenceBook
from spyreprof_analyzers.bounds import phase_bound, usable_peaks
from spyreprof_analyzers.conclusions import findings
from spyreprof_analyzers.engine_steps import DECODE, PHASE_NAMES, EngineSteps, busiest_writer, engine_steps
from spyreprof_analyzers.facts import Facts, flop_floor_ratio, shares_of, weight_floor_ratio
from spyreprof_analyzers.gaps import requests_in_flight
from spyreprof_analyzers.phase_views import phase_views
from spyreprof_analyzers.profile import StepSplit, phase_profile, step_split
from spyreprof_analyzers.request_log import in_window, latencies, request_log, request_times, summarise
from spyreprof_analyzers.scheduler import admission, gauges
from spyreprof_analyzers.slope import cycle_ns, fit_step_model
from spyreprof_analyzers.steady_state import steady_window
from spyreprof_analyzers.step_curve import step_curve
from spyreprof_analyzers.time_budget import time_budget, wall_time
from spyreprof_analyzers.verdict import decide, undetermined

if TYPE_CHECKING:
    from spyreprof.findings import SlopeFit, SteadyWindow
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.bounds import Bound
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
    if everything is None or len(everything) < 2:
        return _nothing_to_judge(inputs, book)
    window = steady_window(everything, inputs, rules)
    steps = _steps_of(everything, window, inputs)
    profiles = _profiles(inputs, steps)
    facts = _facts(inputs, steps, window, profiles, rules, book)
    verdict = decide(facts, rules, book)
    _open_questions(inputs, facts, book)
    return Diagnosis(
        window=window,
        time_budget=facts.budget,
        phases=_phase_reports(facts, profiles, inputs, rules, book),
        latencies=_latencies(facts),
        verdict=verdict,
        findings=findings(facts, verdict, targets, rules, book),
        not_judged=(*verdict.missing, *book.not_judged),
        evidence=book.evidence,
    )


def _facts(
    inputs: AnalysisInputs,
    steps: EngineSteps,
    window: SteadyWindow,
    profiles: dict[Side, PhaseProfile | None],
    rules: RuleBook,
    book: EvidenceBook,
) -> Facts:
    seen = gauges(inputs.counters, inputs.recording_end_ns)
    in_span = seen.within(window) if seen is not None else None
    log = request_log(inputs.requests)
    in_flight = None
    if log is not None and log.arrival_ns is not None:
        in_flight = requests_in_flight(log.arrival_ns, log.arrival_ns + log.e2e_ns, steps, rules)
    peaks = usable_peaks(inputs.peaks, rules)
    splits = _splits(profiles, steps, inputs)
    wall = wall_time(window, steps, inputs, in_flight, seen, rules)
    excluded = _excluded(inputs, window, wall.paused_ns)
    budget = time_budget(wall, splits, excluded)
    bounds: dict[Side, Bound] = {
        "prefill": phase_bound("prefill", profiles["prefill"], splits.get("prefill"), peaks, rules, book),
        "decode": phase_bound("decode", profiles["decode"], splits.get("decode"), peaks, rules, book),
    }
    times = request_times(inputs.counters, log)
    finished = times.requests if times is not None else None
    median_step = int(np.median(steps.duration_ns)) if len(steps) else 0
    return Facts(
        window=window,
        steps=steps,
        wall=wall,
        budget=budget,
        shares=shares_of(wall, budget, steps),
        bounds=bounds,
        peaks=peaks,
        admission=admission(steps, in_span, rules) if in_span is not None else None,
        log=log,
        times=times,
        model=fit_step_model(steps, cycle_ns(steps, IDLE_GAP_STEPS * median_step), rules),
        parameters=inputs.model,
        settings=inputs.settings,
        curve=step_curve(steps, rules),
        weight_floor_ratio=weight_floor_ratio(steps, inputs.model, peaks),
        flop_floor_ratio=flop_floor_ratio(steps, inputs.model, peaks),
        idle_client_share=_idle_client_share(log, in_flight, window),
        requests_in_window=int(in_window(log, window).sum()) if log is not None else finished,
        engines=int(inputs.steps["writer"].nunique()),
    )


def _steps_of(everything: EngineSteps, window: SteadyWindow, inputs: AnalysisInputs) -> EngineSteps:
    """Steps that lie in the window and outside of profiler pauses."""
    keep = (everything.start_ns >= window.start_ns) & (everything.end_ns <= window.end_ns)
    for pause in inputs.pauses:
        keep &= (everything.end_ns <= pause.start_ns) | (everything.start_ns >= pause.end_ns)
    return everything.where(keep)


def _profiles(inputs: AnalysisInputs, steps: EngineSteps) -> dict[Side, PhaseProfile | None]:
    """Profiled steps by side. A mixed step's matmuls are sized by its prompt tokens, so it counts as prefill."""
    prefill = [step for step in inputs.profiled_steps if (step.context_tokens or 0) > 0]
    decode = [
        step for step in inputs.profiled_steps if step.context_tokens == 0 and (step.generation_requests or 0) > 0
    ]
    return {"prefill": phase_profile(prefill, steps), "decode": phase_profile(decode, steps)}


def _splits(
    profiles: dict[Side, PhaseProfile | None], steps: EngineSteps, inputs: AnalysisInputs
) -> dict[str, StepSplit]:
    """Resource shares per phase name. Mixed steps take the shares of steps with prompt tokens."""
    dispatch = next((peak.value for peak in inputs.peaks if peak.resource == "dispatch"), None)
    splits: dict[str, StepSplit] = {}
    for names, profile in ((("prefill", "mixed"), profiles["prefill"]), (("decode",), profiles["decode"])):
        if profile is None:
            continue
        codes = [PHASE_NAMES.index(name) for name in names]
        same = steps.where(np.isin(steps.phase, codes))
        usual = float(same.duration_ns.mean()) if len(same) else None
        split = step_split(profile, dispatch, usual)
        splits.update(dict.fromkeys(names, split))
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


def _latencies(facts: Facts) -> tuple[LatencySummary, ...]:
    rows = list(latencies(facts.log, facts.window)) if facts.log is not None else []
    generating = facts.steps.where(facts.steps.generation_requests > 0)
    itl = summarise("itl", generating.duration_ns / NS_PER_S, "duration of engine steps that generate")
    if itl is not None:
        rows.append(itl)
    return tuple(rows)


def _phase_reports(
    facts: Facts,
    profiles: dict[Side, PhaseProfile | None],
    inputs: AnalysisInputs,
    rules: RuleBook,
    book: EvidenceBook,
) -> tuple[PhaseReport, ...]:
    splits = _splits(profiles, facts.steps, inputs)
    reports = []
    for code, name in enumerate(PHASE_NAMES[:3]):
        steps = facts.steps.of_phase(code)
        if len(steps) == 0:
            continue
        side: Side = "decode" if code == DECODE else "prefill"
        bound = facts.bounds[side]
        split = splits.get(name)
        time_ns = facts.wall.phase_ns[name]
        requests = steps.context_requests + steps.generation_requests
        reports.append(
            PhaseReport(
                phase=name,  # type: ignore[arg-type]
                steps=len(steps),
                time_ns=time_ns,
                share=time_ns / max(facts.wall.judged_ns, 1),
                context_tokens=int(steps.context_tokens.sum()),
                generation_tokens=int(steps.generation_tokens.sum()),
                step_time_p50_ns=int(np.percentile(steps.duration_ns, 50)),
                step_time_p99_ns=int(np.percentile(steps.duration_ns, 99)) if len(steps) >= 100 else None,
                batch_mean=float(requests.mean()),
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
            "no scheduler gauges of one engine were seen",
            "record with `--metrics-url http://HOST:PORT/metrics`",
        )
    if facts.log is None:
        book.leave_open(
            "latency of single requests",
            "no request log was found",
            "let the load generator write its result JSON (vllm bench serve --save-result --save-detailed)",
        )


def _nothing_to_judge(inputs: AnalysisInputs, book: EvidenceBook) -> Diagnosis:
    missing = (
        NotJudged(
            topic="everything",
            reason="no engine step was seen",
            obtain="record an engine that annotates its steps (vLLM, SGLang), and see `spyreprof doctor`",
        ),
    )
    log = request_log(inputs.requests)
    rows: tuple[LatencySummary, ...] = ()
    if log is not None:
        whole = [("ttft", log.ttft_ns / NS_PER_S), ("e2e", log.e2e_ns / NS_PER_S)]
        found = (summarise(metric, values, "load generator's log") for metric, values in whole)
        rows = tuple(row for row in found if row is not None)
    return Diagnosis(
        window=None,
        time_budget=None,
        phases=(),
        latencies=rows,
        verdict=undetermined("no engine step was seen", missing, ()),
        findings=(),
        not_judged=missing,
        evidence=book.evidence,
    )
