"""The KV cache: kept out by it, preempted by it, and runs that only look like it."""

from __future__ import annotations

from dataclasses import replace

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
    profiled,
    replay,
)

from spyreprof.findings import Diagnosis
from spyreprof.recording.schema import AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose
from spyreprof_analyzers import kv_cache


def kept_out(engine: Engine | None = None, **changes: object) -> AnalysisInputs:
    """Sixteen clients that wait for each other: the cap admits all of them, the cache about six."""
    engine = engine or Engine(max_num_seqs=64, kv_tokens=240)
    run = crowd(engine)
    shown = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    return inputs(run, engine, **({"profiled_steps": shown} | changes))


def crowd(engine: Engine) -> Run:
    return replay(engine, [Request(number * 60 * MS, 16 + number % 8, 16 + number % 5) for number in range(160)])


def preempting(engine: Engine | None = None, **changes: object) -> AnalysisInputs:
    """The cache takes prompts in but runs out while they decode."""
    return kept_out(engine or Engine(max_num_seqs=64, kv_tokens=240, reserve_output=False), **changes)


def finding(diagnosis: Diagnosis, rule: str):
    return next((f for f in diagnosis.findings if f.id == rule), None)


def evidence(diagnosis: Diagnosis, metric: str):
    return next((e for e in diagnosis.evidence if e.metric == metric), None)


def without(made: AnalysisInputs, *names: str) -> AnalysisInputs:
    return replace(made, counters=made.counters[~made.counters["name"].str.contains("|".join(names))])


def test_a_cache_that_runs_out_is_the_verdict_with_high_confidence() -> None:
    verdict = diagnose(preempting()).verdict
    assert (verdict.primary, verdict.confidence) == ("kv_capacity_bound", "high")


def test_room_for_every_request_is_no_capacity_problem() -> None:
    diagnosis = diagnose(kept_out(Engine(max_num_seqs=4, kv_tokens=100_000)))
    assert diagnosis.verdict.primary == "queue_bound"
    assert finding(diagnosis, "SPY-KVC-001") is None
    assert finding(diagnosis, "SPY-KVC-002") is None


def usage_of(made: AnalysisInputs, ratio: float) -> AnalysisInputs:
    counters = made.counters.copy()
    counters.loc[counters["name"] == "vllm:kv_cache_usage_perc", "value"] = ratio
    return replace(made, counters=counters)


LONG_PROMPTS = EngineSettings(kv_blocks=10, block_size=10, max_num_seqs=64)


@pytest.mark.parametrize(("free_blocks", "primary"), [(2, "kv_capacity_bound"), (3, "decode_bandwidth_bound")])
def test_full_is_a_cache_in_which_a_usual_prompt_no_longer_fits(free_blocks: int, primary: str) -> None:
    """Prompts of 16 to 23 tokens in blocks of 10: a usual one needs three of the ten blocks."""
    made = usage_of(kept_out(settings=LONG_PROMPTS), 1.0 - free_blocks / 10)
    busy = profiled(crowd(Engine(max_num_seqs=64, kv_tokens=240)), phase="decode", compute_use=0.05, bandwidth_use=0.7)
    assert diagnose(replace(made, profiled_steps=busy)).verdict.primary == primary


@pytest.mark.parametrize(("usage", "primary"), [(0.91, "kv_capacity_bound"), (0.89, "decode_bandwidth_bound")])
def test_without_block_counts_the_gauge_alone_decides(usage: float, primary: str) -> None:
    made = usage_of(kept_out(settings=EngineSettings(max_num_seqs=64)), usage)
    busy = profiled(crowd(Engine(max_num_seqs=64, kv_tokens=240)), phase="decode", compute_use=0.05, bandwidth_use=0.7)
    assert diagnose(replace(made, profiled_steps=busy)).verdict.primary == primary


def test_without_the_gauge_nothing_is_said_of_a_full_cache() -> None:
    assert diagnose(without(kept_out(), "kv_cache_usage")).verdict.primary != "kv_capacity_bound"


def test_a_known_cap_that_is_reached_is_not_called_a_full_cache() -> None:
    """Both hold: more KV memory alone would admit nobody."""
    engine = Engine(max_num_seqs=6, kv_tokens=240)
    made = usage_of(kept_out(engine), 0.97)
    assert diagnose(made).verdict.primary not in ("kv_capacity_bound", "queue_bound")


