"""Ways to make room in the KV cache, and preemption that is more than usual pressure."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from engine_builder import Engine, capped, inputs, replay
from engine_builder import Request as Asked
from gauge_builder import QUEUED, SETTINGS, advice, finding, page, polled, state

from spyreprof.recording.schema import AnalysisInputs, EngineSettings, ModelFacts
from spyreprof.registry import diagnose
from spyreprof.rules import load_rules
from spyreprof_analyzers.kv_pressure import preempted_requests
from spyreprof_analyzers.kv_room import Shortage, more_room, needed_factor

RULES = load_rules()
GPU = EngineSettings(
    max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=32_768, memory_utilisation_ratio=0.9,
    kv_dtype="bfloat16", prefix_caching=False, tensor_parallel=1, platform="cuda",
)  # fmt: skip
MODEL = ModelFacts(kv_heads=8, dtype="bfloat16")


def ways(
    settings: EngineSettings, *, device: str | None = None, model: ModelFacts = MODEL, **lengths: float
) -> list[str]:
    return [one.id for one in more_room(Shortage(3.0, settings, model, device, **lengths), RULES)]


def test_the_cheapest_changes_come_first_and_no_more_than_three() -> None:
    assert ways(GPU, longest=2000) == ["max_model_len", "smaller_token_budget", "gpu_memory_utilization"]
    cheap_ones_done = replace(GPU, max_model_len=2048, max_num_batched_tokens=2048, memory_utilisation_ratio=0.95)
    assert ways(cheap_ones_done, longest=2000) == ["kv_cache_dtype", "share_prompt_blocks", "more_devices"]


def test_where_the_platform_is_a_cpu_nothing_of_a_device_is_advised() -> None:
    assert ways(replace(GPU, platform="cpu"), longest=2000) == ["share_prompt_blocks"]
    assert ways(replace(GPU, platform=None), device="cpu", longest=2000) == ["share_prompt_blocks"]
    assert ways(replace(GPU, platform=None), longest=2000) == ["share_prompt_blocks"]


def test_on_spyre_the_limits_of_requests_are_what_costs_room() -> None:
    found = more_room(Shortage(3.0, replace(GPU, platform="spyre"), MODEL, None, 900, 300), RULES)
    assert [(one.id, one.to) for one in found] == [("max_tokens", 330), ("share_prompt_blocks", "on")]


@pytest.mark.parametrize(
    ("changed", "model", "advised"),
    [
        ({"kv_dtype": "fp8"}, MODEL, False),
        ({"kv_dtype": "auto"}, MODEL, True),
        ({"kv_dtype": None}, ModelFacts(), False),
        ({"state_blocks": 64}, MODEL, False),
    ],
)
def test_one_byte_elements_are_advised_only_where_two_are_in_use_and_all_state_is_attention(
    changed: dict, model: ModelFacts, advised: bool
) -> None:
    done = replace(GPU, max_num_batched_tokens=2048, memory_utilisation_ratio=0.95, **changed)
    assert ("kv_cache_dtype" in ways(done, model=model)) == advised


@pytest.mark.parametrize(
    ("devices", "model", "advised"),
    [(4, MODEL, True), (8, MODEL, False), (1, replace(MODEL, kv_latent_size=576), False)],
)
def test_more_devices_are_advised_only_as_long_as_heads_are_left_to_divide(
    devices: int, model: ModelFacts, advised: bool
) -> None:
    done = EngineSettings(tensor_parallel=devices, kv_dtype="fp8", platform="cuda")
    assert ("more_devices" in ways(done, model=model)) == advised


@pytest.mark.parametrize(("budget", "advised"), [(2049, True), (2048, False), (None, False)])
def test_the_token_budget_is_not_cut_below_what_is_recommended(budget: int | None, advised: bool) -> None:
    assert ("smaller_token_budget" in ways(replace(GPU, max_num_batched_tokens=budget))) == advised


@pytest.mark.parametrize(("longest", "advised"), [(16_384, True), (16_385, False)])
def test_a_limit_under_twice_what_requests_need_stays(longest: float, advised: bool) -> None:
    assert ("max_model_len" in ways(GPU, longest=longest)) == advised


def test_each_way_says_who_pays_and_whether_it_is_enough() -> None:
    for one in more_room(Shortage(3.0, replace(GPU, max_num_batched_tokens=None), MODEL, None), RULES):
        assert one.pays
        assert any("3.0 times the present KV cache" in said for said in one.preconditions)
    assert needed_factor(60, None) is None
    assert needed_factor(60, 0.05) == pytest.approx(3.0)


def test_the_needed_factor_is_demand_times_what_one_request_holds() -> None:
    """30 requests hold 0.95 of the cache, and 70 want it."""
    made = state(30, 40, 0.95, settings=replace(GPU, kv_tokens=400_000))
    diagnosis = diagnose(made)
    (factor,) = [one.value for one in diagnosis.evidence if one.metric == "kv_cache.needed_factor"]
    assert factor == pytest.approx(70 * 0.95 / 30)
    assert set(advice(finding(diagnosis, "SPY-KVC-001"))) >= {"max_num_batched_tokens", "gpu_memory_utilization"}


def test_a_larger_batch_is_never_advised_beside_more_memory() -> None:
    for made in (state(30, 40, 0.95), state(30, 40, 0.7, QUEUED | {"vllm:num_preemptions_total": 1.0})):
        diagnosis = diagnose(made)
        assert diagnosis.verdict.primary == "kv_capacity_bound"
        assert finding(diagnosis, "SPY-QUE-001") is None


@pytest.mark.parametrize(("blocks", "to"), [(3, 3), (2, None), (None, 21)])
def test_a_larger_batch_has_a_state_block_for_each_request(blocks: int | None, to: int | None) -> None:
    engine, run = capped()
    settings = EngineSettings(max_num_seqs=2, kv_tokens=100_000, state_blocks=blocks)
    found = advice(finding(inputs(run, engine, settings=settings), "SPY-QUE-001"))
    assert (found["max_num_seqs"].to if found else None) == to


def test_an_engine_that_preempts_all_the_time_is_told_to_let_in_what_its_cache_holds() -> None:
    """30 requests hold 0.95 of the cache: 28 of them nine tenths of it."""
    made = state(30, 40, 0.95, QUEUED | {"vllm:num_preemptions_total": 1.0})
    found = advice(finding(made, "SPY-KVC-002"))["max_num_seqs"]
    assert (found.from_, found.to) == (64, 28)
    assert "scheduler_reserve_full_isl" not in advice(finding(made, "SPY-KVC-002"))
    first_chunks = replace(made, settings=replace(SETTINGS, reserve_full_prompt=False))
    assert next(iter(advice(finding(first_chunks, "SPY-KVC-002")))) == "scheduler_reserve_full_isl"


def buckets(*counts: tuple[str, float]) -> list[dict]:
    rows = []
    for bound, per_s in counts:
        rows += page({}, {"vllm:request_num_preemptions_bucket": per_s}, labels={"le": bound})
    return rows


def preempted_often(*counts: tuple[str, float]) -> AnalysisInputs:
    made = state(30, 40, 0.95, QUEUED | {"vllm:num_preemptions_total": 0.3})
    rows = [*made.counters.to_dict("records"), *buckets(*counts)]
    return polled(rows)


def test_a_few_requests_that_were_preempted_once_are_usual_pressure() -> None:
    """7 of 100 at all, and one in a hundred no more than once."""
    usual = preempted_often(("0.0", 0.93), ("1.0", 0.995), ("2.0", 1.0), ("+Inf", 1.0))
    assert finding(usual, "SPY-KVC-002") is None
    again = preempted_often(("0.0", 0.93), ("1.0", 0.98), ("2.0", 1.0), ("+Inf", 1.0))
    found = finding(again, "SPY-KVC-002")
    assert found is not None
    assert any(
        one.metric == "kv_cache.preemptions_per_request_p99" and one.value == 2 for one in diagnose(again).evidence
    )


@pytest.mark.parametrize(("never", "named"), [(0.91, False), (0.89, True)])
def test_a_tenth_of_the_requests_is_more_than_usual(never: float, named: bool) -> None:
    made = preempted_often(("0.0", never), ("1.0", 1.0), ("+Inf", 1.0))
    assert (finding(made, "SPY-KVC-002") is not None) == named


def test_what_requests_tell_of_themselves_comes_before_the_histogram() -> None:
    made = preempted_often(("0.0", 1.0), ("+Inf", 1.0))
    requests = made.requests.reindex(range(10))
    requests["preemptions"] = pd.array([3] * 10, dtype="Int64")
    window = diagnose(made).window
    each = preempted_requests(requests, made.counters, window)
    assert (each.p99, each.preempted_share, each.requests) == (3.0, 1.0, 10)
    told = preempted_requests(made.requests, made.counters, window)
    assert (told.p99, told.preempted_share) == (0.0, 0.0)
    assert preempted_requests(made.requests, made.counters.iloc[:0], window) is None


def test_boundaries_that_are_no_numbers_tell_nothing() -> None:
    made = polled([*state(30, 40, 0.95).counters.to_dict("records"), *buckets(("many", 1.0), ("NaN", 1.0))])
    assert preempted_requests(made.requests, made.counters, diagnose(made).window) is None


def test_steps_that_preempt_often_at_an_unknown_cost_are_named_at_most_medium() -> None:
    engine = Engine(max_num_seqs=64, kv_tokens=240, reserve_output=False)
    run = replay(engine, [Asked(number * 60_000_000, 16 + number % 8, 16 + number % 5) for number in range(160)])
    made = inputs(run, engine)
    unknown = replace(made, counters=made.counters[~made.counters["name"].str.contains("prompt_tokens")])
    found = finding(unknown, "SPY-KVC-002")
    assert (found.severity, found.share) == ("medium", None)
    assert advice(found)["max_num_seqs"].to < 64
    assert finding(replace(unknown, counters=unknown.counters[unknown.counters["value"] < 4]), "SPY-KVC-002") is None
