"""`spyreprof diff`."""

from __future__ import annotations

import shutil
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spyreprof.cli.presenting import load_report, shows_unicode, wants_color
from spyreprof.cli.writing import writing
from spyreprof.errors import UserError

if TYPE_CHECKING:
    from spyreprof.report.diff.model import Diff


class Form(str, Enum):
    """How a comparison is written."""

    TERMINAL = "terminal"
    MD = "md"
    JSON = "json"


_INPUT = "a recording (folder or packed), a report.json, or a trace of torch.profiler"


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help=f"The run before: {_INPUT}.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The run after, the same way.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    form: Annotated[Form | None, typer.Option("--format", help="terminal (default), md or json.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.", metavar="FILE")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Leave nothing out of the terminal form.")] = False,
    width: Annotated[
        int | None, typer.Option(help="Cells per line; default: the terminal's.", min=20, max=1000)
    ] = None,
) -> None:
    """Say whether B is faster than A, where the time changed, and whether the two can be compared at all.

    What must be the same and is not, or is unknown, withholds the verdict. Settings and versions that differ are what
    is tested. Recordings made with `record --repeat N` bring their own noise floor.
    """
    if as_json and form not in {None, Form.JSON}:
        raise UserError(f"--json and --format {form.value if form else ''} contradict each other.", "Give one of them.")
    if out is None and sys.stdout is None:
        raise UserError("The output is closed.", "Give it somewhere to go, or name a file with --out.")
    diff = _compare(a, b)
    form = Form.JSON if as_json else form or Form.TERMINAL
    if out is None:
        sys.stdout.buffer.write(_drawn(diff, form, show_all=show_all, width=width, to_terminal=True))
        sys.stdout.buffer.flush()
        return
    with writing(out) as stream:
        stream.write(_drawn(diff, form, show_all=show_all, width=width, to_terminal=False))
    sys.stderr.write(f"Wrote {out}.\n")


def _compare(a: Path, b: Path) -> Diff:
    from spyreprof.inputs import InputKind, identify
    from spyreprof.report.diff.compare import compare
    from spyreprof.report.redact import Redactor

    # Equal pseudonyms stand for equal texts where one redactor makes both reports, and only there.
    recorded = all(identify(path) in {InputKind.RECORDING, InputKind.PACKED_RECORDING} for path in (a, b))
    redactor = Redactor() if recorded else None
    reports = [load_report([path], None, redactor=redactor) for path in (a, b)]
    return compare(*reports, shared_redactor=recorded)


def _drawn(diff: Diff, form: Form, *, show_all: bool, width: int | None, to_terminal: bool) -> bytes:
    if form is Form.JSON:
        from spyreprof.report.diff.compare import dump

        return dump(diff)
    if form is Form.MD:
        from spyreprof.report.diff.markdown import markdown

        return markdown(diff).encode()
    from spyreprof.report.diff.terminal import render

    text = render(
        diff,
        width or shutil.get_terminal_size((80, 24)).columns,
        show_all=show_all,
        color=to_terminal and wants_color(),
        ascii_only=to_terminal and not shows_unicode(),
    )
    encoding = (sys.stdout.encoding if to_terminal and sys.stdout is not None else None) or "utf-8"
    return text.encode(encoding, "replace")