def test_a_cap_that_is_not_known_lowers_the_confidence_in_a_full_cache() -> None:
    made = usage_of(kept_out(settings=EngineSettings(kv_blocks=15, block_size=16)), 0.97)
    verdict = diagnose(made).verdict
    assert (verdict.primary, verdict.confidence) == ("kv_capacity_bound", "medium")
    assert any("batch cap is not known" in reason for reason in verdict.confidence_reasons)


def test_a_batch_that_uses_the_compute_peak_gains_nothing_from_more_kv_memory() -> None:
    engine = Engine(max_num_seqs=64, kv_tokens=240)
    busy = profiled(crowd(engine), phase="decode", compute_use=0.8, bandwidth_use=0.1)
    made = usage_of(kept_out(profiled_steps=busy), 0.97)
    assert diagnose(made).verdict.primary != "kv_capacity_bound"


def test_more_blocks_are_advised_for_what_asked_for_a_place() -> None:
    found = finding(diagnose(preempting()), "SPY-KVC-001")
    (advice,) = found.advice
    assert advice.from_ == 15
    # 64 places, each of 23 + 18 tokens in blocks of 16, and a tenth to spare
    assert advice.to == pytest.approx(64 * 3 / 0.9, abs=4)
    assert f"--num-gpu-blocks-override {advice.to}" in advice.test_arguments
    assert any("memory" in price.metric for price in advice.pays)


def test_without_block_counts_no_number_of_blocks_is_advised() -> None:
    made = usage_of(kept_out(settings=EngineSettings(max_num_seqs=64)), 0.97)
    assert finding(diagnose(made), "SPY-KVC-001").advice == ()


def test_what_was_computed_again_is_found_from_counters_and_step_rows() -> None:
    engine = Engine(max_num_seqs=64, kv_tokens=240, reserve_output=False)
    run = crowd(engine)
    assert run.recomputed_tokens > 500
    diagnosis = diagnose(preempting(engine))
    again = evidence(diagnosis, "kv_cache.recomputed_tokens")
    context = sum(row["context_tokens"] for row in run.steps)
    assert again.low <= run.recomputed_tokens * 1.02
    assert evidence(diagnosis, "kv_cache.recomputed_share").value == pytest.approx(
        run.recomputed_tokens / context, abs=0.05
    )
    found = finding(diagnosis, "SPY-KVC-002")
    assert found.phase == "prefill"
    assert 0 < found.share < 1


def costs(fixed_ms: int, per_request_ms: int, per_context_token_ms: int) -> Engine:
    return Engine(
        fixed_ns=fixed_ms * MS,
        per_request_ns=per_request_ms * MS,
        per_context_token_ns=per_context_token_ms * MS,
        kv_tokens=240,
        reserve_output=False,
    )


def gain_when_tried(engine: Engine, max_num_seqs: int) -> float:
    return crowd(engine).end_ns / crowd(replace(engine, max_num_seqs=max_num_seqs)).end_ns - 1.0


@pytest.mark.parametrize("engine", [costs(5, 5, 2), costs(2, 8, 1), costs(2, 8, 3), costs(10, 5, 1), costs(30, 3, 3)])
def test_the_gain_of_a_smaller_batch_is_what_comes_when_it_is_tried(engine: Engine) -> None:
    (advice,) = finding(diagnose(preempting(engine)), "SPY-KVC-002").advice
    (gain,) = advice.expected
    assert advice.to < advice.from_
    assert gain.low <= gain_when_tried(engine, advice.to) <= gain.high


def test_no_smaller_batch_is_advised_where_its_steps_lose_more_than_recomputation_took() -> None:
    """Steps that hardly grow with the batch."""
    engine = costs(50, 1, 1)
    assert gain_when_tried(engine, 5) < -0.1
    assert finding(diagnose(preempting(engine)), "SPY-KVC-002").advice == ()


