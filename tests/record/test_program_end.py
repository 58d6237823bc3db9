"""The program's end is ours, whatever it is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recording_run import (
    COUNT_DELIVERIES,
    Finished,
    environment,
    finish,
    python,
    read_manifest,
    record,
    record_command,
    slow_page,
    start,
    wait_for_text,
)


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_the_programs(tmp_path: Path, code: int) -> None:
    run = record(tmp_path, python(f"raise SystemExit({code})"))
    assert run.code == code
    assert run.manifest["exit"] == {"code": code, "signal": None} or run.manifest["exit"] == {"code": code}


def test_an_uncaught_exception_is_the_programs_own_traceback_and_code(tmp_path: Path) -> None:
    run = record(tmp_path, python("raise ValueError('boom')"))
    assert run.code == 1
    assert run.stderr.count(b"Traceback") == 1
    assert b"ValueError: boom" in run.stderr
    assert b"The program exited with code 1." in run.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGUSR1])
def test_a_program_killed_by_a_signal_takes_us_along_by_the_same_signal(tmp_path: Path, number: int) -> None:
    run = record(tmp_path, python(f"import os; os.kill(os.getpid(), {int(number)})"))
    assert run.code == -number
    assert run.manifest["exit"]["signal"] == number
    assert f"killed by {signal.Signals(number).name}" in run.stderr.decode()


def test_our_own_death_by_the_programs_signal_leaves_no_core_file(tmp_path: Path) -> None:
    # only the program's own core would tell anything, and it lowers its limit here
    code = "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()"
    run = record(tmp_path, python(code))
    assert run.code == -signal.SIGABRT
    assert not list(tmp_path.glob("core*"))


def test_sigterm_to_the_program_itself_is_recorded_as_its_end(tmp_path: Path) -> None:
    process = start(
        tmp_path, python("import os, sys, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(99)")
    )
    os.kill(int(wait_for_text(tmp_path / "pid")), signal.SIGTERM)
    run = finish(process, tmp_path)
    assert run.code == -signal.SIGTERM
    assert run.manifest["ended_ns"] > run.manifest["started_ns"]


COUNTING = (
    COUNT_DELIVERIES
    + """
print = lambda *_, **__: open("ready", "w").write(f"{os.getpid()}\\n")
open("count", "w").write(f"{count_for_a_while(getattr(signal, sys.argv[1]))}\\n")
sys.exit(7)
"""
)


def run_counting(tmp_path: Path, name: str, to_group: bool = False, to_program: bool = False) -> Finished:
    with slow_page() as url:
        process = start(tmp_path, python(COUNTING, name), "--metrics-url", url)
        program = int(wait_for_text(tmp_path / "ready"))
        number = getattr(signal, name)
        if to_group:
            os.killpg(process.pid, number)
        else:
            os.kill(program if to_program else process.pid, number)
        return finish(process, tmp_path)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGALRM"])
def test_a_signal_to_the_launcher_reaches_the_program_once(tmp_path: Path, name: str) -> None:
    run = run_counting(tmp_path, name)
    assert (tmp_path / "count").read_text() == "1\n"
    assert run.code == 7


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_whole_group_reaches_the_program_once(tmp_path: Path, name: str) -> None:
    run = run_counting(tmp_path, name, to_group=True)
    assert (tmp_path / "count").read_text() == "1\n"
    assert run.code == 7


def test_a_real_time_signal_is_passed_on_too(tmp_path: Path) -> None:
    run = run_counting(tmp_path, "SIGRTMIN")
    assert (tmp_path / "count").read_text() == "1\n"
    assert run.code == 7


def test_a_signal_to_the_program_alone_does_not_come_back_from_us(tmp_path: Path) -> None:
    run_counting(tmp_path, "SIGUSR1", to_program=True)
    assert (tmp_path / "count").read_text() == "1\n"


def test_a_signal_that_the_group_got_earlier_does_not_hide_a_later_one_to_us_alone(tmp_path: Path) -> None:
    code = """
import os, signal, time
came = []
signal.signal(signal.SIGUSR1, lambda *_: (came.append(1), open(f"got{len(came)}", "w").write("x\\n")))
open("ready", "w").write("x\\n")
while len(came) < 2:
    time.sleep(0.01)
