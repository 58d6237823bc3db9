"""Programs of many processes and threads: recorded, they end and print as they do alone, and every step is kept."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from recording_run import Finished, environment, finish, read_rows, record, record_command, start, wait_for_text

# The first lines of every program. Standard output is left buffered: what a fork copies, both copies print.
STEPS = """
import os, signal, sys, threading, time
import spyreprof_agent

def steps(count):
    for _ in range(count):
        with spyreprof_agent.step("decode", generation_requests=1):
            pass
"""

# Program, and how many steps each of its processes takes; a process that execs counts twice.
PROGRAMS: dict[str, tuple[str, list[int]]] = {
    "fork": (
        """
        print("before", end=" ")
        steps(1)
        if os.fork() == 0:
            steps(2)
            print("child")
            sys.exit(7)
        print("parent", os.waitstatus_to_exitcode(os.wait()[1]))
        steps(3)
        sys.exit(5)
        """,
        [2, 4],
    ),
    "forks of forks": (
        """
        for depth in range(3):
            if os.fork():
                status = os.wait()[1]
                steps(depth)
                os._exit(os.waitstatus_to_exitcode(status) + 1)
        steps(9)
        """,
        [1, 2, 9],
    ),
    "os._exit": ("steps(3); print('lost'); os.write(1, b'kept'); os._exit(9)", [3]),
    "os._exit in a thread": (
        "threading.Thread(target=lambda: (steps(2), os._exit(4))).start(); time.sleep(60)",
        [2],
    ),
    "execv": (
        """
        steps(2)
        if "again" not in sys.argv:
            os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
        print("again")
        sys.exit(3)
        """,
        [2, 2],
    ),
    "execvpe": (
        """
        steps(2)
        if "AGAIN" not in os.environ:
            folder, name = os.path.split(sys.executable)
            os.execvpe(name, [sys.executable, *sys.argv], {**os.environ, "AGAIN": "1", "PATH": "/nowhere:" + folder})
        sys.exit("ends with a text on stderr")
        """,
        [2, 2],
    ),
    "exec of another program": ("steps(2); os.execl('/bin/sh', 'sh', '-c', 'echo shell; exit 6')", [2]),
    "subprocess": (
        """
        import subprocess
        if "child" in sys.argv:
            steps(4)
            print("noise", file=sys.stderr)
            sys.exit(3)
        for extra in ({}, {"start_new_session": True}, {"preexec_fn": os.getpid}, {"close_fds": False}):
            print(subprocess.run([sys.executable, *sys.argv, "child"], **extra).returncode, flush=True)
        """,
        [4, 4, 4, 4],
    ),
    "posix_spawn": (
        """
        if "child" in sys.argv:
            steps(4)
            os.kill(os.getpid(), signal.SIGUSR1)
        pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv, "child"], os.environ)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        [],
    ),
    "signals among them": (
        """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGUSR1, lambda *_: (steps(2), print("usr1"), sys.exit(0)))
            os.write(write, b"x")
            time.sleep(60)
        os.read(read, 1)
        os.kill(child, signal.SIGUSR1)
        os.wait()
        signal.signal(signal.SIGALRM, lambda *_: steps(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
        os.kill(os.getpid(), signal.SIGTERM)
        """,
        [2],
    ),
    "an abort": ("steps(1); print('x', flush=True); os.abort()", []),
    "a thread that outlives the main one": (
        """
        def work():
            threading.main_thread().join()
            time.sleep(0.1)
            steps(3)
            print("last")
        threading.Thread(target=work).start()
        steps(1)
        sys.exit(2)
        """,
        [4],
    ),
    "an exception in a thread": (
        "thread = threading.Thread(target=lambda: (steps(2), 1 / 0), name='t'); thread.start(); thread.join()",
        [2],
    ),
    "detached": (
        """
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.chdir("/")
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            steps(6)
            os.write(write, b"x")
            os._exit(0)
        os.wait()
        os.close(write)
        print(os.read(read, 1))
        while os.read(read, 1):
            pass
        """,
        [6],
    ),
    **{
        f"multiprocessing {method}": (
            f"""
            import multiprocessing
            def work(count):
                steps(count)
                print("worked", count, flush=True)
                raise SystemExit(count)
            if __name__ == "__main__":
                context = multiprocessing.get_context("{method}")
                for count in (2, 3):
                    child = context.Process(target=work, args=(count,))
                    child.start()
                    child.join()
                    print(child.exitcode, flush=True)
            """,
            [2, 3],
        )
        for method in ("fork", "spawn", "forkserver")
    },
    "a pool that loses a worker": (
        """
        from concurrent.futures import ProcessPoolExecutor
        import multiprocessing
        def work(last):
            steps(1)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            pool.submit(work, False).result()
            try:
                pool.submit(work, True).result()
            except Exception as error:
                print(type(error).__name__)
            pool.shutdown()  # else the interpreter's end races with the closing of the pool's pipe (CPython 3.11)
            steps(5)
        """,
        [5],
    ),
}


