"""`spyreprof record`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from spyreprof import registry
from spyreprof.errors import UserError
from spyreprof.recording import layout

LONGEST_DURATION_S = 366 * 86_400.0
PY_SPY_RATE_HZ = 50


def command(  # noqa: PLR0913, PLR0917 - Typer wants one parameter for each option
    program: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The program, exactly as without us.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Recording folder to make; default ./NAME-TIME.spyreprof.", metavar="DIR"),
    ] = None,
    profile_window: Annotated[
        str, typer.Option(help="steps=N: profiler windows of at most N steps of each kind, once steady; off: none.")
    ] = "steps=4",
    metrics_url: Annotated[
        str | None, typer.Option(help="Prometheus page to poll; default: found by itself.", metavar="URL")
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="End the program, each run of it, with SIGTERM after this many seconds.", metavar="S", min=0.0
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate/--no-calibrate", help="Measure this machine's peaks before and after."),
    ] = True,
    repeat: Annotated[
        int,
        typer.Option(
            help="Run the program N times, one after the other, into one recording: the spread between the runs is "
            "the noise floor. The first run that does not end with 0 is the last. All runs share stdin.",
            metavar="N",
            min=1,
            max=layout.MAX_RUNS,
        ),
    ] = 1,
    py_spy: Annotated[
        bool,
        typer.Option("--py-spy", help="Sample Python stacks of the processes that run steps, without pausing them."),
    ] = False,
    py_spy_rate: Annotated[
        int | None,
        typer.Option(
            help=f"Looks at the stacks per second and process; default {PY_SPY_RATE_HZ}.",
            metavar="HZ",
            min=1,
            max=200,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing of our own.")] = False,
) -> None:
    """Run a program unchanged and keep a recording of it. Exits as the program does."""
    if duration is not None and not duration <= LONGEST_DURATION_S:
        raise UserError(f"--duration {duration} is no time to wait.", "Give seconds, at most a year.")
    if py_spy_rate is not None and not py_spy:
        raise UserError("--py-spy-rate has no effect without --py-spy.", "Add --py-spy, or leave the rate out.")
    code = registry.record(
        program,
        out=out,
        window_steps=_window_steps(profile_window),
        metrics_url=metrics_url,
        duration_s=duration,
        calibrate=calibrate,
        quiet=quiet,
        repeat=repeat,
        py_spy_rate_hz=(py_spy_rate or PY_SPY_RATE_HZ) if py_spy else None,
    )
    sys.exit(code)


def _window_steps(text: str) -> int | None:
    if text == "off":
        return None
    name, _, number = text.partition("=")
    if name != "steps" or not number.isdigit() or int(number) == 0:
        raise UserError(f"--profile-window {text} is not understood.", "Use steps=N with N of 1 or more, or off.")
    return int(number)