"""
    process = start(tmp_path, python(code))
    wait_for_text(tmp_path / "ready")
    os.killpg(process.pid, signal.SIGUSR1)
    wait_for_text(tmp_path / "got1")
    # closer together the two would count as one
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGUSR1)
    run = finish(process, tmp_path)
    assert run.code == 0


def test_duration_ends_the_program_with_sigterm(tmp_path: Path) -> None:
    run = record(tmp_path, python("import time; time.sleep(99)"), "--duration", "1")
    assert run.code == -signal.SIGTERM
    assert "as --duration asked" in run.notes
    assert b"as --duration asked" in run.stderr


@pytest.mark.parametrize("endless", ["inf", "1e300"])
def test_a_duration_without_end_is_refused_before_anything_starts(tmp_path: Path, endless: str) -> None:
    run = record(tmp_path, python("open('started', 'w')"), "--duration", endless)
    assert run.code == 2
    assert b"is no time to wait" in run.stderr
    assert b"Traceback" not in run.stderr
    assert not list(tmp_path.rglob("started"))


def test_duration_leaves_the_exit_code_to_a_program_that_handles_sigterm(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); time.sleep(99)"
    assert record(tmp_path, python(code), "--duration", "1").code == 5


def test_a_program_shorter_than_the_duration_ends_by_itself(tmp_path: Path) -> None:
    run = record(tmp_path, python("pass"), "--duration", "50")
    assert (run.code, run.notes) == (0, "")


@pytest.mark.slow
def test_a_program_that_ignores_the_end_of_the_duration_is_killed_and_it_is_said(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
    run = record(tmp_path, python(code), "--duration", "0.5")
    assert run.code == -signal.SIGKILL
    assert "did not end within 10 s of SIGTERM and got SIGKILL" in run.notes


def test_the_exit_code_survives_a_parent_that_ignores_sigchld(tmp_path: Path) -> None:
    starter = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    out = tmp_path / "run.spyreprof"
    words = [sys.executable, "-m", "spyreprof", "record", "--no-calibrate", "--out", str(out), "--"]
    done = subprocess.run(
        [sys.executable, "-c", starter, *words, *python("raise SystemExit(9)")],
        env=environment(),
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 9


def test_a_worker_that_was_killed_is_named_though_the_program_exits_with_zero(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "import subprocess, sys\n"
        "worker = subprocess.Popen([sys.executable, '-c', \"import time; print(1, flush=True); time.sleep(99)\"],\n"
        "                          stdout=subprocess.PIPE)\n"
        "worker.stdout.readline()\n"
        "worker.kill()\n"
        "worker.wait()\n"
        "print(worker.pid)\n"
    )
    run = record(tmp_path, [sys.executable, program])
    assert run.code == 0
    cause = "(killed, crashed, or unable to write)"
    assert f"Ended without a closing row {cause}: process {run.stdout.decode().strip()}" in run.notes
    assert b"Ended without a closing row" in run.stderr


def test_timeout_ends_the_program_with_one_signal_though_it_sends_two(tmp_path: Path) -> None:
    if shutil.which("timeout") is None:
        pytest.skip("this system has no timeout(1)")
    words = record_command(tmp_path / "run.spyreprof", python(COUNTING, "SIGINT"))
    done = subprocess.run(
        ["timeout", "-s", "INT", "3", *words], env=environment(), cwd=tmp_path, timeout=60, check=False
    )  # fmt: skip
    assert (tmp_path / "count").read_text() == "1\n"
    assert done.returncode == 124


def test_signals_after_the_programs_end_do_not_replace_its_exit_code(tmp_path: Path) -> None:
    # An orphan, adopted by the launcher, signals it from the program's end to its own.
    code = """
import os, signal, time
program, launcher = os.getpid(), os.getppid()
if os.fork():
    os._exit(4)
for fd in (0, 1, 2):
    os.close(fd)
while os.getppid() == program or os.path.exists(f"/proc/{program}"):
    time.sleep(0.001)
try:
    while True:
        os.kill(launcher, signal.SIGINT)
        os.kill(launcher, signal.SIGTERM)
except ProcessLookupError:
    os._exit(0)
"""
    assert record(tmp_path, python(code)).code == 4


def test_a_program_that_removes_the_recording_keeps_its_exit_code(tmp_path: Path) -> None:
    code = "import os, shutil; shutil.rmtree(os.environ['SPYREPROF_DIR']); raise SystemExit(6)"
    run = record(tmp_path, python(code))
    assert run.code == 6
    assert b"is incomplete" in run.stderr
    assert b"Traceback" not in run.stderr


def test_a_fault_in_what_is_said_at_the_end_keeps_the_exit_code(tmp_path: Path) -> None:
    code = """
import sys
from spyreprof_collectors import conclusion, launcher
conclusion.summary = lambda *_: 1 / 0
words = (sys.executable, "-c", "raise SystemExit(6)")
sys.exit(launcher.record(launcher.RecordOptions(words, calibrate=False)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 6, done.stderr
    assert b"Traceback" not in done.stderr


def test_a_working_folder_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    starter = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"
    words = record_command(tmp_path / "run.spyreprof", ["/bin/sh", "-c", "exit 5"])
    done = subprocess.run(
        [sys.executable, "-c", starter, *words],
        cwd=gone,
        env=environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert read_manifest(tmp_path / "run.spyreprof")["exit"] == {"code": 5}
