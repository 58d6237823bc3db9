"""Programs that mark their own steps, parts and requests: what is concluded, and what is left open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from engine_builder import decode_alone, inputs, light, table

from spyreprof.findings import SteadyWindow
from spyreprof.recording.schema import PHASES, REQUESTS, STEPS, AnalysisInputs
from spyreprof.registry import diagnose
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL, UNKNOWN_PHASE, engine_steps
from spyreprof_analyzers.named_phases import named_parts
from spyreprof_analyzers.request_log import marked_requests, request_log, request_times

MS = 1_000_000
NONE = pd.DataFrame({"time_ns": [], "endpoint": [], "name": [], "labels": [], "value": []})


def window(start_ns: int, end_ns: int) -> SteadyWindow:
    return SteadyWindow(start_ns=start_ns, end_ns=end_ns, share_of_recording=1.0, basis="")


def decoding(**changes: object) -> AnalysisInputs:
    engine, run = decode_alone()
    return replace(inputs(run, engine), **changes)  # type: ignore[arg-type]


def parts(*rows: tuple[str, int, int], writer: str = "w") -> pd.DataFrame:
    return table(PHASES, [{"start_ns": a, "end_ns": b, "writer": writer, "name": name} for name, a, b in rows])


def test_the_share_of_a_part_is_its_union_within_the_window() -> None:
    phases = parts(
        ("sample", 0, 10), ("sample", 50, 70), ("sample", 60, 80),  # one begins before, two overlap
        ("sample", 95, 140), ("schedule", 90, 92),
    )  # fmt: skip
    sample, schedule = named_parts(phases, window(50, 100), "w")
    assert (sample.name, sample.share, sample.count, sample.median_ns) == ("sample", 0.7, 3, 20)
    assert (schedule.name, schedule.share) == ("schedule", 0.04)
    assert named_parts(phases, window(50, 100), "another process") == ()
    assert named_parts(None, window(50, 100), "w") == ()


def test_named_parts_are_a_finding_with_a_share_each_and_absent_without_them() -> None:
    given = decoding()
    writer = str(given.steps["writer"].iloc[0])
    middle = int(given.steps["start_ns"].median())
    found = diagnose(replace(given, named_phases=parts(("schedule", middle, middle + 3 * MS), writer=writer)))
    (finding,) = [finding for finding in found.findings if finding.id == "SPY-HST-003"]
    assert finding.severity == "info"
    assert "schedule" in finding.text
    assert finding.evidence
    without = diagnose(given)
    assert not [finding for finding in without.findings if finding.id == "SPY-HST-003"]
    assert found.verdict.primary == without.verdict.primary


def steps_of(*rows: dict[str, object]) -> pd.DataFrame:
    base: dict[str, object] = {"writer": "w", "source": "api", "compiles": 0, "profiled": False}
    return table(STEPS, [{**base, "start_ns": place, "end_ns": place + 1, **row} for place, row in enumerate(rows)])


def test_a_step_has_the_phase_that_it_was_given_until_counts_tell_more() -> None:
    counts = {"context_requests": 1, "context_tokens": 9, "generation_requests": 2, "generation_tokens": 2}
    steps = engine_steps(steps_of({"phase": "prefill"}, {"phase": "decode"}, {}, {"phase": "decode", **counts}), "w")
    assert steps.phase.tolist() == [PREFILL, DECODE, UNKNOWN_PHASE, MIXED]
    assert steps.counted.tolist() == [False, False, False, True]


def test_steps_without_counts_have_a_time_and_no_number_of_tokens() -> None:
    """A program that marks phases alone: the budget stands, and nothing is counted."""
    given = decoding()
    counts = [column.name for column in STEPS if column.name.startswith(("context_", "generation_"))]
    bare = given.steps.assign(
        **{name: pd.array([pd.NA] * len(given.steps), dtype="Int64") for name in counts},
        phase=given.steps["phase"] if given.steps["phase"].notna().any() else "decode",
    )
    found = diagnose(replace(given, steps=bare))
    decode = next(phase for phase in found.phases if phase.phase == "decode")
    assert decode.time_ns > 0
    assert (decode.context_tokens, decode.generation_tokens, decode.batch_mean) == (None, None, None)
    assert decode.slope is None


@pytest.mark.parametrize(("decodes", "known"), [(5, True), (4, False)])
def test_mixed_steps_that_nothing_divides_are_unexplained_and_no_decodes(decodes: int, known: bool) -> None:
    """Marked as mixed and no more; from a few decode steps on, what goes beyond them is prefill's."""
    given = decoding()
    counts = [column.name for column in STEPS if column.name.startswith(("context_", "generation_"))]
    phase = ["mixed"] * len(given.steps)
    middle = len(phase) // 2
    phase[middle : middle + decodes] = ["decode"] * decodes
    bare = given.steps.assign(
        **{name: pd.array([pd.NA] * len(given.steps), dtype="Int64") for name in counts}, phase=phase
    )
    found = diagnose(replace(given, steps=bare))
    assert found.time_budget is not None
    assert (found.time_budget.unexplained_share < 0.1) == known
    if not known:
        assert found.verdict.primary == "undetermined"
        assert found.time_budget.unexplained_share > 0.8


def requests_of(source: str, *rows: dict[str, object]) -> pd.DataFrame:
    base = {"source": source, "failed": False, "prompt_tokens": 4, "output_tokens": 2}
    return table(REQUESTS, [{**base, **row} for row in rows])


def test_the_clients_view_is_taken_for_latency_and_the_programs_for_the_queue() -> None:
    client = requests_of("bench_result", {"arrival_ns": 0, "ttft_ns": 50 * MS, "e2e_ns": 90 * MS})
    program = requests_of("agent", {"arrival_ns": 5, "ttft_ns": 30 * MS, "e2e_ns": 60 * MS, "queue_ns": 20 * MS})
    both = pd.concat([client, program], ignore_index=True)
    log = request_log(both)
    assert log is not None
    assert log.e2e_ns.tolist() == [90 * MS]
    assert log.source == "load generator's log"
    times = request_times(NONE, log, marked_requests(both), window(0, 100 * MS))
    assert times is not None
    assert times.requests == 1
    assert (times.queue_s, times.prefill_s, times.decode_s) == pytest.approx((0.02, 0.01, 0.03))
    assert times.source == "requests marked by the program"


def test_marks_stand_for_a_log_where_there_is_no_client() -> None:
    program = requests_of(
        "agent",
        {"arrival_ns": 5, "ttft_ns": 30 * MS, "e2e_ns": 60 * MS},
        {"arrival_ns": 6, "failed": pd.NA},
    )
    log = request_log(program)
    assert log is not None
    assert log.source == "requests marked by the program"
    assert len(log) == 1
    assert np.isnan(log.queue_ns).all()
    # Without the moment at which it was scheduled, queue and prefill are one.
    times = request_times(NONE, log, marked_requests(program), window(0, 100 * MS))
    assert times is not None
    assert times.queue_s is None


def test_a_light_load_whose_program_marks_its_requests_is_still_judged_by_its_client() -> None:
    engine, run = light()
    given = inputs(run, engine)
    marked = given.requests.assign(source="agent", queue_ns=pd.array([0] * len(given.requests), dtype="Int64"))
    both = replace(given, requests=pd.concat([given.requests, marked], ignore_index=True))
    alone, together = (diagnose(one) for one in (given, both))
    assert together.verdict.primary == alone.verdict.primary == "load_limited"
    assert together.latencies == alone.latencies
