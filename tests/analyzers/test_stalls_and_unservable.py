"""Requests that wait while nothing is computed, and settings that cannot serve what they allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_builder import Engine, capped, inputs
from gauge_builder import KV, QUEUED, RUNNING, SETTINGS, WAITING, advice, finding, page, polled, state, without

from spyreprof.recording.schema import AnalysisInputs, EngineSettings, ModelFacts
from spyreprof.registry import diagnose
from spyreprof.rules import load_rules
from spyreprof_analyzers.unservable import clashes

FLAT = dict.fromkeys(QUEUED, 0.0)


def stuck(running: float = 10, deferred: float | None = 54, kv: float = 0.2, seconds: float = 120) -> AnalysisInputs:
    """Nothing moves but the queue."""
    rows = page({RUNNING: running, WAITING: [60, 200], KV: kv}, FLAT, seconds=seconds)
    if deferred is not None:
        rows += page({"vllm:num_requests_waiting_by_reason": deferred}, labels={"reason": "deferred"}, seconds=seconds)
    return polled(rows)


def test_running_and_deferred_requests_at_the_cap_without_progress_are_the_mark_of_a_defect() -> None:
    diagnosis = diagnose(stuck())
    found = finding(diagnosis, "SPY-BUG-001")
    assert found.severity == "high"
    assert "counts deferred requests as running" in found.text
    assert not any(one.advice for one in diagnosis.findings)
    assert diagnosis.verdict.primary == "undetermined"
    assert "nothing is computed" in diagnosis.verdict.reason


def test_a_batch_at_its_cap_that_computes_nothing_is_not_told_to_grow() -> None:
    diagnosis = diagnose(stuck(running=64, deferred=None))
    assert diagnosis.verdict.primary == "undetermined"
    assert finding(diagnosis, "SPY-QUE-001") is None
    # one of them may be in a very long step
    assert finding(diagnosis, "SPY-BUG-001").severity == "medium"


def test_an_engine_in_which_nothing_runs_is_said_to_be_stuck_at_the_first_in_line() -> None:
    assert "fits nowhere" in finding(stuck(running=0, deferred=None), "SPY-BUG-001").text


@pytest.mark.parametrize(("seconds", "named"), [(59, False), (62, True)])
def test_a_stall_lasts_for_a_minute(seconds: float, named: bool) -> None:
    assert (finding(stuck(seconds=seconds), "SPY-BUG-001") is not None) == named


@pytest.mark.parametrize("moves", ["vllm:generation_tokens_total", "vllm:prompt_tokens_total"])
def test_tokens_that_are_computed_are_no_stall(moves: str) -> None:
    rows = page({RUNNING: 10, WAITING: [60, 200], KV: 0.2}, FLAT | {moves: 1.0})
    assert finding(polled(rows), "SPY-BUG-001") is None


def test_a_prompt_that_fills_the_cache_piece_by_piece_is_no_stall() -> None:
    rows = page({RUNNING: 1, WAITING: 5, KV: [0.1, 0.8]}, FLAT)
    assert finding(polled(rows), "SPY-BUG-001") is None


def test_without_a_counter_of_work_nothing_is_called_a_stall() -> None:
    made = stuck()
    assert finding(without(made, *FLAT), "SPY-BUG-001") is None


def test_an_engine_without_load_is_no_stall() -> None:
    assert finding(polled(page({RUNNING: 0, WAITING: 0, KV: 0.0}, FLAT)), "SPY-BUG-001") is None


def test_steps_that_ran_are_no_stall() -> None:
    engine, run = capped(Engine(max_num_seqs=2))
    assert finding(inputs(run, engine), "SPY-BUG-001") is None


FITTING = EngineSettings(
    max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=4096, kv_blocks=1000, block_size=16, state_blocks=None,
    long_prefill_token_threshold=1024,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "setting", "to"),
    [
        ({"max_model_len": 16_001}, "max_model_len", 16_000),
        ({"max_num_batched_tokens": 63, "long_prefill_token_threshold": 0}, "max_num_batched_tokens", 64),
        ({"state_blocks": 63}, "max_num_seqs", 63),
        ({"platform": "spyre", "max_num_batched_tokens": 500}, "max_num_batched_tokens", 448),
    ],
)
def test_settings_that_clash_are_an_error_with_its_correction(changed: dict, setting: str, to: int) -> None:
    found = finding(state(10, 0, 0.1, settings=replace(FITTING, **changed)), "SPY-UNS-001")
    assert found.severity == "high"
    corrected = advice(found)[setting]
    assert corrected.to == to
    assert corrected.expected[0].low is None


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"max_model_len": 16_000},
        {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 0},
        {"state_blocks": 64},
        {"platform": "spyre", "max_num_batched_tokens": 512, "long_prefill_token_threshold": 4096},
        {"platform": "cuda", "max_num_batched_tokens": 500, "long_prefill_token_threshold": 499},
    ],
)
def test_settings_at_their_limit_are_in_order(changed: dict) -> None:
    assert clashes(replace(FITTING, **changed)) == ()


@pytest.mark.parametrize("missing", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks"])
def test_a_setting_that_is_not_known_clashes_with_none(missing: str) -> None:
    wrong = replace(FITTING, max_model_len=90_000, max_num_batched_tokens=32, long_prefill_token_threshold=0)
    assert len(clashes(wrong)) == 2
    assert len(clashes(replace(wrong, **{missing: None}))) == 1


def test_blocks_of_a_hybrid_model_are_not_counted_in_tokens() -> None:
    assert clashes(replace(FITTING, max_model_len=90_000, state_blocks=128)) == ()
    assert len(clashes(replace(FITTING, max_model_len=90_000, state_blocks=128, kv_tokens=50_000))) == 1


def test_a_threshold_without_effect_is_told_and_not_corrected() -> None:
    found = finding(state(10, 0, 0.1, settings=replace(FITTING, long_prefill_token_threshold=2048)), "SPY-UNS-001")
    assert found.severity == "info"
    assert found.advice == ()


def test_what_cannot_be_served_comes_before_all_other_advice() -> None:
    wrong = replace(SETTINGS, max_model_len=10**6)
    diagnosis = diagnose(state(64, 40, 0.5, settings=wrong))
    assert advice(finding(diagnosis, "SPY-UNS-001"))
    found = finding(diagnosis, "SPY-QUE-001")
    assert found.advice == ()
    assert any("SPY-UNS-001 comes first" in said for said in found.against)


def test_the_bytes_that_a_device_holds_are_told_where_the_model_is_known() -> None:
    """Eight heads over sixteen devices: each holds a copy of one."""
    model = ModelFacts(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16")
    wrong = replace(SETTINGS, max_model_len=10**6, tensor_parallel=16)
    diagnosis = diagnose(state(10, 0, 0.1, settings=wrong, model=model))
    (held,) = [one for one in diagnosis.evidence if one.metric == "settings.kv_bytes_per_device"]
    assert held.value == pytest.approx(2 * 32 * 1 * 128 * 2 * 400_000)


def test_an_engine_with_steps_is_checked_as_well() -> None:
    engine, run = capped(Engine(max_num_seqs=2))
    wrong = EngineSettings(kv_blocks=100, block_size=16, max_num_seqs=2, max_model_len=4096)
    assert finding(inputs(run, engine, settings=wrong), "SPY-UNS-001").severity == "high"
    assert load_rules()["SPY-UNS-001"].catalogue == "unservable"
