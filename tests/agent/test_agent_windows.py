"""Profiler windows: bounded, complete, and never beside a profiler of the program."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from agent_program import DECODE, EAGER_WINDOWS, PREFILL, Finished, run

pytest.importorskip("torch")

HEAD = f"""
    import os, threading, time
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule
    DECODE, PREFILL = {DECODE!r}, {PREFILL!r}
    weight = torch.ones(32, 32)
    def step(name):
        with record_function(name):
            for _ in range(3):
                weight @ weight
    def small_step(operators):
        with record_function(DECODE):
            for _ in range(operators):
                torch.neg(weight, out=weight)
    def until_rows(count, work):
        shards = os.environ["SPYREPROF_DIR"] + "/shards/"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            work()
            time.sleep(0.001)
            windows = [name for name in os.listdir(shards) if name.startswith("window")]
            if sum(open(shards + name).read().count("\\n") for name in windows) >= count:
                return
    def step_until_a_window_is_open():  # the one of three steps: the counting one closes with its step
        while not torch.autograd.profiler._is_profiler_enabled:
            step(DECODE)
            time.sleep(0.001)
"""
# The observer inside the agent, for what only an unlucky moment would bring about.
OUR_WINDOWS = """
    import sys
    from _spyreprof import install
    module = sys.modules["_spyreprof.windows"]
    agent = install.install("again")
    ours = next(tick.__self__ for tick in agent.on_tick if isinstance(tick.__self__, module.Windows))
"""
SOON = {"steps": 4, "after_steps": 10, "after_s": 0, "between_s": 0}


def trace(ended: Finished, row: dict[str, Any]) -> list[dict[str, Any]]:
    with gzip.open(ended.folder / row["file"]) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_a_window_holds_whole_steps_and_the_shapes_of_their_operators(tmp_path: Path) -> None:
    program = f"""{HEAD}
    until_rows(2, lambda: step(DECODE))
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stderr) == (0, "")
    rows = ended.rows("window")
    assert [(row["n"], row["state"], row["steps"]) for row in rows] == [(1, "saved", 1), (2, "saved", 3)]
    (opened,) = ended.process_rows("open")
    for row in rows:
        assert row["t0"] < row["t1"] < row["t2"] < row["t3"]
        # both clocks at one moment, as in the row of the process's opening
        assert abs((row["epoch_ns"] - row["t1"]) - (opened["epoch_ns"] - opened["t"])) < 1_000_000_000
        events = trace(ended, row)
        assert [event["name"] for event in events if event.get("cat") == "user_annotation"] == [DECODE] * row["steps"]
        operators = [event for event in events if event.get("cat") == "cpu_op"]
        assert len(operators) == row["operators"]
        products = [event for event in operators if event["name"] == "aten::mm"]
        assert len(products) == 3 * row["steps"]
        assert all(event["args"]["Input Dims"][:2] == [[32, 32], [32, 32]] for event in products)
        assert all(event["args"]["Input type"][:2] == ["float", "float"] for event in products)
        within = [step for step in ended.rows("steps") if row["t1"] <= step["t0"] and step["t1"] <= row["t2"]]
        assert len(within) == row["steps"]
    assert sum(step.get("p", 0) for step in ended.rows("steps")) == 4
    assert not list((ended.folder / "traces").glob(".*"))


def test_both_kinds_of_step_are_recorded_once_and_then_no_more(tmp_path: Path) -> None:
    program = f"""{HEAD}
    def some_steps():
        step(PREFILL)
        step(DECODE)
        step(DECODE)
    until_rows(4, some_steps)
    for _ in range(50):
        some_steps()
    """
    ended = run(tmp_path, program, window=SOON)
    rows = ended.rows("window")
    assert sorted(row["steps"] for row in rows) == [1, 1, 3, 3]
    first = {}
    for row in rows:
        first[row["n"]] = next(e["name"] for e in trace(ended, row) if e.get("cat") == "user_annotation")
    assert sorted(first.values()) == sorted([PREFILL, PREFILL, DECODE, DECODE])


