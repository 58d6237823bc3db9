"""Tries whether the hook enters the Python that a command runs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors.command import PythonProgram, env_prefix, shut_out
from spyreprof_collectors.launcher import BOOT_FOLDER

_TIMEOUT_S = 60


def why_not(
    argv: Sequence[str], program: PythonProgram, environment: Mapping[str, str]
) -> tuple[str, str | None] | None:
    """Start the interpreter as the command does, with an empty program.

    Args:
        argv: the command; of it runs only what stands before the interpreter, if that is env(1).
        program: the Python in it.
        environment: what the command would be given.

    Returns:
        (reason, remedy) where the hook did not come in; None where it did.
    """
    known = shut_out(program)
    if known is not None:
        return known
    try:
        with tempfile.TemporaryDirectory(prefix="spyreprof-") as folder:
            return _try_in(Path(folder), argv, program, environment)
    except OSError:
        # As in a container whose whole file system is read-only.
        return "no temporary folder could be made to try it in", "Set TMPDIR to a writable folder."


def _try_in(
    folder: Path, argv: Sequence[str], program: PythonProgram, environment: Mapping[str, str]
) -> tuple[str, str | None] | None:
    shards = folder / layout.SHARDS
    shards.mkdir()
    paths = [str(BOOT_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
    try:
        subprocess.run(
            [*env_prefix(argv), program.interpreter, "-c", "pass"],
            env={**environment, "PYTHONPATH": os.pathsep.join(paths), "SPYREPROF_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{program.interpreter} did not end within {_TIMEOUT_S} s", None
    except OSError as error:
        return f"{program.interpreter} cannot be run: {(error.strerror or str(error)).lower()}", None
    if any(shards.iterdir()):
        return None
    return (
        "the interpreter was started, and the hook did not come in",
        "Keep PYTHONPATH and SPYREPROF_DIR in its environment, and use Python 3.10 or later.",
    )
