"""What the terminal says of traces: each thing once, with its reason, and in words that need no manual."""

from __future__ import annotations

from pathlib import Path

import msgspec
from builders import MS, TraceBuilder, decode_name
from report_builders import finished_report

from spyreprof import registry
from spyreprof.recording.imported import import_files
from spyreprof.recording.store import open_recording
from spyreprof.report.build import build_report
from spyreprof.report.model import Coverage, Quality, Report
from spyreprof.report.terminal import render


def report_on_trace(tmp_path: Path) -> Report:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(decode_name(requests=2), 2 * MS * number, 2 * MS * number + MS)
        trace.operator("aten::mm", 2 * MS * number, 2 * MS * number + MS // 2)
    import_files([trace.write(tmp_path / "trace.json")], tmp_path / "made.spyreprof")
    recording = open_recording(tmp_path / "made.spyreprof")
    inputs = recording.analysis_inputs()
    return build_report(recording, registry.diagnose(inputs), inputs)


def words(report: Report, **options: str) -> str:
    return " ".join(render(report, 80, **options).split())


def test_that_all_of_it_ran_under_a_profiler_is_said_once(tmp_path: Path) -> None:
    drawn = words(report_on_trace(tmp_path))
    assert drawn.count("under a profiler") == 1
    assert "Needs what binds the engine. Obtain: run the engine under `spyreprof record`" in drawn


def test_a_reason_that_the_headline_does_not_tell_stands_with_what_is_needed(tmp_path: Path) -> None:
    report = report_on_trace(tmp_path)
    verdict = msgspec.structs.replace(report.verdict, headline="Undetermined.")
    drawn = words(msgspec.structs.replace(report, verdict=verdict))
    assert "what binds the engine: every step was measured under a profiler" in drawn


def test_where_no_steady_state_is_it_says_why(tmp_path: Path) -> None:
    assert "no steady state: traces do not show the load" in words(report_on_trace(tmp_path))

    def without_window(steps: int) -> str:
        coverage = Coverage(
            steps=steps,
            profiled_steps=0,
            assigned_ratio=None,
            requests=0,
            metric_polls=0,
            processes=1,
            processes_closed=1,
        )
        quality = Quality(notes=(), collectors=(), coverage=coverage)
        return words(finished_report(window=None, quality=quality))

    assert "no steady state: no engine step was seen, so" in without_window(0)
    assert "no steady state: none was found among the engine steps, so" in without_window(3)


def test_a_spread_says_that_its_first_number_is_the_mean() -> None:
    assert "batch mean 6.1 (1 to 8)" in words(finished_report())


def test_self_time_of_operators_is_called_so(tmp_path: Path) -> None:
    drawn = words(report_on_trace(tmp_path))
    assert "Operators by self time (without the operators and calls inside them), in % of all operators' self" in drawn


def test_what_to_do_next_are_commands_that_can_be_pasted(tmp_path: Path) -> None:
    drawn = words(report_on_trace(tmp_path), again="spyreprof report 'a b.json'")
    assert "everything: spyreprof report 'a b.json' --all" in drawn
    assert "for a ticket: spyreprof report 'a b.json' --json --out report.json" in drawn
