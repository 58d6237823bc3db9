"""What is advised where decode reads memory: more requests per read, shorter weights, a shorter cache."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from engine_builder import (
    COMPUTE_PEAK,
    MS,
    READ_PEAK,
    Engine,
    Request,
    Run,
    S,
    decode_alone,
    inputs,
    light,
    prefill_heavy,
    profiled,
    replay,
)

from spyreprof.findings import Advice, Diagnosis, Finding
from spyreprof.recording.schema import AnalysisInputs, EngineSettings, ModelFacts, Peak
from spyreprof.registry import diagnose

SETTINGS = EngineSettings(kv_blocks=6250, block_size=16, source="metrics", max_num_seqs=64)
GPU = replace(SETTINGS, platform="cuda")


def decode_bound(run: tuple[Engine, Run] | None = None, **changes: object) -> AnalysisInputs:
    """Decode at the bandwidth peak, on a CPU."""
    engine, made = run or decode_alone()
    seen = profiled(made, phase="decode", compute_use=0.05, bandwidth_use=0.8)
    return inputs(made, engine, **({"profiled_steps": seen, "settings": SETTINGS} | changes))


def advised(diagnosis: Diagnosis) -> dict[str, Advice]:
    return {advice.setting: advice for found in diagnosis.findings for advice in found.advice}


def model(dtype: str, weights_s: float = 0.05, **sizes: object) -> ModelFacts:
    return ModelFacts(parameter_bytes=int(weights_s * READ_PEAK), embedding_bytes=0, dtype=dtype, **sizes)


# More requests per read


def test_a_lone_client_leaves_room_for_others() -> None:
    found = advised(diagnose(decode_bound()))["client concurrency"]
    assert (found.from_, found.to) == (1, 2)
    assert "fewer replicas" in found.preconditions[0]
    (gain,) = found.expected
    # steps with two prompt tokens are no decode of two: nothing tells what that would take
    assert (gain.low, gain.high) == (None, 1.0)


def test_where_steps_of_twice_the_batch_were_seen_the_gain_is_a_range() -> None:
    engine = Engine(fixed_ns=60 * MS, per_request_ns=2 * MS)
    pairs = [Request(int(number * 2.2 * S), 8, 24) for number in range(40)]
    few = [Request(int((number * 11 + 5.01) * S), 8, 24) for number in range(2)]
    found = advised(diagnose(decode_bound((engine, replay(engine, pairs + few)))))
    gain = found["client concurrency"].expected[0]
    # two requests in 64 ms for one in 62, and a tenth either way
    assert gain.low < 2 * 62 / 64 - 1 < gain.high


def test_nobody_is_asked_to_send_more_while_requests_wait() -> None:
    made = decode_bound()
    waits = made.counters.assign(value=made.counters["value"].where(
        made.counters["name"] != "vllm:num_requests_waiting", 3.0))  # fmt: skip
    assert "client concurrency" not in advised(diagnose(replace(made, counters=waits)))
    silent = made.counters[made.counters["name"] != "vllm:num_requests_waiting"]
    assert "client concurrency" not in advised(diagnose(replace(made, counters=silent)))


def test_for_the_clients_that_are_there_nothing_is_to_be_changed() -> None:
    found = diagnose(decode_bound())
    assert found.verdict.secondary == ("load_limited",)
    (decode,) = [one for one in found.findings if one.id == "SPY-DEC-001"]
    assert "each token is as fast as the bytes allow" in decode.text


# Fewer bytes of weights


@pytest.mark.parametrize(
    ("dtype", "settings", "device", "to", "arguments"),
    [
        ("float32", SETTINGS, "cpu", "bfloat16", "--dtype bfloat16"),
        ("bfloat16", SETTINGS, "cpu", "int8", ""),
        ("float16", GPU, "cuda", "fp8", "--quantization fp8"),
        ("float16", replace(SETTINGS, platform="spyre"), "cpu", "int8", ""),
    ],
)
def test_weights_may_be_read_in_half_the_bytes(
    dtype: str, settings: EngineSettings, device: str, to: str, arguments: str
) -> None:
    found = advised(diagnose(decode_bound(model=model(dtype), settings=settings)))["weight precision"]
    assert (found.from_, found.to, found.test_arguments) == (dtype, to, arguments)
    assert found.expected[0].high == 0.5
    assert found.expected[0].low is None
    assert found.pays[0].metric == "quality of answers"


@pytest.mark.parametrize("dtype", ["int8", "fp8", "int4", None])
def test_short_or_unknown_weights_are_left_alone(dtype: str | None) -> None:
    assert "weight precision" not in advised(diagnose(decode_bound(model=model(dtype))))


LAYERS = {"layers": 10, "kv_heads": 8}


def mean_length() -> float:
    _, run = decode_alone()
    rows = [row["generation_seq_len_sum"] for row in run.steps if row["generation_requests"]]
    return sum(rows) / len(rows)


@pytest.mark.parametrize(("weight_share", "weights", "cache"), [(0.62, True, False), (0.58, False, True)])
def test_what_is_most_of_the_bytes_is_what_to_shorten(weight_share: float, weights: bool, cache: bool) -> None:
    """From six tenths of the bytes on the weights, from four tenths on the cache."""
    whole = 0.05 * READ_PEAK
    per_token = whole * (1 - weight_share) / mean_length()
    known = model("float16", 0.05 * weight_share, layers=1, kv_heads=1, head_dim=round(per_token / 4))
    found = advised(diagnose(decode_bound(model=known, settings=GPU)))
    assert ("weight precision" in found) is weights
    assert ("kv_cache_dtype" in found) is cache


# Prompts


@pytest.mark.parametrize(
    ("dtype", "platform", "told"),
    [("bfloat16", "cuda", True), ("bfloat16", "cpu", False), ("float32", "cuda", False), ("fp8", "cuda", False)],
)
def test_prompts_that_use_the_compute_peak_may_be_computed_in_eight_bits_on_a_gpu(
    dtype: str, platform: str, told: bool
) -> None:
    engine, run = prefill_heavy()
    seen = profiled(run, phase="prefill", compute_use=0.7, bandwidth_use=0.1)
    known = replace(SETTINGS, platform=platform)
    found = diagnose(inputs(run, engine, profiled_steps=seen, model=model(dtype, 0.005), settings=known))
    assert found.verdict.primary == "prefill_bound"
    advice = advised(found).get("weight precision")
    assert (advice is not None) is told
    if advice is not None:
        assert [(change.low, change.high) for change in advice.expected] == [(None, None)]


# Fewer bytes of the cache


def reads_the_cache(**changes: object) -> AnalysisInputs:
    """Attention moves most of the bytes: four requests of growing length."""
    engine = Engine(fixed_ns=20 * MS, per_request_ns=0, per_cached_token_ns=50_000, max_num_batched_tokens=2048)
    talks = [Request(int(number * 0.2 * S), 200 * (1 + number), 600 + 40 * number) for number in range(4)]
    run = replay(engine, talks)
    seen = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.8)
    attention = tuple(
        replace(step, operators=tuple(replace(one, kind="attention") if one.kind == "matmul" else one
                                      for one in step.operators))
        for step in seen
    )  # fmt: skip
    settings = replace(GPU, kv_dtype="auto")
    known = model("bfloat16", 0.01)
    return inputs(run, engine, **({"profiled_steps": attention, "settings": settings, "model": known} | changes))


def test_a_decode_that_reads_the_cache_is_told_of_shorter_elements_with_the_share_that_the_model_fitted() -> None:
    found = diagnose(reads_the_cache())
    assert found.verdict.primary == "decode_bandwidth_bound"
    cache = advised(found)["kv_cache_dtype"]
    assert (cache.from_, cache.to) == ("bfloat16", "fp8")
    (change,) = cache.expected
    assert 0 < change.low < change.high <= 0.5
    assert "client concurrency" not in advised(found)
    assert "weight precision" not in advised(found)


@pytest.mark.parametrize(
    "settings", [replace(GPU, kv_dtype="fp8"), replace(SETTINGS, platform="spyre"), replace(SETTINGS, platform="cpu")]
)
def test_a_short_cache_and_a_platform_without_one_are_left_alone(settings: EngineSettings) -> None:
    assert "kv_cache_dtype" not in advised(diagnose(reads_the_cache(settings=settings)))


def test_a_type_that_is_no_known_one_is_not_repeated() -> None:
    found = advised(diagnose(reads_the_cache(settings=replace(GPU, kv_dtype="customer's own"))))
    assert found["kv_cache_dtype"].from_ is None


# Kernels


def slow_kernels(bandwidth: float, clients: int = 1) -> AnalysisInputs:
    engine = Engine(fixed_ns=60 * MS)
    load = [Request(-1, 8, 24) for _ in range(40)] if clients == 1 else [
        Request(number // clients * 1_700 * MS, 8, 24) for number in range(40 * clients)
    ]  # fmt: skip
    run = replay(engine, load)
    seen = profiled(run, phase="decode", compute_use=0.005, bandwidth_use=bandwidth)
    return inputs(run, engine, profiled_steps=seen, model=model("int4", 0.001), settings=GPU)


@pytest.mark.parametrize(("bandwidth", "told"), [(0.27, True), (0.021, True), (0.019, False)])
def test_products_too_small_for_the_device_want_more_rows_unless_kernels_waste_it(bandwidth: float, told: bool) -> None:
    found = diagnose(slow_kernels(bandwidth))
    assert found.verdict.primary == "inefficient_kernel"
    assert ("client concurrency" in advised(found)) is told


def test_larger_batches_that_use_no_peak_are_no_matter_of_clients() -> None:
    found = diagnose(slow_kernels(0.2, clients=4))
    assert found.verdict.primary == "inefficient_kernel"
    assert "client concurrency" not in advised(found)


# Far from both peaks


def far(share: float, **changes: object) -> Diagnosis:
    """Decode steps of which reading the weights takes that share, and no profile."""
    made = decode_bound(profiled_steps=(), model=model("float32", 0.061 * share, **KV))
    peaks = tuple(Peak(*one) for one in (
        ("compute", 1000 * COMPUTE_PEAK, "flop/s", "declared", "hardware file"),
        ("memory_bandwidth", READ_PEAK, "bytes/s", "declared", "hardware file"),
    ))  # fmt: skip
    return diagnose(replace(made, **({"peaks": peaks} | changes)))


KV = {"layers": 1, "kv_heads": 1, "head_dim": 1}


def rule(diagnosis: Diagnosis, rule_id: str) -> Finding | None:
    return next((found for found in diagnosis.findings if found.id == rule_id), None)


@pytest.mark.parametrize(("share", "told"), [(0.018, True), (0.022, False)])
def test_a_step_of_which_peaks_explain_less_than_a_fiftieth_is_bound_by_neither(share: float, told: bool) -> None:
    found = far(share)
    assert (rule(found, "SPY-EFF-001") is not None) is told
    assert found.verdict.primary == "undetermined"


def test_without_a_peak_or_a_size_no_step_is_called_far_from_it() -> None:
    assert rule(far(0.01, peaks=()), "SPY-EFF-001") is None
    assert rule(far(0.01, model=ModelFacts()), "SPY-EFF-001") is None


def test_a_cache_of_unknown_size_is_taken_for_large() -> None:
    """At five megabytes a token, reading some twenty cached tokens takes a fifth of the step."""
    assert rule(far(0.01, model=model("float32", 0.0006)), "SPY-EFF-001") is None


def test_a_trace_that_shows_bandwidth_is_not_believed_where_the_step_is_far_from_it() -> None:
    _, run = decode_alone()
    seen = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.8)
    assert far(0.01, profiled_steps=seen).verdict.primary == "undetermined"
    assert far(0.50, profiled_steps=seen).verdict.primary == "decode_bandwidth_bound"


@pytest.mark.parametrize("load", [decode_alone, light])
def test_steps_that_read_their_weights_are_not_far_from_anything(load) -> None:
    engine, run = load()
    assert rule(diagnose(inputs(run, engine)), "SPY-EFF-001") is None


# Kernels that a trace lost


@pytest.mark.parametrize(("weights", "believed"), [(0.15, True), (0.30, False)])
def test_an_idle_device_is_not_believed_where_weights_leave_it_no_time(weights: float, believed: bool) -> None:
    """The trace shows the device idle for eight tenths of a step."""
    engine, run = decode_alone()
    seen = tuple(
        replace(step, device_kind="cuda", device_busy_ns=(step.end_ns - step.start_ns) // 5)
        for step in profiled(run, phase="decode", compute_use=0.01, bandwidth_use=0.5, matmul_ratio=0.19, gap_ratio=0.8)
    )
    made = inputs(run, engine, profiled_steps=seen, model=model("float32", 0.061 * weights), device_kind="cuda")
    found = diagnose(made)
    assert (found.verdict.primary == "host_bound") is believed
    lost = [one for one in found.not_judged if "kernels are missing" in one.reason]
    assert bool(lost) is not believed


# Pipelines


def piped(stages: int | None, **changes: object) -> Diagnosis:
    return diagnose(decode_bound(settings=replace(GPU, pipeline_parallel=stages), **changes))


def test_fewer_requests_than_stages_leave_stages_idle() -> None:
    found = rule(piped(2), "SPY-PIP-001")
    assert found.severity == "medium"
    assert (found.advice[0].from_, found.advice[0].to) == (1, 4)
    assert rule(piped(4), "SPY-PIP-001").severity == "high"


@pytest.mark.parametrize("stages", [1, None])
def test_an_engine_without_stages_has_none_that_wait(stages: int | None) -> None:
    assert rule(piped(stages), "SPY-PIP-001") is None


def test_a_full_pipeline_is_no_finding_and_an_unseen_load_neither() -> None:
    two = Engine(fixed_ns=60 * MS)
    run = replay(two, [Request(int(number * 0.55 * S), 8, 24) for number in range(80)])
    full = decode_bound((two, run), settings=replace(GPU, pipeline_parallel=2))
    assert rule(diagnose(full), "SPY-PIP-001") is None
    made = decode_bound(settings=replace(GPU, pipeline_parallel=2))
    blind = made.counters[~made.counters["name"].str.contains("num_requests")]
    assert rule(diagnose(replace(made, counters=blind)), "SPY-PIP-001") is None


# Weights in host memory


def labelled(text: str) -> Diagnosis:
    made = decode_bound(profiled_steps=())
    row = {"time_ns": 0, "endpoint": 0, "name": "vllm:cache_config_info", "labels": text, "value": 1.0}
    return diagnose(replace(made, counters=pd.concat([pd.DataFrame([row]), made.counters], ignore_index=True)))


def test_weights_in_host_memory_are_named_as_a_question() -> None:
    found = labelled('{"cpu_offload_gb": "10.0"}')
    assert any("offload" in question.reason and "10 GiB" in question.reason for question in found.not_judged)


@pytest.mark.parametrize("text", ['{"cpu_offload_gb": "0"}', '{"cpu_offload_gb": "much"}', "[]", "no json", "{}",
                                  '{"cpu_offload_gb": "nan"}', '{"cpu_offload_gb": "1e300"}'])  # fmt: skip
def test_without_such_a_label_nothing_is_asked(text: str) -> None:
    assert not any("offload" in question.reason for question in labelled(text).not_judged)
