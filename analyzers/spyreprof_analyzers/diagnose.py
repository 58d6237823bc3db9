"""From a recording's tables to a diagnosis. Pure: no argv, no file names, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Diagnosis, ExcludedTime
from spyreprof.recording.counters import exported_engines
from spyreprof.targets import Targets
from spyreprof_analyzers import intervals
from spyreprof_analyzers.book import EvidenceBook
from spyreprof_analyzers.bounds import phase_bound, usable_peaks
from spyreprof_analyzers.communication import (
    communication,
    ranks_of,
)
from spyreprof_analyzers.compilation import compilation
from spyreprof_analyzers.conclusions import findings
from spyreprof_analyzers.context import Context
from spyreprof_analyzers.cost import cost, withheld
from spyreprof_analyzers.decode_cost import with_decode_cost
from spyreprof_analyzers.efficiency import without_lost_kernels
from spyreprof_analyzers.engine_steps import (
    DECODE,
    EngineSteps,
    busiest_writer,
    engine_steps,
)
from spyreprof_analyzers.engines import engines_of
from spyreprof_analyzers.facts import Facts, floors, shares_of, with_unsplit_unknown
from spyreprof_analyzers.front_end import front_end
from spyreprof_analyzers.gaps import requests_in_flight
from spyreprof_analyzers.gauge_state import gauge_state
from spyreprof_analyzers.gauge_verdict import decide_by_gauges
from spyreprof_analyzers.host_stacks import pid_of, process_stacks
from spyreprof_analyzers.imported_traces import what_files_show
from spyreprof_analyzers.interconnect import link_questions, with_link
from spyreprof_analyzers.interference import interference
from spyreprof_analyzers.kv_pressure import (
    mean_request_tokens,
    most_tokens_lost,
    preempted_requests,
    preemptions,
    prefix_hit_ratio,
    prefix_queried_tokens,
    usual_prompt_tokens,
)
from spyreprof_analyzers.latency_rows import latency_rows
from spyreprof_analyzers.mixed_steps import mixed_share
from spyreprof_analyzers.named_phases import named_parts
from spyreprof_analyzers.offload import leave_offload_open
from spyreprof_analyzers.open_questions import open_questions
from spyreprof_analyzers.padding import padding
from spyreprof_analyzers.phase_profiles import phase_profiles, phase_splits
from spyreprof_analyzers.phase_reports import phase_reports
from spyreprof_analyzers.processes import process_use
from spyreprof_analyzers.reasoning import reasoning
from spyreprof_analyzers.request_log import (
    in_window,
    marked_requests,
    request_log,
    request_times,
)
from spyreprof_analyzers.request_time import ENGINES_UNKNOWN
from spyreprof_analyzers.scheduler import admission, gauges
from spyreprof_analyzers.several import Judged, binding, verdict_of_all, with_engines
from spyreprof_analyzers.slope import fit_step_model, usual_cycle_ns
from spyreprof_analyzers.slow_requests import TOPIC, tail_latencies
from spyreprof_analyzers.stall import stalled
from spyreprof_analyzers.steady_state import load_drift, steady_window, with_doubts
from spyreprof_analyzers.step_curve import step_curve
from spyreprof_analyzers.step_models import decode_models
from spyreprof_analyzers.time_budget import time_budget, wall_time
from spyreprof_analyzers.verdict import decide
from spyreprof_analyzers.without_steps import what_was_seen

if TYPE_CHECKING:
    from spyreprof.findings import SteadyWindow, Verdict
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.bounds import Bound
    from spyreprof_analyzers.communication import Ranks
    from spyreprof_analyzers.facts import Side
    from spyreprof_analyzers.gauge_state import GaugeState
    from spyreprof_analyzers.phase_profiles import PhaseProfiles
    from spyreprof_analyzers.request_log import RequestLog
    from spyreprof_analyzers.stall import Stall


def diagnose(inputs: AnalysisInputs, rules: RuleBook, targets: Targets) -> Diagnosis:
    """Conclude what can be concluded, and say what cannot.

    Args:
        inputs: tables and facts of one recording.
        rules: thresholds.
        targets: the user's latency targets and price.
    """
    book = EvidenceBook()
    if inputs.imported_faults is not None:
        withheld(
            targets.price_per_hour,
            book,
            "files of a profiler do not show how much of an hour the engine is used",
            "run the engine under `spyreprof record`",
        )
        return what_files_show(inputs.imported_faults, inputs.imported_stacks, len(inputs.steps), book)
    engines = engines_of(inputs, rules)
    if not engines:
        judged = _judge(inputs, rules, book)
        return _conclude(judged, judged.verdict, rules, targets, book)
    each: dict[int, _Judgement] = {}
    for engine in engines:
        book.engine = engine.number
        each[engine.number] = _judge(engine.inputs, rules, book, alone=False)
    of_all = [Judged(one, each[one.number].verdict, each[one.number].facts, each[one.number].state) for one in engines]
    book.engine = binding(of_all).engine.number
    found = _conclude(each[book.engine], verdict_of_all(of_all), rules, targets, book, alone=False)
    return with_engines(
        found, of_all, len({key.endpoint for key in exported_engines(inputs.counters)}) < 2, rules, book
    )


@dataclass(frozen=True)
class _Judgement:
    """One engine's verdict, and all that it was reached from. Without steps `facts` and what hangs on it is None."""

    inputs: AnalysisInputs
    verdict: Verdict
    state: GaugeState | None
    stall: Stall | None
    facts: Facts | None = None
    everything: EngineSteps | None = None
    profiles: PhaseProfiles | None = None


