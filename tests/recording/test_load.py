"""`spyreprof.load`: tables for a notebook, from all that holds some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from builders import SECOND, START_NS, RecordingBuilder, decode_name

import spyreprof
from spyreprof.errors import UserError
from spyreprof.recording.notebook import TABLES
from spyreprof.recording.pack import pack
from spyreprof.recording.store import open_recording

DEMO = Path(__file__).parents[2] / "samples" / "demo.spyreprof.zip"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    steps = [(START_NS + i * SECOND, START_NS + i * SECOND + 5, decode_name()) for i in range(3)]
    return RecordingBuilder(tmp_path / "run.spyreprof").process().steps(steps).write()


def test_a_folder_and_its_packed_file_hold_the_same_tables(folder: Path, tmp_path: Path) -> None:
    packed = spyreprof.load(pack(folder, tmp_path / "packed.zip"))
    unpacked = spyreprof.load(str(folder))
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(unpacked, table), getattr(packed, table))
    assert len(unpacked.steps) == 3


def test_the_analyzers_are_given_the_same_tables() -> None:
    inputs = open_recording(DEMO).analysis_inputs()
    tables = spyreprof.load(DEMO)
    for table in ("steps", "requests", "counters", "usage", "polls", "collectives"):
        pd.testing.assert_frame_equal(getattr(tables, table), getattr(inputs, table))


def test_every_table_has_the_described_columns_also_without_rows(folder: Path) -> None:
    tables = spyreprof.load(folder)
    described = tables.columns.groupby("table")["column"].agg(list).to_dict()
    for table in TABLES:
        assert list(getattr(tables, table).columns) == described[table]
        assert dict(getattr(tables, table).dtypes.astype(str)) == dict(
            tables.columns[tables.columns["table"] == table].set_index("column")["dtype"]
        )


def test_every_time_and_size_has_its_unit_described(folder: Path) -> None:
    columns = spyreprof.load(folder).columns.set_index(["table", "column"])["unit"]
    assert columns["steps", "start_ns"] == "ns"
    assert columns["steps", "context_q_k_sum"] == "token pairs"
    assert columns["collectives", "bytes"] == "bytes"
    assert columns["steps", "phase"] == ""


def test_a_trace_is_loaded_without_being_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = tmp_path / "trace.json"
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 5, "dur": 3, "name": decode_name()}
    work = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 6, "dur": 1, "name": "aten::mm"}
    trace.write_text(json.dumps({"traceEvents": [step, work]}))
    for _ in ("first", "from what was kept"):
        steps = spyreprof.load(trace).steps
        assert (steps["end_ns"] - steps["start_ns"]).tolist() == [3000]
    with pytest.raises(UserError, match="no numbered runs"):
        spyreprof.load(trace, run=1)


def test_a_trace_is_loaded_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")
    trace = tmp_path / "trace.json"
    trace.write_text('[{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 6, "dur": 1, "name": "aten::mm"}]')
    tables = spyreprof.load(trace)
    assert len(tables.steps) == 0
    assert "steps 0" in repr(tables)


def test_a_report_is_refused_and_the_recording_asked_for(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"schema_version": 1, "verdict": {}}')
    with pytest.raises(UserError, match="is a report") as caught:
        spyreprof.load(report)
    assert "Load the recording" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "sentence"), [("", "is empty"), ("hello\n", "text of an unknown kind"), ('{"a": 1}', "unknown kind")]
)
def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        spyreprof.load(path)
    with pytest.raises(UserError, match="holds no recording"):
        spyreprof.load(tmp_path)
    with pytest.raises(UserError, match="There is no"):
        spyreprof.load(tmp_path / "absent")


def test_call_stacks_have_no_tables_and_a_verb_that_reads_them_is_named(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    stacks.write_text("main;step 3\nmain 1\n")
    with pytest.raises(UserError, match="call stacks have no tables") as caught:
        spyreprof.load(stacks)
    assert "spyreprof report" in caught.value.remedy


def test_importing_the_package_brings_the_standard_library_alone() -> None:
    script = "import spyreprof, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"pandas", "numpy", "msgspec", "pyarrow", "typer"}


@pytest.mark.parametrize("wrong", [None, 42, b"recording"])
def test_what_is_no_path_is_named(wrong: object) -> None:
    with pytest.raises(TypeError, match=f"path of a recording.* not {type(wrong).__name__}"):
        spyreprof.load(wrong)  # type: ignore[arg-type]


def test_an_empty_path_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="The path is empty"):
        spyreprof.load("")
