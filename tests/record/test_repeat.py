"""`record --repeat N`: several runs of one command, one recording."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from recording_run import (
    PATIENCE_S,
    environment,
    finish,
    is_running,
    python,
    read_manifest,
    read_rows,
    record,
    record_command,
    start,
    wait_for_text,
    wait_until,
)
from test_calibration_runs import ANSWER, STEPS, Calibrated, option

# Counts its own runs in a file, for a program that behaves differently in one of them.
COUNT_RUNS = """
import os, signal, sys, time
runs = open("runs", "a+")
runs.write("x")
runs.flush()
runs.seek(0)
k = len(runs.read())
"""


def runs_of(path: Path) -> list[dict[str, Any]]:
    return list(read_manifest(path)["repeats"])


def test_every_run_is_a_complete_recording_and_the_list_names_them(tmp_path: Path) -> None:
    run = record(tmp_path, python("print('out')"), "--repeat", "3")
    assert (run.code, run.stdout) == (0, b"out\n" * 3)
    document = read_manifest(run.path)
    assert (document["schema_version"], document["repeat_count"]) == (1, 3)
    assert [entry["folder"] for entry in document["repeats"]] == ["runs/1", "runs/2", "runs/3"]
    for k, entry in enumerate(document["repeats"], start=1):
        own = read_manifest(run.path / entry["folder"])
        assert entry == {
            "k": k,
            "folder": f"runs/{k}",
            "started_ns": own["started_ns"],
            "ended_ns": own["ended_ns"],
            "exit": {"code": 0},
        }
        assert own["repeat"] == {"k": k, "of": 3}
        assert next(row["k"] for row in read_rows(run.path / entry["folder"], "process")) == "open"
    starts = [entry["started_ns"] for entry in document["repeats"]]
    ends = [entry["ended_ns"] for entry in document["repeats"]]
    assert all(end <= following for end, following in zip(ends, starts[1:], strict=False))
    assert run.stderr.count(b"next: spyreprof report") == 1


def test_one_repeat_is_a_recording_as_without(tmp_path: Path) -> None:
    run = record(tmp_path, python("pass"), "--repeat", "1")
    assert not (run.path / "runs").exists()
    assert "repeats" not in run.manifest
    assert run.manifest["repeat"] is None


@pytest.mark.parametrize("number", ["0", "100", "-1", "two"])
def test_another_number_of_repeats_is_refused(tmp_path: Path, number: str) -> None:
    run = record(tmp_path, python("open('started', 'w')"), "--repeat", number)
    assert run.code == 2
    assert b"--repeat" in run.stderr
    assert not run.path.exists()


def test_the_first_run_that_fails_is_the_last_and_its_code_is_ours(tmp_path: Path) -> None:
    run = record(tmp_path, python(COUNT_RUNS + "sys.exit(3 if k == 2 else 0)"), "--repeat", "4")
    assert run.code == 3
    assert [entry["exit"] for entry in runs_of(run.path)] == [{"code": 0}, {"code": 3}]
    assert run.stderr.count(b"run 2 of 4 exited with code 3: the series ends here") == 1


def test_a_run_that_dies_of_a_signal_ends_the_series_and_us_in_the_same_way(tmp_path: Path) -> None:
    run = record(tmp_path, python(COUNT_RUNS + "k == 2 and os.kill(os.getpid(), signal.SIGUSR1)"), "--repeat", "3")
    assert run.code == -signal.SIGUSR1
    assert [entry["exit"] for entry in runs_of(run.path)] == [{"code": 0}, {"signal": int(signal.SIGUSR1)}]
    assert b"run 2 of 3 was killed by SIGUSR1: the series ends here" in run.stderr


def test_being_asked_to_end_ends_the_series_though_the_program_exits_with_zero(tmp_path: Path) -> None:
    code = COUNT_RUNS + (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "k == 2 and (open('ready', 'w').write('x\\n'), time.sleep(99))"
    )
    process = start(tmp_path, python(code), "--repeat", "3")
    wait_for_text(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    run = finish(process, tmp_path)
    assert run.code == 0
    assert len(runs_of(run.path)) == 2
    assert read_manifest(run.path / "runs/2")["interrupted"]
    assert b"run 2 of 3 was asked to end by SIGTERM: the series ends here" in run.stderr


def test_under_nohup_a_hang_up_ends_no_series(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
    path = tmp_path / "run.spyreprof"
    done = subprocess.run(
        ["nohup", *record_command(path, python(code), "--repeat", "2")],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [entry["exit"] for entry in runs_of(path)] == [{"code": 0}] * 2
    assert not read_manifest(path / "runs/1")["interrupted"]


def test_the_duration_is_that_of_each_run_and_ends_no_series(tmp_path: Path) -> None:
    run = record(tmp_path, python("import time; time.sleep(99)"), "--repeat", "2", "--duration", "0.5")
    assert run.code == -signal.SIGTERM
    assert len(runs_of(run.path)) == 2
    for k in (1, 2):
        own = read_manifest(run.path / f"runs/{k}")
        assert own["duration_reached"]
        assert " ".join(own["notes"]).count("as --duration asked") == 1


def test_stdin_is_shared_so_that_the_first_run_may_take_all_of_it(tmp_path: Path) -> None:
    code = "import os; print(len(os.read(0, 100)), flush=True)"
    assert record(tmp_path, python(code), "--repeat", "2", stdin=b"abc").stdout == b"3\n0\n"


def test_each_run_keeps_the_result_file_that_it_wrote(tmp_path: Path) -> None:
    code = COUNT_RUNS + (
        "import json\n"
        "k != 2 and json.dump({'completed': k, 'ttfts': [0.1], 'mean_ttft_ms': 1}, open('result.json', 'w'))\n"
        "time.sleep(0.05)"
    )
    run = record(tmp_path, python(code), "--repeat", "3")
    kept = [sorted((run.path / f"runs/{k}/bench").iterdir()) for k in (1, 2, 3)]
    assert [[json.loads(path.read_text())["completed"] for path in paths] for paths in kept] == [[1], [], [3]]


def test_what_one_run_left_running_is_no_part_of_the_next(tmp_path: Path) -> None:
    code = COUNT_RUNS + (
        "import subprocess\n"
        "sleeper = [sys.executable, '-S', '-c', 'import time; time.sleep(30)']\n"
        "k == 1 and open('pid', 'w').write(str(subprocess.Popen(sleeper, stdin=-3, stdout=-3, stderr=-3).pid))\n"
        # longer than from one usage sample to the next
        "time.sleep(1.5)"
    )
    run = record(tmp_path, python(code), "--repeat", "2")
    left = int((tmp_path / "pid").read_text())
    os.kill(left, signal.SIGKILL)
    pids = [{row.get("pid") for row in read_rows(run.path / f"runs/{k}", "usage")} for k in (1, 2)]
    assert left in pids[0]
    assert left not in pids[1]
    assert f"left running: process {left}" in " ".join(read_manifest(run.path / "runs/1")["notes"])
    assert read_manifest(run.path / "runs/2")["notes"] == []


def test_a_series_that_was_killed_is_readable_and_its_last_run_counts_as_unfinished(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from spyreprof.recording.repeats import open_repeats

    code = COUNT_RUNS + "k == 3 and (open('ready', 'w').write(f'{os.getpid()}\\n'), time.sleep(99))"
    process = start(tmp_path, python(code), "--repeat", "5")
    program = int(wait_for_text(tmp_path / "ready"))
    listed = runs_of(tmp_path / "run.spyreprof")
    assert [entry["ended_ns"] is None for entry in listed] == [False, False, True]
    process.kill()
    process.wait()
    os.kill(program, signal.SIGKILL)
    finish(process, tmp_path)
    wait_until(lambda: not is_running(program), "the program's end")
    repeats = open_repeats(tmp_path / "run.spyreprof")
    assert repeats is not None
    assert repeats.of == 5
    assert [(run.k, run.state) for run in repeats.runs] == [(1, "complete"), (2, "complete"), (3, "cut_off")]


def test_the_list_holds_no_secret_and_everything_is_for_its_owner_alone(tmp_path: Path) -> None:
    run = record(tmp_path, [*python("pass"), "--api-key", "hunter2hunter2"], "--repeat", "2")
    assert "hunter2" not in (run.path / "manifest.json").read_text()
    for path in [run.path, *run.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_is_taken_is_refused_and_an_empty_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "run.spyreprof").mkdir()
    assert record(tmp_path, python("pass"), "--repeat", "2").code == 0
    again = record(tmp_path, python("open('started', 'w')"), "--repeat", "2")
    assert again.code == 2
    assert b"already holds a recording" in again.stderr
    assert not (tmp_path / "started").exists()


def test_a_program_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF\0")
    broken.chmod(0o755)
    run = record(tmp_path, [broken], "--repeat", "2")
    assert run.code == 126
    assert not run.path.exists()


def test_a_program_that_cannot_start_again_keeps_the_runs_before(tmp_path: Path) -> None:
    script = tmp_path / "once"
    script.write_text("#!/bin/sh\nprintf '\\177ELF\\0' > once\n")
    script.chmod(0o755)
    run = record(tmp_path, [script], "--repeat", "3")
    assert run.code == 126
    assert b"cannot be run" in run.stderr
    assert [entry["k"] for entry in runs_of(run.path)] == [1]
    assert not (run.path / "runs/2").exists()


def test_a_program_that_removes_the_recording_keeps_its_exit_code(tmp_path: Path) -> None:
    code = "import os, shutil; shutil.rmtree(os.path.dirname(os.path.dirname(os.environ['SPYREPROF_DIR'])))"
    run = record(tmp_path, python(code), "--repeat", "3")
    assert run.code == 0
    assert b"Traceback" not in run.stderr
    assert b"The series ends here" in run.stderr
    assert not run.path.exists()


def test_the_measurement_after_a_run_serves_as_the_one_before_the_next(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = calibrated.record(STEPS, "cpu", options=("--repeat", "3"))
    assert run.code == 0
    # one before the first, and one after each; that before the first alone tries several numbers of threads
    assert ["," in option(call, "--threads") for call in calibrated.calls] == [True, False, False, False]
    for k in (2, 3):
        before = json.loads((run.path / f"runs/{k}/calibration-before.json").read_text())
        after = json.loads((run.path / f"runs/{k - 1}/calibration-after.json").read_text())
        assert before.pop("shared_with") == f"{k - 1}/calibration-after.json"
        assert before == after
        states = {state["name"]: state["state"] for state in read_manifest(run.path / f"runs/{k}")["collectors"]}
        assert states["calibration"] == "ok"
    assert "shared_with" not in json.loads((run.path / "runs/1/calibration-before.json").read_text())


def test_without_a_measurement_after_a_run_the_next_has_its_own_before(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path)
    run = calibrated.record("pass", options=("--repeat", "2"))
    assert len(calibrated.calls) == 2
    assert "shared_with" not in (run.path / "runs/2/calibration-before.json").read_text()


def test_a_measurement_that_is_no_longer_fresh_serves_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spyreprof_collectors import calibration
    from spyreprof_collectors.process import Supervisor

    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "calibration-after.json").write_text('{"results": [{"threads": 1}]}')
    supervisor = Supervisor()
    earlier, later = (calibration.Calibration(supervisor, path, None, {}, wanted=True) for path in folders)
    assert not later.share_before(earlier)
    earlier._after_measured_ns = time.monotonic_ns()
    assert later.share_before(earlier)
    monkeypatch.setattr(calibration, "SHARED_GAP_S", 0.0)
    assert not later.share_before(earlier)


def test_a_signal_before_a_later_run_keeps_the_runs_before_and_ends_us(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    slow_second = f'if [ "$(wc -l < {calls})" -gt 1 ]; then exec sleep 99; fi\n{ANSWER}'
    calibrated = Calibrated(tmp_path, slow_second)
    process = calibrated.start([str(calibrated.python), "-c", "print('ran')"], "--repeat", "3")
    wait_until(lambda: len(calibrated.calls) > 1, "the measurement before the second run")
    process.send_signal(signal.SIGTERM)
    run = finish(process, tmp_path)
    assert run.code == -signal.SIGTERM
    assert run.stdout == b"ran\n"
    assert [entry["k"] for entry in runs_of(run.path)] == [1]
    assert not (run.path / "runs/2").exists()
    assert b"SIGTERM came before run 2 of 3: the series ends here" in run.stderr


def test_a_signal_in_the_measurement_after_a_run_ends_the_series_and_us(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    slow_second = f'if [ "$(wc -l < {calls})" -gt 1 ]; then exec sleep 99; fi\n{ANSWER}'
    calibrated = Calibrated(tmp_path, slow_second)
    process = calibrated.start([str(calibrated.python), "-c", STEPS, "cpu"], "--repeat", "3")
    wait_until(lambda: len(calibrated.calls) > 1, "the measurement after the first run")
    process.send_signal(signal.SIGINT)
    run = finish(process, tmp_path)
    assert run.code == -signal.SIGINT
    assert [entry["exit"] for entry in runs_of(run.path)] == [{"code": 0}]
    assert b"run 1 of 3 was followed by SIGINT: the series ends here" in run.stderr


def test_a_signal_before_the_first_run_leaves_nothing(tmp_path: Path) -> None:
    calibrated = Calibrated(tmp_path, "exec sleep 99")
    process = calibrated.start([str(calibrated.python), "-c", "pass"], "--repeat", "3")
    wait_until(lambda: calibrated.calls, "the measurement")
    process.send_signal(signal.SIGTERM)
    run = finish(process, tmp_path)
    assert run.code == -signal.SIGTERM
    assert not run.path.exists()


def test_help_says_what_is_shared(tmp_path: Path) -> None:
    run = record(tmp_path, ["true"], "--help")
    assert b"All runs share stdin" in b" ".join(run.stdout.split())


def test_a_run_that_cannot_be_taken_back_costs_the_runs_before_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spyreprof_collectors import folder, series
    from spyreprof_collectors.manifest import Manifest

    path, _ = folder.create(tmp_path / "run.spyreprof", "", parts=series.PARTS)
    runs = series.Series(path, ["true"], {}, 3)
    with runs.run(1):
        runs.finish(Manifest(["true"], {}))

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(folder, "remove", refuse)
    with pytest.raises(OSError, match="Read-only"), runs.run(2):
        runs.withdraw(2)
    assert [entry["k"] for entry in runs_of(path)] == [1]
    assert (path / "runs/1").is_dir()


def test_a_list_that_cannot_be_written_leaves_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spyreprof_collectors import folder, series

    path, _ = folder.create(tmp_path / "run.spyreprof", "", parts=series.PARTS)
    runs = series.Series(path, ["true"], {}, 3)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_json", refuse)
    with pytest.raises(OSError, match="No space left"), runs.run(1):
        pytest.fail("a run that no list names may not begin")
    folder.remove(path, parts=series.PARTS)
    assert not path.exists()


def test_ctrl_c_reaches_the_program_once_and_no_further_run_begins(tmp_path: Path) -> None:
    code = COUNT_RUNS + "open('ready', 'w').write('x\\n')\ntime.sleep(99)"
    process = start(tmp_path, python(code), "--repeat", "3")
    wait_for_text(tmp_path / "ready")
    os.killpg(process.pid, signal.SIGINT)
    run = finish(process, tmp_path)
    assert run.code == -signal.SIGINT
    assert run.stderr.count(b"KeyboardInterrupt") == 1
    assert (tmp_path / "runs").read_text() == "x"
    assert [entry["exit"] for entry in runs_of(run.path)] == [{"signal": int(signal.SIGINT)}]
