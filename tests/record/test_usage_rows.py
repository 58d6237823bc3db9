"""Processor time and memory per process and thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from recording_run import python, record, wait_until

from spyreprof_collectors import usage
from spyreprof_collectors.shards import ShardWriter


def collector(tmp_path: Path, excluded: tuple[int, ...] = ()) -> tuple[usage.UsageCollector, Path]:
    (tmp_path / "shards").mkdir()
    writer = ShardWriter(tmp_path, "usage")
    return usage.UsageCollector(writer, os.getpid(), excluded), writer.path


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_has_rows_of_its_process_and_of_the_machine(tmp_path: Path) -> None:
    run = record(tmp_path, python("import time; time.sleep(1.3)"))
    found = run.rows("usage")
    assert {row["pid"] for row in found if "pid" in row} == {run.manifest["processes"][0]["pid"]}
    machine = [row for row in found if row.get("k") == "system"]
    assert len(machine) >= 2
    assert machine[-1]["cpu_total_ns"] > machine[0]["cpu_total_ns"] > machine[0]["cpu_idle_ns"]
    assert {"t", "ppid", "name", "cpu_ns", "rss_bytes", "threads"} <= found[0].keys()
    assert run.collector("usage")["state"] == "ok"


def test_work_shows_as_processor_time_of_the_thread_that_did_it(tmp_path: Path) -> None:
    code = (
        "import threading, time\n"
        "def work():\n"
        "    while time.thread_time() < 0.5: pass\n"
        "    time.sleep(2)\n"
        "t = threading.Thread(target=work); t.start(); print(t.native_id, flush=True); t.join()\n"
    )
    run = record(tmp_path, python(code))
    worker = int(run.stdout)
    seen = [thread[2] for row in run.rows("usage") for thread in row.get("threads", []) if thread[0] == worker]
    assert max(seen) >= 300_000_000
    process = [row["cpu_ns"] for row in run.rows("usage") if "pid" in row]
    assert max(process) >= max(seen)


def test_grandchildren_belong_and_strangers_and_helpers_do_not(tmp_path: Path) -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'])"
    child = subprocess.Popen([sys.executable, "-c", nested])
    helper = subprocess.Popen(["sleep", "99"])
    try:
        tree, _ = collector(tmp_path, (helper.pid,))
        wait_until(lambda: len(tree.members()) >= 2, "the grandchild")
        members = {stat.pid: stat for stat in tree.members()}
        assert child.pid in members
        assert helper.pid not in members
        assert os.getppid() not in members
        assert any(stat.ppid == child.pid for stat in members.values())
    finally:
        for stat in tree.members():
            os.kill(stat.pid, 9)
        helper.kill()
        child.wait()
        helper.wait()


def test_more_processes_than_the_limit_are_cut_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_PROCESSES", 2)
    children = [subprocess.Popen(["sleep", "99"]) for _ in range(3)]
    try:
        tree, shard = collector(tmp_path)
        tree.sample()
        assert sum("pid" in row for row in rows(shard)) == 2
        state = tree.state(None)
        assert state.state == "partial"
        assert "only the 2 busiest of" in (state.reason or "")
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_more_threads_than_the_limit_are_cut_to_the_busiest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_THREADS", 2)
    code = (
        "import threading, time\n"
        "stop = threading.Event()\n"
        "for _ in range(5): threading.Thread(target=stop.wait, daemon=True).start()\n"
        "while time.thread_time() < 0.1: pass\n"
        "print('on', flush=True); time.sleep(99)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        tree, shard = collector(tmp_path)
        tree.sample()
        (row,) = [row for row in rows(shard) if row.get("pid") == child.pid]
        threads = row["threads"]
        assert isinstance(threads, list)
        assert len(threads) == 2
        assert threads[0][0] == child.pid
        assert "busiest threads" in (tree.state(None).reason or "")
    finally:
        child.kill()
        child.communicate()


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    fields = "S 41 1 1 0 -1 0 0 0 0 0 7 3 0 0 20 0 1 0 100 4096 25 0"
    stat = usage.read_stat(Path("unused"), lambda _: f"42 (a (b) c) {fields}")
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.ppid) == (42, "a (b) c", "S", 41)
    assert stat.cpu_ns == 10 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert stat.rss_bytes == 25 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("text", ["", "42", "42 (x) S 1"])
def test_a_process_that_is_gone_gives_no_row(text: str) -> None:
    assert usage.read_stat(Path("unused"), lambda _: text) is None


def test_a_full_disk_stops_the_rows_and_is_told(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "usage-launcher.jsonl").symlink_to("/dev/full")
    tree = usage.UsageCollector(ShardWriter(tmp_path, "usage"), os.getpid())
    tree.sample()
    tree.sample()
    state = tree.state(None)
    assert state.state == "unavailable"
    assert "No space left" in (state.reason or "")


def test_a_collector_that_fails_ends_alone() -> None:
    from spyreprof_collectors.sampler import Sampler

    calls = threading.Event()

    def tick() -> None:
        calls.set()
        raise ValueError("broken")

    sampler = Sampler("test", 0.001, tick)
    sampler.start()
    assert calls.wait(60)
    wait_until(lambda: sampler.fault is not None, "the fault")
    sampler.tick_now(60)
    sampler.stop()
    assert sampler.fault == "stopped after ValueError: broken"


def test_a_call_asked_for_begins_after_the_asking() -> None:
    from spyreprof_collectors.sampler import Sampler

    begun: list[int] = []

    def tick() -> None:
        begun.append(time.monotonic_ns())
        time.sleep(0.05)

    sampler = Sampler("test", 3600.0, tick)
    sampler.start()
    wait_until(lambda: begun, "the first call")
    asked_ns = time.monotonic_ns()
    sampler.tick_now(60)
    assert begun[-1] > asked_ns
    sampler.stop()
