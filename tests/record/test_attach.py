"""`spyreprof attach`: what is written, that the program is left as it was, and that nothing is left behind."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fake_py_spy
import pytest
from recording_run import PATIENCE_S, environment, is_running, read_manifest, read_rows, wait_until

PAGE = (
    "# TYPE vllm:num_requests_running gauge\n"
    "vllm:num_requests_running 3\n"
    "# TYPE vllm:num_requests_waiting gauge\n"
    "vllm:num_requests_waiting 1\n"
    "# TYPE vllm:time_to_first_token_seconds histogram\n"
    "vllm:time_to_first_token_seconds_sum {total}\n"
    "vllm:time_to_first_token_seconds_count {count}\n"
)
# Works, prints what it did, and ends with a code of its own when its standard input closes.
PROGRAM = """
import sys, threading
closed = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
print("ready", flush=True)
total = 0
while not closed.is_set():
    total += sum(number * number for number in range(1000))
print("done", total > 0, flush=True)
sys.exit(9)
"""


@contextmanager
def program() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ends_as_ever(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate("", timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (9, "done True\n", "")


@contextmanager
def served(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                answer(self)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def text(body: str | bytes, status: int = 200, **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body.encode() if isinstance(body, str) else body)

    return answer


@contextmanager
def engine_page() -> Iterator[str]:
    count = 0

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        nonlocal count
        count += 10
        text(PAGE.format(total=count * 0.25, count=count))(request)

    with served(answer) as url:
        yield url


class Attached:
    """A running `spyreprof attach`, in a session of its own."""

    def __init__(
        self, tmp_path: Path, *words: str, py_spy: str = fake_py_spy.results(), before: tuple[str, ...] = ()
    ) -> None:
        self.folder = tmp_path / "bin"
        fake_py_spy.install(self.folder, py_spy)
        self.path = tmp_path / "run"
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "spyreprof", "attach", "--out", str(self.path), *words],
            cwd=tmp_path,
            env=environment(PATH=f"{self.folder}{os.pathsep}{os.environ['PATH']}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise
        return self.process.returncode, out, err

    def has_rows(self, kind: str) -> bool:
        shard = self.path / "shards" / f"{kind}-launcher.jsonl"
        return shard.exists() and shard.read_text().count("\n") > 0

    @property
    def helpers(self) -> list[int]:
        return [int(line.split()[0]) for line in fake_py_spy.calls(self.folder)]

    def collectors(self) -> dict[str, dict[str, Any]]:
        return {entry["name"]: entry for entry in read_manifest(self.path)["collectors"]}


def refused(tmp_path: Path, *words: str) -> str:
    """What is said about an input that cannot be used; nothing is written."""
    attached = Attached(tmp_path, *words)
    code, out, err = attached.end()
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1, err
    assert not attached.path.exists()
    assert attached.helpers == []
    return err


def test_a_process_and_its_page_become_a_whole_recording_and_go_on_as_before(tmp_path: Path) -> None:
    with program() as process, engine_page() as url:
        attached = Attached(tmp_path, "--pid", str(process.pid), "--url", url, "--duration", "2.5")
        code, out, err = attached.end()
        assert (code, out) == (0, ""), err
        ends_as_ever(process)
    manifest = read_manifest(attached.path)
    assert manifest["mode"] == "attach"
    assert manifest["exit"] is None
    assert manifest["ended_ns"] > manifest["started_ns"]
    assert manifest["duration_reached"] is True
    assert manifest["command"][0] == sys.executable
    states = attached.collectors()
    assert [states[name]["state"] for name in ("usage", "stacks", "metrics")] == ["ok", "ok", "ok"]
    assert states["agent"]["state"] == "unavailable"
    usage = [row for row in read_rows(attached.path, "usage") if "pid" in row]
    assert {row["pid"] for row in usage} == {process.pid}
    assert {row["pid"] for row in read_rows(attached.path, "stacks")} == {process.pid}
    assert len(read_rows(attached.path, "metrics")) >= 2
    assert all((path.stat().st_mode & 0o077) == 0 for path in attached.path.rglob("*"))
    assert not any(is_running(pid) for pid in attached.helpers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_watching_and_nothing_else(tmp_path: Path, number: int) -> None:
    sleeps = f"say({fake_py_spy.STARTED!r})\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)"
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid), py_spy=sleeps)
        wait_until(lambda: attached.has_rows("usage") and attached.helpers, "a sample")
        os.kill(attached.process.pid, number)
        code, _, err = attached.end()
        assert code == 0, err
        ends_as_ever(process)
    manifest = read_manifest(attached.path)
    assert manifest["interrupted"] is True
    assert signal.Signals(number).name in " ".join(manifest["notes"])
    wait_until(lambda: not any(is_running(pid) for pid in attached.helpers), "the end of all helpers")


def test_under_nohup_a_hang_up_ends_nothing(tmp_path: Path) -> None:
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid), before=("nohup",))
        wait_until(lambda: attached.has_rows("usage"), "a sample")
        attached.process.send_signal(signal.SIGHUP)
        attached.process.send_signal(signal.SIGTERM)
        code, _, err = attached.end()
        assert code == 0, err
        ends_as_ever(process)
    assert "SIGTERM" in " ".join(read_manifest(attached.path)["notes"])


def test_the_end_of_the_process_ends_the_watching_and_is_noted(tmp_path: Path) -> None:
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid))
        wait_until(lambda: attached.has_rows("usage") and attached.has_rows("stacks"), "samples")
        ends_as_ever(process)
        code, _, err = attached.end()
    assert code == 0, err
    assert f"Process {process.pid} ended" in " ".join(read_manifest(attached.path)["notes"])
    assert attached.collectors()["stacks"]["state"] == "ok"


def test_a_process_that_becomes_a_zombie_has_ended(tmp_path: Path) -> None:
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid))
        wait_until(lambda: attached.has_rows("usage"), "a sample")
        os.kill(process.pid, signal.SIGKILL)  # and nobody collects it yet
        assert attached.end()[0] == 0


def test_python_processes_below_it_are_watched_too(tmp_path: Path) -> None:
    inner = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    parent = subprocess.Popen(["sh", "-c", f'"{sys.executable}" -c "$0"; true', inner])
    usage: dict[int, int] = {}
    try:
        attached = Attached(tmp_path, "--pid", str(parent.pid), "--duration", "600")
        wait_until(lambda: attached.has_rows("stacks"), "a window")
        os.kill(attached.process.pid, signal.SIGINT)
        assert attached.end()[0] == 0
        usage = {row["pid"]: row["ppid"] for row in read_rows(attached.path, "usage") if "pid" in row}
        (child,) = [pid for pid, ppid in usage.items() if ppid == parent.pid]
        assert parent.pid in usage
        assert {row["pid"] for row in read_rows(attached.path, "stacks")} == {child}
    finally:
        for pid in [pid for pid in usage if pid != parent.pid]:
            os.kill(pid, signal.SIGKILL)
        parent.kill()
        parent.wait()


def test_stacks_that_may_not_be_read_cost_the_rest_nothing(tmp_path: Path) -> None:
    denied = fake_py_spy.fails("Permission Denied: Try running again with elevated permissions")
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid), py_spy=denied)
        wait_until(lambda: attached.has_rows("usage") and attached.helpers, "samples")
        time.sleep(1.5)  # until that is told
        os.kill(attached.process.pid, signal.SIGINT)
        code, _, err = attached.end()
        ends_as_ever(process)
    assert code == 0
    states = attached.collectors()
    assert (states["usage"]["state"], states["stacks"]["state"]) == ("ok", "unavailable")
    assert "Permission Denied" in states["stacks"]["reason"]
    assert "no Python stacks can be had here" in err
    assert "stacks: " in err
    assert "Remedy: " in err


def test_a_recorder_that_is_killed_leaves_a_readable_recording_and_py_spy_only_for_its_window(tmp_path: Path) -> None:
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid), "--quiet")
        wait_until(lambda: attached.has_rows("stacks"), "a window")
        attached.process.kill()
        attached.end()
        ends_as_ever(process)
    assert read_manifest(attached.path)["ended_ns"] is None
    # Each is told how long to sample, so that it ends without anybody's word.
    assert all("--duration 8 " in line or "--duration 2 " in line for line in fake_py_spy.calls(attached.folder))


def test_a_recording_that_vanishes_meanwhile_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid))
        wait_until(lambda: attached.has_rows("usage"), "a sample")
        shutil.rmtree(attached.path)
        os.kill(attached.process.pid, signal.SIGINT)
        code, _, err = attached.end()
        ends_as_ever(process)
    assert code == 1
    assert "could not be written" in err
    assert "Traceback" not in err


def test_a_page_alone_is_polled_until_the_time_is_over(tmp_path: Path) -> None:
    with engine_page() as url:
        attached = Attached(tmp_path, "--url", url, "--duration", "1.5")
        assert attached.end()[0] == 0
    assert not attached.has_rows("usage")
    states = attached.collectors()
    assert states["metrics"]["state"] == "ok"
    assert states["usage"]["obtain"] == "attach with --pid"
    assert attached.helpers == []


def test_a_server_that_goes_away_meanwhile_is_no_fault(tmp_path: Path) -> None:
    with engine_page() as url:
        attached = Attached(tmp_path, "--url", url, "--duration", "2.5")
        wait_until(lambda: attached.has_rows("metrics"), "a poll")
    code, _, err = attached.end()
    assert code == 0, err
    assert "Traceback" not in err


def test_the_report_of_an_attachment_says_what_was_seen_and_leaves_the_rest_open(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    stacks = "".join(fake_py_spy.STACKS for _ in range(4)).replace(" 30\n", " 300\n")
    with program() as process, engine_page() as url:
        attached = Attached(
            tmp_path, "--pid", str(process.pid), "--url", url, "--duration", "3.5", py_spy=fake_py_spy.results(stacks)
        )
        assert attached.end()[0] == 0
    done = subprocess.run(
        [sys.executable, "-m", "spyreprof", "report", "--json", str(attached.path)],
        capture_output=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"]["primary"] == "undetermined"
    # the gauges tell of a steady stretch, but nobody saw what ran in it
    assert "(3) ran" in report["window"]["basis"]
    assert report["time_budget"] is None
    findings = {finding["id"]: finding["text"] for finding in report["findings"]}
    assert set(findings) == {"SPY-OBS-001", "SPY-OBS-002", "SPY-HST-002"}
    assert "3.0 requests ran" in findings["SPY-OBS-002"]
    assert "Linear.forward (torch/nn/modules/linear.py)" in findings["SPY-HST-002"]
    assert "serve.py" not in done.stdout.decode(), "a file of the user's"
    (ttft,) = [row for row in report["latencies"] if row["metric"] == "ttft"]
    assert ttft["mean_s"] == pytest.approx(0.25)
    assert (ttft["p50_s"], ttft["p99_s"]) == (None, None)
    assert all(question["obtain"] for question in report["not_judged"])
    assert any("binds" in question["topic"] for question in report["not_judged"])


def test_nothing_to_attach_to(tmp_path: Path) -> None:
    err = refused(tmp_path)
    assert "--pid" in err
    assert "--url" in err


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    free = subprocess.Popen(["true"])
    free.wait()
    assert f"There is no process {free.pid}" in refused(tmp_path, "--pid", str(free.pid))


def test_a_process_id_that_is_beyond_all_bounds(tmp_path: Path) -> None:
    assert "There is no process" in refused(tmp_path, "--pid", "99999999999999999999")


def test_a_zombie(tmp_path: Path) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert "has ended" in refused(tmp_path, "--pid", str(zombie.pid))
    zombie.wait()


def test_a_process_that_is_no_python(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert "is no Python program" in refused(tmp_path, "--pid", str(other.pid))
    finally:
        other.kill()
        other.wait()


def test_a_thread_is_told_from_its_process(tmp_path: Path) -> None:
    with program() as process:
        threads = [int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir()]
        (other,) = [thread for thread in threads if thread != process.pid]
        assert f"Attach with --pid {process.pid}" in refused(tmp_path, "--pid", str(other))


def test_a_process_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spyreprof.errors import UserError
    from spyreprof_collectors import target

    monkeypatch.setattr(target, "owner", lambda pid: 12345)
    monkeypatch.setattr(target, "may_ptrace_everything", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with program() as process, pytest.raises(UserError) as refusal:
        target.Target.open(process.pid)
    assert "belongs to another user" in refusal.value.problem


def test_a_number_that_came_back_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from spyreprof_collectors import target

    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with program() as process:
        seen = target.Target.open(process.pid)
        assert not seen.has_ended()
        monkeypatch.setattr(target, "start_of", lambda pid: "1")
        assert seen.has_ended()


def test_a_number_that_comes_back_while_it_is_looked_at_is_not_taken_for_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spyreprof.errors import UserError
    from spyreprof_collectors import target

    handles: list[int] = []
    open_handle = os.pidfd_open

    def hold(pid: int) -> int:
        handles.append(open_handle(pid))
        return handles[-1]

    starts = iter(["1", "2"])
    monkeypatch.setattr(os, "pidfd_open", hold)
    monkeypatch.setattr(target, "start_of", lambda pid: next(starts))
    with program() as process, pytest.raises(UserError) as refusal:
        target.Target.open(process.pid)
    for handle in handles:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)
    assert "has ended" in refusal.value.problem


def hang(request: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(60)


def drip(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(600):
        request.wfile.write(b"#")
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (text("<html><body>hello</body></html>\n" * 5), "something else than Prometheus"),
        (text(b"a_metric 1\n" * 900_000), "larger than 8 MB"),
        (text("", 302, Location="http://127.0.0.1:1/elsewhere"), "answered 302"),
        (text("who are you", 401), "answered 401"),
        (text("", 404), "answered 404"),
        (text("", 503), "answered 503"),
        (hang, "timed out"),
        (drip, "no whole answer"),
    ],
    ids=["html", "huge", "redirect", "401", "404", "503", "hangs", "drips"],
)
def test_a_page_that_gives_no_metrics(
    tmp_path: Path, answer: Callable[[http.server.BaseHTTPRequestHandler], None], expected: str
) -> None:
    with served(answer) as url:
        assert expected in refused(tmp_path, "--url", url)


def test_a_page_that_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/metrics"
        err = refused(tmp_path, "--url", url)
    assert "refused" in err
    assert "secret" not in err


@pytest.mark.parametrize("url", ["metrics", "ftp://host/metrics", "http://host:port/metrics"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    assert "--url" in refused(tmp_path, "--url", url)


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("mine")
    with program() as process:
        attached = Attached(tmp_path, "--pid", str(process.pid))
        code, _, err = attached.end()
        ends_as_ever(process)
    assert code == 2
    assert "is not empty" in err
    assert [path.name for path in attached.path.iterdir()] == ["mine"]
