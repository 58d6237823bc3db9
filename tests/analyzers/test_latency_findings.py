"""Prefill that interrupts decode, prefix caching that is off, reasoning: what they take, and loads without them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from engine_builder import (
    MS,
    Engine,
    Request,
    Run,
    S,
    capped,
    decode_alone,
    inputs,
    light,
    prefill_heavy,
    profiled,
    replay,
    table,
)
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import REQUESTS, STEPS, AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose
from spyreprof_analyzers.engine_steps import PREFILL, EngineSteps, engine_steps
from spyreprof_analyzers.interference import _decodes_left_out


def finding(diagnosis: Diagnosis, rule: str) -> Finding | None:
    return next((f for f in diagnosis.findings if f.id == rule), None)


def value(diagnosis: Diagnosis, metric: str) -> float:
    return next(e.value for e in diagnosis.evidence if e.metric == metric)


ENGINE = Engine(fixed_ns=20 * MS, per_request_ns=0, per_context_token_ns=1 * MS, noise=0.0, max_num_seqs=16)


def interrupted(every_s: float = 1.0, prompt: int = 320, engine: Engine = ENGINE) -> tuple[Engine, Run]:
    """Four requests that decode all the time, and every so often a long prompt that wants one token."""
    talk = [Request(number * 30 * MS, 8, 1600) for number in range(4)]
    long = [Request(int((2 + number * every_s) * S), prompt, 1) for number in range(int(30 / every_s))]
    return engine, replay(engine, talk + long)


def judged(engine: Engine, run: Run, **changes: object) -> Diagnosis:
    return diagnose(inputs(run, engine, **changes))


# Prefill interrupts decode


def test_decodes_that_wait_for_long_prompts_are_a_finding_with_the_setting_that_cuts_them() -> None:
    found = finding(judged(*interrupted(0.7), settings=SETTINGS), "SPY-INT-001")
    assert found.severity == "medium"
    (advice,) = found.advice
    assert (advice.setting, advice.from_, advice.to) == ("max_num_batched_tokens", 64, 32)
    assert [change.direction for change in advice.expected] == ["down"]
    assert {(price.metric, price.direction) for price in advice.pays} >= {("TTFT", "up")}


SETTINGS = EngineSettings(max_num_batched_tokens=64, max_num_seqs=16)


def test_the_added_wait_is_what_the_steps_take_beyond_those_of_the_same_decodes() -> None:
    engine, run = interrupted()
    diagnosis = judged(engine, run)
    mixed = [row for row in run.steps if row["context_tokens"] and row["generation_requests"]]
    decoding = [row for row in run.steps if row["generation_requests"]]
    extra = sum(row["context_tokens"] * MS * row["generation_requests"] for row in mixed)
    waited = sum((row["end_ns"] - row["start_ns"]) * row["generation_requests"] for row in decoding)
    assert value(diagnosis, "interference.extra_wait_share") == pytest.approx(extra / waited, abs=0.03)
    assert value(diagnosis, "interference.slowest_mixed_share") == 1.0


@pytest.mark.parametrize(("every_s", "expected"), [(2.2, True), (4.5, False)])
def test_less_than_a_tenth_of_the_window_is_not_material(every_s: float, expected: bool) -> None:
    """A prompt of 320 tokens takes 320 ms beyond the decodes' own steps: a seventh of 2.2 s, a fourteenth of 4.5 s."""
    assert (finding(judged(*interrupted(every_s)), "SPY-INT-001") is not None) is expected


@pytest.mark.parametrize("load", [prefill_heavy, decode_alone, capped, light])
def test_plain_loads_show_no_interruption_above_low(load) -> None:
    found = finding(judged(*load()), "SPY-INT-001")
    assert found is None or found.severity in ("low", "info")


def test_without_decode_steps_to_compare_with_nothing_is_said_of_interruption() -> None:
    engine = replace(ENGINE, max_num_seqs=64)
    run = replay(engine, [Request(number * 30 * MS, 300, 3) for number in range(60)])
    alone = [row for row in run.steps if row["generation_requests"] and not row["context_tokens"]]
    assert len(alone) < 20
    assert finding(judged(engine, run), "SPY-INT-001") is None


