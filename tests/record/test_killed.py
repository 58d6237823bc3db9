"""A recording that is killed at any moment opens, and holds every step that ended more than a second before."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from recording_run import environment, is_running, python, start, wait_for_text, wait_until

pytest.importorskip("pandas")

from spyreprof.recording.store import open_recording

NS = 1_000_000_000
KILLED = -signal.SIGKILL

# Three processes step at their own pace; each writes its own log, a line per step that has ended.
PROGRAM = """
import os, random, sys, time
import spyreprof_agent

seed = int(sys.argv[1])
log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for child in (1, 2):
    if os.fork() == 0:
        seed += child
        break
draw = random.Random(seed)
busy = draw.random() < 0.3
pace_s = draw.choice((0.0005, 0.005, 0.05))
pid = os.getpid()
while True:
    began = time.monotonic_ns()
    with spyreprof_agent.step("decode", generation_requests=1):
        if busy:
            while time.monotonic_ns() < began + pace_s * 1e9:
                pass
        else:
            time.sleep(pace_s * draw.random())
    os.write(log, f"{pid} {began} {time.monotonic_ns()}\\n".encode())
"""


def logged_steps(path: Path) -> dict[int, list[tuple[int, int]]]:
    """(began, ended) of every step by process, as the program itself saw them."""
    steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in path.read_text().splitlines() if path.exists() else ():
        pid, began, ended = map(int, line.split())
        steps[pid].append((began, ended))
    return steps


def recorded_steps(path: Path) -> dict[int, list[tuple[int, int]]]:
    steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    table = open_recording(path).steps
    for writer, start_ns, end_ns in zip(table["writer"], table["start_ns"], table["end_ns"], strict=True):
        steps[int(writer.partition("-")[0])].append((int(start_ns), int(end_ns)))
    return steps


def lost(log: Path, recording: Path, before_ns: int, earlier: Mapping[int | None, int] | None = None) -> list[str]:
    """Steps that ended before a moment and are not in the recording; `earlier` moments hold for single processes."""
    recorded = recorded_steps(recording)
    missing = []
    for pid, steps in logged_steps(log).items():
        limit_ns = (earlier or {}).get(pid, before_ns)
        rows = iter(sorted(recorded[pid]))
        row = next(rows, None)
        for began, ended in steps:
            while row is not None and row[0] < began:
                row = next(rows, None)
            if ended < limit_ns and (row is None or row[1] > ended):
                missing.append(f"process {pid}: a step ended {(limit_ns - ended) / 1e6:.0f} ms before")
    return missing


def kill_session(leader: int) -> None:
    """Kill what is left of the session that `start` began."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def program_of(launcher: int) -> int | None:
    """The launcher's child that is not its helper; None as long as there is none."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        # The helper is a fork of the launcher.
        if b"\0record\0" not in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def killed_at_a_random_moment(folder: Path, seed: int) -> str | None:
    """Record, kill, open; returns what is wrong with the outcome."""
    folder.mkdir()
    draw = random.Random(seed)
    victim = draw.choice(("all", "program", "launcher"))
    moment_s = draw.uniform(0.0, 4.0)
    process = start(folder, python(PROGRAM, str(seed)), "--quiet")
    try:
        time.sleep(moment_s)
        program = program_of(process.pid)
        first_ns = killed_ns = time.monotonic_ns()
        if victim == "all":
            kill_session(process.pid)
        elif victim == "program" and program is not None:
            os.kill(program, signal.SIGKILL)
        else:
            process.kill()
        if victim == "program" and program is not None and process.wait(60) != KILLED:
            return f"seed {seed}: the launcher ended with {process.returncode}"
        if victim != "all":
            # Those that live on go on recording.
            time.sleep(draw.uniform(0.0, 1.5))
            killed_ns = time.monotonic_ns()
    finally:
        kill_session(process.pid)
        process.communicate()
    recording = folder / "run.spyreprof"
    if not (recording / "manifest.json").exists():
        return None if not (folder / "log").exists() else f"seed {seed}: a program ran, and there is no manifest"
    earlier = {program: first_ns - NS} if victim == "program" else {}
    missing = lost(folder / "log", recording, killed_ns - NS, earlier)
    if missing:
        return f"seed {seed}, {victim} killed after {moment_s:.2f} s: {len(missing)} steps lost, {missing[:3]}"
    if seed % 10 == 0:
        return reported(recording)
    return None


def reported(recording: Path) -> str | None:
    done = subprocess.run(
        [sys.executable, "-m", "spyreprof", "report", "--json", str(recording)],
        env=environment(), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        return f"{recording}: report ended with {done.returncode}: {done.stderr.decode()}"
    json.loads(done.stdout)
    return None


def outcomes(tmp_path: Path, seeds: range) -> list[str]:
    with ThreadPoolExecutor(2) as two_at_a_time:
        found = two_at_a_time.map(lambda seed: killed_at_a_random_moment(tmp_path / str(seed), seed), seeds)
        wrong = [outcome for outcome in found if outcome is not None]
    # Most of them came to take steps.
    assert len(list(tmp_path.glob("*/log"))) > len(seeds) / 2
    return wrong


def test_killed_at_four_moments_a_recording_keeps_all_but_the_last_second(tmp_path: Path) -> None:
    assert outcomes(tmp_path, range(1, 5)) == []


@pytest.mark.slow
def test_killed_at_fifty_moments_a_recording_keeps_all_but_the_last_second(tmp_path: Path) -> None:
    assert outcomes(tmp_path, range(50)) == []


# Steps of 20 ms, then one long call, during which somebody kills the process.
LONG_CALL = """
import ctypes, os, sys, time
import spyreprof_agent

