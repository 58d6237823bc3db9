"""Traces with random damage: nothing breaks, everything is counted, and no window changes the outcome."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import outcome, read_pieces

from spyreprof.errors import UserError
from spyreprof.trace.reader import read

# The long part takes about a minute; CONTRIBUTING.md says how to make it run longer.
LONG = int(os.environ.get("SPYREPROF_FUZZ_EXAMPLES", "6000"))

NAMES = st.sampled_from(
    [
        "aten::mm",
        "void k<float>(int*)",
        "",
        "nn.Module: Linear_0",
        "{}",
        "]}",
        'say "x"',
        "C:\\dir\\n.py(1): f",
        "\N{BULLET}",
    ]
) | st.text(max_size=6)
NUMBERS = st.integers(0, 10**7) | st.integers(0, 10**10).map(lambda n: n / 1000) | st.sampled_from([2**53, 2**64, -1])
ARGUMENTS = st.dictionaries(
    st.sampled_from(["External id", "correlation", "Input Dims", "Input type", "stream", "bytes", "x", "name"]),
    NUMBERS | NAMES | st.lists(st.lists(st.integers(0, 9), max_size=2) | NAMES, max_size=3),
    max_size=4,
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXBEiCMsf"), "name": NAMES, "ts": NUMBERS},
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "python_function", "ac2g"]),
        "pid": NUMBERS | NAMES,
        "tid": NUMBERS | NAMES,
        "dur": NUMBERS,
        "id": st.integers(0, 9),
        "args": ARGUMENTS,
    },
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["schemaVersion", "baseTimeNanoseconds", "traceName", "deviceProperties", "distributedInfo", "other"]
    ),
    st.integers(0, 10**18) | NAMES | st.lists(st.fixed_dictionaries({"id": st.integers(0, 3)}), max_size=2),
    max_size=3,
)


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    events = draw(st.lists(EVENTS, min_size=1, max_size=7))
    indent = draw(st.sampled_from([None, 1]))
    if draw(st.booleans()):
        return json.dumps(events, indent=indent, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace")
    document = {**draw(HEADERS), "traceEvents": events, **draw(HEADERS)}
    return json.dumps(document, indent=indent, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace")


SNIPPETS = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"null", b"NaN", b"-inf", b"1e999", b"9" * 40),
        *(b"\x00", b"\n", b"\xff", b"\xe2\x82", b"\\ud800", b"\\u12", b'"a": "C:\\x\\", ', b'"{"a": "b"}"'),
        *(
            b'{"ph":',
            b'{"ph": "X", "ts": 1}, ',
            b'], "traceName": "x"',
            b'"traceEvents": [',
            b"[" * 300,
            b'{"a":' * 1500,
        ),
    ]
)
DAMAGE = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 1, 1, 2, 5, 30, 300]), SNIPPETS | st.binary(max_size=3)),
    min_size=1,
    max_size=3,
)
BORDERS = st.lists(st.floats(0, 1), max_size=5)


def damaged(text: bytes, damage: list[tuple[float, int, bytes]]) -> bytes:
    for share, removed, put in damage:
        at = int(share * len(text))
        text = text[:at] + put + text[at + removed :]
    return text


def places(text: bytes, shares: list[float]) -> list[int]:
    return sorted({int(share * len(text)) for share in shares})


def check(text: bytes, shares: list[float], step: int) -> None:
    whole = attempt(text, [])
    for borders in (places(text, shares), range(step, len(text), step)):
        assert attempt(text, borders) == whole
    if isinstance(whole, dict):
        assert whole["kept"] == len(whole["events"])
        assert whole["kept"] + whole["metadata"] + sum(whole["dropped"].values()) == whole["read"]


def attempt(text: bytes, borders: Any) -> dict[str, Any] | str:
    try:
        return outcome(read_pieces(text, borders))
    except UserError as error:
        return error.problem


STEPS = st.sampled_from([1, 3, 17, 64, 200])


@settings(max_examples=150)
@given(traces(), DAMAGE, BORDERS, STEPS)
def test_damage_is_counted_alike_in_every_window(
    text: bytes, damage: list[tuple[float, int, bytes]], shares: list[float], step: int
) -> None:
    check(damaged(text, damage), shares, step)


@pytest.mark.slow
@settings(max_examples=LONG)
@given(traces(), DAMAGE.filter(lambda damage: len(damage) == 1), BORDERS, STEPS)
def test_one_fault_is_counted_alike_in_every_window(
    text: bytes, damage: list[tuple[float, int, bytes]], shares: list[float], step: int
) -> None:
    # A time such as 1e99956 is out of range where its whole window decodes, and no JSON where its event is read alone:
    # how many events are left out is the same, for which of these two reasons is not.
    text = damaged(text, damage)
    whole = counted(attempt(text, []))
    for borders in (places(text, shares), range(step, len(text), step)):
        assert counted(attempt(text, borders)) == whole


def counted(found: dict[str, Any] | str) -> Any:
    return {**found, "dropped": sum(found["dropped"].values())} if isinstance(found, dict) else found


@pytest.mark.slow
@settings(max_examples=LONG)
@given(traces(), DAMAGE, BORDERS, STEPS)
def test_much_damage_leaves_the_same_events_in_every_window(
    text: bytes, damage: list[tuple[float, int, bytes]], shares: list[float], step: int
) -> None:
    # Where several faults lie in a row nothing tells how many events the damaged stretch held: it counts as one or as
    # more, depending on where a window ends in it. What is kept does not depend on that.
    text = damaged(text, damage)
    whole = kept(attempt(text, []))
    for borders in (places(text, shares), range(step, len(text), step)):
        assert kept(attempt(text, borders)) == whole


def kept(found: dict[str, Any] | str) -> Any:
    return [event[1:] for event in found["events"]] if isinstance(found, dict) else None


@settings(max_examples=100)
@given(traces(), BORDERS, STEPS)
def test_a_sound_trace_loses_nothing_in_any_window(text: bytes, shares: list[float], step: int) -> None:
    check(text, shares, step)
    document = json.loads(text)
    events = document if isinstance(document, list) else document["traceEvents"]
    found = outcome(read_pieces(text, places(text, shares)))
    assert (found["read"], found["repaired"], found["cut"]) == (len(events), {}, None)


@settings(max_examples=60)
@given(traces(), st.floats(0, 1), st.binary(min_size=1, max_size=3), st.booleans())
def test_damage_to_a_compressed_file_breaks_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, share: float, put: bytes, cut: bool
) -> None:
    packed = gzip.compress(text)
    at = int(share * len(packed))
    path: Path = tmp_path_factory.mktemp("fuzz") / "trace.json.gz"
    path.write_bytes(packed[:at] + put + (b"" if cut else packed[at + len(put) :]))
    try:
        table = read(path)
    except UserError as error:
        assert error.problem
        return
    quality = table.quality
    # Of a pair one event is kept.
    left_out = sum(quality.dropped.values()) + quality.paired + quality.unmatched_end
    assert quality.events_kept + quality.metadata_events + left_out == quality.events_read