def test_a_window_holds_no_more_operators_than_allowed(tmp_path: Path) -> None:
    program = f"""{HEAD}
    until_rows(2, lambda: small_step(operators=40))
    """
    ended = run(tmp_path, program, window={**SOON, "operators": 100})
    assert [(row["steps"], row["operators"]) for row in ended.rows("window")] == [(1, 40), (2, 80)]


def test_steps_of_more_operators_than_a_window_may_hold_are_refused_in_words(tmp_path: Path) -> None:
    program = f"""{HEAD}
    until_rows(2, lambda: small_step(operators=40))
    """
    ended = run(tmp_path, program, window={**SOON, "operators": 30})
    counted, refused = ended.rows("window")
    assert (counted["state"], counted["steps"]) == ("saved", 1)
    assert (refused["state"], refused["file"]) == ("skipped", None)
    assert refused["reason"] == "one step holds 40 operators, a window at most 30"


def test_long_steps_are_not_recorded_and_the_reason_is_said_once(tmp_path: Path) -> None:
    program = f"""{HEAD}
    for _ in range(20):
        with record_function(DECODE):
            time.sleep(0.02)
    """
    ended = run(tmp_path, program, window={**SOON, "max_step_s": 0.01})
    (row,) = ended.rows("window")
    assert (row["state"], row["steps"], row["reason"]) == ("skipped", 0, "recent steps are longer than 0.01 s")


@pytest.mark.parametrize("window", [{**SOON, "after_s": 30}, {**SOON, "after_steps": 100}, None])
def test_no_window_before_the_process_is_warm_or_where_none_is_wanted(
    tmp_path: Path, window: dict[str, object] | None
) -> None:
    ended = run(tmp_path, f"{HEAD}\n    for _ in range(60):\n        step(DECODE)", window=window)
    assert ended.code == 0
    assert ended.rows("window") == []
    assert ended.hooks()["torch.profiler"] == ("disabled" if window is None else "ok")


def test_a_window_open_at_the_end_of_the_program_is_saved(tmp_path: Path) -> None:
    program = f"""{HEAD}
    step_until_a_window_is_open()
    step(DECODE)
    """
    ended = run(tmp_path, program, window=SOON)
    assert ended.code == 0
    last = ended.rows("window")[-1]
    assert (last["state"], last["steps"], last["reason"]) == ("saved", 2, "the program ended")
    assert [e["name"] for e in trace(ended, last) if e.get("cat") == "user_annotation"] == [DECODE] * 2
    assert ended.process_rows("close")[-1]["t"] > last["t3"]


def test_a_watchdog_ends_the_program_though_a_window_hangs(tmp_path: Path) -> None:
    program = f"""{HEAD}{OUR_WINDOWS}
    import signal
    module._LOCK_PATIENCE_S = 0.1
    signal.alarm(20)
    def watchdog():
        os._exit(5)
    with ours._guard.lock:
        threading.Thread(target=watchdog).start()
        time.sleep(60)
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stderr) == (5, "")
    assert "a window was opening or closing" in ended.process_rows("hook")[-1]["reason"]
    assert [row["how"] for row in ended.process_rows("close")] == ["os._exit"]


def test_an_idle_window_is_open_for_two_seconds_more_than_its_steps_take(tmp_path: Path) -> None:
    program = f"""{HEAD}{OUR_WINDOWS}
    agent.on_tick.remove(ours.tick)
    step_until_a_window_is_open()
    ours._policy.longest_recent_s = lambda kind: 0.1  # three of these steps fit into the window
    opened_ns = ours._window.began_ns
    for milliseconds in (2_290, 2_310):
        module.monotonic_ns = lambda: opened_ns + milliseconds * 1_000_000
        ours.tick()
        print(torch.autograd.profiler._is_profiler_enabled)
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stdout) == (0, "True\nFalse\n"), ended.stderr
    assert ended.rows("window")[-1]["reason"] == "its steps did not come within 2.3 s"


