"""How far long work is, on a terminal's stderr; elsewhere nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_EVERY_S = 0.2
# What takes less is over before anybody could read it.
_QUIET_S = 0.5


class Progress:
    """A line that is written over: how much is done, how fast, how long it still takes. A context manager."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._begun = self._told = time.monotonic()
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write("")

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Tell how far the work is."""
        now = time.monotonic()
        if not self._shown or now - self._told < _EVERY_S or now - self._begun < _QUIET_S:
            return
        self._told = now
        rate = done_bytes / (now - self._begun)
        left_s = (total_bytes - done_bytes) / rate if rate else 0.0
        share = done_bytes / total_bytes if total_bytes else 1.0
        self._write(
            f"{self._what}: {share:.0%} of {total_bytes / 1e6:,.0f} MB, {rate / 1e6:,.0f} MB/s, {left_s:.0f} s left"
        )

    def _write(self, line: str) -> None:
        if self._shown and (line or self._width):
            sys.stderr.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
            sys.stderr.flush()
            self._width = len(line)
