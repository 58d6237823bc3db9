"""What `report` and `demo` share: from an input to a report, and from a report to the person or file that wants it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from spyreprof import registry
from spyreprof.cli.progress import Progress
from spyreprof.cli.writing import writing
from spyreprof.errors import UserError

if TYPE_CHECKING:
    from spyreprof.recording.repeats import RepeatedRun
    from spyreprof.recording.store import Recording
    from spyreprof.report.model import Report
    from spyreprof.report.redact import Redactor
    from spyreprof.targets import Targets


class Format(str, Enum):
    """How a report is written."""

    TERMINAL = "terminal"
    JSON = "json"


def load_report(
    paths: Sequence[Path], targets: Targets | None, *, keep: bool = True, redactor: Redactor | None = None
) -> Report:
    """Read a report.json, or diagnose a recording, or what other files hold together.

    Args:
        paths: a recording folder, a packed recording or a report.json; or any number of other files.
        targets: the user's latency targets and price; None where there are none.
        keep: what is made of other files may be kept for a second look.
        redactor: as in `build_report`; a report or other files have their own.

    Raises:
        UserError: nothing readable is there, the files do not go together, or targets are given for a report that was
            already made.
    """
    from spyreprof.inputs import InputKind, identify, not_read

    kinds = [identify(path) for path in paths]
    alone = (InputKind.RECORDING, InputKind.PACKED_RECORDING, InputKind.REPORT, InputKind.OTHER_FOLDER)
    if len(paths) > 1 and any(kind in alone for kind in kinds):
        raise UserError(
            "A recording or a report is read by itself, not together with other files.",
            "Run `spyreprof report` once for each.",
        )
    if kinds[0] is InputKind.OTHER_FOLDER:
        # Opening it as a recording would look at every file in it first.
        raise not_read(paths[0], kinds[0])
    if kinds[0] is InputKind.REPORT:
        return _ready_report(paths[0], targets)
    if kinds[0] in alone or kinds[0] is InputKind.OTHER_ZIP:
        return report_on(paths[0], targets, redactor)
    return _report_on_files(paths, targets, keep=keep)


def _ready_report(path: Path, targets: Targets | None) -> Report:
    from spyreprof.report.read import read_report

    report = read_report(path)
    if targets is not None:
        raise UserError(
            "A report that was already made cannot be judged against other latency targets, nor at another price.",
            "Give the recording together with --slo or --price-per-hour.",
        )
    return report


def _report_on_files(paths: Sequence[Path], targets: Targets | None, *, keep: bool) -> Report:
    """Make a recording of the files, unless that was done before, and report on it."""
    from spyreprof.recording.import_cache import entry_for
    from spyreprof.report.read import read_report

    entry = entry_for(paths, keep=keep)
    name = f"report-{_key_of(targets)}.json"
    stored = entry.stored(name)
    if stored is not None:
        try:
            report = read_report(stored)
        except UserError:
            pass  # made again below
        else:
            entry.touch()
            return report
    if not entry.complete:
        with Progress("Reading") as progress:
            entry.fill(lambda folder: registry.import_files(paths, folder, progress, progress.watch()))
    report = report_on(entry.path, targets)
    from spyreprof.report.writer import dump

    entry.store(name, dump(report))
    return report


def _key_of(targets: Targets | None) -> str:
    # Part of a file name: letters, digits and dots.
    if targets is None:
        return "plain"
    price = str(targets.price_per_hour).replace("/", "-over-")
    return f"{targets.itl_p99_s}-{targets.ttft_p99_s}-{price}"


def report_on(path: Path, targets: Targets | None, redactor: Redactor | None = None) -> Report:
    """Diagnose a recording, folder or packed; of a repeated one every complete run, to show the median.

    Raises:
        UserError: it cannot be read.
    """
    from spyreprof.recording.repeats import open_repeats
    from spyreprof.recording.store import open_recording
    from spyreprof.report.repeats import JudgedRun, report_on_repeats

    repeats = open_repeats(path)
    if repeats is None:
        return _judge(open_recording(path), targets, redactor)
    readable = [run for run in repeats.runs if run.recording is not None]
    if not readable:
        raise UserError(f"No run of {path} can be read.", "Copy the recording again, or record anew.")
    judged = [run for run in readable if run.state == "complete"] or readable[-1:]

    def judge(run: RepeatedRun) -> Report | None:
        return _judge(run.recording, targets, redactor) if run.recording is not None and run in judged else None

    return report_on_repeats([JudgedRun(run.k, run.state, judge(run)) for run in repeats.runs], repeats.of)


def _judge(recording: Recording, targets: Targets | None, redactor: Redactor | None) -> Report:
    from spyreprof.report.build import build_report

    inputs = recording.analysis_inputs()
    return build_report(recording, registry.diagnose(inputs, targets), inputs, redactor)


def present(report: Report, form: Format, out: Path | None, *, show_all: bool, width: int | None, again: str) -> None:
    """Write a report to stdout or to a file.

    Args:
        report: what to write.
        form: JSON is complete and redacted; the terminal form is a view of it.
        out: file to write; None for stdout.
        show_all: nothing left out of the terminal form.
        width: cells per line; None for the width of the terminal, or 80.
        again: the command that makes this report. Its names are the user's own, so that only his terminal shows them.

    Raises:
        UserError: the file cannot be written.
    """
    if out is None and sys.stdout is None:
        raise UserError("The output is closed.", "Give it somewhere to go, or name a file with --out.")
    if form is Format.JSON:
        from spyreprof.report.writer import dump

        content = dump(report)
        if out is None:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return
    else:
        from spyreprof.report.terminal import render

        text = render(
            report,
            width or shutil.get_terminal_size((80, 24)).columns,
            show_all=show_all,
            color=out is None and wants_color(),
            ascii_only=out is None and not shows_unicode(),
            **({"again": again} if out is None and sys.stdout.isatty() else {}),
        )
        if out is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        content = text.encode()
    with writing(out) as stream:
        stream.write(content)
    sys.stderr.write(f"Wrote {out}.\n")


def wants_color() -> bool:
    """Whether stdout is a terminal whose owner wants colours."""
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def shows_unicode() -> bool:
    """Whether stdout can take the signs that a report uses beyond ASCII."""
    try:
        "µ→▏█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
