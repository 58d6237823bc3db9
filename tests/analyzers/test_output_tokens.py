"""How long answers are and how long they may be: limits far above, answers cut short, long tails, and none of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_builder import MS, Engine, Request, capped, inputs, light, prefill_heavy, replay, table

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import REQUESTS, AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose

ENGINE = Engine(fixed_ns=20 * MS, per_request_ns=0, noise=0.0, max_num_seqs=4)


def finding(diagnosis: Diagnosis) -> Finding | None:
    return next((f for f in diagnosis.findings if f.id == "SPY-OUT-001"), None)


def value(diagnosis: Diagnosis, metric: str) -> float:
    return next(e.value for e in diagnosis.evidence if e.metric == metric)


def answering(
    outputs: list[int], limit: int | None = None, platform: str | None = "spyre", every_ms: int = 60, **columns: object
) -> AnalysisInputs:
    """Four requests at a time, each for a third of a second: another one every 60 ms has to wait."""
    run = replay(ENGINE, [Request(at * every_ms * MS, 8, output) for at, output in enumerate(outputs)])
    made = inputs(run, ENGINE, settings=EngineSettings(max_num_seqs=4, platform=platform))
    types = {column.name: column.dtype for column in REQUESTS}
    return replace(made, requests=made.requests.assign(max_tokens=limit, **columns).astype(types))


USUAL = [8 + at % 9 for at in range(200)]


def test_limits_far_above_the_output_are_told_with_one_that_fits_where_room_for_them_is_reserved() -> None:
    diagnosis = diagnose(answering(USUAL, 400))
    found = finding(diagnosis)
    assert found.severity == "medium"
    assert value(diagnosis, "output.max_tokens_p50") == 400
    (advice,) = found.advice
    assert (advice.id, advice.from_, advice.to) == ("max_tokens", 400, 18)
    assert all(change.low is None for change in advice.expected)
    assert [change.metric for change in advice.pays] == ["answers that are cut off"]
    assert "shorten decode alone" in found.text


def test_without_a_line_of_requests_the_same_limits_matter_little() -> None:
    assert finding(diagnose(answering(USUAL, 400, every_ms=130))).severity == "low"


def test_on_an_engine_that_is_not_known_to_reserve_room_the_advice_says_so_first() -> None:
    found = finding(diagnose(answering(USUAL, 400, platform=None)))
    assert found.severity == "info"
    assert "when it admits a request" in found.advice[0].preconditions[0]


@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm", "xpu"])
def test_where_blocks_are_taken_as_they_fill_a_high_limit_is_nothing(platform: str) -> None:
    assert finding(diagnose(answering(USUAL, 400, platform=platform))) is None


@pytest.mark.parametrize(("limit", "told"), [(32, True), (31, False)])
def test_a_limit_counts_as_far_above_from_twice_the_95th_percentile_on(limit: int, told: bool) -> None:
    assert np.percentile(USUAL, 95) == 16
    assert (finding(diagnose(answering(USUAL, limit))) is not None) is told


@pytest.mark.parametrize(("limits", "told"), [(30, True), (29, False)])
def test_limits_of_fewer_than_thirty_requests_give_no_advice(limits: int, told: bool) -> None:
    made = answering(USUAL, 400)
    window = diagnose(made).window
    inside = made.requests.index[made.requests["arrival_ns"].between(window.start_ns, window.end_ns - 1)]
    assert len(inside) > limits
    made.requests.loc[inside[limits:], "max_tokens"] = None
    assert (finding(diagnose(made)) is not None) is told


def test_of_fewer_than_a_hundred_answers_the_longest_gives_the_limit() -> None:
    (advice,) = finding(diagnose(answering([16 if at == 30 else 8 for at in range(60)], 400))).advice
    assert advice.to == 18


def test_without_steps_the_limits_are_told_too_and_no_share_of_the_window_is() -> None:
    made = answering(USUAL, 400)
    diagnosis = diagnose(replace(made, steps=made.steps.iloc[:0]))
    found = finding(diagnosis)
    assert (found.share, found.advice[0].to) == (None, 18)
    assert "of the window" not in found.text
    assert set(found.evidence) <= {e.id for e in diagnosis.evidence}


@pytest.mark.parametrize(("every", "told"), [(22, False), (18, True), (1, False)])
def test_answers_that_reach_their_limit_are_told_from_a_twentieth_on_unless_all_do(every: int, told: bool) -> None:
    """A load generator that holds every answer to a length cuts all of them."""
    made = answering(USUAL, 16, finish_reason="stop")
    made.requests.loc[made.requests.index[::every], "finish_reason"] = "length"
    found = finding(diagnose(made))
    assert (found is not None) is told
    if found is not None:
        assert (found.severity, found.advice) == ("info", ())
        assert "cut short" in found.text


@pytest.mark.parametrize(("every", "told"), [(16, True), (25, False)])
def test_answers_that_nearly_all_reach_their_limit_were_asked_to(every: int, told: bool) -> None:
    """All but one in sixteen are 94 %, all but one in twenty-five 96 %."""
    made = answering(USUAL, 16, finish_reason="length")
    made.requests.loc[made.requests.index[::every], "finish_reason"] = "stop"
    assert (finding(diagnose(made)) is not None) is told


def test_where_decode_is_hardly_any_of_the_window_its_limits_do_not_matter() -> None:
    engine, run = prefill_heavy(Engine(fixed_ns=5 * MS, per_context_token_ns=3 * MS, max_num_seqs=64))
    made = inputs(run, engine, settings=EngineSettings(platform="spyre"))
    diagnosis = diagnose(replace(made, requests=made.requests.assign(max_tokens=4000).astype({"max_tokens": "Int64"})))
    assert value(diagnosis, "window.decode_share") < 0.1
    assert finding(diagnosis) is None


def test_a_lower_limit_is_not_advised_where_answers_reach_theirs() -> None:
    made = answering(USUAL, 400, finish_reason="stop")
    made.requests.loc[made.requests.index[::8], "finish_reason"] = "length"
    assert finding(diagnose(made)).advice == ()


@pytest.mark.parametrize(("longest", "told"), [(32, True), (31, False)])
def test_answers_four_times_as_long_as_the_median_one_are_a_tail(longest: int, told: bool) -> None:
    found = finding(diagnose(answering([longest if at % 20 == 0 else 8 for at in range(200)])))
    assert (found is not None) is told
    if found is not None:
        assert "times the median" in found.text
        assert found.severity == "info"


def test_without_output_lengths_limits_or_ends_nothing_is_said() -> None:
    assert finding(diagnose(answering(USUAL))) is None
    made = answering(USUAL, 400)
    assert finding(diagnose(replace(made, requests=table(REQUESTS, [])))) is None
    blind = made.requests.assign(output_tokens=None).astype({"output_tokens": "Int64"})
    assert finding(diagnose(replace(made, requests=blind))) is None


@pytest.mark.parametrize("load", [prefill_heavy, capped, light])
def test_plain_loads_say_nothing_of_their_outputs(load) -> None:
    engine, run = load()
    assert finding(diagnose(inputs(run, engine))) is None


def test_every_number_of_the_finding_exists() -> None:
    diagnosis = diagnose(answering(USUAL, 400))
    found = finding(diagnosis)
    assert found.evidence and found.against
    assert set(found.evidence) <= {e.id for e in diagnosis.evidence}
