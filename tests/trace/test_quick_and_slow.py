"""An event is the same whichever way it was read: with its whole window at once, or by itself beside a damaged one."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import Pieces, read_pieces

from spyreprof.trace import stream
from spyreprof.trace.assemble import MemoryPart, assemble, part_facts
from spyreprof.trace.columns import ARG_COLUMNS, CORRELATION, DIMS, EXTERNAL_ID, EXTERNAL_ID_OLD, TYPES
from spyreprof.trace.encode import Encoder
from spyreprof.trace.quality import TIME_RANGE, UNREADABLE
from spyreprof.trace.reader import read_stream
from spyreprof.trace.stream import read_events
from spyreprof.trace.table import MISSING, OTHER_ID, EventTable

# Told from others by its name; the element behind it is damaged.
FAULT = '{"ph": "X", "name": "fault", "ts": 1, "args": {"a": tru}}'

LAST = '{"ph": "P", "name": "last", "ts": 1}'

KEYS = [column.key for column in (EXTERNAL_ID, EXTERNAL_ID_OLD, CORRELATION, DIMS, TYPES, *ARG_COLUMNS)]
CATEGORIES = [
    *("cpu_op", "python_function", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset"),
    *("cuda_runtime", "privateuse1_driver", "cpu_instant_event", "ac2g", "fwdbwd", "something else", ""),
]
WORDS = st.sampled_from(
    ["", "a", "1", "0x1f", "-0X2", " 7 ", "1_0", "9" * 20, "é", 'say "x"', "C:\\n", "\n", "null", "{}"]
)
NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63), -(2**63) + 1, -(2**63) - 1, 10**25]),
    st.sampled_from([1.0, 2.5, 1e18, 1e19, 9007199254740993.0, -0.0, 0.1, 1e300]),
)
SCALARS = st.one_of(NUMBERS, WORDS, st.none(), st.booleans())
VALUES = st.one_of(
    SCALARS,
    st.lists(st.one_of(SCALARS, st.lists(st.integers(0, 9), max_size=3)), max_size=3),
    st.dictionaries(WORDS, SCALARS, max_size=2),
)
OBJECTS = st.dictionaries(st.one_of(st.sampled_from([*KEYS, "Peers", "Bytes", "name", "labels"]), WORDS), VALUES)
PLAIN_TIMES = st.one_of(st.integers(0, 10**9), st.integers(-(10**12), 10**15).map(lambda ns: ns / 1000), st.none())
ODD_TIMES = PLAIN_TIMES | st.sampled_from(["1.5", "-2", "", "x", True, 2**63, 2**43 + 0.5])
PLAIN_IDENTITIES = st.integers(0, 3) | st.sampled_from([2**70, -1, "1", "Spans", None])
ODD_IDENTITIES = PLAIN_IDENTITIES | st.sampled_from([1.0, 1.5, True])


def events_of(times: st.SearchStrategy[Any], identities: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"name": WORDS | st.sampled_from(["process_name", "thread_name", "process_labels"]), "ts": times},
        optional={
            "ph": st.sampled_from([*"XXXXBEbeiCMstfP", "", "?"]),
            "cat": st.sampled_from(CATEGORIES) | st.none(),
            "pid": identities,
            "tid": identities,
            "dur": times,
            "id": identities,
            "args": OBJECTS | st.sampled_from([None, [], 1, "x", {}]),
            "attr": OBJECTS | st.sampled_from([None, [], 1, "x", {}]),
        },
    )


# The quick way refuses a whole window for one of the odd.
EVENTS = events_of(PLAIN_TIMES, PLAIN_IDENTITIES)
ODD_EVENTS = events_of(ODD_TIMES, ODD_IDENTITIES)


@st.composite
def spelled(draw: st.DrawFn) -> list[str]:
    """Events as JSON, each with white space and escapes of its own."""
    made = []
    kinds = EVENTS if draw(st.integers(0, 3)) else EVENTS | ODD_EVENTS
    for event in draw(st.lists(kinds, min_size=1, max_size=6)):
        separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " : ")]))
        made.append(json.dumps(event, ensure_ascii=draw(st.booleans()), separators=separators))
    return made


HEAD = '{"traceEvents": ['
# A first piece that ends there leaves the events to the quick way.
BEHIND_HEAD = [len(HEAD)]


def document(events: list[str]) -> bytes:
    # What stands before the closing bracket is always read the slow way.
    return f"{HEAD}{', '.join(events)}, {LAST}]}}".encode()


def contents(table: EventTable, *, but: str | None = None) -> dict[str, Any]:
    """All of a table in the file's order, free of codes; `but` names an event that is left out."""
    order = [row for row in np.argsort(table.row, kind="stable").tolist() if but is None or table.name(row) != but]

    def decoded(codes: Any, values: tuple[Any, ...]) -> list[Any]:
        return [None if codes[row] == MISSING else (type(values[codes[row]]), values[codes[row]]) for row in order]

    def identities(ids: Any) -> list[Any]:
        found = [int(ids[row]) for row in order]
        return [table.id_values[OTHER_ID - value] if value <= OTHER_ID else value for value in found]

    kinds = {column.name: column.kind for column in ARG_COLUMNS}
    found: dict[str, Any] = {
        "ts_ns": table.ts_ns[order].tolist(),
        "dur_ns": table.dur_ns[order].tolist(),
        "ph": decoded(table.ph_code, table.ph_values),
        "cat": decoded(table.cat_code, table.cat_values),
        "name": decoded(table.name_code, table.name_values),
        "pid": decoded(table.pid_code, table.pid_values),
        "tid": decoded(table.tid_code, table.tid_values),
        "dims": decoded(table.dims_code, table.dims_values),
        "types": decoded(table.types_code, table.types_values),
        "correlation": identities(table.correlation),
        "external_id": identities(table.external_id),
        "flow_id": identities(table.flow_id),
        "names": (table.metadata.process_names, table.metadata.thread_names, table.metadata.labels),
    }
    for name, column in table.args.items():
        kind = kinds.get(name, "integer")
        if kind == "text":
            found[name] = decoded(column, table.text_values)
        else:
            found[name] = identities(column) if kind == "id" else column[order].tolist()
    if but is None:
        found["row"] = table.row[order].tolist()
        found["quality"] = table.quality
    if table.counters is not None:
        place = {row: at for at, row in enumerate(order)}
        counters = table.counters
        found["counters"] = sorted(
            (place[int(row)], counters.series_values[series], float(value))
            for row, series, value in zip(
                counters.row.tolist(), counters.series_code.tolist(), counters.value.tolist(), strict=True
            )
            if int(row) in place
        )
    return found