def test_a_window_whose_steps_stop_coming_is_closed_by_time(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import sys
    sys.modules["_spyreprof.windows"]._PATIENCE_S = 0.1
    step_until_a_window_is_open()
    deadline = time.monotonic() + 30
    while torch.autograd.profiler._is_profiler_enabled and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)
    """
    ended = run(tmp_path, program, window=SOON)
    last = ended.rows("window")[-1]
    assert (last["state"], last["steps"]) == ("saved", 1)
    assert "did not come" in last["reason"]


# The program's own windows: plain, by schedule, in threads; each must come out whole.
OWN_WINDOWS = """
    def additions(own):
        return sum(event.count for event in own.key_averages() if event.key == "aten::add")

    def plain():
        with profile(activities=[ProfilerActivity.CPU]) as own:
            for _ in range(20):
                weight + weight
                extra_step()
        own.export_chrome_trace("own.json")
        exported = json.load(open("own.json"))["traceEvents"]
        return [additions(own), sum(event.get("name") == "aten::add" for event in exported)] == [20, 20]

    def scheduled():
        cycles = []
        with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=3),
                     on_trace_ready=lambda own: cycles.append(additions(own))) as own:
            for _ in range(14):
                for _ in range(10):
                    weight + weight
                extra_step()
                own.step()
        return cycles == [20, 20, 20]

    def low_level():
        with torch.autograd.profiler.profile(use_kineto=True) as own:
            for _ in range(20):
                weight + weight
                extra_step()
        return additions(own) == 20

    def instrumented():
        with torch.autograd.profiler.emit_itt():
            for _ in range(20):
                extra_step()
        return True
"""


@pytest.mark.parametrize("where", ["in the thread of the steps", "in another thread"])
def test_the_programs_own_windows_are_complete_while_ours_keep_opening(tmp_path: Path, where: str) -> None:
    own_thread = where == "in another thread"
    program = f"""{HEAD}
    import json
    own_thread = {own_thread}
    def extra_step():
        if not own_thread:
            step(DECODE)
    {OWN_WINDOWS}
    stop = threading.Event()
    def engine():
        number = 0
        while not stop.is_set():
            number += 1
            step(PREFILL if number % 3 == 0 else DECODE)
            time.sleep(0.0005)
    thread = threading.Thread(target=engine)
    if own_thread:
        thread.start()
    complete = []
    for _ in range(12):
        for window in (plain, scheduled, low_level, instrumented):
            complete.append(window())
            for _ in range(8):
                extra_step()
            time.sleep(0.02)
    stop.set()
    if own_thread:
        thread.join()
    print(len(complete), all(complete))
    """
    ended = run(tmp_path, program, window=EAGER_WINDOWS, flags=("-W", "ignore"))
    assert (ended.code, ended.stdout) == (0, "48 True\n"), ended.stderr
    states = [row["state"] for row in ended.rows("window")]
    assert states.count("saved") >= 5
    assert states.count("yielded") >= 1
    assert not {"failed", "stolen"} & set(states)
    for row in ended.rows("window"):
        if row["file"]:
            annotations = [e["name"] for e in trace(ended, row) if e.get("cat") == "user_annotation"]
            assert len([name for name in annotations if name in {DECODE, PREFILL}]) >= row["steps"]


def test_a_profiler_that_takes_over_past_the_guard_is_not_exported_from(tmp_path: Path) -> None:
    program = f"""{HEAD}
    step_until_a_window_is_open()
    # What the guard covers is taken off, as by a profiler that goes another way in.
    torch.autograd.profiler.profile._prepare_trace = torch.autograd.profiler.profile._prepare_trace.__wrapped__
    with torch.autograd.profiler.profile(use_kineto=True) as own:
        weight + weight
    step(DECODE)
    step(DECODE)
    print(sum(event.count for event in own.key_averages() if event.key == "aten::add"))
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stdout) == (0, "1\n"), ended.stderr
    last = ended.rows("window")[-1]
    assert (last["state"], last["file"]) == ("stolen", None)


