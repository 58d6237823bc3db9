"""`spyreprof doctor`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spyreprof import registry
from spyreprof.errors import EXIT_NOT_MET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyreprof.registry import Capability


def command(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD...", help="The program to be recorded; it is not run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 when anything is unavailable.")] = False,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter of the program to be recorded; default: ours.", metavar="PATH")
    ] = None,
) -> None:
    """Say what can be captured here, and why the rest cannot."""
    found = registry.capabilities(None if python is None else str(python), program or ())
    typer.echo(_as_json(found) if as_json else _as_text(found, shutil.get_terminal_size((80, 24)).columns))
    if strict and any(capability.state == "unavailable" for capability in found):
        sys.exit(EXIT_NOT_MET)


def _as_json(found: Sequence[Capability]) -> str:
    capabilities = [
        {
            "name": capability.name,
            "state": capability.state,
            "reason": capability.reason,
            "remedy": capability.remedy,
        }
        for capability in found
    ]
    return json.dumps({"schema_version": 1, "capabilities": capabilities}, indent=1)


def _as_text(found: Sequence[Capability], width: int) -> str:
    name_width = max(len(capability.name) for capability in found) + 2
    state_width = len("unavailable") + 2
    indent = " " * (name_width + state_width)
    lines: list[str] = []
    for capability in found:
        head = capability.name.ljust(name_width) + capability.state.ljust(state_width)
        text = capability.reason
        if capability.remedy is not None and capability.state != "ok":
            text += f". {capability.remedy}"
        lines += textwrap.wrap(
            text,
            width=max(width, name_width + state_width + 20),
            initial_indent=head,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