log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
library = ctypes.PyDLL(None) if sys.argv[1] == "holding" else ctypes.CDLL(None)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    began = time.monotonic_ns()
    with spyreprof_agent.step("decode", generation_requests=1):
        time.sleep(0.02)
    os.write(log, f"{os.getpid()} {began} {time.monotonic_ns()}\\n".encode())
open("calls", "w").write(f"{os.getpid()} {time.monotonic_ns()}\\n")
library.sleep(60)
"""


def killed_in_a_long_call(tmp_path: Path, how: str) -> tuple[int, int]:
    """Returns (when the call began, when the kill came), in ns."""
    process = start(tmp_path, python(LONG_CALL, how))
    pid, called_ns = map(int, wait_for_text(tmp_path / "calls").split())
    time.sleep(1.5)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    wait_until(lambda: not is_running(pid), "the program's end")
    return called_ns, killed_ns


def test_a_long_call_that_releases_the_interpreter_lock_loses_nothing_from_before_it(tmp_path: Path) -> None:
    called_ns, killed_ns = killed_in_a_long_call(tmp_path, "releasing")
    assert called_ns < killed_ns - NS
    assert lost(tmp_path / "log", tmp_path / "run.spyreprof", killed_ns - NS) == []


def test_a_long_call_that_holds_the_interpreter_lock_loses_at_most_the_second_before_it(tmp_path: Path) -> None:
    # Nothing of Python can run during the call, the flusher least of all.
    called_ns, _ = killed_in_a_long_call(tmp_path, "holding")
    assert lost(tmp_path / "log", tmp_path / "run.spyreprof", called_ns - NS) == []
    # The call is what it is meant to be: the last step before it did not reach the disk.
    assert lost(tmp_path / "log", tmp_path / "run.spyreprof", called_ns) != []


def test_steps_before_a_fork_are_kept_though_no_step_follows(tmp_path: Path) -> None:
    code = """
import os, time
import spyreprof_agent
for _ in range(5):
    with spyreprof_agent.step("decode", generation_requests=1):
        pass
if os.fork() == 0:
    time.sleep(60)
open("waits", "w").write(f"{os.getpid()}\\n")
time.sleep(60)
"""
    process = start(tmp_path, python(code))
    wait_for_text(tmp_path / "waits")
    kill_session(process.pid)
    process.communicate(timeout=60)
    assert sum(map(len, recorded_steps(tmp_path / "run.spyreprof").values())) == 5
