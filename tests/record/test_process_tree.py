"""Children, orphans, detached processes, process 1, and the launcher's own sudden death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recording_run import (
    environment,
    finish,
    is_running,
    python,
    read_manifest,
    record,
    record_command,
    start,
    wait_for_text,
    wait_until,
)

# Detaches a grandchild as daemons do, and ends.
DETACH = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        with open("daemon", "w") as file:
            file.write(f"{os.getpid()} {os.getppid()}\\n")
        SLEEP
        os._exit(0)
    os._exit(0)
os.wait()
while not (os.path.exists("daemon") and open("daemon").read().endswith("\\n")):
    time.sleep(0.01)
AFTER
"""


def test_a_detached_process_that_goes_on_is_named_and_left_alone(tmp_path: Path) -> None:
    code = DETACH.replace("SLEEP", "time.sleep(99)").replace("AFTER", "")
    run = record(tmp_path, python(code))
    daemon = int((tmp_path / "daemon").read_text().split()[0])
    try:
        assert run.code == 0
        assert is_running(daemon)
        assert f"left running: process {daemon} (" in run.notes
        assert b"left running" in run.stderr
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_detached_process_stays_in_the_tree_and_is_sampled(tmp_path: Path) -> None:
    code = DETACH.replace("SLEEP", "time.sleep(99)").replace("AFTER", "time.sleep(1.5)")
    run = record(tmp_path, python(code))
    daemon = int((tmp_path / "daemon").read_text().split()[0])
    try:
        sampled = [row for row in run.rows("usage") if row.get("pid") == daemon]
        assert sampled
        launcher = {row["ppid"] for row in sampled}
        assert len(launcher) == 1
        assert launcher != {1}
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_orphans_that_end_are_collected(tmp_path: Path) -> None:
    after = """
daemon = open("daemon").read().split()[0]
while os.path.exists(f"/proc/{daemon}"):
    time.sleep(0.01)
print("gone")
"""
    run = record(tmp_path, python(DETACH.replace("SLEEP", "").replace("AFTER", after)))
    assert run.stdout == b"gone\n"


def test_the_recorder_leaves_no_process_behind(tmp_path: Path) -> None:
    process = start(tmp_path, python("print(1)"))
    finish(process, tmp_path)
    sessions = {path: session_of(path) for path in Path("/proc").glob("[0-9]*/stat")}
    assert [path for path, session in sessions.items() if session == process.pid] == []


def session_of(path: Path) -> int | None:
    try:
        return int(path.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


def test_the_processes_of_the_program_are_merged_into_the_manifest(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])"
    manifest = record(tmp_path, python(code)).manifest
    main, child = sorted(manifest["processes"], key=lambda process: process["opened_ns"])
    assert child["ppid"] == main["pid"]
    assert main["closed_ns"] > child["closed_ns"] > child["opened_ns"] > main["opened_ns"] > manifest["started_ns"]
    assert main["python"] == sys.version.split()[0]


def test_after_kill_of_the_launcher_the_recording_is_there_and_the_program_lives(tmp_path: Path) -> None:
    process = start(tmp_path, python("import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(99)"))
    program = int(wait_for_text(tmp_path / "pid"))
    try:
        usage = tmp_path / "run.spyreprof" / "shards" / "usage-launcher.jsonl"
        wait_until(lambda: usage.exists() and usage.read_text().endswith("\n"), "a usage row")
        process.kill()
        process.wait()
        assert is_running(program)
        manifest = read_manifest(tmp_path / "run.spyreprof")
        assert manifest["ended_ns"] is None
        assert manifest["exit"] is None
        assert manifest["started_ns"] > 0
    finally:
        os.kill(program, signal.SIGKILL)
        process.communicate()


def test_an_unfinished_recording_opens(tmp_path: Path) -> None:
    pytest.importorskip("msgspec")
    pytest.importorskip("pandas")
    from spyreprof.recording.store import open_recording

    process = start(tmp_path, python("import time; print('on', flush=True); time.sleep(99)"))
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    recording = open_recording(tmp_path / "run.spyreprof")
    assert recording.manifest.ended_ns is None
    assert len(recording.steps) == 0


def unshare_works() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    done = subprocess.run([unshare, "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False)
    return done.returncode == 0


as_process_one = pytest.mark.skipif(not unshare_works(), reason="this system lets us make no process namespace")


def in_namespace(tmp_path: Path, program: list[str]) -> subprocess.CompletedProcess[bytes]:
    words = ["unshare", "--pid", "--fork", "--mount-proc", *record_command(tmp_path / "run.spyreprof", program)]
    return subprocess.run(
        words, env=environment(), cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )


@as_process_one
def test_as_process_one_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    done = in_namespace(tmp_path, python("import os; print(os.getppid()); raise SystemExit(5)"))
    assert (done.returncode, done.stdout) == (5, b"1\n")


@as_process_one
def test_as_process_one_a_killing_signal_becomes_128_and_its_number(tmp_path: Path) -> None:
    done = in_namespace(tmp_path, python("import os; os.kill(os.getpid(), 15)"))
    assert done.returncode == 128 + signal.SIGTERM


@as_process_one
def test_as_process_one_orphans_are_collected(tmp_path: Path) -> None:
    after = """
daemon = open("daemon").read().split()[0]
while os.path.exists(f"/proc/{daemon}"):
    time.sleep(0.01)
"""
    done = in_namespace(tmp_path, python(DETACH.replace("SLEEP", "").replace("AFTER", after)))
    assert done.returncode == 0


@as_process_one
def test_as_process_one_sigterm_from_outside_ends_the_program(tmp_path: Path) -> None:
    # as a container's stop does: to process 1 alone
    code = "import time; open('ready', 'w').write('x\\n'); time.sleep(99)"
    words = record_command(tmp_path / "run.spyreprof", python(code))
    outer = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", *words],
        env=environment(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_text(tmp_path / "ready")
        (launcher,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(launcher), signal.SIGTERM)
        assert outer.wait(60) == 128 + signal.SIGTERM
    finally:
        outer.kill()
        outer.wait()
    assert read_manifest(tmp_path / "run.spyreprof")["exit"] == {"signal": signal.SIGTERM}
