"""The wall time of the window is cut into parts that add up to it to the nanosecond, whatever the steps look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_builder import MS, table
from hypothesis import given, settings
from hypothesis import strategies as st

from spyreprof.findings import SteadyWindow
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS, USAGE, AnalysisInputs, Interval
from spyreprof.rules import load_rules
from spyreprof_analyzers.engine_steps import PHASE_NAMES, EngineSteps, engine_steps
from spyreprof_analyzers.profile import StepSplit
from spyreprof_analyzers.scheduler import Gauges
from spyreprof_analyzers.time_budget import WallTime, time_budget, wall_time

RULES = load_rules()
Span = tuple[int, int]


def steps_of(rows: list[tuple[int, int, int | None, int | None]]) -> EngineSteps:
    """Steps by start, end, prompt tokens and decodes."""
    made: list[dict[str, object]] = []
    for start, end, context, decodes in rows:
        told = {"context_tokens": context, "generation_requests": decodes, "context_requests": context and 1,
                "generation_tokens": decodes}  # fmt: skip
        made.append({
            "start_ns": start, "end_ns": end, "writer": "1-a", "source": "annotation", "rank": 0, "compiles": 0,
            "profiled": False, **{name: value for name, value in told.items() if value is not None},
        })  # fmt: skip
    return engine_steps(table(STEPS, made), "1-a")


def inputs_with(pauses: list[Span], compiles: list[Span]) -> AnalysisInputs:
    return AnalysisInputs(
        steps=table(STEPS, []), requests=table(REQUESTS, []), counters=table(COUNTERS, []), usage=table(USAGE, []),
        recording_start_ns=0, recording_end_ns=10**9, finished=True,
        pauses=tuple(Interval(start, end, "profiler window") for start, end in pauses),
        compiles=tuple(Interval(start, end, "compile") for start, end in compiles),
    )  # fmt: skip


spans = st.lists(st.tuples(st.integers(-50, 1200), st.integers(0, 400)), max_size=5).map(
    lambda drawn: [(start, start + length) for start, length in drawn]
)


@st.composite
def cut_windows(draw: st.DrawFn) -> tuple[WallTime, SteadyWindow]:
    """A window of steps of every kind that may overlap, under pauses and compilations that may too."""
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        start = draw(st.integers(0, 990))
        end = start + draw(st.integers(1, 1000 - start))
        rows.append((start, end, draw(st.sampled_from((None, 0, 5))), draw(st.sampled_from((None, 0, 3)))))
    window = SteadyWindow(start_ns=0, end_ns=1000, share_of_recording=1.0, basis="")
    in_flight = None
    if draw(st.booleans()):
        edges = sorted(draw(st.sets(st.integers(0, 1000), max_size=8)))
        pairs = list(zip(edges[::2], edges[1::2], strict=False))
        in_flight = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    seen = None
    if draw(st.booleans()):
        times = np.arange(0, 1000, 50, dtype=np.int64)
        values = np.asarray(draw(st.lists(st.sampled_from((0.0, 2.0, float("nan"))), min_size=20, max_size=20)))
        seen = Gauges(times, values, values[::-1].copy(), np.full(20, np.nan))
    made = wall_time(window, steps_of(rows), inputs_with(draw(spans), draw(spans)), in_flight, seen, RULES)
    return made, window


@st.composite
def splits(draw: st.DrawFn) -> dict[str, StepSplit]:
    """How some phases' steps are cut: shares that add up to one."""
    found = {}
    for name in PHASE_NAMES:
        if draw(st.booleans()):
            weights = draw(st.lists(st.integers(0, 100), min_size=6, max_size=6).filter(any))
            cut = [weight / sum(weights) for weight in weights]
            found[name] = StepSplit(
                device_compute=cut[0], exposed_communication=cut[1], exposed_copy=cut[2], host=cut[3],
                unassigned=cut[4], host_high=cut[3], waiting_for_ranks=cut[5],
            )  # fmt: skip
    return found


