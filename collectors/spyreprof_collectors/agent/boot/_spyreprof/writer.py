"""Shards of one process: rows gather in lists and reach the disk in one append per file and flush.

Files are opened for each flush and closed again: a descriptor kept open would be closed, and its number given to
a socket, by a program that turns itself into a daemon.

The flusher is a bare thread that starts with the first row of a step and ends before every fork, so that a program
that forks finds the threads it would have without us.
"""

from __future__ import annotations

import os
import time

from . import rows
from .threads import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FLUSH_INTERVAL_S = 0.5
# A flush that another thread is busy with is waited for, but never for ever: a signal handler of the program may
# have interrupted that very flush in this thread.
LOCK_PATIENCE_S = 0.2
# Rows held in memory where no flusher thread can be had.
ROWS_WITHOUT_FLUSHER = 256

_ENCODERS: dict[str, Callable[[Any], str]] = {"steps": rows.encode_step}


class Writer:
    """Buffered, append-only JSON-lines shards of this process.

    Nothing here raises: the first failed write ends writing for good.

    Attributes:
        writer_id: `<pid>-<start in hex>`, part of the shard names.
        alive: False once a write failed.
        on_tick: called by the flusher before each flush.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.alive = True
        self.on_tick: Callable[[], None] | None = None
        self._buffers: dict[str, list[Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self.pid = os.getpid()
        self.writer_id = f"{self.pid}-{time.monotonic_ns():x}"
        for queued in self._buffers.values():
            queued.clear()
        self._flushing = allocate_lock()
        self._flusher: _Flusher | None = None
        self._threads_refused = False

    def buffer(self, kind: str) -> list[Any]:
        """Get the list that rows of a kind are appended to; call `wake` after an append."""
        return self._buffers.setdefault(kind, [])

    def add(self, kind: str, row: object) -> None:
        """Queue a row for the next flush."""
        self.buffer(kind).append(row)
        self.wake()

    def add_now(self, kind: str, row: object) -> None:
        """Write a row at once, without waking the flusher."""
        self.buffer(kind).append(row)
        self.flush()

    def wake(self) -> None:
        """See that a flusher runs; drop what is queued once nothing can be written any more."""
        if self._flusher is not None:
            return
        if not self.alive:
            for queued in self._buffers.values():
                queued.clear()
            return
        if self._threads_refused:
            if max(map(len, self._buffers.values()), default=0) >= ROWS_WITHOUT_FLUSHER:
                self.flush()
            return
        flusher = _Flusher(self)
        self._flusher = flusher
        if not flusher.start():
            self._flusher = None
            self._threads_refused = True

    def flush(self) -> None:
        """Append everything queued to its shards; give up writing on the first error."""
        if not self._flushing.acquire(timeout=LOCK_PATIENCE_S):
            return
        try:
            if os.getpid() != self.pid:
                # Forked behind Python's back: this process has no writer id of its own to write under.
                self.alive = False
            for kind, queued in list(self._buffers.items()):
                count = len(queued)
                if not count:
                    continue
                batch = queued[:count]
                del queued[:count]
                if self.alive:
                    encode = _ENCODERS.get(kind, rows.encode)
                    self._append(kind, "".join([encode(row) + "\n" for row in batch]))
        except Exception:
            self.alive = False
        finally:
            self._flushing.release()

    def _append(self, kind: str, text: str) -> None:
        path = f"{self.folder}/shards/{kind}-{self.writer_id}.jsonl"
        data = text.encode("ascii")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(descriptor, data)
        finally:
            os.close(descriptor)
        if written != len(data):
            # The disk is full: the cut line is the last one, which readers expect.
            self.alive = False

    def flusher_ended(self, flusher: _Flusher) -> None:
        """Forget a flusher that ended by itself."""
        if self._flusher is flusher:
            self._flusher = None

    def before_fork(self) -> None:
        """End the flusher thread: it must neither hold a lock in the child nor count as a thread of the program."""
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.stop()

    def after_fork_in_child(self) -> None:
        """Start over under a new writer id; rows queued before the fork are the parent's."""
        self._reset()


class _Flusher:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._stop = allocate_lock()
        self._done = allocate_lock()

    def start(self) -> bool:
        self._stop.acquire()
        self._done.acquire()
        try:
            start_new_thread(self._run, ())
        except Exception:  # the thread limit is reached, or the interpreter is shutting down
            return False
        return True

    def stop(self) -> None:
        self._stop.release()
        self._done.acquire(timeout=LOCK_PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self._stop.acquire(timeout=FLUSH_INTERVAL_S):
                if self._writer.on_tick is not None:
                    self._writer.on_tick()
                self._writer.flush()
                if not self._writer.alive:
                    break
        except Exception:
            self._writer.alive = False
        finally:
            self._writer.flusher_ended(self)
            self._done.release()
