"""What a report lacks of being complete; `--strict` turns it into an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from spyreprof.report.model import Report

# Counts of the reader that stand for a lost part of the recording. Written out, not imported: a report.json is judged
# without the packages that read a recording.
LOST_PARTS: dict[str, str] = {
    "cut_lines": "lines of the recording were cut off",
    "unreadable_rows": "rows of the recording could not be read",
    "overlong_lines": "lines of the recording were too long to be read",
    "unreadable_files": "files of the recording could not be read to their end",
    "unreadable_bench_files": "result files of a load generator could not be read",
    "unreadable_calibrations": "calibration files could not be read",
    "lost_steps": "steps that the recorder counted are missing",
    "lost_traces": "traces of profiler windows are missing, cut short or unreadable",
}
# The fault of a trace that was to show a device; a capture of the CPU alone has another.
DEVICE_MISSED = "no_device_events"


def shortfalls(report: Report) -> tuple[str, ...]:
    """Sentences about what was lost or could not be decided; empty for a complete report with a verdict."""
    coverage = report.quality.coverage
    lacking: list[str] = []
    if not report.run.finished:
        lacking.append("The recording was cut off before the program ended.")
    if coverage.processes is not None and coverage.processes_closed is not None:
        unclosed = coverage.processes - coverage.processes_closed
        if unclosed > 0:
            lacking.append(f"{unclosed} of {coverage.processes} processes ended without a closing row.")
    counts: Counter[str] = Counter()
    for part in report.inputs:
        counts.update(part.counts)
    lacking.extend(f"{counts[name]} {lost}." for name, lost in LOST_PARTS.items() if counts[name])
    lacking.extend(
        f"Run {run.k} of the repeats was cut off or cannot be read."
        for run in report.repeats
        if run.state in {"cut_off", "unreadable"} and not run.shown
    )
    lacking.extend(_of_traces(report))
    lacking.extend(_of_stacks(report))
    if report.verdict.primary == "undetermined":
        lacking.append(f"The verdict is undetermined: {report.verdict.reason}")
    return tuple(lacking)


def _of_traces(report: Report) -> Iterator[str]:
    for trace in report.traces:
        data = trace.data
        if data.truncated_at_byte is not None:
            yield f"Trace {trace.trace} is cut short at byte {data.truncated_at_byte:,}."
        dropped = sum(part.events for part in data.dropped)
        if dropped:
            yield f"Trace {trace.trace} holds {dropped:,} events that could not be used."
        if any(fault.kind == DEVICE_MISSED for fault in trace.faults):
            yield f"Trace {trace.trace} was to show a device and holds no work of one."
    ranks = report.trace_ranks
    if ranks is not None and ranks.missing_count:
        yield f"{ranks.missing_count:,} of {ranks.world_size or 0:,} ranks have no trace."


def _of_stacks(report: Report) -> Iterator[str]:
    for file in report.stack_files:
        if any(profile.truncated for profile in file.profiles):
            yield f"File {file.file} of stacks is cut short."
        dropped = sum(part.samples for part in file.dropped)
        if dropped:
            yield f"File {file.file} of stacks holds {dropped:,} samples that could not be used."
