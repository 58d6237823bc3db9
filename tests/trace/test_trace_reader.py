"""Reading profiler traces: exact times, and files that are cut, damaged, odd or something else."""

from __future__ import annotations

import gc
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from spyreprof.errors import UserError
from spyreprof.trace.reader import read, read_bytes
from spyreprof.trace.table import MISSING, EventTable

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 100.0, "dur": 10.0}


def from_events(*events: Any, **fields: Any) -> EventTable:
    return read_bytes(json.dumps({**fields, "traceEvents": list(events)}).encode(), "test.json")


def refusal(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_bytes(data, "test.json")
    assert caught.value.remedy
    assert "\n" not in caught.value.problem
    return caught.value.problem


def test_columns_hold_what_the_event_says() -> None:
    args = {"External id": 5, "correlation": 9, "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}
    table = from_events({**KERNEL, "cat": "Operator", "args": args}, baseTimeNanoseconds=1_000_000)
    assert len(table) == 1
    assert table.ts_ns.tolist() == [1_000_000 + 100_000]
    assert table.dur_ns.tolist() == [10_000]
    assert table.name(0) == "k"
    assert table.cat_values[table.cat_code[0]] == "Operator"
    assert table.pid_values[table.pid_code[0]] == 0
    assert table.tid_values[table.tid_code[0]] == 7
    assert (table.external_id[0], table.correlation[0]) == (5, 9)
    assert json.loads(table.dims_values[table.dims_code[0]]) == [[2, 3], []]
    assert json.loads(table.types_values[table.types_code[0]]) == ["float", "Scalar"]
    assert table.metadata.base_time_ns == 1_000_000


def test_what_an_event_does_not_say_is_missing() -> None:
    table = from_events({"ph": "i", "ts": 1})
    assert table.dur_ns.tolist() == [MISSING]
    assert table.external_id.tolist() == [MISSING]
    for codes in (table.cat_code, table.name_code, table.pid_code, table.tid_code, table.dims_code, table.types_code):
        assert codes.tolist() == [MISSING]
    assert table.name(0) == ""


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("5197808083293.996", 5197808083293996),
        ("8796093022208.001", 8796093022208001),
        ("1749812345678901.234", 1749812345678901234),
        ('"1749812345678901.234"', 1749812345678901234),
        ("1749812345678901", 1749812345678901000),
        ("-12.5", -12500),
        ("0.001", 1),
        ("0", 0),
    ],
)
def test_time_stamps_are_exact_to_the_nanosecond(ts: str, ns: int) -> None:
    text = '{"traceEvents": [{"ph": "X", "name": "a", "ts": %s, "dur": 1.001}]}' % ts  # noqa: UP031 - braces
    table = read_bytes(text.encode(), "test.json")
    assert table.ts_ns.tolist() == [ns]
    assert table.dur_ns.tolist() == [1001]


@given(st.lists(st.integers(1, 2**62), min_size=1, max_size=5), st.integers(0, 2**61))
@example([8796093022207_999, 8796093022208_001], 0)
def test_every_nanosecond_survives_its_spelling_in_microseconds(stamps: list[int], base_ns: int) -> None:
    events = ",".join(f'{{"ph": "i", "name": "a", "ts": {Decimal(ns) / 1000}}}' for ns in stamps)
    data = f'{{"baseTimeNanoseconds": {base_ns}, "traceEvents": [{events}]}}'.encode()
    assert read_bytes(data, "t").ts_ns.tolist() == sorted(base_ns + ns for ns in stamps)


@pytest.mark.parametrize("content", ["name says so", "name is wrong"])
def test_compression_is_told_by_content(tmp_path: Path, content: str) -> None:
    plain = json.dumps({"traceEvents": [KERNEL]}).encode()
    right, wrong = tmp_path / "a.json.gz", tmp_path / "b.json"
    right.write_bytes(gzip.compress(plain) if content == "name says so" else plain)
    wrong.write_bytes(plain if content == "name says so" else gzip.compress(plain))
    assert len(read(right)) == len(read(wrong)) == 1


def test_gzip_members_that_were_concatenated_are_one_file() -> None:
    plain = json.dumps({"traceEvents": [KERNEL]}).encode()
    assert len(read_bytes(gzip.compress(plain[:20]) + gzip.compress(plain[20:]), "t")) == 1


def test_the_array_form_may_lack_its_bracket() -> None:
    table = read_bytes(b"[" + json.dumps(KERNEL).encode() + b",\n", "t")
    assert len(table) == 1
    assert not table.quality.truncated


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_other_encodings_with_a_mark_are_read(encoding: str) -> None:
    assert len(read_bytes(json.dumps({"traceEvents": [KERNEL]}).encode(encoding), "t")) == 1


