"""Whatever is killed, full, gone or read-only: the program ends as ever, and what was recorded can be read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recording_run import (
    Finished,
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
from test_process_tree_compared import STEPS

# Prints "ready" with its process id, then waits for SIGTERM and exits with 7.
PATIENT = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
steps(3)
open("ready", "w").write(f"{os.getpid()}\\n")
while True:
    time.sleep(0.05)
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def witness_of(launcher: int, program: int) -> int:
    (witness,) = set(children_of(launcher)) - {program}
    return witness


def report(path: Path) -> dict[str, Any]:
    """The report as JSON; it must come though nobody finished the recording."""
    done = subprocess.run(
        [sys.executable, "-m", "spyreprof", "report", "--json", str(path)],
        env=environment(), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def steps_in(path: Path) -> int:
    pytest.importorskip("pandas")
    from spyreprof.recording.store import open_recording

    return len(open_recording(path).steps)


def test_a_killed_group_witness_costs_no_signal(tmp_path: Path) -> None:
    process = start(tmp_path, python(STEPS + PATIENT))
    program = int(wait_for_text(tmp_path / "ready"))
    witness = witness_of(process.pid, program)
    os.kill(witness, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{witness}").exists(), "the witness's end")
    os.kill(process.pid, signal.SIGTERM)
    run = finish(process, tmp_path)
    assert run.code == 7
    assert run.manifest["exit"] == {"code": 7}
    assert len(run.rows("steps")) == 3
    assert b"Traceback" not in run.stderr


def test_a_stopped_group_witness_holds_up_neither_a_signal_nor_the_end(tmp_path: Path) -> None:
    process = start(tmp_path, python(STEPS + PATIENT))
    program = int(wait_for_text(tmp_path / "ready"))
    os.kill(witness_of(process.pid, program), signal.SIGSTOP)
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process, tmp_path).code == 7


def test_a_program_killed_in_the_middle_of_its_children_is_told_from_them(tmp_path: Path) -> None:
    code = """
if os.fork() == 0:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    steps(2)
    open("child", "w").write(f"{os.getpid()}\\n")
    time.sleep(60)
steps(1)
while not os.path.exists("child"):
    time.sleep(0.01)