def _judge(inputs: AnalysisInputs, rules: RuleBook, book: EvidenceBook, *, alone: bool = True) -> _Judgement:
    """Reach the verdict on one engine; `alone` says that requests of a client's log are all its own."""
    writer = busiest_writer(inputs.steps)
    everything = engine_steps(inputs.steps, writer) if writer is not None else None
    stall = stalled(inputs, rules)
    if writer is None or everything is None or len(everything) < 2:
        state = gauge_state(inputs, rules)
        return _Judgement(inputs, decide_by_gauges(state, inputs, stall, rules, book), state, stall)
    ranks = ranks_of(inputs, writer, rules)
    everything = ranks.steps.get(ranks.judged, everything)
    inputs = _of_engine(inputs, ranks)
    window = steady_window(everything, inputs, rules)
    steps = _steps_of(everything, window, inputs, rules)
    profiles = phase_profiles(inputs, steps, ranks, rules)
    facts = _facts(inputs, everything, window, profiles, ranks, rules, book, alone=alone)
    facts = replace(facts, gauge_state=gauge_state(inputs, rules, window), stall=stall)
    return _Judgement(inputs, decide(facts, rules, book), facts.gauge_state, stall, facts, everything, profiles)


def _conclude(
    judged: _Judgement, verdict: Verdict, rules: RuleBook, targets: Targets, book: EvidenceBook, *, alone: bool = True
) -> Diagnosis:
    """Everything about one engine, beside the verdict."""
    inputs, facts = judged.inputs, judged.facts
    if facts is None or judged.everything is None or judged.profiles is None:
        withheld(
            targets.price_per_hour,
            book,
            "no engine step was seen",
            "record an engine whose steps are seen: `spyreprof doctor`",
        )
        return what_was_seen(inputs, verdict, judged.state, judged.stall, rules, book)
    profiles = judged.profiles
    open_questions(inputs, facts, book)
    link_questions(facts, _calls_of_accelerator(inputs), book)
    latencies = latency_rows(facts, targets, book)
    # what is slow at one engine, or costs money there, cannot be told by a log and a price of all of them
    tails = tail_latencies(inputs, judged.everything, facts, latencies, rules, book) if alone else ()
    price = targets.price_per_hour if alone else None
    if not alone:
        withheld(targets.price_per_hour, book, "the price is of several engines", "record one engine at a time")
        book.leave_open(TOPIC, ENGINES_UNKNOWN, "record one engine at a time")
    return Diagnosis(
        window=with_doubts(facts.window, facts.drift, all_warm_up=facts.compilation.all_warm_up),
        time_budget=facts.budget,
        phases=phase_reports(facts, phase_splits(profiles, inputs, facts.communication), rules, book),
        latencies=latencies,
        tails=tails,
        verdict=verdict,
        findings=findings(Context(facts, verdict, targets, rules, book, tails)),
        cost=cost(inputs, facts, price, book),
        not_judged=tuple(dict.fromkeys((*verdict.missing, *book.not_judged))),
        evidence=book.evidence,
    )


