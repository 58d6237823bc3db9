"""`spyreprof hardware`."""

from __future__ import annotations

import shutil
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from spyreprof.errors import UserError
from spyreprof.units import format_bytes, format_rate

if TYPE_CHECKING:
    from spyreprof.hardware.profile import HardwareProfile, Value
    from spyreprof.report.page import Page


class Action(str, Enum):
    """What to do with the hardware files."""

    LIST = "list"
    SHOW = "show"


def command(
    action: Annotated[
        Action, typer.Argument(help="list: the built-in files; show: the numbers of one, each with its source.")
    ] = Action.LIST,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A built-in file's name, or the path of one, for show.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Print declared peaks of devices, each with who says so, when, and for what it holds."""
    import msgspec

    from spyreprof.hardware.profile import built_in_names, load_hardware

    if action is Action.LIST and name is not None:
        raise UserError("`hardware list` takes no name.", f"Write `spyreprof hardware show {name}`.")
    if action is Action.SHOW and name is None:
        raise UserError("`hardware show` needs a name.", f"Known are {', '.join(built_in_names())}.")
    names = built_in_names() if name is None else (name,)
    profiles = tuple(load_hardware(each) for each in names)
    if as_json:
        document = profiles if action is Action.LIST else profiles[0]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
        return
    page = _page()
    for profile in profiles:
        if action is Action.LIST:
            page.labelled(profile.name, profile.title)
        else:
            _draw(page, profile)
    sys.stdout.write(page.render())


def _page() -> Page:
    from spyreprof.cli.presenting import shows_unicode
    from spyreprof.report.page import Page

    return Page(shutil.get_terminal_size((80, 24)).columns, ascii_only=not shows_unicode())


def _draw(page: Page, profile: HardwareProfile) -> None:
    page.labelled(profile.name, profile.title)
    if profile.note:
        page.labelled("", profile.note)
    for field, value in profile.values():
        page.blank()
        page.labelled(field, _spell(value), label_width=34)
        page.paragraph(f"{value.kind}, {value.date}: {value.source}", indent=2)
        page.paragraph(f"Holds for: {value.condition}", indent=2)


def _spell(value: Value) -> str:
    if value.unit == "bytes":
        return format_bytes(value.value)
    rates = {"flop/s": "FLOP/s", "bytes/s": "B/s"}
    if value.unit in rates:
        return format_rate(value.value, rates[value.unit])
    return f"{value.value:g} {value.unit}"