def read_slowly(data: bytes, borders: range | list[int]) -> EventTable:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream._Stream, "_quick", lambda *_: False)
        table: EventTable = read_pieces(data, borders)
        return table


@settings(max_examples=400, deadline=None)
@given(spelled(), st.sampled_from([1, 40, 300, 10**6]))
def test_the_quick_and_the_slow_way_give_the_same_table(events: list[str], step: int) -> None:
    data = document(events)
    quick = contents(read_pieces(data, BEHIND_HEAD))
    assert contents(read_slowly(data, range(step, len(data), step))) == quick


@settings(max_examples=200, deadline=None)
@given(spelled(), st.integers(0, 6))
def test_a_damaged_neighbour_changes_nothing_about_an_event(events: list[str], at: int) -> None:
    alone = read_pieces(document(events), BEHIND_HEAD)
    beside = read_pieces(document([*events[:at], FAULT, *events[at:]]), BEHIND_HEAD)
    assert contents(beside, but="fault") == {
        name: found for name, found in contents(alone).items() if name not in ("row", "quality")
    }
    assert beside.quality.dropped == {**alone.quality.dropped, "not valid JSON": 1}


@settings(max_examples=150, deadline=None)
@given(spelled(), st.integers(1, 400))
def test_what_an_event_has_does_not_depend_on_the_others_of_its_window(events: list[str], step: int) -> None:
    data = document(events)
    assert contents(read_pieces(data, range(step, len(data), step))) == contents(read_pieces(data, BEHIND_HEAD))


