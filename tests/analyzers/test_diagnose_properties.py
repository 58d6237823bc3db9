"""What must hold of every diagnosis, whatever the run: on a replayed engine of arbitrary costs, limits and load."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import pandas as pd
import pytest
from engine_builder import MS, Engine, Run, S, capped, decode_alone, inputs, open_loop, peaks, profiled, replay
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spyreprof.findings import Confidence, Diagnosis, Severity, TimeBudget
from spyreprof.recording.counters import OLDER_NAMES
from spyreprof.recording.schema import AnalysisInputs, Interval
from spyreprof.report.writer import canonical
from spyreprof.rules import load_rules
from spyreprof.targets import Targets
from spyreprof.trace.profiled import ProfiledStep
from spyreprof_analyzers.diagnose import diagnose

CONFIDENCES: tuple[Confidence | None, ...] = (None, "low", "medium", "high")
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high")
RULES = load_rules()
# The same few cases each time; hours of others by SPYREPROF_PROPERTY_EXAMPLES=1000. A failure names its case.
EXAMPLES = os.environ.get("SPYREPROF_PROPERTY_EXAMPLES")
FEW = settings(
    max_examples=int(EXAMPLES or 6),
    derandomize=EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.generate),
)
# Which class time between steps is of depends on how often gauges were polled, and that does not scale.
GAPS = ("scheduler_gap", "waiting_unscheduled", "front_end", "no_load", "unexplained")


def judge(given_: AnalysisInputs) -> Diagnosis:
    return diagnose(given_, RULES, Targets())


def as_bytes(found: Diagnosis) -> bytes:
    """As a report holds it, where sums of floats in another order are the same."""
    return msgspec.json.encode(canonical(msgspec.to_builtins(found), "", []))


@dataclass(frozen=True)
class Case:
    """An engine under a load, and what was seen of it."""

    engine: Engine
    load_seed: int
    rate_per_s: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    uses: tuple[float, float] | None
    gap_ratio: float
    paused: bool
    compiled: bool


CASES = st.builds(
    Case,
    engine=st.builds(
        Engine,
        fixed_ns=st.sampled_from((20 * MS, 60 * MS, 5 * MS)),
        per_request_ns=st.sampled_from((0, MS, 4 * MS)),
        per_cached_token_ns=st.sampled_from((0, 20_000)),
        per_context_token_ns=st.sampled_from((100_000, MS, 3 * MS)),
        max_num_seqs=st.sampled_from((2, 8, 64)),
        kv_tokens=st.sampled_from((400, 100_000)),
        reserve_output=st.booleans(),
        gap_ns=st.sampled_from((100_000, 10 * MS, 40 * MS)),
        noise=st.sampled_from((0.0, 0.05)),
        seed=st.integers(0, 1000),
    ),
    load_seed=st.integers(0, 1000),
    rate_per_s=st.sampled_from((4.0, 1.5, 0.4)),
    prompt=st.sampled_from(((20, 60), (150, 300), (5, 12))),
    output=st.sampled_from(((10, 30), (2, 4))),
    uses=st.sampled_from(((0.1, 0.85), (0.9, 0.2), (0.1, 0.1), None)),
    gap_ratio=st.sampled_from((0.02, 0.5)),
    paused=st.booleans(),
    compiled=st.booleans(),
)


@cache
def seen(case: Case) -> AnalysisInputs:
    """The tables of a run, with a device trace, a pause and a compilation or without."""
    run = replay(case.engine, open_loop(case.load_seed, case.rate_per_s, 20, case.prompt, case.output))
    steps: tuple[ProfiledStep, ...] = ()
    for phase in ("prefill", "decode") if case.uses is not None else ():
        compute, bandwidth = case.uses
        steps += profiled(
            run, phase=phase, compute_use=compute, bandwidth_use=bandwidth, gap_ratio=case.gap_ratio, matmul_ratio=0.4
        )
    middle = run.end_ns // 2
    made = inputs(
        run,
        case.engine,
        profiled_steps=steps,
        pauses=(Interval(middle, middle + 300 * MS, "profiler window"),) if case.paused else (),
        compiles=(Interval(middle + S, middle + 2 * S, "compile"),) if case.compiled else (),
    )
    # A page holds each sample once.
    once = made.counters.drop_duplicates(["time_ns", "name", "labels"], keep="last", ignore_index=True)
    return replace(made, counters=once)


# ---- the same run, seen differently


def moved(given_: AnalysisInputs, shift_ns: int, factor: int) -> AnalysisInputs:
    """Every time multiplied, and the clock's zero moved; rates of the machine go down as its times go up."""

    def time(ns: int) -> int:
        return ns * factor + shift_ns

    def table(frame: pd.DataFrame, times: tuple[str, ...], lengths: tuple[str, ...] = ()) -> pd.DataFrame:
        changed = frame.copy()
        for name in times:
            changed[name] = changed[name] * factor + shift_ns
        for name in lengths:
            changed[name] = changed[name] * factor
        return changed

    counters = table(given_.counters, ("time_ns",))
    seconds = counters["name"].str.endswith("_seconds_sum")
    counters["value"] = counters["value"].where(~seconds, counters["value"] * factor)
    return replace(
        given_,
        steps=table(given_.steps, ("start_ns", "end_ns")),
        requests=table(
            given_.requests, ("arrival_ns",), ("ttft_ns", "e2e_ns", "itl_mean_ns", "itl_max_ns", "queue_ns")
        ),
        counters=counters,
        recording_start_ns=time(given_.recording_start_ns),
        recording_end_ns=time(given_.recording_end_ns),
        pauses=tuple(replace(p, start_ns=time(p.start_ns), end_ns=time(p.end_ns)) for p in given_.pauses),
        compiles=tuple(replace(c, start_ns=time(c.start_ns), end_ns=time(c.end_ns)) for c in given_.compiles),
        profiled_steps=tuple(
            replace(
                step,
                start_ns=time(step.start_ns),
                end_ns=time(step.end_ns),
                gap_ns=step.gap_ns * factor,
                operators=tuple(
                    replace(o, ns=o.ns * factor, ns_with_model=o.ns_with_model * factor) for o in step.operators
                ),
            )
            for step in given_.profiled_steps
        ),
        peaks=tuple(
            replace(
                peak,
                value=peak.value * by,
                before=peak.before * by if peak.before is not None else None,
                after=peak.after * by if peak.after is not None else None,
            )
            for peak in given_.peaks
            for by in (factor if peak.resource == "dispatch" else 1 / factor,)
        ),
    )


