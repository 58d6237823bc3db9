"""Output tokens and requests per second: what counts them, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from recorded_builder import SECOND, analysis_inputs, decode_step, diagnosis, table
from report_builders import BUDGET, PHASES

from spyreprof.findings import Diagnosis, EngineGauges, EngineReport, SteadyWindow
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS
from spyreprof.report.model import Rate
from spyreprof.report.throughput import (
    FROM_ALL_COUNTERS,
    FROM_COUNTERS,
    FROM_ONE_OF_SEVERAL,
    FROM_STEPS,
    LOGS,
    throughput,
)

WINDOW = SteadyWindow(start_ns=1_000 * SECOND, end_ns=1_010 * SECOND, share_of_recording=1.0, basis="")
CLIENT, PROGRAM = LOGS.values()
GENERATED = sum(phase.generation_tokens or 0 for phase in PHASES)


def request(arrival_s: float | None, e2e_s: float, tokens: int | None = 10, **changes: Any) -> dict[str, Any]:
    arrival_ns = None if arrival_s is None else int(arrival_s * SECOND)
    row = {"arrival_ns": arrival_ns, "e2e_ns": int(e2e_s * SECOND), "output_tokens": tokens, "failed": False}
    return {**row, "source": "bench_result", **changes}


def rates(
    requests: list[dict[str, Any]], concluded: Diagnosis | None = None, **changes: Any
) -> tuple[Rate | None, Rate | None]:
    """(output tokens, requests) of a log, and of nothing else unless a test brings it."""
    inputs = analysis_inputs(requests=table(REQUESTS, requests), **changes)
    found = throughput(inputs, concluded or diagnosis(window=None, phases=()))
    return (found.output_tokens, found.requests) if found is not None else (None, None)


def test_tokens_are_those_of_the_judged_steps_over_the_judged_time() -> None:
    tokens, _ = rates([request(1_000, 4)], diagnosis(window=WINDOW))
    assert tokens == Rate(per_s=GENERATED / BUDGET.window_ns * SECOND, source=FROM_STEPS)


def test_where_several_processes_ran_steps_the_rate_says_that_it_is_of_one() -> None:
    steps = [{**decode_step(1_002, 1, 64), "writer": writer} for writer in ("10-a", "11-b")]
    tokens, _ = rates([request(1_000, 4)], diagnosis(window=WINDOW), steps=table(STEPS, steps))
    assert tokens is not None
    assert tokens.source == FROM_ONE_OF_SEVERAL


@pytest.mark.parametrize("changes", [{"phases": ()}, {"phases": PHASES[:1]}, {"time_budget": None}, {"window": None}])
def test_where_steps_do_not_count_tokens_the_log_does(changes: dict[str, Any]) -> None:
    log = [request(1_000, 4), request(1_001, 7), request(1_002, 50, failed=True)]
    tokens, requests = rates(log, diagnosis(**{"window": WINDOW, **changes}))
    assert tokens == Rate(per_s=2.5, source=CLIENT)
    assert requests == Rate(per_s=0.25, source=CLIENT)


def test_a_step_in_the_window_whose_tokens_are_unknown_leaves_the_count_to_the_log() -> None:
    unknown = {**decode_step(1_001, 1, 64), "generation_tokens": None}
    after = {**decode_step(1_900, 1, 64), "generation_tokens": None}
    log, concluded = [request(1_000, 4)], diagnosis(window=WINDOW)
    tokens, _ = rates(log, concluded, steps=table(STEPS, [decode_step(1_002, 1, 64), unknown]))
    assert tokens == Rate(per_s=2.5, source=CLIENT)
    tokens, _ = rates(log, concluded, steps=table(STEPS, [decode_step(1_002, 1, 64), after]))
    assert tokens is not None
    assert tokens.source == FROM_STEPS


def test_a_log_without_arrivals_has_no_length_to_count_over() -> None:
    assert rates([request(None, 4), request(1_000, 4)]) == (None, None)


def test_a_log_without_all_token_counts_counts_requests_alone() -> None:
    assert rates([request(1_000, 4, None), request(1_000, 2)]) == (None, Rate(per_s=0.5, source=CLIENT))


def test_requests_that_client_and_program_saw_are_counted_once_as_the_client_did() -> None:
    marked = [request(1_000, 2, source="agent") for _ in range(5)]
    assert rates([request(1_000, 4), *marked])[1] == Rate(per_s=0.25, source=CLIENT)
    assert rates(marked)[1] == Rate(per_s=2.5, source=PROGRAM)


def test_without_a_log_the_engines_counter_tells_the_requests() -> None:
    name = "vllm:e2e_request_latency_seconds_count"
    rows = [
        {"time_ns": second * SECOND, "endpoint": 0, "name": name, "labels": "{}", "value": value}
        for second, value in ((999, 2.0), (1_009, 7.0))
    ]
    tokens, requests = rates([], diagnosis(window=WINDOW, phases=()), counters=table(COUNTERS, rows))
    assert tokens is None
    assert requests == Rate(per_s=0.5, source=FROM_COUNTERS)


def engines() -> tuple[EngineReport, ...]:
    gauges = EngineGauges(running_mean=None, waiting_mean=None, kv_usage_mean=None, preemptions=None)
    return tuple(
        EngineReport(
            number=number, binds=number == 0, window=WINDOW, time_budget=None, primary="undetermined", confidence=None,
            secondary=(), headline="", steps=None, gauges=gauges, evidence=(),
        )
        for number in (0, 1)
    )  # fmt: skip


def test_of_several_engines_tokens_are_those_of_the_one_that_binds_and_requests_of_all() -> None:
    unknown = {**decode_step(1_001, 1, 64), "writer": "11-b", "generation_tokens": None}
    mine = {**decode_step(1_002, 1, 64), "writer": "10-a"}
    name = "vllm:e2e_request_latency_seconds_count"
    rows = [
        {"time_ns": second * SECOND, "endpoint": endpoint, "name": name, "labels": "{}", "value": value}
        for endpoint in (0, 1)
        for second, value in ((999, 2.0), (1_009, 7.0))
    ]
    concluded = diagnosis(window=WINDOW, engines=engines(), writers=("10-a",))
    tokens, requests = rates([], concluded, steps=table(STEPS, [unknown, mine]), counters=table(COUNTERS, rows))
    assert tokens is not None
    assert tokens.source == FROM_ONE_OF_SEVERAL
    assert requests == Rate(per_s=1.0, source=FROM_ALL_COUNTERS)


def test_nothing_that_counts_is_no_throughput() -> None:
    assert throughput(analysis_inputs(), diagnosis(window=None, phases=())) is None
