"""Rows survive every way in which Python processes multiply and end."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_program import BOOT, run

QUEUE_ROW = """
    import os, sys
    from _spyreprof import install
    agent = install.install("again")
    def queue(name):
        agent.writer.buffer("model").append({"k": "module", "module": name})
"""


def test_a_forked_child_writes_under_its_own_name_and_repeats_no_row_of_its_parent(tmp_path: Path) -> None:
    program = f"""{QUEUE_ROW}
    queue("parent")
    if os.fork() == 0:
        queue("child")
        os._exit(3)
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status))
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "3\n", "")
    assert sorted(row["module"] for row in ended.rows("model")) == ["child", "parent"]
    parent, child = sorted(ended.process_rows("open"), key=lambda row: int(row["t"]))
    assert (child["how"], child["ppid"]) == ("fork", parent["pid"])
    assert sorted(row["how"] for row in ended.process_rows("close")) == ["atexit", "fork_child_exit"]
    assert len(list((ended.folder / "shards").glob("model-*"))) == 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_open_and_close(tmp_path: Path, method: str) -> None:
    program = f"""
    import multiprocessing

    def work():
        pass

    if __name__ == "__main__":
        child = multiprocessing.get_context("{method}").Process(target=work)
        child.start()
        child.join()
        print(child.pid, child.exitcode)
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stderr) == (0, "")
    pid, code = map(int, ended.stdout.split())
    assert code == 0
    shards = list((ended.folder / "shards").glob(f"process-{pid}-*.jsonl"))
    assert len(shards) == 1
    text = shards[0].read_text()
    assert '"k":"open"' in text
    assert '"k":"close"' in text


def test_a_subprocess_is_recorded_too(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    ended = run(tmp_path, program)
    assert len(ended.process_rows("open")) == len(ended.process_rows("close")) == 2


def test_os_exit_keeps_its_code_and_the_rows_before_it(tmp_path: Path) -> None:
    ended = run(tmp_path, f"{QUEUE_ROW}\n    queue('last')\n    os._exit(7)")
    assert ended.code == 7
    assert [row["module"] for row in ended.rows("model")] == ["last"]
    assert [row["how"] for row in ended.process_rows("close")] == ["os._exit"]


@pytest.mark.parametrize(
    ("call", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "signal"),
        ("os.kill(os.getpid(), 9)", "signal"),
        ("os.killpg(os.getpgrp(), signal.SIGHUP)", "signal"),
        ("signal.raise_signal(signal.SIGTERM)", "signal"),
        ("os.abort()", "abort"),
    ],
)
def test_a_process_that_ends_itself_by_a_signal_keeps_the_rows_before_it(tmp_path: Path, call: str, how: str) -> None:
    own_group = "os.setpgid(0, 0); import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL)"
    bare = run(tmp_path, f"import os\n{own_group}\n{call}", agent=False)
    ended = run(tmp_path, f"{QUEUE_ROW}\n    {own_group}\n    queue('last')\n    {call}")
    assert ended.code == bare.code < 0
    assert [row["module"] for row in ended.rows("model")] == ["last"]
    assert [row["how"] for row in ended.process_rows("close")] == [how]


def test_a_signal_module_that_was_there_before_us_is_followed_too(tmp_path: Path) -> None:
    program = f"""
    import signal, os
    os.environ["SPYREPROF_DIR"] = {str(tmp_path / "run.spyreprof")!r}
    from _spyreprof import install
    install.install("late")
    signal.raise_signal(signal.SIGTERM)
    """
    ended = run(tmp_path, program, agent=False, paths=(BOOT,))
    assert ended.code == -15
    assert [row["how"] for row in ended.process_rows("close")] == ["signal"]


def test_signals_that_do_not_end_a_process_and_wrong_arguments_leave_no_row(tmp_path: Path) -> None:
    program = """
    import os, signal
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    os.kill(os.getpid(), 0)
    os.kill(os.getpid(), signal.SIGCHLD)
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    for call, arguments in [(os.kill, ()), (os.kill, ([], [])), (signal.raise_signal, ("x",)), (os.killpg, (1,))]:
        try:
            call(*arguments)
        except TypeError:
            caught.append(2)
    try:
        signal.raise_signal(4711)
    except (OSError, ValueError) as error:
        caught.append(type(error).__name__)
    print(caught)
    """
    bare = run(tmp_path, program, agent=False)
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (bare.code, bare.stdout, bare.stderr)
    assert "[1, 1, 2, 2, 2, 2" in ended.stdout
    assert [row["how"] for row in ended.process_rows("close")] == ["atexit"]
    assert [row for row in ended.process_rows("hook") if row["state"] == "failed"] == []


def test_a_signal_that_is_blocked_ends_nothing(tmp_path: Path) -> None:
    program = f"""{QUEUE_ROW}
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)
    queue("after")
    """
    ended = run(tmp_path, program)
    assert ended.code == 0
    assert [row["module"] for row in ended.rows("model")] == ["after"]
    assert [row["how"] for row in ended.process_rows("close")] == ["signal", "atexit"]


def test_signals_that_a_process_survives_end_no_request_and_are_told_once(tmp_path: Path) -> None:
    program = """
    import faulthandler, os, signal, spyreprof_agent
    finished = spyreprof_agent.request(prompt_tokens=7).begin()
    left_open = spyreprof_agent.request(prompt_tokens=8).begin()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    faulthandler.register(signal.SIGUSR1, file=open(os.devnull, "w"))
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
    finished.finished(output_tokens=3)
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stderr) == (0, "")
    assert [(row["prompt"], row["t1"] is not None) for row in ended.rows("requests")] == [(7, True), (8, False)]
    assert [row["how"] for row in ended.process_rows("close")] == ["signal", "atexit"]


