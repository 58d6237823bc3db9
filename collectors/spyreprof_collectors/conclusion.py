"""What is said of a run once the program has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors import hookless, manifest
from spyreprof_collectors.command import PythonProgram, shut_out
from spyreprof_collectors.manifest import CollectorState, Manifest, ProcessFacts
from spyreprof_collectors.process import Supervisor
from spyreprof_collectors.shards import count_rows, shard_paths
from spyreprof_collectors.usage import Stat

_PIDS_SHOWN = 8


def conclude(
    document: Manifest,
    recording: Path,
    program: PythonProgram | None,
    running: Sequence[Stat],
    supervisor: Supervisor,
) -> None:
    """Read back what the agent wrote, and put the states of its collectors and the notes into the manifest.

    Args:
        document: the manifest, its end already filled in.
        recording: the recording folder.
        program: the Python that the command runs, if any.
        running: processes of the program that outlived it.
        supervisor: who ran it.
    """
    document.processes = manifest.read_processes(recording)
    document.collectors = [_agent_state(document, program), *manifest.hook_states(recording), _steps(document)]
    if any(count_rows(path) for _, path in shard_paths(recording, layout.KIND_COMPILE)):
        document.collectors.append(CollectorState(layout.KIND_COMPILE, "ok"))
    document.notes += supervisor.notes
    document.notes += _process_notes(document, running)
    if len(document.processes) > manifest.MAX_PROCESSES:
        document.notes.append(
            f"{manifest.MAX_PROCESSES} of {len(document.processes)} processes are listed here; the shards hold all."
        )
    if not supervisor.is_subreaper:
        document.notes.append("Processes that the program detached could not be followed on this system.")


def summary(document: Manifest) -> list[str]:
    """Lines for the user: what went differently than usual, and how many steps were seen."""
    lines: list[str] = []
    if document.end is not None and document.end.code != 0:
        lines.append(document.end.sentence())
    lines += document.notes
    steps = sum(process.steps for process in document.processes)
    if steps:
        lines.append(f"{steps} steps recorded.")
    else:
        reasons = [
            state.reason for name in ("agent", hookless.NAME, layout.KIND_STEPS)
            for state in document.collectors if state.name == name
        ]  # fmt: skip
        lines.append(f"No steps recorded: {next((reason for reason in reasons if reason), 'nothing ran')}.")
    # Stacks are asked for; whoever did so shall not learn from the report alone that there are none.
    lines += [
        f"No stacks sampled: {state.reason}." + (f" Remedy: {state.obtain}." if state.obtain else "")
        for state in document.collectors
        if state.name == layout.KIND_STACKS and state.state == "unavailable"
    ]
    return lines


def next_command(shown_path: str) -> str:
    """The line that says what to do with the recording."""
    return f"next: spyreprof report {shown_path}"


def _agent_state(document: Manifest, program: PythonProgram | None) -> CollectorState:
    if document.processes:
        return CollectorState("agent", "ok")
    if program is None:
        return CollectorState(
            "agent",
            "unavailable",
            "no Python process of the program reported; the command is not Python, or a wrapper hides it",
            "record the Python command itself",
        )
    shut = shut_out(program)
    if shut is not None:
        return CollectorState("agent", "unavailable", *shut)
    return CollectorState(
        "agent",
        "unavailable",
        "the interpreter ran, and the hook did not report",
        "check that the program keeps PYTHONPATH and runs Python 3.10 or later",
    )


def _steps(document: Manifest) -> CollectorState:
    if any(process.steps for process in document.processes):
        return CollectorState(layout.KIND_STEPS, "ok")
    return CollectorState(
        layout.KIND_STEPS,
        "unavailable",
        "no process named its engine steps",
        "mark each step with `spyreprof_agent`, or with torch.profiler.record_function under vLLM's or SGLang's step "
        "names",
    )


def _process_notes(document: Manifest, running: Sequence[Stat]) -> list[str]:
    running_pids = {stat.pid for stat in running}
    notes: list[str] = []
    if running:
        named = [f"{stat.pid} ({stat.name})" for stat in running]
        notes.append(f"The program ended and left running: {_listed(named)}. The recording ends with the program.")
    lost = [
        process for process in _last_of_each_pid(document.processes)
        if process.closed_ns is None and process.pid not in running_pids
    ]  # fmt: skip
    if lost:
        named = [f"{process.pid}{_steps_of(process)}" for process in lost]
        note = f"Ended without a closing row (killed, crashed, or unable to write): {_listed(named)}."
        if document.end is not None and document.end.code == 0:
            note += " The program's exit code 0 does not tell of it."
        notes.append(note)
    return notes


def _last_of_each_pid(processes: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """After exec the same process id opens again; what counts is how its last program ended."""
    return list({process.pid: process for process in processes}.values())


def _steps_of(process: ProcessFacts) -> str:
    return f" ({process.steps} steps)" if process.steps else ""


def _listed(names: Sequence[str]) -> str:
    noun = "process" if len(names) == 1 else f"{len(names)} processes"
    more = " ..." if len(names) > _PIDS_SHOWN else ""
    return f"{noun} {', '.join(names[:_PIDS_SHOWN])}{more}"
