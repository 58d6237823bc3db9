"""Opens a recording: the one door through which everything else reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from spyreprof.errors import UserError
from spyreprof.recording import layout, schema
from spyreprof.recording.cache import Build, cached_table
from spyreprof.recording.counters import read_counters, read_polls
from spyreprof.recording.engine import read_compiles, read_model, settings_of_engines
from spyreprof.recording.imported_files import read_summaries
from spyreprof.recording.imported_stacks import NO_FILES, SAMPLES, StackFileSummary, read_stack_files
from spyreprof.recording.manifest import Manifest, read_manifest
from spyreprof.recording.peaks import declared_peaks, measured_peaks
from spyreprof.recording.phases import public_phases, read_phases
from spyreprof.recording.processes import ProcessFacts, read_processes
from spyreprof.recording.quality import Quality, assess
from spyreprof.recording.requests import read_requests
from spyreprof.recording.shards import find_shards
from spyreprof.recording.source import Source, open_source
from spyreprof.recording.stacks import number_frames, read_stacks
from spyreprof.recording.tables import read_collectives, read_steps, read_usage
from spyreprof.recording.windows import LOST_TRACES, Window, WindowSteps, pauses, profiled_steps, read_windows

if TYPE_CHECKING:
    import os

    import pandas as pd

    from spyreprof.hardware.profile import HardwareProfile
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.trace.summary import TraceSummary

# Properties whose reading counts what it had to leave out.
_COUNTED_PARTS = (
    "steps",
    "requests",
    "counters",
    "usage",
    "collectives",
    "stacks",
    "phases",
    "_model",
    "_compiles",
    "_measured_peaks",
)


class Recording:
    """One recording, a folder or a packed file. Tables are built when first asked for.

    Attributes:
        path: where it lies.
        manifest: what was run, where and how it ended.
    """

    def __init__(self, source: Source, manifest: Manifest) -> None:
        self.path = source.path
        self.manifest = manifest
        self.source = source
        self.counts: Counter[str] = Counter()

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Engine steps by start: the columns of `schema.STEPS`."""
        # Which rank a process is, its own shard says.
        inputs = [*self._shards(layout.KIND_STEPS), *self._shards(layout.KIND_PROCESS)]
        return self._table("steps", schema.STEPS, inputs, self._read_steps)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """Requests by arrival: the columns of `schema.REQUESTS`."""
        # The manifest's span decides whether arrival times are of this machine's clock.
        inputs = [name for name in self.source.names() if name.startswith((f"{layout.BENCH}/", layout.MANIFEST))]
        inputs += self._shards(layout.KIND_REQUESTS)
        return self._table("requests", schema.REQUESTS, inputs, self._read_requests)

    @cached_property
    def counters(self) -> pd.DataFrame:
        """Changed samples of polled /metrics pages by time: the columns of `schema.COUNTERS`."""
        return self._table("counters", schema.COUNTERS, self._shards(layout.KIND_METRICS), self._read_counters)

    @cached_property
    def polls(self) -> pd.DataFrame:
        """Polls of /metrics pages by time: the columns of `schema.POLLS`."""
        # The same rows as the counters', whose reading counts what had to be left out.
        polls, _ = cached_table(self.source, "polls", schema.POLLS, self._shards(layout.KIND_METRICS), self._read_polls)
        return polls

    @cached_property
    def usage(self) -> pd.DataFrame:
        """Processor time and memory by time: the columns of `schema.USAGE`."""
        return self._table("usage", schema.USAGE, self._shards(layout.KIND_USAGE), self._read_usage)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """Calls of collectives by time: the columns of `schema.COLLECTIVES`."""
        shards = self._shards(layout.KIND_COLLECTIVES)
        return self._table("collectives", schema.COLLECTIVES, shards, self._read_collectives)

    @cached_property
    def stacks(self) -> pd.DataFrame:
        """Python stacks by window: the columns of `schema.STACKS`."""
        return self._table("stacks", schema.STACKS, self._shards(layout.KIND_STACKS), self._read_stacks)

    @cached_property
    def phases(self) -> pd.DataFrame:
        """Named parts of the engine's work by start: the columns of `schema.PHASES`."""
        return self._table("phases", schema.PHASES, self._shards(layout.KIND_PHASES), self._read_phases)

    @cached_property
    def frames(self) -> tuple[tuple[str, str], ...]:
        """(function, file) by the number that the analyzers know them by; foreign text."""
        return number_frames(self.stacks)[1]

    def _table(self, name: str, columns: tuple[schema.Column, ...], inputs: list[str], build: Build) -> pd.DataFrame:
        table, counts = cached_table(self.source, name, columns, inputs, build)
        self.counts.update(counts)
        return table

    def _shards(self, kind: str) -> list[str]:
        return [shard.name for shard in find_shards(self.source, kind)]

    def _read_steps(self, counts: Counter[str]) -> pd.DataFrame:
        return read_steps(self.source, self.processes, counts)

    def _read_collectives(self, counts: Counter[str]) -> pd.DataFrame:
        return read_collectives(self.source, counts)

    def _read_stacks(self, counts: Counter[str]) -> pd.DataFrame:
        return read_stacks(self.source, counts)

    def _read_phases(self, counts: Counter[str]) -> pd.DataFrame:
        return read_phases(self.source, counts)

    def _read_requests(self, counts: Counter[str]) -> pd.DataFrame:
        return read_requests(self.source, self.manifest.started_ns, self.manifest.ended_ns, counts)

    def _read_counters(self, counts: Counter[str]) -> pd.DataFrame:
        return read_counters(self.source, counts)

    def _read_polls(self, counts: Counter[str]) -> pd.DataFrame:
        return read_polls(self.source, counts)

    def _read_usage(self, counts: Counter[str]) -> pd.DataFrame:
        return read_usage(self.source, counts)

    @cached_property
    def processes(self) -> dict[str, ProcessFacts]:
        """What each recorded process said of itself, by writer."""
        return read_processes(self.source, self.counts)

    @cached_property
    def windows(self) -> list[Window]:
        """Profiler windows, and refusals of one."""
        return read_windows(self.source, self.counts)

    @cached_property
    def window_steps(self) -> WindowSteps:
        """Engine steps inside profiler windows; reads the traces."""
        return profiled_steps(self.source, self.windows, self.processes)

    @property
    def trace_summaries(self) -> tuple[TraceSummary, ...]:
        """What each imported trace shows, in the order in which they were given; empty for other recordings."""
        return self._summaries[0]

    @cached_property
    def _summaries(self) -> tuple[tuple[TraceSummary, ...], int]:
        return read_summaries(self.source)

    @property
    def stack_files(self) -> tuple[StackFileSummary, ...]:
        """What each imported file of stacks shows, in the order in which they were given; else empty."""
        return self._stack_files[0]

    @cached_property
    def _stack_files(self) -> tuple[tuple[StackFileSummary, ...], int]:
        return read_stack_files(self.source)

    @cached_property
    def versions(self) -> dict[str, str | None]:
        """Versions by package name, of the process that ran the most steps; None where a package is absent."""
        main = self._main_process()
        return dict(main.versions) if main is not None else {}

    @cached_property
    def quality(self) -> Quality:
        """How complete the recording is; reads all of it."""
        for part in _COUNTED_PARTS:
            getattr(self, part)
        found = assess(self.source, self.manifest, self.processes.values(), self.windows, self.counts)
        traces = self.window_steps
        lost = {LOST_TRACES: traces.lost_traces} if traces.lost_traces else {}
        damaged = [
            f"Summaries of imported {what} that are damaged, left out: {count:,}."
            for what, count in (("traces", self._summaries[1]), ("stacks", self._stack_files[1]))
            if count
        ]
        return replace(found, notes=(*found.notes, *traces.notes, *damaged), counts=found.counts | lost)

    def analysis_inputs(self, hardware: HardwareProfile | None = None) -> AnalysisInputs:
        """Everything that the analyzers may look at.

        Args:
            hardware: declared peaks; they take the place of measured ones of the same resource.
        """
        main = self._main_process()
        torch = main.torch if main is not None else None
        start_ns, end_ns = self._span()
        host = self.manifest.host
        imported = self.manifest.imported is not None
        settings, settings_of = settings_of_engines(self.counters)
        return schema.AnalysisInputs(
            steps=self.steps,
            requests=self.requests,
            counters=self.counters,
            polls=self.polls,
            named_phases=public_phases(self.phases) if len(self.phases) else None,
            usage=self.usage,
            recording_start_ns=start_ns,
            recording_end_ns=end_ns,
            finished=self.manifest.finished,
            profiled_steps=self.window_steps.steps,
            stacks=number_frames(self.stacks)[0] if len(self.stacks) else None,
            # All of an imported recording ran under a profiler; that is no pause of it.
            pauses=() if imported else pauses(self.windows, self.steps, self._last_ns),
            collectives=self.collectives,
            compiles=self._compiles,
            peaks=self._peaks(hardware),
            model=self._model,
            settings=settings,
            settings_of=settings_of,
            imported_faults=tuple(fault for one in self.trace_summaries for fault in one.faults) if imported else None,
            imported_stacks=self._imported_stacks() if imported else None,
            device_kind=torch.device_kind if torch is not None else None,
            own_machine=None if host.virtual is None else not (host.virtual or host.container),
            cpu_count=len(torch.affinity) if torch is not None and torch.affinity else host.cpu_count,
        )

    def _imported_stacks(self) -> schema.ImportedStacks | None:
        if not self.stack_files:
            return None
        profiles = [profile for file in self.stack_files for profile in file.profiles]
        return schema.ImportedStacks(
            alone=not self.trace_summaries,
            without_unit=sum(profile.unit == SAMPLES for profile in profiles),
            without_files=sum(profile.waiting_reason == NO_FILES for profile in profiles),
        )

    @cached_property
    def _model(self) -> schema.ModelFacts:
        return read_model(self.source, self.counts)

    @cached_property
    def _compiles(self) -> tuple[schema.Interval, ...]:
        return read_compiles(self.source, self.counts)

    @cached_property
    def _measured_peaks(self) -> tuple[schema.Peak, ...]:
        main = self._main_process()
        torch = main.torch if main is not None else None
        return measured_peaks(
            self.source,
            torch.threads if torch is not None else None,
            self._model.dtype,
            on_cpu=torch is not None and torch.device_kind == "cpu",
            counts=self.counts,
        )

    def _peaks(self, hardware: HardwareProfile | None) -> tuple[schema.Peak, ...]:
        declared = declared_peaks(hardware, self._model.dtype) if hardware is not None else ()
        replaced = {peak.resource for peak in declared}
        return (*declared, *(peak for peak in self._measured_peaks if peak.resource not in replaced))

    @property
    def _last_ns(self) -> dict[str, int]:
        """By writer, when a process last said something of itself."""
        return {writer: process.last_ns for writer, process in self.processes.items() if process.last_ns is not None}

    def _main_process(self) -> ProcessFacts | None:
        """The process that ran the most steps; without steps, the first that had torch."""
        counts = self.steps["writer"].value_counts()
        writers = [*counts.index, *(w for w, process in self.processes.items() if process.torch is not None)]
        return next((self.processes[writer] for writer in writers if writer in self.processes), None)

    def _span(self) -> tuple[int, int]:
        """Start and end of the recording; where the manifest lacks them, of what was seen."""
        seen = [int(self.steps["start_ns"].min()), int(self.steps["end_ns"].max())] if len(self.steps) else []
        for table in (self.counters, self.usage):
            if len(table):
                seen += [int(table["time_ns"].iloc[0]), int(table["time_ns"].iloc[-1])]
        for process in self.processes.values():
            seen += [t for t, _epoch in process.anchors]
            seen += [process.last_ns] if process.last_ns is not None else []
        start_ns, end_ns = self.manifest.started_ns, self.manifest.ended_ns
        start_ns = start_ns if start_ns is not None else min(seen, default=0)
        return start_ns, end_ns if end_ns is not None else max(seen, default=start_ns)


