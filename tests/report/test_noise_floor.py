"""How far repeats lie apart, and what that does to a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from golden_files import Golden
from hypothesis import given
from hypothesis import strategies as st
from report_builders import PHASES, VERDICT, finished_report
from rich.cells import cell_len

from spyreprof.findings import Confidence
from spyreprof.recording.repeats import RunState
from spyreprof.report.model import Rate, Report, Throughput
from spyreprof.report.noise_floor import Figure, median_run, metric_noise, middle, noise_floor, relative_spread
from spyreprof.report.read import decode_report
from spyreprof.report.repeats import JudgedRun, report_on_repeats
from spyreprof.report.schema import report_schema
from spyreprof.report.shortfall import shortfalls
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump, seal

GOLDEN = Path(__file__).parent / "golden"
STEPS = "engine steps of the steady window"
LOG = "load generator's log"
VALUES = st.one_of(st.none(), st.floats(1e-6, 1e9))


def delivering(tokens_per_s: float | None, source: str = STEPS, **changes: Any) -> Report:
    rate = Rate(per_s=tokens_per_s, source=source) if tokens_per_s is not None else None
    return finished_report(throughput=Throughput(output_tokens=rate, requests=None), **changes)


def saying(primary: str, confidence: Confidence | None = "high", tokens_per_s: float = 100.0) -> Report:
    verdict = msgspec.structs.replace(VERDICT, primary=primary, confidence=confidence)
    return delivering(tokens_per_s, verdict=verdict)


def complete(*reports: Report) -> list[JudgedRun]:
    return [JudgedRun(k, "complete", report) for k, report in enumerate(reports, start=1)]


@given(st.permutations([3.0, None, 1.0, 7.5, None, 2.25]))
def test_the_order_of_the_runs_changes_neither_median_nor_spread(values: list[float | None]) -> None:
    assert middle(values) == 2.625
    assert relative_spread(values) == (7.5 - 1.0) / 2.625


@given(st.lists(VALUES, max_size=12), st.floats(1e-3, 1e3))
def test_the_unit_of_the_values_does_not_change_their_relative_spread(values: list[float | None], scale: float) -> None:
    scaled = [None if value is None else value * scale for value in values]
    spread, again = relative_spread(values), relative_spread(scaled)
    assert (spread is None) == (again is None)
    if spread is not None:
        assert again == pytest.approx(spread, rel=1e-6, abs=1e-9)


@given(st.floats(-1e9, 1e9), st.integers(2, 9))
def test_equal_values_have_no_spread(value: float, count: int) -> None:
    assert relative_spread([value] * count) == 0.0


@given(st.lists(VALUES, max_size=12))
def test_a_spread_is_none_without_two_values_and_never_negative(values: list[float | None]) -> None:
    spread = relative_spread(values)
    known = [value for value in values if value is not None]
    assert (spread is None) == (len(known) < 2)
    assert spread is None or spread >= 0.0
    assert (middle(values) is None) == (not known)


def test_a_spread_about_zero_is_not_a_number_and_so_is_missing() -> None:
    assert relative_spread([-1.0, 0.0, 1.0]) is None


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_missing_values_stay_missing_at_their_place(values: list[float | None]) -> None:
    figures = [None if value is None else Figure(value, LOG) for value in values]
    noise = metric_noise("ttft_p50", "s", figures)
    assert noise.values == tuple(values)
    assert (noise.source is None) == all(value is None for value in values)


def test_values_of_another_source_than_most_runs_have_are_not_compared() -> None:
    figures = [Figure(10.0, STEPS), Figure(99.0, LOG), Figure(11.0, STEPS)]
    noise = metric_noise("output_tokens_per_s", "tokens/s", figures)
    assert (noise.source, noise.values) == (STEPS, (10.0, None, 11.0))
    assert noise.median == 10.5


def test_every_metric_is_taken_from_the_report_of_each_run() -> None:
    floor = noise_floor({1: finished_report(), 3: finished_report()})
    assert floor is not None
    assert floor.runs == (1, 3)
    found = {metric.metric: (metric.unit, metric.median, metric.relative_spread) for metric in floor.metrics}
    assert found == {
        "output_tokens_per_s": ("tokens/s", 174.857, 0.0),
        "requests_per_s": ("requests/s", 0.571, 0.0),
        "ttft_mean": ("s", 1.2, 0.0),
        "ttft_p50": ("s", 0.84, 0.0),
        "ttft_p90": ("s", 2.9, 0.0),
        "itl_p50": ("s", 0.0412, 0.0),
        "itl_p99": ("s", None, None),
        "decode_step_p50": ("ns", 23_100_000.0, 0.0),
        "prefill_step_p50": ("ns", 61_900_000.0, 0.0),
        "steps": ("steps", 1412.0, 0.0),
    }


@pytest.mark.parametrize("runs", [0, 1])
def test_fewer_than_two_runs_have_no_noise_floor(runs: int) -> None:
    assert noise_floor({k: finished_report() for k in range(runs)}) is None


def test_few_runs_are_said_to_show_less_than_the_whole_spread() -> None:
    few, many = (noise_floor(dict.fromkeys(range(1, n + 1), finished_report())) for n in (4, 5))
    assert few is not None
    assert many is not None
    assert "So few runs" in few.meaning
    assert many.meaning == "A change smaller than the spread of a metric cannot be told from noise, as 5 runs show it."


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [([5.0], 1), ([3.0, 1.0, 2.0], 3), ([1.0, 2.0, 3.0, 4.0], 2), ([2.0, 2.0, 2.0], 2), ([2.0, 1.0], 2)],
)
def test_the_median_run_is_the_lower_middle_by_output_tokens_and_the_earlier_of_equals(
    rates: Sequence[float], chosen: int
) -> None:
    assert median_run({k: delivering(rate) for k, rate in enumerate(rates, start=1)}) == chosen


def test_where_a_run_lacks_output_tokens_the_step_time_decides() -> None:
    def stepping(tokens_per_s: float | None, p50_ns: int, source: str = STEPS) -> Report:
        phases = tuple(msgspec.structs.replace(phase, step_time_p50_ns=p50_ns) for phase in PHASES)
        return delivering(tokens_per_s, source, phases=phases)

    assert median_run({1: stepping(1.0, 30), 2: stepping(None, 10), 3: stepping(3.0, 20)}) == 3
    # tokens of two sources are not comparable either
    assert median_run({1: stepping(1.0, 20), 2: stepping(2.0, 10, LOG), 3: stepping(3.0, 30)}) == 1


def test_without_anything_to_compare_the_number_of_the_run_decides() -> None:
    bare = delivering(None, phases=())
    assert median_run({1: bare, 2: bare, 3: bare, 4: bare}) == 2


def test_the_report_is_the_median_runs_with_the_verdict_of_every_run() -> None:
    runs = complete(
        saying("queue_bound", "high", 3.0), saying("queue_bound", "low", 1.0), saying("queue_bound", "medium", 2.0)
    )
    report = report_on_repeats(runs, 3)
    assert report.throughput == runs[2].report.throughput  # type: ignore[union-attr]
    assert [(run.k, run.primary, run.confidence, run.shown) for run in report.repeats] == [
        (1, "queue_bound", "high", False),
        (2, "queue_bound", "low", False),
        (3, "queue_bound", "medium", True),
    ]
    assert report.verdict.confidence == "medium"
    assert report.verdict.confidence_reasons == VERDICT.confidence_reasons
    assert report.noise_floor is not None


@pytest.mark.parametrize(
    ("primaries", "confidence", "reason"),
    [
        # the first is shown
        (["queue_bound", "load_limited"], "low", "run 2 of the same command gave another verdict: load_limited"),
        (["queue_bound", "queue_bound", "load_limited"], "low", "run 3 of"),
        (["queue_bound", "queue_bound", "queue_bound", "load_limited"], "medium", "run 4 of"),
        (["queue_bound", "queue_bound", "queue_bound", "load_limited", "host_bound"], "low", "run 4 of"),
        (["queue_bound", "undetermined"], "medium", "run 2 of the same command could not be judged"),
        (["queue_bound", "load_limited", "load_limited"], "low", "runs 2, 3 of"),
    ],
)
def test_runs_that_name_another_class_lower_the_confidence_and_are_named(
    primaries: list[str], confidence: str, reason: str
) -> None:
    below = (len(primaries) - 1) // 2
    rates = [50.0] + [10.0] * below + [90.0] * (len(primaries) - 1 - below)
    runs = complete(*(saying(primary, "high", rate) for primary, rate in zip(primaries, rates, strict=True)))
    report = report_on_repeats(runs, len(runs))
    assert report.repeats[0].shown
    assert report.verdict.confidence == confidence
    assert report.verdict.confidence_reasons[0].startswith(reason)
    assert report.verdict.confidence_reasons[-2:] == VERDICT.confidence_reasons


def test_a_confidence_that_is_lower_already_is_not_raised() -> None:
    runs = complete(*(saying("queue_bound", "low") for _ in range(3)), saying("load_limited"))
    assert report_on_repeats(runs, 4).verdict.confidence == "low"


def test_an_undetermined_median_run_claims_no_confidence_and_names_the_others() -> None:
    runs = complete(saying("undetermined", None, 1.0), saying("queue_bound", "high", 2.0))
    verdict = report_on_repeats(runs, 2).verdict
    assert verdict.confidence is None
    assert "run 2 of the same command gave another verdict: queue_bound" in verdict.confidence_reasons


@pytest.mark.parametrize(
    ("state", "said"), [("stopped", "stopped by a signal"), ("cut_off", "cut off"), ("unreadable", "not readable")]
)
def test_a_run_that_does_not_count_is_named_and_left_out(state: RunState, said: str) -> None:
    runs = [*complete(delivering(1.0), delivering(2.0)), JudgedRun(3, state, None)]
    report = report_on_repeats(runs, 5)
    assert report.noise_floor is not None
    assert report.noise_floor.runs == (1, 2)
    assert [(run.k, run.state, run.primary) for run in report.repeats][2] == (3, state, None)
    notes = " ".join(report.quality.notes)
    assert "Run 3 of 5 does not count as a repeat" in notes
    assert said in notes
    assert "3 of 5 runs were begun." in notes


def test_one_complete_run_has_no_noise_floor_and_says_so() -> None:
    report = report_on_repeats([*complete(delivering(1.0)), JudgedRun(2, "stopped", None)], 2)
    assert report.noise_floor is None
    assert "There is one complete run; a noise floor needs two." in report.quality.notes


def test_without_a_complete_run_the_last_that_was_judged_is_shown() -> None:
    report = report_on_repeats([JudgedRun(1, "stopped", None), JudgedRun(2, "cut_off", saying("queue_bound"))], 3)
    assert report.verdict.primary == "queue_bound"
    assert [run.shown for run in report.repeats] == [False, True]
    assert report.noise_floor is None
    assert "There is no complete run; a noise floor needs two." in report.quality.notes


def test_strict_holds_a_run_that_was_cut_off_against_the_recording_but_no_other_end() -> None:
    whole = finished_report()
    lacking = shortfalls(whole)
    stopped = report_on_repeats([*complete(whole, whole), JudgedRun(3, "stopped", None)], 3)
    assert shortfalls(stopped) == lacking
    cut_off = report_on_repeats([*complete(whole, whole), JudgedRun(3, "cut_off", None)], 3)
    assert shortfalls(cut_off) == (*lacking, "Run 3 of the repeats was cut off or cannot be read.")


def repeated_report() -> Report:
    """Five runs, one of them with another verdict, and one that was stopped."""
    runs = complete(
        saying("decode_bandwidth_bound", "high", 171.2),
        saying("decode_bandwidth_bound", "high", 174.9),
        saying("decode_bandwidth_bound", "medium", 176.0),
        saying("queue_bound", "low", 158.3),
        saying("decode_bandwidth_bound", "high", 175.1),
    )
    return report_on_repeats([*runs, JudgedRun(6, "stopped", None)], 6)


def test_a_repeated_report_is_valid_under_the_schema_and_read_back_as_it_was() -> None:
    report = repeated_report()
    content = json.loads(dump(report))
    jsonschema.validate(content, report_schema(), jsonschema.Draft202012Validator)
    assert content["noise_floor"]["metrics"][0]["values"] == [171.2, 174.9, 176.0, 158.3, 175.1]
    assert decode_report(dump(report), "report.json") == report
    assert seal(report) == report


def test_a_repeated_report_in_the_terminal_is_the_golden_file(golden: Golden) -> None:
    golden.check(GOLDEN / "terminal-repeats-80.txt", render(repeated_report(), 80).encode())


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("show_all", [False, True])
def test_no_line_of_it_is_wider_than_the_page(width: int, show_all: bool) -> None:
    drawn = render(repeated_report(), width, show_all=show_all, ascii_only=True)
    assert max(cell_len(line) for line in drawn.splitlines()) <= width


def test_all_values_of_all_runs_are_shown_on_request() -> None:
    assert "158 tokens/s" in render(repeated_report(), 200, show_all=True)
    assert "171 tokens/s, 175 tokens/s, 176 tokens/s" in render(repeated_report(), 200, show_all=True)


def test_a_single_run_shows_neither_repeats_nor_a_noise_floor() -> None:
    drawn = render(finished_report(), 80, show_all=True)
    assert "Noise floor" not in drawn
    assert "Repeats" not in drawn
