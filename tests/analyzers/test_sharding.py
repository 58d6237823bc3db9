"""A model over more devices than it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_builder import READ_PEAK, Engine, decode_alone, inputs, light

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import AnalysisInputs, EngineSettings, ModelFacts
from spyreprof.registry import diagnose
from spyreprof_analyzers.sharding import Sharding, fewer_devices

# of one rank: a million weights of two bytes, and 1024 bytes of cache for a token
MODEL = ModelFacts(parameter_bytes=2_000_000, dtype="float16", layers=2, kv_heads=8, head_dim=64)
FOUR = EngineSettings(tensor_parallel=4, kv_tokens=20_000)


@pytest.mark.parametrize(
    ("used", "longest", "size"),
    [
        (0.10, 500, 1),
        (0.45, 500, 1),
        # 8 MB of weights on one device and half of 20 MB are more than nine tenths of 22 MB
        (0.60, 500, 2),
        (0.99, 500, None),
        # one device keeps (22.5 MB - 8 MB) / 4096 B = 3,525 tokens, two 9,024
        (0.10, 3_500, 1),
        (0.10, 3_600, 2),
    ],
)
def test_the_fewest_devices_are_those_whose_memory_holds_weights_load_and_the_longest_request(
    used: float, longest: int, size: int | None
) -> None:
    found = fewer_devices(FOUR, MODEL, used, longest, 0.9)
    assert (found.fewer if found is not None else None) == size


@pytest.mark.parametrize(
    ("settings", "model", "used"),
    [
        (EngineSettings(kv_tokens=20_000), MODEL, 0.1),
        (replace(FOUR, tensor_parallel=1), MODEL, 0.1),
        (EngineSettings(tensor_parallel=4), MODEL, 0.1),
        (FOUR, replace(MODEL, layers=None), 0.1),
        (FOUR, replace(MODEL, parameter_bytes=None), 0.1),
        (FOUR, MODEL, None),
    ],
)
def test_without_a_size_or_the_use_of_the_cache_nothing_is_said(
    settings: EngineSettings, model: ModelFacts, used: float | None
) -> None:
    assert fewer_devices(settings, model, used, 100, 0.9) is None


def test_on_spyre_only_sizes_that_its_stack_runs_with_are_advised() -> None:
    twelve, model = replace(FOUR, tensor_parallel=12), replace(MODEL, parameter_bytes=4_000_000, head_dim=128)
    assert fewer_devices(twelve, model, 0.1, 100, 0.9).fewer == 3
    assert fewer_devices(replace(twelve, platform="spyre"), model, 0.1, 100, 0.9).fewer == 4


def test_more_ranks_than_heads_hold_the_same_cache_twice() -> None:
    """Of one head each; over one device nothing of it is saved."""
    found = fewer_devices(replace(FOUR, kv_tokens=30_000), replace(MODEL, kv_heads=2), 0.2, 100, 0.9)
    assert isinstance(found, Sharding)
    assert found.kv_tokens == int((2_000_000 + 30_000 * 512 - 8_000_000) / 1024)


def sharded(floor: float, **changes: object) -> AnalysisInputs:
    """One client on four devices; reading its part of the weights takes a device that share of a step."""
    engine, run = decode_alone()
    model = replace(MODEL, parameter_bytes=int(floor * 0.061 * READ_PEAK))
    known = EngineSettings(
        tensor_parallel=4, kv_tokens=4_000_000, max_num_seqs=64, platform="cuda", source="metrics", block_size=16
    )
    return inputs(run, engine, **({"settings": known, "model": model, "device_kind": "cuda"} | changes))


def finding(diagnosis: Diagnosis) -> Finding | None:
    return next((found for found in diagnosis.findings if found.id == "SPY-TP-001"), None)


def test_devices_that_read_for_a_small_part_of_a_step_are_too_many() -> None:
    found = finding(diagnose(sharded(0.1)))
    assert found.severity == "medium"
    (advice,) = found.advice
    assert (advice.setting, advice.from_, advice.to) == ("tensor_parallel_size", 4, 1)
    assert advice.test_arguments == "--tensor-parallel-size 1 --data-parallel-size 4"
    assert advice.pays[0].metric == "ITL"


@pytest.mark.parametrize(("floor", "told"), [(0.28, True), (0.32, False)])
def test_from_three_tenths_on_a_device_is_used(floor: float, told: bool) -> None:
    assert (finding(diagnose(sharded(floor))) is not None) is told


def test_the_least_price_is_what_reading_more_weights_must_take() -> None:
    """Four times 0.28 of a step is more than the step."""
    (advice,) = finding(diagnose(sharded(0.28))).advice
    assert advice.pays[0].low == pytest.approx(4 * 0.28 - 1, abs=0.05)
    (cheap,) = finding(diagnose(sharded(0.1))).advice
    assert cheap.pays[0].low is None


def test_without_the_use_of_the_cache_the_question_stays_open() -> None:
    made = sharded(0.1)
    blind = made.counters[~made.counters["name"].str.contains("kv_cache_usage")]
    found = diagnose(replace(made, counters=blind))
    assert finding(found) is None
    assert any("fewer devices" in question.topic for question in found.not_judged)


def test_without_a_peak_and_without_communication_nothing_tells_how_devices_are_used() -> None:
    assert finding(diagnose(sharded(0.1, peaks=()))) is None


def test_for_an_engine_that_mostly_idles_it_is_no_severe_finding() -> None:
    _, idle = light()
    made = sharded(0.1)
    found = diagnose(replace(made, steps=inputs(idle, Engine()).steps, counters=inputs(idle, Engine()).counters,
                             requests=inputs(idle, Engine()).requests, recording_end_ns=idle.end_ns))  # fmt: skip
    assert found.verdict.primary == "load_limited"
    assert finding(found) is None or finding(found).severity == "low"
