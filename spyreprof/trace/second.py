"""The second process that reads a large trace."""

from __future__ import annotations

from pathlib import Path

from spyreprof.errors import UserError
from spyreprof.trace.cache import build_second


def main(arguments: list[str]) -> int:
    """Read a trace from a place on; anything but 0 makes the first process read it all.

    Args:
        arguments: its path, the place as a byte offset, the folder for the columns, and "array" for a bare list.
    """
    path, place, directory, *form = arguments
    try:
        build_second(Path(path), int(place), Path(directory), array_form=bool(form))
    except (UserError, OSError):
        return 1
    return 0