def test_a_window_of_ours_that_cannot_be_closed_does_not_keep_the_programs_from_opening(tmp_path: Path) -> None:
    program = f"""{HEAD}{OUR_WINDOWS}
    close = module.ProfilerWindow.close
    def close_and_fail(window, guard, path):
        close(window, guard, None)
        raise OSError("no space")
    def fail(path):
        raise OSError("nor any other way")
    step_until_a_window_is_open()
    module.ProfilerWindow.close, module._remove = close_and_fail, fail
    with torch.autograd.profiler.profile(use_kineto=True) as own:
        weight + weight
    print(sum(event.count for event in own.key_averages() if event.key == "aten::add"))
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stdout) == (0, "1\n"), ended.stderr
    last = ended.process_rows("hook")[-1]
    assert (last["state"], last["reason"]) == ("failed", "OSError: nor any other way")


def test_a_fork_closes_the_window_and_the_child_opens_its_own(tmp_path: Path) -> None:
    program = f"""{HEAD}
    step_until_a_window_is_open()
    child = os.fork()
    if child == 0:
        assert not torch.autograd.profiler._is_profiler_enabled
        step_until_a_window_is_open()
        os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    ended = run(tmp_path, program, window=SOON, environment={"OMP_NUM_THREADS": "1"}, flags=("-W", "ignore"))
    assert (ended.code, ended.stdout) == (0, "5\n"), ended.stderr
    by_process = [path.read_text() for path in (ended.folder / "shards").glob("window-*")]
    assert len(by_process) == 2
    assert any("the program forked" in text for text in by_process)


def test_a_window_that_a_fork_closes_is_complete_before_the_fork(tmp_path: Path) -> None:
    program = f"""{HEAD}{OUR_WINDOWS}
    step_until_a_window_is_open()
    module.start_new_thread = lambda *_: print("a thread")
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    """
    ended = run(tmp_path, program, window=SOON, environment={"OMP_NUM_THREADS": "1"}, flags=("-W", "ignore"))
    assert (ended.code, ended.stdout) == (0, ""), ended.stderr
    last = ended.rows("window")[-1]
    assert (last["state"], last["steps"]) == ("yielded", 1)
    assert trace(ended, last)


def test_a_child_opens_windows_though_a_thread_of_its_parent_was_opening_a_profiler(tmp_path: Path) -> None:
    program = f"""{HEAD}{OUR_WINDOWS}
    import signal
    inside, go_on = threading.Event(), threading.Event()
    def hold():
        with ours._guard.lock:
            torch.autograd.profiler.profile(use_kineto=True)._prepare_trace()
            inside.set()
            go_on.wait()
    def meanwhile():
        threading.Thread(target=hold).start()
        inside.wait()
    agent.process.before_fork.append(meanwhile)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        step_until_a_window_is_open()
        os._exit(5)
    go_on.set()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    ended = run(tmp_path, program, window=SOON, environment={"OMP_NUM_THREADS": "1"}, flags=("-W", "ignore"))
    assert (ended.code, ended.stdout) == (0, "5\n"), ended.stderr


def test_a_failed_export_is_said_and_the_program_goes_on(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import shutil
    os.rmdir(os.environ["SPYREPROF_DIR"] + "/traces")
    open(os.environ["SPYREPROF_DIR"] + "/traces", "w").close()
    for _ in range(40):
        step(DECODE)
    """
    ended = run(tmp_path, program, window=SOON)
    assert ended.code == 0
    assert ended.stdout == ""
    failed = ended.rows("window")[0]
    assert (failed["state"], failed["file"]) == ("failed", None)