def without_metrics(given_: AnalysisInputs, *parts: str) -> AnalysisInputs:
    gone = given_.counters["name"].apply(lambda name: any(part in name for part in parts))
    return replace(given_, counters=given_.counters[~gone].reset_index(drop=True))


# What each witness is asked for, taken away.
DROPPED: dict[str, Callable[[AnalysisInputs], AnalysisInputs]] = {
    "device_trace": lambda given_: replace(given_, profiled_steps=()),
    "requests": lambda given_: without_metrics(
        replace(given_, requests=given_.requests[:0]), "_time_seconds", "e2e_request_latency"
    ),
    "engine": lambda given_: without_metrics(given_, "num_requests", "kv_cache_usage"),
}


def rank(found: Diagnosis) -> int:
    return CONFIDENCES.index(found.verdict.confidence)


def shares_of(budget: TimeBudget) -> dict[str, float]:
    """Shares of the window by part; all time between steps is one."""
    shares = {part.id: part.share for part in budget.parts if part.id not in GAPS}
    return {**shares, "gaps": 1.0 - sum(shares.values())}


def worst(found: Diagnosis) -> int:
    return max((SEVERITIES.index(finding.severity) for finding in found.findings), default=-1)


# ---- properties


@FEW
@given(CASES)
def test_the_budget_closes_to_the_nanosecond_and_shares_are_what_they_say(case: Case) -> None:
    run = seen(case)
    found = judge(run)
    budget = found.time_budget
    if budget is None:
        return
    assert sum(part.ns for part in budget.parts) + budget.unexplained_ns == budget.window_ns
    assert budget.unexplained_ns >= 0
    assert all(part.ns > 0 for part in budget.parts)
    assert len({part.id for part in budget.parts}) == len(budget.parts)
    for part in budget.parts:
        assert part.share == pytest.approx(part.ns / budget.window_ns)
    whole = run.recording_end_ns - run.recording_start_ns
    assert budget.window_ns + sum(part.ns for part in budget.excluded) == whole


@FEW
@given(CASES)
def test_the_same_inputs_give_the_same_bytes(case: Case) -> None:
    run = seen(case)
    first = as_bytes(judge(run))
    again = replace(run, steps=run.steps.copy(), requests=run.requests.copy(), counters=run.counters.copy())
    assert as_bytes(judge(again)) == first


@FEW
@given(CASES, st.integers(-(10**12), 10**16))
def test_the_clock_may_begin_anywhere(case: Case, shift_ns: int) -> None:
    run = seen(case)
    here, there = judge(run), judge(moved(run, max(shift_ns, 0), 1))
    if here.window is not None and there.window is not None:
        assert there.window.start_ns - here.window.start_ns == max(shift_ns, 0)
    assert as_bytes(msgspec.structs.replace(there, window=here.window)) == as_bytes(here)