def text_of(program: str) -> str:
    lines = program.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return STEPS + "\n".join(line[indent:] for line in lines) + "\n"


def both(tmp_path: Path, program: str, *flags: str) -> tuple[subprocess.CompletedProcess[bytes], Finished]:
    """Run a program alone and recorded."""
    path = tmp_path / "program.py"
    path.write_text(text_of(program))
    words = [sys.executable, *flags, str(path)]
    bare = subprocess.run(
        words, env=environment(), cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )  # fmt: skip
    return bare, record(tmp_path, words, "--quiet")


def steps_by_process(run: Finished) -> list[int]:
    shards = (run.path / "shards").glob("steps-*.jsonl")
    return sorted(len(shard.read_text().splitlines()) for shard in shards)


@pytest.mark.parametrize("name", PROGRAMS)
def test_end_and_output_are_those_of_the_bare_program_and_steps_of_all_processes_are_kept(
    tmp_path: Path, name: str
) -> None:
    program, steps = PROGRAMS[name]
    bare, run = both(tmp_path, program)
    assert (run.code, run.stdout, run.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    # A process that a signal kills may lose its last half second.
    missing = Counter(steps) - Counter(steps_by_process(run))
    assert not missing


def test_daemon_threads_that_step_to_the_very_end_change_nothing(tmp_path: Path) -> None:
    program = """
    def work():
        while True:
            steps(1)
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)
    print("end")
    sys.exit(11)
    """
    bare, run = both(tmp_path, program)
    assert (run.code, run.stdout, run.stderr) == (bare.returncode, bare.stdout, bare.stderr) == (11, b"end\n", b"")
    assert steps_by_process(run)[0] > 0
    assert run.manifest["processes"][0]["closed_how"] == "atexit"


@pytest.mark.parametrize("flags", ["-S", "-E", "-I"])
def test_a_python_that_the_hook_cannot_enter_runs_as_ever_and_the_manifest_says_why(tmp_path: Path, flags: str) -> None:
    code = "import sys; print(sys.flags.isolated, sys.flags.no_site); sys.exit(3)"
    words = [sys.executable, flags, "-c", code]
    bare = subprocess.run(words, env=environment(), cwd=tmp_path, capture_output=True, timeout=60, check=False)
    run = record(tmp_path, words, "--quiet")
    assert (run.code, run.stdout, run.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    agent = run.collector("agent")
    assert agent["state"] == "unavailable"
    assert f"python {flags} ignores" in agent["reason"]
    assert agent["obtain"] == f"run without {flags}"


def test_children_that_the_hook_cannot_enter_are_named_with_the_reason(tmp_path: Path) -> None:
    code = """
import subprocess, sys
sleep = "import sys, time; time.sleep(2.2); sys.exit(4)"
starts = [([], {}), (["-I"], None), (["-S"], None), ([], None)]
children = [subprocess.Popen([sys.executable, *flags, "-c", sleep], env=env) for flags, env in starts]
print([child.pid for child in children], flush=True)
print([child.wait() for child in children])
"""
    run = record(tmp_path, [sys.executable, "-c", code])
    pids, codes = run.stdout.decode().splitlines()
    assert codes == "[4, 4, 4, 4]"
    bare, isolated, without_site, hooked = re.findall(r"\d+", pids)
    found = run.collector("agent.processes")
    assert found["state"] == "partial"
    assert f"{bare} (its environment lacks PYTHONPATH or SPYREPROF_DIR)" in found["reason"]
    assert f"{isolated} (python -I)" in found["reason"]
    assert f"{without_site} (python -S)" in found["reason"]
    assert hooked not in found["reason"]
    assert "keep PYTHONPATH" in found["obtain"]
    assert b"the hook could not enter these 3 processes of Python" in run.stderr


@pytest.mark.parametrize("same", [True, False], ids=["of the same program", "of two programs"])
def test_two_recordings_at_once_keep_apart(tmp_path: Path, same: bool) -> None:
    paths = [tmp_path / "a.py", tmp_path / ("a.py" if same else "b.py")]
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    for path in paths:
        path.write_text(
            STEPS + "import pathlib\n"
            "steps(int(sys.argv[1]))\n"
            "(pathlib.Path(sys.argv[2]) / sys.argv[1]).touch()\n"
            "while len(os.listdir(sys.argv[2])) < 2: time.sleep(0.01)\n"
            "steps(int(sys.argv[1]))\n"
        )
    runs = [
        subprocess.Popen(
            record_command(None, [sys.executable, path, str(count), meeting]),
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for path, count in zip(paths, (3, 5), strict=True)
    ]  # fmt: skip
    ended = [run.communicate(timeout=60) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ended
    counts = [len(read_rows(path, "steps")) for path in tmp_path.glob("*.spyreprof")]
    assert sorted(counts) == [6, 10]


def test_steps_inside_an_inner_recording_are_the_inner_ones_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STEPS + "steps(4); time.sleep(2.2); sys.exit(3)\n")
    inner = tmp_path / "inner.spyreprof"
    run = record(tmp_path, record_command(inner, [sys.executable, program], "--quiet"), "--quiet")
    assert (run.code, run.stdout, run.stderr) == (3, b"", b"")
    assert len(read_rows(inner, "steps")) == 4
    assert run.rows("steps") == []
    assert "(in a recording of its own)" in run.collector("agent.processes")["reason"]


UVLOOP = """
import asyncio, uvloop

async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('child'); raise SystemExit(3)")
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    print(type(loop).__module__, await child.wait())
    await loop.run_in_executor(None, steps, 3)
    os.kill(os.getpid(), signal.SIGTERM)
    await ended.wait()
    steps(2)
    return 5

sys.exit(uvloop.run(main()))
"""


def test_a_program_on_uvloop_ends_and_prints_as_it_does_alone(tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    bare, run = both(tmp_path, UVLOOP)
    assert bare.returncode == 5, bare.stderr
    assert (run.code, run.stdout, run.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert steps_by_process(run) == [5]


UVICORN = (
    STEPS
    + """
import uvicorn

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await receive()
    steps(3)
    with open(f"ready-{os.getpid()}", "w") as file:
        file.write("x\\n")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    steps(2)
    await send({"type": "lifespan.shutdown.complete"})

if __name__ == "__main__":
    workers = int(sys.argv[1])
    # Its access log would show that the recorder asks for /metrics.
    uvicorn.run("server:app", host="127.0.0.1", port=0, workers=workers, access_log=False)
"""
)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_uvicorn_server_ends_and_prints_as_it_does_alone(tmp_path: Path, workers: int, number: int) -> None:
    pytest.importorskip("uvicorn")
    (tmp_path / "server.py").write_text(UVICORN)
    program = [sys.executable, str(tmp_path / "server.py"), str(workers)]

    def ended(begin: Callable[[], subprocess.Popen[bytes]]) -> tuple[int, bytes, list[bytes]]:
        for old in tmp_path.glob("ready-*"):
            old.unlink()
        process = begin()
        while len(list(tmp_path.glob("ready-*"))) < workers:
            assert process.poll() is None
        for ready in tmp_path.glob("ready-*"):
            wait_for_text(ready)
        process.send_signal(number)
        run = finish(process, tmp_path)
        # process ids and the port; two workers speak in any order
        return run.code, run.stdout, sorted(re.sub(rb"\d+", b"N", run.stderr).splitlines())

    bare = ended(
        lambda: subprocess.Popen(
            program, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )
    )  # fmt: skip
    recorded = ended(lambda: start(tmp_path, program, "--quiet"))
    assert recorded == bare
    assert len(bare[2]) > workers
    steps = [len(shard.read_text().splitlines()) for shard in (tmp_path / "run.spyreprof/shards").glob("steps-*")]
    assert steps == [5] * workers
