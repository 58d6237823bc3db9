"""One run of py-spy over one process: started, drained, ended, read. Nothing here waits long, and nothing raises.

What it says goes to stdout or stderr, as it likes, and its result to a descriptor of its own, so that neither is taken
for the other; all of it through pipes, so that nothing but what we take lands on the disk. It stands in a session of
its own, or else in a process group of its own, so that no signal of the terminal or of the program's group reaches it.
Its end is the end of its output: the launcher may collect its exit status at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spyreprof.units import NS_PER_S
from spyreprof_collectors.python_files import short_file

# A window of a large server is some hundred kilobytes.
MAX_OUTPUT_BYTES = 8 * 2**20
_MAX_MESSAGE_BYTES = 8_192
# Reading the target's symbols takes a second or two where its libraries are large and the machine is busy.
START_GRACE_S = 15.0
_INTERRUPT_GRACE_S = 2.0
_EXIT_PATIENCE_S = 1.0
_PATIENCE_S = 0.02
_MAX_STACKS = 2_000
_MAX_DEPTH = 64
# Where py-spy finds the pipe for its result; ours lie above.
_RESULT = 3
_FIRST_OF_OURS = 4
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)")
_FRAME = re.compile(r"(.+) \((.+)\)", re.DOTALL)
_ERRORS = re.compile(r"Errors: (\d+)")
# What it says when it starts to sample; everything earlier is preparation.
_STARTED = b"Sampling process"
_WRITTEN = "Wrote raw"
_BEHIND = "behind in sampling"
# What it says when it is asked to end, or its process ends, before the time is over.
_STOPPED = "Stopped sampling"


@dataclass(frozen=True, slots=True)
class Request:
    """What to sample: `with_sleeping` takes threads along that the kernel does not run."""

    executable: str
    pid: int
    rate_hz: int
    duration_s: int
    with_sleeping: bool


@dataclass
class Window:
    """A py-spy that runs, or ran.

    Attributes:
        fault: why nothing of it can be used; None when it ended by itself, and `messages` say how.
        ended: its output is complete.
    """

    request: Request
    pid: int
    started_ns: int
    fault: str | None = None
    ended: bool = False
    ended_ns: int = 0
    _handle: int | None = None
    _pipes: dict[int, bytearray] = field(default_factory=dict)
    _output: bytearray = field(default_factory=bytearray)
    _messages: bytearray = field(default_factory=bytearray)
    _message_bytes: int = 0
    _sampling: bool = False
    _interrupted_ns: int | None = None

    @classmethod
    def open(cls, request: Request, environment: Mapping[str, str]) -> Window:
        """Start py-spy. OSError when it cannot be run."""
        argv = [
            request.executable, "record", "--nonblocking", "--pid", str(request.pid), "--rate", str(request.rate_hz),
            "--duration", str(request.duration_s), "--format", "raw", "--threads", "--nolineno", "--full-filenames",
            "--output", f"/proc/self/fd/{_RESULT}", *(["--idle"] if request.with_sleeping else []),
        ]  # fmt: skip
        result_read, result_write = _pipe()
        try:
            said_read, said_write = _pipe()
        except OSError:
            os.close(result_read)
            os.close(result_write)
            raise

        def start(**apart: Any) -> int:
            return os.posix_spawn(
                request.executable,
                argv,
                dict(environment),
                file_actions=(
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, said_write, 1),
                    (os.POSIX_SPAWN_DUP2, said_write, 2),
                    (os.POSIX_SPAWN_DUP2, result_write, _RESULT),
                ),
                # The launcher blocks signals; py-spy must hear the one that asks for its results.
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGPIPE, signal.SIGTERM),
                **apart,
            )

        try:
            try:
                pid = start(setsid=True)
            except RuntimeError:
                # Not implemented: a Python built for a glibc before 2.26, as portable builds are.
                pid = start(setpgroup=0)
        except OSError:
            os.close(result_read)
            os.close(said_read)
            raise
        finally:
            os.close(result_write)
            os.close(said_write)
        window = cls(request, pid, time.monotonic_ns())
        # A process id may come back; a handle does not. Older kernels have none.
        with contextlib.suppress(OSError, AttributeError):
            window._handle = os.pidfd_open(pid)
        window._pipes = {result_read: window._output, said_read: window._messages}
        for pipe in window._pipes:
            os.set_blocking(pipe, False)
        return window

    def advance(self, patience_s: float = _PATIENCE_S) -> bool:
        """Take what it wrote, and end it where it overran.

        Returns:
            Whether it has ended.
        """
        self._drain(patience_s)
        if not self.ended:
            self._hold_to_limits()
        return self.ended

    def interrupt(self) -> None:
        """Ask for what it has so far, as Ctrl-C does."""
        if not self.ended and self._interrupted_ns is None:
            self._interrupted_ns = time.monotonic_ns()
            self._send(signal.SIGINT)

    def kill(self, fault: str) -> None:
        """End it at once; what it wrote is not used."""
        if self.ended:
            return
        self.fault = self.fault or fault
        # A wrapper around py-spy may have children of its own, in the session that we made.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._close()

    @property
    def was_interrupted(self) -> bool:
        """Whether it was asked to end before its time."""
        return self._interrupted_ns is not None

    @property
    def messages(self) -> str:
        """The end of what it said."""
        return self._messages.decode("utf-8", "replace")

    @property
    def fell_behind(self) -> bool:
        """Whether its looks came late, by its own account."""
        return _BEHIND in self.messages

    def row(self) -> dict[str, object] | None:
        """The row of this window; None when py-spy brought no result.

        `samples` is how often it looked at the process, failed looks left out: the most that one thread can have.
        A window in which every thread slept has no stacks, and is a result all the same.
        """
        stacks = self._stacks()
        if self.fault is not None or (not stacks and _WRITTEN not in self.messages):
            return None
        request = self.request
        frames: dict[tuple[str, str], int] = {}
        threads: dict[str, list[list[object]]] = {}
        most: Counter[str] = Counter()
        for thread, stack, count in stacks[:_MAX_STACKS]:
            numbers = [frames.setdefault(frame, len(frames)) for frame in stack[-_MAX_DEPTH:]]
            threads.setdefault(thread, []).append([numbers, count])
            most[thread] += count
        found = _ERRORS.search(self.messages)
        errors = int(found.group(1)) if found else 0
        lasted_s = min((self.ended_ns - self.started_ns) / NS_PER_S, request.duration_s)
        return {
            "t0": self.started_ns,
            "t1": min(self.ended_ns, self.started_ns + request.duration_s * NS_PER_S),
            "pid": request.pid,
            "samples": max(round(lasted_s * request.rate_hz) - errors, *most.values(), 0),
            "errors": errors,
            "rate_hz": request.rate_hz,
            "sleeping": request.with_sleeping,
            "complete": _STOPPED not in self.messages,
            "frames": [list(frame) for frame in frames],
            "threads": [
                # Its id in the kernel; before Python 3.11 only its address is known.
                {"thread": name, "stacks": its_stacks}
                for name, its_stacks in threads.items()
            ],
        }

    def _stacks(self) -> list[tuple[str, list[tuple[str, str]], int]]:
        """(thread, frames from the outermost on, count), most frequent first."""
        found = []
        for line in self._output.decode("utf-8", "replace").splitlines():
            stack, _, number = line.rpartition(" ")
            thread = _THREAD.match(stack)
            if thread is None or not number.isdigit() or len(number) > 9:
                continue
            frames = list(_frames(stack.split(";")[1:]))
            if frames:
                found.append((thread.group(1), frames, int(number)))
        return sorted(found, key=lambda entry: -entry[2])

    def _drain(self, patience_s: float) -> None:
        while self._pipes:
            ready, _, _ = select.select(list(self._pipes), [], [], patience_s)
            if not ready:
                return
            for pipe in ready:
                try:
                    data = os.read(pipe, 1 << 16)
                except BlockingIOError:
                    continue
                if not data:
                    os.close(pipe)
                    del self._pipes[pipe]
                    continue
                self._take(self._pipes[pipe], data)
            if len(self._output) > MAX_OUTPUT_BYTES or self._message_bytes > MAX_OUTPUT_BYTES:
                self.kill(f"it wrote more than {MAX_OUTPUT_BYTES >> 20} MB and was ended")
                return
        self._close()

    def _take(self, buffer: bytearray, data: bytes) -> None:
        buffer += data
        if buffer is self._messages:
            self._message_bytes += len(data)
            if not self._sampling and _STARTED in buffer:
                self._sampling, self.started_ns = True, time.monotonic_ns()
            del buffer[:-_MAX_MESSAGE_BYTES]

    def _hold_to_limits(self) -> None:
        now_ns = time.monotonic_ns()
        if self._interrupted_ns is not None:
            if now_ns - self._interrupted_ns > _INTERRUPT_GRACE_S * NS_PER_S:
                self.kill("it did not end when it was asked to, and was killed")
        elif now_ns - self.started_ns > (self.request.duration_s + START_GRACE_S) * NS_PER_S:
            self.kill(f"it hung: no result {START_GRACE_S:g} s after its {self.request.duration_s} s")

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self.pid, number)

    def _close(self) -> None:
        """The pipes are at their end, or nobody reads on."""
        self.ended, self.ended_ns = True, time.monotonic_ns()
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()
        if self._handle is None:
            self._collect()
            return
        # Whoever closed its output and lives on is not left behind; an exit under way does not mind.
        self._send(signal.SIGKILL)
        select.select([self._handle], [], [], _EXIT_PATIENCE_S)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        os.close(self._handle)
        self._handle = None

    def _collect(self) -> None:
        """Take the exit status of one without a handle (Linux before 5.3), unless the launcher has: no zombie stays."""
        deadline_ns = time.monotonic_ns() + int(_EXIT_PATIENCE_S * NS_PER_S)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic_ns() >= deadline_ns:
                    os.kill(self.pid, signal.SIGKILL)
                    return
                time.sleep(_PATIENCE_S)


def _pipe() -> tuple[int, int]:
    """A pipe that takes the place of no standard stream: one of ours may be closed, and in py-spy they are replaced."""
    ends = os.pipe()
    lifted: list[int] = []
    try:
        for end in ends:
            lifted.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_OF_OURS))
    except OSError:
        for end in lifted:
            os.close(end)
        raise
    finally:
        for end in ends:
            os.close(end)
    return lifted[0], lifted[1]


def _frames(parts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for part in parts:
        # A thread's name may hold semicolons; what is no frame is a piece of it.
        frame = _FRAME.fullmatch(part)
        if frame is not None:
            yield frame.group(1)[:200], short_file(frame.group(2))[:200]
