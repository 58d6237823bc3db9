"""Requests that the program marks, or that a hook finds: a row each when they end."""

from __future__ import annotations

from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from .install import Agent

    Row = dict[str, Any]

# A program that never says that a request finished must not fill the memory with them.
MAX_OPEN = 65_536


class Requests:
    """The requests of this process.

    Attributes:
        marked: the program marks its requests itself, so that no hook need guess them.
    """

    def __init__(self, agent: Agent) -> None:
        self.marked = False
        self._finished = agent.writer.buffer("requests")
        self._wake = agent.writer.wake
        self._open: dict[int, Row] = {}
        agent.process.at_end.append(self._program_ends)
        # Those that are open in a forked child are its parent's.
        agent.process.after_fork_in_child.append(self._open.clear)

    def begin(self, prompt_tokens: int | None, cached_tokens: int | None = None, max_tokens: int | None = None) -> Row:
        """A request arrived; its row goes to the other methods."""
        row: Row = {
            "k": "request",
            "t0": monotonic_ns(),
            "ts": None,
            "tf": None,
            "t1": None,
            "prompt": prompt_tokens,
            "cached": cached_tokens,
            "output": None,
            "reasoning": None,
            "reason": None,
            "max_tokens": max_tokens,
            "preemptions": None,
        }
        if len(self._open) >= MAX_OPEN:
            # The oldest, without an end. Another thread may have taken it already.
            oldest = self._open.pop(next(iter(self._open), 0), None)
            if oldest is not None:
                self._write(oldest)
        self._open[id(row)] = row
        return row

    def mark(self, row: Row, moment: Literal["ts", "tf"]) -> None:
        """Set the time of a moment, the first time."""
        if row[moment] is None:
            row[moment] = monotonic_ns()

    def end(self, row: Row, **known: int | str | None) -> None:
        """A request ended, with what is known of it; only the first end counts."""
        if self._open.pop(id(row), None) is not None:
            row["t1"] = monotonic_ns()
            row.update((key, value) for key, value in known.items() if value is not None)
            self._write(row)

    def _write(self, row: Row) -> None:
        self._finished.append(row)
        self._wake()

    def _program_ends(self) -> None:
        self._finished.extend(list(self._open.values()))
        self._open.clear()
