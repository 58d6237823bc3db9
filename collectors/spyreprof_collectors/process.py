"""Runs the program as if nobody stood between it and whoever started it.

The launcher stays in the program's process group, so the terminal's Ctrl-C, Ctrl-\\, Ctrl-Z and hang-up reach
both. What arrives at the launcher is passed on only if the program did not get it as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spyreprof.errors import UserError
from spyreprof.units import NS_PER_S
from spyreprof_collectors.command import EXIT_NOT_EXECUTABLE, is_binary
from spyreprof_collectors.group_witness import GroupWitness

# How long a terminating signal may wait for the last poll of /metrics.
BEFORE_END_PATIENCE_S = 0.5
TERMINATING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Faults of this process itself, and what the kernel does to a process that touches its terminal.
_OWN = frozenset(
    {
        signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE,
        signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS, signal.SIGPIPE, signal.SIGXFSZ,
        signal.SIGXCPU, signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG,
    }
)  # fmt: skip
FORWARDED = frozenset(signal.valid_signals()) - _OWN
_WAITED = FORWARDED | {signal.SIGCHLD}
_TERMINAL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_SI_KERNEL = 128
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def ending_signals() -> frozenset[signal.Signals]:
    """The signals that ask us to end; a hang-up does not where it was ignored when we were started, as nohup has it."""
    return TERMINATING - {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else TERMINATING


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How the program ended: an exit code, or the signal that killed it."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of_status(cls, status: int) -> ProgramEnd:
        """Read a wait status."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))

    def sentence(self) -> str:
        """Say how it ended."""
        if self.signal is not None:
            return f"The program was killed by {signal_name(self.signal)}."
        return f"The program exited with code {self.code}."


