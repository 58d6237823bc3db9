"""`spyreprof import`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from spyreprof import registry
from spyreprof.cli.progress import Progress
from spyreprof.recording import layout


def command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Traces and call stacks, plain or gzipped: of torch.profiler, one for each rank, or any other Chrome "
            "trace-event JSON; speedscope or collapsed stacks.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Recording folder to make; default ./import-TIME.spyreprof.", metavar="DIR"),
    ] = None,
) -> None:
    """Make a recording of traces and stacks that you have, to report on, compare, pack or share like any other."""
    folder = out or Path(f"import-{time.strftime('%Y%m%d-%H%M%S')}{layout.SUFFIX}")
    with Progress("Reading") as progress:
        registry.import_files(files, folder, progress, progress.watch())
    typer.echo(str(folder))