def open_recording(path: str | os.PathLike[str], run: int | None = None) -> Recording:
    """Open a recording folder or a packed recording.

    Args:
        path: where it lies.
        run: of a repeated recording the run to open, counted from 1; None where there is but one.

    Raises:
        UserError: nothing is there, it is no recording, it is damaged beyond reading, a newer version made it,
            or it holds repeated runs and none of them was named.
    """
    source = open_source(Path(path))
    manifest = read_manifest(source)
    if run is None and manifest.repeats is None:
        return Recording(source, manifest)
    if manifest.repeats is None:
        raise UserError(f"{path} holds one run, which is not numbered.", "Leave the number of the run out.")
    numbers = manifest.run_numbers
    if run is None:
        raise UserError(
            f"{path} holds {len(numbers)} repeated runs, not one recording.",
            f"Open one of them: spyreprof.load(path, run=K), or {layout.RUNS}/K inside the folder.",
        )
    if run not in numbers:
        raise UserError(f"{path} has no run {run}.", f"It lists {', '.join(map(str, numbers)) or 'none'}.")
    return open_run(path, run)


def open_run(path: str | os.PathLike[str], k: int) -> Recording:
    """Open a run of a repeated recording that is known to list it.

    Raises:
        UserError: as `open_recording`.
    """
    source = open_source(Path(path), f"{layout.RUNS}/{k}")
    return Recording(source, read_manifest(source))
