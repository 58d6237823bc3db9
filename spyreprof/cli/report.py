"""`spyreprof report`."""

from __future__ import annotations

import re
import shlex
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spyreprof import registry
from spyreprof.cli.presenting import Format, load_report, present
from spyreprof.errors import EXIT_NOT_MET, UserError

if TYPE_CHECKING:
    from spyreprof.report.model import Report
    from spyreprof.targets import Targets

_SLO_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SLO_NAMES = ("itl_p99", "ttft_p99")
_SLO_TERM = re.compile(r"(?P<name>\w+)=(?P<number>\d+(\.\d+)?)(?P<unit>us|ms|s)", re.ASCII)
# Digits alone: a power of ten would let a single word ask for a number of a billion digits.
_PRICE = re.compile(r"\d{1,7}(\.\d{1,9})?", re.ASCII)
_MOST_AN_HOUR = 1_000_000
_SLO_EXAMPLE = "Write for example --slo itl_p99=50ms,ttft_p99=2s."


def command(  # noqa: PLR0913, PLR0917 - Typer wants one parameter for each option
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT",
            help="A recording (folder or packed), a report.json, or traces and call stacks, plain or gzipped: of "
            "torch.profiler, one for each rank, or any other Chrome trace-event JSON; speedscope or collapsed stacks.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    form: Annotated[Format | None, typer.Option("--format", help="terminal (default) or json.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.", metavar="FILE")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Leave nothing out of the terminal form.")] = False,
    width: Annotated[
        int | None, typer.Option(help="Cells per line; default: the terminal's.", min=20, max=1000)
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(help="Latency targets, e.g. itl_p99=50ms,ttft_p99=2s.", metavar="TARGETS"),
    ] = None,
    price_per_hour: Annotated[
        str | None,
        typer.Option(
            help="What an hour of everything that was recorded costs, e.g. 2.50: adds the cost of tokens and requests.",
            metavar="PRICE",
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read traces anew, and keep nothing of them for a second look.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 3 when the recording was cut off, a part of it (trace, result file, calibration, rows) is "
            "missing or unreadable, or the verdict is undetermined.",
        ),
    ] = False,
) -> None:
    """Say where the time went, what binds, and what to change."""
    if as_json and form is Format.TERMINAL:
        raise UserError("--json and --format terminal contradict each other.", "Give one of them.")
    targets = _targets(slo, price_per_hour) if slo is not None or price_per_hour is not None else None
    report = load_report(inputs, targets, keep=not no_cache)
    form = Format.JSON if as_json else form or Format.TERMINAL
    again = _again(inputs, slo, price_per_hour, no_cache=no_cache)
    present(report, form, out, show_all=show_all, width=width, again=again)
    if strict:
        _hold_to(report)


def _again(inputs: list[Path], slo: str | None, price_per_hour: str | None, *, no_cache: bool) -> str:
    """The command that was given, without what says how it is shown."""
    valued = (("--slo", slo), ("--price-per-hour", price_per_hour))
    options = [word for name, value in valued if value is not None for word in (name, value)]
    options += ["--no-cache"] if no_cache else []
    named = [f"./{path}" if str(path).startswith("-") else str(path) for path in inputs]
    return shlex.join(["spyreprof", "report", *named, *options])


def _hold_to(report: Report) -> None:
    from spyreprof.report.shortfall import shortfalls

    lacking = shortfalls(report)
    if lacking:
        sys.stderr.write("".join(f"Strict: {sentence}\n" for sentence in lacking))
        raise typer.Exit(EXIT_NOT_MET)


def _price(text: str) -> Fraction:
    """An exact price; a number that is none, or that no hour of a computer costs, is the user's mistake."""
    match = _PRICE.fullmatch(text.strip())
    price = Fraction(text.strip()) if match is not None else Fraction(0)
    if not 0 < price <= _MOST_AN_HOUR:
        raise UserError(
            f"--price-per-hour {text!r} is no price: it must be a number above 0 and at most {_MOST_AN_HOUR:,}.",
            "Write for example --price-per-hour 2.50, in any currency.",
        )
    return price


def _targets(slo: str | None, price_per_hour: str | None) -> Targets:
    seconds: dict[str, float] = {}
    for term in slo.split(",") if slo is not None else ():
        match = _SLO_TERM.fullmatch(term.strip())
        if match is None:
            raise UserError(f"--slo {term!r} is not understood.", _SLO_EXAMPLE)
        name = match["name"]
        if name not in _SLO_NAMES:
            raise UserError(f"--slo knows no {name!r}; it knows {' and '.join(_SLO_NAMES)}.", _SLO_EXAMPLE)
        if name in seconds:
            raise UserError(f"--slo names {name} twice.", _SLO_EXAMPLE)
        seconds[name] = float(match["number"]) * _SLO_UNITS[match["unit"]]
        if seconds[name] == 0:
            raise UserError(f"--slo {name} must be more than 0.", _SLO_EXAMPLE)
    return registry.targets(
        itl_p99_s=seconds.get("itl_p99"),
        ttft_p99_s=seconds.get("ttft_p99"),
        price_per_hour=_price(price_per_hour) if price_per_hour is not None else None,
    )
