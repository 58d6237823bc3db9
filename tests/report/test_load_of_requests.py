"""What was asked of the engine, from a log of requests: lengths, and whether clients wait for each other."""

from __future__ import annotations

import random

import pandas as pd
import pytest

from spyreprof.recording import schema
from spyreprof.recording.tables import frame
from spyreprof.report.load import load_of
from spyreprof.report.model import Load
from spyreprof.units import NS_PER_S


def requests(arrivals_s: list[float], e2e_s: list[float], source: str = "bench_result") -> pd.DataFrame:
    return frame(
        schema.REQUESTS,
        {
            "arrival_ns": [round(t * NS_PER_S) for t in arrivals_s],
            "e2e_ns": [round(t * NS_PER_S) for t in e2e_s],
            "prompt_tokens": [10 + k % 3 for k in range(len(arrivals_s))],
            "output_tokens": [5] * len(arrivals_s),
            "source": [source] * len(arrivals_s),
        },
    )


NO_COUNTERS = frame(schema.COUNTERS, {})


def asked(table: pd.DataFrame) -> Load | None:
    return load_of(table, NO_COUNTERS)


def closed(clients: int, count: int, pause_s: float) -> pd.DataFrame:
    """Each client sends its next request so long after its answer."""
    draw = random.Random(1)
    ready = [0.0] * clients
    arrivals, lengths = [], []
    for _ in range(count):
        client = min(range(clients), key=lambda k: ready[k])
        arrivals.append(ready[client])
        lengths.append(draw.uniform(1.0, 2.0))
        ready[client] += lengths[-1] + pause_s
    return requests(arrivals, lengths)


def open_loop(per_s: float, count: int) -> pd.DataFrame:
    draw = random.Random(2)
    arrivals, now = [], 0.0
    for _ in range(count):
        now += draw.expovariate(per_s)
        arrivals.append(now)
    return requests(arrivals, [draw.uniform(1.0, 2.0) for _ in arrivals])


def test_clients_that_wait_for_answers_are_a_closed_loop_of_that_many() -> None:
    load = asked(closed(4, 200, pause_s=0.001))
    assert load is not None
    assert (load.arrivals, load.most_in_flight, load.requests) == ("closed_loop", 4, 200)


def test_requests_that_come_at_random_are_an_open_loop() -> None:
    load = asked(open_loop(2.0, 200))
    assert load is not None
    assert load.arrivals == "open_loop"
    assert load.arrivals_per_s == pytest.approx(2.0, rel=0.2)


def test_requests_that_all_come_first_came_at_once() -> None:
    load = asked(requests([k * 0.001 for k in range(100)], [k * 1.0 + 1 for k in range(100)]))
    assert load is not None
    assert load.arrivals == "at_once"


def test_clients_that_think_are_neither_and_that_is_said() -> None:
    load = asked(closed(4, 200, pause_s=0.5))
    assert load is not None
    assert load.arrivals is None


def test_few_requests_show_no_pattern_but_their_lengths() -> None:
    load = asked(closed(2, 20, pause_s=0.0))
    assert load is not None
    assert load.arrivals is None
    assert load.prompt_tokens is not None
    assert (load.prompt_tokens.p50, load.prompt_tokens.p90) == (11, 12)


def test_arrivals_that_are_not_known_tell_nothing_of_their_pattern() -> None:
    table = closed(4, 200, pause_s=0.001)
    table.loc[3, "arrival_ns"] = pd.NA
    load = asked(table)
    assert load is not None
    assert (load.arrivals, load.arrivals_per_s, load.most_in_flight) == (None, None, None)
    assert load.requests == 200


def test_the_client_is_asked_before_the_program() -> None:
    both = pd.concat([requests([0, 1], [1, 1], "agent"), requests([0, 1, 2], [1, 1, 1])], ignore_index=True)
    load = asked(both)
    assert load is not None
    assert (load.requests, load.source) == (3, "load generator's log")
    assert asked(both[:0]) is None


def test_no_arrivals_are_a_loop_that_only_seems_closed() -> None:
    # So many requests end that one always ended just before.
    load = asked(open_loop(400.0, 4000))
    assert load is not None
    assert load.arrivals != "closed_loop"


def counters(**values: float) -> pd.DataFrame:
    """Each counter at 0 in the first poll and at its value in the second."""
    rows = [(t, name, value * t) for t in (0, 1) for name, value in values.items()]
    return frame(
        schema.COUNTERS,
        {
            "time_ns": [t for t, _, _ in rows],
            "endpoint": [0] * len(rows),
            "name": [f"vllm:prefix_cache_{name}_total" for _, name, _ in rows],
            "labels": ["{}"] * len(rows),
            "value": [value for _, _, value in rows],
        },
    )


def test_the_engine_tells_how_much_of_the_prompts_its_cache_held() -> None:
    table = requests([0, 1], [1, 1])
    load = load_of(table, counters(queries=200.0, hits=50.0))
    assert load is not None
    assert load.cached_ratio == 0.25
    untold = load_of(table, counters(hits=50.0))
    assert untold is not None
    assert untold.cached_ratio is None
    table["cached_tokens"] = [10, 0]
    told = load_of(table, counters(hits=50.0))
    assert told is not None
    assert told.cached_ratio == pytest.approx(10 / 21)
