"""Tells a signal for the launcher alone from one that went to the whole group.

`kill -- -PGID`, systemd and `timeout` signal every process of a group, the program included. Passing such a
signal on would give it to the program twice, and a server takes a second SIGINT for "now, by force".
A siginfo does not tell the two apart, so a silent helper stands in the same process group and notes what it gets.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from spyreprof.units import NS_PER_S

# How long a group's other members may take to get the signal that woke us up.
_PATIENCE_S = 0.02
# A note older than this belongs to a signal that never reached the launcher.
_MAX_AGE_NS = 2 * NS_PER_S
_SAME_SIGNAL_NS = NS_PER_S // 20
_ORPHAN_CHECK_S = 5.0
_NOTE = struct.Struct("<Bq")


@dataclass
class GroupWitness:
    """The helper process, and what it has seen so far."""

    pid: int
    _pipe: int
    gone: bool = False
    _latest: dict[int, int] = field(default_factory=dict)
    _seen: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def start(cls, signals: Iterable[signal.Signals]) -> GroupWitness | None:
        """Fork the helper, with `signals` blocked and before any thread runs; None when it cannot be had."""
        watched = frozenset(signals)
        try:
            read_end, write_end = os.pipe()
            parent = os.getpid()
            pid = os.fork()
        except OSError:
            return None
        if pid == 0:
            _watch(write_end, watched, parent)
        os.close(write_end)
        os.set_blocking(read_end, False)
        return cls(pid, read_end)

    def saw(self, number: int) -> bool | None:
        """Whether the group got this signal too; None when the helper is gone and nobody can tell.

        A copy that follows the group's at once is taken for the same signal: `timeout` sends both, and without us
        the program would have got the two as one.
        """
        deadline_ns = time.monotonic_ns() + int(_PATIENCE_S * NS_PER_S)
        while True:
            now_ns = time.monotonic_ns()
            self._seen = [note for note in self._seen if now_ns - note[1] < _MAX_AGE_NS]
            for note in self._seen:
                if note[0] == number:
                    self._seen.remove(note)
                    self._latest[number] = now_ns
                    return True
            if now_ns - self._latest.get(number, -_SAME_SIGNAL_NS) < _SAME_SIGNAL_NS:
                return True
            if self.gone:
                return None
            ready, _, _ = select.select([self._pipe], [], [], max(deadline_ns - now_ns, 0) / NS_PER_S)
            if not ready:
                return False
            data = os.read(self._pipe, _NOTE.size * 64)
            self.gone = not data
            self._seen.extend(_NOTE.iter_unpack(data))

    def stop(self) -> None:
        """Let the helper end, and collect it."""
        os.close(self._pipe)
        if self.gone:
            return
        try:
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGUSR2)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return


def _watch(pipe: int, watched: frozenset[signal.Signals], parent: int) -> None:
    """Life of the helper. Holds no descriptor but the pipe: an open stdout would keep its reader waiting."""
    try:
        for name in [entry.name for entry in Path("/proc/self/fd").iterdir()]:
            if int(name) != pipe:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        while os.getppid() == parent:
            info = signal.sigtimedwait(watched, _ORPHAN_CHECK_S)
            if info is not None:
                os.write(pipe, _NOTE.pack(info.si_signo, time.monotonic_ns()))
    finally:
        # A broken pipe means that the launcher is done.
        os._exit(0)
