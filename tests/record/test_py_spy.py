"""Python stacks through py-spy: what is taken, what is said when there are none, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_py_spy
import pytest
from recording_run import PATIENCE_S, environment, finish, is_running, python, record_command, wait_until

from spyreprof.recording import layout
from spyreprof_collectors import host, py_spy, py_spy_probe, py_spy_trouble, py_spy_window
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.py_spy import PySpyCollector
from spyreprof_collectors.python_files import short_file
from spyreprof_collectors.sampled_processes import StepProcesses
from spyreprof_collectors.shards import ShardWriter

PERMISSION_DENIED = (
    "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
)
NOT_PERMITTED = ("Error: Operation not permitted (os error 1)", "Reason: Operation not permitted (os error 1)")
NO_VERSION = (
    "Error: Failed to find python version from target process",
    "",
    "Stack backtrace:",
    "   0: anyhow::error::<impl anyhow::Error>::msg",
)
UNSUPPORTED = ("Error: Unsupported version of Python: 3.15.0", "", "Stack backtrace:", "   0: py_spy::new")


class Chosen:
    """Processes that a test names."""

    def __init__(self, pids: Sequence[int], python: str | None = None) -> None:
        self.pids = list(pids)
        self.python = python

    def ranked(self) -> Sequence[int]:
        return self.pids

    def python_of(self, pid: int) -> str | None:
        return self.python


class Sampling:
    """A collector with a fake py-spy in front of everything else on the PATH."""

    def __init__(self, tmp_path: Path, body: str, processes: Any) -> None:
        self.folder = tmp_path / "bin"
        fake_py_spy.install(self.folder, body)
        recording = tmp_path / "run"
        (recording / layout.SHARDS).mkdir(parents=True)
        self.shard = ShardWriter(recording, layout.KIND_STACKS)
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        self.collector = PySpyCollector(self.shard, processes, 50, environment={**os.environ, "PATH": path})
        self.collector.prepare()

    def until(self, condition: Any, what: str) -> None:
        def moved_on() -> bool:
            self.collector.sample()
            return bool(condition())

        wait_until(moved_on, what)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.shard.path.read_text().splitlines()] if self.shard.rows else []

    @property
    def state(self) -> CollectorState:
        return self.collector.state(None)

    def has_given_up(self) -> bool:
        return self.state.reason is not None and self.state.reason.startswith("process ")

    @property
    def helpers(self) -> list[int]:
        return [int(line.split()[0]) for line in fake_py_spy.calls(self.folder)]


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy_trouble, "may_ptrace_everything", lambda: False)
    monkeypatch.setattr(py_spy_trouble, "ptrace_scope", lambda: "")
    monkeypatch.setattr(host, "container", lambda: None)


def test_a_window_becomes_a_row_with_threads_counts_and_files_without_home_folders(
    tmp_path: Path, sleeper: int
) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.results(), Chosen([sleeper]))
    sampling.until(lambda: sampling.shard.rows, "a window")
    (row, *_) = sampling.rows
    frames = [tuple(frame) for frame in row["frames"]]
    assert set(frames) == {
        ("<module>", "serve.py"),
        ("Linear.forward", "torch/nn/modules/linear.py"),
        ("Thread.run", "<stdlib>/threading.py"),
        ("Queue.get", "<stdlib>/queue.py"),
    }
    assert "someone" not in json.dumps(row)
    stacks = {
        (thread["thread"], tuple(frames[number][0] for number in numbers)): count
        for thread in row["threads"]
        for numbers, count in thread["stacks"]
    }
    # The name of the second thread holds a semicolon, and its rest is no frame.
    assert stacks == {
        ("11", ("<module>", "Linear.forward")): 30,
        ("11", ("<module>",)): 10,
        ("0x7F01", ("Thread.run", "Queue.get")): 20,
    }
    assert row["pid"] == sleeper
    assert row["errors"] == 4
    assert row["samples"] >= 40
    assert sampling.state == CollectorState("stacks", "ok")


def test_windows_follow_one_another_now_of_running_threads_now_of_all(tmp_path: Path, sleeper: int) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.results(), Chosen([sleeper]))
    sampling.until(lambda: sampling.shard.rows >= 3, "three windows")
    assert [row["sleeping"] for row in sampling.rows[:3]] == [False, True, False]
    lines = fake_py_spy.calls(sampling.folder)
    assert all("--nonblocking" in line and "--native" not in line for line in lines)
    assert ["--idle" in line for line in lines[:3]] == [False, True, False]
    sampling.collector.finish()


def test_every_py_spy_has_a_session_of_its_own(tmp_path: Path, sleeper: int) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.results(), Chosen([sleeper]))
    sampling.until(lambda: sampling.shard.rows, "a window")
    for line in fake_py_spy.calls(sampling.folder):
        pid, session, *_ = line.split()
        assert pid == session != str(os.getsid(0))


def test_a_python_that_can_make_no_session_gives_it_a_process_group(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = os.posix_spawn

    def without_sessions(*arguments: Any, **keywords: Any) -> int:
        if "setsid" in keywords:
            raise NotImplementedError("setsid")
        return spawn(*arguments, **keywords)

    monkeypatch.setattr(os, "posix_spawn", without_sessions)
    sampling = Sampling(tmp_path, "time.sleep(600)", Chosen([sleeper]))
    sampling.until(lambda: sampling.helpers, "a start")
    (helper,) = sampling.helpers
    assert os.getpgid(helper) == helper
    sampling.collector.finish()
    wait_until(lambda: not is_running(helper), "the end of the helper")


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1)])
def test_pipes_take_the_place_of_no_standard_stream_that_is_closed(
    tmp_path: Path, sleeper: int, closed: tuple[int, ...]
) -> None:
    executable = fake_py_spy.install(tmp_path / "bin", fake_py_spy.results())
    code = f"""
