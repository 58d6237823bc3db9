"""The table of collective calls, and which rank a step ran on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import START_NS, RecordingBuilder, decode_name

from spyreprof.recording import schema
from spyreprof.recording.store import Recording, open_recording

OTHER = "4243-b"


def row(**changes: Any) -> dict[str, Any]:
    plain = {"t0": 5, "t1": 9, "op": "all_reduce", "bytes": 8, "group": 3, "size": 2, "rank": 0, "seq": 1}
    return {**plain, "blocking": True, **changes}


def recorded(tmp_path: Path, *rows: dict[str, Any]) -> Recording:
    return open_recording(RecordingBuilder(tmp_path / "run.spyreprof").shard("collectives", rows).write())


@pytest.mark.parametrize("cached", [False, True])
def test_the_table_has_exactly_the_declared_columns(tmp_path: Path, cached: bool) -> None:
    recording = recorded(tmp_path, row())
    if cached:
        assert len(recording.collectives) == 1
    found = open_recording(recording.path).collectives
    assert list(found.columns) == [column.name for column in schema.COLLECTIVES]
    assert [str(found[column.name].dtype) for column in schema.COLLECTIVES] == [c.dtype for c in schema.COLLECTIVES]


def test_a_recording_without_collectives_has_an_empty_table(tmp_path: Path) -> None:
    assert len(open_recording(RecordingBuilder(tmp_path / "run.spyreprof").write()).collectives) == 0


def test_calls_stand_in_the_order_of_their_launch_and_a_call_nobody_waited_for_has_no_times(tmp_path: Path) -> None:
    waited = row(t0=20, t1=30, tl=2, blocking=False, seq=1)
    forgotten = row(t0=None, t1=None, tl=7, blocking=False, seq=3)
    found = recorded(tmp_path, row(seq=2), forgotten, waited).collectives
    assert found["seq"].tolist() == [1, 2, 3]
    assert found["launch_ns"].tolist() == [2, 5, 7]
    assert found["start_ns"].tolist() == [20, 5, pd.NA]
    assert found["end_ns"].tolist() == [30, 9, pd.NA]


@pytest.mark.parametrize("changes", [{"t1": 4}, {"t0": None}, {"t1": None}, {"t0": None, "t1": None}])
def test_a_row_that_cannot_be_a_call_is_left_out_and_counted(tmp_path: Path, changes: dict[str, Any]) -> None:
    recording = recorded(tmp_path, row(**changes), row(seq=2))
    assert recording.collectives["seq"].tolist() == [2]
    assert recording.quality.counts["backward_collectives"] == 1


def test_a_step_has_the_rank_that_its_process_told(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process(OTHER)
    builder.shard("process", [{"k": "dist", "t": START_NS, "rank": 3, "world": 4, "backend": "gloo"}], OTHER)
    builder.steps([(START_NS, START_NS + 5, decode_name())])
    builder.steps([(START_NS + 9, START_NS + 12, decode_name())], OTHER)
    recording = open_recording(builder.write())
    assert recording.steps["rank"].tolist() == [pd.NA, 3]
    assert recording.quality.counts.get("unknown_rows") is None
