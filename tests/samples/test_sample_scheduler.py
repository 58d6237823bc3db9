"""Continuous batching without a model: limits, order, preemption, prefix cache."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from engine.kv_cache import BlockPool
from engine.scheduler import Batch, Request, Scheduler
from engine.vocabulary import END_THINK_TOKEN_ID, THINK_TOKEN_ID
from hypothesis import given, settings
from hypothesis import strategies as st

DETAILED_STEP = re.compile(
    r"execute_(\d+)_context_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
    r"_generation_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
)


def make_scheduler(
    blocks: int = 64, block_size: int = 4, seqs: int = 4, budget: int = 16, caching: bool = True
) -> Scheduler:
    return Scheduler(BlockPool(blocks, block_size, caching), seqs, budget)


def request(name: str, prompt: list[int], max_tokens: int = 1) -> Request:
    return Request(name, prompt, max_tokens)


def run_step(scheduler: Scheduler, token: int = 7) -> Batch:
    batch = scheduler.schedule()
    scheduler.complete(batch, [token] * sum(part.samples for part in batch.parts))
    return batch


def shape(batch: Batch) -> list[tuple[str, int, int, bool]]:
    return [(part.request.request_id, part.start, part.num_tokens, part.is_context) for part in batch.parts]


def test_a_long_prompt_is_cut_into_chunks_of_the_token_budget() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.add(request("a", list(range(40)), max_tokens=2))
    steps = [shape(run_step(scheduler)) for _ in range(4)]
    assert steps == [[("a", 0, 16, True)], [("a", 16, 16, True)], [("a", 32, 8, True)], [("a", 40, 1, False)]]
    assert not scheduler.has_work


def test_decodes_go_first_and_prefill_gets_what_is_left_of_the_budget() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(request("old", [1, 2], max_tokens=9))
    run_step(scheduler)
    scheduler.add(request("new", list(range(20)), max_tokens=1))
    assert shape(run_step(scheduler)) == [("old", 2, 1, False), ("new", 0, 7, True)]
    assert shape(run_step(scheduler)) == [("old", 3, 1, False), ("new", 7, 7, True)]


def test_no_more_requests_run_than_the_cap_admits() -> None:
    scheduler = make_scheduler(seqs=2, budget=16)
    for name in "abc":
        scheduler.add(request(name, [ord(name)], max_tokens=2))
    assert [part[0] for part in shape(run_step(scheduler))] == ["a", "b"]
    assert [waiting.request_id for waiting in scheduler.waiting] == ["c"]
    run_step(scheduler)
    assert [part[0] for part in shape(run_step(scheduler))] == ["c"]


def test_when_blocks_run_out_the_youngest_is_preempted_and_recomputed_from_the_start() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4, caching=False)
    scheduler.add(request("old", [1] * 7, max_tokens=6))
    scheduler.add(request("young", [2] * 7, max_tokens=4))
    run_step(scheduler)  # both prompts: 2 blocks each, all 4 in use
    run_step(scheduler)  # both decode into their last free slot
    step = run_step(scheduler)
    assert shape(step) == [("old", 8, 1, False)]
    assert scheduler.counters.preemptions == 1
    young = scheduler.waiting[0]
    assert (young.request_id, young.block_table, young.num_computed_tokens) == ("young", [], 0)

    while (step := run_step(scheduler)).parts[0].request is not young:
        pass
    # Prompt and the two tokens that it had generated are one prefill now.
    assert shape(step) == [("young", 0, 9, True)]
    # The second of the two was not computed yet when the blocks went.
    assert scheduler.counters.recomputed_tokens == 8


def test_what_the_prefix_cache_kept_of_a_preempted_request_is_not_recomputed() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    scheduler.add(request("old", [1] * 7, max_tokens=6))
    scheduler.add(request("young", [2] * 7, max_tokens=4))
    while scheduler.has_work:
        run_step(scheduler)
    # Its last block went to the other request; the first one stayed.
    assert (scheduler.counters.preemptions, scheduler.counters.recomputed_tokens) == (1, 4)


def test_thinking_is_opened_at_once_and_closed_where_it_was_asked_to_end() -> None:
    scheduler = make_scheduler()
    thinker = Request("thinker", [1, 2], max_tokens=6, num_thinking_tokens=2)
    scheduler.add(thinker)
    counted = []
    while scheduler.has_work:
        run_step(scheduler, token=7)
        counted.append(thinker.num_reasoning_tokens)
    assert thinker.output_token_ids == [THINK_TOKEN_ID, 7, 7, END_THINK_TOKEN_ID, 7, 7]
    assert counted == [0, 1, 2, 2, 2, 2]


def test_a_preempted_request_goes_ahead_of_those_that_wait() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4, seqs=2, caching=False)
    for name in ("old", "young", "later"):
        scheduler.add(request(name, [ord(name[0])] * 7, max_tokens=6))
    for _ in range(3):
        run_step(scheduler)
    assert [waiting.request_id for waiting in scheduler.waiting] == ["young", "later"]


def test_a_cached_prefix_is_not_computed_again_and_is_counted_in_tokens() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(request("first", list(range(10))))
    run_step(scheduler)
    scheduler.add(request("second", [*range(8), 99, 98]))
    assert shape(run_step(scheduler)) == [("second", 8, 2, True)]
    assert (scheduler.counters.prefix_cache_queries, scheduler.counters.prefix_cache_hits) == (20, 8)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_block() -> None:
    scheduler = make_scheduler(block_size=4)
    for _ in range(2):
        scheduler.add(request("same", list(range(8))))
        batch = run_step(scheduler)
    assert shape(batch) == [("same", 4, 4, True)]


def test_equal_blocks_behind_different_beginnings_do_not_match() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(request("first", [1, 1, 1, 1, 5, 5, 5, 5, 0]))
    run_step(scheduler)
    scheduler.add(request("second", [2, 2, 2, 2, 5, 5, 5, 5, 0]))
    assert shape(run_step(scheduler)) == [("second", 0, 9, True)]
    assert scheduler.counters.prefix_cache_hits == 0


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    scheduler = make_scheduler(caching=False)
    for _ in range(2):
        scheduler.add(request("same", list(range(8))))
        batch = run_step(scheduler)
    assert shape(batch) == [("same", 0, 8, True)]
    assert (scheduler.counters.prefix_cache_queries, scheduler.counters.prefix_cache_hits) == (0, 0)


def test_the_block_that_was_free_for_longest_is_overwritten_first() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    for first_token in (10, 20):
        scheduler.add(request("r", [first_token] * 5))
        run_step(scheduler)
    scheduler.add(request("third", [30] * 5))  # takes the two blocks that the first one used
    run_step(scheduler)
    hashes = {token: request("x", [token] * 4).hash_full_blocks(4) for token in (10, 20, 30)}
    cached = {token for token, block_hashes in hashes.items() if scheduler.pool.cached_prefix(block_hashes)}
    assert cached == {20, 30}


def test_of_one_request_the_blocks_at_the_end_are_overwritten_first() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    scheduler.add(request("first", list(range(16))))
    run_step(scheduler)
    scheduler.pool.allocate(2)
    hashes = request("again", list(range(16))).hash_full_blocks(4)
    assert len(scheduler.pool.cached_prefix(hashes)) == 2


def test_blocks_are_not_handed_out_twice() -> None:
    pool = BlockPool(2, 4)
    pool.allocate(2)
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)


def test_the_step_name_carries_the_sums_of_what_was_scheduled() -> None:
    scheduler = make_scheduler(blocks=64, budget=32)
    scheduler.add(request("a", [1] * 5, max_tokens=3))
    scheduler.add(request("b", [2] * 7, max_tokens=3))
    run_step(scheduler)
    scheduler.add(request("c", [3] * 40, max_tokens=1))
    run_step(scheduler)
    # a and b decode their second token at lengths 7 and 9; c computes 30 of 40 tokens, then the rest.
    batch = scheduler.schedule()
    assert batch.annotation() == ("execute_12_context_1(sq10sk40sqsq100sqsk400)_generation_2(sq2sk16sqsq2sqsk16)")


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, int], bool, list[tuple[int, list[int], int]]]:
    block_size = draw(st.integers(1, 5))
    blocks = draw(st.integers(3, 14))
    seqs = draw(st.integers(1, 5))
    budget = draw(st.integers(seqs, 24))
    capacity = blocks * block_size
    requests = []
    for _ in range(draw(st.integers(1, 9))):
        prompt_tokens = draw(st.integers(1, max(1, capacity - 1)))
        # Two letters only, so that prefixes are shared often.
        prompt = draw(st.lists(st.integers(0, 1), min_size=prompt_tokens, max_size=prompt_tokens))
        max_tokens = draw(st.integers(1, max(1, min(12, capacity - prompt_tokens))))
        if prompt_tokens + max_tokens <= capacity:
            requests.append((draw(st.integers(0, 10)), prompt, max_tokens))
    limits = {"blocks": blocks, "block_size": block_size, "seqs": seqs, "budget": budget}
    return limits, draw(st.booleans()), requests


def check_blocks(scheduler: Scheduler) -> None:
    """Every block is held exactly as often as block tables say, and free if and only if none does."""
    pool = scheduler.pool
    held = Counter(block for running in scheduler.running for block in running.block_table)
    for block in range(pool.num_blocks):
        assert pool.references(block) == held[block]
        assert pool.is_free(block) == (held[block] == 0)
    for running in scheduler.running:
        assert len(set(running.block_table)) == len(running.block_table)
    assert all(not waiting.block_table for waiting in scheduler.waiting)


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_limits_hold_in_every_step_and_every_request_gets_all_its_tokens(
    workload: tuple[dict[str, int], bool, list[tuple[int, list[int], int]]],
) -> None:
    limits, caching, arrivals = workload
    scheduler = make_scheduler(**limits, caching=caching)
    requests = [Request(str(i), prompt, tokens) for i, (_, prompt, tokens) in enumerate(arrivals)]
    prefill_tokens = decode_tokens = steps = 0
    while scheduler.has_work or steps <= 10:
        for (arrives_at, _, _), arriving in zip(arrivals, requests, strict=True):
            if arrives_at == steps:
                scheduler.add(arriving)
        was_running, preemptions = set(scheduler.running), scheduler.counters.preemptions
        batch = scheduler.schedule()
        assert scheduler.has_work == bool(batch.parts), "work is there, but nothing was scheduled"
        assert batch.num_tokens <= limits["budget"]
        assert len(batch.parts) <= len(scheduler.running) <= limits["seqs"]
        if scheduler.counters.preemptions > preemptions:
            assert set(scheduler.running) <= was_running, "admitted in a step that had to preempt"
        check_blocks(scheduler)
        writes = []
        for part in batch.parts:
            table = part.request.block_table
            assert len(table) * limits["block_size"] >= part.seq_len
            assert part.num_tokens >= 1 if part.is_context else part.num_tokens == 1
            first, last = part.start // limits["block_size"], (part.seq_len - 1) // limits["block_size"]
            writes += table[first : last + 1]
        assert max(Counter(writes).values(), default=0) <= 1, "two requests write into one block"
        check_step_name(batch)
        prefill_tokens += batch.count_tokens(is_context=True)
        decode_tokens += batch.count_tokens(is_context=False)
        scheduler.complete(batch, [0] * sum(part.samples for part in batch.parts))
        check_blocks(scheduler)
        steps += 1
        assert steps < 5_000, "no progress"

    assert all(done.finish_reason == "length" for done in requests)
    assert [len(done.output_token_ids) for done in requests] == [tokens for _, _, tokens in arrivals]
    assert scheduler.pool.num_free == limits["blocks"]
    if scheduler.counters.preemptions == 0:
        # Every token was computed once: prompts but for cached prefixes, outputs but for first and last tokens.
        assert prefill_tokens == sum(len(p) for _, p, _ in arrivals) - scheduler.counters.prefix_cache_hits
        assert decode_tokens == sum(tokens - 1 for _, _, tokens in arrivals)


def check_step_name(batch: Batch) -> None:
    if not batch.parts:
        return
    match = DETAILED_STEP.fullmatch(batch.annotation())
    assert match is not None
    total, *sums = (int(group) for group in match.groups())
    assert total == batch.num_tokens
    for is_context, said in ((True, sums[:5]), (False, sums[5:])):
        q_and_k = [(p.num_tokens, p.start + p.num_tokens) for p in batch.parts if p.is_context == is_context]
        assert said == [
            len(q_and_k),
            sum(q for q, _ in q_and_k),
            sum(k for _, k in q_and_k),
            sum(q * q for q, _ in q_and_k),
            sum(q * k for q, k in q_and_k),
        ]