@FEW
@given(CASES, st.sampled_from((2, 5)))
def test_a_slower_clock_leaves_every_share(case: Case, factor: int) -> None:
    run = seen(case)
    here, there = judge(run), judge(moved(run, 0, factor))
    assert there.verdict.primary == here.verdict.primary
    assert there.verdict.confidence == here.verdict.confidence
    assert (here.time_budget is None) == (there.time_budget is None)
    if here.time_budget is not None and there.time_budget is not None:
        assert shares_of(there.time_budget) == pytest.approx(shares_of(here.time_budget), abs=1e-6)
    assert [(f.id, f.severity) for f in there.findings] == [(f.id, f.severity) for f in here.findings]


@FEW
@given(CASES)
def test_no_more_confidence_is_claimed_than_the_witnesses_allow(case: Case) -> None:
    run = seen(case)
    for given_ in (run, *(drop(run) for drop in DROPPED.values())):
        verdict = judge(given_).verdict
        agreeing = sum(witness.agrees is True for witness in verdict.witnesses)
        dissenting = sum(witness.agrees is False for witness in verdict.witnesses)
        allowed = 3 if agreeing >= 2 and not dissenting else 2 if agreeing >= 2 or (agreeing and not dissenting) else 1
        assert CONFIDENCES.index(verdict.confidence) <= allowed
        assert (verdict.confidence is None) == (verdict.primary == "undetermined")


@FEW
@given(CASES)
def test_without_a_witness_that_agreed_there_is_no_more_confidence(case: Case) -> None:
    run = seen(case)
    found = judge(run)
    for witness in found.verdict.witnesses:
        if witness.agrees:
            less = judge(DROPPED[witness.name](run))
            if less.verdict.primary == found.verdict.primary:
                assert rank(less) <= rank(found), witness.name


@FEW
@given(CASES, st.randoms(use_true_random=False))
def test_a_metric_that_is_gone_makes_no_run_healthier(case: Case, draw: random.Random) -> None:
    run = seen(case)
    found = judge(run)
    for name in (*draw.sample(sorted(set(run.counters["name"])), 3), "vllm:"):
        less = judge(without_metrics(run, name))
        if less.verdict.primary != found.verdict.primary:
            # what is seen alone must not be taken for all there is
            assert less.verdict.confidence != "high", name
        if less.verdict.primary == "load_limited":
            assert found.verdict.primary == "load_limited", name
        if worst(less) < worst(found) and less.verdict.primary == found.verdict.primary:
            # what can no longer be found is either asked for or lowers what is claimed
            assert rank(less) < rank(found) or len(less.not_judged) > len(found.not_judged), name


@pytest.mark.parametrize(
    ("run", "primary", "confidence"),
    [(capped, "decode_bandwidth_bound", "medium"), (decode_alone, "decode_bandwidth_bound", "high")],
)
def test_without_any_metric_a_queue_cannot_be_ruled_out_unless_first_tokens_come_soon(
    run: Callable[[], tuple[Engine, Run]], primary: str, confidence: str
) -> None:
    engine, ran = run()
    steps = profiled(ran, phase="decode", compute_use=0.1, bandwidth_use=0.85)
    verdict = judge(without_metrics(inputs(ran, engine, profiled_steps=steps), "vllm:")).verdict
    assert (verdict.primary, verdict.confidence) == (primary, confidence)
    told = "whether requests waited for a place in the batch is not known"
    assert (told in verdict.confidence_reasons) == (confidence != "high")


@FEW
@given(CASES)
def test_metrics_mean_the_same_by_their_older_names(case: Case) -> None:
    run = seen(case)
    older = {new: names[0] for new, names in OLDER_NAMES.items()}
    older |= {f"{new}_total": f"{old}_total" for new, old in older.items()}
    counters = run.counters.assign(name=run.counters["name"].replace(older))
    assert not counters["name"].eq(run.counters["name"]).all()
    assert as_bytes(judge(replace(run, counters=counters))) == as_bytes(judge(run))


@FEW
@given(CASES, st.integers(0, 1000))
def test_the_order_of_rows_is_of_no_account(case: Case, seed: int) -> None:
    run = seen(case)
    draw = random.Random(seed)

    def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
        order = list(range(len(frame)))
        draw.shuffle(order)
        return frame.iloc[order].reset_index(drop=True)

    mixed: dict[str, Any] = {"steps": shuffled(run.steps), "requests": shuffled(run.requests)}
    mixed["counters"] = shuffled(run.counters).sort_values("time_ns", kind="stable", ignore_index=True)
    mixed["profiled_steps"] = tuple(draw.sample(run.profiled_steps, len(run.profiled_steps)))
    mixed["peaks"] = tuple(draw.sample(peaks(), 3))
    assert as_bytes(judge(replace(run, **mixed))) == as_bytes(judge(run))
