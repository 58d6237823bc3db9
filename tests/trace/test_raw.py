"""Single events as their file has them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spyreprof.errors import UserError
from spyreprof.trace import cache
from spyreprof.trace.raw import event_windows, raw_event, stored_windows
from spyreprof.trace.reader import read
from spyreprof.trace.stream import WINDOW_BYTES


def event(number: int, **changes: Any) -> str:
    args = {"Python id": number, "shapes": [[1, 2], {"deep": ["ü", None]}], "note": f"é{number}"}
    told = {"ph": "X", "name": f"op {number}", "ts": number, "dur": 1, "pid": 1, "tid": 1, "args": args}
    return json.dumps(told | changes, ensure_ascii=False)


def events(count: int) -> list[str]:
    return [event(number) for number in range(count)]


MANY = 6 * WINDOW_BYTES // len(event(0))


def written(folder: Path, elements: list[str], *, form: str = "object", packed: bool = False) -> Path:
    text = "[\n" + ",\n".join(elements) + "\n]"
    text = f'{{"schemaVersion": 1, "traceEvents": {text}, "traceName": "t"}}' if form == "object" else text
    path = folder / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("form", ["object", "list"])
def test_every_event_is_found_by_its_row_in_whichever_window(tmp_path: Path, form: str, packed: bool) -> None:
    elements = events(MANY)
    path = written(tmp_path, elements, form=form, packed=packed)
    windows = event_windows(path)
    assert len(windows) > 2
    rows = {0, MANY - 1, MANY // 2, *(w.first_row for w in windows), *(w.first_row - 1 for w in windows[1:])}
    assert {row: raw_event(path, row, windows) for row in rows} == {row: elements[row] for row in rows}


def test_the_row_of_a_table_leads_to_its_event(tmp_path: Path) -> None:
    path = written(
        tmp_path, [event(5), '{"ph": "M", "name": "process_name", "pid": 1, "args": {}}', event(3), event(4)]
    )
    table, windows = read(path), event_windows(path)
    for index in range(len(table)):
        assert json.loads(raw_event(path, int(table.row[index]), windows))["name"] == table.name(index)


def test_numbers_stay_as_they_are_spelled(tmp_path: Path) -> None:
    spelled = '{"ph": "X", "ts": 1790857026123456.789, "dur": 1.000, "pid": 1, "tid": 1, "args": {"x": 1e400}}'
    path = written(tmp_path, [spelled, event(1)])
    assert raw_event(path, 0, event_windows(path)) == spelled


def test_events_around_a_damaged_one_keep_their_rows(tmp_path: Path) -> None:
    elements = events(MANY)
    elements[MANY // 2] = '{"ph": "X", "name": "a "quoted" name", "ts": 1.5, "dur": 1, "pid": 1, "tid": 1}'
    elements[MANY // 2 + 1] = "17"
    path = written(tmp_path, elements)
    table, windows = read(path), event_windows(path)
    assert 'a "quoted" name' in table.name_values
    assert json.loads(raw_event(path, MANY // 2, windows))["name"] == 'a "quoted" name'
    for row in (0, MANY // 2 - 1, MANY // 2 + 2, MANY - 1):
        assert json.loads(raw_event(path, row, windows)) == json.loads(elements[row])
    with pytest.raises(UserError, match="no readable event"):
        raw_event(path, MANY // 2 + 1, windows)


def test_a_file_that_is_cut_short_gives_what_is_whole(tmp_path: Path) -> None:
    path = written(tmp_path, events(10))
    path.write_bytes(path.read_bytes()[:-100])
    windows = event_windows(path)
    assert json.loads(raw_event(path, 8, windows)) == json.loads(event(8))
    with pytest.raises(UserError, match="no readable event"):
        raw_event(path, 9, windows)


@pytest.mark.parametrize("row", [-1, 10, 10**12])
def test_a_row_that_the_file_lacks_is_told_in_a_sentence(tmp_path: Path, row: int) -> None:
    path = written(tmp_path, events(10))
    with pytest.raises(UserError, match="event"):
        raw_event(path, row, event_windows(path))


def test_a_file_without_events_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}')
    with pytest.raises(UserError, match="holds no trace events"):
        event_windows(path)
    with pytest.raises(UserError, match="cannot be read"):
        event_windows(tmp_path / "absent.json")


def test_other_encodings_are_looked_up_too(tmp_path: Path) -> None:
    path = written(tmp_path, events(20))
    path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16"))
    assert json.loads(raw_event(path, 13, event_windows(path))) == json.loads(event(13))


@pytest.mark.parametrize("processes", [1, 2])
def test_the_columns_of_a_file_tell_where_its_events_stand(tmp_path: Path, processes: int) -> None:
    elements = events(MANY)
    path = written(tmp_path, elements)
    cache.build(path, tmp_path / "columns", processes=processes)
    windows = stored_windows(tmp_path / "columns")
    assert windows is not None and len(windows) > 2
    rows = {0, MANY - 1, MANY // 2, *(w.first_row for w in windows), *(w.first_row - 1 for w in windows[1:])}
    assert {row: raw_event(path, row, windows) for row in rows} == {row: elements[row] for row in rows}


def test_columns_that_are_not_there_damaged_or_of_another_version_tell_nothing(tmp_path: Path) -> None:
    assert stored_windows(tmp_path / "gone") is None
    path = written(tmp_path, events(3))
    cache.build(path, tmp_path / "columns")
    index = tmp_path / "columns" / cache.INDEX
    index.write_text(json.dumps(json.loads(index.read_text()) | {"version": -1}))
    assert stored_windows(tmp_path / "columns") is None
    index.write_text("{")
    assert stored_windows(tmp_path / "columns") is None
