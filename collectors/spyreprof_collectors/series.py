"""A repeated recording: the same command several times, one folder for each run and one list of the runs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spyreprof import __version__
from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof_collectors import folder
from spyreprof_collectors.manifest import Manifest, command_without_secrets, exit_document
from spyreprof_collectors.process import signal_name

# The folders of the parent, for `folder.create` and `folder.remove`.
PARTS = (layout.RUNS,)


@dataclass
class Series:
    """The list of runs. It is written before and after each run, so that a killed series is readable.

    Args:
        parent: the folder that holds the list and the runs.
        command, environment: of the program; secrets leave the command when the list is written.
        of: how many runs were asked for.
    """

    parent: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    of: int
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created_epoch_ns: int = field(default_factory=time.time_ns)
    _runs: list[dict[str, object]] = field(default_factory=list)

    @contextmanager
    def run(self, k: int) -> Iterator[Path]:
        """Make the folder of run `k`, counted from 1, and name it in the list; an error takes both back.

        Raises:
            UserError: the folder cannot be made.
            OSError: the list cannot be written.
        """
        path, _ = folder.create(self.parent / layout.RUNS / str(k), "")
        self._runs.append(
            {
                "k": k,
                "folder": f"{layout.RUNS}/{k}",
                "started_ns": time.monotonic_ns(),
                "ended_ns": None,
                "exit": None,
            }
        )
        try:
            self._write()
            yield path
        except (UserError, OSError):
            with suppress(OSError):
                self.withdraw(k)
            raise

    def finish(self, document: Manifest) -> None:
        """The last run has ended.

        Raises:
            OSError: the list cannot be written.
        """
        self._runs[-1].update(
            started_ns=document.started_ns, ended_ns=document.ended_ns, exit=exit_document(document.end)
        )
        self._write()

    def withdraw(self, k: int) -> None:
        """The program of run `k` was never started. A run that was withdrawn already stays so.

        Raises:
            OSError: its folder cannot be removed, or the list not be written.
        """
        self._runs = [run for run in self._runs if run["k"] != k]
        try:
            self._write()
        finally:
            # On a full disk too: whoever takes back the whole series finds no run in it.
            folder.remove(self.parent / layout.RUNS / str(k))

    def _write(self) -> None:
        folder.write_json(
            self.parent / layout.MANIFEST,
            {
                "schema_version": layout.SCHEMA_VERSION,
                "run_id": self.run_id,
                "spyreprof_version": __version__,
                "command": command_without_secrets(self.command, self.environment),
                "created_epoch_ns": self.created_epoch_ns,
                "repeat_count": self.of,
                "repeats": self._runs,
            },
        )


def why_no_more(document: Manifest, received: int | None) -> str | None:
    """What about a run ends its series; None when the next run may follow.

    Args:
        document: the run's manifest.
        received: a signal that asked us to end while it ran, or None.
    """
    if received is not None:
        return f"was asked to end by {signal_name(received)}"
    end = document.end
    # A program that --duration ended did what was asked of it, whatever its exit code.
    if end is None or document.duration_reached:
        return None
    if end.signal is not None:
        return f"was killed by {signal_name(end.signal)}"
    return f"exited with code {end.code}" if end.code != 0 else None