def test_steps_without_counts_say_nothing_of_interruption() -> None:
    """Marked as prefill, decode or mixed, and no more."""
    made = inputs(*reversed(interrupted(0.7)))
    marks = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}
    phase = [marks[row.context_tokens > 0, row.generation_requests > 0] for row in made.steps.itertuples()]
    blind = made.steps.assign(phase=phase, context_tokens=None, context_requests=None).astype(
        {"phase": "string", "context_tokens": "Int64", "context_requests": "Int64"}
    )
    assert finding(diagnose(replace(made, steps=blind)), "SPY-INT-001") is None


def test_a_budget_that_would_not_hold_the_batch_is_not_advised() -> None:
    engine, run = interrupted()
    settings = EngineSettings(max_num_batched_tokens=64, max_num_seqs=64)
    assert finding(judged(engine, run, settings=settings), "SPY-INT-001").advice == ()


def test_a_budget_that_is_not_known_is_estimated_from_the_largest_step() -> None:
    (advice,) = finding(judged(*interrupted(), settings=EngineSettings()), "SPY-INT-001").advice
    assert (advice.from_, advice.from_origin) == (64, "estimated")


def steps_of(*rows: tuple[int, int, int, int]):
    """Steps of (context requests, context tokens, their sequence lengths, generation requests), one after another."""
    made = [
        {
            "start_ns": at * MS, "end_ns": (at + 1) * MS, "writer": "1-a", "context_requests": row[0],
            "context_tokens": row[1], "context_seq_len_sum": row[2], "generation_requests": row[3],
            "generation_tokens": row[3], "compiles": 0,
        }
        for at, row in enumerate(rows)
    ]  # fmt: skip
    return engine_steps(table(STEPS, made), "1-a")


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        # three decodes wait for a prompt of two chunks, and are four afterwards
        ([(0, 0, 0, 3), (1, 64, 64, 0), (1, 36, 100, 0), (0, 0, 0, 4)], [0, 3, 3, 0]),
        # one request ended before the next one was begun: nobody waited
        ([(0, 0, 0, 1), (1, 20, 20, 0), (0, 0, 0, 1)], [0, 0, 0]),
        # two of three ended meanwhile
        ([(0, 0, 0, 3), (1, 20, 20, 0), (0, 0, 0, 2)], [0, 1, 0]),
        # prompts at the very start
        ([(2, 40, 40, 0), (0, 0, 0, 2)], [0, 0]),
    ],
)
def test_decodes_left_out_of_a_step_of_prompts_are_those_that_surely_go_on(rows, left_out: list[int]) -> None:
    assert _decodes_left_out(steps_of(*rows)).tolist() == left_out


def left_out_one_by_one(steps: EngineSteps) -> list[int]:
    """The same, walking from step to step."""
    left_out = [0] * len(steps)
    before, begun, since = 0, 0, 0
    cached, prompts = -1, -1
    for at in range(len(steps)):
        requests = int(steps.context_requests[at])
        if steps.phase[at] == PREFILL:
            goes_on = requests == prompts and steps.context_seq_len_sum[at] == cached + steps.context_tokens[at]
            begun += 0 if goes_on else requests
            cached, prompts = int(steps.context_seq_len_sum[at]), requests
        else:
            after = int(steps.generation_requests[at])
            left_out[since:at] = [max(min(before, after - begun), 0)] * (at - since)
            before, begun, since = after + requests, 0, at + 1
            cached, prompts = -1, -1
    return left_out


ROWS = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.just(0)) | st.tuples(
    st.integers(0, 2), st.integers(0, 3), st.integers(0, 9), st.integers(0, 6)
)


@given(st.lists(ROWS, min_size=1, max_size=30))
def test_decodes_left_out_are_the_same_as_when_walking_from_step_to_step(rows: list[tuple[int, int, int, int]]) -> None:
    steps = steps_of(*rows)
    assert _decodes_left_out(steps).tolist() == left_out_one_by_one(steps)


