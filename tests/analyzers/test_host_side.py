"""Time between steps that is the host's, the process in front of the engine, and settings that take work off it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from engine_builder import MS, Engine, S, inputs, open_loop, replay, table

from spyreprof import registry
from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import USAGE, AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose
from spyreprof_analyzers.host_stacks import ProcessStacks
from spyreprof_analyzers.processes import ProcessUse, at_limit, process_use, share_one_interpreter

RULES = registry.rules()
ENGINE_PID, FRONT_PID = 1, 100
GPU = EngineSettings(platform="cuda", max_num_seqs=64, kv_blocks=6250, block_size=16, source="metrics")


def gappy(gap_ms: int = 30, step_ms: int = 20, **changes: object) -> AnalysisInputs:
    """A GPU engine whose host takes some time between two steps."""
    engine = Engine(fixed_ns=step_ms * MS, per_request_ns=0, per_context_token_ns=MS // 10, gap_ns=gap_ms * MS)
    run = replay(engine, open_loop(5, 1.5, 60, (20, 40), (30, 50)))
    return inputs(run, engine, **({"device_kind": "cuda", "settings": GPU} | changes))


def usage(cpus: dict[int, float], seconds: int = 80) -> pd.DataFrame:
    rows = [
        {"time_ns": second * S, "pid": pid, "tid": pd.NA, "cpu_ns": int(second * use * S), "rss_bytes": 10**9}
        for pid, use in cpus.items()
        for second in range(seconds)
    ]
    return table(USAGE, rows)


def slow_clients(made: AnalysisInputs, extra_s: float) -> AnalysisInputs:
    """The clients see every answer that much later than the engine gives it."""
    late = made.requests.assign(
        ttft_ns=made.requests["ttft_ns"] + int(extra_s * S), e2e_ns=made.requests["e2e_ns"] + int(extra_s * S)
    )
    return replace(made, requests=late)


def finding(diagnosis: Diagnosis, rule: str) -> Finding | None:
    return next((found for found in diagnosis.findings if found.id == rule), None)


def settings(found: Finding | None) -> list[str]:
    return [advice.setting for advice in found.advice] if found is not None else []


# Time between steps


def test_an_engine_that_waits_for_its_tokens_owns_the_time_between_its_steps() -> None:
    found = diagnose(gappy(settings=replace(GPU, async_scheduling=False)))
    assert found.verdict.primary == "host_bound"
    assert "asynchronous scheduling is off" in found.verdict.reason
    between = finding(found, "SPY-HST-001")
    assert settings(between) == ["async_scheduling"]
    (gain,) = between.advice[0].expected
    assert gain.low is None
    assert gain.high == pytest.approx(1 / (1 - between.share) - 1)


@pytest.mark.parametrize("known", [None, True])
def test_where_nothing_tells_a_device_may_still_work_between_steps(known: bool | None) -> None:
    found = diagnose(gappy(settings=replace(GPU, async_scheduling=known)))
    assert found.verdict.primary == "undetermined"
    assert any("device that works on" in said for said in finding(found, "SPY-HST-001").against)


@pytest.mark.parametrize(("gap_ms", "advised"), [(5, True), (3, False)])
def test_less_than_a_seventh_of_the_work_between_steps_changes_no_setting(gap_ms: int, advised: bool) -> None:
    """Steps take 20 ms, some a little longer for their prompts: 5 ms more are a fifth, 3 ms an eighth."""
    found = finding(diagnose(gappy(gap_ms, settings=replace(GPU, async_scheduling=False))), "SPY-HST-001")
    assert bool(settings(found)) is advised


@pytest.mark.parametrize("platform", ["cpu", "spyre", None])
def test_what_a_platform_lacks_is_not_advised(platform: str | None) -> None:
    known = replace(GPU, platform=platform, async_scheduling=False, eager=True)
    found = finding(diagnose(gappy(settings=known, device_kind="cpu")), "SPY-HST-001")
    assert found is not None
    assert not {"async_scheduling", "enforce_eager"} & set(settings(found))


def test_graphs_and_grammars_are_advised_on_only_where_they_are_known_to_matter() -> None:
    known = replace(GPU, async_scheduling=False, eager=True, grammar=True)
    assert settings(finding(diagnose(gappy(settings=known)), "SPY-HST-001")) == [
        "async_scheduling", "enforce_eager", "structured output backend",
    ]  # fmt: skip
    assert settings(finding(diagnose(gappy()), "SPY-HST-001")) == []


# The process in front of the engine

CROWDED = usage({ENGINE_PID: 0.7, FRONT_PID: 1.0})


def test_a_full_core_in_front_of_the_engine_and_late_clients_bind_the_host() -> None:
    known = replace(GPU, api_servers=1, stream_interval=1)
    found = diagnose(slow_clients(gappy(settings=known, usage=CROWDED), 2.0))
    assert found.verdict.primary == "host_bound"
    outside = finding(found, "SPY-HST-004")
    assert outside.severity in ("medium", "high")
    assert "1.00 CPUs" in outside.text
    advised = {advice.setting: (advice.from_, advice.to) for f in found.findings for advice in f.advice}
    assert advised == {"api_server_count": (1, 2), "stream_interval": (1, 8)}


def test_late_clients_alone_may_be_the_network() -> None:
    for use in (usage({}), usage({ENGINE_PID: 1.0, FRONT_PID: 0.4})):
        outside = finding(diagnose(slow_clients(gappy(usage=use), 2.0)), "SPY-HST-004")
        assert outside.severity == "low"
        assert outside.advice == ()
    assert any("no process outside of the engine" in said for said in outside.against)


def test_a_full_core_whose_requests_do_not_wait_holds_nobody_up() -> None:
    assert finding(diagnose(gappy(usage=CROWDED)), "SPY-HST-004") is None


@pytest.mark.parametrize(("extra_ratio", "told"), [(0.30, True), (0.20, False)])
def test_a_fifth_of_the_time_to_the_first_token_may_pass_outside(extra_ratio: float, told: bool) -> None:
    """Added to the engine's own time: 0.3 of it is 0.23 of the sum, 0.2 of it 0.17."""
    made = gappy(usage=CROWDED)
    usual = made.requests["ttft_ns"].mean() / S
    assert (finding(diagnose(slow_clients(made, usual * extra_ratio)), "SPY-HST-004") is not None) is told


