"""The one place that knows the built-in collectors and analyzers.

Everything here imports lazily: `record` must start with the standard library and Typer alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction
    from pathlib import Path

    from spyreprof.findings import Diagnosis
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof.targets import Targets
    from spyreprof.trace.first_results import FirstLook
    from spyreprof_collectors.capabilities import Capability as Capability  # noqa: PLC0414  re-exported for doctor


def record(  # noqa: PLR0913 - the options of the verb
    command: Sequence[str],
    *,
    out: Path | None = None,
    window_steps: int | None = 4,
    metrics_url: str | None = None,
    duration_s: float | None = None,
    calibrate: bool = True,
    quiet: bool = False,
    repeat: int = 1,
    py_spy_rate_hz: int | None = None,
) -> int:
    """Run a program under the recorder; the value is the exit code to leave with.

    `window_steps` None opens no profiler window; `duration_s` None waits for the program's own end.
    `repeat` runs it that many times into one recording. `py_spy_rate_hz` None samples no stacks.
    """
    from spyreprof_collectors.launcher import RecordOptions
    from spyreprof_collectors.launcher import record as run

    return run(
        RecordOptions(
            tuple(command), out, window_steps, metrics_url, duration_s, calibrate, quiet, repeat, py_spy_rate_hz
        )
    )


def attach(
    *,
    pid: int | None = None,
    url: str | None = None,
    duration_s: float | None = None,
    out: Path | None = None,
    py_spy_rate_hz: int = 50,
    quiet: bool = False,
) -> int:
    """Watch a process, a metrics page, or both, from outside; the value is the exit code to leave with."""
    from spyreprof_collectors.attach import AttachOptions
    from spyreprof_collectors.attach import attach as run

    return run(AttachOptions(pid, url, duration_s, out, py_spy_rate_hz, quiet))


def import_files(
    paths: Sequence[Path],
    out: Path,
    progress: Callable[[int, int], None] | None = None,
    watch: FirstLook | None = None,
) -> None:
    """Make a recording of files that somebody already has.

    `progress` is told bytes read and their total, `watch` sees what is read of traces.
    """
    from spyreprof.recording.imported import import_files

    import_files(paths, out, progress=progress, watch=watch)


def capabilities(python: str | None = None, command: Sequence[str] = ()) -> list[Capability]:
    """What can be captured on this machine; `python` names the interpreter of the program, `command` the program."""
    from spyreprof_collectors.capabilities import capabilities

    return capabilities(python, command)


def diagnose(inputs: AnalysisInputs, targets: Targets | None = None) -> Diagnosis:
    """Run every analyzer over one recording."""
    from spyreprof.rules import load_rules
    from spyreprof.targets import Targets
    from spyreprof_analyzers.diagnose import diagnose

    return diagnose(inputs, load_rules(), targets or Targets())


def targets(
    *, itl_p99_s: float | None = None, ttft_p99_s: float | None = None, price_per_hour: Fraction | None = None
) -> Targets:
    """Latency targets of the user, in seconds, and the user's price of an hour; None where there is none."""
    from spyreprof.targets import Targets

    return Targets(itl_p99_s=itl_p99_s, ttft_p99_s=ttft_p99_s, price_per_hour=price_per_hour)


def rules() -> RuleBook:
    """The built-in rules."""
    from spyreprof.rules import load_rules

    return load_rules()
