"""`spyreprof attach`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from spyreprof import registry
from spyreprof.cli.record import LONGEST_DURATION_S
from spyreprof.errors import UserError


def command(
    pid: Annotated[
        int | None,
        typer.Option(help="Process to watch: its use of processors and its Python stacks.", metavar="PID", min=1),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Prometheus page to poll.", metavar="URL")] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Stop after this many seconds; default: at Ctrl-C.", metavar="S", min=0.0),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Recording folder to make; default ./attach-TIME.spyreprof.", metavar="DIR"),
    ] = None,
    py_spy_rate: Annotated[
        int, typer.Option(help="Looks at the stacks per second and process.", metavar="HZ", min=1, max=200)
    ] = 50,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing of our own.")] = False,
) -> None:
    """Watch a program that runs already, without stopping or changing it."""
    if duration is not None and not duration <= LONGEST_DURATION_S:
        raise UserError(f"--duration {duration} is no time to wait.", "Give seconds, at most a year.")
    code = registry.attach(pid=pid, url=url, duration_s=duration, out=out, py_spy_rate_hz=py_spy_rate, quiet=quiet)
    sys.exit(code)