def test_an_engine_that_never_mixes_shows_its_interruptions_too() -> None:
    """Prompts take steps of their own, in which the decodes wait."""
    engine, run = interrupted()
    split = []
    for row in run.steps:
        if row["context_tokens"] and row["generation_requests"]:
            middle = row["start_ns"] + row["context_tokens"] * MS
            none = {"generation_requests": 0, "generation_tokens": 0, "generation_seq_len_sum": 0}
            split.append({**row, "end_ns": middle, **none})
            no_prompt = {f"context_{name}": 0 for name in ("requests", "tokens", "seq_len_sum", "q_k_sum")}
            split.append({**row, "start_ns": middle, **no_prompt})
        else:
            split.append(row)
    mixed = value(judged(engine, run), "interference.extra_wait_share")
    run.steps = split
    assert value(judged(engine, run), "interference.extra_wait_share") == pytest.approx(mixed, abs=0.05)


# Prefix caching


def uncached(caching: bool | None, **changes: object) -> AnalysisInputs:
    engine, run = prefill_heavy()
    settings = EngineSettings(kv_blocks=6250, block_size=16, max_num_seqs=64, prefix_caching=caching)
    shown = profiled(run, phase="prefill", compute_use=0.6, bandwidth_use=0.05)
    return inputs(run, engine, **({"settings": settings, "profiled_steps": shown} | changes))


def test_prefix_caching_that_is_off_while_prompts_take_the_time_is_a_finding_with_a_ceiling() -> None:
    diagnosis = diagnose(uncached(False))
    found = finding(diagnosis, "SPY-PFX-001")
    assert found.severity == "medium"
    assert found.share == pytest.approx(value(diagnosis, "window.prefill_share"))
    (advice,) = found.advice
    assert advice.test_arguments == "--enable-prefix-caching"
    assert all(change.low is None for change in advice.expected)
    assert any("share nothing" in sentence for sentence in found.against)


@pytest.mark.parametrize("caching", [True, None])
def test_caching_that_is_on_or_not_known_is_no_finding(caching: bool | None) -> None:
    assert finding(diagnose(uncached(caching)), "SPY-PFX-001") is None


def test_prompts_that_take_little_of_the_window_make_no_finding_of_it() -> None:
    engine, run = decode_alone()
    off = EngineSettings(prefix_caching=False)
    diagnosis = diagnose(inputs(run, engine, settings=off))
    assert value(diagnosis, "window.prefill_share") < 0.1 or finding(diagnosis, "SPY-PFX-001") is not None
    engine, run = capped(Engine(max_num_seqs=2, per_context_token_ns=0))
    diagnosis = diagnose(inputs(run, engine, settings=off))
    assert value(diagnosis, "window.prefill_share") < 0.1
    assert finding(diagnosis, "SPY-PFX-001") is None


def test_the_hit_ratio_stands_beside_prefill_where_it_is_known() -> None:
    made = uncached(True)
    counters = made.counters.copy()
    queries = counters[counters["name"] == "vllm:prefix_cache_queries_total"]
    found = queries.assign(name="vllm:prefix_cache_hits_total", value=queries["value"] * 0.75)
    kept = counters[counters["name"] != "vllm:prefix_cache_hits_total"]
    mixed = pd.concat([kept, found]).sort_values("time_ns", kind="stable", ignore_index=True)
    diagnosis = diagnose(replace(made, counters=mixed))
    ratio = next(e for e in diagnosis.evidence if e.metric == "prefix_cache.hit_ratio")
    assert ratio.value == pytest.approx(0.75)
    assert ratio.id in finding(diagnosis, "SPY-PRE-001").evidence
    blind = replace(made, counters=kept[~kept["name"].str.contains("prefix_cache")])
    assert not [e for e in diagnose(blind).evidence if e.metric == "prefix_cache.hit_ratio"]


# Reasoning


def thinking(*shares: float, **changes: object) -> AnalysisInputs:
    """Decode at batch 1; the requests' outputs are reasoning to these shares, in turn."""
    engine, run = decode_alone()
    made = inputs(run, engine, **changes)
    thought = [int(24 * shares[at % len(shares)]) for at in range(len(made.requests))]
    return replace(made, requests=made.requests.assign(reasoning_tokens=thought).astype({"reasoning_tokens": "Int64"}))


