"""`spyreprof record`: run a program with the agent in it, and keep what everything says."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import UserError
from spyreprof_collectors import bench_result, command, conclusion, folder
from spyreprof_collectors.calibration import USUAL_S, Calibration
from spyreprof_collectors.collection import Collection
from spyreprof_collectors.command import PythonProgram
from spyreprof_collectors.manifest import Manifest
from spyreprof_collectors.metrics_page import Page
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
        UserError: nothing was started: the command, an option or the folder cannot be used.
    """
    if not options.command:
        raise UserError("No command to record.", "Put it after `--`: spyreprof record -- python serve.py")
    page = Page.of_url(options.metrics_url) if options.metrics_url is not None else None
    executable = command.resolve(options.command, os.environ)
    program = command.python_program(options.command, os.environ, executable)
    say = Voice(options.quiet)
    with Supervisor() as supervisor:
        recording, is_new = folder.create(options.out, command.display_name(options.command, program))
        run = _Run(
            options,
            recording,
            program,
            Manifest(options.command, os.environ),
            supervisor,
            Collection(recording, page, {supervisor.witness_pid or 0}),
            Calibration(supervisor, recording, program, os.environ, options.calibrate),
        )
        try:
            came, pid = _start(run, executable, say)
        except (UserError, OSError):
            folder.remove(recording, keep_root=not is_new)
            raise
        if came is not None:
            folder.remove(recording, keep_root=not is_new)
            say("ended before the program started; nothing was recorded")
            end = ProgramEnd(signal=came)
        else:
            run.collection.start()
            supervisor.before_terminating = run.collection.poll_before_end
            end = supervisor.run_program(pid, options.duration_s, KILL_GRACE_S)
            run.document.finish(end, interrupted=any(number in TERMINATING for number in supervisor.received))
            for line in _finish(run, say):
                say(line)
    return end_as(end)


@dataclass(frozen=True, slots=True)
class _Run:
    options: RecordOptions
    recording: Path
    program: PythonProgram | None
    document: Manifest
    supervisor: Supervisor
    collection: Collection
    calibration: Calibration


class Voice:
    """Our few lines on stderr; a closed stderr must not change how the run ends."""

    def __init__(self, quiet: bool) -> None:
        # Python has no stderr object when it was started with the descriptor closed.
        self._quiet = quiet or sys.stderr is None

    def __call__(self, line: str) -> None:
        """Say one line."""
        if self._quiet:
            return
        try:
            sys.stderr.write(f"spyreprof: {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self._quiet = True


def _start(run: _Run, executable: str, say: Voice) -> tuple[int | None, int]:
    """Measure, then start the program.

    Returns:
        (the signal that asked us to end before there was a program, or None; the program's process id or 0).
    """
    run.document.write(run.recording)
    say(f"recording into {shown(run.recording)}")
    came = None
    if run.calibration.may_run_before():
        say(f"measuring this machine's peaks (about {USUAL_S} s; --no-calibrate skips it)")
        came = run.calibration.run_before()
    came = came or run.supervisor.asked_to_end()
    if came is not None:
        return came, 0
    run.document.begin()
    run.document.write(run.recording)
    environment = _program_environment(run.options, run.recording)
    return None, run.supervisor.spawn(executable, run.options.command, environment)


def _program_environment(options: RecordOptions, recording: Path) -> dict[str, str]:
    environment = dict(os.environ)
    # A recording inside a recording: the inner agent takes over, and one boot folder is enough.
    before = environment.get("PYTHONPATH", "").split(os.pathsep)
    rest = [part for part in before if part and part != str(BOOT_FOLDER)]
    environment["PYTHONPATH"] = os.pathsep.join([str(BOOT_FOLDER), *rest])
    environment["SPYREPROF_DIR"] = str(recording)
    window = (
        None
        if options.window_steps is None
        else {"steps": options.window_steps, "operators": WINDOW_OPERATORS, "max_step_s": WINDOW_MAX_STEP_S}
    )
    environment["SPYREPROF_OPTIONS"] = json.dumps({"window": window})
    return environment


def _finish(run: _Run, say: Voice) -> list[str]:
    """Complete the recording of a program that ended; no fault here may cost its exit code.

    Returns:
        Lines for the user.
    """
    document, calibration = run.document, run.calibration
    try:
        running = run.collection.stop()
        conclusion.conclude(document, run.recording, run.program, running, run.supervisor)
        states = [*document.collectors, *run.collection.states()]
        states.append(bench_result.collect(run.recording, run.options.command, document.started_epoch_ns))
        document.collectors = [*states, calibration.state()]
        # The recording is complete from here on, for somebody may not wait for what follows.
        document.write(run.recording)
        if calibration.may_run_after():
            say("measuring this machine's peaks again")
            calibration.run_after(stopped=bool(run.supervisor.passed_on & TERMINATING))
        document.collectors = [*states, calibration.state()]
        document.write(run.recording)
        folder.tighten(run.recording)
        return conclusion.summary(document, shown(run.recording))
    except Exception as error:  # noqa: BLE001  the program's exit code matters more than our bookkeeping
        return [f"the recording {shown(run.recording)} is incomplete: {type(error).__name__}: {error}"]


def shown(path: Path) -> str:
    """The path as a person in this folder would write it."""
    try:
        return f"./{path.relative_to(Path.cwd())}"
    except (ValueError, OSError):
        return str(path)
