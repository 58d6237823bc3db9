"""From a recording and its diagnosis to a report.

Every string of the recording passes through a `Redactor`; the analyzers' texts are spyreprof's own and hold numbers
only, because analyzers see neither the command nor a file name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from spyreprof import __version__
from spyreprof.report.frames import FrameNames
from spyreprof.report.load import load_of
from spyreprof.report.model import (
    SCHEMA_VERSION,
    CollectorState,
    Conditions,
    Coverage,
    Exit,
    Input,
    MachinePeak,
    Producer,
    Public,
    Quality,
    Repeat,
    Report,
    Run,
    Spread,
)
from spyreprof.report.profiler_windows import profiler_windows
from spyreprof.report.redact import Kind, RedactedCommand, Redactor, own_words
from spyreprof.report.stack_files import stack_inputs, stack_reports
from spyreprof.report.throughput import throughput
from spyreprof.report.traces import trace_inputs, trace_ranks, trace_reports
from spyreprof.report.writer import seal
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import Diagnosis
    from spyreprof.recording.imported_stacks import StackFileSummary
    from spyreprof.recording.manifest import Manifest
    from spyreprof.recording.schema import AnalysisInputs, EngineSettings
    from spyreprof.recording.windows import Window
    from spyreprof.trace.summary import TraceSummary


# What tells the settings is no setting.
_SETTINGS_SOURCE = "source"
# What a setting in words is allowed to say.
_SETTING_KINDS: dict[str, Kind] = {"kv_dtype": "dtype", "link": "sentence", "platform": "device"}


class ReadingQuality(Protocol):
    """What reading a recording found amiss: sentences for people, counts for scripts."""

    @property
    def notes(self) -> Sequence[str]: ...  # noqa: D102 - the class says it

    @property
    def counts(self) -> Mapping[str, int]: ...  # noqa: D102


class ProcessEnd(Protocol):
    """How a recorded process ended, by its own rows."""

    @property
    def closed(self) -> bool: ...  # noqa: D102


class Recorded(Protocol):
    """The part of a recording that a report needs."""

    @property
    def manifest(self) -> Manifest: ...  # noqa: D102

    @property
    def quality(self) -> ReadingQuality: ...  # noqa: D102

    @property
    def processes(self) -> Mapping[str, ProcessEnd]: ...  # noqa: D102

    @property
    def versions(self) -> Mapping[str, str | None]: ...  # noqa: D102

    @property
    def frames(self) -> Sequence[tuple[str, str]]: ...  # noqa: D102

    @property
    def windows(self) -> Sequence[Window]: ...  # noqa: D102

    @property
    def trace_summaries(self) -> Sequence[TraceSummary]: ...  # noqa: D102

    @property
    def stack_files(self) -> Sequence[StackFileSummary]: ...  # noqa: D102


def build_report(
    recording: Recorded, diagnosis: Diagnosis, inputs: AnalysisInputs, redactor: Redactor | None = None
) -> Report:
    """Join a diagnosis with the run it is about, redacted and sealed.

    Args:
        recording: what was recorded.
        diagnosis: what the analyzers concluded from `inputs`.
        inputs: `recording.analysis_inputs()`, handed in because building them takes time.
        redactor: that of other reports whose pseudonyms shall mean the same; None for a report that stands alone.
    """
    redactor = redactor or Redactor()
    manifest = recording.manifest
    command = redactor.command(manifest.command) if manifest.command else None
    run = _run(manifest, command, redactor)
    decoding = _decoding_steps(inputs.steps, diagnosis)
    conditions = _conditions(recording, inputs, decoding, command, redactor)
    quality = _quality(recording, inputs, diagnosis, redactor)
    read = _input(recording, inputs, redactor)
    span = (inputs.recording_start_ns, inputs.recording_end_ns)
    paused = None
    if manifest.imported is None:  # else what the windows cost is not known
        paused = profiler_windows(recording.windows, manifest.collectors, span, diagnosis.window, redactor)
    summaries = recording.trace_summaries
    traces, ranks = trace_reports(summaries, redactor), trace_ranks(summaries, redactor)
    names = FrameNames(recording.frames, redactor)
    findings, evidence = names.findings(diagnosis.findings), names.evidence(diagnosis.evidence)
    return seal(
        Report(
            schema_version=SCHEMA_VERSION,
            producer=Producer(name="spyreprof", version=__version__),
            report_id="",
            run=run,
            conditions=conditions,
            inputs=(read, *trace_inputs(summaries), *stack_inputs(recording.stack_files)),
            quality=quality,
            redaction=redactor.summary(),
            window=diagnosis.window,
            time_budget=diagnosis.time_budget,
            phases=diagnosis.phases,
            latencies=diagnosis.latencies,
            tails=diagnosis.tails,
            cost=diagnosis.cost,
            verdict=diagnosis.verdict,
            findings=findings,
            not_judged=diagnosis.not_judged,
            evidence=evidence,
            profiler_windows=paused,
            throughput=throughput(inputs, diagnosis),
            load=load_of(inputs.requests, inputs.counters),
            settings=_settings(inputs.settings, redactor),
            peaks=_peaks(inputs),
            traces=traces,
            trace_ranks=ranks,
            engines=diagnosis.engines,
            stack_files=stack_reports(recording.stack_files, redactor),
        )
    )


def _run(manifest: Manifest, command: RedactedCommand | None, redactor: Redactor) -> Run:
    duration_s = None
    if manifest.started_ns is not None and manifest.ended_ns is not None:
        duration_s = (manifest.ended_ns - manifest.started_ns) / NS_PER_S
    return Run(
        run_id=redactor.optional("run_id", manifest.run_id),
        started=_utc(manifest.created_epoch_ns),
        duration_s=duration_s,
        exit=Exit(code=manifest.exit.code, signal=manifest.exit.signal) if manifest.exit else None,
        finished=manifest.finished,
        command_redacted=command.text if command else None,
        command_complete=command.complete if command else False,
        repeat=Repeat(k=manifest.repeat.k, of=manifest.repeat.of) if manifest.repeat else None,
    )


def _utc(epoch_ns: int | None) -> str | None:
    if epoch_ns is None:
        return None
    try:
        moment = datetime.fromtimestamp(epoch_ns // NS_PER_S, timezone.utc)
    except (OverflowError, ValueError, OSError):
        # A damaged manifest may hold any number; a time that is none is absent.
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(
    recording: Recorded,
    inputs: AnalysisInputs,
    decoding: pd.DataFrame,
    command: RedactedCommand | None,
    redactor: Redactor,
) -> Conditions:
    requests = decoding["generation_requests"]
    versions = {name: version for name, version in recording.versions.items() if version is not None}
    python = _python_version(recording.manifest)
    if python is not None:
        versions["python"] = python
    return Conditions(
        hardware=_hardware(recording.manifest, redactor),
        device_kind=redactor.optional("device", inputs.device_kind),
        # The host's processors are one device; how many accelerators took part is not captured.
        device_count=1 if inputs.device_kind == "cpu" else None,
        model=command.model if command else None,
        parameter_bytes=inputs.model.parameter_bytes,
        precision=redactor.optional("dtype", inputs.model.dtype),
        batch=_spread(requests),
        context=_spread(decoding["generation_seq_len_sum"] / requests),
        quantisation=command.quantisation if command else None,
        software={
            redactor.text("package", name): redactor.text("version", version)
            for name, version in sorted(versions.items())
        }
        or None,
    )


def _hardware(manifest: Manifest, redactor: Redactor) -> Public | None:
    host = manifest.host
    if host.cpu_model is not None:
        name = redactor.text("processor", host.cpu_model)
    elif host.machine is not None:
        name = redactor.text("machine", host.machine)
    else:
        return None
    if host.cpu_count is None:
        return name
    used = f"{len(host.affinity)} of " if host.affinity and len(host.affinity) < host.cpu_count else ""
    return own_words(f"{name}, {used}{host.cpu_count} CPUs")


def _peaks(inputs: AnalysisInputs) -> tuple[MachinePeak, ...]:
    return tuple(
        MachinePeak(
            resource=peak.resource,
            unit=peak.unit,
            origin=peak.origin,
            value=peak.value,
            before=peak.before,
            after=peak.after,
        )
        for peak in inputs.peaks
    )


def _settings(settings: EngineSettings, redactor: Redactor) -> dict[str, bool | int | float | Public] | None:
    """The settings that are known; a text among them is foreign."""
    known: dict[str, bool | int | float | Public] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name != _SETTINGS_SOURCE and value is not None:
            known[field.name] = (
                redactor.text(_SETTING_KINDS.get(field.name, "sentence"), value) if isinstance(value, str) else value
            )
    return known or None


def _python_version(manifest: Manifest) -> str | None:
    """The interpreter of the process that ran the most steps."""
    known = [process for process in manifest.processes if process.python is not None]
    return max(known, key=lambda process: process.steps or 0).python if known else None


def _decoding_steps(steps: pd.DataFrame, diagnosis: Diagnosis) -> pd.DataFrame:
    """Steps of the window that decode; of several engines those of the one that binds."""
    decodes = steps["generation_requests"].fillna(0) > 0
    if diagnosis.writers is not None:
        decodes &= steps["writer"].isin(diagnosis.writers)
    window = diagnosis.window
    if window is not None:
        decodes &= (steps["start_ns"] >= window.start_ns) & (steps["end_ns"] <= window.end_ns)
    chosen: pd.DataFrame = steps.loc[decodes]
    return chosen


def _spread(values: pd.Series) -> Spread | None:
    known = values.dropna()
    if known.empty:
        return None
    return Spread(mean=float(known.mean()), low=float(known.min()), high=float(known.max()))


def _quality(recording: Recorded, inputs: AnalysisInputs, diagnosis: Diagnosis, redactor: Redactor) -> Quality:
    manifest = recording.manifest
    heard = [*manifest.notes, *recording.quality.notes]
    notes = [redactor.text("sentence", note) for note in dict.fromkeys(heard)]
    assigned = [phase.assigned_ratio for phase in diagnosis.phases if phase.assigned_ratio is not None]
    return Quality(
        notes=tuple(dict.fromkeys(notes)),
        collectors=tuple(
            CollectorState(
                name=redactor.text("sentence", collector.name),
                state=collector.state,
                reason=redactor.optional("sentence", collector.reason),
                obtain=redactor.optional("sentence", collector.obtain),
            )
            for collector in manifest.collectors
        ),
        coverage=Coverage(
            # From the processes' own rows: the manifest lists none when the recorder was killed.
            # Stacks alone do not tell of how many processes they are.
            processes=None if manifest.imported is not None and not recording.processes else len(recording.processes),
            processes_closed=sum(process.closed for process in recording.processes.values()),
            steps=len(inputs.steps),
            profiled_steps=len(inputs.profiled_steps),
            assigned_ratio=min(assigned, default=None),
            requests=len(inputs.requests),
            metric_polls=_answered_polls(inputs),
        ),
    )


def _answered_polls(inputs: AnalysisInputs) -> int:
    if inputs.polls is None or inputs.polls.empty:
        return int(inputs.counters["time_ns"].nunique())
    return int(inputs.polls.loc[inputs.polls["ok"], "time_ns"].nunique())


def _input(recording: Recorded, inputs: AnalysisInputs, redactor: Redactor) -> Input:
    tables = {
        "steps": inputs.steps,
        "requests": inputs.requests,
        "counter_samples": inputs.counters,
        "usage_samples": inputs.usage,
    }
    counts = {own_words(name): len(table) for name, table in tables.items()}
    for name, number in sorted(recording.quality.counts.items()):
        counts[redactor.text("sentence", name)] = number
    return Input(kind="recording", counts=counts)