def test_a_request_that_is_open_when_the_process_aborts_is_a_row_without_an_end(tmp_path: Path) -> None:
    ended = run(tmp_path, "import os, spyreprof_agent; spyreprof_agent.request(prompt_tokens=8).begin(); os.abort()")
    assert ended.code < 0
    assert [(row["prompt"], row["t1"]) for row in ended.rows("requests")] == [(8, None)]
    assert [row["how"] for row in ended.process_rows("close")] == ["abort"]


def test_what_we_wrap_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    program = """
    import os, pickle, signal
    from concurrent.futures import ProcessPoolExecutor
    import multiprocessing
    if __name__ == "__main__":
        for call in (os._exit, os.execv, os.execve, os.abort, os.kill, os.killpg, signal.raise_signal):
            assert pickle.loads(pickle.dumps(call)) is call
        child = multiprocessing.get_context("spawn").Process(target=os._exit, args=(6,))
        child.start()
        child.join()
        print(child.exitcode)
    """
    ended = run(tmp_path, program)
    assert (ended.stdout, ended.stderr) == ("6\n", "")


@pytest.mark.parametrize(
    "call",
    [
        "execv(sys.executable, [sys.executable, '-c', 'print(5)'])",
        "execve(sys.executable, [sys.executable, '-c', 'print(5)'], dict(os.environ))",
        "execvp('env', ['env', sys.executable, '-c', 'print(5)'])",
    ],
)
def test_exec_keeps_the_rows_before_it_and_says_so(tmp_path: Path, call: str) -> None:
    ended = run(tmp_path, f"{QUEUE_ROW}\n    queue('last')\n    os.{call}")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "5\n", "")
    assert [row["module"] for row in ended.rows("model")] == ["last"]
    assert len(ended.process_rows("exec")) == 1
    before, after = ended.process_rows("open")
    assert before["pid"] == after["pid"]
    assert len(ended.process_rows("close")) == 1


def test_an_exec_that_fails_raises_as_ever_and_says_nothing(tmp_path: Path) -> None:
    program = """
    import os
    try:
        os.execvp("no-such-program-anywhere", ["x"])
    except FileNotFoundError as error:
        print(type(error).__name__)
    """
    ended = run(tmp_path, program)
    assert ended.stdout == "FileNotFoundError\n"
    assert ended.process_rows("exec") == []


def test_an_uncaught_exception_keeps_its_traceback_and_code(tmp_path: Path) -> None:
    bare = run(tmp_path, "raise SystemError('as ever')", agent=False)
    ended = run(tmp_path, "raise SystemError('as ever')")
    assert (ended.code, ended.stderr) == (bare.code, bare.stderr)
    assert len(ended.process_rows("close")) == 1


def test_a_program_that_closes_every_descriptor_is_not_written_into(tmp_path: Path) -> None:
    program = f"""{QUEUE_ROW}
    os.closerange(3, 200)
    own = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    read, write = os.pipe()
    queue("row")
    agent.writer.flush()
    os.set_blocking(read, False)
    try:
        os.read(read, 1)
    except BlockingIOError:
        print("nothing came")
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout) == (0, "nothing came\n")
    assert [row["module"] for row in ended.rows("model")] == ["row"]


def test_the_flusher_is_gone_while_the_program_forks(tmp_path: Path) -> None:
    program = f"""{QUEUE_ROW}
    def threads():
        return len(os.listdir("/proc/self/task"))
    agent.writer.add("model", {{"k": "module", "module": "first"}})
    assert threads() == 2
    counts = []
    os.register_at_fork(after_in_parent=lambda: counts.append(threads()))
    if os.fork() == 0:
        agent.writer.add("model", {{"k": "module", "module": "child"}})
        counts.append(threads())
        os._exit(counts != [2])
    assert os.wait()[1] == 0
    agent.writer.add("model", {{"k": "module", "module": "second"}})
    counts.append(threads())
    print(counts)
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == "[1, 2]\n"
    assert sorted(row["module"] for row in ended.rows("model")) == ["child", "first", "second"]


def test_rows_reach_the_disk_while_the_program_runs(tmp_path: Path) -> None:
    program = f"""{QUEUE_ROW}
    import time
    agent.writer.add("model", {{"k": "module", "module": "early"}})
    shard = f"{{agent.folder}}/shards/model-{{agent.writer.writer_id}}.jsonl"
    for _ in range(600):
        if os.path.exists(shard):
            break
        time.sleep(0.05)
    import ctypes
    ctypes.CDLL(None).kill(os.getpid(), 9)  # as if from outside
    """
    ended = run(tmp_path, program)
    assert ended.code == -9
    assert [row["module"] for row in ended.rows("model")] == ["early"]
    assert ended.process_rows("close") == []
