"""The one door to profiler traces: `read(path)` gives their events as columns."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO

from spyreprof.errors import UserError
from spyreprof.trace.assemble import MemoryPart, assemble, part_facts
from spyreprof.trace.encode import Encoder
from spyreprof.trace.pairs import join
from spyreprof.trace.stream import WINDOW_BYTES, read_events
from spyreprof.trace.table import EventTable
from spyreprof.trace.text import open_text


def read(path: str | os.PathLike[str], *, window_bytes: int = WINDOW_BYTES) -> EventTable:
    """Read a profiler trace, plain or gzipped, whatever its name.

    Args:
        path: where it lies.
        window_bytes: about how much of its text is decoded at once.

    Raises:
        UserError: it cannot be read, is empty, is no trace, or holds no events.
    """
    try:
        with Path(path).open("rb") as stream:
            return read_stream(stream, str(path), window_bytes=window_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str | os.PathLike[str], error: OSError) -> UserError:
    """The sentence for a file that the operating system refuses."""
    return UserError(
        f"The trace {path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
    )


def read_bytes(data: bytes, label: str) -> EventTable:
    """Read a profiler trace from memory; `label` stands for it in sentences.

    Raises:
        UserError: as for `read`.
    """
    return read_stream(io.BytesIO(data), label)


def read_stream(stream: IO[bytes], label: str, *, window_bytes: int = WINDOW_BYTES) -> EventTable:
    """Read a profiler trace from where a stream stands to its end.

    Raises:
        UserError: as for `read`.
        OSError: the stream cannot be read.
    """
    part, encoder = MemoryPart(), Encoder()
    reading = read_events(open_text(stream, label), encoder, part, window_bytes=window_bytes)
    part.facts = part_facts(encoder, reading, part.rows)
    return finish(assemble([part]), label, found=part.facts.found, empty=reading.empty)


def finish(table: EventTable, label: str, *, found: bool, empty: bool) -> EventTable:
    """Join what belongs together, and refuse what holds nothing.

    Raises:
        UserError: there is no event in it.
    """
    if empty:
        raise UserError(f"The trace {label} is empty.", "Record it again; a profiler that is killed writes nothing.")
    if not found:
        raise UserError(
            f"{label} is not a profiler trace: it has no list of trace events.",
            "Pass Chrome trace-event JSON, as torch.profiler's export_chrome_trace writes.",
        )
    table = join(table)
    if not len(table):
        only = ", only metadata" if table.quality.metadata_events else ""
        raise UserError(
            " ".join((f"The trace {label} holds no timed events{only}.", *table.quality.sentences())),
            "Record it again while the program runs steps.",
        )
    return table
