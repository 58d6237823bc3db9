"""Peaks are measured in the program's interpreter, before and after, and only where that means something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recording_run import Finished, environment, finish, read_manifest, wait_until

# An interpreter that knows how to "calibrate" without torch: it notes how it was called, and obeys CALIBRATE.
FAKE_PYTHON = """#!/bin/sh
case "$1" in
*calibrate.py)
    env > "{folder}/env-$$"
    echo "$@" >> "{folder}/calls"
    {calibrate}
    ;;
*) exec "{python}" "$@" ;;
esac
"""
ANSWER = """echo '{"t": 1, "torch": "2.13.0", "affinity": [0], "results": [{"threads": 1}], "error": null}'"""

# What the agent writes of a program that ran steps.
STEPS = """
import json, os, sys
folder = os.environ["SPYREPROF_DIR"] + "/shards"
writer = f"{os.getpid()}-fake"
rows = [{"k": "open", "t": 1, "epoch_ns": 1, "pid": os.getpid(), "ppid": 1, "executable": os.environ["FAKE"]},
        {"k": "torch", "t": 2, "threads": 3, "affinity": [0], "device_kind": sys.argv[1]},
        {"k": "close", "t": 3, "how": "atexit"}]
open(f"{folder}/process-{writer}.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
open(f"{folder}/steps-{writer}.jsonl", "w").write('{"t0": 1, "t1": 2, "n": "x"}\\n' * 5)
"""


class Calibrated:
    """Records a program under an interpreter whose calibration a test decides."""

    def __init__(self, folder: Path, calibrate: str = ANSWER) -> None:
        self.folder = folder
        self.python = folder / "python3"
        self.python.write_text(
            FAKE_PYTHON.replace("{folder}", str(folder))
            .replace("{python}", sys.executable)
            .replace("{calibrate}", calibrate)
        )
        self.python.chmod(0o755)

    def start(self, program: list[str], *options: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "spyreprof", "record", "--out", "run.spyreprof", *options, "--", *program]
        return subprocess.Popen(
            words, cwd=self.folder, env=environment(FAKE=str(self.python), OMP_NUM_THREADS="3"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def record(self, code: str, *arguments: str, options: tuple[str, ...] = ()) -> Finished:
        return finish(self.start([str(self.python), "-c", code, *arguments], *options), self.folder)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def option(call: str, name: str) -> str:
    words = call.split()
    return words[words.index(name) + 1]


def test_before_with_one_thread_all_cpus_and_the_declared_number_after_as_the_program_ran(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = calibrated.record(STEPS, "cpu")
    before, after = calibrated.calls
    cpus = sorted(os.sched_getaffinity(0))
    assert option(before, "--threads") == ",".join(str(n) for n in sorted({1, len(cpus), 3}))
    assert option(before, "--affinity") == ",".join(str(cpu) for cpu in cpus)
    assert option(after, "--threads") == "3"
    assert option(after, "--affinity") == "0"
    for name in ("calibration-before.json", "calibration-after.json"):
        assert json.loads((run.path / name).read_text())["results"] == [{"threads": 1}]
    assert run.collector("calibration")["state"] == "ok"
    assert run.stderr.count(b"measuring this machine's peaks") == 2


def test_the_measurement_sees_nothing_of_the_agent(tmp_path: Path) -> None:
    Calibrated(tmp_path).record(STEPS, "cpu")
    for path in tmp_path.glob("env-*"):
        assert "SPYREPROF_" not in path.read_text()
        assert "/boot" not in path.read_text()


def test_it_is_switched_off_with_an_option(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = calibrated.record(STEPS, "cpu", options=("--no-calibrate",))
    assert calibrated.calls == []
    assert b"measuring" not in run.stderr
    assert run.collector("calibration") == {
        "name": "calibration",
        "state": "unavailable",
        "reason": "switched off with --no-calibrate",
        "obtain": "let `record` measure this machine: torch on the CPU, without --no-calibrate",
    }


def test_a_program_on_an_accelerator_is_not_followed_by_a_measurement_of_the_cpu(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = calibrated.record(STEPS, "cuda")
    assert len(calibrated.calls) == 1
    assert "the program computed on cuda" in run.collector("calibration")["reason"]


def test_a_program_without_steps_is_not_followed_by_a_measurement(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = calibrated.record("pass")
    assert len(calibrated.calls) == 1
    assert "no process of the program ran steps" in run.collector("calibration")["reason"]


def test_an_interpreter_without_torch_is_told_in_words(tmp_path: Path) -> None:
    code = """echo '{"torch": null, "results": [], "error": "ModuleNotFoundError: No module named torch"}'"""
    run = Calibrated(tmp_path, code).record("pass")
    assert "the program's interpreter has no torch" in run.collector("calibration")["reason"]
    assert not (run.path / "calibration-before.json").exists()


@pytest.mark.parametrize("calibrate", ["exit 3", "echo noise", "kill -9 $$", "echo '[1]'"])
def test_a_measurement_that_fails_costs_the_program_nothing(tmp_path: Path, calibrate: str) -> None:
    run = Calibrated(tmp_path, calibrate).record("print('ran'); raise SystemExit(6)")
    assert (run.code, run.stdout) == (6, b"ran\n")
    assert "it ended without a result" in run.collector("calibration")["reason"]


def test_a_program_that_is_not_python_is_not_measured_for(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = finish(calibrated.start(["/bin/sh", "-c", "true"]), tmp_path)
    assert calibrated.calls == []
    assert "hides which Python interpreter" in run.collector("calibration")["reason"]


def test_steps_of_a_python_behind_a_shell_are_followed_by_a_measurement_there(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    (tmp_path / "steps.py").write_text(STEPS)
    finish(calibrated.start(["/bin/sh", "-c", f"{calibrated.python} steps.py cpu; exit 0"]), tmp_path)
    assert [option(call, "--threads") for call in calibrated.calls] == ["3"]


def test_a_signal_before_the_program_starts_ends_us_by_it_and_leaves_nothing(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path, "exec sleep 99")
    process = calibrated.start([str(calibrated.python), "-c", "open('ran', 'w')"])
    wait_until(lambda: calibrated.calls, "the measurement")
    process.send_signal(signal.SIGTERM)
    run = finish(process, tmp_path)
    assert run.code == -signal.SIGTERM
    assert not run.path.exists()
    assert not (tmp_path / "ran").exists()


def test_a_signal_during_the_second_measurement_keeps_recording_and_exit_code(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    slow_second = f'if [ "$(wc -l < {calls})" -gt 1 ]; then exec sleep 99; fi\n{ANSWER}'
    calibrated = Calibrated(tmp_path, slow_second)
    process = calibrated.start([str(calibrated.python), "-c", STEPS + "sys.exit(4)", "cpu"])
    wait_until(lambda: len(calibrated.calls) > 1, "the second measurement")
    # the recording is complete while it still measures
    assert read_manifest(tmp_path / "run.spyreprof")["exit"] == {"code": 4}
    process.send_signal(signal.SIGINT)
    run = finish(process, tmp_path)
    assert run.code == 4
    assert "after: a signal cut it short" in run.collector("calibration")["reason"]


def test_a_measurement_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spyreprof_collectors import calibration
    from spyreprof_collectors.command import PythonProgram
    from spyreprof_collectors.process import Supervisor

    monkeypatch.setattr(calibration, "TIME_LIMIT_S", 0.3)
    python = Calibrated(tmp_path, "exec sleep 99").python
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    with Supervisor() as supervisor:
        measured = calibration.Calibration(
            supervisor, tmp_path, PythonProgram(str(python), "", None), dict(os.environ), wanted=True
        )
        started = time.monotonic()
        assert measured.run_before() is None
    assert time.monotonic() - started < 60
    assert "longer than 0.3 s" in (measured.state().reason or "")
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.slow
def test_the_real_measurement_brings_peaks_of_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = [sys.executable, "-m", "spyreprof", "record", "--out", "run.spyreprof", "--", sys.executable, "-c", "pass"]
    subprocess.run(words, cwd=tmp_path, env=environment(), check=True, timeout=120)
    document = json.loads((tmp_path / "run.spyreprof" / "calibration-before.json").read_text())
    assert document["results"][0]["threads"] == 1
    assert all(result["read_bytes_per_s"] > 0 for result in document["results"])