def _facts(  # noqa: PLR0913 - what was found before it
    inputs: AnalysisInputs,
    everything: EngineSteps,
    window: SteadyWindow,
    profiles: PhaseProfiles,
    ranks: Ranks,
    rules: RuleBook,
    book: EvidenceBook,
    *,
    alone: bool = True,
) -> Facts:
    steps = _steps_of(everything, window, inputs, rules)
    seen = gauges(inputs.counters, inputs.polls, inputs.recording_end_ns)
    in_span = seen.within(window) if seen is not None else None
    log = request_log(inputs.requests)
    in_flight = None
    if log is not None and log.arrival_ns is not None:
        in_flight = requests_in_flight(log.arrival_ns, log.arrival_ns + log.e2e_ns, steps, rules)
    peaks = usable_peaks(inputs.peaks, rules)
    found = communication(ranks, steps, inputs, rules)
    splits = phase_splits(profiles, inputs, found)
    cycles_ns = usual_cycle_ns(steps)
    model = fit_step_model(steps, cycles_ns, rules, inputs.own_machine)
    mixed = mixed_share(steps, model, rules)
    wall = wall_time(window, steps, inputs, in_flight, seen, rules)
    excluded = _excluded(inputs, window, wall.paused_ns)
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
    floor_of = {side: floors(side, steps, inputs.model, peaks, rules) for side in bounds}
    if inputs.device_kind != "cpu":
        bounds = without_lost_kernels(bounds, splits, floor_of, rules, book)
    budget = time_budget(wall, splits, excluded)
    leave_offload_open(inputs.counters, book)
    bounds["decode"] = with_decode_cost(bounds["decode"], model, floor_of["decode"].weights, rules, book)
    own, marked = (log, marked_requests(inputs.requests)) if alone else (None, None)
    times = request_times(inputs.counters, own, marked, window)
    hit_ratio = prefix_hit_ratio(inputs.counters, window)
    prompt_tokens = usual_prompt_tokens(log, inputs.counters, hit_ratio, window)
    finished = times.requests if times is not None else None
    preempted = preemptions(inputs.counters, everything, prompt_tokens, most_tokens_lost(inputs.settings, log), window)
    if preempted is not None:
        preempted = replace(preempted, per_request=preempted_requests(inputs.requests, inputs.counters, window))
    processes = process_use(inputs.usage, window.start_ns, window.end_ns, rules)
    engine_pids = frozenset(
        pid for writer in inputs.steps["writer"].unique() if (pid := pid_of(str(writer))) is not None
    )
    return Facts(
        window=window,
        steps=steps,
        decode_steps=steps.of_phase(DECODE),
        wall=wall,
        budget=budget,
        shares=shares_of(wall, budget, mixed),
        mixed=mixed,
        bounds=bounds,
        peaks=peaks,
        admission=(
            admission(steps, in_span, inputs.settings, prompt_tokens, rules, mean_request_tokens(log, hit_ratio))
            if in_span is not None
            else None
        ),
        log=log,
        times=times,
        model=model,
        decode_models=decode_models(steps, cycles_ns, model, rules),
        parameters=inputs.model,
        settings=inputs.settings,
        curve=step_curve(steps, rules),
        floors=floor_of,
        idle_client_share=_idle_client_share(log, in_flight, window),
        requests_in_window=int(in_window(own, window).sum()) if own is not None else finished,
        preemptions=preempted,
        interference=interference(steps, wall.judged_ns, rules),
        reasoning=reasoning(log, window),
        prefix_hit_ratio=hit_ratio,
        prefix_queried_tokens=prefix_queried_tokens(inputs.counters, window),
        compilation=compilation(steps, inputs.compiles, wall, rules),
        engines=_engines(inputs, ranks),
        sampled=process_stacks(inputs.stacks, window.start_ns, window.end_ns, rules, pid_of(ranks.judged)),
        overlap_share=wall.overlap_ns / max(int(steps.duration_ns.sum()), 1),
        finished=inputs.finished,
        device_kind=inputs.device_kind,
        communication=found,
        named_parts=named_parts(inputs.named_phases, window, ranks.judged),
        processes=processes,
        engine_pid=pid_of(ranks.judged),
        front_end=front_end(own, times, window, processes, engine_pids, rules),
        drift=load_drift(steps, window, in_span, rules),
        padding=padding(steps, everything.where(everything.clear_of(inputs.pauses)), model, wall.judged_ns, rules),
    )


def _engines(inputs: AnalysisInputs, ranks: Ranks) -> int:
    """Processes that ran steps; ranks of one group that all left rows are one engine."""
    ran = set(inputs.steps["writer"].unique())
    return len(ran - set(ranks.writers)) + 1 if ranks.complete else len(ran)


def _calls_of_accelerator(inputs: AnalysisInputs) -> bool:
    calls = inputs.collectives
    return calls is not None and inputs.device_kind != "cpu" and bool((calls["size"] > 1).any())


def _steps_of(everything: EngineSteps, window: SteadyWindow, inputs: AnalysisInputs, rules: RuleBook) -> EngineSteps:
    """Steps that lie in the window and outside of profiler pauses."""
    inside = (everything.start_ns >= window.start_ns) & (everything.end_ns <= window.end_ns)
    return with_unsplit_unknown(everything.where(inside & everything.clear_of(inputs.pauses)), rules)


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