@dataclass
class Supervisor:
    """Starts processes, waits for them and passes signals on. One per launcher, used from the main thread.

    Args:
        before_terminating: called before a terminating signal is passed on, with the seconds that it may take;
            0 when the program has got the signal already.
        ending: signals that ask us to end.
    """

    before_terminating: Callable[[float], None] = lambda patience_s: None
    notes: list[str] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    passed_on: set[int] = field(default_factory=set)
    duration_reached: bool = False
    is_subreaper: bool = False
    ending: frozenset[signal.Signals] = field(default_factory=ending_signals)
    _mask: set[int] = field(default_factory=set)
    _witness: GroupWitness | None = None
    _awaited: set[int] = field(default_factory=set)
    _statuses: dict[int, int] = field(default_factory=dict)
    _program: int | None = None
    _passed_stop: bool = False

    def __enter__(self) -> Supervisor:
        # A parent that ignores SIGCHLD hands that on; the kernel would then drop the program's exit status.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)}
        self.is_subreaper = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._witness = GroupWitness.start(FORWARDED)
        return self

    def __exit__(self, exception: type[BaseException] | None, *_: object) -> None:
        if self._witness is not None:
            self._witness.stop()
        # Once the program has ended, a late signal could only replace its exit code by ours.
        if exception is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property
    def witness_pid(self) -> int | None:
        """The helper process of the launcher, which is no part of the program."""
        return self._witness.pid if self._witness is not None else None

    def spawn(
        self,
        executable: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        file_actions: Sequence[tuple[int, int, int] | tuple[int, int, str, int, int]] = (),
    ) -> int:
        """Start a process with the signal mask, dispositions and descriptors that we were given ourselves.

        Raises:
            UserError: the kernel refused to run it (exit code 126).
        """
        # The interpreter set these two to "ignore" at its own start; the program shall not inherit that.
        ours = [s for s in (signal.SIGPIPE, signal.SIGXFSZ) if signal.getsignal(s) == signal.SIG_IGN]

        def start(path: str, words: list[str]) -> int:
            pid = os.posix_spawn(
                path, words, environment, file_actions=file_actions, setsigmask=self._mask, setsigdef=ours
            )
            self._awaited.add(pid)
            return pid

        try:
            try:
                return start(executable, list(argv))
            except OSError as error:
                if error.errno != errno.ENOEXEC or is_binary(executable):
                    raise
                # a script without a first line that names its interpreter: shells run it with sh
                return start("/bin/sh", ["/bin/sh", executable, *argv[1:]])
        except OSError as error:
            raise UserError(
                f"{argv[0]} cannot be run: {(error.strerror or str(error)).lower()}.",
                "Name its interpreter in front of it, or check that it was built for this machine.",
                exit_code=EXIT_NOT_EXECUTABLE,
            ) from error

    def asked_to_end(self) -> int | None:
        """The signal that asked us to end before there was a program to pass it on to, or None."""
        info = signal.sigtimedwait(self.ending, 0)
        return None if info is None else info.si_signo

    def forget_run(self) -> None:
        """Another run begins: what was noted of the one before does not concern it."""
        self.notes.clear()
        self.received.clear()
        self.passed_on.clear()
        self.duration_reached = False

    def run_program(self, pid: int, duration_s: float | None, kill_grace_s: float) -> ProgramEnd:
        """Wait for the program, passing signals on; after `duration_s` end it with SIGTERM, then SIGKILL."""
        self._program = pid
        deadline_ns = None if duration_s is None else time.monotonic_ns() + int(duration_s * NS_PER_S)
        terminated = False
        while pid not in self._statuses:
            self._wait_once(deadline_ns, self._on_signal)
            if deadline_ns is None or time.monotonic_ns() < deadline_ns or pid in self._statuses:
                continue
            if not terminated:
                self.before_terminating(BEFORE_END_PATIENCE_S)
                _kill(pid, signal.SIGTERM)
                self.duration_reached = True
                self.notes.append(f"The program was ended with SIGTERM after {duration_s:g} s, as --duration asked.")
                terminated, deadline_ns = True, time.monotonic_ns() + int(kill_grace_s * NS_PER_S)
            else:
                _kill(pid, signal.SIGKILL)
                self.notes.append(f"The program did not end within {kill_grace_s:g} s of SIGTERM and got SIGKILL.")
                deadline_ns = None
        self._program = None
        return ProgramEnd.of_status(self._statuses.pop(pid))

    def wait_helper(self, pid: int, timeout_s: float) -> tuple[int | None, int | None]:
        """Wait for a helper of ours; a signal that asks us to end or the time limit kills it.

        Returns:
            (wait status or None when it was killed by us, the signal that came or None).
        """
        came: list[int] = []

        def on_signal(info: signal.struct_siginfo) -> None:
            if info.si_signo in self.ending:
                self.received.append(info.si_signo)
                came.append(info.si_signo)

        deadline_ns = time.monotonic_ns() + int(timeout_s * NS_PER_S)
        while pid not in self._statuses:
            if came or time.monotonic_ns() >= deadline_ns:
                _kill(pid, signal.SIGKILL)
                while pid not in self._statuses:
                    self._wait_once(None, on_signal)
                self._statuses.pop(pid)
                return None, came[0] if came else None
            self._wait_once(deadline_ns, on_signal)
        return self._statuses.pop(pid), came[0] if came else None

    def reap(self) -> None:
        """Collect every process that ended: the program, helpers, and the orphans that we adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid == self._program:
                    self._stop_with_program(os.WSTOPSIG(status))
                continue
            if self._witness is not None and pid == self._witness.pid:
                self._witness.gone = True
            # The ends of adopted orphans concern nobody, and there may be many.
            if pid in self._awaited:
                self._statuses[pid] = status

    def _wait_once(self, deadline_ns: int | None, on_signal: Callable[[signal.struct_siginfo], None]) -> None:
        # at most 5 s: a child that ended while SIGCHLD was lost to a debugger is still noticed
        left_s = 5.0 if deadline_ns is None else (deadline_ns - time.monotonic_ns()) / NS_PER_S
        info = signal.sigtimedwait(_WAITED, min(max(left_s, 0.0), 5.0))
        if info is not None and info.si_signo != signal.SIGCHLD:
            on_signal(info)
        self.reap()

    def _on_signal(self, info: signal.struct_siginfo) -> None:
        number = info.si_signo
        self.received.append(number)
        reached_group = self._witness.saw(number) if self._witness is not None else None
        if info.si_code == _SI_KERNEL:
            # From the terminal, to the whole foreground group. A hang-up goes to the session leader alone.
            reached_group = reached_group is not False or os.getsid(0) != os.getpid()
        if reached_group:
            if number in TERMINATING:
                self.before_terminating(0)
            return
        if self._program is None or self._program in self._statuses:
            return
        self.passed_on.add(number)
        if number in TERMINATING:
            self.before_terminating(BEFORE_END_PATIENCE_S)
        if number == signal.SIGTSTP:
            self._passed_stop = True
        _kill(self._program, number)

    def _stop_with_program(self, number: int) -> None:
        """Stop as the program did, so that the shell sees its job stopped."""
        if number not in _TERMINAL_STOPS or not (self._passed_stop or _has_terminal()):
            # Stopped by SIGSTOP: who stopped the program alone will let the program alone go on.
            return
        self._passed_stop = False
        os.kill(os.getpid(), signal.SIGSTOP)


def end_as(end: ProgramEnd) -> int:
    """End this process as the program ended.

    Returns:
        The exit code to leave with. Does not return when a signal can be taken on. As process 1 of a
        container the kernel shields us from our own signals: the value is then 128 + number, as in shells.
    """
    if end.signal is None:
        return end.code if end.code is not None else 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # The program's core dump, if any, is the one that matters. A core handler in user space heeds no limit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _prctl(_PR_SET_DUMPABLE, 0)
    if end.signal not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(end.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {end.signal})
    os.kill(os.getpid(), end.signal)
    return 128 + end.signal


def signal_name(number: int) -> str:
    """Spell a signal: SIGTERM, or its number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _prctl(option: int, value: int) -> bool:
    """Set a property of this process; False where the system has no such call."""
    try:
        import ctypes  # not every build of Python has it

        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0
    except (ImportError, OSError, AttributeError):
        return False


def _kill(pid: int, number: int) -> None:
    # A zombie that we have not reaped yet still holds its pid, so this never hits a stranger.
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _has_terminal() -> bool:
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    os.close(descriptor)
    return True
