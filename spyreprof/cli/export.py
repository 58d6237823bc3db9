"""`spyreprof export`."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spyreprof.cli.writing import writing
from spyreprof.errors import UserError

if TYPE_CHECKING:
    from spyreprof.trace.export import Mark, Part

Write = Callable[[Callable[[bytes], object]], None]

_WHAT = "Give --perfetto for all of it, or --event ROW for one event."


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="A trace (of torch.profiler, or other Chrome trace-event JSON), or a recording.",
        ),
    ],
    perfetto: Annotated[
        bool,
        typer.Option(
            "--perfetto",
            help="JSON for ui.perfetto.dev: all events, and as further tracks engine steps by phase, idle devices, "
            "profiler windows, named phases and requests.",
        ),
    ] = False,
    event: Annotated[
        int | None,
        typer.Option(
            "--event", help="Print one event of a trace as its file has it; `row` in an export.", metavar="ROW"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write to this file instead of stdout; compressed where its name ends in .gz.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Write a trace or a recording for other tools.

    Names of your program are in it: unlike a report it is not redacted.
    """
    if perfetto == (event is not None):
        raise UserError("Exactly one thing is exported at a time.", _WHAT)
    write = _event(path, event) if event is not None else _perfetto(path)
    if out is None:
        if sys.stdout is None:
            raise UserError("The output is closed.", "Give it somewhere to go, or name a file with --out.")
        write(sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
        return
    with writing(out) as stream:
        if out.suffix == ".gz":
            # Neither name nor time inside: the same trace gives the same file.
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=6, mtime=0) as packed:
                write(packed.write)
        else:
            write(stream.write)
    sys.stderr.write(f"Wrote {out}.\n")


def _perfetto(path: Path) -> Write:
    from spyreprof.inputs import InputKind, identify
    from spyreprof.trace.export import export_trace

    kind = identify(path)
    parts: Sequence[Part]
    marks: Sequence[Mark]
    if kind is InputKind.TRACE:
        parts, marks = _of_trace(path)
    elif kind in (InputKind.RECORDING, InputKind.PACKED_RECORDING):
        parts, marks = _of_recording(path)
    else:
        raise UserError(f"{path} is {kind.value}: it holds nothing to export.", "Give a trace or a recording.")
    return lambda write: export_trace(parts, marks, write)


def _of_trace(path: Path) -> tuple[tuple[Part, ...], list[Mark]]:
    from spyreprof.trace.export import Part
    from spyreprof.trace.own_tracks import marks_of
    from spyreprof.trace.reader import read

    table = read(path)
    for sentence in table.quality.sentences():
        sys.stderr.write(sentence + "\n")
    return (Part(lambda: table),), marks_of(table)


def _of_recording(path: Path) -> tuple[tuple[Part, ...], tuple[Mark, ...]]:
    from spyreprof.recording.exported import exported
    from spyreprof.recording.store import open_recording

    found = exported(open_recording(path))
    for sentence in found.notes:
        sys.stderr.write(sentence + "\n")
    if not found.parts and not found.marks:
        raise UserError(
            f"{path} holds nothing that takes time: no trace, step or request.", "Record a program that runs steps."
        )
    return found.parts, found.marks


def _event(path: Path, row: int) -> Write:
    from spyreprof.inputs import InputKind, identify
    from spyreprof.recording.import_cache import entry_for
    from spyreprof.recording.imported_files import events_name
    from spyreprof.trace.raw import event_windows, raw_event, stored_windows

    kind = identify(path)
    if kind is not InputKind.TRACE:
        raise UserError(
            f"{path} is {kind.value}; events are numbered within one trace file.",
            "Name the file, such as one in the folder traces of a recording.",
        )
    # Who asks for an event has mostly looked at a report before.
    seen_before = entry_for([path])
    windows = stored_windows(seen_before.path / events_name(1)) if seen_before.complete else None
    text = _printable(raw_event(path, row, windows or event_windows(path)))

    def write(into: Callable[[bytes], object]) -> None:
        into(text.encode() + b"\n")

    return write


def _printable(text: str) -> str:
    """JSON in which every character that a terminal would obey is spelled out, and which is still the same JSON."""
    from spyreprof.report.visible import visible

    lines = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs().split("\n")
    return "\n".join(line if visible(line) == line else "".join(map(_spelled, line)) for line in lines)


def _spelled(character: str) -> str:
    from spyreprof.report.visible import visible

    if visible(character) == character:
        return character
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