time.sleep(0.7)
os.write(1, b"x")
import ctypes
ctypes.CDLL(None).kill(os.getpid(), 9)
"""
    run = record(tmp_path, python(STEPS + code))
    child = int(wait_for_text(tmp_path / "child"))
    try:
        assert (run.code, run.stdout) == (-signal.SIGKILL, b"x")
        assert run.manifest["exit"] == {"signal": 9}
        assert f"left running: process {child} (" in run.notes
        assert "Ended without a closing row" in run.notes
        assert steps_in(run.path) == 3
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_nothing_of_ours_outlives_a_killed_launcher_and_the_program_goes_on_recording(tmp_path: Path) -> None:
    process = start(tmp_path, python(STEPS + PATIENT.replace("time.sleep(0.05)", "(steps(1), time.sleep(0.05))")))
    program = int(wait_for_text(tmp_path / "ready"))
    witness = witness_of(process.pid, program)
    process.kill()
    process.wait()
    try:
        wait_until(lambda: not is_running(witness), "the witness's end")
        before = steps_in(tmp_path / "run.spyreprof")
        wait_until(lambda: steps_in(tmp_path / "run.spyreprof") > before, "more steps")
    finally:
        os.kill(program, signal.SIGTERM)
        process.communicate()
    wait_until(lambda: not is_running(program), "the program's end")
    report(tmp_path / "run.spyreprof")
    assert read_manifest(tmp_path / "run.spyreprof")["ended_ns"] is None


def test_a_launcher_killed_before_the_program_is_known_leaves_a_recording_that_opens(tmp_path: Path) -> None:
    # The program kills it at once: nothing of the end is ever written.
    code = "os.kill(os.getppid(), 9); steps(2); open('done', 'w').write('x\\n')"
    process = start(tmp_path, python(STEPS + code))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    wait_for_text(tmp_path / "done")
    wait_until(lambda: steps_in(tmp_path / "run.spyreprof") == 2, "both steps")


def test_a_program_that_ignores_sigterm_goes_on_and_ends_by_itself(tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready", "w").write("x\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
steps(2)
sys.exit(4)
"""
    process = start(tmp_path, python(STEPS + code))
    wait_for_text(tmp_path / "ready")
    os.kill(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    run = finish(process, tmp_path)
    assert run.code == 4
    assert run.manifest["exit"] == {"code": 4}
    assert len(run.rows("steps")) == 2


# Steps until nothing can be written any more, and a while longer.
UNTIL_FULL = """
import json
from _spyreprof import install
writer = install._agent.writer
deadline = time.monotonic() + 30
while writer.alive and time.monotonic() < deadline:
    steps(500)
    time.sleep(0.01)
steps(5000)
print("full", writer.alive, flush=True)
"""


def test_shards_that_cannot_grow_cost_the_rows_alone_and_the_recording_says_so(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
    run = record(tmp_path, python(STEPS + limit + UNTIL_FULL + "sys.exit(5)"))
    assert (run.code, run.stdout) == (5, b"full False\n")
    assert b"Traceback" not in run.stderr
    assert run.collector("shards")["state"] == "unavailable"
    assert "File too large" in run.collector("shards")["reason"] or "No space" in run.collector("shards")["reason"]
    assert "without a closing row" not in run.notes
    assert 500 < steps_in(run.path) < 5000


def mounted_run(tmp_path: Path, size: str, program: Sequence[str]) -> Finished:
    """Record onto a small file system of its own, and bring the recording out of it."""
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size={size},mode=0700 tmpfs small"
    (tmp_path / "small").mkdir()
    tried = unshare and subprocess.run(
        [unshare, "--mount", "sh", "-c", mount], cwd=tmp_path, capture_output=True, check=False
    )
    if not unshare or not tried or tried.returncode:
        pytest.skip("this system lets us mount no file system")
    script = f'{mount} || exit 99; "$@"; code=$?; cp -r small/run.spyreprof . || exit 98; exit $code'
    words = [unshare, "--mount", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*words, *record_command(tmp_path / "small" / "run.spyreprof", program)],
        cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr, tmp_path / "run.spyreprof")


def test_a_full_disk_leaves_the_program_alone_and_what_fitted_can_be_read(tmp_path: Path) -> None:
    run = mounted_run(tmp_path, "300k", python(STEPS + UNTIL_FULL + "print('end'); sys.exit(5)"))
    assert (run.code, run.stdout) == (5, b"full False\nend\n")
    assert b"Traceback" not in run.stderr
    assert steps_in(run.path) > 500
    report(run.path)


def test_a_disk_that_was_full_and_has_room_again_at_the_end_holds_the_reason(tmp_path: Path) -> None:
    # The program's own file fills the disk, and it removes it again.
    code = (
        """
fill = open(os.environ["SPYREPROF_DIR"] + "/../fill", "wb", buffering=0)
try:
    while fill.write(bytes(1000)):
        pass
except OSError:
    pass
"""
        + UNTIL_FULL
        + "os.unlink(fill.name); fill.close(); sys.exit(5)"
    )
    run = mounted_run(tmp_path, "1m", python(STEPS + code))
    assert (run.code, run.stdout) == (5, b"full False\n")
    assert "No space left on device" in run.collector("shards")["reason"]
    assert run.manifest["exit"] == {"code": 5}
    assert "without a closing row" not in run.notes


@pytest.mark.parametrize("what", ["", "shards"], ids=["the folder", "its shards"])
def test_a_recording_removed_under_way_harms_nobody_and_is_said_in_one_sentence(tmp_path: Path, what: str) -> None:
    code = f"""
import shutil, subprocess
steps(3)
time.sleep(1.2)
shutil.rmtree(os.path.join(os.environ["SPYREPROF_DIR"], {what!r}))
steps(3)
time.sleep(0.7)
steps(3)
if os.fork() == 0:
    steps(1)
    sys.exit(0)
print(os.wait()[1], subprocess.run([sys.executable, "-c", "print('child', flush=True)"]).returncode)
sys.exit(6)
"""
    run = record(tmp_path, python(STEPS + code))
    assert (run.code, run.stdout) == (6, b"child\n0 0\n")
    lines = run.stderr.decode().splitlines()
    assert all(line.startswith("spyreprof: ") for line in lines)
    if not what:
        assert not run.path.exists()
        said = [line for line in lines if "incomplete" in line]
        assert said == ["spyreprof: the recording ./run.spyreprof is incomplete: no such file or directory"]
    else:
        assert run.manifest["exit"] == {"code": 6}
        assert steps_in(run.path) == 0


# Root writes into read-only folders, unless it gives that up.
ONLY_AS_ALLOWED = """
import ctypes, os, sys
if os.geteuid() == 0:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
            sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_recording_made_read_only_under_way_harms_nobody(tmp_path: Path) -> None:
    code = """
import subprocess
steps(3)
time.sleep(1.2)
for folder in ("shards", "traces", ""):
    os.chmod(os.path.join(os.environ["SPYREPROF_DIR"], folder), 0o500)
try:
    open(os.environ["SPYREPROF_DIR"] + "/x", "w")
except PermissionError:
    print("read-only", flush=True)
steps(3)
print(subprocess.run([sys.executable, "-c", "print('child', flush=True)"]).returncode)
sys.exit(6)
"""
    words = record_command(tmp_path / "run.spyreprof", python(STEPS + code))
    done = subprocess.run(
        [*python(ONLY_AS_ALLOWED), *words],
        cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this system does not let root give up its rights")
    path = tmp_path / "run.spyreprof"
    for folder in ("", "shards", "traces"):
        (path / folder).chmod(0o700)
    assert (done.returncode, done.stdout) == (6, b"read-only\nchild\n0\n")
    assert b"Traceback" not in done.stderr
    assert done.stderr.decode().splitlines()[-2:-1] == [
        "spyreprof: the recording ./run.spyreprof is incomplete: permission denied"
    ]
    # Files that are there can still be added to.
    assert steps_in(path) == 6


FLOOD = """
import resource
from _spyreprof import install, writer
writer.MAX_SHARD_BYTES = {limit}
step = spyreprof_agent.step("decode", generation_requests=1)
for number in range({count}):
    step.begin()
    step.end()
peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("done", peak_kib < 150_000)
"""


def test_a_flood_of_steps_is_kept_whole_below_the_limit_and_needs_little_memory(tmp_path: Path) -> None:
    count = 400_000
    run = record(tmp_path, python(STEPS + FLOOD.format(limit=2**28, count=count)))
    assert (run.code, run.stdout) == (0, b"done True\n")
    shards = list((run.path / "shards").glob("steps-*"))
    assert sum(shard.read_bytes().count(b"\n") for shard in shards) == count
    assert [entry for entry in run.manifest["collectors"] if entry["name"] == "steps.shard"] == []


def test_a_flood_beyond_the_limit_of_a_shard_is_counted_and_said(tmp_path: Path) -> None:
    count, limit = 100_000, 2_000_000
    run = record(tmp_path, python(STEPS + FLOOD.format(limit=limit, count=count)))
    assert (run.code, run.stdout) == (0, b"done True\n")
    (shard,) = (run.path / "shards").glob("steps-*")
    kept = shard.read_bytes()
    # A batch may be half written when the limit is met.
    assert limit <= len(kept) < 2 * limit
    state = run.collector("steps.shard")
    assert state["state"] == "partial"
    left_out = count - kept.count(b"\n")
    assert f"the shard reached its size limit: {left_out} rows left out" in state["reason"]
    assert steps_in(run.path) == count - left_out


def test_a_flood_while_the_disk_hangs_bounds_the_memory_and_is_counted(tmp_path: Path) -> None:
    count = 300_000
    hung = "install._agent.writer._flushing.acquire()  # as a write that does not come back holds it\n"
    freed = "install._agent.writer._flushing.release()\n"
    flood = FLOOD.format(limit=2**28, count=count).replace("step = ", hung + "step = ") + freed
    run = record(tmp_path, python(STEPS + flood))
    assert (run.code, run.stdout) == (0, b"done True\n")
    kept = len(run.rows("steps"))
    assert 100_000 < kept < count
    reason = run.collector("steps.shard")["reason"]
    assert f"they came faster than they could be written: {count - kept} rows left out" in reason


MANY = """
import subprocess
if "child" in sys.argv:
    steps(1)
    sys.exit(0)
for _ in range({plain}):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
for _ in range({orphans}):
    # its child is left to the launcher
    os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "/bin/true &"], os.environ), 0)