# -- times

STAMPS_NS = st.one_of(
    st.integers(-(10**6), 10**6),
    *(st.integers(near * 1000 - 3000, near * 1000 + 3000) for near in (2**42, 2**43, -(2**42))),
    st.integers(-(2**43) * 1000, 2**60),
)


@st.composite
def spelled_stamps(draw: st.DrawFn) -> list[str]:
    stamps = []
    for ns in draw(st.lists(STAMPS_NS, min_size=1, max_size=8)):
        digits = draw(st.integers(0, 3))
        thousandth = abs(ns) // 10 ** (3 - digits) * 10 ** (3 - digits)
        whole, rest = divmod(thousandth, 1000)
        fraction = f".{rest:03d}"[: digits + 1] if digits else ""
        sign = "-" if ns < 0 and thousandth else ""
        stamps.append(f"{sign}{whole}{fraction}")
    return stamps


def read_times(data: bytes, *, digits: bool) -> tuple[dict[str, Any], bool]:
    encoder, part = Encoder(), MemoryPart()
    reading = read_events(Pieces(data, BEHIND_HEAD), encoder, part, digits=digits)
    part.facts = part_facts(encoder, reading, part.rows)
    found = contents(assemble([part]))
    return found, reading.exact_doubles


@settings(max_examples=400, deadline=None)
@given(spelled_stamps(), spelled_stamps())
def test_times_from_doubles_are_those_of_the_digits(ts: list[str], dur: list[str]) -> None:
    pairs = zip(ts, (dur * len(ts))[: len(ts)], strict=True)
    data = document([f'{{"ph": "X", "name": "a", "ts": {begin}, "dur": {took}}}' for begin, took in pairs])
    doubles, _ = read_times(data, digits=False)
    exact, from_doubles = read_times(data, digits=True)
    assert not from_doubles
    assert doubles == exact


@settings(max_examples=100, deadline=None)
@given(spelled_stamps())
def test_times_are_exact_to_the_nanosecond(ts: list[str]) -> None:
    data = document([f'{{"ph": "i", "name": "a", "ts": {stamp}}}' for stamp in ts])
    found = read_times(data, digits=False)[0]["ts_ns"][:-1]
    expected = [int(f"{whole}{rest:0<3}") for whole, _, rest in (stamp.partition(".") for stamp in ts)]
    # A stamp of 0 among stamps of years is a record that was never filled in.
    assert found == expected or len(found) < len(expected)


def test_doubles_do_for_times_below_their_limit_alone() -> None:
    event = '{"ph": "X", "name": "a", "ts": %s, "dur": 1}'
    assert read_times(document([event % "8796093022207.999"]), digits=False)[1]
    assert not read_times(document([event % "8796093022208.001"]), digits=False)[1]


@pytest.mark.parametrize("stamp", ["1e99956", "-1e99956", "1e9999999999999999999", "9" * 5000])
@pytest.mark.parametrize("large", ["1", "8796093022209"])
@pytest.mark.parametrize("beside", ["", FAULT])
def test_a_stamp_beyond_all_numbers_is_dropped_for_the_same_reason_wherever_it_stands(
    stamp: str, large: str, beside: str
) -> None:
    odd = f'{{"ph": "X", "name": "odd", "ts": {stamp}, "dur": 1}}'
    plain = [f'{{"ph": "X", "name": "a", "ts": {large}, "dur": 1}}'] * 50
    for place in (0, 25, 50):
        events = [*plain[:place], odd, *([beside] if beside else []), *plain[place:], LAST]
        text = '{"traceEvents": [' + ", ".join(events) + "]}"
        quality = read_stream(io.BytesIO(text.encode()), "t", window_bytes=1000).quality
        assert quality.dropped == {TIME_RANGE: 1} | ({UNREADABLE: 1} if beside else {})