def real_looking() -> bytes:
    trace = TraceBuilder()
    for i in range(40):
        trace.operator("aten::mm", i * 100, i * 100 + 50, [[2, 3], [3, 4]])
    return json.dumps(trace.build(), indent=1).encode()


def test_a_file_cut_anywhere_keeps_its_complete_events_and_says_so() -> None:
    data = real_looking()
    whole = read_bytes(data, "t")
    counts = []
    for end in range(len(data) - 1, 300, -37):
        try:
            table = read_bytes(data[:end], "t")
        except UserError:
            assert data[:end].count(b'"External id"') <= 1
            continue
        assert table.quality.truncated
        assert any("cut short" in sentence for sentence in table.quality.sentences())
        assert table.ts_ns.tolist() == whole.ts_ns[: len(table)].tolist()
        assert data[:end].count(b'"Input type"') - len(table) in {0, 1}
        counts.append(len(table))
    assert min(counts) < 5
    assert max(counts) == 40


def test_a_compressed_stream_cut_anywhere_keeps_its_events_and_says_so() -> None:
    # Random ids, so that the compressed stream is longer than one block.
    events = [{**KERNEL, "args": {"External id": i * 2654435761 % 2**32}} for i in range(2000)]
    data = gzip.compress(json.dumps({"traceEvents": events}).encode())
    for share in (0.3, 0.6, 0.9):
        table = read_bytes(data[: int(len(data) * share)], "t")
        assert table.quality.truncated
        assert 0 < len(table) < 2000


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"{}", "not a profiler trace"),
        (b"[]", "no timed events"),
        (b'"text"', "not a profiler trace"),
        (b"not json at all", "not a profiler trace"),
        (b'{"traceEvents": []}', "no timed events"),
        (b'{"traceEvents": {}}', "not a profiler trace"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name", "args": {"name": "p"}}]}', "only metadata"),
        (b'{"nodes": [1, 2, 3]}', "not a profiler trace"),
        (b"\x1f\x8b\x08\x00", "not a profiler trace"),
        (b"[" * 200_000, "no timed events"),
        (b'{"a": ' * 200_000, "not a profiler trace"),
        (b"\x00" * 100, "not a profiler trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(data: bytes, said: str) -> None:
    assert said in refusal(data)


def test_a_path_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        '{"ph": "X", "name": "no closing bracket", "ts": 1, "args": {"x": 1}',
        '{"ph": "X", "name": "no comma" "ts": 1}',
        '{"ph": "X", "name": "huge", "pid": ' + "9" * 5000 + ', "ts": 1}',
    ],
)
def test_an_event_that_is_not_json_costs_itself_and_is_counted(bad: str) -> None:
    good = json.dumps(KERNEL)
    table = read_bytes(f'{{"traceEvents": [{good}, {bad}, {good}]}}'.encode(), "t")
    assert len(table) == 2
    assert table.quality.dropped == {"not valid JSON": 1}
    assert table.quality.events_read == 3


@pytest.mark.parametrize(
    "odd",
    ['{"ph": "X", "name": "a\x01b", "ts": 1, "dur": 1}', '{"ph": "X", "ts": 1, "args": {"bw": NaN, "x": Infinity}}'],
)
def test_control_characters_and_numbers_that_are_none_are_tolerated(odd: str) -> None:
    assert len(read_bytes(f"[{odd}]".encode(), "t")) == 1


def test_bytes_that_are_not_utf8_are_replaced_and_counted() -> None:
    table = read_bytes(b'[{"ph": "X", "name": "a\xff\xfe", "ts": 1, "dur": 1}]', "t")
    assert table.name(0) == "a\ufffd\ufffd"
    assert set(table.quality.repaired) == {"bytes that are not UTF-8, replaced"}


def test_ids_are_kept_whatever_they_are() -> None:
    table = from_events(
        {**KERNEL, "pid": "Spans", "tid": 15514734831341844875, "args": {"External id": 2**70, "correlation": "12"}},
        {**KERNEL, "pid": 7, "tid": "7"},
        {**KERNEL, "pid": True, "tid": [1]},
    )
    assert table.pid_values[table.pid_code[0]] == "Spans"
    assert table.tid_values[table.tid_code[0]] == 15514734831341844875
    assert table.tid_code[1] != table.pid_code[1] or table.tid_values[table.tid_code[1]] == "7"
    assert table.identity(int(table.external_id[0])) == 2**70
    assert table.correlation[0] == 12


