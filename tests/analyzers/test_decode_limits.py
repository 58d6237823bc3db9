"""A decode batch that the KV cache holds back; communication that the trace alone shows; compilations that could go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_builder import COMPUTE_PEAK, READ_PEAK, decode_alone, inputs, profiled
from test_binding_host_compiler_kernels import compiling
from test_communication import two_ranks

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import AnalysisInputs, EngineSettings, ModelFacts
from spyreprof.registry import diagnose

GPU = EngineSettings(kv_tokens=40, max_num_seqs=64, platform="cuda", source="metrics")
# a step of 61 ms reads 50 ms of weights, and next to nothing of cache
MODEL = ModelFacts(
    parameter_bytes=int(0.05 * READ_PEAK), embedding_bytes=0, dtype="float16", layers=1, kv_heads=1, head_dim=8
)


def full_cache(usage: float = 0.95, **changes: Any) -> AnalysisInputs:
    """Decode at batch 1 that reads weights, with a KV cache at that use."""
    engine, run = decode_alone()
    made = inputs(run, engine, **({"settings": GPU, "model": MODEL} | changes))
    full = made.counters["name"] == "vllm:kv_cache_usage_perc"
    return replace(made, counters=made.counters.assign(value=made.counters["value"].where(~full, usage)))


def rule(diagnosis: Diagnosis, rule_id: str) -> Finding | None:
    return next((found for found in diagnosis.findings if found.id == rule_id), None)


def held(**changes: Any) -> Finding | None:
    return rule(diagnose(full_cache(**changes)), "SPY-DEC-002")


def test_a_full_cache_that_keeps_requests_from_sharing_a_read_is_told_with_what_makes_room() -> None:
    found = held()
    assert found.severity == "medium"
    assert [advice.setting for advice in found.advice] == ["kv_cache_dtype", "weight precision"]
    assert {change.metric for change in found.advice[0].expected} == {"output tokens/s", "ITL"}


@pytest.mark.parametrize(("usage", "told"), [(0.92, True), (0.88, False)])
def test_a_cache_with_room_holds_nobody_back(usage: float, told: bool) -> None:
    assert (held(usage=usage) is not None) is told


@pytest.mark.parametrize(("weights_s", "told"), [(0.038, True), (0.035, False)])
def test_a_step_that_mostly_does_something_else_gains_little_from_more_requests(weights_s: float, told: bool) -> None:
    """Of 61 ms: 0.62 and 0.57."""
    model = replace(MODEL, parameter_bytes=int(weights_s * READ_PEAK))
    assert (held(model=model) is not None) is told


@pytest.mark.parametrize(("times", "told"), [(0.15, False), (0.35, True)])
def test_beyond_the_batch_at_which_arithmetic_binds_more_requests_bring_nothing(times: float, told: bool) -> None:
    """At 16 bits it is 40e9 / 8e9 = 5 requests; at a fifth of the compute peak one."""
    made = full_cache()
    slower = tuple(
        replace(peak, value=peak.value * times, before=None, after=None, origin="declared")
        if peak.resource == "compute" else peak
        for peak in made.peaks
    )  # fmt: skip
    assert COMPUTE_PEAK / READ_PEAK == 5
    assert (rule(diagnose(replace(made, peaks=slower)), "SPY-DEC-002") is not None) is told


@pytest.mark.parametrize("changes", [{"peaks": ()}, {"model": ModelFacts()}, {"model": replace(MODEL, layers=None)}])
def test_without_a_size_or_a_peak_nothing_is_said_of_the_batch(changes: dict[str, Any]) -> None:
    assert held(**changes) is None


def test_without_the_gauge_of_the_cache_nothing_is_said_of_the_batch() -> None:
    made = full_cache()
    blind = made.counters[~made.counters["name"].str.contains("kv_cache_usage")]
    assert rule(diagnose(replace(made, counters=blind)), "SPY-DEC-002") is None


# Communication that one rank's trace shows


def seen_by_the_trace() -> Diagnosis:
    """Two thirds of profiled steps pass in collectives, and no row of a call tells more."""
    engine, run = decode_alone()
    steps = profiled(run, phase="decode", compute_use=0.05, bandwidth_use=0.8, matmul_ratio=0.3)
    shown = tuple(
        replace(step, device_kind="cuda", device_busy_ns=step.end_ns - step.start_ns - step.gap_ns,
                operators=tuple(replace(one, kind="communication") if one.kind == "elementwise" else one
                                for one in step.operators))
        for step in steps
    )  # fmt: skip
    known = replace(GPU, custom_all_reduce=False)
    return diagnose(inputs(run, engine, profiled_steps=shown, device_kind="cuda", settings=known, model=ModelFacts()))


def test_a_link_that_only_a_trace_shows_is_a_finding_that_says_so() -> None:
    diagnosis = seen_by_the_trace()
    assert diagnosis.verdict.primary == "interconnect_bound"
    found = rule(diagnosis, "SPY-NET-001")
    assert found.severity == "medium"
    assert "waiting for a late rank" in " ".join(found.against)
    assert [advice.setting for advice in found.advice] == ["disable_custom_all_reduce"]


@pytest.mark.parametrize(
    ("changes", "advised"),
    [({}, True), ({"link": "network"}, False), ({"platform": "cpu"}, False), ({"custom_all_reduce": True}, False),
     ({"custom_all_reduce": None}, False)],
)  # fmt: skip
def test_the_engines_own_all_reduce_is_advised_where_it_is_off_and_messages_are_small(
    changes: dict[str, Any], advised: bool
) -> None:
    made = two_ranks(transfer=0.7)
    small = made.collectives.assign(bytes=8192).astype({"bytes": "Int64"})
    known = replace(GPU, **({"custom_all_reduce": False} | changes))
    found = rule(diagnose(replace(made, collectives=small, settings=known)), "SPY-NET-001")
    assert bool(found.advice) is advised
    assert rule(diagnose(replace(made, settings=known)), "SPY-NET-001").advice == ()  # a megabyte each


def test_what_a_call_costs_is_told_and_large_messages_are_no_matter_of_latency() -> None:
    """One call of a step of 100 ms, which moves a megabyte for 70 ms."""
    made = two_ranks(transfer=0.7)
    found = diagnose(made)
    told = next(entry.value for entry in found.evidence if entry.metric == "communication.call_s")
    assert told == pytest.approx(0.07, rel=0.02)
    assert "for what a call costs" not in rule(found, "SPY-NET-001").text
    small = replace(made, collectives=made.collectives.assign(bytes=65_536).astype({"bytes": "Int64"}))
    assert "for what a call costs" in rule(diagnose(small), "SPY-NET-001").text
    larger = replace(made, collectives=made.collectives.assign(bytes=65_537).astype({"bytes": "Int64"}))
    assert "for what a call costs" not in rule(diagnose(larger), "SPY-NET-001").text


# Compilations that could go


def test_compilations_that_hold_up_the_load_are_told_with_what_a_warm_up_gives_back_at_most() -> None:
    found = rule(diagnose(compiling()), "SPY-CMP-001")
    (advice,) = found.advice
    assert advice.setting == "shapes that are warmed up"
    assert advice.expected[0].low is None
    assert advice.expected[0].high == pytest.approx(1 / (1 - found.share) - 1)
    assert "times a usual step" in found.text  # a second beside 61 ms


def test_a_compilation_that_hardly_lengthens_its_step_is_no_spike() -> None:
    made = compiling(every=2)
    short = made.steps.assign(end_ns=made.steps["end_ns"].where(made.steps["compiles"] == 0,
                                                                 made.steps["start_ns"] + 500_000_000))  # fmt: skip
    found = rule(diagnose(replace(made, steps=short)), "SPY-CMP-001")
    assert found is None or "times a usual step" not in found.text
