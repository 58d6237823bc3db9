"""What a reader must know of how complete a recording is."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.recording import counters, layout, peaks, phases, requests, shards, tables

if TYPE_CHECKING:
    from spyreprof.recording.manifest import Collector, Manifest
    from spyreprof.recording.processes import ProcessFacts
    from spyreprof.recording.source import Source
    from spyreprof.recording.windows import Window

UNCLOSED_PROCESSES = "processes_without_closing_row"
STOLEN_WINDOWS = "windows_stolen"
FAILED_WINDOWS = "windows_failed"
YIELDED_WINDOWS = "windows_yielded"
ENTRIES_LEFT_OUT = "entries_left_out"
UNKNOWN_SHARDS = "unknown_shards"
LOST_STEPS = "lost_steps"
# Below this share of stolen time nothing that is measured here would change.
_MATERIAL_STEAL_PERMILLE = 20

# What was counted, and its name for people; the number follows, so that one wording serves one and many.
_COUNTED: tuple[tuple[str, str], ...] = (
    (shards.CUT_LINES, "Last lines cut off in the middle, left out"),
    (shards.UNREADABLE_ROWS, "Rows that could not be read, left out"),
    (shards.OVERLONG_LINES, "Lines that are too long, left out"),
    (shards.UNREADABLE_FILES, "Files that could not be read to their end"),
    (shards.UNKNOWN_ROWS, "Rows of an unknown kind, left out"),
    (LOST_STEPS, "Steps that the recorder counted and that are not here"),
    (tables.UNKNOWN_STEP_NAMES, "Steps with an unknown name, left out"),
    (tables.DUPLICATE_STEPS, "Steps recorded twice, counted once"),
    (tables.BACKWARD_STEPS, "Steps that end before they begin, left out"),
    (phases.BACKWARD_PHASES, "Named parts that end before they begin, left out"),
    (requests.BACKWARD_REQUESTS, "Requests that end before they begin, left out"),
    (tables.BACKWARD_COLLECTIVES, "Collectives that end before they begin, left out"),
    (counters.GARBAGE_METRIC_LINES, "Lines of /metrics that are no samples, left out"),
    (requests.UNREADABLE_BENCH_FILES, "Result files of a load generator that could not be read"),
    (requests.FOREIGN_CLOCK_FILES, "Result files whose arrival times are of another clock, arrival times left out"),
    (peaks.UNREADABLE_CALIBRATIONS, "Calibration files that could not be read"),
    (STOLEN_WINDOWS, "Profiler windows that another profiler took over, empty"),
    (FAILED_WINDOWS, "Profiler windows that failed"),
    (YIELDED_WINDOWS, "Profiler windows that made way for the program's own profiler"),
    (ENTRIES_LEFT_OUT, "Entries that are no regular files, left out"),
    (UNKNOWN_SHARDS, "Shards of a kind that this version does not know, left out"),
)


@dataclass(frozen=True)
class Quality:
    """How complete a recording is.

    Attributes:
        notes: sentences for people; empty when nothing is amiss.
        counts: the same for scripts; a key is absent where the count is zero.
        collectors: those that could not see everything, each with a reason and how to obtain the rest.
    """

    notes: tuple[str, ...]
    counts: dict[str, int]
    collectors: tuple[Collector, ...]


def assess(
    source: Source,
    manifest: Manifest,
    processes: Iterable[ProcessFacts],
    windows: list[Window],
    counts: Counter[str],
) -> Quality:
    """Sum up what was left out and what is missing; `counts` are those of reading everything."""
    counts = Counter(counts)
    notes = []
    unfinished = not manifest.finished
    unclosed = [process for process in processes if not process.closed]
    counts[UNCLOSED_PROCESSES] = len(unclosed)
    if unfinished:
        notes.append(
            "The recorder did not finish: rows of the last second may be missing, and so is everything that is "
            "collected at the end (result files, the second calibration)."
        )
        # A finished recording carries these sentences in its manifest already.
        if unclosed:
            pids = ", ".join(str(process.pid or process.writer.partition("-")[0]) for process in unclosed[:8])
            notes.append(f"Ended without a closing row (killed, crashed, or unable to write): process {pids}.")
    if manifest.exit is not None and manifest.exit.signal:
        notes.append(f"The program was ended by signal {_signal_name(manifest.exit.signal)}.")
    steal = counts.pop(tables.STEAL_PERMILLE, 0)
    if steal >= _MATERIAL_STEAL_PERMILLE:
        notes.append(f"The host took {steal / 10:.1f} % of the processor time away from this machine.")
    states = Counter(window.row.state for window in windows)
    counts[STOLEN_WINDOWS] = states["stolen"]
    counts[FAILED_WINDOWS] = states["failed"]
    counts[YIELDED_WINDOWS] = states["yielded"]
    counts[LOST_STEPS] = _lost_steps(source, manifest)
    counts[ENTRIES_LEFT_OUT] = source.left_out
    counts[UNKNOWN_SHARDS] = sum(shard.kind not in layout.KINDS for shard in shards.all_shards(source))
    notes.extend(f"{name}: {counts[key]:,}." for key, name in _COUNTED if counts[key])
    return Quality(
        notes=tuple(notes),
        counts={key: count for key, count in sorted(counts.items()) if count},
        collectors=tuple(collector for collector in manifest.collectors if collector.state != "ok"),
    )


def _lost_steps(source: Source, manifest: Manifest) -> int:
    """Steps of the manifest's processes whose shard is gone."""
    there = {shard.writer for shard in shards.find_shards(source, layout.KIND_STEPS)}
    return sum(max(process.steps or 0, 0) for process in manifest.processes if process.writer not in there)


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