def test_without_a_prediction_no_smaller_batch_is_advised_that_could_lose_more_than_recomputation_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two at a time instead of six: nobody knows how much shorter their steps are."""
    made = preempting(costs(5, 5, 2))
    assert finding(diagnose(made), "SPY-KVC-002").advice
    monkeypatch.setattr(kv_cache, "predict_step", lambda *_: None)
    assert finding(diagnose(made), "SPY-KVC-002").advice == ()


@pytest.mark.parametrize(
    "engine", [costs(5, 5, 2), costs(2, 8, 1), costs(2, 8, 3), costs(10, 5, 1), costs(30, 3, 3), costs(50, 1, 1)]
)
def test_the_gain_of_more_blocks_where_requests_are_preempted_is_what_comes_when_they_are_tried(engine: Engine) -> None:
    """A load that lasts: always more requests than a batch of twelve holds."""
    engine = replace(engine, max_num_seqs=12)
    load = [Request(number * MS, 10 + number % 13, 12 + number % 9) for number in range(300)]
    run = replay(engine, load)
    found = finding(diagnose(inputs(run, engine)), "SPY-KVC-001")
    (advice,) = [advice for advice in found.advice if advice.id == "kv_blocks"]
    gain = advice.expected[0]
    assert gain.metric == "output tokens/s"
    tried = replay(replace(engine, kv_tokens=16 * advice.to), load)
    assert not tried.preempted_ns
    assert gain.low <= run.end_ns / tried.end_ns - 1.0 <= gain.high
    assert "decode step time" in {change.metric for change in advice.pays}


def test_tokens_from_the_prefix_cache_are_not_taken_for_computed() -> None:
    """A cache that holds half of every prompt hides as many tokens from the step rows."""
    made = with_a_long_request(preempting())
    counters = made.counters.copy()
    hits, prompts = (counters["name"] == f"vllm:{n}_total" for n in ("prefix_cache_hits", "prompt_tokens"))
    found = counters[prompts].assign(name="vllm:prefix_cache_hits_total", value=counters[prompts]["value"] / 2)
    plain = evidence(diagnose(made), "kv_cache.recomputed_tokens").value
    cached = replace(made, counters=_sorted(counters[~hits], found))
    prompt_tokens = float(counters[prompts]["value"].max())
    assert evidence(diagnose(cached), "kv_cache.recomputed_tokens").value == pytest.approx(
        plain + prompt_tokens / 2, rel=0.1
    )


def test_a_counter_that_was_reset_does_not_change_what_was_computed_again() -> None:
    made = preempting()
    counters = made.counters.copy()
    prompts = counters["name"] == "vllm:prompt_tokens_total"
    half = counters[prompts]["time_ns"].median()
    before = counters.loc[prompts & (counters["time_ns"] <= half), "value"].max()
    counters.loc[prompts & (counters["time_ns"] > half), "value"] -= before
    reset = diagnose(replace(made, counters=counters))
    plain = evidence(diagnose(made), "kv_cache.recomputed_tokens").value
    assert evidence(reset, "kv_cache.recomputed_tokens").value == pytest.approx(plain, rel=0.02)


def test_no_preemption_no_finding() -> None:
    diagnosis = diagnose(kept_out())
    assert evidence(diagnosis, "kv_cache.recomputed_tokens") is None
    assert not [f for f in diagnosis.findings if f.id == "SPY-KVC-002"]


@pytest.mark.parametrize(("count", "expected"), [(5, True), (4, False)])
def test_a_preemption_now_and_then_is_no_finding(count: int, expected: bool) -> None:
    made = with_a_long_request(preempting())
    counters = made.counters.copy()
    preempted = counters["name"] == "vllm:num_preemptions_total"
    counters.loc[preempted, "value"] = counters.loc[preempted, "value"].clip(upper=count)
    # none before the window began
    counters.loc[preempted & (counters["time_ns"] < 20 * S), "value"] = 0
    assert (finding(diagnose(replace(made, counters=counters)), "SPY-KVC-002") is not None) is expected


def test_preemptions_whose_cost_cannot_be_told_are_named_and_their_cost_is_left_open() -> None:
    diagnosis = diagnose(without(preempting(), "prompt_tokens"))
    found = finding(diagnosis, "SPY-KVC-002")
    assert found is not None
    assert found.share is None
    assert found.severity == "medium"
    assert "What it cost to compute them again is not known" in found.text
    assert any("preemption" in gap.topic for gap in diagnosis.not_judged)


def with_a_long_request(made: AnalysisInputs) -> AnalysisInputs:
    """One of the requests wrote so much that a single preemption can cost thousands of tokens."""
    requests = made.requests.copy()
    requests.loc[requests.index[0], "output_tokens"] = 5000
    settings = replace(made.settings, kv_blocks=1000)
    return replace(made, requests=requests, settings=settings)


def with_given_up_prompts(preemptions: int, **settings: int | None) -> AnalysisInputs:
    """A run without pressure whose prompts were counted only in part: the others were given up while they computed."""
    made = kept_out(settings=EngineSettings(max_num_seqs=64, **settings))
    counters = made.counters.copy()
    counters.loc[counters["name"] == "vllm:prompt_tokens_total", "value"] *= 0.5
    preempted = counters["name"] == "vllm:num_preemptions_total"
    late = counters[preempted].assign(time_ns=int(counters["time_ns"].median()), value=preemptions)
    return replace(made, counters=_sorted(counters, late))


@pytest.mark.parametrize("settings", [{}, {"kv_blocks": 15, "block_size": 16}])
def test_more_than_the_preempted_requests_can_have_lost_was_not_lost_by_them(settings: dict[str, int]) -> None:
    """Five requests of 23 + 20 tokens at most cannot account for half of all prompts."""
    diagnosis = diagnose(with_given_up_prompts(5, **settings))
    assert finding(diagnosis, "SPY-KVC-002") is None
    assert "computed again" not in diagnosis.verdict.headline
    (gap,) = [gap for gap in diagnosis.not_judged if "preemption" in gap.topic]
    assert "given up" in gap.reason
    plausible = diagnose(with_given_up_prompts(500, **settings))
    assert finding(plausible, "SPY-KVC-002") is not None


def test_without_the_size_of_cache_and_requests_nothing_is_said_of_what_was_computed_again() -> None:
    made = preempting(settings=EngineSettings(max_num_seqs=64))
    unknown = replace(made, requests=made.requests.iloc[:0])
    assert finding(diagnose(made), "SPY-KVC-002") is not None
    diagnosis = diagnose(unknown)
    found = finding(diagnosis, "SPY-KVC-002")
    assert found is not None
    assert found.share is None
    assert not any("recomputed" in entry.metric for entry in diagnosis.evidence)
    assert any("preemption" in gap.topic and "size of the KV cache" in gap.reason for gap in diagnosis.not_judged)


def test_an_engine_that_counts_no_preemptions_gives_no_finding() -> None:
    assert finding(diagnose(without(preempting(), "preemptions")), "SPY-KVC-002") is None


def test_preemption_names_the_cache_where_the_gauge_does_not() -> None:
    """Polled twice a second, the gauge shows the cache after the victims were thrown out."""
    made = usage_of(preempting(), 0.5)
    assert diagnose(made).verdict.primary == "kv_capacity_bound"
    assert diagnose(without(made, "preemptions")).verdict.primary != "kv_capacity_bound"


def test_preemption_has_a_headline_of_its_own() -> None:
    """Nobody needs to wait for that verdict, so that it does not say that somebody does."""
    assert "computed again" in diagnose(preempting()).verdict.headline
    assert "wait because the KV cache is full" in diagnose(usage_of(kept_out(), 0.97)).verdict.headline


@pytest.mark.parametrize("run", [capped, decode_alone])
def test_other_loads_have_no_finding_about_the_cache(run) -> None:
    engine, made = run()
    shown = profiled(made, phase="decode", compute_use=0.05, bandwidth_use=0.12)
    found = {f.id for f in diagnose(inputs(made, engine, profiled_steps=shown)).findings}
    assert not found & {"SPY-KVC-001", "SPY-KVC-002"}


def _sorted(*parts):
    import pandas as pd

    return pd.concat(parts).sort_values("time_ns", kind="stable", ignore_index=True)


def test_every_number_of_these_findings_exists() -> None:
    diagnosis = diagnose(preempting())
    known = {e.id for e in diagnosis.evidence}
    found = [f for f in diagnosis.findings if f.id.startswith("SPY-KVC")]
    assert len(found) == 2
    assert all(f.evidence and set(f.evidence) <= known and f.against for f in found)
