"""Shards of one process: rows gather in lists and reach the disk in one append per file and flush.

Files are opened for each flush and closed again: a descriptor kept open would be closed, and its number given to
a socket, by a program that turns itself into a daemon.

The flusher is a bare thread that starts with the first row of a step and ends before every fork, so that a program
that forks finds the threads it would have without us.
"""

from __future__ import annotations

import errno
import os
import time
from time import sleep  # taken now: gevent and its like replace it later, by one that runs other code of the program

from . import rows
from .threads import allocate_lock, get_native_id, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A second is promised; the rest is for a busy machine.
FLUSH_INTERVAL_S = 0.25
# A flush that another thread is busy with is waited for, but never for ever: a signal handler of the program may
# have interrupted that very flush in this thread.
LOCK_PATIENCE_S = 0.2
# Rows held in memory where no flusher thread can be had.
ROWS_WITHOUT_FLUSHER = 256
# A program that makes rows faster than the flusher takes them writes them out itself, in the thread that made them.
ROWS_UNTIL_RELIEF = 16_384
# And where that is not possible either, because the flusher is stuck in a write, newer rows are left out.
ROWS_AT_MOST = 131_072
_LOOK_EVERY_ROWS = 1024
# Rows encoded at once: the text of a flush stays a few megabytes.
_ROWS_PER_WRITE = 16_384
# Of one kind and process: two million steps, about half a day of them at 50 a second.
MAX_SHARD_BYTES = 256 * 2**20
# The shard that tells of all others has no bound; it holds a few rows a minute.
_UNBOUNDED = "process"

SHARD_FULL = "the shard reached its size limit"
TOO_FAST = "they came faster than they could be written"

_ENCODERS: dict[str, Callable[[Any], str]] = {"steps": rows.encode_step, "collectives": rows.encode_collective}


class Writer:
    """Buffered, append-only JSON-lines shards of this process.

    Nothing here raises: the first failed write ends writing for good.

    Attributes:
        writer_id: `<pid>-<start in hex>`, part of the shard names.
        alive: False once a write failed.
        fault: why it failed.
        left_out: (kind, cause) -> number of rows that were not written though writing works.
        on_tick: called by the flusher before each flush.
        on_left_out: called with a kind and a cause when they come up for the first time. It may queue rows.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.alive = True
        self.fault: str | None = None
        self.on_tick: Callable[[], None] | None = None
        self.on_left_out: Callable[[str, str], None] | None = None
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
        self._until_look = _LOOK_EVERY_ROWS
        self._written_bytes: dict[str, int] = {}
        self.left_out: dict[tuple[str, str], int] = {}

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
        """See that a flusher runs and keeps up; drop what is queued once nothing can be written any more."""
        if self._flusher is not None:
            self._until_look -= 1
            if self._until_look < 0:
                self._until_look = _LOOK_EVERY_ROWS
                self._relieve()
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

    def _relieve(self) -> None:
        """Keep the queues short where rows come faster than the flusher takes them."""
        if max(map(len, self._buffers.values())) < ROWS_UNTIL_RELIEF:
            return
        self.flush(patience_s=0)
        for kind, queued in list(self._buffers.items()):
            excess = len(queued) - ROWS_AT_MOST
            if excess > 0:
                del queued[ROWS_AT_MOST:]
                self._leave_out(kind, TOO_FAST, excess)

    def flush(self, patience_s: float = LOCK_PATIENCE_S) -> None:
        """Append everything queued to its shards; give up writing on the first error.

        Args:
            patience_s: how long a flush of another thread is waited for.
        """
        if not self._flushing.acquire(patience_s > 0, patience_s if patience_s > 0 else -1):
            return
        try:
            if os.getpid() != self.pid:
                # Forked behind Python's back: this process has no writer id of its own to write under.
                self.alive = False
            for kind, queued in list(self._buffers.items()):
                self._flush_kind(kind, queued)
        except Exception as error:
            self.fail(error)
        finally:
            self._flushing.release()

    def _flush_kind(self, kind: str, queued: list[Any]) -> None:
        encode = _ENCODERS.get(kind, rows.encode)
        # Only what is there now: others go on adding.
        left = len(queued)
        while left > 0:
            batch = queued[: min(left, _ROWS_PER_WRITE)]
            del queued[: len(batch)]
            left -= len(batch)
            if not self.alive:
                continue
            if kind != _UNBOUNDED and self._written_bytes.get(kind, 0) >= MAX_SHARD_BYTES:
                self._leave_out(kind, SHARD_FULL, len(batch))
                continue
            self._append(kind, "".join([encode(row) + "\n" for row in batch]))

    def _leave_out(self, kind: str, cause: str, count: int) -> None:
        known = self.left_out.get((kind, cause), 0)
        self.left_out[kind, cause] = known + count
        if not known and self.on_left_out is not None:
            self.on_left_out(kind, cause)

    def fail(self, error: BaseException) -> None:
        """End writing for good."""
        if self.fault is None:
            self.fault = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
        self.alive = False

    def last_words(self, kind: str, *last: dict[str, object]) -> None:
        """Write rows where writing has ended: the disk may have room again, or room for two lines.

        The line before them may be cut, so they begin with a line end.
        """
        try:
            if os.getpid() == self.pid:
                self._append(kind, "\n" + "".join([rows.encode(row) + "\n" for row in last]))
        except Exception:
            self.alive = False

    def _append(self, kind: str, text: str) -> None:
        path = f"{self.folder}/shards/{kind}-{self.writer_id}.jsonl"
        data = text.encode("ascii")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(descriptor, data)
        finally:
            os.close(descriptor)
        self._written_bytes[kind] = self._written_bytes.get(kind, 0) + written
        if written != len(data):
            # The cut line is the last one, which readers expect.
            self.fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def knows(self, flusher: _Flusher) -> bool:
        """Whether this is the flusher that a fork will end."""
        return self._flusher is flusher

    def flusher_ended(self, flusher: _Flusher) -> None:
        """Forget a flusher that ended by itself."""
        if self._flusher is flusher:
            self._flusher = None

    def before_fork(self) -> None:
        """End the flusher thread: it must neither hold a lock in the child nor count as a thread of the program.

        What it had yet to write is written now: without a next row it would not start again.
        """
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.stop()
            self.flush()

    def after_fork_in_child(self) -> None:
        """Start over under a new writer id; rows queued before the fork are the parent's."""
        self._reset()


class _Flusher:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._stop = allocate_lock()
        self._done = allocate_lock()
        self._native_id = 0

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
        if self._done.acquire(timeout=LOCK_PATIENCE_S):
            # The kernel counts it a moment longer, and so would Python 3.12 when it warns of a fork beside threads.
            deadline_ns = time.monotonic_ns() + int(LOCK_PATIENCE_S * 1e9)
            while os.path.exists(f"/proc/self/task/{self._native_id}") and time.monotonic_ns() < deadline_ns:
                sleep(0.0002)

    def _run(self) -> None:
        self._native_id = get_native_id()
        try:
            while not self._stop.acquire(timeout=FLUSH_INTERVAL_S):
                if self._writer.on_tick is not None:
                    self._writer.on_tick()
                self._writer.flush()
                # Two threads may have started one each: the one that nobody knows of would stay when the program forks.
                if not self._writer.alive or not self._writer.knows(self):
                    break
        except Exception as error:
            self._writer.fail(error)
        finally:
            self._writer.flusher_ended(self)
            self._done.release()
