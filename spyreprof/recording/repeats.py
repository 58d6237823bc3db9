"""The runs of a repeated recording, made by `record --repeat N`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.recording.manifest import Manifest, read_manifest
from spyreprof.recording.source import open_source
from spyreprof.recording.store import Recording, open_run

if TYPE_CHECKING:
    import os

RunState = Literal["complete", "stopped", "cut_off", "unreadable"]


@dataclass(frozen=True)
class RepeatedRun:
    """One run of a repeated recording.

    Attributes:
        k: counted from 1.
        state: "complete" when the program ended with 0 or as --duration asked. Else it was "stopped" by a signal or a
            failure of its own, "cut_off" with the recorder itself, or its files are "unreadable".
        recording: None when unreadable.
    """

    k: int
    state: RunState
    recording: Recording | None


@dataclass(frozen=True)
class Repeats:
    """A repeated recording.

    Attributes:
        path: where it lies.
        of: how many runs were asked for; as many as are listed where that is unknown.
        runs: those that were begun, by number.
    """

    path: Path
    of: int
    runs: tuple[RepeatedRun, ...]


def open_repeats(path: str | os.PathLike[str]) -> Repeats | None:
    """Open a repeated recording, folder or packed.

    Returns:
        None when it is a recording of one run.

    Raises:
        UserError: as `open_recording`, or it lists no run.
    """
    manifest = read_manifest(open_source(Path(path)))
    if manifest.repeats is None:
        return None
    if not manifest.run_numbers:
        raise UserError(f"{path} lists no run.", "Record again: spyreprof record --repeat N -- COMMAND")
    return Repeats(
        Path(path),
        max(len(manifest.run_numbers), min(manifest.repeat_count or 0, layout.MAX_RUNS)),
        tuple(_open_run(path, k) for k in manifest.run_numbers),
    )


def _open_run(path: str | os.PathLike[str], k: int) -> RepeatedRun:
    try:
        recording = open_run(path, k)
    except UserError:
        return RepeatedRun(k, "unreadable", None)
    return RepeatedRun(k, run_state(recording.manifest), recording)


def run_state(manifest: Manifest) -> RunState:
    """Tell from a run's own manifest whether it counts as a repeat."""
    if manifest.ended_ns is None or manifest.exit is None:
        return "cut_off"
    if not manifest.interrupted and (manifest.duration_reached or manifest.exit.code == 0):
        return "complete"
    return "stopped"