@settings(max_examples=300)
@given(cut_windows())
def test_phases_compilation_gaps_and_pauses_make_up_the_window(made: tuple[WallTime, SteadyWindow]) -> None:
    wall, window = made
    times = (*wall.phase_ns.values(), wall.compile_ns, *wall.gaps.ns.values())
    assert all(isinstance(ns, int) and ns >= 0 for ns in times)
    assert sum(times) == wall.judged_ns
    assert wall.judged_ns + wall.paused_ns == window.end_ns - window.start_ns
    assert wall.overlap_ns >= 0


@settings(max_examples=300)
@given(cut_windows(), splits())
def test_parts_and_what_is_unexplained_are_the_window_to_the_nanosecond(
    made: tuple[WallTime, SteadyWindow], cut: dict[str, StepSplit]
) -> None:
    wall, _ = made
    budget = time_budget(wall, cut, ())
    assert all(isinstance(part.ns, int) and part.ns > 0 for part in budget.parts)
    assert budget.unexplained_ns >= 0
    assert sum(part.ns for part in budget.parts) + budget.unexplained_ns == budget.window_ns == wall.judged_ns
    assert len({part.id for part in budget.parts}) == len(budget.parts)
    # a phase that nobody took apart is not divided, and a step of unknown work explains nothing
    for phase in ("prefill", "decode", "mixed"):
        whole = [part for part in budget.parts if part.id == f"{phase}.not_split"]
        assert bool(whole) is (wall.phase_ns[phase] > 0 and phase not in cut)
    assert budget.unexplained_ns >= wall.phase_ns["unknown"] + wall.gaps.ns["unexplained"]


def budget_of(rows: list[tuple[int, int, int | None, int | None]], **more: Any) -> dict[str, int]:
    window = SteadyWindow(start_ns=0, end_ns=1000 * MS, share_of_recording=1.0, basis="")
    scaled = [(start * MS, end * MS, context, decodes) for start, end, context, decodes in rows]
    spans = {name: [(start * MS, end * MS) for start, end in more.get(name, [])] for name in ("pauses", "compiles")}
    wall = wall_time(window, steps_of(scaled), inputs_with(spans["pauses"], spans["compiles"]), None, None, RULES)
    found = time_budget(wall, {}, ())
    return {part.id: part.ns // MS for part in found.parts} | {"unexplained": found.unexplained_ns // MS}


def test_where_steps_overlap_the_later_one_counts_from_the_end_of_the_earlier() -> None:
    found = budget_of([(0, 600, 5, 0), (400, 1000, 0, 3)])
    assert found == {"prefill.not_split": 600, "decode.not_split": 400, "unexplained": 0}


def test_compilation_is_taken_out_of_the_step_that_waits_for_it() -> None:
    found = budget_of([(0, 1000, 0, 3)], compiles=[(100, 300), (200, 400)])
    assert found == {"decode.not_split": 700, "compile": 300, "unexplained": 0}


def test_a_pause_takes_its_time_from_the_window_and_from_a_compilation_in_it() -> None:
    found = budget_of([(0, 1000, 0, 3)], compiles=[(100, 300)], pauses=[(200, 500)])
    assert found == {"decode.not_split": 600, "compile": 100, "unexplained": 0}


def test_a_step_of_unknown_work_is_unexplained() -> None:
    assert budget_of([(0, 500, 0, 3), (500, 1000, None, None)]) == {"decode.not_split": 500, "unexplained": 500}


@pytest.mark.parametrize(("gap_ms", "part"), [(9, "scheduler_gap"), (200, "no_load")])
def test_a_gap_is_the_engines_where_it_is_short_and_of_no_load_where_new_work_follows(gap_ms: int, part: str) -> None:
    """The steps take 100 ms; after the gap a prompt begins, without anything that ran before."""
    rows = [(100 * n, 100 * (n + 1), 0, 3) for n in range(5)]
    found = budget_of([*rows, (500 + gap_ms, 1000, 5, 0)])
    assert found[part] == gap_ms
