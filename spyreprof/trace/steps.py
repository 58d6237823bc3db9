"""The steps of a trace: where each stands, and which host operators and which device work belong to it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from spyreprof.trace.annotations import StepWork, parse_step_name
from spyreprof.trace.nesting import innermost
from spyreprof.trace.relations import Relations
from spyreprof.trace.roles import Role, Roles
from spyreprof.trace.table import MISSING, EventTable, Integers

# Of a profiler's schedule: a step of whatever the program repeats. Its name says nothing of the work.
_PROFILER_STEP = re.compile(r"ProfilerStep[#*]?\d{0,18}")
# A step that begins up to this long before its predecessor's end is taken for the next one, badly stamped.
TOLERATED_CROSSING_NS = 1_000_000


@dataclass(frozen=True)
class StepTable:
    """The steps of a trace by thread and start; no two of a thread overlap. Arrays have shape (k,).

    Attributes:
        row: of the step's annotation in the table.
        track: as `EventTable.tracks`.
        start_ns, end_ns: on the trace's clock.
        works: what the names say; None for steps of a profiler's schedule.
        clipped: steps that began before their predecessor's end; they start there.
    """

    row: Integers
    track: Integers
    start_ns: Integers
    end_ns: Integers
    works: tuple[StepWork | None, ...]
    clipped: int

    def __len__(self) -> int:
        return len(self.row)

    def part(self, begin: int, end: int) -> StepTable:
        """The steps from one index to before another."""
        within = slice(begin, end)
        return StepTable(
            self.row[within],
            self.track[within],
            self.start_ns[within],
            self.end_ns[within],
            self.works[within],
            self.clipped,
        )

    def before(self, end_ns: int) -> StepTable:
        """The steps that end before a moment."""
        kept = self.end_ns < end_ns
        works = tuple(work for work, keep in zip(self.works, kept.tolist(), strict=True) if keep)
        return StepTable(self.row[kept], self.track[kept], self.start_ns[kept], self.end_ns[kept], works, self.clipped)


@dataclass(frozen=True)
class StepSpans:
    """Parts of host spans that lie in a step of their thread, by step and start; shape (m,) each.

    Attributes:
        step: index of the step.
        row: of the span in the table. One that crosses from a step into the next stands in both.
        start_ns, end_ns: cut to the step.
    """

    step: Integers
    row: Integers
    start_ns: Integers
    end_ns: Integers


def step_table(table: EventTable, found: Roles, *, profiler_steps: bool = True) -> StepTable:
    """Find the steps. One that runs inside another of its thread is left out.

    Args:
        table: the trace's events.
        found: their roles.
        profiler_steps: whether steps of a profiler's schedule are taken where no engine names its steps.
    """
    works: dict[int, StepWork | None] = {
        code: work for code, name in enumerate(table.name_values) if (work := parse_step_name(name))
    }
    annotations = found.has(Role.HOST_ANNOTATION) & table.has_phase("X") & (table.dur_ns != MISSING)
    wanted = annotations & np.isin(table.name_code, list(works))
    if profiler_steps and not wanted.any():
        works = {code: None for code, name in enumerate(table.name_values) if _PROFILER_STEP.fullmatch(name)}
        wanted = annotations & np.isin(table.name_code, list(works))
    rows = np.flatnonzero(wanted)
    track, start = table.tracks()[rows], table.ts_ns[rows]
    end = start + table.dur_ns[rows]
    kept, starts, clipped = [], [], 0
    track_before, reached_ns = None, 0
    for place, (thread, begin_ns, end_ns) in enumerate(zip(track.tolist(), start.tolist(), end.tolist(), strict=True)):
        crossed_ns = reached_ns - begin_ns if thread == track_before else 0
        if crossed_ns > 0:
            if end_ns <= reached_ns or crossed_ns > TOLERATED_CROSSING_NS or 2 * crossed_ns > end_ns - begin_ns:
                continue
            clipped += 1
        kept.append(place)
        starts.append(max(begin_ns, reached_ns) if crossed_ns > 0 else begin_ns)
        track_before, reached_ns = thread, end_ns
    chosen = np.asarray(kept, np.int64)
    names = table.name_code[rows[chosen]].tolist()
    return StepTable(
        row=rows[chosen],
        track=track[chosen],
        start_ns=np.asarray(starts, np.int64),
        end_ns=end[chosen],
        works=tuple(works[code] for code in names),
        clipped=clipped,
    )


def spans_in_steps(table: EventTable, steps: StepTable, rows: Integers) -> StepSpans:
    """The spans that run in a step of their thread: begun in it, or ended in it. One around all of it is left out.

    Args:
        rows: shape (m,), ascending, each with a duration.
    """
    tracks = table.tracks()[rows]
    starts = table.ts_ns[rows]
    ends = starts + table.dur_ns[rows]
    found_steps, found_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for own, mine in _by_track(steps.track, tracks):
        step_start, step_end = steps.start_ns[own], steps.end_ns[own]
        start, end = starts[mine], ends[mine]
        # a place of -1, before all steps, is the last one and fails the comparison
        begun = np.searchsorted(step_start, start, "right") - 1
        inside = (begun >= 0) & (start < step_end[begun])
        left = np.searchsorted(step_start, end, "left") - 1
        across = (left >= 0) & (start < step_start[left]) & (end < step_end[left])
        found_steps += [own.start + begun[inside], own.start + left[across]]
        found_rows += [mine.start + np.flatnonzero(inside), mine.start + np.flatnonzero(across)]
    step, place = np.concatenate(found_steps), np.concatenate(found_rows)
    order = np.lexsort((place, step))
    step, place = step[order], place[order]
    low, high = steps.start_ns[step], steps.end_ns[step]
    return StepSpans(step, rows[place], np.clip(starts[place], low, high), np.clip(ends[place], low, high))


def _by_track(wanted: Integers, tracks: Integers) -> list[tuple[slice, slice]]:
    """For each track of `wanted`: where it stands there and where in `tracks`. Both hold tracks in runs."""
    places = _runs(tracks)
    return [(own, places[track]) for track, own in _runs(wanted).items() if track in places]


def _runs(tracks: Integers) -> dict[int, slice]:
    if not len(tracks):
        return {}
    bounds = np.flatnonzero(np.concatenate(([True], tracks[1:] != tracks[:-1], [True])))
    first, last = bounds[:-1].tolist(), bounds[1:].tolist()
    return {
        track: slice(begin, end) for track, begin, end in zip(tracks[bounds[:-1]].tolist(), first, last, strict=True)
    }


def steps_of_device(table: EventTable, relations: Relations, steps: StepTable, rows: Integers) -> Integers:
    """The step that launched each piece of device work, `MISSING` for none; shape (m,).

    That is the step in which its launch stands: the one on the launch's thread if that has steps, else the only one
    that runs at the time. Work without a launch counts by its own start. Work that runs on past the end of its step on
    the host still belongs to it.

    Args:
        rows: shape (m,), device work.
    """
    launch = relations.launch[rows]
    linked = launch != MISSING
    caller = np.where(linked, launch, rows)
    moment, track = table.ts_ns[caller], table.tracks()[caller]
    answer = np.full(len(rows), MISSING, np.int64)
    if not len(steps):
        return answer
    at_home = np.zeros(len(rows), np.bool_)
    order = np.argsort(track, kind="stable")
    for own, mine in _by_track(steps.track, track[order]):
        place = order[mine]
        at_home[place] = True
        found = np.searchsorted(steps.start_ns[own], moment[place], "right") - 1
        inside = (found >= 0) & (moment[place] < steps.end_ns[own][found])
        answer[place] = np.where(inside, own.start + found, MISSING)
    abroad = np.flatnonzero(~at_home)
    answer[abroad] = _only_step_at(steps, moment[abroad])
    return answer


def _only_step_at(steps: StepTable, moments: Integers) -> Integers:
    by_start = np.lexsort((-steps.end_ns, steps.start_ns))
    starts, ends = steps.start_ns[by_start], steps.end_ns[by_start]
    running = np.searchsorted(starts, moments, "right") - np.searchsorted(np.sort(ends), moments, "right")
    found = np.searchsorted(starts, moments, "right") - 1
    wanted = running == 1
    # the last that started may have ended within a longer one of another thread
    ended = np.flatnonzero(wanted & (moments >= ends[found]))
    zeros = np.zeros(len(starts), np.int64)
    found[ended] = innermost(zeros, starts, ends, np.zeros(len(ended), np.int64), moments[ended])
    return np.where(wanted, by_start[found], MISSING)
