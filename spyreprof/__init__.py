"""spyreprof: where the time of LLM inference goes, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from spyreprof.recording.notebook import Tables

__version__ = "0.1.0"


def load(path: str | PathLike[str], run: int | None = None) -> Tables:
    """Open a recording for a notebook.

    Args:
        path: what `spyreprof record` wrote (folder or packed), or a trace of torch.profiler.
        run: which run of a repeated recording (`record --repeat N`), counted from 1.

    Returns:
        Its tables as pandas DataFrames: `.steps`, `.requests`, `.counters`, `.polls`, `.usage`, `.collectives`,
        `.phases` and `.stacks`. `.columns` says what each column means, `.notes` what is missing.

    Raises:
        spyreprof.errors.UserError: the path holds no readable recording, or several runs and none was named.
    """
    from spyreprof.recording.notebook import load_tables

    return load_tables(path, run)
