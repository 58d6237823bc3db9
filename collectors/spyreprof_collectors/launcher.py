"""`spyreprof record`: run a program with the agent in it, and keep what everything says."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from spyreprof.errors import UserError
from spyreprof_collectors import bench_result, command, conclusion, folder, series
from spyreprof_collectors.calibration import USUAL_S, Calibration
from spyreprof_collectors.collection import Collection
from spyreprof_collectors.command import PythonProgram
from spyreprof_collectors.manifest import Manifest
from spyreprof_collectors.metrics_page import Page
from spyreprof_collectors.process import ProgramEnd, Supervisor, end_as, signal_name
from spyreprof_collectors.series import Series

BOOT_FOLDER = Path(__file__).resolve().parent / "agent" / "boot"
KILL_GRACE_S = 10.0
# Bounds of a profiler window: they keep the pause of a stop and the size of its file small.
WINDOW_OPERATORS = 20_000
WINDOW_MAX_STEP_S = 0.5
_NOTHING_RECORDED = "ended before the program started; nothing was recorded"


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What `spyreprof record` was asked for.

    `window_steps` None means no profiler window; `duration_s` None means until the program ends. `repeat` is the number
    of runs; more than one make a repeated recording, and `duration_s` is that of each. `py_spy_rate_hz` None samples no
    stacks.
    """

    command: tuple[str, ...]
    out: Path | None = None
    window_steps: int | None = 4
    metrics_url: str | None = None
    duration_s: float | None = None
    calibrate: bool = True
    quiet: bool = False
    repeat: int = 1
    py_spy_rate_hz: int | None = None


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
    with Supervisor() as supervisor:
        launch = _Launch(options, page, executable, program, supervisor, Voice(options.quiet))
        launch.strangers.add(supervisor.witness_pid or 0)
        end = _record_once(launch) if options.repeat == 1 else _record_series(launch)
    return end_as(end)


@dataclass(frozen=True, slots=True)
class _Launch:
    """What all runs of one `record` share. `strangers` are processes below us that are no part of the run."""

    options: RecordOptions
    page: Page | None
    executable: str
    program: PythonProgram | None
    supervisor: Supervisor
    say: Voice
    strangers: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return command.display_name(self.options.command, self.program)


@dataclass(frozen=True, slots=True)
class _Run:
    launch: _Launch
    recording: Path
    document: Manifest
    collection: Collection
    calibration: Calibration

    @classmethod
    def into(cls, recording: Path, launch: _Launch, repeat: tuple[int, int] | None = None) -> _Run:
        return cls(
            launch,
            recording,
            Manifest(launch.options.command, os.environ, repeat=repeat),
            Collection(recording, launch.page, launch.strangers, launch.options.py_spy_rate_hz),
            Calibration(launch.supervisor, recording, launch.program, os.environ, launch.options.calibrate),
        )


def _record_once(launch: _Launch) -> ProgramEnd:
    recording, is_new = folder.create(launch.options.out, launch.name)
    run = _Run.into(recording, launch)
    launch.say(f"recording into {shown(recording)}")
    try:
        came, pid = _start(run)
    except OSError as error:
        folder.take_back(recording, is_new)
        raise folder.unwritable(shown(recording), error) from error
    except UserError:
        folder.take_back(recording, is_new)
        raise
    if came is not None:
        launch.say(folder.take_back(recording, is_new) or _NOTHING_RECORDED)
        return ProgramEnd(signal=came)
    end = _wait(run, pid)
    for line in [*_finish(run), conclusion.next_command(shown(recording))]:
        launch.say(line)
    return end


def _record_series(launch: _Launch) -> ProgramEnd:
    """Run the program several times; the first run that does not end well is the last."""
    options = launch.options
    parent, is_new = folder.create(options.out, launch.name, parts=series.PARTS)
    started: list[_Run] = []

    def close() -> None:
        left = None if started else folder.take_back(parent, is_new, series.PARTS)
        if started or left is not None:
            launch.say(left or conclusion.next_command(shown(parent)))

    try:
        end = _repeat(launch, Series(parent, options.command, os.environ, options.repeat), started)
    except (UserError, OSError) as error:
        close()
        if started or isinstance(error, UserError):
            raise
        raise folder.unwritable(shown(parent), error) from error
    close()
    return end