import os
from spyreprof_collectors.py_spy_window import Request, Window
for number in {closed}:
    os.close(number)
window = Window.open(Request({str(executable)!r}, {sleeper}, 50, 1, False), os.environ)
lowest = min(window._pipes)
while not window.advance():
    pass
with open("outcome", "w") as file:
    file.write(f"{{lowest > 2}} {{window.row() is not None}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "outcome").read_text() == "True True"


def test_a_window_that_cannot_have_its_pipes_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    lift = py_spy_window.fcntl.fcntl

    def at_most_three(*arguments: int) -> int:
        if len(made) == 3:
            raise OSError(24, "Too many open files")
        made.append(lift(*arguments))
        return made[-1]

    monkeypatch.setattr(py_spy_window.fcntl, "fcntl", at_most_three)
    with pytest.raises(OSError, match="Too many"):
        py_spy_window.Window.open(py_spy_window.Request("/bin/true", 1, 50, 1, False), os.environ)
    assert len(made) == 3
    for end in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_a_window_in_which_every_thread_slept_is_a_result(tmp_path: Path, sleeper: int) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.results(stacks=""), Chosen([sleeper]))
    sampling.until(lambda: sampling.shard.rows, "a window")
    assert sampling.rows[0]["threads"] == []
    assert sampling.state.state == "ok"


@pytest.mark.usefixtures("unprivileged")
def test_permission_denied_in_a_container_says_where_to_set_the_capability(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "container", lambda: "docker")
    sampling = Sampling(tmp_path, fake_py_spy.fails(*PERMISSION_DENIED), Chosen([sleeper]))
    sampling.until(sampling.has_given_up, "the end of trying")
    state = sampling.state
    assert state.state == "unavailable"
    assert state.reason is not None and "Permission Denied: Try running again" in state.reason
    assert state.obtain is not None
    assert "docker run --cap-add SYS_PTRACE" in state.obtain
    assert "securityContext.capabilities.add" in state.obtain