def test_reasoning_is_told_with_its_share_of_output_and_of_the_window() -> None:
    diagnosis = diagnose(thinking(0.5, 0.625, 0.75))
    found = finding(diagnosis, "SPY-RSN-001")
    assert found.severity == "medium"
    assert value(diagnosis, "reasoning.output_share") == pytest.approx(0.625, abs=0.01)
    assert value(diagnosis, "reasoning.decode_share") == pytest.approx(0.625, abs=0.01)
    assert found.share == pytest.approx(0.625 * value(diagnosis, "window.decode_share"), abs=0.01)
    (advice,) = found.advice
    assert any(price.metric == "answer quality" for price in advice.pays)
    (change,) = advice.expected
    # 12, 15 or 18 of 24: a limit of 15 cuts 3 off every third, unless the answer gets longer by them
    assert (change.low, change.high) == (0.0, pytest.approx(3 / 72, abs=0.003))


def test_reasoning_that_is_always_as_long_gives_no_number_for_a_limit() -> None:
    (change,) = finding(diagnose(thinking(0.5)), "SPY-RSN-001").advice[0].expected
    assert (change.low, change.high) == (None, None)


@pytest.mark.parametrize(("share", "severity"), [(0.75, "medium"), (0.42, "low"), (0.21, "info"), (0.05, None)])
def test_the_severity_of_reasoning_follows_its_share_of_the_window(share: float, severity: str | None) -> None:
    found = finding(diagnose(thinking(share)), "SPY-RSN-001")
    assert (found.severity if found is not None else None) == severity


@pytest.mark.parametrize("count", [0, 4, 5])
def test_reasoning_of_too_few_requests_is_no_finding(count: int) -> None:
    made = thinking(0.75)
    requests = made.requests.copy()
    # the first request lies before the window
    requests.loc[requests.index[count + 1 :], "reasoning_tokens"] = None
    assert (finding(diagnose(replace(made, requests=requests)), "SPY-RSN-001") is not None) is (count >= 5)


def test_requests_that_do_not_reason_make_no_finding() -> None:
    assert finding(diagnose(thinking(0.0)), "SPY-RSN-001") is None


def test_no_request_log_no_reasoning() -> None:
    assert finding(diagnose(thinking(0.5, requests=table(REQUESTS, []))), "SPY-RSN-001") is None


@pytest.mark.parametrize("made", [thinking(0.5), uncached(False), inputs(*reversed(interrupted()))])
def test_every_number_of_these_findings_exists(made: AnalysisInputs) -> None:
    diagnosis = diagnose(made)
    known = {e.id for e in diagnosis.evidence}
    found = [f for f in diagnosis.findings if f.id in ("SPY-INT-001", "SPY-PFX-001", "SPY-RSN-001")]
    assert found
    assert all(f.evidence and set(f.evidence) <= known and f.against for f in found)


# Both phases at once


def both(every_s: float) -> Diagnosis:
    engine, run = interrupted(every_s)
    shown = (
        *profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.7),
        *profiled(run, phase="prefill", compute_use=0.6, bandwidth_use=0.05, count=12)[8:],
    )
    return judged(engine, run, profiled_steps=shown)


@pytest.mark.parametrize(
    ("every_s", "primary", "secondary"),
    [(0.45, "prefill_bound", "decode_bandwidth_bound"), (1.0, "decode_bandwidth_bound", "prefill_bound")],
)
def test_the_larger_phase_is_the_verdict_and_the_other_stands_beside_it(
    every_s: float, primary: str, secondary: str
) -> None:
    verdict = both(every_s).verdict
    assert verdict.primary == primary
    assert secondary in verdict.secondary


def test_request_times_do_not_call_it_decode_where_decodes_wait_for_prompts() -> None:
    """Requests decode nearly all their lives, but most of that is the prompts of others."""
    view = next(view for view in both(0.45).verdict.witnesses if view.name == "requests")
    assert view.says != "decode_bandwidth_bound"
    assert view.agrees is not False
