"""Runs a command and says what it and everything that it started took: processor time, wall time, peak memory."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

SAMPLES_PER_S = 20
KIBIBYTE = 1024
# Where a process's parent stands in /proc/PID/stat, after the name in brackets.
_PARENT_FIELD = 1


class Run(NamedTuple):
    """What a command took.

    Attributes:
        cpu_s: user and system time of all its processes.
        peak_bytes: the largest sum of resident memory over its processes at one time. Pages that processes share, and
            file pages that are mapped, count in each of them.
        code: exit code; None when it was ended at the time limit.
    """

    cpu_s: float
    wall_s: float
    peak_bytes: int
    code: int | None
    out: str
    said: str


def run(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Run:
    """Run a command in a session of its own, to its end or to the limit."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        began_s = time.monotonic()
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=said, start_new_session=True
        )
        watch = _Watch(process.pid)
        watch.start()
        over = threading.Event()
        timer = threading.Timer(limit_s, _end, (process.pid, over))
        timer.start()
        # Includes descendants that were waited for. Its peak is that of the largest process, not of the sum, and no
        # less than this process had when it started the command.
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began_s
        timer.cancel()
        peak_bytes = max(watch.finish(), usage.ru_maxrss * KIBIBYTE)
        process.returncode = os.waitstatus_to_exitcode(status)
        code = None if over.is_set() else process.returncode
        return Run(usage.ru_utime + usage.ru_stime, wall_s, peak_bytes, code, _text(out), _text(said))


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def _end(pid: int, over: threading.Event) -> None:
    over.set()
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        over.clear()


class _Watch(threading.Thread):
    """Samples the resident memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._peak_bytes = pid, 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(1 / SAMPLES_PER_S):
            self._peak_bytes = max(self._peak_bytes, sum(_resident_bytes(pid) for pid in family(self._pid)))

    def finish(self) -> int:
        """Stop; the value is the largest sum seen."""
        self._done.set()
        self.join()
        return self._peak_bytes


def family(pid: int) -> set[int]:
    """A process and its descendants that run now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:  # gone meanwhile
                continue
            parents[int(entry.name)] = int(stat[stat.rindex(b")") + 1 :].split()[_PARENT_FIELD])
    members = {pid}
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return members


def _resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    at = status.find(b"VmRSS:")
    return int(status[at + len(b"VmRSS:") :].split(maxsplit=1)[0]) * KIBIBYTE if at >= 0 else 0