@pytest.mark.usefixtures("unprivileged")
def test_a_kernel_that_allows_children_alone_is_named(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(py_spy_trouble, "ptrace_scope", lambda: "1")
    sampling = Sampling(tmp_path, fake_py_spy.fails(*PERMISSION_DENIED), Chosen([sleeper]))
    sampling.until(sampling.has_given_up, "the end of trying")
    assert "kernel.yama.ptrace_scope is 1" in str(sampling.state.reason)
    assert "sysctl" in str(sampling.state.obtain)


@pytest.mark.usefixtures("unprivileged")
def test_the_process_of_another_user_is_told_from_a_missing_capability(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "container", lambda: "docker")
    monkeypatch.setattr(py_spy_trouble, "owner", lambda pid: os.geteuid() + 1)
    sampling = Sampling(tmp_path, fake_py_spy.fails(*PERMISSION_DENIED), Chosen([sleeper]))
    sampling.until(sampling.has_given_up, "the end of trying")
    assert "belongs to another user" in str(sampling.state.reason)
    assert "SYS_PTRACE" not in str(sampling.state.obtain)


@pytest.mark.usefixtures("unprivileged")
def test_ptrace_is_not_blamed_where_its_capability_is_held(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "container", lambda: "docker")
    monkeypatch.setattr(py_spy_trouble, "may_ptrace_everything", lambda: True)
    sampling = Sampling(tmp_path, fake_py_spy.fails(*NOT_PERMITTED), Chosen([sleeper]))
    sampling.until(sampling.has_given_up, "the end of trying")
    assert "Operation not permitted" in str(sampling.state.reason)
    assert "the cause is another one" in str(sampling.state.reason)
    assert "--cap-add" not in str(sampling.state.obtain)


@pytest.mark.parametrize(
    ("says", "runs", "expected"),
    [
        (UNSUPPORTED, None, "python 3.15 is not readable by py-spy 0.4.3"),
        (NO_VERSION, "3.15.1", "python 3.15 is not readable by py-spy 0.4.3"),
        (NO_VERSION, None, "the process is no Python, or one that py-spy 0.4.3 does not know"),
    ],
)
def test_a_python_that_py_spy_cannot_read_is_named(
    tmp_path: Path, sleeper: int, says: tuple[str, ...], runs: str | None, expected: str
) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.fails(*says), Chosen([sleeper], python=runs))
    sampling.until(sampling.has_given_up, "the end of trying")
    assert expected in str(sampling.state.reason)
    assert "backtrace" not in str(sampling.state.reason)
    assert sampling.state.obtain is not None


def test_what_py_spy_says_is_passed_on_without_its_backtrace_and_within_bounds() -> None:
    said = py_spy_trouble.own_words(
        "py-spy> hello\nError: no luck\n\nCaused by:\n    0: x\x1b[31m y\n\nStack backtrace:\n  z"
    )
    assert said == "no luck, 0: y"
    assert len(py_spy_trouble.own_words("word " * 5000)) <= 240
    assert len(py_spy_trouble.own_words("w" * 5000)) <= 240


def test_one_that_hangs_is_killed_and_told_of(tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "RUNNING_WINDOW_S", 0)
    monkeypatch.setattr(py_spy, "SLEEPING_WINDOW_S", 0)
    monkeypatch.setattr(py_spy_window, "START_GRACE_S", 0.1)
    hangs = "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)"
    sampling = Sampling(tmp_path, hangs, Chosen([sleeper]))
    sampling.until(lambda: "hung" in str(sampling.state.reason), "being killed")
    sampling.collector.finish()
    wait_until(lambda: not any(is_running(pid) for pid in sampling.helpers), "the end of all helpers")
    assert sampling.state.state == "unavailable"
    assert is_running(sleeper)


