"""Devices and settings of an engine of which gauges, counters and sizes alone are known, or steps without a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_builder import READ_PEAK, S, decode_alone, inputs, table

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import (
    COUNTERS,
    REQUESTS,
    STEPS,
    USAGE,
    AnalysisInputs,
    EngineSettings,
    ModelFacts,
    Peak,
)
from spyreprof.registry import diagnose

MODEL = ModelFacts(parameter_bytes=400_000_000, embedding_bytes=0, dtype="float16", layers=2, kv_heads=8, head_dim=64)
FOUR = EngineSettings(
    tensor_parallel=4, kv_tokens=2_000_000, max_num_seqs=64, eager=True, platform="cuda", source="metrics"
)
PEAK = Peak("memory_bandwidth", READ_PEAK, "bytes/s", "declared", "hardware file")


def rule(diagnosis: Diagnosis, rule_id: str) -> Finding | None:
    return next((found for found in diagnosis.findings if found.id == rule_id), None)


def polled(tokens_per_s: float = 8.0, **changes: Any) -> AnalysisInputs:
    """A minute of gauges: ten requests run, none waits, a tenth of the cache is in use.

    A device reads 0.4 GB of weights and 0.2 GB of cache, 77 ms at the peak; a step takes 10 / tokens a second.
    """
    rows: list[dict[str, Any]] = []
    for half in range(120):
        for name, value in (
            ("num_requests_running", 10), ("num_requests_waiting", 0), ("kv_cache_usage_perc", 0.1),
            ("generation_tokens_total", half / 2 * tokens_per_s), ("prompt_tokens_total", half / 2),
        ):  # fmt: skip
            rows.append(
                {"time_ns": half * S // 2, "endpoint": 0, "name": f"vllm:{name}", "labels": "{}", "value": value}
            )
    made = AnalysisInputs(
        steps=table(STEPS, []), requests=table(REQUESTS, []), counters=table(COUNTERS, rows), usage=table(USAGE, []),
        recording_start_ns=0, recording_end_ns=60 * S, finished=True, device_kind="cuda", settings=FOUR, model=MODEL,
        peaks=(PEAK,),
    )  # fmt: skip
    return replace(made, **changes)


def test_many_devices_and_eager_mode_are_told_without_any_step() -> None:
    found = diagnose(polled())
    sharded = rule(found, "SPY-TP-001")
    assert (sharded.advice[0].from_, sharded.advice[0].to) == (4, 1)
    assert [advice.setting for advice in rule(found, "SPY-HST-005").advice] == ["enforce_eager"]
    assert any("no engine step was seen" in said for said in sharded.against)


@pytest.mark.parametrize(("tokens_per_s", "told"), [(38.0, True), (41.0, False)])
def test_a_device_that_reads_for_three_tenths_of_a_step_is_used(tokens_per_s: float, told: bool) -> None:
    """77 ms of reads are 0.29 of 263 ms and 0.31 of 244 ms."""
    found = diagnose(polled(tokens_per_s))
    assert (rule(found, "SPY-TP-001") is not None) is told
    assert (rule(found, "SPY-HST-005") is not None) is told


@pytest.mark.parametrize(
    "changes",
    [
        {"peaks": ()},
        {"model": replace(MODEL, layers=None)},
        {"settings": replace(FOUR, kv_tokens=None)},
        {"settings": replace(FOUR, speculative_tokens=3)},
    ],
)
def test_without_a_size_or_a_peak_or_with_more_tokens_in_a_step_nothing_is_said(changes: dict[str, Any]) -> None:
    found = diagnose(polled(**changes))
    assert rule(found, "SPY-TP-001") is None
    assert rule(found, "SPY-HST-005") is None


def test_an_engine_of_one_device_without_such_settings_is_left_alone() -> None:
    found = diagnose(polled(settings=replace(FOUR, tensor_parallel=1, eager=False)))
    assert rule(found, "SPY-TP-001") is None
    assert rule(found, "SPY-HST-005") is None


def test_steps_for_prompts_say_nothing_of_decode() -> None:
    made = polled()
    prompts = made.counters["name"] == "vllm:prompt_tokens_total"
    many = made.counters.assign(value=made.counters["value"].where(~prompts, made.counters["value"] * 100))
    assert rule(diagnose(replace(made, counters=many)), "SPY-HST-005") is None


# With steps and no profile


def stepped(floor: float, **changes: Any) -> AnalysisInputs:
    engine, run = decode_alone()
    model = replace(MODEL, parameter_bytes=int(floor * 0.061 * READ_PEAK))
    return inputs(run, engine, **({"settings": replace(FOUR, tensor_parallel=1), "model": model,
                                   "device_kind": "cuda"} | changes))  # fmt: skip


@pytest.mark.parametrize(("floor", "told"), [(0.28, True), (0.32, False)])
def test_eager_mode_is_named_where_nothing_else_tells_why_a_step_is_long(floor: float, told: bool) -> None:
    found = rule(diagnose(stepped(floor)), "SPY-HST-005")
    assert (found is not None) is told
    if found is not None:
        assert found.severity == "medium"


@pytest.mark.parametrize("settings", [EngineSettings(source="metrics", kv_tokens=1), replace(FOUR, eager=False)])
def test_without_a_setting_that_slows_there_is_none_to_name(settings: EngineSettings) -> None:
    assert rule(diagnose(stepped(0.1, settings=settings)), "SPY-HST-005") is None


def test_structured_output_is_named_on_any_platform() -> None:
    held = replace(FOUR, tensor_parallel=1, eager=None, grammar=True, platform="cpu")
    found = rule(diagnose(stepped(0.1, settings=held)), "SPY-HST-005")
    assert [advice.setting for advice in found.advice] == ["structured output backend"]


def test_a_step_of_unknown_reads_is_not_called_long() -> None:
    assert rule(diagnose(stepped(0.1, peaks=())), "SPY-HST-005") is None
