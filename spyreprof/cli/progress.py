"""How far long work is, and what it has found so far, on a terminal's stderr; elsewhere nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from spyreprof.units import format_share

if TYPE_CHECKING:
    from spyreprof.report.redact import Redactor
    from spyreprof.trace.first_results import FirstLook, FirstResults

_EVERY_S = 0.2
# What takes less is over before anybody could read it.
_QUIET_S = 0.5
# Of more traces than this, the first ones are told of before the report.
_TRACES_TOLD = 4
_CATEGORIES_TOLD = 4
_NARROW_CELLS = 80


class Progress:
    """A line that is written over: how much is done, how fast, how long it still takes. A context manager.

    What was found in a file that took some time stays on the screen, above that line.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._begun = self._told = time.monotonic()
        self._width = 0
        self._look: FirstLook | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write("")

    def watch(self) -> FirstLook | None:
        """What is to look at traces while they are read; None where nobody would see it."""
        if self._shown and self._look is None:
            from spyreprof.trace.first_results import FirstLook

            self._look = FirstLook(self._found)
        return self._look

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Tell how far the work is."""
        now = time.monotonic()
        if not self._shown or now - self._told < _EVERY_S or now - self._begun < _QUIET_S:
            return
        self._told = now
        rate = done_bytes / (now - self._begun)
        left_s = (total_bytes - done_bytes) / rate if rate else 0.0
        share = done_bytes / total_bytes if total_bytes else 1.0
        line = f"{self._what}: {share:.0%} of {total_bytes / 1e6:,.0f} MB, {rate / 1e6:,.0f} MB/s, {left_s:.0f} s left"
        so_far = self._look.now() if self._look is not None else None
        if so_far is not None:
            dropped = sum(so_far.dropped.values())
            line += f"; {so_far.events_read:,} events, {dropped:,} dropped"
            if so_far.phases:
                line += f"; of steps {_phases(so_far)}"
        self._write(line)

    def _found(self, results: FirstResults) -> None:
        """Leave what was found in a trace on the screen."""
        if results.trace > _TRACES_TOLD or time.monotonic() - self._begun < _QUIET_S:
            return
        self._write("")
        for line in _first_lines(results):
            sys.stderr.write(line + "\n")
        self._write("Finding faults and adding up times")

    def _write(self, line: str) -> None:
        if self._shown and (line or self._width):
            # A line that wraps cannot be written over.
            line = line[: _cells() - 1]
            sys.stderr.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
            sys.stderr.flush()
            self._width = len(line)


def _cells() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _NARROW_CELLS
    except (OSError, ValueError):
        return _NARROW_CELLS


def _first_lines(results: FirstResults) -> Iterator[str]:
    # Texts of a trace pass the same door as in a report.
    from spyreprof.report.redact import Redactor

    redactor = Redactor()
    counts = [f"{results.events_read:,} events read", f"{results.events_kept:,} kept"]
    others = (
        (results.metadata_events, "names of processes and threads"),
        (results.paired, "begins joined with their ends"),
    )
    counts += [f"{number:,} {what}" for number, what in others if number]
    counts += [_counted(results.repaired, "repaired", redactor), _counted(results.dropped, "dropped", redactor)]
    yield f"Trace {results.trace}: {', '.join(counts)}"
    if results.phases:
        yield f"  steps' time on the host: {_phases(results)}"
    kept = max(sum(events for _, events in results.categories), 1)
    top = [
        f"{'none' if name is None else redactor.event_name('category', name)} {format_share(events / kept)}"
        for name, events in results.categories[:_CATEGORIES_TOLD]
    ]
    yield f"  events by category: {', '.join(top)}{', ...' if len(results.categories) > len(top) else ''}"


def _counted(reasons: Mapping[str, int], verb: str, redactor: Redactor) -> str:
    why = "; ".join(f"{redactor.text('sentence', reason)} {number:,}" for reason, number in reasons.items())
    return f"{sum(reasons.values()):,} {verb}" + (f" ({why})" if why else "")


def _phases(results: FirstResults) -> str:
    return ", ".join(f"{name} {format_share(share)}" for name, share in results.phases)
