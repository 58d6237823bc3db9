"""The sample engine's arithmetic and counters: batching must never change a token."""

from __future__ import annotations

import re
import threading
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from engine.core import Engine  # noqa: E402
from engine.scheduler import Request  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402
from sample_builders import VOCAB, generate, generate_plainly, prompts, tiny_engine  # noqa: E402


def test_batched_generation_equals_plain_recomputation() -> None:
    engine = tiny_engine(seqs=3, budget=7, caching=False)
    texts = prompts(5, seed=0)
    outputs = generate(engine, texts, max_tokens=8)
    assert outputs == [generate_plainly(engine.model, text, 8) for text in texts]
    assert len({token for output in outputs for token in output}) > 10, "a model that always says the same"
    assert engine.scheduler.counters.preemptions == 0


def test_a_prefix_cache_hit_changes_no_token_and_is_counted() -> None:
    engine = tiny_engine(block_size=4)
    prefix = prompts(1, seed=3, low=13, high=13)[0]
    texts = [[*prefix, token] for token in (1, 2, 3)]
    for text in texts:
        assert generate(engine, [text], 5) == [generate_plainly(engine.model, text, 5)]
    assert engine.totals()["prefix_cache_queries"] == 3 * 14
    assert engine.totals()["prefix_cache_hits"] == 2 * 12
    assert engine.totals()["prefill_tokens"] == 14 + 2 + 2


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_by_recomputation_changes_no_token(caching: bool) -> None:
    engine = tiny_engine(seqs=4, budget=12, blocks=14, block_size=4, caching=caching)
    texts = prompts(6, seed=5, low=6, high=20)
    outputs = generate(engine, texts, max_tokens=12)
    assert engine.scheduler.counters.preemptions > 0
    assert outputs == [generate_plainly(engine.model, text, 12) for text in texts]
    # Looked up again after a preemption, but not counted again.
    assert engine.totals()["prefix_cache_queries"] == (sum(map(len, texts)) if caching else 0)


def test_counters_are_the_tokens_that_were_asked_for() -> None:
    engine = tiny_engine(caching=False)
    texts = prompts(6, seed=2)
    generate(engine, texts, max_tokens=4)
    counts = {name: value for name, value in engine.totals().items() if not name.endswith("_seconds")}
    assert counts == {
        "steps": engine.counters.steps,
        "prefill_tokens": sum(map(len, texts)),
        "decode_tokens": 6 * 3,
        "prompt_tokens": sum(map(len, texts)),
        "generation_tokens": 6 * 4,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "prefix_cache_queries": 0,
        "prefix_cache_hits": 0,
        "finished_requests": 6,
    }


def test_a_request_can_end_with_the_end_token() -> None:
    engine = tiny_engine()
    text = prompts(1, seed=4)[0]
    end = generate_plainly(engine.model, text, 6)[3]
    request = Request("r", text, max_tokens=50, eos_token_id=end)
    engine.submit(request)
    while engine.step():
        pass
    assert request.finish_reason == "stop"
    assert request.output_token_ids[-1] == end
    assert end not in request.output_token_ids[:-1]


def test_warming_up_leaves_no_trace_in_counters_and_cache() -> None:
    engine = tiny_engine()
    engine.warm_up()
    assert set(engine.totals().values()) == {0}
    assert engine.scheduler.pool.num_free == engine.config.num_kv_blocks
    text = prompts(1, seed=6)[0]
    assert generate(engine, [text], 5) == [generate_plainly(engine.model, text, 5)]


