"""What is read of a trace equals what plain json reads of it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyreprof.trace import reader
from spyreprof.trace.table import MISSING, EventTable

# Nanoseconds: what Kineto counts from its base time, and what older files count from the epoch.
RELATIVE_NS = st.integers(0, 2**43 * 1000 - 1)
# Doubles of microseconds hold these to the nanosecond, and their products with 1000 only to the half.
DELICATE_NS = st.integers(2**42 * 1000, 2**52)
EPOCH_NS = st.integers(1_600_000_000 * 10**9, 2_000_000_000 * 10**9)
NAMES = st.sampled_from(["aten::mm", "ünïcode <lambda>", 'a "quoted" name', "back\\slash", "line\nbreak", "", "}, {"])


def microseconds(ns: int) -> str:
    """As Kineto writes them."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def kineto_text(events: list[dict[str, Any]], base_ns: int | None = 1_790_857_026 * 10**9) -> bytes:
    """Events as Kineto lays them out; `ts` and `dur` are nanoseconds."""
    pieces = []
    for event in events:
        fields = [
            f'"{key}": {microseconds(value) if key in ("ts", "dur") else json.dumps(value)}'
            for key, value in event.items()
            if key != "args"
        ]
        args = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.get("args", {}).items())
        body = ",\n    ".join([*fields, f'"args": {{\n      {args}\n    }}'])
        pieces.append("  {\n    " + body + "\n  }")
    base = f'    "baseTimeNanoseconds": {base_ns},\n' if base_ns is not None else ""
    text = '  {\n    "schemaVersion": 1,\n' + base + '    "traceEvents": [\n    \n' + ",\n".join(pieces)
    return (text + '\n  ],"traceName": "t.json" }').encode()


def json_totals(text: bytes) -> tuple[Counter[str], Counter[str], list[int]]:
    """Counts and durations (ns) by name, and all starts (ns since the epoch), by plain json and decimal arithmetic."""
    trace = json.loads(text, parse_float=Decimal)
    base_ns = trace.get("baseTimeNanoseconds", 0)
    events = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    dur_ns: Counter[str] = Counter()
    for event in events:
        dur_ns[event["name"]] += int(event.get("dur", 0) * 1000)
    return Counter(event["name"] for event in events), dur_ns, sorted(int(e["ts"] * 1000) + base_ns for e in events)


def table_totals(table: EventTable) -> tuple[Counter[str], Counter[str], list[int]]:
    names = [table.name(row) for row in range(len(table))]
    dur_ns: Counter[str] = Counter()
    for name, ns in zip(names, table.dur_ns.tolist(), strict=True):
        dur_ns[name] += 0 if ns == MISSING else ns
    return Counter(names), dur_ns, sorted(table.ts_ns.tolist())


def events_of(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[str, Any]]]:
    complete = st.fixed_dictionaries(
        {
            "ph": st.just("X"),
            "cat": st.sampled_from(["cpu_op", "kernel", "python_function", "a new one"]),
            "name": NAMES,
            "pid": st.sampled_from([1, 2, "Spans"]),
            "tid": st.sampled_from([1, "lane", 2**63]),
            "ts": times,
            "dur": st.integers(1, 10**12),
            "args": st.dictionaries(
                st.sampled_from(["External id", "correlation", "Input Dims", "note"]),
                st.one_of(st.integers(0, 2**40), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2), NAMES),
                max_size=3,
            ),
        }
    )
    instant = st.fixed_dictionaries({"ph": st.just("i"), "s": st.just("t"), "name": NAMES, "ts": times})
    label = st.fixed_dictionaries(
        {"ph": st.just("M"), "name": st.just("process_name"), "pid": st.just(1), "args": st.just({"name": "python"})}
    )
    return st.lists(st.one_of(complete, complete, instant, label), min_size=1, max_size=40).filter(
        lambda events: any(event["ph"] != "M" for event in events)
    )


@settings(deadline=None, max_examples=150)
@given(events=st.one_of(events_of(RELATIVE_NS.filter(bool)), events_of(DELICATE_NS)))
def test_counts_durations_and_starts_equal_what_json_reads(events: list[dict[str, Any]]) -> None:
    text = kineto_text(events)
    assert table_totals(reader.read_bytes(text, "t.json")) == json_totals(text)


@settings(deadline=None, max_examples=100)
@given(events=events_of(EPOCH_NS))
def test_stamps_that_count_from_the_epoch_are_exact_too(events: list[dict[str, Any]]) -> None:
    text = kineto_text(events, base_ns=None)
    assert table_totals(reader.read_bytes(text, "t.json")) == json_totals(text)


@pytest.mark.parametrize("ns", [4_458_676_522_690_655, 4_458_676_522_709_059, 2**42 * 1000 + 499, 2**52 - 1])
def test_a_stamp_whose_product_is_rounded_to_a_half_is_exact(ns: int) -> None:
    text = kineto_text([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": ns, "dur": ns}], base_ns=0)
    table = reader.read_bytes(text, "t.json")
    assert table.ts_ns.tolist() == [ns]
    assert table.dur_ns.tolist() == [ns]


def many_events(count: int) -> list[dict[str, Any]]:
    """So many that they fill several windows of the reader, each of its own length."""
    return [
        {
            "ph": "X",
            "cat": ("cpu_op", "kernel", "user_annotation")[number % 3],
            "name": f"operator {number % 97}" + "x" * (number % 13),
            "pid": 1,
            "tid": number % 5,
            "ts": 5_231_165_441_058_175 + number * 1_037,
            "dur": 1 + number * number % 100_003,
            "args": {"External id": number + 1, "Input Dims": [[number % 7, 8], []], "note": "n" * (number % 29)},
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_of_many_windows_equals_what_json_reads(tmp_path: Path, name: str) -> None:
    text = kineto_text(many_events(60_000))
    assert len(text) > 3 * 2**22
    path = tmp_path / name
    path.write_bytes(gzip.compress(text, 1) if name.endswith("gz") else text)
    table = reader.read(path)
    assert table_totals(table) == json_totals(text)
    assert sorted(table.row.tolist()) == list(range(60_000))
    assert (table.external_id == table.row + 1).all()
