"""`spyreprof pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="The folder that `record` made.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default NAME.spyreprof.zip here.", metavar="FILE")
    ] = None,
) -> None:
    """Make one file of a recording, to analyse it elsewhere or attach it to a ticket."""
    from spyreprof.recording.pack import pack

    typer.echo(str(pack(recording, out)))
