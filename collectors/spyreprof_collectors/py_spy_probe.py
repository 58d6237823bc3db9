"""Whether py-spy works here: tried on a child of ours that lives for the moment alone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from spyreprof_collectors.py_spy import find, version
from spyreprof_collectors.py_spy_trouble import INSTALL, MISSING, Trouble, explain
from spyreprof_collectors.py_spy_window import Request, Window

_READY = b"ready\n"
_CHILD = "import time; print('ready', flush=True); time.sleep(120)"
_RATE_HZ = 20
_START_PATIENCE_S = 20.0
_MOST_SAID_BYTES = 65_536


def probe(interpreter: str, python: str | None) -> tuple[str, Trouble | None]:
    """Sample a child for a second.

    Args:
        interpreter: what to run as the child; where it does not answer, our own takes its place.
        python: its version, None where unknown.

    Returns:
        What was found, in words, and what is the matter; None when py-spy works.
    """
    executable = find(os.environ.get("PATH"), interpreter)
    if executable is None:
        return MISSING, Trouble(MISSING, INSTALL)
    said = version(executable)
    name = f"{executable}, version {said or 'unknown'}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPYREPROF_")}
    ours = ".".join(str(part) for part in sys.version_info[:3])
    for candidate, its_version in ((interpreter, python), (sys.executable, ours)):
        child = _start(candidate, environment)
        if child is None:
            continue
        try:
            trouble = _sample(executable, child.pid, environment, said, its_version)
        finally:
            _end(child)
        return name, trouble
    return name, Trouble("no Python could be started to try it on", None)


def _start(interpreter: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    try:
        child = subprocess.Popen(
            [interpreter, "-c", _CHILD],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError:
        return None
    is_ready = False
    try:
        is_ready = child.stdout is not None and _says_ready(child.stdout.fileno())
    finally:
        if not is_ready:
            _end(child)
    return child if is_ready else None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End it and what it started: a script in the place of the interpreter has a child that holds the pipe."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout is not None:
        child.stdout.close()
    child.wait()


def _says_ready(pipe: int) -> bool:
    """Whether it gets to our line. A sitecustomize may print first; what is no Python may print or sleep for ever."""
    said = b""
    deadline_s = time.monotonic() + _START_PATIENCE_S
    while _READY not in said and len(said) < _MOST_SAID_BYTES:
        ready, _, _ = select.select([pipe], [], [], max(deadline_s - time.monotonic(), 0.0))
        data = os.read(pipe, 4096) if ready else b""
        if not data:
            return False
        said += data
    return _READY in said


def _sample(
    executable: str, pid: int, environment: Mapping[str, str], said: str | None, python: str | None
) -> Trouble | None:
    try:
        window = Window.open(Request(executable, pid, _RATE_HZ, 1, with_sleeping=True), environment)
    except OSError as error:
        return Trouble(f"it cannot be run: {(error.strerror or str(error)).lower()}", INSTALL)
    try:
        while not window.advance():
            pass
    finally:
        window.kill("interrupted")
    if window.fault is not None:
        return Trouble(f"tried on a child of ours, {window.fault}", None)
    return None if window.row() is not None else explain(window.messages, pid, said, python)
