"""A trace's columns on disk give the same table as the trace itself."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spyreprof.errors import UserError
from spyreprof.trace import cache, split
from spyreprof.trace.cache import build, load
from spyreprof.trace.reader import read
from spyreprof.trace.table import EventTable

N = 400


def event(number: int) -> dict[str, Any]:
    """One of several kinds; ids that are no int64 differ between the halves of a file."""
    made: dict[str, Any] = {"ph": "X", "name": f"op {number % 7}", "pid": 1, "tid": number % 3, "ts": number * 10.125}
    made |= {"dur": 4.5, "cat": ("cpu_op", "kernel", "cuda_runtime")[number % 3], "args": {"External id": number}}
    if number % 3 == 1:
        made["args"] |= {"correlation": number, "device": 0, "stream": 2**70 + number // 200}
    if number > 3 * N // 4:
        made["args"]["Sequence number"] = number
    if number % 50 == 0:
        made = {"ph": "C", "name": "batch", "pid": 1, "ts": number * 10.125, "args": {"running": number / 2}}
    return made


def write(path: Path, events: list[dict[str, Any]], **fields_beside: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **fields_beside}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    names = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "worker"}}
    return write(tmp_path / "t.json", [names, *map(event, range(N))], baseTimeNanoseconds=10**18)


def contents(table: EventTable) -> dict[str, Any]:
    """Everything in a table, with codes and numbers of ids replaced by what they stand for."""
    found: dict[str, Any] = {}
    for name in ("ph", "cat", "name", "pid", "tid", "dims", "types"):
        values = (*getattr(table, f"{name}_values"), None)
        found[name] = [values[code] for code in getattr(table, f"{name}_code").tolist()]
    for name in ("ts_ns", "dur_ns", "row"):
        found[name] = getattr(table, name).tolist()
    for name in ("correlation", "external_id", "flow_id"):
        found[name] = [table.identity(value) for value in getattr(table, name).tolist()]
    found["args"] = {name: [table.identity(value) for value in table.arg(name).tolist()] for name in sorted(table.args)}
    if table.counters is not None:
        samples = table.counters
        found["counters"] = sorted(zip(samples.row.tolist(), samples.value.tolist(), strict=True))
    found["quality"] = table.quality
    found["metadata"] = {field.name: getattr(table.metadata, field.name) for field in fields(table.metadata)}
    return found


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("rows", [64, cache.ROWS_PER_GROUP])
def test_stored_columns_give_the_table_of_the_trace(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, rows: int
) -> None:
    monkeypatch.setattr(cache, "ROWS_PER_GROUP", rows)
    build(trace, tmp_path / "c", processes=processes)
    assert json.loads((tmp_path / "c" / cache.INDEX).read_text())["parts"] == processes
    table = load(tmp_path / "c")
    assert contents(table) == contents(read(trace))
    assert table.arg("sequence_number").max() == N - 1
    assert len(table.id_values) == 2


def test_a_gzipped_trace_is_read_by_one_process(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    build(packed, tmp_path / "c", processes=2)
    assert contents(load(tmp_path / "c")) == contents(read(trace))
    assert not (tmp_path / "c" / "part-1").exists()


def test_a_file_is_not_divided_within_a_text_that_looks_like_events(tmp_path: Path) -> None:
    odd = event(1) | {"name": 'a}, {"ph": "X", "name": "b", "ts": 1, "dur": 1}, {"ph": ' * 2000}
    path = write(tmp_path / "t.json", [*map(event, range(1, 40)), odd, *map(event, range(40, 80))])
    with path.open("rb") as stream:
        place = split.find_place(stream, path.stat().st_size)
    assert place is not None
    before, after = path.read_text()[:place], path.read_text()[place:]
    assert len(json.loads(before.rstrip(", ") + "]}")["traceEvents"]) == 40
    assert len(json.loads("[" + after.rpartition("]")[0] + "]")) == 40
    build(path, tmp_path / "c", processes=2)
    assert (tmp_path / "c" / "part-1").exists()
    assert contents(load(tmp_path / "c")) == contents(read(path))


def test_a_division_inside_arguments_that_look_like_events_is_found_wrong(tmp_path: Path) -> None:
    inner = [{"ph": "X", "name": "inner", "ts": 1, "dur": 1} for _ in range(2000)]
    odd = event(1) | {"args": {"events": inner}}
    path = write(tmp_path / "t.json", [*map(event, range(1, 10)), odd, *map(event, range(10, 20))])
    build(path, tmp_path / "c", processes=2)
    table = load(tmp_path / "c")
    assert contents(table) == contents(read(path))
    assert len(table) == 20
    assert not (tmp_path / "c" / "part-1").exists()


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_file_that_is_cut_short_is_stored_with_the_place(
    trace: Path, tmp_path: Path, share: float, processes: int
) -> None:
    data = trace.read_bytes()
    trace.write_bytes(data[: int(len(data) * share)])
    build(trace, tmp_path / "c", processes=processes)
    table = load(tmp_path / "c")
    assert table.quality.truncated
    assert contents(table) == contents(read(trace))


def test_progress_ends_with_the_whole_file(trace: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    build(trace, tmp_path / "c", progress=lambda done, total: told.append((done, total)))
    size_bytes = trace.stat().st_size
    assert told[-1] == (size_bytes, size_bytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("damage", ["no index", "another version", "no facts", "no columns", "cut columns"])
def test_damaged_columns_are_a_sentence(trace: Path, tmp_path: Path, damage: str) -> None:
    stored = tmp_path / "c"
    build(trace, stored, processes=1)
    columns = stored / "part-0" / "events-000.arrow"
    if damage == "no index":
        (stored / cache.INDEX).unlink()
    elif damage == "another version":
        (stored / cache.INDEX).write_text('{"version": 0, "parts": 1}')
    elif damage == "no facts":
        (stored / "part-0" / "facts.json").unlink()
    elif damage == "no columns":
        columns.write_bytes(b"")
    else:
        columns.write_bytes(columns.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged"):
        load(stored, "of this trace")


def test_a_trace_without_events_is_refused_as_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [])
    with pytest.raises(UserError, match="no timed events"):
        build(path, tmp_path / "c")
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        build(path, tmp_path / "d")


def test_columns_that_all_events_lack_are_all_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [{"ph": "X", "name": "a", "ts": 1, "dur": 1}])
    build(path, tmp_path / "c")
    table = load(tmp_path / "c")
    assert np.array_equal(table.correlation, [-1])
    assert np.array_equal(table.arg("device"), [-1])
