"""Traces that come in pieces, for tests of where windows end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spyreprof.trace.assemble import MemoryPart, assemble, part_facts
from spyreprof.trace.encode import Encoder
from spyreprof.trace.stream import read_events
from spyreprof.trace.table import EventTable


class Pieces:
    """A text that comes in pieces which end where a test wants them to."""

    truncated = False
    replaced = 0

    def __init__(self, data: bytes, borders: Iterable[int]) -> None:
        ends = [*(border for border in borders if 0 < border < len(data)), len(data)]
        self._pieces = [data[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    def read(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def read_pieces(data: bytes, borders: Iterable[int]) -> EventTable:
    encoder, part = Encoder(), MemoryPart()
    reading = read_events(Pieces(data, borders), encoder, part)
    part.facts = part_facts(encoder, reading, part.rows)
    return assemble([part])


def outcome(table: EventTable) -> dict[str, Any]:
    """All that a fault may have changed."""
    quality = table.quality
    return {
        "events": sorted(
            (int(table.row[i]), table.name(i), int(table.ts_ns[i]), int(table.dur_ns[i])) for i in range(len(table))
        ),
        "base": table.metadata.base_time_ns,
        "read": quality.events_read,
        "kept": quality.events_kept,
        "metadata": quality.metadata_events,
        "dropped": quality.dropped,
        "repaired": quality.repaired,
        "cut": quality.truncated_at_byte,
    }