def test_without_the_engines_own_times_nothing_is_outside_of_it() -> None:
    made = slow_clients(gappy(usage=CROWDED), 2.0)
    blind = made.counters[~made.counters["name"].str.contains("queue_time")]
    assert finding(diagnose(replace(made, counters=blind)), "SPY-HST-004") is None
    assert finding(diagnose(replace(made, requests=made.requests[:0])), "SPY-HST-004") is None


def test_a_program_that_is_its_own_front_end_is_not_blamed_for_its_steps() -> None:
    found = finding(diagnose(slow_clients(gappy(usage=usage({ENGINE_PID: 1.0})), 2.0)), "SPY-HST-004")
    assert found.advice == ()


# Use of processors


@pytest.mark.parametrize(
    ("cpus", "thread", "full"),
    [
        (0.96, None, True), (0.94, None, False), (1.2, None, True), (1.3, None, False), (3.0, 0.97, True),
        (3.0, 0.5, False),
    ],
)  # fmt: skip
def test_one_core_limits_a_thread_that_fills_it_or_a_process_that_uses_no_more(
    cpus: float, thread: float | None, full: bool
) -> None:
    assert at_limit(ProcessUse(1, cpus, thread, 60), RULES) is full


def test_use_is_taken_between_samples_of_the_judged_time() -> None:
    rows = usage({7: 0.5}, seconds=20)
    (found,) = process_use(rows, 5 * S, 15 * S, RULES)
    assert (found.pid, found.busiest_thread, found.samples) == (7, None, 11)
    assert found.cpus == pytest.approx(0.5)
    assert process_use(rows, 5 * S, 6 * S, RULES) == ()


def stacks(working: float, of_work: float, looks: int = 400) -> ProcessStacks:
    return ProcessStacks(1, looks, 50, working, of_work, (), (), True, False)


def test_threads_that_fill_one_core_together_share_an_interpreter() -> None:
    assert share_one_interpreter(stacks(0.2, 0.2), RULES)
    assert not share_one_interpreter(stacks(0.2, 0.3), RULES)  # two thirds of a core
    assert not share_one_interpreter(stacks(0.97, 1.0), RULES)  # one thread, which may be spinning
    assert not share_one_interpreter(stacks(0.2, 0.2, looks=50), RULES)
    assert not share_one_interpreter(None, RULES)
