"""spyreprof: where the time of LLM inference goes, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from spyreprof.recording.store import Recording

__version__ = "0.1.0"


def load(path: str | PathLike[str], run: int | None = None) -> Recording:
    """Open a recording (folder or packed file) for a notebook.

    Args:
        path: what `spyreprof record` wrote.
        run: which run of a repeated recording (`record --repeat N`), counted from 1.

    Returns:
        The recording, with `.steps`, `.requests` and `.counters` as pandas DataFrames.

    Raises:
        spyreprof.errors.UserError: the path holds no readable recording, or several runs and none was named.
    """
    from spyreprof.recording.store import open_recording

    return open_recording(path, run)
