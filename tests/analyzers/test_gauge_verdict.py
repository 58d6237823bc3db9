"""Verdicts on engines whose steps were not seen: by gauges, counters, request times and settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gauge_builder import (
    KV,
    QUEUED,
    RUNNING,
    SETTINGS,
    WAITING,
    advice,
    finding,
    page,
    polled,
    renamed,
    state,
    without,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spyreprof.recording.schema import AnalysisInputs, ModelFacts, Peak
from spyreprof.registry import diagnose

AT_CAP = state(64, 40, 0.5)
KEPT_OUT = state(30, 40, 0.95)
IDLE = state([0, 0, 0, 0, 1, 0, 0], 0, 0.01)
PREEMPTING = state(30, 40, 0.7, QUEUED | {"vllm:num_preemptions_total": 1.0})
SITUATIONS = {"at the cap": AT_CAP, "kept out": KEPT_OUT, "idle": IDLE, "preempting": PREEMPTING}


def primary(made: AnalysisInputs) -> str:
    return diagnose(made).verdict.primary


def test_waiting_at_the_cap_with_room_in_the_cache_is_the_batch_cap_with_medium_confidence() -> None:
    verdict = diagnose(AT_CAP).verdict
    assert (verdict.primary, verdict.confidence) == ("queue_bound", "medium")
    assert "without engine steps" in verdict.reason
    assert any("medium at most" in reason for reason in verdict.confidence_reasons)


def test_the_cap_is_raised_to_what_cache_and_demand_allow_and_no_step_time_is_promised() -> None:
    """64 requests hold half of the cache: 0.9 / 0.5 x 64 = 115 fit, and 104 are there."""
    (found,) = advice(finding(AT_CAP, "SPY-QUE-001")).values()
    assert (found.setting, found.from_, found.to) == ("max_num_seqs", 64, 104)
    assert found.expected[0].low is None
    assert found.expected[0].high == pytest.approx(104 / 64 - 1)
    (full,) = advice(finding(state(64, 400, 0.5), "SPY-QUE-001")).values()
    assert full.to == 115


def test_a_hybrid_model_runs_no_more_requests_than_it_has_state_blocks() -> None:
    hybrid = replace(SETTINGS, state_blocks=80)
    (found,) = advice(finding(state(64, 40, 0.5, settings=hybrid), "SPY-QUE-001")).values()
    assert found.to == 80
    assert any("state blocks" in said for said in found.preconditions)


@pytest.mark.parametrize(("running", "said"), [(58, "queue_bound"), (57, "undetermined")])
def test_at_the_cap_is_nine_tenths_of_it(running: int, said: str) -> None:
    assert primary(state(running, 40, 0.5)) == said


@pytest.mark.parametrize(("usage", "said"), [(0.90, "kv_capacity_bound"), (0.89, "undetermined")])
def test_below_the_cap_a_cache_is_full_from_nine_tenths_on(usage: float, said: str) -> None:
    assert primary(state(30, 40, usage)) == said


@pytest.mark.parametrize(("waiting", "said"), [([0, 0, 40], "undetermined"), ([0, 40, 40], "kv_capacity_bound")])
def test_waiting_counts_when_it_lasts_for_most_of_the_time(waiting: list[float], said: str) -> None:
    made = state(30, waiting, 0.95)
    half = made.counters["name"] == WAITING
    counters = made.counters.copy()
    # half of the time nobody waits, where the first points are zero
    counters.loc[half & (counters["value"] < 36), "value"] = 0.0
    assert primary(replace(made, counters=counters)) == said


def test_a_cap_that_is_reached_beside_a_full_cache_is_neither_of_the_two() -> None:
    """Both hold: more of one alone admits nobody."""
    verdict = diagnose(state(64, 40, 0.97)).verdict
    assert verdict.primary == "undetermined"
    assert "both" in verdict.reason


def test_preemption_all_through_the_window_names_the_cache_whatever_the_gauge_says() -> None:
    assert primary(PREEMPTING) == "kv_capacity_bound"
    assert primary(state(64, 40, 0.97, QUEUED | {"vllm:num_preemptions_total": 1.0})) == "kv_capacity_bound"


def test_a_burst_of_preemptions_names_nothing() -> None:
    made = state(30, 40, 0.7)
    counters = made.counters.copy()
    late = (counters["name"] == "vllm:num_preemptions_total") & (counters["time_ns"] > 60_000_000_000)
    counters.loc[late, "value"] = 50.0
    assert primary(replace(made, counters=counters)) == "undetermined"


def test_without_a_known_cap_a_full_cache_is_named_only_where_the_running_go_up_and_down() -> None:
    """A number that never moves may be a cap that nobody told of."""
    unknown = replace(SETTINGS, max_num_seqs=None)
    assert primary(state(30, 40, 0.95, settings=unknown)) == "undetermined"
    varies = state([30, 22, 31, 20, 30, 22, 33], 40, 0.95, settings=unknown)
    verdict = diagnose(varies).verdict
    assert verdict.primary == "kv_capacity_bound"
    assert any("batch cap" in one for one in finding(varies, "SPY-KVC-001").against)


def test_a_cap_that_is_not_known_is_not_guessed() -> None:
    verdict = diagnose(state(64, 40, 0.5, settings=replace(SETTINGS, max_num_seqs=None))).verdict
    assert verdict.primary == "undetermined"
    assert any("batch cap" in item.topic for item in verdict.missing)


def test_an_engine_that_is_empty_for_most_of_the_time_is_limited_by_its_load() -> None:
    verdict = diagnose(IDLE).verdict
    assert verdict.primary == "load_limited"
    assert finding(IDLE, "SPY-LOD-001").severity == "info"


def test_an_idle_engine_whose_clients_have_requests_on_their_way_is_not_called_idle() -> None:
    requests = AT_CAP.requests.reindex(range(100))
    requests = requests.assign(
        arrival_ns=[number * 10**9 for number in range(100)], ttft_ns=20 * 10**9, e2e_ns=30 * 10**9, failed=False,
        output_tokens=10, prompt_tokens=10, source="bench_result",
    ).astype(AT_CAP.requests.dtypes.to_dict())  # fmt: skip
    verdict = diagnose(replace(IDLE, requests=requests)).verdict
    assert verdict.primary == "undetermined"
    assert "clients hold more requests" in verdict.reason


@pytest.mark.parametrize(("seconds", "judged"), [(4.5, False), (7, True)])
def test_gauges_of_a_few_seconds_give_no_verdict(seconds: float, judged: bool) -> None:
    assert (primary(state(64, 40, 0.5, seconds=seconds)) != "undetermined") == judged


def test_without_gauges_the_verdict_says_that_steps_are_missing() -> None:
    for name in (RUNNING, WAITING):
        verdict = diagnose(without(AT_CAP, name)).verdict
        assert verdict.primary == "undetermined"
        assert verdict.missing[0].reason == "no engine step was seen"


def test_what_gauges_lack_is_named_with_a_way_to_obtain_it() -> None:
    verdict = diagnose(without(state(30, 40, 0.95), KV, "vllm:num_preemptions_total")).verdict
    said = " ".join(item.reason for item in verdict.missing)
    assert "kv_cache_usage_perc" in said
    assert "num_preemptions" in said
    assert all(item.obtain for item in verdict.missing)


@pytest.mark.parametrize("name", SITUATIONS)
def test_older_names_and_rays_prefix_mean_the_same(name: str) -> None:
    made = SITUATIONS[name]
    said = diagnose(made).verdict
    old = diagnose(renamed(made, {KV: "vllm:gpu_cache_usage_perc"})).verdict
    ray = diagnose(renamed(made, {one: f"ray_{one}" for one in made.counters["name"].unique()})).verdict
    assert old == ray == said


def test_the_breakdown_of_waiting_by_reason_is_not_added_to_it() -> None:
    rows = page({RUNNING: 64, WAITING: 0.0, KV: 0.5}, QUEUED)
    rows += page({"vllm:num_requests_waiting_by_reason": 40.0}, labels={"reason": "capacity"})
    assert primary(polled(rows)) == "undetermined"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(SITUATIONS)), data=st.data())
def test_dropping_metrics_keeps_the_class_or_leaves_it_open(name: str, data: st.DataObject) -> None:
    made = SITUATIONS[name]
    families = sorted(made.counters["name"].unique())
    dropped = data.draw(st.lists(st.sampled_from(families), unique=True, min_size=1, max_size=6))
    before, after = diagnose(made).verdict, diagnose(without(made, *dropped)).verdict
    assert after.primary in (before.primary, "undetermined")
    rank = [None, "low", "medium", "high"]
    assert rank.index(after.confidence) <= rank.index(before.confidence)


def test_request_times_that_say_otherwise_lower_the_confidence() -> None:
    other = QUEUED | {"vllm:request_queue_time_seconds_sum": 1.0, "vllm:request_decode_time_seconds_sum": 80.0}
    verdict = diagnose(state(64, 40, 0.5, other)).verdict
    assert (verdict.primary, verdict.confidence) == ("queue_bound", "low")
    assert any("requests dissents" in reason for reason in verdict.confidence_reasons)


MODEL = ModelFacts(parameter_bytes=16 * 10**9, embedding_bytes=0, dtype="bfloat16")
PEAKS = (
    Peak("memory_bandwidth", 2e12, "bytes/s", "declared", "hardware file"),
    Peak("compute", 3e14, "flop/s", "declared", "hardware file"),
)


def decoding(itl_ms: float, model: ModelFacts = MODEL) -> AnalysisInputs:
    """Eight requests that decode all the time; reading the weights takes 8 ms."""
    rates = {
        "vllm:generation_tokens_total": 8000 / itl_ms,
        "vllm:inter_token_latency_seconds_sum": 8.0,
        "vllm:inter_token_latency_seconds_count": 8000 / itl_ms,
        "vllm:e2e_request_latency_seconds_count": 1.0,
        "vllm:request_queue_time_seconds_sum": 0.0,
        "vllm:request_prefill_time_seconds_sum": 0.1,
        "vllm:request_decode_time_seconds_sum": 8.0,
    }
    return state(8, 0, 0.1, rates, model=model, peaks=PEAKS)


@pytest.mark.parametrize(
    ("itl_ms", "said"),
    [
        (10, "decode_bandwidth_bound"),
        # above the whole gap: not all weights can have been read
        (7, "undetermined"),
        # a hundredth of the bandwidth
        (800, "undetermined"),
    ],
)
def test_bandwidth_is_named_only_where_reading_the_weights_explains_the_gap_between_tokens(
    itl_ms: float, said: str
) -> None:
    assert primary(decoding(itl_ms)) == said


def test_the_older_name_of_the_gap_between_tokens_means_the_same() -> None:
    gap = "inter_token_latency_seconds"
    names = {f"vllm:{gap}_{part}": f"vllm:time_per_output_token_seconds_{part}" for part in ("sum", "count")}
    assert diagnose(renamed(decoding(10), names)).verdict == diagnose(decoding(10)).verdict


def test_without_model_or_peak_no_resource_is_named_and_the_larger_part_of_request_time_is_told() -> None:
    for made in (replace(decoding(10), model=ModelFacts()), replace(decoding(10), peaks=())):
        verdict = diagnose(made).verdict
        assert verdict.primary == "undetermined"
        assert "of request time goes to decode" in verdict.reason


def prompts(rate: float, kv: float = 0.5) -> AnalysisInputs:
    """Twenty run and sixty wait; ten steps a second."""
    rates = QUEUED | {"vllm:generation_tokens_total": 200.0, "vllm:prompt_tokens_total": rate}
    return state(20, 60, kv, rates)


@pytest.mark.parametrize(("rate", "said"), [(41_000, "prefill_bound"), (40_000, "undetermined")])
def test_steps_whose_prompts_take_half_of_the_budget_are_filled_by_them(rate: float, said: str) -> None:
    assert primary(prompts(rate)) == said


def test_an_engine_that_admits_by_first_chunks_is_told_to_reserve_whole_prompts() -> None:
    made = prompts(60_000)
    off = replace(made, settings=replace(SETTINGS, reserve_full_prompt=False))
    assert "scheduler_reserve_full_isl" in advice(finding(off, "SPY-PRE-001"))
    assert advice(finding(made, "SPY-PRE-001")) == {}
