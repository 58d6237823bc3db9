"""Several engines in one recording: each is judged by itself, and none of them by a mean."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from engine_builder import Engine, Run, capped, inputs, light
from gauge_builder import KV, QUEUED, RUNNING, SETTINGS, WAITING, advice, finding, page, polled

from spyreprof.findings import EngineReport
from spyreprof.recording.schema import AnalysisInputs, EngineKey, EngineSettings
from spyreprof.registry import diagnose

FULL = {RUNNING: 30, WAITING: 40, KV: 0.97}
ROOMY = {RUNNING: 12, WAITING: 0, KV: 0.2}
EMPTY = {RUNNING: [0, 0, 0, 0, 1, 0, 0], WAITING: 0, KV: 0.01}


def pages(*gauges: dict, **changes: object) -> AnalysisInputs:
    """Data-parallel engines on one page."""
    rows = []
    for number, shown in enumerate(gauges):
        rows += page(shown, QUEUED, engine=number)
    return polled(rows, **changes)


def reports(made: AnalysisInputs) -> dict[int, EngineReport]:
    return {one.number: one for one in diagnose(made).engines}


def test_one_full_engine_of_eight_is_the_verdict_and_says_which() -> None:
    diagnosis = diagnose(pages(*[ROOMY] * 5, FULL, ROOMY, EMPTY))
    assert diagnosis.verdict.primary == "kv_capacity_bound"
    assert diagnosis.verdict.headline.startswith("Engine 5 of 8 engines: ")
    assert "load_limited" in diagnosis.verdict.secondary
    assert [one.number for one in diagnosis.engines if one.binds] == [5]
    assert [one.primary for one in diagnosis.engines].count("kv_capacity_bound") == 1


def test_each_engine_has_a_window_gauges_and_evidence_of_its_own() -> None:
    diagnosis = diagnose(pages(FULL, ROOMY))
    full, roomy = diagnosis.engines
    assert (full.gauges.waiting_mean, roomy.gauges.waiting_mean) == (40, 0)
    assert full.window is not None
    by_id = {one.id: one for one in diagnosis.evidence}
    assert {by_id[name].engine for name in full.evidence} == {0}
    assert {by_id[name].engine for name in roomy.evidence} == {1}


def test_one_engine_alone_has_no_report_of_engines() -> None:
    diagnosis = diagnose(pages(FULL))
    assert diagnosis.engines == ()
    assert {one.engine for one in diagnosis.evidence} == {None}


def test_settings_of_each_engine_judge_it_and_no_other() -> None:
    """Thirty running are at the cap of the first and far below that of the second."""
    shown = {RUNNING: 30, WAITING: 40, KV: 0.5}
    keys = [EngineKey(0, (("engine", str(number)),)) for number in (0, 1)]
    caps = (replace(SETTINGS, max_num_seqs=30), replace(SETTINGS, max_num_seqs=256))
    found = reports(pages(shown, shown, settings_of=tuple(zip(keys, caps, strict=True)), settings=EngineSettings()))
    assert (found[0].primary, found[1].primary) == ("queue_bound", "undetermined")


def test_idle_engines_beside_one_that_cannot_be_judged_are_not_called_healthy() -> None:
    diagnosis = diagnose(pages(EMPTY, {RUNNING: 12, WAITING: 0}, EMPTY))
    assert diagnosis.verdict.primary == "undetermined"
    assert "engine 1 of 3 could not be judged" in diagnosis.verdict.reason


def test_the_order_of_rows_changes_nothing() -> None:
    made = pages(ROOMY, FULL)
    shuffled = made.counters.sample(frac=1.0, random_state=1).sort_values("time_ns", kind="stable", ignore_index=True)
    assert diagnose(replace(made, counters=shuffled)).verdict == diagnose(made).verdict


@pytest.mark.parametrize(("other", "uneven"), [(41, True), (43, False)])
def test_a_difference_of_a_third_is_uneven(other: float, uneven: bool) -> None:
    """60 requests at one engine: at the other 42 would be 30 % fewer."""
    made = pages({RUNNING: 30, WAITING: 30, KV: 0.5}, {RUNNING: other, WAITING: 0, KV: 0.5})
    assert (finding(made, "SPY-IMB-001") is not None) == uneven


@pytest.mark.parametrize(("usage", "uneven"), [(0.58, True), (0.62, False)])
def test_caches_that_are_used_unevenly_count_too(usage: float, uneven: bool) -> None:
    made = pages({RUNNING: 30, WAITING: 10, KV: 0.9}, {RUNNING: 35, WAITING: 0, KV: usage})
    assert (finding(made, "SPY-IMB-001") is not None) == uneven


def test_an_imbalance_is_advised_against_by_routing_and_holds_back_every_other_advice() -> None:
    diagnosis = diagnose(pages({RUNNING: 64, WAITING: 90, KV: 0.5}, ROOMY))
    found = finding(diagnosis, "SPY-IMB-001")
    (route,) = found.advice
    assert "balancing" in route.setting
    assert all(change.low is None and change.high is None for change in route.expected)
    assert advice(finding(diagnosis, "SPY-QUE-001")) == {}
    engines = {one.engine for one in diagnosis.evidence if one.id in found.evidence}
    assert engines == {None, 0, 1}


def test_engines_that_all_wait_alike_are_not_uneven() -> None:
    assert finding(pages(FULL, FULL), "SPY-IMB-001") is None


def test_uneven_engines_where_nobody_waits_are_not_a_finding() -> None:
    assert finding(pages({RUNNING: 60, WAITING: 0, KV: 0.9}, ROOMY), "SPY-IMB-001") is None


def test_a_burst_at_one_engine_is_no_imbalance() -> None:
    made = pages({RUNNING: 30, WAITING: [0, 0, 0, 40, 0, 0, 0], KV: 0.5}, {RUNNING: 30, WAITING: 0, KV: 0.5})
    assert finding(made, "SPY-IMB-001") is None


def test_without_the_gauges_of_the_other_engine_nothing_is_compared() -> None:
    rows = page(FULL, QUEUED, engine=0) + page({}, QUEUED, engine=1)
    assert finding(polled(rows), "SPY-IMB-001") is None


def test_servers_of_different_models_are_not_compared() -> None:
    def of(one: str, other: str) -> AnalysisInputs:
        return polled(
            page(FULL, QUEUED, endpoint=0, labels={"model_name": one})
            + page(ROOMY, QUEUED, endpoint=1, labels={"model_name": other})
        )

    assert finding(of("a", "b"), "SPY-IMB-001") is None
    assert "clients" in finding(of("a", "a"), "SPY-IMB-001").advice[0].setting


def beside(*runs: tuple[Engine, Run], metrics: bool = True) -> AnalysisInputs:
    """Engines that each left steps and gauges, told apart by process and label."""
    made = [inputs(run, engine) for engine, run in runs]
    for place, one in enumerate(made):
        one.steps["writer"] = pd.array([f"{place + 1}-a"] * len(one.steps), dtype="string")
        # labels are in another order than the processes, as nothing says that they agree
        label = len(made) - 1 - place
        one.counters["labels"] = pd.array([f'{{"engine": "{label}"}}'] * len(one.counters), dtype="string")
    first = made[0]
    steps = pd.concat([one.steps for one in made]).sort_values("start_ns", kind="stable", ignore_index=True)
    counters = pd.concat([one.counters for one in made]).sort_values("time_ns", kind="stable", ignore_index=True)
    requests = pd.concat([one.requests for one in made], ignore_index=True)
    end_ns = max(one.recording_end_ns for one in made)
    return replace(
        first, steps=steps, counters=counters if metrics else counters.iloc[:0], requests=requests,
        recording_end_ns=end_ns, settings=replace(first.settings, max_num_seqs=None),
    )  # fmt: skip


def test_step_rows_and_gauges_of_an_engine_find_each_other_by_what_they_say() -> None:
    found = reports(beside(capped(), light()))
    assert (found[1].primary, found[0].primary) == ("queue_bound", "load_limited")
    assert found[1].steps > 0
    assert found[1].time_budget is not None
    assert found[1].gauges.waiting_mean > 1


def test_the_budget_of_each_engine_closes() -> None:
    for one in reports(beside(capped(), light())).values():
        budget = one.time_budget
        assert budget.window_ns == sum(part.ns for part in budget.parts) + budget.unexplained_ns


def test_two_processes_of_one_rank_are_two_engines_even_without_gauges() -> None:
    diagnosis = diagnose(beside(capped(), light(), metrics=False))
    assert len(diagnosis.engines) == 2
    assert all(one.gauges.running_mean is None for one in diagnosis.engines)


def of_ranks(offset_ns: int, other: int = 1) -> AnalysisInputs:
    """A second process with a rank of its own that runs the same steps."""
    engine, run = capped()
    made = inputs(run, engine)
    copy = made.steps.copy()
    copy["writer"] = pd.array(["2-a"] * len(copy), dtype="string")
    copy["rank"] = pd.array([other] * len(copy), dtype="Int64")
    copy["start_ns"] += offset_ns
    copy["end_ns"] += offset_ns
    steps = pd.concat([made.steps, copy]).sort_values("start_ns", kind="stable", ignore_index=True)
    return replace(made, steps=steps)


@pytest.mark.parametrize(("offset_ns", "rank", "engines"), [(1_000_000, 1, 0), (30_000_000, 1, 2), (1_000_000, 0, 2)])
def test_processes_that_run_the_same_steps_together_under_ranks_of_their_own_are_one_engine(
    offset_ns: int, rank: int, engines: int
) -> None:
    assert len(diagnose(of_ranks(offset_ns, rank)).engines) == engines


def test_a_price_and_a_log_of_all_engines_are_not_taken_apart() -> None:
    diagnosis = diagnose(beside(capped(), light()))
    assert diagnosis.tails == ()
    assert any("which engine served" in item.topic for item in diagnosis.not_judged)
