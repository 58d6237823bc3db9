"""Samples the Python stacks of the program's processes with py-spy, in windows that follow one another.

Without pausing the program: a blocking sampler cost 7 to 14 % of a small engine's steps, this one nothing that could
be told from noise, and 4 to 5 % of a core of its own at 100 looks a second. A look at a stack that changes meanwhile
is counted as an error and left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spyreprof.recording import layout
from spyreprof.units import NS_PER_S
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.py_spy_trouble import INSTALL, MISSING, Trouble, explain
from spyreprof_collectors.py_spy_window import Request, Window
from spyreprof_collectors.sampled_processes import is_alive, start_of
from spyreprof_collectors.shards import ShardWriter

TICK_S = 0.25
# A kill of the recorder loses one window. Most of the time threads that the kernel runs are looked at, which tells
# work from waiting; now and then all of them, which tells where the others wait.
RUNNING_WINDOW_S = 8
SLEEPING_WINDOW_S = 2
# Each py-spy takes 2 to 3 % of a core at 50 looks a second.
MAX_PROCESSES = 4
_FAILURES_IN_A_ROW = 3
# A server that replaces its workers for days has many; what became of those that ended is then forgotten.
_MAX_REMEMBERED = 256
_TROUBLES_SHOWN = 8
_INTERRUPT_PATIENCE_S = 2.0
_VERSION_TIMEOUT_S = 3.0


class Processes(Protocol):
    """Says which processes to sample."""

    def ranked(self) -> Sequence[int]:
        """Living processes, the most telling first."""

    def python_of(self, pid: int) -> str | None:
        """The version of a process's Python; None where unknown."""