def test_steps_with_work_are_annotated_and_idle_ones_are_not() -> None:
    engine = tiny_engine()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert not engine.step()
        generate(engine, [[1, 2, 3]], max_tokens=3)
        assert not engine.step()
    names = [event.name for event in profile.events() if event.name.startswith("execute_")]
    assert names == [
        "execute_3_context_1(sq3sk3sqsq9sqsk9)_generation_0(sq0sk0sqsq0sqsk0)",
        "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk4sqsq1sqsk4)",
        "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk5sqsq1sqsk5)",
    ]
    assert engine.totals()["steps"] == 3


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "reason"),
    [([], 1, "the prompt is empty"), ([1] * 250, 7, "257 tokens, the maximum model length is 256")],
)
def test_what_can_never_be_served_is_refused(prompt: list[int], max_tokens: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tiny_engine().submit(Request("r", prompt, max_tokens))


def test_an_aborted_request_gives_its_blocks_back() -> None:
    engine = tiny_engine()
    running, waiting = Request("r", [1] * 9, 50), Request("w", [2], 50)
    engine.submit(running)
    engine.step()
    engine.submit(waiting)
    engine.abort(running)
    engine.abort(waiting)
    assert not engine.step()
    assert engine.scheduler.pool.num_free == engine.config.num_kv_blocks
    assert engine.finished == {"stop": 0, "length": 0, "abort": 2}


def test_the_loop_sleeps_without_work_and_wakes_for_a_request() -> None:
    engine = tiny_engine()
    schedules: list[bool] = []
    schedule = engine.scheduler.schedule

    def counted_schedule():
        batch = schedule()
        schedules.append(bool(batch.parts))
        return batch

    engine.scheduler.schedule = counted_schedule
    loop = threading.Thread(target=engine.run)
    loop.start()
    for _ in range(3):
        request = Request("r", [1, 2, 3], max_tokens=4)
        engine.submit(request)
        while request.events.get(timeout=60)[1] is None:
            pass
    engine.stop()
    loop.join(timeout=60)
    assert not loop.is_alive()
    assert schedules.count(True) == 12
    # One empty look before each sleep; a spinning loop makes thousands.
    assert schedules.count(False) <= 4


def samples(engine: Engine) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(engine.metrics()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "sample"
            assert labels.pop("engine") == "0"
            found[sample.name + ("" if not labels else str(sorted(labels.items())))] = sample.value
    return found


def test_the_metrics_page_parses_and_agrees_with_the_engine() -> None:
    engine = tiny_engine(seqs=4, budget=12, blocks=14, block_size=4)
    texts = prompts(6, seed=5, low=6, high=20)
    generate(engine, texts, max_tokens=12)
    totals, found = engine.totals(), samples(engine)
    assert totals["preemptions"] > 0
    assert found["vllm:num_preemptions_total"] == totals["preemptions"]
    assert found["vllm:prompt_tokens_total"] == sum(map(len, texts))
    assert found["vllm:generation_tokens_total"] == 6 * 12
    assert found["vllm:prefix_cache_queries_total"] == totals["prefix_cache_queries"] > 0
    assert found["vllm:prefix_cache_hits_total"] == totals["prefix_cache_hits"]
    assert found["vllm:request_success_total[('finished_reason', 'length')]"] == 6
    assert found["vllm:iteration_tokens_total_count"] == totals["steps"]
    assert found["vllm:iteration_tokens_total_sum"] == totals["prefill_tokens"] + totals["decode_tokens"]
    assert found["vllm:request_generation_tokens_sum"] == 6 * 12
    assert found["vllm:request_prompt_tokens_sum"] == sum(map(len, texts))
    assert found["vllm:inter_token_latency_seconds_count"] == 6 * 11
    for histogram in (
        *("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds"),
    ):
        assert found[f"vllm:{histogram}_count"] == 6, histogram
    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    assert sum(found[f"vllm:{part}_seconds_sum"] for part in parts) == pytest.approx(
        found["vllm:e2e_request_latency_seconds_sum"]
    )


def test_gauges_show_the_present_state() -> None:
    engine = tiny_engine(seqs=1, blocks=8, block_size=4)
    for name in "ab":
        engine.submit(Request(name, [1] * 7, 5))
    engine.step()
    found = samples(engine)
    assert found["vllm:num_requests_running"] == 1
    assert found["vllm:num_requests_waiting"] == 1
    assert found["vllm:kv_cache_usage_perc"] == 2 / 8
    info = next(name for name in found if name.startswith("vllm:cache_config_info"))
    assert re.search(r"'block_size', '4'.*'enable_prefix_caching', 'True'.*'num_gpu_blocks', '8'", info)


def test_histogram_buckets_are_cumulative_and_end_with_the_count() -> None:
    engine = tiny_engine()
    generate(engine, prompts(3, seed=9), max_tokens=3)
    for family in text_string_to_metric_families(engine.metrics()):
        if family.type != "histogram":
            continue
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        assert all(low.value <= high.value for low, high in pairwise(buckets)), family.name
        count = next(sample.value for sample in family.samples if sample.name.endswith("_count"))
        assert buckets[-1].labels["le"] == "+Inf"
        assert buckets[-1].value == count


def test_compiled_layers_say_the_same() -> None:
    plain, compiled = tiny_engine(caching=False), tiny_engine(caching=False)
    compiled.model.compile_blocks("aot_eager", dynamic=True)
    texts = prompts(3, seed=8)
    assert generate(compiled, texts, 5) == generate(plain, texts, 5)
    assert torch._dynamo.utils.counters["graph_break"] == {}


def test_static_shapes_are_compiled_again_for_every_new_number_of_tokens() -> None:
    plain, compiled = tiny_engine(caching=False), tiny_engine(caching=False)
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(recompile_limit=2, accumulated_recompile_limit=2):
        compiled.model.compile_blocks("eager", dynamic=False)
        texts = [[1] * length for length in (1, 2, 3, 5, 8)]
        assert [generate(compiled, [text], 1) for text in texts] == [generate(plain, [text], 1) for text in texts]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2 * len(texts)


def test_tiled_weights_are_the_same_weights() -> None:
    plain, tiled = tiny_engine(), tiny_engine()
    tiled.model.tile_linears(8)
    texts = prompts(3, seed=8)
    assert generate(tiled, texts, 5) == generate(plain, texts, 5)
    assert not any(isinstance(part, torch.nn.Linear) for part in tiled.model.blocks.modules())


def test_time_of_steps_is_kept_by_what_they_hold() -> None:
    engine = tiny_engine(budget=8)
    engine.submit(Request("old", [1, 2], 4))
    engine.step()
    counters = engine.counters
    prefill_s = counters.prefill_seconds
    assert prefill_s > 0
    assert (counters.decode_seconds, counters.mixed_seconds) == (0, 0)
    engine.step()
    decode_s = counters.decode_seconds
    assert decode_s > 0
    engine.submit(Request("new", [3] * 5, 1))
    engine.step()
    assert counters.mixed_seconds > 0
    assert (counters.prefill_seconds, counters.decode_seconds) == (prefill_s, decode_s)


def test_weights_depend_on_the_seed_alone() -> None:
    one, two = tiny_engine().model, tiny_engine().model
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(left, right) for left, right in pairs)
    assert one.embedding.weight.shape == (VOCAB, 32)