def test_an_export_that_fills_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    until_rows(1, lambda: small_step(operators=40))
    """
    ended = run(tmp_path, program, window=SOON)
    assert ended.code == 0, ended.stderr
    assert ended.rows("window")[0]["state"] == "failed"
    assert not list((ended.folder / "traces").iterdir())


def test_the_programs_choice_of_kineto_log_level_is_kept(tmp_path: Path) -> None:
    program = f"{HEAD}\n    print(os.environ.get('KINETO_LOG_LEVEL'))\n    for _ in range(40):\n        step(DECODE)"
    silent = run(tmp_path, program, window=SOON)
    assert (silent.stdout, silent.stderr) == ("None\n", "")
    chosen = run(tmp_path, program, window=SOON, environment={"KINETO_LOG_LEVEL": "0"})
    assert chosen.stdout == "0\n"
    assert "profiler_start" in chosen.stderr


def test_an_accelerator_build_of_torch_is_profiled_on_a_machine_without_the_device(tmp_path: Path) -> None:
    """The usual torch wheel is a CUDA build; on a CPU-only machine there is no device whose events could be missed."""
    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
        pytest.skip("this machine has the device")
    build = tmp_path / "build"
    build.mkdir()
    (build / "sitecustomize.py").write_text("import torch\ntorch.version.cuda = '13.0'\n", encoding="ascii")
    finished = run(
        tmp_path,
        HEAD + "    until_rows(1, lambda: step(DECODE))\n",
        window=EAGER_WINDOWS,
        paths=(build,),
    )
    assert finished.code == 0, finished.stderr
    assert finished.rows("window")[0]["state"] == "saved"


@pytest.mark.parametrize("where", ["steps()", "threading.Thread(target=steps).start()"])
def test_a_torch_imported_in_a_thread_is_profiled_in_silence(tmp_path: Path, where: str) -> None:
    program = f"""
    import threading, time
    thread = threading.Thread(target=__import__, args=("torch",))
    thread.start()
    thread.join()
    import torch
    def steps():
        for _ in range(40):
            with torch.profiler.record_function({DECODE!r}):
                torch.ones(2)
            time.sleep(0.005)
    {where}
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.rows("window")[0]["state"] == "saved"


def test_nothing_is_recorded_while_an_accelerator_is_there_and_not_brought_up(tmp_path: Path) -> None:
    program = """
    import _spyreprof.windows
    _spyreprof.windows.accelerator_within_reach = lambda torch: True
    import time
    import torch
    for _ in range(40):
        with torch.profiler.record_function(NAME):
            torch.ones(2)
    """.replace("NAME", repr(DECODE))
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stderr) == (0, "")
    (row,) = ended.rows("window")
    assert row["state"] == "skipped"
    assert "has not brought up its accelerator" in row["reason"]


def test_a_device_first_seen_late_is_recorded_from_the_thread_that_imported_torch_only(tmp_path: Path) -> None:
    program = """
    import _spyreprof.windows
    _spyreprof.windows.accelerator_within_reach = lambda torch: True  # so nothing is started at import
    import threading, time
    import torch
    _spyreprof.windows.accelerator_within_reach = lambda torch: False
    def steps():
        for _ in range(40):
            with torch.profiler.record_function(NAME):
                torch.ones(2)
            time.sleep(0.005)
    WHERE
    """.replace("NAME", repr(DECODE))
    here = run(tmp_path, program.replace("WHERE", "steps()"), window=SOON, folder=tmp_path / "here")
    assert (here.code, here.stderr) == (0, "")
    assert here.rows("window")[0]["state"] == "saved"
    elsewhere = program.replace("WHERE", "threading.Thread(target=steps).start()")
    there = run(tmp_path, elsewhere, window=SOON, folder=tmp_path / "there")
    assert (there.code, there.stderr) == (0, "")
    assert [row["state"] for row in there.rows("window")] == ["skipped"]


def test_a_privateuse1_device_is_recorded_under_its_name(tmp_path: Path) -> None:
    program = f"""
    import torch
    torch.utils.rename_privateuse1_backend("spyre")
{HEAD}
    until_rows(2, lambda: step(DECODE))
    """
    ended = run(tmp_path, program, window=SOON)
    assert (ended.code, ended.stderr) == (0, "")
    assert [row["device_kind"] for row in ended.process_rows("torch")] == ["spyre"]
    assert [row["state"] for row in ended.rows("window")] == ["saved", "saved"]
