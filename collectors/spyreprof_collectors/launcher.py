"""`spyreprof record`: run a program with the agent in it, and keep what everything says."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import EXIT_WRONG_USE, UserError
from spyreprof_collectors import command, folder, manifest
from spyreprof_collectors.command import PythonProgram
from spyreprof_collectors.manifest import CollectorState, Manifest
from spyreprof_collectors.process import TERMINATING, ProgramEnd, Supervisor, end_as

BOOT_FOLDER = Path(__file__).resolve().parent / "agent" / "boot"
KILL_GRACE_S = 10.0
# Bounds of a profiler window: they keep the pause of a stop and the size of its file small.
WINDOW_OPERATORS = 20_000
WINDOW_MAX_STEP_S = 0.5


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What `spyreprof record` was asked for.

    `window_steps` None means no profiler window; `duration_s` None means until the program ends.
    """

    command: tuple[str, ...]
    out: Path | None = None
    window_steps: int | None = 4
    metrics_url: str | None = None
    duration_s: float | None = None
    calibrate: bool = True
    quiet: bool = False


def record(options: RecordOptions) -> int:
    """Run the program and write its recording.

    Returns:
        The exit code to leave with; when the program died of a signal, this process does as well.

    Raises:
        UserError: nothing was started: the command or the folder cannot be used.
    """
    if not options.command:
        raise UserError(
            "No command to record.", "Put it after `--`: spyreprof record -- python serve.py", EXIT_WRONG_USE
        )
    executable = command.resolve(options.command, os.environ)
    program = command.python_program(options.command, os.environ, executable)
    recording, is_new = folder.create(options.out, command.display_name(options.command, program))
    document = Manifest(options.command, os.environ)
    say = _Voice(options.quiet)
    with Supervisor() as supervisor:
        try:
            document.write(recording)
            say(f"recording into {_shown(recording)}")
            pid = supervisor.spawn(executable, options.command, _program_environment(options, recording))
        except BaseException:
            folder.remove_empty(recording, keep_root=not is_new)
            raise
        end = supervisor.run_program(pid, options.duration_s, KILL_GRACE_S)
        document.ended_ns = time.monotonic_ns()
        document.end = end
        document.interrupted = any(number in TERMINATING for number in supervisor.received)
        document.notes += supervisor.notes
        _conclude(document, recording, program, options)
        document.write(recording)
        folder.tighten(recording)
        for line in _summary(document, recording, end):
            say(line)
    return end_as(end)


class _Voice:
    """Our few lines on stderr; a closed stderr must not change how the run ends."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, line: str) -> None:
        if self._quiet:
            return
        try:
            sys.stderr.write(f"spyreprof: {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self._quiet = True


def _program_environment(options: RecordOptions, recording: Path) -> dict[str, str]:
    environment = dict(os.environ)
    # A recording inside a recording: the inner agent takes over, and one boot folder is enough.
    rest = [
        part
        for part in environment.get("PYTHONPATH", "").split(os.pathsep)
        if part and part != str(BOOT_FOLDER)
    ]
    environment["PYTHONPATH"] = os.pathsep.join([str(BOOT_FOLDER), *rest])
    environment["SPYREPROF_DIR"] = str(recording)
    window = (
        None
        if options.window_steps is None
        else {"steps": options.window_steps, "operators": WINDOW_OPERATORS, "max_step_s": WINDOW_MAX_STEP_S}
    )
    environment["SPYREPROF_OPTIONS"] = json.dumps({"window": window})
    return environment


def _conclude(
    document: Manifest, recording: Path, program: PythonProgram | None, options: RecordOptions
) -> None:
    document.processes = manifest.read_processes(recording)
    document.collectors = [_agent_state(document, program), *manifest.hook_states(recording)]
    steps = sum(process.steps for process in document.processes)
    if steps:
        document.collectors.append(CollectorState("steps", "ok"))
    else:
        document.collectors.append(
            CollectorState(
                "steps",
                "unavailable",
                "no process named its engine steps",
                "mark each step with torch.profiler.record_function under vLLM's or SGLang's step names",
            )
        )
    document.notes += _unclosed_notes(document)


def _agent_state(document: Manifest, program: PythonProgram | None) -> CollectorState:
    if document.processes:
        return CollectorState("agent", "ok")
    if program is None:
        reason = "the program is not Python, or a wrapper hides it, and no Python process reported"
        return CollectorState("agent", "unavailable", reason, "record the Python command itself")
    if program.shutting_options:
        option = f"-{program.shutting_options[0]}"
        return CollectorState(
            "agent",
            "unavailable",
            f"python {option} keeps sitecustomize or PYTHONPATH out, so the hook could not enter",
            f"run without {option}",
        )
    return CollectorState(
        "agent",
        "unavailable",
        "the interpreter ran without the hook reporting",
        "check that the program keeps PYTHONPATH and runs Python 3.10 or later",
    )


def _unclosed_notes(document: Manifest) -> list[str]:
    unclosed = [process for process in document.processes if process.closed_ns is None]
    running = [process for process in unclosed if manifest.alive(process.pid)]
    ended = [process for process in unclosed if process not in running]
    notes: list[str] = []
    if running:
        pids = _pids([process.pid for process in running])
        notes.append(f"The program ended while {pids} of it went on; the recording holds them up to then.")
    if ended:
        pids = _pids([process.pid for process in ended])
        notes.append(
            f"Ended without a closing row, so killed or crashed: {pids}; up to a second of rows is missing."
        )
    return notes


def _pids(pids: Sequence[int]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:8]) + (" ..." if len(pids) > 8 else "")
    return f"{'process' if len(pids) == 1 else f'{len(pids)} processes:'} {shown}"


def _summary(document: Manifest, recording: Path, end: ProgramEnd) -> list[str]:
    lines = [] if end.code == 0 else [end.sentence()]
    lines += document.notes
    steps = sum(process.steps for process in document.processes)
    lines.append(
        f"{steps} steps of {len(document.processes)} processes. Next: spyreprof report {_shown(recording)}"
    )
    return lines


def _shown(path: Path) -> str:
    try:
        return f"./{path.relative_to(Path.cwd())}"
    except (ValueError, OSError):
        return str(path)
