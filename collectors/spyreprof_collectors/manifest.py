"""The manifest: what was run, where, how it ended, and which collectors saw what."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spyreprof import __version__
from spyreprof.recording import layout
from spyreprof_collectors import folder, host, secrets, shards
from spyreprof_collectors.process import ProgramEnd

# Of those that a manifest lists: the ones with steps first, then those that did not end in order.
MAX_PROCESSES = 1000


@dataclass(frozen=True, slots=True)
class CollectorState:
    """What a collector got; `reason` and `obtain` are None when it got everything."""

    name: str
    state: str  # "ok", "partial" or "unavailable"
    reason: str | None = None
    obtain: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One profiled process, read back from its own shard."""

    writer: str
    pid: int
    ppid: int
    opened_ns: int
    closed_ns: int | None
    closed_how: str | None
    steps: int
    python: str


@dataclass
class Manifest:
    """The document under construction. Written at the start and again at the end."""

    command: Sequence[str]
    environment: Mapping[str, str]
    created_epoch_ns: int = field(default_factory=time.time_ns)
    started_ns: int = field(default_factory=time.monotonic_ns)
    started_epoch_ns: int = field(default_factory=time.time_ns)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    ended_ns: int | None = None
    end: ProgramEnd | None = None
    interrupted: bool = False
    duration_reached: bool = False
    # (k, of): which run of a repeated recording this is, counted from 1
    repeat: tuple[int, int] | None = None
    # "record": the program was started by us; "attach": it, or its metrics page, was there before
    mode: str = "record"
    collectors: list[CollectorState] = field(default_factory=list)
    processes: list[ProcessFacts] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _host: dict[str, object] = field(default_factory=host.host_facts)

    def begin(self) -> None:
        """The program starts now; what came before was preparation."""
        self.started_ns = time.monotonic_ns()
        self.started_epoch_ns = time.time_ns()

    def finish(self, end: ProgramEnd, *, interrupted: bool, duration_reached: bool = False) -> None:
        """The program ended now; `interrupted` by a signal to us, `duration_reached` as --duration asked."""
        self.ended_ns = time.monotonic_ns()
        self.end = end
        self.interrupted = interrupted
        self.duration_reached = duration_reached

    def write(self, recording: Path) -> None:
        """Write the document; secrets leave the command here and nowhere later."""
        folder.write_json(
            recording / layout.MANIFEST,
            {
                "schema_version": layout.SCHEMA_VERSION,
                "run_id": self.run_id,
                "spyreprof_version": __version__,
                "mode": self.mode,
                "command": command_without_secrets(self.command, self.environment),
                "created_epoch_ns": self.created_epoch_ns,
                "started_ns": self.started_ns,
                "ended_ns": self.ended_ns,
                "exit": exit_document(self.end),
                "host": self._host,
                "environment": {k: _utf8(v) for k, v in secrets.allowed_environment(self.environment).items()},
                "collectors": [asdict(collector) for collector in self.collectors],
                "processes": [asdict(process) for process in _most_telling(self.processes)],
                "interrupted": self.interrupted,
                "duration_reached": self.duration_reached,
                "repeat": None if self.repeat is None else {"k": self.repeat[0], "of": self.repeat[1]},
                "notes": [_utf8(note) for note in self.notes],
            },
        )


def command_without_secrets(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command line as manifests hold it."""
    return [_utf8(word) for word in secrets.redact_command(command, environment)]


def exit_document(end: ProgramEnd | None) -> dict[str, int] | None:
    """How a program ended, as manifests hold it; None while it runs."""
    if end is None:
        return None
    return {"code": end.code} if end.code is not None else {"signal": end.signal or 0}


def read_processes(recording: Path) -> list[ProcessFacts]:
    """Read every profiled process back from its shard, in the order in which they opened."""
    steps = {writer: shards.count_rows(path) for writer, path in shards.shard_paths(recording, layout.KIND_STEPS)}
    processes: list[ProcessFacts] = []
    for writer, path in shards.shard_paths(recording, layout.KIND_PROCESS):
        opened: Mapping[str, object] = {}
        closed_ns: int | None = None
        closed_how: str | None = None
        for row in shards.read_rows(path):
            kind = row.get("k")
            if kind == "open":
                opened = row
            elif kind in {"close", "exec"}:
                closed_ns = _integer(row.get("t"))
                closed_how = "exec" if kind == "exec" else str(row.get("how"))
        pid_text = writer.partition("-")[0]
        processes.append(
            ProcessFacts(
                writer=writer,
                pid=_integer(opened.get("pid")) or (int(pid_text) if pid_text.isdigit() else 0),
                ppid=_integer(opened.get("ppid")) or 0,
                opened_ns=_integer(opened.get("t")) or 0,
                closed_ns=closed_ns,
                closed_how=closed_how,
                steps=steps.get(writer, 0),
                python=str(opened.get("python") or "unknown"),
            )
        )
    return sorted(processes, key=lambda process: (process.opened_ns, process.writer))


def hook_states(recording: Path) -> list[CollectorState]:
    """Merge the hook rows of all processes: a hook is ok when it was ok wherever it was tried."""
    merged: dict[str, list[tuple[str, str | None]]] = {}
    for _, path in shards.shard_paths(recording, layout.KIND_PROCESS):
        latest: dict[str, tuple[str, str | None]] = {}
        for row in shards.read_rows(path):
            if row.get("k") == "hook":
                reason = row.get("reason")
                latest[str(row.get("name"))] = (str(row.get("state")), str(reason) if reason else None)
        for name, outcome in latest.items():
            merged.setdefault(name, []).append(outcome)
    states: list[CollectorState] = []
    for name, seen in sorted(merged.items()):
        bad = [(state, reason) for state, reason in seen if state != "ok"]
        if not bad:
            states.append(CollectorState(name, "ok"))
            continue
        state, reason = bad[0]
        where = f" in {len(bad)} of {len(seen)} processes" if len(bad) < len(seen) else ""
        states.append(
            CollectorState(
                name,
                "unavailable" if len(bad) == len(seen) and any(how != "partial" for how, _ in bad) else "partial",
                f"{state}{where}: {reason}" if reason else f"{state}{where}",
            )
        )
    return states


def _most_telling(processes: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """A program may have had a hundred thousand children; their shards hold them all."""
    if len(processes) <= MAX_PROCESSES:
        return list(processes)
    by_weight = sorted(processes, key=lambda process: (-process.steps, process.closed_ns is not None))
    return sorted(by_weight[:MAX_PROCESSES], key=lambda process: (process.opened_ns, process.writer))


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _utf8(text: str) -> str:
    """Bytes of an argument that are no UTF-8 stay legible instead of breaking the document."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")
