"""A process that runs already: whether we may watch it, and when it ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import UserError
from spyreprof_collectors.host import read_text
from spyreprof_collectors.py_spy_trouble import may_ptrace_everything, owner
from spyreprof_collectors.sampled_processes import is_python, start_of
from spyreprof_collectors.usage import read_stat

_LOOK_UP = "Look it up with `pgrep -af python`."
_MAX_COMMAND_BYTES = 1 << 20


@dataclass(slots=True)
class Target:
    """A process by its id, held so that a later process with the same id is not taken for it."""

    pid: int
    _start: str
    _handle: int | None = None

    @classmethod
    def open(cls, pid: int) -> Target:
        """Find the process.

        Raises:
            UserError: it does not exist, has ended, is a thread, is our own, belongs to somebody else, or neither it
                nor a process below it is Python.
        """
        start = start_of(pid)
        stat = read_stat(Path("/proc", str(pid), "stat"))
        if start is None or stat is None:
            raise UserError(f"There is no process {pid}.", f"{_LOOK_UP} In a container only its own are seen.")
        if stat.state in {"Z", "X"}:
            raise UserError(f"Process {pid} has ended; only its exit status is left.", _LOOK_UP)
        group = re.search(r"^Tgid:\s*(\d+)", read_text(Path("/proc", str(pid), "status")), re.MULTILINE)
        if group is not None and int(group.group(1)) != pid:
            raise UserError(f"{pid} is a thread of process {group.group(1)}.", f"Attach with --pid {group.group(1)}.")
        if pid == os.getpid():
            raise UserError(f"Process {pid} is spyreprof itself.", _LOOK_UP)
        uid = owner(pid)
        if uid is not None and uid != os.geteuid() and os.geteuid() != 0 and not may_ptrace_everything():
            raise UserError(f"Process {pid} belongs to another user.", "Run spyreprof as that user, or as root.")
        if is_python(pid) is False and not any(is_python(child) is not False for child in _below(pid)):
            raise UserError(
                f"Process {pid} is no Python program, and no process below it is one.",
                f"Name the Python process. {_LOOK_UP}",
            )
        target = cls(pid, start)
        # Older kernels have no handles of processes; the time of its start tells it from a later one then.
        with contextlib.suppress(OSError, AttributeError):
            target._handle = os.pidfd_open(pid)
        if start_of(pid) != start:
            # It ended between the two, and the handle may be that of a process which has its number by now.
            if target._handle is not None:
                os.close(target._handle)
            raise UserError(f"Process {pid} has ended.", _LOOK_UP)
        return target

    def has_ended(self) -> bool:
        """Whether it has ended, a zombie included."""
        if self._handle is not None:
            ready, _, _ = select.select([self._handle], [], [], 0)
            return bool(ready)
        stat = read_stat(Path("/proc", str(self.pid), "stat"))
        return stat is None or stat.state in {"Z", "X"} or start_of(self.pid) != self._start

    def command(self) -> tuple[str, ...]:
        """Its command line; empty where it may not be read."""
        return tuple(_strings(self.pid, "cmdline"))

    def environment(self) -> dict[str, str]:
        """The environment that it was started with; empty where it may not be read."""
        pairs = (text.partition("=") for text in _strings(self.pid, "environ"))
        return {name: value for name, separator, value in pairs if separator}


def _strings(pid: int, name: str) -> Iterator[str]:
    try:
        with Path("/proc", str(pid), name).open("rb") as file:
            data = file.read(_MAX_COMMAND_BYTES)
    except OSError:
        return
    if data:
        yield from (os.fsdecode(part) for part in data.removesuffix(b"\0").split(b"\0"))


def _below(pid: int) -> list[int]:
    """Every process below another one."""
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  only the names are needed
        if name.isdigit():
            stat = read_stat(Path("/proc", name, "stat"))
            if stat is not None:
                parents[stat.pid] = stat.ppid
    found, seen = [pid], {pid}
    for parent in found:
        for child, its_parent in parents.items():
            if its_parent == parent and child not in seen:
                seen.add(child)
                found.append(child)
    return found[1:]
