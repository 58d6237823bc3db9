"""`spyreprof demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import spyreprof
from spyreprof.cli.presenting import Format, present, report_on
from spyreprof.errors import EXIT_OUR_FAILURE, UserError

DEMO = "demo.spyreprof.zip"


def command(
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Leave nothing out.")] = False,
    width: Annotated[
        int | None, typer.Option(help="Cells per line; default: the terminal's.", min=20, max=1000)
    ] = None,
) -> None:
    """Report on a recording that comes with spyreprof; needs no torch and records nothing."""
    path = demo_recording()
    sys.stderr.write("A recording that comes with spyreprof; yours: spyreprof record -- <your command>\n")
    report = report_on(path, None)
    present(
        report,
        Format.JSON if as_json else Format.TERMINAL,
        None,
        show_all=show_all,
        width=width,
        again="spyreprof demo",
    )


def demo_recording() -> Path:
    """Find the demo recording: inside an installed package, or in `samples/` of a checkout.

    Raises:
        UserError: this installation lacks it.
    """
    package = Path(spyreprof.__file__).parent
    for path in (package / DEMO, package.parent / "samples" / DEMO):
        if path.is_file():
            return path
    raise UserError(
        "This installation came without the demo recording.",
        "Install spyreprof again, or make a recording with `spyreprof record`.",
        EXIT_OUR_FAILURE,
    )
