"""Runs `spyreprof record` as users do, in another process, and reads what it left."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = [str(ROOT), str(ROOT / "collectors"), str(ROOT / "analyzers")]
PATIENCE_S = 60.0


def environment(**extra: str) -> dict[str, str]:
    """Our environment, able to import spyreprof from this tree, free of an enclosing recording."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPYREPROF_")}
    own["PYTHONPATH"] = os.pathsep.join(SOURCE_ROOTS)
    return {**own, **extra}


def record_command(out: Path | None, program: Sequence[str | Path], *options: str) -> list[str]:
    """The command line of a recording without calibration, which takes seconds."""
    where = ["--out", str(out)] if out is not None else []
    words = [sys.executable, "-m", "spyreprof", "record", "--no-calibrate", *where, *options, "--"]
    return [*words, *(str(word) for word in program)]


# A program's first lines: `deliveries()` counts signals as the kernel delivers them. Python's own handlers would run
# once for two that come close together.
COUNT_DELIVERIES = """
import os, signal, sys, time
wakeups, wakeup_writer = os.pipe()
os.set_blocking(wakeups, False)
os.set_blocking(wakeup_writer, False)
signal.set_wakeup_fd(wakeup_writer)
came = bytearray()

def deliveries(number):
    try:
        came.extend(os.read(wakeups, 100))
    except BlockingIOError:
        pass
    return came.count(number)

def count_for_a_while(number):
    signal.signal(number, lambda *_: None)
    print("ready", flush=True)
    while not deliveries(number):
        time.sleep(0.01)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        time.sleep(0.01)
    return deliveries(number)
"""


@dataclass(frozen=True)
class Finished:
    """A recording that ended, with everything it printed."""

    code: int
    stdout: bytes
    stderr: bytes
    path: Path

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    @property
    def notes(self) -> str:
        return " ".join(self.manifest["notes"])

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return read_rows(self.path, kind)

    def collector(self, name: str) -> dict[str, Any]:
        return next(entry for entry in self.manifest["collectors"] if entry["name"] == name)


def record(
    tmp_path: Path,
    program: Sequence[str | Path],
    *options: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Finished:
    """Record a program to its end, in `tmp_path`."""
    out = tmp_path / "run.spyreprof"
    done = subprocess.run(
        record_command(out, program, *options),
        input=stdin,
        capture_output=True,
        cwd=tmp_path,
        env=dict(env or environment()),
        timeout=patience_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr, out)


def python(code: str, *arguments: str) -> list[str]:
    """A program of one piece of Python code."""
    return [sys.executable, "-c", code, *arguments]


def start(tmp_path: Path, program: Sequence[str | Path], *options: str) -> subprocess.Popen[bytes]:
    """Begin a recording in a session of its own and leave it running."""
    return subprocess.Popen(
        record_command(tmp_path / "run.spyreprof", program, *options),
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[bytes], tmp_path: Path) -> Finished:
    """Wait for a recording that `start` began; whatever hangs is killed with its whole session."""
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return Finished(process.returncode, stdout, stderr, tmp_path / "run.spyreprof")


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must come; the limit only ends a test that has failed."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"did not come: {what}"
        time.sleep(0.01)


def wait_for_text(path: Path) -> str:
    """Wait until a program has written a whole line into a file."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"a line in {path.name}")
    return path.read_text()


def read_manifest(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return document


def read_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for shard in sorted((path / "shards").glob(f"{kind}-*.jsonl"))
        for line in shard.read_text().splitlines()
    ]


def is_running(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def slow_page() -> Iterator[str]:
    """A /metrics page that takes its time, so that a signal passed on after a poll comes clearly later."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.2)
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(b"a 1\n")

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