def _repeat(launch: _Launch, runs: Series, started: list[_Run]) -> ProgramEnd:
    """Fill `started` with the runs of a series.

    Returns:
        How the last program ended, or the signal that ended the series when no program was there to get it.
    """
    say, end = launch.say, ProgramEnd(code=0)
    for k in range(1, runs.of + 1):
        launch.supervisor.forget_run()
        place = f"run {k} of {runs.of}"
        try:
            with runs.run(k) as recording:
                run = _Run.into(recording, launch, (k, runs.of))
                say(f"{place}: recording into {shown(recording)}")
                came, pid = _start(run, started[-1] if started else None)
                if came is not None:
                    runs.withdraw(k)
        except OSError as error:
            if not started:
                raise
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{place} cannot be recorded: {reason}.", "The runs before it are complete.") from error
        if came is not None:
            say(f"{signal_name(came)} came before {place}: the series ends here" if started else _NOTHING_RECORDED)
            return ProgramEnd(signal=came)
        started.append(run)
        end = _wait(run, pid)
        during = _asked_to_end(launch.supervisor)
        for line in _finish(run):
            say(line)
        try:
            runs.finish(run.document)
        except OSError as error:
            say(f"the list of runs could not be written: {error}. The series ends here.")
            return end
        why = series.why_no_more(run.document, during)
        after = _asked_to_end(launch.supervisor)
        if why is None and after is not None and k < runs.of:
            # Not the program was asked: we end by the signal ourselves, as before the first run.
            why, end = f"was followed by {signal_name(after)}", ProgramEnd(signal=after)
        if why is not None and k < runs.of:
            say(f"{place} {why}: the series ends here")
            return end
    return end


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


def _start(run: _Run, earlier: _Run | None = None) -> tuple[int | None, int]:
    """Measure, then start the program.

    Args:
        run: where to record to.
        earlier: the run of the same series that has just ended.

    Returns:
        (the signal that asked us to end before there was a program, or None; the program's process id or 0).
    """
    launch, calibration = run.launch, run.calibration
    run.document.write(run.recording)
    came = None
    shared = earlier is not None and calibration.share_before(earlier.calibration)
    if not shared and calibration.may_run_before():
        launch.say(f"measuring this machine's peaks (about {USUAL_S} s; --no-calibrate skips it)")
        came = calibration.run_before()
    came = came or launch.supervisor.asked_to_end()
    if came is not None:
        return came, 0
    run.document.begin()
    run.document.write(run.recording)
    environment = _program_environment(launch.options, run.recording)
    return None, launch.supervisor.spawn(launch.executable, launch.options.command, environment)


def _wait(run: _Run, pid: int) -> ProgramEnd:
    """Collect while the program runs, until it has ended."""
    supervisor, options = run.launch.supervisor, run.launch.options
    run.collection.start(pid)
    supervisor.before_terminating = run.collection.poll_before_end
    end = supervisor.run_program(pid, options.duration_s, KILL_GRACE_S)
    run.document.finish(
        end,
        interrupted=_asked_to_end(supervisor) is not None,
        duration_reached=supervisor.duration_reached,
    )
    return end


def _asked_to_end(supervisor: Supervisor) -> int | None:
    """The first signal since the run began that asks us to end."""
    return next((number for number in supervisor.received if number in supervisor.ending), None)


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


def _finish(run: _Run) -> list[str]:
    """Complete the recording of a program that ended; no fault here may cost its exit code.

    Returns:
        Lines for the user.
    """
    document, calibration, launch = run.document, run.calibration, run.launch
    try:
        running = run.collection.stop()
        # What this run left behind is no part of the next.
        launch.strangers.update(stat.pid for stat in running)
        conclusion.conclude(document, run.recording, launch.program, running, launch.supervisor)
        states = [*document.collectors, *run.collection.states()]
        states.append(bench_result.collect(run.recording, launch.options.command, document.started_epoch_ns))
        document.collectors = [*states, calibration.state()]
        # The recording is complete from here on, for somebody may not wait for what follows.
        document.write(run.recording)
        if calibration.may_run_after():
            launch.say("measuring this machine's peaks again")
            calibration.run_after(stopped=bool(launch.supervisor.passed_on & launch.supervisor.ending))
        document.collectors = [*states, calibration.state()]
        document.write(run.recording)
        folder.tighten(run.recording)
        return conclusion.summary(document)
    except Exception as error:  # noqa: BLE001  the program's exit code matters more than our bookkeeping
        return [f"the recording {shown(run.recording)} is incomplete: {_what_went_wrong(error)}"]


def _what_went_wrong(error: Exception) -> str:
    # A folder that is gone, full or read-only is no fault of ours, and its path stands there already.
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__}: {error}"


def shown(path: Path) -> str:
    """The path as a person in this folder would write it."""
    try:
        return f"./{path.relative_to(Path.cwd())}"
    except (ValueError, OSError):
        return str(path)
