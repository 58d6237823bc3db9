"""What a report lacks of being complete; `--strict` turns it into an exit code."""

from __future__ import annotations

from spyreprof.recording.shards import CUT_LINES
from spyreprof.report.model import Report


def shortfalls(report: Report) -> tuple[str, ...]:
    """Sentences about what was cut off or could not be decided; empty for a complete report with a verdict."""
    coverage = report.quality.coverage
    lacking: list[str] = []
    if not report.run.finished:
        lacking.append("The recording was cut off before the program ended.")
    if coverage.processes is not None and coverage.processes_closed is not None:
        unclosed = coverage.processes - coverage.processes_closed
        if unclosed > 0:
            lacking.append(f"{unclosed} of {coverage.processes} processes ended without a closing row.")
    cut_lines = sum(number for part in report.inputs for name, number in part.counts.items() if name == CUT_LINES)
    if cut_lines:
        lacking.append(f"{cut_lines} lines of the recording were cut off.")
    if report.verdict.primary == "undetermined":
        lacking.append(f"The verdict is undetermined: {report.verdict.reason}")
    return tuple(lacking)