@dataclass
class Target:
    """A process that is sampled, and what came of it."""

    pid: int
    start: str | None = None
    windows: int = 0
    failures_in_a_row: int = 0
    with_sleeping: bool = False
    current: Window | None = None
    trouble: Trouble | None = None
    next_ns: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether another window would bring nothing."""
        return self.trouble is not None and (self.trouble.lasting or self.failures_in_a_row >= _FAILURES_IN_A_ROW)

    def is_still_it(self) -> bool:
        """Whether its number is no other process by now."""
        start = start_of(self.pid)
        return start is None or start == self.start


@dataclass
class PySpyCollector:
    """Chooses processes, keeps one py-spy on each, and writes a row per window.

    Args:
        writer: the `stacks` shard.
        processes: says which processes to sample.
        rate_hz: looks per second and process.
        own_pids: filled with the process ids of py-spy, which are no part of the program.
        starting: held from before a py-spy exists until its process id is known. Whoever lists processes takes it.
    """

    writer: ShardWriter
    processes: Processes
    rate_hz: int
    own_pids: set[int] = field(default_factory=set)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    starting: threading.Lock = field(default_factory=threading.Lock)
    _targets: list[Target] = field(default_factory=list)
    _executable: str | None = None
    _version: str | None = None
    _is_prepared: bool = False
    _left_out: int = 0
    _behind: int = 0
    _is_finished: bool = False

    def prepare(self) -> None:
        """Find py-spy and ask for its version, while there is no program yet that this could be taken for."""
        self._is_prepared = True
        self._executable = find(self.environment.get("PATH"))
        if self._executable is not None:
            self._version = version(self._executable)

    def sample(self) -> None:
        """Move every window on; start those that are due."""
        if self._executable is None:
            return
        for target in self._targets:
            if target.current is not None and target.current.advance():
                self._close(target, target.current)
        if len(self._targets) > _MAX_REMEMBERED:
            self._targets = [one for one in self._targets if one.current is not None or is_alive(one.pid)]
        for target in self._chosen():
            if target.current is None and time.monotonic_ns() >= target.next_ns:
                self._open(target, self._executable)

    @property
    def has_given_up(self) -> bool:
        """Whether no process is left that another window would bring something of."""
        if self._executable is None:
            return self._is_prepared
        targets = list(self._targets)
        return bool(targets) and all(target.is_given_up for target in targets)

    def finish(self) -> None:
        """Ask every py-spy for what it has, and leave none behind."""
        with self.starting:
            # A sampler that did not stop in time opens no further window.
            self._is_finished = True
        running = [target for target in self._targets if target.current is not None]
        for target in running:
            if target.current is not None:
                target.current.interrupt()
        deadline_ns = time.monotonic_ns() + int(_INTERRUPT_PATIENCE_S * NS_PER_S)
        for target in running:
            window = target.current
            if window is None:
                continue
            while not window.advance() and time.monotonic_ns() < deadline_ns:
                pass
            window.kill("it did not end with the program, and was killed")
            self._close(target, window)

    def state(self, fault: str | None) -> CollectorState:
        """What the collector got, for the manifest."""
        name = layout.KIND_STACKS
        reasons = [reason for reason in (fault, self.writer.fault) if reason]
        if self._is_prepared and self._executable is None:
            return CollectorState(name, "unavailable", MISSING, INSTALL)
        # A window may fail because the process ended in it; that is no trouble of py-spy's.
        troubles = [
            (target.pid, target.trouble)
            for target in self._targets
            if target.trouble is not None and (target.is_given_up or not target.windows)
        ]
        reasons += [f"process {pid}: {trouble.reason}" for pid, trouble in troubles[:_TROUBLES_SHOWN]]
        obtain = next((trouble.obtain for _, trouble in troubles if trouble.obtain), None)
        if self._left_out:
            reasons.append(f"only {MAX_PROCESSES} of {MAX_PROCESSES + self._left_out} processes were sampled")
        if self._behind:
            reasons.append(f"in {self._behind} windows the machine was too busy to keep the rate")
        if self.writer.rows:
            return CollectorState(name, "partial" if reasons else "ok", "; ".join(reasons) or None, obtain)
        reasons = reasons or ["the end came before a sample was taken"]
        return CollectorState(name, "unavailable", "; ".join(reasons), obtain)

    def _open(self, target: Target, executable: str) -> None:
        length_s = SLEEPING_WINDOW_S if target.with_sleeping else RUNNING_WINDOW_S
        request = Request(executable, target.pid, self.rate_hz, length_s, target.with_sleeping)
        try:
            with self.starting:
                if self._is_finished:
                    return
                target.current = Window.open(request, self.environment)
                self.own_pids.add(target.current.pid)
        except OSError as error:
            target.trouble = Trouble(f"{executable} cannot be run: {error.strerror or error}", INSTALL, lasting=True)

    def _close(self, target: Target, window: Window) -> None:
        target.current = None
        self.own_pids.discard(window.pid)
        row = window.row()
        if row is not None:
            self.writer.write(row)
            self._behind += window.fell_behind
            target.windows += 1
            target.failures_in_a_row = 0
            target.trouble = None
        elif is_alive(target.pid) and (window.fault is not None or not window.was_interrupted):
            target.failures_in_a_row += 1
            target.trouble = self._trouble(target, window)
            target.next_ns = time.monotonic_ns() + NS_PER_S
        target.with_sleeping = not target.with_sleeping

    def _trouble(self, target: Target, window: Window) -> Trouble:
        if window.fault is not None:
            return Trouble(f"py-spy was ended: {window.fault}", None)
        return explain(window.messages, target.pid, self._version, self.processes.python_of(target.pid))

    def _chosen(self) -> list[Target]:
        """The processes to sample now. Whoever is being sampled stays, so that ranks that take turns do not share.

        One that was given up leaves its place to another, and a process that has its number by now is a new one.
        """
        ranked = list(self.processes.ranked())
        latest = {target.pid: target for target in self._targets}
        known = {pid: latest[pid] for pid in ranked if pid in latest and latest[pid].is_still_it()}
        ranked = [pid for pid in ranked if pid not in known or not known[pid].is_given_up]
        ranked.sort(key=lambda pid: pid not in known)
        self._left_out = max(self._left_out, len(ranked) - MAX_PROCESSES)
        chosen = [known.get(pid) or Target(pid, start_of(pid)) for pid in ranked[:MAX_PROCESSES]]
        self._targets += [target for target in chosen if target.pid not in known]
        return chosen


def find(search_path: str | None = None, interpreter: str | None = None) -> str | None:
    """The py-spy to use: on the PATH, beside our interpreter, or beside another one; None when there is none."""
    beside = [str(Path(path).parent / "py-spy") for path in (sys.executable, interpreter) if path]
    for candidate in (shutil.which("py-spy", path=search_path), *beside):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    return None


def version(executable: str) -> str | None:
    """What it calls itself, e.g. 0.4.3; None when it does not say."""
    try:
        done = subprocess.run(
            [executable, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout[:200].decode("ascii", "replace").split()
    said = words[1] if len(words) == 2 else ""
    return said if said[:1].isdigit() and len(said) <= 20 and said.replace(".", "").isalnum() else None