def test_events_that_cannot_be_placed_in_time_are_dropped_by_reason() -> None:
    table = from_events(
        KERNEL,
        {"name": "no type", "ts": 1},
        {"ph": "X", "name": "no time"},
        {"ph": "X", "name": "not a time", "ts": "soon"},
        {"ph": "X", "name": "never", "ts": "inf"},
        {"ph": "X", "name": "too far", "ts": 10**30},
        "not an event",
    )
    assert len(table) == 1
    assert sum(table.quality.dropped.values()) == 6
    assert table.quality.events_read == 7
    assert len(table.quality.sentences()) == len(table.quality.dropped)


def test_odd_durations_are_kept_and_counted() -> None:
    table = from_events(
        {**KERNEL, "dur": 0}, {**KERNEL, "dur": -5.0}, {key: KERNEL[key] for key in KERNEL if key != "dur"}
    )
    assert table.dur_ns.tolist() == [0, MISSING, MISSING]
    quality = table.quality
    assert (quality.zero_duration, quality.negative_duration, quality.missing_duration) == (1, 1, 1)


def test_a_device_record_that_was_never_filled_in_does_not_stretch_the_trace() -> None:
    table = from_events(
        {**KERNEL, "ts": 1.7e15}, {**KERNEL, "ts": 1.7e15 + 5}, {**KERNEL, "ts": 0, "dur": 0}, {**KERNEL, "ts": 0}
    )
    assert table.ts_ns.min() > 10**18
    assert table.quality.dropped == {"stamped with time 0": 2}


def test_a_trace_that_counts_from_zero_keeps_its_first_event() -> None:
    assert len(from_events({**KERNEL, "ts": 0}, {**KERNEL, "ts": 5})) == 2


def test_unknown_event_types_are_kept_and_counted() -> None:
    table = from_events(KERNEL, {**KERNEL, "ph": "Z"})
    assert len(table) == 2
    assert table.quality.unknown_phases == {"Z": 1}


def test_names_of_processes_and_threads_are_metadata() -> None:
    table = from_events(
        KERNEL,
        {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "server"}},
        {"ph": "M", "name": "thread_name", "pid": 4, "tid": 5, "args": {"name": "worker"}},
        schemaVersion=1,
        distributedInfo={"rank": 3},
        deviceProperties=[{"id": 0}],
    )
    assert table.quality.metadata_events == 2
    assert table.metadata.process_names == {4: "server"}
    assert table.metadata.thread_names == {(4, 5): "worker"}
    assert table.metadata.distributed == {"rank": 3}
    assert table.metadata.has_device_properties
    assert table.metadata.schema_version == 1


def test_arguments_that_are_no_object_do_not_cost_the_event() -> None:
    assert len(from_events({**KERNEL, "args": None}, {**KERNEL, "args": [1]}, {**KERNEL, "args": "text"})) == 3


def test_garbage_collection_is_as_before() -> None:
    assert gc.isenabled()
    with pytest.raises(UserError):
        read_bytes(b"{", "t")
    assert gc.isenabled()


@given(st.binary(max_size=200))
def test_no_bytes_can_break_the_reader(data: bytes) -> None:
    try:
        read_bytes(data, "t")
    except UserError as error:
        assert error.problem


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8), max_size=4), JSON)
def test_no_event_can_break_the_reader(events: list[dict[str, Any]], base: Any) -> None:
    data = json.dumps({"baseTimeNanoseconds": base, "traceEvents": events}).encode()
    try:
        table = read_bytes(data, "t")
    except UserError:
        return
    assert len(table) + sum(table.quality.dropped.values()) + table.quality.metadata_events == len(events)


def test_a_trace_of_torch_reads_whole(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "torch.json"
    with torch.autograd.profiler.profile(use_kineto=True, record_shapes=True) as profile:
        torch.mm(torch.ones(4, 5), torch.ones(5, 6))
    profile.export_chrome_trace(str(path))
    table = read(path)
    document = json.loads(path.read_text())
    assert len(table) + table.quality.metadata_events == len(document["traceEvents"])
    assert table.quality.sentences() == ()
    (mm,) = [i for i in range(len(table)) if table.name(i) == "aten::mm"]
    assert json.loads(table.dims_values[table.dims_code[mm]]) == [[4, 5], [5, 6]]
    raw = next(event for event in document["traceEvents"] if event["name"] == "aten::mm")
    assert table.ts_ns[mm] == document["baseTimeNanoseconds"] + round(Decimal(str(raw["ts"])) * 1000)
