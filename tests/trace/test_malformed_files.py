"""Files with one fault each: what is kept, mended and left out, whatever the compression, encoding and window."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pieces import outcome, read_pieces

from spyreprof.errors import UserError
from spyreprof.trace.assemble import MemoryPart, assemble, part_facts
from spyreprof.trace.encode import Encoder
from spyreprof.trace.quality import (
    CONTROL_CHARACTER,
    LONE_SURROGATE,
    NO_PHASE,
    NO_TIME,
    NOT_AN_OBJECT,
    NOT_FINITE,
    NOT_UTF8,
    STRAY_BACKSLASH,
    STRAY_QUOTE,
    TOO_DEEP,
    TRAILING_COMMA,
    UNREADABLE,
)
from spyreprof.trace.reader import read
from spyreprof.trace.stream import read_events
from spyreprof.trace.text import open_text

SOUND = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"sound {i}",
        "pid": 1,
        "tid": 2,
        "ts": 100 + i,
        "dur": 1,
        "args": {"External id": i},
    }
    for i in range(4)
]


class Fault(NamedTuple):
    """An element in the middle of a file: what it is read as, and what is counted."""

    text: bytes | str
    name: str | None = None
    repaired: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def event(name: str, args: str = "1") -> str:
    return '{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2, "args": {"a": %s}}' % (  # noqa: UP031
        name,
        args,
    )


FAULTS = {
    "path with backslashes": Fault(
        event(r"torch\nn\modules.py(9): run"), r"torch\nn\modules.py(9): run", (STRAY_BACKSLASH,)
    ),
    "path that ends with a backslash": Fault(event("C:\\dir\\"), "C:\\dir\\", (STRAY_BACKSLASH,)),
    "mark of a user's directory": Fault(event(r"C:\Users\u12\x.py"), r"C:\Users\u12\x.py", (STRAY_BACKSLASH,)),
    "quotation marks in a name": Fault(
        event('{"device": "cpu", "n": 1}(12): run'), '{"device": "cpu", "n": 1}(12): run', (STRAY_QUOTE,)
    ),
    "control character": Fault(event("k\x010"), "k\x010", (CONTROL_CHARACTER,)),
    "line break in a name": Fault(event("k\n0"), "k\n0", (CONTROL_CHARACTER,)),
    "control character in the arguments": Fault(event("k", '"\x02"'), "k", (CONTROL_CHARACTER,)),
    "bytes that are no UTF-8": Fault(event("k").encode().replace(b'"k"', b'"k\xff\xfe"'), "k\ufffd\ufffd", (NOT_UTF8,)),
    "bytes that are no UTF-8 in the arguments": Fault(
        event("k", '"?"').encode().replace(b"?", b"\xe2\x82"), "k", (NOT_UTF8,)
    ),
    "half of a surrogate pair": Fault(event(r"k\ud800"), "k\ufffd", (LONE_SURROGATE,)),
    "half of a surrogate pair in the arguments": Fault(event("k", r'"\udc00"'), "k", (LONE_SURROGATE,)),
    "infinite bandwidth": Fault(event("k", "Infinity"), "k", (NOT_FINITE,)),
    "bare inf": Fault(event("k", "-inf"), "k", (NOT_FINITE,)),
    "bare nan": Fault(event("k", "[nan, 1]"), "k", (NOT_FINITE,)),
    "number beyond a double": Fault(event("k", "1e400"), "k"),
    "argument of too many digits": Fault(event("k", "9" * 5000), "k"),
    "comma before the bracket": Fault(event("k", "1,"), "k", (TRAILING_COMMA,)),
    "deep arguments": Fault(event("k", "[" * 1500 + "]" * 1500), "k", (TOO_DEEP,)),
    "time that is none": Fault(event("k").replace("10.5", "NaN"), None, (NOT_FINITE,), (NO_TIME,)),
    "no closing quotation mark": Fault(event("k").replace('"k"', '"k'), None, (), (UNREADABLE,)),
    "no closing bracket": Fault(event("k")[:-1], None, (), (UNREADABLE,)),
    "list without an end": Fault(event("k", "[[1, 2]"), None, (), (UNREADABLE,)),
    "no comma between fields": Fault(event("k").replace(', "pid"', ' "pid"'), None, (), (UNREADABLE,)),
    "number of too many digits": Fault(event("k").replace("0,", "9" * 5000 + ",", 1), None, (), (UNREADABLE,)),
    "word instead of an event": Fault("undefined", None, (), (UNREADABLE,)),
    "text instead of an event": Fault('"event"', None, (), (NOT_AN_OBJECT,)),
    "number instead of an event": Fault("17", None, (), (NOT_AN_OBJECT,)),
    "list instead of an event": Fault("[1, {}]", None, (), (NOT_AN_OBJECT,)),
    "nothing instead of an event": Fault("null", None, (), (NOT_AN_OBJECT,)),
    "empty event": Fault("{}", None, (), (NO_PHASE,)),
    "several faults at once": Fault(
        event(r"C:\x", '"\x01", "b": nan,'), r"C:\x", (STRAY_BACKSLASH, CONTROL_CHARACTER, NOT_FINITE, TRAILING_COMMA)
    ),
}
# An integer of any size is sound JSON; it has its place here because readers fail on it.
FAULTS["integer beyond 64 bits"] = Fault(event("k", "18446744073709551615"), "k")
all_faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))


def as_bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def file_with(middle: bytes | str, *, array_form: bool = False) -> tuple[bytes, int]:
    """A trace with `middle` between two sound events on each side, and where that begins."""
    sound = [json.dumps(one).encode() for one in SOUND]
    head = (b"[" if array_form else b'{"schemaVersion": 1, "traceEvents": [') + b", ".join(sound[:2]) + b", "
    tail = b", " + b", ".join(sound[2:]) + (b"]" if array_form else b'], "baseTimeNanoseconds": 7000000}')
    return head + as_bytes(middle) + tail, len(head)


def expected(fault: Fault, base_ns: int) -> dict[str, Any]:
    events = [
        (row + (row > 1), one["name"], one["ts"] * 1000 + base_ns, one["dur"] * 1000) for row, one in enumerate(SOUND)
    ]
    if fault.name is not None:
        events.insert(2, (2, fault.name, 10_500 + base_ns, 2_000))
    return {
        "events": events,
        "base": base_ns,
        "read": 5,
        "kept": len(events),
        "metadata": 0,
        "dropped": dict.fromkeys(fault.dropped, 1),
        "repaired": dict.fromkeys(fault.repaired, 1),
        "cut": None,
    }


@all_faults
@pytest.mark.parametrize("array_form", [False, True], ids=["object form", "array form"])
@pytest.mark.parametrize("compressed", [False, True], ids=["json", "json.gz"])
def test_a_fault_costs_what_it_must(tmp_path: Path, fault: Fault, array_form: bool, compressed: bool) -> None:
    data, _ = file_with(fault.text, array_form=array_form)
    path = tmp_path / ("trace.json.gz" if compressed else "trace.json")
    path.write_bytes(gzip.compress(data) if compressed else data)
    table = read(path)
    assert outcome(table) == expected(fault, 0 if array_form else 7_000_000)
    assert sorted(table.external_id.tolist())[-4:] == [0, 1, 2, 3]


@all_faults
def test_no_window_changes_what_a_fault_costs(fault: Fault) -> None:
    data, begin = file_with(fault.text)
    end = begin + len(as_bytes(fault.text))
    whole = outcome(read_pieces(data, []))
    assert whole == expected(fault, 7_000_000)
    near = {*range(begin - 64, min(begin + 200, end + 64)), *range(max(end - 64, begin), end + 64)}
    for border in sorted(near):
        assert outcome(read_pieces(data, [border])) == whole, border
    for step in (1, 7, 64):
        assert outcome(read_pieces(data, range(1, len(data), step))) == whole, step


@all_faults
def test_a_fault_at_either_end_of_the_list_costs_no_neighbour(fault: Fault) -> None:
    sound = [json.dumps(one).encode() for one in SOUND]
    tail = b'], "baseTimeNanoseconds": 7000000}'
    for elements in ([as_bytes(fault.text), *sound], [*sound, as_bytes(fault.text)]):
        data = b'{"traceEvents": [' + b", ".join(elements) + tail
        found = outcome(read_pieces(data, []))
        assert (found["read"], found["kept"], found["base"]) == (5, 4 + (fault.name is not None), 7_000_000)
        assert found["dropped"] == dict.fromkeys(fault.dropped, 1)
        assert found["repaired"] == dict.fromkeys(fault.repaired, 1)
        assert found["cut"] is None


def test_every_fault_in_one_file_is_counted_once() -> None:
    sound = json.dumps(SOUND[0]).encode()
    elements = [piece for fault in FAULTS.values() for piece in (as_bytes(fault.text), sound)]
    data = b'{"traceEvents": [' + b",\n".join(elements) + b"]}"
    for borders in ([], range(1, len(data), 4096), range(1, len(data), 61)):
        found = outcome(read_pieces(data, borders))
        assert found["read"] == len(elements)
        assert found["kept"] == len(FAULTS) + sum(fault.name is not None for fault in FAULTS.values())
        for reasons, counted in (("repaired", found["repaired"]), ("dropped", found["dropped"])):
            named = [reason for fault in FAULTS.values() for reason in getattr(fault, reasons)]
            assert counted == {reason: named.count(reason) for reason in named}


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
@pytest.mark.parametrize("compressed", [False, True], ids=["json", "json.gz"])
def test_every_encoding_is_read_whole(tmp_path: Path, encoding: str, compressed: bool) -> None:
    name = "\N{GREEK SMALL LETTER MU}\N{GRINNING FACE}"
    for text, repaired in (
        (event(name), ()),
        (event(name, "nan"), (NOT_FINITE,)),
        (event(name, r'"C:\x"'), (STRAY_BACKSLASH,)),
    ):
        data, _ = file_with(text)
        encoded = data.decode().encode(encoding)
        path = tmp_path / "trace.json"
        path.write_bytes(gzip.compress(encoded) if compressed else encoded)
        assert outcome(read(path)) == expected(Fault(text, name, repaired), 7_000_000)


def test_a_mark_of_byte_order_is_no_fault_of_the_array_form(tmp_path: Path) -> None:
    data, _ = file_with(event("k"), array_form=True)
    path = tmp_path / "trace.json"
    for mark in (b"\xef\xbb\xbf", b"\xef\xbb\xbf \n", b"\n "):
        path.write_bytes(mark + data)
        assert outcome(read(path)) == expected(Fault("", "k"), 0)


@pytest.mark.parametrize("end", ["", ",", " ,\n"])
def test_the_array_form_without_its_bracket_is_whole(end: str) -> None:
    data = ("[" + ", ".join(json.dumps(one) for one in SOUND) + end).encode()
    for borders in ([], *([border] for border in range(len(data) - 64, len(data)))):
        found = outcome(read_pieces(data, borders))
        assert (found["kept"], found["read"], found["cut"], found["dropped"]) == (4, 4, None, {})


@pytest.mark.parametrize("array_form", [False, True], ids=["object form", "array form"])
def test_a_file_that_breaks_off_in_an_event_says_at_which_byte(tmp_path: Path, array_form: bool) -> None:
    data, begin = file_with(event("k", '["a", {"b": true}]'), array_form=array_form)
    for end in range(begin + 1, begin + len(event("k", '["a", {"b": true}]'))):
        for borders in ([], [end - 20], range(1, end, 50)):
            found = outcome(read_pieces(data[:end], borders))
            assert (found["kept"], found["read"], found["cut"], found["dropped"]) == (2, 2, begin, {})
    path = tmp_path / "trace.json"
    path.write_bytes(data[: begin + 9])
    assert f"cut short at byte {begin:,}" in " ".join(read(path).quality.sentences())


def test_a_file_that_breaks_off_behind_its_events_is_cut_too() -> None:
    data, _ = file_with(event("k"))
    for end in range(data.rindex(b"]"), len(data)):
        found = outcome(read_pieces(data[:end], []))
        assert (found["kept"], found["cut"] is not None) == (5, True)


def test_a_compressed_stream_that_breaks_off_keeps_its_events(tmp_path: Path) -> None:
    data = json.dumps(
        {"traceEvents": [{**SOUND[0], "ts": i, "args": {"x": i * 2654435761 % 2**32}} for i in range(3000)]}
    )
    packed = gzip.compress(data.encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    table = read(path)
    assert 500 < len(table) < 3000
    assert table.quality.truncated
    assert table.quality.dropped == {}
    path.write_bytes(packed[:9])
    with pytest.raises(UserError):
        read(path)


def test_a_counter_without_values_is_kept_without_them() -> None:
    data = b'[{"name":"CPU","ph":"C","ts":"1587074269993629","pid":1,"args":{"sys": nan, "usr": 3}}]'
    table = read_pieces(data, [])
    assert table.ts_ns.tolist() == [1587074269993629000]
    assert table.counters is not None
    assert (table.counters.value.tolist(), table.counters.series_values[table.counters.series_code[0]]) == (
        [3.0],
        "usr",
    )
    assert table.quality.repaired == {NOT_FINITE: 1}


def test_mended_events_are_as_exact_as_sound_ones() -> None:
    exact = (
        '{"ph": "X", "name": "%s", "pid": 18446744073709551615, "ts": 1749812345678901.234, "dur": 0.001, '
        '"args": {"correlation": 9223372036854775807, "External id": 36893488147419103232}}'
    )
    sound, damaged = (read_pieces(("[" + exact % name + "]").encode(), []) for name in ("C:/x", r"C:\x"))
    for table in (sound, damaged):
        assert table.ts_ns.tolist() == [1749812345678901234]
        assert table.dur_ns.tolist() == [1]
        assert table.pid_values[table.pid_code[0]] == 2**64 - 1
        assert table.identity(int(table.external_id[0])) == 2**65
        assert table.correlation.tolist() == [2**63 - 1]
    assert damaged.quality.repaired == {STRAY_BACKSLASH: 1}


def test_what_stands_between_compressed_members_is_no_border(tmp_path: Path) -> None:
    data, begin = file_with(event(r"C:\x"))
    path = tmp_path / "trace.json.gz"
    for at in range(begin, begin + 60, 7):
        path.write_bytes(gzip.compress(data[:at]) + gzip.compress(data[at:]))
        assert outcome(read(path)) == outcome(read_pieces(data, []))


def test_a_text_is_read_as_it_comes() -> None:
    data, _ = file_with(event("k"))
    encoder, part = Encoder(), MemoryPart()
    reading = read_events(open_text(io.BytesIO(data), "trace"), encoder, part, window_bytes=16)
    part.facts = part_facts(encoder, reading, part.rows)
    assert outcome(assemble([part])) == outcome(read_pieces(data, []))
