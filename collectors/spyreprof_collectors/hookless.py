"""Python processes of the program that the hook could not enter, and why.

Their command line and environment are looked at once and not kept: only the reason is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors.command import is_python, python_options
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.shards import read_rows, shard_paths
from spyreprof_collectors.usage import Stat

NAME = "agent.processes"
# The first look may fall between fork and exec.
_LOOKS = 2
_MAX_PROCESSES = 1000
_SHOWN = 8


class HooklessProcesses:
    """Looks at each process of the program when it is new. What lives shorter than a second may not be seen.

    Args:
        recording: the recording folder, as the program's environment names it.
    """

    def __init__(self, recording: Path) -> None:
        self._recording = recording
        self._looks: dict[tuple[int, str], int] = {}
        self._reasons: dict[int, str] = {}

    def look(self, members: Iterable[Stat]) -> None:
        """Look at those that are new, or have another name by now."""
        looks: dict[tuple[int, str], int] = {}
        for stat in members:
            key = (stat.pid, stat.name)
            looks[key] = self._looks.get(key, 0) + 1
            if looks[key] <= _LOOKS and (stat.pid in self._reasons or len(self._reasons) < _MAX_PROCESSES):
                reason = self._reason(stat.pid)
                if reason is not None:
                    self._reasons[stat.pid] = reason
                else:
                    self._reasons.pop(stat.pid, None)
        self._looks = looks

    def state(self) -> CollectorState | None:
        """Name them, for the manifest; None when there is none."""
        found = [(pid, reason) for pid, reason in sorted(self._reasons.items()) if not self._reported(pid)]
        if not found:
            return None
        named = ", ".join(f"{pid} ({reason})" for pid, reason in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        noun = "this process" if len(found) == 1 else f"these {len(found)} processes"
        return CollectorState(
            NAME,
            "partial",
            f"the hook could not enter {noun} of Python: {named}{more}",
            "start them without -S, -E and -I, and keep PYTHONPATH and SPYREPROF_DIR in their environment",
        )

    def _reported(self, pid: int) -> bool:
        """Whether the agent was in there to the end, whatever we read: a program may overwrite its environment."""
        shards = [path for writer, path in shard_paths(self._recording, layout.KIND_PROCESS) if _is_of(writer, pid)]
        last = [rows[-1] for path in shards if (rows := read_rows(path))]
        # Each exec that came out in the open begins another shard.
        return any(row.get("k") != "exec" for row in last)

    def _reason(self, pid: int) -> str | None:
        """Why the hook is not in there; None when it can be, or when nobody can tell."""
        folder = Path("/proc", str(pid))
        try:
            if not is_python((folder / "exe").readlink().name):
                return None
            words = _split((folder / "cmdline").read_bytes())
            environment = dict(entry.partition("=")[::2] for entry in _split((folder / "environ").read_bytes()))
        except OSError:
            return None
        options = python_options(words[1:])
        if options:
            return f"python -{options[0]}"
        if "SPYREPROF_DIR" not in environment or not environment.get("PYTHONPATH"):
            return "its environment lacks PYTHONPATH or SPYREPROF_DIR"
        if environment["SPYREPROF_DIR"] != str(self._recording):
            return "in a recording of its own"
        return None


def _split(data: bytes) -> Sequence[str]:
    return os.fsdecode(data.removesuffix(b"\0")).split("\0")


def _is_of(writer: str, pid: int) -> bool:
    return writer.partition("-")[0] == str(pid)
