"""Files that verbs write: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from spyreprof.errors import UserError


@contextmanager
def writing(out: Path) -> Iterator[IO[bytes]]:
    """A stream whose content is at `out` when all of it is written, and not before.

    Raises:
        UserError: it cannot be written.
    """
    if str(out) == "-":
        # as many a tool spells stdout; nobody wants a file of that name
        raise UserError("--out - names no file.", "Leave --out away to write to stdout.")
    try:
        if out.exists() and not out.is_file():
            # a device or a pipe is written to; renaming onto it would put a file in its place
            with out.open("wb") as stream:
                yield stream
            return
        with _replacing(out.resolve()) as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.", "Name another file with --out.") from error


@contextmanager
def _replacing(out: Path) -> Iterator[IO[bytes]]:
    """Write beside the target and rename, so that nobody ever reads half a file."""
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
