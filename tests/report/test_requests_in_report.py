"""From rows on disk to the report: the slowest requests, limits and cost of a recording with marked requests."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from builders import MS, SECOND, START_NS, RecordingBuilder, decode_name, prefill_name

from spyreprof import registry
from spyreprof.recording.store import open_recording
from spyreprof.report.build import build_report
from spyreprof.report.model import Report
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump

CANARY = "Ravensbruck"
MOST = 2**63 - 1
EVERY_NS = 250 * MS


def marked_recording(path: Path, **changes: object) -> RecordingBuilder:
    """300 requests of five tokens one after another; every fifteenth waited a second before it was scheduled."""
    recording = RecordingBuilder(path, end_ns=START_NS + 90 * SECOND)
    recording.process(end_ns=START_NS + 90 * SECOND)
    steps, rows = [], []
    for at in range(300):
        scheduled = START_NS + 5 * SECOND + at * EVERY_NS
        begun = scheduled - (SECOND if at % 15 == 7 else MS)
        for step in range(5):
            start = scheduled + step * 41 * MS
            name = decode_name(seq_len_sum=64 + step) if step else prefill_name()
            steps.append((start, start + 40 * MS, name))
        rows.append(
            {
                "k": "request", "t0": begun, "ts": scheduled, "tf": scheduled + 40 * MS, "t1": scheduled + 204 * MS,
                "prompt": 64, "cached": 0, "output": 5, "reasoning": 2, "reason": "stop", "max_tokens": 4096,
                "preemptions": 0, **changes,
            }
        )  # fmt: skip
    recording.steps(steps)
    return recording.shard("requests", rows)


def reported(recording: RecordingBuilder) -> Report:
    opened = open_recording(recording.write())
    inputs = opened.analysis_inputs()
    diagnosis = registry.diagnose(inputs, registry.targets(ttft_p99_s=0.2, price_per_hour=Fraction(3)))
    return build_report(opened, diagnosis, inputs)


def test_marked_requests_tell_what_dominates_the_p99_and_what_a_request_costs(tmp_path: Path) -> None:
    report = reported(marked_recording(tmp_path / "run.spyreprof"))
    ttft = next(tail for tail in report.tails if tail.metric == "ttft")
    assert (ttft.dominant, ttft.target_met) == ("queue", False)
    finding = next(finding for finding in report.findings if finding.id == "SPY-P99-001")
    assert finding.severity == "medium"
    assert {line.id for line in report.cost.lines} >= {"input", "visible_output", "reasoning", "idle_capacity"}
    assert report.cost.requests[0].output_tokens == 5
    again = msgspec.json.decode(dump(report), type=Report)
    assert (again.tails, again.cost) == (report.tails, report.cost)


def test_a_limit_far_above_what_is_generated_reaches_the_report(tmp_path: Path) -> None:
    report = reported(marked_recording(tmp_path / "run.spyreprof"))
    finding = next(finding for finding in report.findings if finding.id == "SPY-OUT-001")
    assert (finding.advice[0].from_, finding.advice[0].to) == (4096, 6)


def test_a_reason_that_nobody_knows_reaches_neither_table_nor_report(tmp_path: Path) -> None:
    recording = marked_recording(tmp_path / "run.spyreprof", reason=CANARY)
    report = reported(recording)
    assert CANARY not in dump(report).decode() + render(report, 200, show_all=True)
    assert set(open_recording(recording.path).requests["finish_reason"]) == {"other"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "changes",
    [
        {"output": MOST, "prompt": MOST, "max_tokens": MOST, "preemptions": MOST, "reasoning": MOST, "cached": MOST},
        {"output": 0, "prompt": 0, "max_tokens": 0, "reasoning": 0},
        {"output": 1, "prompt": 0, "cached": 9, "reasoning": 3},
        {"t0": 0, "ts": 0, "tf": 0, "t1": MOST},
        {"t0": 0, "ts": MOST, "tf": MOST, "t1": MOST},
        {"t0": MOST, "ts": MOST, "tf": MOST, "t1": MOST},
        {"ts": None, "output": None, "prompt": None, "reason": None},
        {"ts": None, "tf": None},
    ],
)
def test_numbers_that_no_engine_has_break_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    report = reported(marked_recording(tmp_path / "run.spyreprof", **changes))
    for tail in report.tails:
        assert sum(part.slowest_ns or 0 for part in tail.parts) == tail.slowest_ns
    assert sum(line.ns for line in report.cost.lines) == report.cost.window_ns
    assert render(report, 100, show_all=True)
