"""Which processes are worth a py-spy each, chosen anew while the program runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from spyreprof.recording import layout
from spyreprof.units import NS_PER_S
from spyreprof_collectors.host import read_text
from spyreprof_collectors.shards import read_rows, shard_paths
from spyreprof_collectors.usage import Stat, read_stat

# Until then a server may still be loading its model, and the process that will run steps is not known.
PATIENCE_FOR_STEPS_S = 10.0
_MAX_GENERATIONS = 64
# An interpreter's own file, its library, or the folder that its extension modules come from.
_PYTHON_FILE = re.compile(r"/(?:lib)?(?:python|pypy)[23]?(?:\.\d+)?t?(?:\.so[.\d]*|/|$)", re.MULTILINE)


class StepProcesses:
    """Of a recorded program: those with most step rows first; the program itself where nobody reports steps.

    Args:
        recording: where the agent's shards are.
        root_pid: the launcher; the program's processes are below it.
    """

    def __init__(self, recording: Path, root_pid: int) -> None:
        self._program_pid: int | None = None
        self._recording = recording
        self._root_pid = root_pid
        self._begun_ns = time.monotonic_ns()

    def begin(self, program_pid: int | None) -> None:
        """The program runs from now on."""
        self._program_pid, self._begun_ns = program_pid, time.monotonic_ns()

    def ranked(self) -> list[int]:
        """Living processes, the most telling first."""
        sizes: dict[int, int] = {}
        for pid, size in self._with_steps():
            sizes[pid] = sizes.get(pid, 0) + size
        if sizes:
            return sorted(sizes, key=lambda pid: (-sizes[pid], pid))
        if time.monotonic_ns() - self._begun_ns < PATIENCE_FOR_STEPS_S * NS_PER_S:
            return []
        # A wrapper that is no Python may stand before the program; the first process that has the agent is it.
        # Most of the processes that ever reported may be gone: no more of them are asked for than needed.
        reporting = sorted(_pids(self._recording, layout.KIND_PROCESS), key=lambda pid: (pid != self._program_pid, pid))
        first = next((pid for pid in reporting if self._is_ours(pid)), None)
        if first is not None:
            return [first]
        return [self._program_pid] if self._program_pid is not None and is_alive(self._program_pid) else []

    def python_of(self, pid: int) -> str | None:
        """The version of Python that the agent reported from the process; None where it did not."""
        for writer, path in shard_paths(self._recording, layout.KIND_PROCESS):
            if writer.partition("-")[0] == str(pid):
                for row in read_rows(path):
                    if row.get("k") == "open":
                        return str(row.get("python") or "") or None
        return None

    def _with_steps(self) -> list[tuple[int, int]]:
        """(process id, bytes of its step rows) of the living processes of the program that have some."""
        found = []
        for writer, path in shard_paths(self._recording, layout.KIND_STEPS):
            pid_text = writer.partition("-")[0]
            if not pid_text.isdigit() or not self._is_ours(int(pid_text)):
                continue
            try:
                found.append((int(pid_text), path.stat().st_size))
            except OSError:
                continue
        return found

    def _is_ours(self, pid: int) -> bool:
        """Whether a living process is below the launcher: inside another container the number is a stranger's."""
        if not is_alive(pid):
            return False
        for _ in range(_MAX_GENERATIONS):
            stat = read_stat(Path("/proc", str(pid), "stat"))
            if stat is None or stat.ppid == self._root_pid:
                return stat is not None
            pid = stat.ppid
        return False


def _pids(recording: Path, kind: str) -> set[int]:
    """Process ids that have a shard of this kind."""
    texts = (writer.partition("-")[0] for writer, _ in shard_paths(recording, kind))
    return {int(text) for text in texts if text.isdigit()}


class BusyProcesses:
    """Of a process that we attached to, and of those below it: the Pythons that use most processor time.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._ranked = [pid] if is_python(pid) is not False else []
        self._used_ns: dict[tuple[int, str], int] = {}
        self._is_python: dict[tuple[int, str], bool] = {}

    def look(self, members: Iterable[Stat]) -> None:
        """Take what a sample of processor times saw."""
        used = {(stat.pid, stat.name): stat.cpu_ns for stat in members}
        # Asked once per program: the kernel holds the process's memory map while it spells it out.
        self._is_python = {
            key: self._is_python[key] if key in self._is_python else is_python(key[0]) is not False for key in used
        }
        recent = {key[0]: used[key] - self._used_ns.get(key, 0) for key in used if self._is_python[key]}
        self._used_ns = used
        self._ranked = sorted(recent, key=lambda pid: (-recent[pid], pid))

    def ranked(self) -> list[int]:
        """The busiest first."""
        return self._ranked

    def python_of(self, pid: int) -> str | None:
        """Minor version of the process's Python, by the name of its file or library; None where that tells none."""
        found = re.search(r"python(3\.\d+)", read_text(Path("/proc", str(pid), "maps")))
        return found.group(1) if found else None


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    stat = read_stat(Path("/proc", str(pid), "stat"))
    return stat is not None and stat.state not in {"Z", "X"}


def is_python(pid: int) -> bool | None:
    """Whether a process has a Python interpreter in it; None where we may not look."""
    try:
        return _PYTHON_FILE.search(Path("/proc", str(pid), "maps").read_text(errors="replace")) is not None
    except OSError:
        return None


def start_of(pid: int) -> str | None:
    """When a process started, in the kernel's ticks: the 22nd field of its stat. None when it is gone."""
    _, _, rest = read_text(Path("/proc", str(pid), "stat")).rpartition(")")
    fields = rest.split()
    return fields[19] if len(fields) > 19 else None