def test_garbage_is_no_stack(tmp_path: Path, sleeper: int) -> None:
    lines = b"\nthread (x);a (b) 3\nthread (1);nothing 2\n"
    garbage = f"open(argv[argv.index('--output') + 1], 'wb').write(os.urandom(100000) + {lines!r})"
    sampling = Sampling(tmp_path, garbage, Chosen([sleeper]))
    sampling.until(sampling.has_given_up, "the end of trying")
    assert not sampling.rows
    assert "without a word" in str(sampling.state.reason)


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr", "open(argv[argv.index('--output') + 1], 'w')"])
def test_one_that_writes_without_end_is_ended(
    tmp_path: Path, sleeper: int, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(py_spy_window, "MAX_OUTPUT_BYTES", 1 << 20)
    endless = f"stream = {stream}\nwhile True: stream.write('thread (1);f (g.py) 1\\n' * 1000)"
    sampling = Sampling(tmp_path, endless, Chosen([sleeper]))
    sampling.until(lambda: "wrote more than 1 MB" in str(sampling.state.reason), "being ended")
    sampling.collector.finish()
    wait_until(lambda: not any(is_running(pid) for pid in sampling.helpers), "the end of all helpers")
    assert not sampling.rows


def test_nothing_is_left_behind_though_it_ignores_every_request(tmp_path: Path, sleeper: int) -> None:
    stubborn = f"signal.signal(signal.SIGINT, signal.SIG_IGN)\nsay({fake_py_spy.STARTED!r})\ntime.sleep(600)"
    sampling = Sampling(tmp_path, stubborn, Chosen([sleeper]))
    sampling.until(lambda: sampling.helpers, "a start")
    sampling.collector.finish()
    assert sampling.collector.own_pids == set()
    wait_until(lambda: not any(is_running(pid) for pid in sampling.helpers), "the end of all helpers")


def test_one_that_closes_its_output_and_lives_on_is_not_left_behind(tmp_path: Path, sleeper: int) -> None:
    daemon = fake_py_spy.results() + "\nsys.stdout.close(); [os.close(stream) for stream in (1, 2, 3)]; time.sleep(600)"
    sampling = Sampling(tmp_path, daemon, Chosen([sleeper]))
    sampling.until(lambda: sampling.shard.rows, "a window")
    sampling.collector.finish()
    wait_until(lambda: not any(is_running(pid) for pid in sampling.helpers), "the end of all helpers")


def test_on_a_kernel_without_process_handles_none_stays_as_a_zombie(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    sampling = Sampling(tmp_path, fake_py_spy.results(), Chosen([sleeper]))
    sampling.until(lambda: sampling.shard.rows >= 2, "two windows")
    sampling.collector.finish()
    assert not any(Path("/proc", str(pid)).exists() for pid in sampling.helpers)


def test_after_the_end_no_further_window_opens(tmp_path: Path, sleeper: int) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.results(), Chosen([sleeper]))
    sampling.collector.finish()
    sampling.collector.sample()
    assert sampling.collector.own_pids == set()
    assert sampling.helpers == []


def test_what_it_has_when_the_program_ends_is_kept(tmp_path: Path, sleeper: int) -> None:
    waits = (
        "def stop(*_):\n"
        f"    result({fake_py_spy.STACKS!r})\n"
        f"    say({fake_py_spy.STOPPED + fake_py_spy.WRITTEN!r})\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGINT, stop)\n"
        f"say({fake_py_spy.STARTED!r})\n"
        "time.sleep(600)"
    )
    sampling = Sampling(tmp_path, waits, Chosen([sleeper]))
    sampling.until(lambda: sampling.helpers, "a start")
    time.sleep(0.2)  # until its handler stands
    sampling.collector.finish()
    (row,) = sampling.rows
    assert row["complete"] is False
    assert sampling.state.state == "ok"


def test_one_that_is_asked_to_end_before_it_has_begun_is_no_trouble(tmp_path: Path, sleeper: int) -> None:
    sampling = Sampling(tmp_path, "signal.signal(signal.SIGINT, signal.SIG_DFL)\ntime.sleep(600)", Chosen([sleeper]))
    sampling.until(lambda: sampling.helpers, "a start")
    time.sleep(0.2)  # until it sleeps
    sampling.collector.finish()
    assert sampling.state.reason == "the end came before a sample was taken"


def test_a_process_that_ends_in_a_window_is_no_trouble_of_py_spys(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    sampling = Sampling(tmp_path, fake_py_spy.fails("Error: No such process"), Chosen([gone.pid]))
    sampling.until(lambda: sampling.helpers, "a start")
    sampling.collector.finish()
    assert sampling.state.reason == "the end came before a sample was taken"


def test_of_many_processes_those_that_ended_are_forgotten(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    chosen = Chosen([gone.pid])
    sampling = Sampling(tmp_path, fake_py_spy.fails("Error: No such process"), chosen)
    sampling.until(lambda: sampling.helpers, "a start")
    chosen.pids = [sleeper]
    monkeypatch.setattr(py_spy, "_MAX_REMEMBERED", 1)
    sampling.until(
        lambda: [target.pid for target in sampling.collector._targets] == [sleeper], "one process that is remembered"
    )
    sampling.collector.finish()


def test_at_most_four_processes_are_sampled_and_those_stay(tmp_path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(6)]
    pids = [child.pid for child in children]
    chosen = Chosen(pids)
    sampling = Sampling(tmp_path, fake_py_spy.results(), chosen)
    try:
        sampling.until(lambda: sampling.shard.rows >= 4, "four windows")
        chosen.pids.reverse()
        sampling.until(lambda: sampling.shard.rows >= 12, "more windows")
        sampling.collector.finish()
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert {row["pid"] for row in sampling.rows} == set(pids[:4])
    assert "only 4 of 6 processes were sampled" in str(sampling.state.reason)


def test_processes_that_were_given_up_leave_their_places_to_others(tmp_path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(6)]
    pids = [child.pid for child in children]
    says = f"say({UNSUPPORTED[0] + chr(10)!r})"
    body = f"if pid in {pids[:4]}:\n    {says}\n    raise SystemExit(1)\n{fake_py_spy.results()}"
    sampling = Sampling(tmp_path, body, Chosen(pids))
    try:
        sampling.until(lambda: {row["pid"] for row in sampling.rows} == set(pids[4:]), "stacks of the others")
        assert not sampling.collector.has_given_up
        sampling.collector.finish()
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_with_the_number_of_one_that_was_given_up_is_tried(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "1"
    monkeypatch.setattr(py_spy, "start_of", lambda pid: start)
    sampling = Sampling(tmp_path, fake_py_spy.fails(*UNSUPPORTED), Chosen([sleeper]))
    sampling.until(sampling.has_given_up, "the end of trying")
    tried = len(sampling.helpers)
    sampling.collector.sample()
    assert len(sampling.helpers) == tried
    start = "2"
    fake_py_spy.install(sampling.folder, fake_py_spy.results())
    sampling.until(lambda: sampling.shard.rows, "a window")
    sampling.collector.finish()


def test_without_py_spy_one_sentence_says_so(tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(tmp_path, fake_py_spy.results(), Chosen([sleeper]))
    monkeypatch.setattr(py_spy, "find", lambda *_: None)
    sampling.collector.prepare()
    sampling.collector.sample()
    assert sampling.state == CollectorState(
        "stacks", "unavailable", "py-spy is not installed", "pip install py-spy, into the environment of spyreprof"
    )
    monkeypatch.setattr(py_spy_probe, "find", lambda *_: None)
    assert py_spy_probe.probe(sys.executable, None)[0] == "py-spy is not installed"


def test_a_script_in_the_place_of_the_interpreter_does_not_hold_the_trial_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    fake_py_spy.install(folder, fake_py_spy.results())
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(py_spy_probe, "_CHILD", py_spy_probe._CHILD.replace("120", "100_000"))
    script = tmp_path / "python3"
    script.write_text(f'#!/bin/sh\n"{sys.executable}" "$@" &\necho $! > "{tmp_path}/child"\nwait\n')
    script.chmod(0o755)
    _, trouble = py_spy_probe.probe(str(script), None)
    assert trouble is None
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_running(child), "the end of the child")


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/usr/lib/python3.12/queue.py", "<stdlib>/queue.py"),
        ("/opt/conda/lib/python3.13t/concurrent/futures/thread.py", "<stdlib>/concurrent/futures/thread.py"),
        ("/home/a/.venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("/home/customer/secret-project/queue.py", "queue.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("<string>", "<string>"),
        ("relative/path/run.py", "run.py"),
    ],
)
def test_of_a_path_the_place_in_its_package_is_kept(path: str, short: str) -> None:
    assert short_file(path) == short


def test_a_package_beside_its_sources_keeps_its_folders(tmp_path: Path) -> None:
    package = tmp_path / "private" / "vllm" / "engine"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    assert short_file(str(package / "core.py")) == "vllm/engine/core.py"


def test_of_a_recorded_program_the_processes_with_steps_are_chosen(tmp_path: Path) -> None:
    shards = tmp_path / layout.SHARDS
    shards.mkdir()
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(3)]
    try:
        few, many, none = (child.pid for child in children)
        (shards / f"steps-{few}-1.jsonl").write_text("{}\n")
        (shards / f"steps-{many}-1.jsonl").write_text("{}\n{}\n")
        (shards / "steps-1-1.jsonl").write_text("{}\n" * 9)  # not below us: a number inside some container
        processes = StepProcesses(tmp_path, os.getpid())
        processes.begin(none)
        assert processes.ranked() == [many, few]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert processes.ranked() == []


def test_without_steps_the_program_itself_is_sampled_after_a_while(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / layout.SHARDS).mkdir()
    processes = StepProcesses(tmp_path, os.getpid())
    processes.begin(sleeper)
    assert processes.ranked() == []
    monkeypatch.setattr("spyreprof_collectors.sampled_processes.PATIENCE_FOR_STEPS_S", 0.0)
    assert processes.ranked() == [sleeper]


PROGRAM = """
import sys, time
import spyreprof_agent
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    with spyreprof_agent.step("decode"):
        time.sleep(0.01)
print("output")
sys.exit(7)
"""


@pytest.mark.parametrize("body", [fake_py_spy.results(), fake_py_spy.fails(*PERMISSION_DENIED), "time.sleep(600)"])
def test_the_program_ends_as_without_py_spy(tmp_path: Path, body: str) -> None:
    folder = tmp_path / "bin"
    fake_py_spy.install(folder, body)
    done = subprocess.run(
        record_command(tmp_path / "run", python(PROGRAM, "3"), "--py-spy"),
        capture_output=True,
        cwd=tmp_path,
        env=environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}"),
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, b"output\n")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    (state,) = [entry for entry in manifest["collectors"] if entry["name"] == "stacks"]
    assert state["state"] == ("ok" if "result(" in body.replace("def result(", "") else "unavailable"), state
    assert (b"No stacks sampled: " in done.stderr) == (state["state"] == "unavailable")
    helpers = [int(line.split()[0]) for line in fake_py_spy.calls(folder)]
    assert helpers
    assert not any(is_running(pid) for pid in helpers)
    usage = (tmp_path / "run" / "shards" / "usage-launcher.jsonl").read_text()
    assert not any(f'"pid":{pid},' in usage for pid in helpers), "py-spy is no part of the program"
    assert not any(entry["name"] == "agent.processes" for entry in manifest["collectors"])


def test_a_rate_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        record_command(tmp_path / "run", python("pass"), "--py-spy", "--py-spy-rate", "0"),
        capture_output=True,
        cwd=tmp_path,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert not (tmp_path / "run").exists()


def test_a_rate_without_py_spy_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        record_command(tmp_path / "run", python("pass"), "--py-spy-rate", "10"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "spyreprof: --py-spy-rate has no effect without --py-spy. Add --py-spy, or leave the rate out.\n"
    )
    assert not (tmp_path / "run").exists()


def test_ctrl_c_reaches_the_program_and_the_windows_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    fake_py_spy.install(folder, fake_py_spy.results())
    process = subprocess.Popen(
        record_command(tmp_path / "run.spyreprof", python(PROGRAM, "600"), "--py-spy"),
        cwd=tmp_path,
        env=environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    shard = tmp_path / "run.spyreprof" / "shards" / "stacks-launcher.jsonl"
    wait_until(lambda: shard.exists() and shard.read_text().endswith("\n"), "a window")
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process, tmp_path)
    assert done.code == -signal.SIGINT
    assert done.collector("stacks")["state"] == "ok"


THREADS = """
import queue, threading, time
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
pool.submit(print).result()
threading.Thread(target=queue.Queue().get, daemon=True).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
def work():
    while True:
        sum(number * number for number in range(1000))
threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


def real_py_spy() -> str:
    _, trouble = py_spy_probe.probe(sys.executable, None)
    if trouble is not None:
        pytest.skip(f"py-spy cannot read a child here: {trouble.reason}")
    executable = py_spy.find(os.environ.get("PATH"))
    assert executable is not None
    return executable


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_real_py_spy_finds_nobody_at_work_in_a_process_that_sleeps(sleeper: int, interrupted: bool) -> None:
    request = py_spy_window.Request(real_py_spy(), sleeper, 50, 60 if interrupted else 2, with_sleeping=False)
    window = py_spy_window.Window.open(request, os.environ)
    if interrupted:
        wait_until(lambda: window.advance() or "Sampling process" in window.messages, "the first look")
        time.sleep(0.5)
        window.interrupt()
    wait_until(window.advance, "the end of the window")
    row: Any = window.row()
    assert row is not None, window.messages
    assert row["threads"] == []
    assert row["samples"] > 0
    assert row["complete"] is not interrupted


def test_the_real_py_spy_tells_work_from_waiting() -> None:
    executable = real_py_spy()
    stacks = pytest.importorskip("spyreprof.recording.stacks")
    child = subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        while child.stdout.readline() != b"ready\n":
            pass
        request = py_spy_window.Request(executable, child.pid, 50, 2, with_sleeping=True)
        window = py_spy_window.Window.open(request, os.environ)
        wait_until(window.advance, "the end of the window")
        row: Any = window.row()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert row is not None, window.messages
    found: dict[str, set[bool]] = {}
    for thread in row["threads"]:
        for numbers, _count in thread["stacks"]:
            function, file = row["frames"][numbers[-1]]
            found.setdefault(thread["thread"], set()).add(stacks.is_waiting(function, file))
    # A queue, an event, an idle worker wait; one works, and the main thread sleeps in C, which only the kernel knows.
    assert sorted(found.values(), key=str) == [{False}, {False}, {True}, {True}, {True}]