for _ in range({forks}):
    if os.fork() == 0:
        steps(1)
        os._exit(0)
    os.wait()
for _ in range({spawned}):
    os.waitpid(os.posix_spawn(sys.executable, [sys.executable, sys.argv[0], "child"], os.environ), 0)
launcher = {{line.split(":")[0]: line.split(":")[1] for line in open(f"/proc/{{os.getppid()}}/status")}}
print(int(launcher["VmHWM"].split()[0]), launcher["Threads"].strip())
sys.exit(3)
"""


def many_children(tmp_path: Path, **counts: int) -> Finished:
    program = tmp_path / "many.py"
    program.write_text(STEPS + MANY.format(**counts))
    run = record(tmp_path, [sys.executable, program], patience_s=240)
    assert run.code == 3, run.stderr
    peak_kib = int(run.stdout.split()[0])
    assert peak_kib < 150_000
    assert (run.path / "manifest.json").stat().st_size < 1_000_000
    python_processes = counts["forks"] + counts["spawned"]
    assert len(run.rows("steps")) == python_processes
    assert len(run.manifest["processes"]) == min(python_processes + 1, 1000)
    return run


def test_hundreds_of_short_lived_children_are_all_recorded(tmp_path: Path) -> None:
    many_children(tmp_path, plain=300, orphans=50, forks=150, spawned=10)


@pytest.mark.slow
def test_ten_thousand_short_lived_children_bound_the_launcher_and_the_manifest(tmp_path: Path) -> None:
    run = many_children(tmp_path, plain=8000, orphans=500, forks=1400, spawned=100)
    assert "1000 of 1501 processes are listed here; the shards hold all." in run.notes
    assert report(run.path)["quality"]["coverage"]["processes"] == 1501
