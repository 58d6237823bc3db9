"""The token budget of a step: small enough for decodes beside prompts, large enough for its fixed cost."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from engine_builder import MS, Engine, Request, Run, S, capped, decode_alone, inputs, light, one_after_another, replay

from spyreprof.findings import Advice, Diagnosis, Finding
from spyreprof.recording.schema import AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose
from spyreprof.targets import Targets

BUDGET = 1024


def rule(diagnosis: Diagnosis, rule_id: str) -> Finding | None:
    return next((found for found in diagnosis.findings if found.id == rule_id), None)


# Decodes wait for prompts: (target - decode step) / cost of a token + decodes

MIXED = Engine(
    fixed_ns=20 * MS, per_request_ns=0, per_context_token_ns=200_000, max_num_seqs=16, max_num_batched_tokens=BUDGET,
    noise=0.01,
)  # fmt: skip


def interrupted(settings: EngineSettings | None = None) -> AnalysisInputs:
    """Four requests decode in 20 ms a step; prompts of other sizes come between, at 0.2 ms a token."""
    talk = [Request(number * 30 * MS, 8, 1200) for number in range(4)]
    sizes = (300, 900, 1500, 2000, 3000)
    long = [Request(int((2 + number * 0.9) * S), sizes[number % 5], 1) for number in range(44)]
    run = replay(MIXED, talk + long)
    known = settings or EngineSettings(max_num_batched_tokens=BUDGET, max_num_seqs=16, source="metrics")
    return inputs(run, MIXED, settings=known)


def budget(target_s: float | None, settings: EngineSettings | None = None) -> Advice | None:
    found = diagnose(interrupted(settings), Targets(itl_p99_s=target_s))
    advice = rule(found, "SPY-INT-001").advice
    return advice[0] if advice else None


def test_the_budget_is_what_the_target_leaves_for_prompt_tokens_in_multiples_of_256() -> None:
    """(140 ms - 20 ms) / 0.2 ms + 4 = 604."""
    found = budget(0.140)
    assert (found.from_, found.to) == (1024, 512)
    assert found.trade_off == ()


def test_a_target_that_full_steps_meet_asks_for_no_change() -> None:
    assert budget(0.300) is None


def test_a_target_that_leaves_less_than_the_engine_takes_is_a_question() -> None:
    found = diagnose(interrupted(), Targets(itl_p99_s=0.021))
    open_questions = [question for question in found.not_judged if "token budget" in question.topic]
    assert len(open_questions) == 1


def test_without_a_target_half_the_budget_stands_beside_a_table() -> None:
    found = budget(None)
    assert (found.from_, found.to) == (1024, 512)
    assert [row.value for row in found.trade_off] == [1024, 512, 256]
    assert found.trade_off[0].itl_s > found.trade_off[1].itl_s


def test_no_budget_is_offered_that_the_engine_or_its_batch_does_not_take() -> None:
    spyre = EngineSettings(max_num_batched_tokens=BUDGET, max_num_seqs=16, platform="spyre", source="metrics")
    assert [row.value for row in budget(None, spyre).trade_off] == [1024, 512]


def test_on_spyre_chunks_are_no_smaller_than_512_tokens() -> None:
    spyre = EngineSettings(max_num_batched_tokens=BUDGET, max_num_seqs=16, platform="spyre", source="metrics")
    assert budget(0.060, spyre).to == 512
    assert budget(0.175, spyre).to == 768  # 779, in multiples of 64


# Small chunks pay their fixed cost often


def chunked(
    fixed_ms: int = 50, token_us: int = 20, chunk: int = 256, settings: EngineSettings | None = None, **changes: object
) -> AnalysisInputs:
    """One client after the other, prompts of many chunks."""
    engine = Engine(
        fixed_ns=fixed_ms * MS, per_request_ns=0, per_context_token_ns=token_us * 1000, max_num_seqs=16,
        max_num_batched_tokens=chunk,
    )  # fmt: skip
    sizes = (300, 700, 1000, 1100, 1500)
    run = replay(engine, [replace(one_after_another(1, sizes[number % 5], 2)[0]) for number in range(60)])
    known = settings or EngineSettings(max_num_batched_tokens=chunk, max_num_seqs=16, source="metrics")
    return inputs(run, engine, **({"settings": known} | changes))


def small(made: AnalysisInputs, target_s: float | None = None) -> Finding | None:
    return rule(diagnose(made, Targets(itl_p99_s=target_s)), "SPY-PRE-002")


def test_a_chunk_that_is_mostly_fixed_cost_is_told_with_a_budget_that_holds_a_usual_prompt() -> None:
    found = small(chunked())
    assert found.severity == "high"
    (advice,) = found.advice
    assert (advice.setting, advice.from_) == ("max_num_batched_tokens", 256)
    assert advice.to == 1536  # nine of ten prompts have up to 1500 tokens
    (change,) = advice.expected
    sizes, chunks = (300, 700, 1000, 1100, 1500), (2, 3, 4, 5, 6)
    now = sum(50 * chunk + 0.02 * size for size, chunk in zip(sizes, chunks, strict=True))
    then = sum(50 + 0.02 * size for size in sizes)
    assert change.low <= 1 - then / now <= change.high
    assert {price.metric for price in advice.pays} == {"longest gap between tokens", "KV cache"}


@pytest.mark.parametrize(("fixed_ms", "told"), [(7, True), (4, False)])
def test_from_half_of_a_chunk_on_its_fixed_cost_is_large(fixed_ms: int, told: bool) -> None:
    """256 tokens take 5 ms."""
    assert (small(chunked(fixed_ms)) is not None) is told


def test_a_prompt_that_fits_its_chunk_has_no_small_ones() -> None:
    assert small(chunked(chunk=2048)) is None


def test_a_step_that_a_latency_target_forbids_is_not_advised() -> None:
    assert small(chunked(), target_s=0.060).advice == ()
    assert small(chunked(), target_s=0.200).advice != ()


def test_without_lengths_of_prompts_no_budget_is_advised_and_without_a_budget_nothing_is_said() -> None:
    made = chunked()
    assert small(replace(made, requests=made.requests[:0])).advice == ()
    assert small(chunked(settings=EngineSettings(source="metrics"))) is None


def test_larger_chunks_are_not_advised_where_decodes_wait_for_prompts_already() -> None:
    """Decodes wait for chunks in steps of their own, which cost what they cost however small they are."""
    rows, now = [], 0
    for number in range(60):
        for chunk in (256, 256, 256, 20 + number):
            rows.append(step(now, 50 * MS + 20_000 * chunk, 1, chunk, 0))
            now = rows[-1]["end_ns"] + 100_000
        for _ in range(4):
            rows.append(step(now, 50 * MS, 0, 0, 8))
            now = rows[-1]["end_ns"] + 100_000
    known = EngineSettings(max_num_batched_tokens=256, max_num_seqs=16, source="metrics")
    run = Run(steps=rows, end_ns=now + S)
    found = diagnose(inputs(run, Engine(), settings=known, requests=chunked().requests))
    assert rule(found, "SPY-INT-001") is not None
    assert rule(found, "SPY-PRE-002").advice == ()


def step(start_ns: int, length_ns: int, prompts: int, tokens: int, decodes: int) -> dict[str, object]:
    return {
        "start_ns": start_ns, "end_ns": start_ns + length_ns, "writer": "1-a", "context_requests": prompts,
        "context_tokens": tokens, "context_seq_len_sum": tokens, "context_q_k_sum": tokens * tokens,
        "generation_requests": decodes, "generation_tokens": decodes, "generation_seq_len_sum": 100 * decodes,
    }  # fmt: skip


# Short prompts behind a long one


def behind(long_tokens: int = 8000, every_s: float = 6.0, settings: EngineSettings | None = None) -> AnalysisInputs:
    """Short prompts, three a second; a long one now and then, in chunks of a thousand tokens for 0.2 s each."""
    engine = Engine(
        fixed_ns=10 * MS, per_request_ns=0, per_context_token_ns=200_000, max_num_seqs=32, max_num_batched_tokens=1024
    )
    short = [Request(int(number / 3 * S) + 7 * MS, 60, 40) for number in range(180)]
    long = [Request(int((4 + number * every_s) * S), long_tokens, 2) for number in range(int(52 / every_s))]
    run = replay(engine, short + long)
    known = settings or EngineSettings(max_num_batched_tokens=1024, max_num_seqs=32, source="metrics")
    return inputs(run, engine, settings=known)


def test_short_prompts_that_wait_for_a_long_one_are_told_with_the_limit_on_one_prompt() -> None:
    found = rule(diagnose(behind()), "SPY-HOL-001")
    assert found.severity == "medium"
    (advice,) = found.advice
    assert (advice.setting, advice.from_, advice.to) == ("long_prefill_token_threshold", None, 512)
    assert {price.metric for price in advice.pays} == {"TTFT of long prompts"}


@pytest.mark.parametrize(("tokens", "told"), [(4200, True), (4000, False)])
def test_a_long_prompt_is_one_of_more_than_four_chunks(tokens: int, told: bool) -> None:
    assert (rule(diagnose(behind(tokens, every_s=4.0)), "SPY-HOL-001") is not None) is told


def test_a_limit_that_is_in_force_is_halved_and_one_of_the_spyre_engine_is_left_alone() -> None:
    limited = EngineSettings(
        max_num_batched_tokens=1024, max_num_seqs=32, long_prefill_token_threshold=512, source="metrics"
    )
    (advice,) = rule(diagnose(behind(settings=limited)), "SPY-HOL-001").advice
    assert (advice.from_, advice.to) == (512, 256)
    assert rule(diagnose(behind(settings=replace(limited, platform="spyre"))), "SPY-HOL-001").advice == ()


def test_without_arrivals_it_is_a_question() -> None:
    made = behind()
    found = diagnose(replace(made, requests=made.requests[:0]))
    assert rule(found, "SPY-HOL-001") is None
    assert any("hold up short ones" in question.topic for question in found.not_judged)


@pytest.mark.parametrize("load", [decode_alone, capped, light])
def test_plain_loads_have_no_such_finding(load) -> None:
    engine, run = load()
    found = diagnose(inputs(run, engine))
    assert rule(found, "SPY-HOL-001") is None
    assert rule(found, "SPY-PRE-002") is None


# The prefix cache is on, and finds little

CACHED = EngineSettings(max_num_batched_tokens=2048, max_num_seqs=16, block_size=16, prefix_caching=True, source="m")


def looked_up(hit_ratio: float = 0.0, **changes: object) -> AnalysisInputs:
    made = chunked(chunk=2048, token_us=300, settings=CACHED, **changes)
    queries = made.counters[made.counters["name"] == "vllm:prefix_cache_queries_total"]
    hits = queries.assign(name="vllm:prefix_cache_hits_total", value=queries["value"] * hit_ratio)
    rest = made.counters[made.counters["name"] != "vllm:prefix_cache_hits_total"]
    return replace(made, counters=pd.concat([rest, hits]).sort_values("time_ns", kind="stable", ignore_index=True))


@pytest.mark.parametrize(("hit", "told"), [(0.0, True), (0.19, True), (0.21, False), (0.8, False)])
def test_less_than_a_fifth_of_the_prompts_is_little(hit: float, told: bool) -> None:
    found = rule(diagnose(looked_up(hit)), "SPY-PFX-002")
    assert (found is not None) is told
    if found is not None:
        assert found.severity == "low"
        assert found.advice == ()


def test_no_prompt_as_long_as_a_block_is_told_apart_from_prompts_that_share_nothing() -> None:
    long_blocks = replace(CACHED, block_size=2096)
    assert (
        "no prompt is that long (at most 1500)"
        in rule(diagnose(replace(looked_up(), settings=long_blocks)), "SPY-PFX-002").text
    )
    assert "share no beginning" in rule(diagnose(looked_up()), "SPY-PFX-002").text


def test_on_spyre_a_beginning_is_found_in_whole_chunks() -> None:
    spyre = replace(CACHED, platform="spyre", max_num_batched_tokens=2048)
    assert "whole blocks of 2048 tokens" in rule(diagnose(replace(looked_up(), settings=spyre)), "SPY-PFX-002").text


@pytest.mark.parametrize(("block", "advised"), [(1500, True), (1501, False)])
def test_caching_is_not_advised_to_prompts_that_fill_no_block(block: int, advised: bool) -> None:
    off = replace(CACHED, prefix_caching=False, block_size=block)
    found = rule(diagnose(replace(looked_up(), settings=off)), "SPY-PFX-001")
    assert bool(found.advice) is advised


@pytest.mark.parametrize("known", [None, False])
def test_a_cache_that_is_off_or_unknown_finds_nothing_by_itself(known: bool | None) -> None:
    made = replace(looked_up(), settings=replace(CACHED, prefix_caching=known))
    assert rule(diagnose(made), "SPY-PFX-002") is None


def test_without_its_counters_nothing_is_said_of_the_prefix_cache() -> None:
    made = looked_up()
    blind = made.counters[~made.counters["name"].str.contains("prefix_cache_hits")]
    assert rule(diagnose(replace(made, counters=blind)), "SPY-PFX-002") is None


def test_a_few_looked_up_tokens_say_nothing() -> None:
    made = looked_up()
    few = made.counters["value"].where(
        ~made.counters["name"].str.contains("prefix_cache"), made.counters["value"] / 100
    )
    assert rule(diagnose(replace(made, counters=made.counters.assign(value=few))), "SPY-PFX-002") is None
