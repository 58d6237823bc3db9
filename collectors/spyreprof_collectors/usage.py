"""Processor time and memory of the program's processes and threads, once a second, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors.host import read_text
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.shards import ShardWriter

INTERVAL_S = 1.0
MAX_PROCESSES = 512
MAX_THREADS = 64
# Reading a thread costs about 15 µs. A process with more of them than this is read whole every fifth time.
_MANY_THREADS = 128
_MANY_THREADS_EVERY = 5
# A process id can come back as one of ours; strangers are looked at again after this many samples.
_FORGET_STRANGERS_EVERY = 30
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    ppid: int
    cpu_ns: int
    rss_bytes: int


class UsageCollector:
    """Walks the tree of processes below the launcher, orphans that it adopted included.

    Args:
        writer: the `usage` shard.
        root_pid: the launcher, or the process that we attached to.
        excluded: process ids below it that are no part of the program.
        with_root: the root is a part of the program itself.

    Attributes:
        observers: given the processes of each sample.
    """

    def __init__(
        self, writer: ShardWriter, root_pid: int, excluded: Collection[int] = (), *, with_root: bool = False
    ) -> None:
        self._writer = writer
        self._root = root_pid
        self._with_root = with_root
        # Not copied: helpers of ours come and go while the program runs.
        self._excluded = excluded
        self._strangers: set[int] = set()
        self._known: set[int] = set()
        self._samples = 0
        self._cut: set[str] = set()
        self.observers: list[Callable[[Sequence[Stat]], None]] = []

    def sample(self) -> None:
        """Write one row per process of the program, and one for the machine."""
        now_ns = time.monotonic_ns()
        members = self.members()
        for observer in self.observers:
            observer(members)
        if len(members) > MAX_PROCESSES:
            self._cut.add(f"only the {MAX_PROCESSES} busiest of {len(members)} processes were kept")
            members = sorted(members, key=lambda stat: -stat.cpu_ns)[:MAX_PROCESSES]
        rows: list[dict[str, object]] = [
            {
                "t": now_ns,
                "pid": stat.pid,
                "ppid": stat.ppid,
                "name": stat.name,
                "cpu_ns": stat.cpu_ns,
                "rss_bytes": stat.rss_bytes,
                "threads": self._threads(stat.pid),
            }
            for stat in members
        ]
        machine = _machine_times()
        if machine is not None:
            rows.append({"t": now_ns, "k": "system", **machine})
        self._writer.write(*rows)
        self._samples += 1

    def members(self) -> list[Stat]:
        """Every living process of the program, ordered by process id."""
        if self._samples % _FORGET_STRANGERS_EVERY == 0:
            self._strangers.clear()
        stats: dict[int, Stat] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208  only the names are needed, and every second
            if name.isdigit() and int(name) not in self._strangers:
                stat = read_stat(Path("/proc", name, "stat"))
                if stat is not None:
                    stats[stat.pid] = stat
        self._known &= stats.keys()
        belongs: dict[int, bool] = {self._root: True}

        def is_member(pid: int) -> bool:
            if pid not in belongs:
                stat = stats.get(pid)
                # Known ones stay ours: without a subreaper an orphan's parent is process 1.
                belongs[pid] = pid in self._known and pid not in self._excluded
                if stat is not None and not belongs[pid] and pid not in self._excluded:
                    belongs[pid] = is_member(stat.ppid)
            return belongs[pid]

        for pid in stats:
            if not is_member(pid):
                self._strangers.add(pid)
        members = [
            stat
            for pid, stat in sorted(stats.items())
            if belongs[pid] and (pid != self._root or self._with_root) and stat.state not in {"Z", "X"}
        ]
        self._known.update(stat.pid for stat in members)
        return members

    def state(self, fault: str | None) -> CollectorState:
        """What the collector got, for the manifest."""
        problem = fault or self._writer.fault
        if self._writer.rows == 0:
            return CollectorState(
                layout.KIND_USAGE, "unavailable", problem or "the program ended before the first sample"
            )
        reasons = [reason for reason in (problem, *sorted(self._cut)) if reason]
        return CollectorState(layout.KIND_USAGE, "partial" if reasons else "ok", "; ".join(reasons) or None)

    def _threads(self, pid: int) -> list[list[object]]:
        folder = f"/proc/{pid}/task"
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except OSError:
            return []
        if len(names) > _MANY_THREADS and self._samples % _MANY_THREADS_EVERY:
            return []
        threads = [stat for name in names if (stat := read_stat(Path(folder, name, "stat"))) is not None]
        if len(threads) > MAX_THREADS:
            self._cut.add(f"only the {MAX_THREADS} busiest threads of a process were kept")
            threads = sorted(threads, key=lambda stat: -stat.cpu_ns)[:MAX_THREADS]
        return [[stat.pid, stat.name, stat.cpu_ns] for stat in threads]


def read_stat(path: Path, read: Callable[[Path], str] = read_text) -> Stat | None:
    """Read a process's or thread's `stat`; None when it is gone.

    The name stands in parentheses and may hold spaces and parentheses itself.
    """
    text = read(path)
    start, end = text.find("("), text.rfind(")")
    if start < 0 or end < 0:
        return None
    fields = text[end + 2 :].split()
    if len(fields) < 22:
        return None
    return Stat(
        pid=int(text[:start]),
        name=text[start + 1 : end],
        state=fields[0],
        ppid=int(fields[1]),
        cpu_ns=(int(fields[11]) + int(fields[12])) * _NS_PER_TICK,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def _machine_times() -> dict[str, int] | None:
    """Processor time of the whole machine since boot: total, idle (with waiting for I/O) and stolen."""
    fields = read_text(Path("/proc/stat")).partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    total = user + nice + system + idle + iowait + irq + softirq + steal
    return {
        "cpu_total_ns": total * _NS_PER_TICK,
        "cpu_idle_ns": (idle + iowait) * _NS_PER_TICK,
        "steal_ns": steal * _NS_PER_TICK,
    }
