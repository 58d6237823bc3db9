"""The table of Python stacks: which functions wait, how frames are numbered, and rows that nobody can trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spyreprof.recording import layout, schema
from spyreprof.recording.source import FolderSource
from spyreprof.recording.stacks import number_frames, read_stacks
from spyreprof.recording.store import open_recording
from spyreprof.recording.waiting import is_waiting


def row(**changes: Any) -> dict[str, Any]:
    """A window of 10 looks: thread 11 in `forward` 6 times and in `get` 3 times, thread 0x7f in `forward` once."""
    usual = {
        "t0": 1_000,
        "t1": 9_000,
        "pid": 7,
        "samples": 10,
        "rate_hz": 50,
        "frames": [["main", "serve.py"], ["forward", "torch/nn/functional.py"], ["Queue.get", "<stdlib>/queue.py"]],
        "threads": [
            {"thread": "11", "stacks": [[[0, 1], 4], [[1], 2], [[0, 2], 3]]},
            {"thread": "0x7f", "stacks": [[[1], 1]]},
        ],
    }
    return {**usual, **changes}


def recording(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / layout.SHARDS).mkdir()
    (tmp_path / layout.MANIFEST).write_text(json.dumps({"schema_version": 1}))
    (tmp_path / layout.SHARDS / "stacks-launcher.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def read(tmp_path: Path, *rows: dict[str, Any]) -> pd.DataFrame:
    path = recording(tmp_path, *(json.dumps(one) for one in rows))
    return open_recording(path).stacks


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("Condition.wait", "<stdlib>/threading.py"),
        ("wait", "<stdlib>/threading.py"),
        ("Queue.get", "<stdlib>/queue.py"),
        ("EpollSelector.select", "<stdlib>/selectors.py"),
        ("_worker", "<stdlib>/concurrent/futures/thread.py"),
        ("socket.accept", "<stdlib>/socket.py"),
        ("Popen._try_wait", "<stdlib>/subprocess.py"),
        ("sched_yield", "vllm/distributed/utils.py"),
        ("sched_yield", "engine.py"),
    ],
)
def test_functions_whose_purpose_is_to_wait(function: str, file: str) -> None:
    assert is_waiting(function, file)


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("get", "queue.py"),  # a file of the user's that has the same name
        ("forward", "torch/nn/functional.py"),
        ("Queue.put_nowait", "<stdlib>/queue.py"),
        ("BaseEventLoop._run_once", "<stdlib>/asyncio/base_events.py"),
        ("wait", "engine.py"),
    ],
)
def test_functions_that_work(function: str, file: str) -> None:
    assert not is_waiting(function, file)


def test_looks_are_counted_by_thread_and_innermost_function(tmp_path: Path) -> None:
    table = read(tmp_path, row())
    assert list(table.columns) == [column.name for column in schema.STACKS]
    found = {
        (thread, function): (count, waiting)
        for thread, function, count, waiting in zip(
            table["thread"], table["function"], table["count"], table["waiting"], strict=True
        )
    }
    assert found == {("11", "forward"): (6, False), ("11", "Queue.get"): (3, True), ("0x7f", "forward"): (1, False)}
    # An address instead of the kernel's number: py-spy could not ask the kernel for the state of that thread.
    assert dict(zip(table["thread"], table["state_known"], strict=True)) == {"11": True, "0x7f": False}


def test_a_window_without_stacks_is_kept_for_its_looks(tmp_path: Path) -> None:
    table = read(tmp_path, row(frames=[], threads=[]))
    assert (len(table), int(table["looks"].iloc[0]), int(table["count"].iloc[0])) == (1, 10, 0)
    assert table["thread"].isna().all()


def test_frames_are_numbered_from_the_most_frequent_on_and_names_leave_the_table(tmp_path: Path) -> None:
    table, frames = number_frames(read(tmp_path, row(), row(t0=10_000, t1=11_000, frames=[], threads=[])))
    assert frames == (("forward", "torch/nn/functional.py"), ("Queue.get", "<stdlib>/queue.py"))
    assert not {"function", "file"} & set(table.columns)
    assert sorted(table["frame"].dropna()) == [0, 0, 1]
    assert int(table["frame"].isna().sum()) == 1


def test_analyzers_get_numbers_and_no_names(tmp_path: Path) -> None:
    opened = open_recording(recording(tmp_path, json.dumps(row())))
    stacks = opened.analysis_inputs().stacks
    assert stacks is not None
    assert "serve.py" not in stacks.to_csv()
    assert "functional" not in stacks.to_csv()
    assert opened.frames[0] == ("forward", "torch/nn/functional.py")


def test_rows_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    backward = row(t0=9_000, t1=1_000)
    outside = row(threads=[{"thread": "11", "stacks": [[[99], 5], [[], 5]]}])
    path = recording(tmp_path, json.dumps(backward), json.dumps(outside), '{"t0": -1}', "no json", json.dumps(row()))
    opened = open_recording(path)
    assert int(opened.stacks["count"].sum()) == 10
    assert opened.counts["unreadable_rows"] == 2


def test_a_recording_without_stacks_has_none(tmp_path: Path) -> None:
    opened = open_recording(recording(tmp_path))
    assert opened.stacks.empty
    assert opened.frames == ()
    assert opened.analysis_inputs().stacks is None


def test_the_table_comes_from_the_cache_as_it_was_built(tmp_path: Path) -> None:
    first = read(tmp_path, row(), row(frames=[], threads=[]))
    second = open_recording(tmp_path).stacks
    pd.testing.assert_frame_equal(first, second)
    from collections import Counter

    pd.testing.assert_frame_equal(read_stacks(FolderSource(tmp_path), Counter()), second)
