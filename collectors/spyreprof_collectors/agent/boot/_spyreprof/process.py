"""Rows about the process itself: when it began, what it became, how it ended."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; `signal` would cost every process its imports
import atexit
import os
import sys
import time

from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

KIND = "process"
ANCHOR_INTERVAL_NS = 10_000_000_000
REASON_LENGTH = 200
# Signals whose default action ends no process; 0 only asks whether one is there.
_HARMLESS = frozenset(
    (
        0, _signal.SIGCHLD, _signal.SIGCONT, _signal.SIGURG, _signal.SIGWINCH, _signal.SIGSTOP, _signal.SIGTSTP,
        _signal.SIGTTIN, _signal.SIGTTOU,
    )
)  # fmt: skip

_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


class Process:
    """The process's own shard: opening, clock anchors, hooks, versions, closing.

    Attributes:
        before_closing: called, in order, before what may be the last flush: the process ends, execs, or sends itself a
            signal that it may survive.
        at_end: called after those, except before a signal: for what must not be said of a process that goes on.
        before_fork, after_fork_in_child: called around a fork.
    """

    def __init__(self, writer: Writer, how: str) -> None:
        self.writer = writer
        self.how = how
        self.before_closing: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self.before_fork: list[Callable[[], None]] = []
        self.after_fork_in_child: list[Callable[[], None]] = []
        self._closed = False
        self._signal_told = False
        self._anchored_ns = 0
        self._left_out_told: dict[tuple[str, str], int] = {}
        writer.on_left_out = self._rows_left_out

    def open(self) -> bool:
        """Write the opening row; False when the recording folder cannot be written."""
        self._anchored_ns = time.monotonic_ns()
        self.writer.add_now(
            KIND,
            {
                "k": "open",
                "t": self._anchored_ns,
                "epoch_ns": time.time_ns(),
                "pid": os.getpid(),
                "ppid": os.getppid(),
                "python": sys.version.split()[0],
                "implementation": _IMPLEMENTATIONS.get(sys.implementation.name, sys.implementation.name),
                "executable": sys.executable,
                "how": self.how,
            },
        )
        return self.writer.alive

    def note(self, kind: str, **fields: object) -> None:
        """Write a row of this shard at once."""
        self.writer.add_now(KIND, {"k": kind, "t": time.monotonic_ns(), **fields})

    def hook(self, name: str, state: str, reason: str | None = None) -> None:
        """Say how a hook fared: ok, partial, missing, failed or disabled."""
        self.note("hook", name=name, state=state, reason=reason)

    def hook_failed(self, name: str, error: BaseException) -> None:
        """Say that a hook failed and is off from now on."""
        self.hook(name, "failed", f"{type(error).__name__}: {error}"[:REASON_LENGTH])

    def tick(self) -> None:
        """Write a clock anchor when the last one is old."""
        now_ns = time.monotonic_ns()
        if now_ns - self._anchored_ns >= ANCHOR_INTERVAL_NS:
            self._anchored_ns = now_ns
            self.writer.buffer(KIND).append({"k": "anchor", "t": now_ns, "epoch_ns": time.time_ns()})
            self._tell_left_out()

    def _rows_left_out(self, kind: str, cause: str) -> None:
        self._queue_left_out(kind, cause, "rows from here on are left out")

    def _tell_left_out(self) -> None:
        """Say how many rows were left out, where that has changed."""
        for (kind, cause), count in list(self.writer.left_out.items()):
            if self._left_out_told.get((kind, cause)) != count:
                self._left_out_told[kind, cause] = count
                self._queue_left_out(kind, cause, f"{count} rows left out")

    def _queue_left_out(self, kind: str, cause: str, what: str) -> None:
        # Queued and not written at once: this is also called from within a flush.
        row = {"k": "hook", "t": time.monotonic_ns(), "name": f"{kind}.shard", "state": "partial"}
        self.writer.buffer(KIND).append({**row, "reason": f"{cause}: {what}"})

    def close(self, how: str) -> None:
        """Run what must happen before the end, write the closing row, flush."""
        if self._closed:
            return
        self._closed = True
        self._run([*self.before_closing, *self.at_end])
        # What is still queued may be left out too, and is to be counted.
        self.writer.flush()
        self._tell_left_out()
        self.note("close", how=how)
        if self.writer.fault is not None:
            now_ns = time.monotonic_ns()
            fault = {"k": "hook", "t": now_ns, "name": "shards", "state": "failed", "reason": self.writer.fault}
            self.writer.last_words(KIND, fault, {"k": "close", "t": now_ns, "how": how})

    def hook_into_interpreter(self) -> None:
        """Follow forks, and flush at every end that Python can see."""
        atexit.register(self.close, "atexit")
        os.register_at_fork(before=self._fork_begins, after_in_child=self._forked)
        self._wrap(os, "_exit", self._exits)
        self._wrap(os, "execv", self._execs)
        self._wrap(os, "execve", self._execs)
        self._wrap(os, "abort", self._aborts)
        self._wrap(os, "kill", self._kills)
        self._wrap(os, "killpg", self._kills_group)
        # `signal` takes what it offers from here when it is imported; who has it already, has it under its own name.
        for module in filter(None, (_signal, sys.modules.get("signal"))):
            self._wrap(module, "raise_signal", self._raises_signal)

    def _fork_begins(self) -> None:
        self._run(self.before_fork)
        self._run((self.writer.before_fork,))

    def _forked(self) -> None:
        self.writer.after_fork_in_child()
        self._closed = False
        self._signal_told = False
        self._left_out_told.clear()
        self.how = "fork"
        self._run(self.after_fork_in_child)
        self.open()

    def _exits(self, *_arguments: object, **_keywords: object) -> None:
        self.close("fork_child_exit" if self.how == "fork" else "os._exit")

    def _execs(self, *arguments: Any, **keywords: Any) -> None:
        # os.execvp tries one folder of PATH after another: only a file that is there can replace this process.
        path = arguments[0] if arguments else keywords.get("path")
        if not self._closed and path is not None and os.access(path, os.X_OK):
            self._run([*self.before_closing, *self.at_end])
            self.note("exec")

    def _aborts(self) -> None:
        self.close("abort")

    # Tuples and not sets: what the program passes may have no hash.

    def _kills(self, *arguments: Any) -> None:
        if len(arguments) == 2 and arguments[0] in (0, os.getpid()):
            self._raises_signal(arguments[1])

    def _kills_group(self, *arguments: Any) -> None:
        if len(arguments) == 2 and arguments[0] in (0, os.getpgrp()):
            self._raises_signal(arguments[1])

    def _raises_signal(self, *arguments: Any) -> None:
        # Servers end like this: they clean up after a signal, and raise it again with its default action restored.
        number = arguments[0] if arguments else None
        if not isinstance(number, int) or number in _HARMLESS or number not in _signal.valid_signals():
            return
        handler = _signal.getsignal(number)
        if handler is _signal.SIG_DFL or handler is None:
            self._may_die()

    def _may_die(self) -> None:
        """Write everything out, for nobody can tell here whether the process survives: it may block the signal.

        What is open stays open then, and the end is told of once.
        """
        if self._closed:
            return
        self._run(self.before_closing)
        if self._signal_told:
            self.writer.flush()
        else:
            self._signal_told = True
            self.note("close", how="signal")

    def _run(self, callbacks: Iterable[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                self.hook_failed("process", error)

    def _wrap(self, module: Any, name: str, before: Callable[..., None]) -> None:
        original = getattr(module, name)

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            try:
                before(*arguments, **keywords)
            except Exception as error:
                self.hook_failed(f"{module.__name__}.{name}", error)
            return original(*arguments, **keywords)

        # Found under this module and name, it can be sent to another process, as `executor.submit(os._exit, 1)` does.
        wrapper.__module__ = module.__name__
        wrapper.__name__ = name
        wrapper.__qualname__ = name
        wrapper.__doc__ = original.__doc__
        wrapper.__wrapped__ = original  # type: ignore[attr-defined]
        setattr(module, name, wrapper)
