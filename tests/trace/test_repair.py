"""Reading events one by one: what is mended, what is left out, and that each fault costs itself alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyreprof.errors import UserError
from spyreprof.trace import repair, stream
from spyreprof.trace.quality import (
    CONTROL_CHARACTER,
    LONE_SURROGATE,
    NOT_AN_OBJECT,
    NOT_FINITE,
    NOT_UTF8,
    OVERSIZED,
    STRAY_BACKSLASH,
    STRAY_QUOTE,
    TOO_DEEP,
    TRAILING_COMMA,
    UNREADABLE,
)
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.repair import parse_events

BEFORE = {"ph": "X", "name": "before", "ts": 1}
BEHIND = {"ph": "X", "name": "behind", "ts": 3}


class Result(NamedTuple):
    events: list[dict[str, Any] | None]
    consumed: int
    ended: bool
    truncated: bool
    dropped: dict[str, int]
    repaired: dict[str, int]


def parse(data: bytes | str, *, borders: Iterable[int] = (), array_form: bool = False) -> Result:
    """All of a list behind its opening bracket, handed over in pieces that end at `borders`."""
    if isinstance(data, str):
        data = data.encode()
    dropped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    events: list[dict[str, Any] | None] = []
    rest, begin, consumed, resync = b"", 0, 0, False
    for end in [*(border for border in borders if border < len(data)), len(data)]:
        rest += data[begin:end]
        begin = end
        final = end == len(data)
        parsed = parse_events(
            rest, final=final, array_form=array_form, dropped=dropped, repaired=repaired, resync=resync
        )
        events += parsed.events
        consumed += parsed.consumed
        rest, resync = rest[parsed.consumed :], parsed.skipping
        if parsed.ended or final:
            break
    return Result(events, consumed, parsed.ended, parsed.truncated, dict(dropped), dict(repaired))


def between(middle: bytes | str) -> bytes:
    """A list in which `middle` stands between two sound events."""
    if isinstance(middle, str):
        middle = middle.encode()
    return json.dumps(BEFORE).encode() + b", " + middle + b", " + json.dumps(BEHIND).encode() + b"]"


def mended(middle: bytes | str) -> tuple[dict[str, Any], dict[str, int]]:
    """The one event that became of `middle`, and what had to be mended; its neighbours are as they were."""
    result = parse(between(middle))
    assert result.dropped == {}
    assert result.ended
    before, event, behind = result.events
    assert (before, behind) == (BEFORE, BEHIND)
    assert event is not None
    return event, result.repaired


@pytest.mark.parametrize(
    ("raw", "text", "reason"),
    [
        (r"torch\cuda\__init__.py(219): _lazy_init", r"torch\cuda\__init__.py(219): _lazy_init", STRAY_BACKSLASH),
        (r"C:\Users\x", r"C:\Users\x", STRAY_BACKSLASH),
        (r"torch\nn\modules\module.py", r"torch\nn\modules\module.py", STRAY_BACKSLASH),
        (r"half \u12 of it", r"half \u12 of it", STRAY_BACKSLASH),
        (r"a\\b \d", r"a\b \d", STRAY_BACKSLASH),
        (r"said \"x\" \d", r'said "x" \d', STRAY_BACKSLASH),
        ("C:\\dir\\", "C:\\dir\\", STRAY_BACKSLASH),
        ('{"device": "cpu"}(12): run', '{"device": "cpu"}(12): run', STRAY_QUOTE),
        ('{"device": "cpu", "index": 0}(12): run', '{"device": "cpu", "index": 0}(12): run', STRAY_QUOTE),
        ('f.py(3): {"a": 1}', 'f.py(3): {"a": 1}', STRAY_QUOTE),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}', STRAY_QUOTE),
        ('say "hi"', 'say "hi"', STRAY_QUOTE),
        ('"', '"', STRAY_QUOTE),
        ('vector<"a{', 'vector<"a{', STRAY_QUOTE),
        ("k\x010", "k\x010", CONTROL_CHARACTER),
        ("two\nlines\tin one", "two\nlines\tin one", CONTROL_CHARACTER),
        ("\x00", "\x00", CONTROL_CHARACTER),
        (r"\ud800", "\N{REPLACEMENT CHARACTER}", LONE_SURROGATE),
        (r"\udc00\ud83d!", "\N{REPLACEMENT CHARACTER}" * 2 + "!", LONE_SURROGATE),
    ],
)
def test_a_damaged_text_keeps_what_it_says(raw: str, text: str, reason: str) -> None:
    fields = ('"ph": "X"', f'"name": "{raw}"', '"ts": 2.5', '"args": {"x": [1]}')
    for order in (fields, (fields[1], *fields[2:], fields[0]), (fields[0], fields[2], fields[3], fields[1])):
        event, repaired = mended("{" + ", ".join(order) + "}")
        assert event == {"ph": "X", "name": text, "ts": Decimal("2.5"), "args": {"x": [1]}}
        assert repaired == {reason: 1}


@pytest.mark.parametrize("raw", [r"C:\Users\x", 'say "hi"', "k\x01", r"\ud800"])
def test_a_damaged_text_inside_the_arguments_is_mended_too(raw: str) -> None:
    event, repaired = mended('{"ph": "X", "args": {"a": ["%s", 1], "b": {"c": "%s"}, "d": 2}}' % (raw, raw))  # noqa: UP031
    assert event["args"]["a"][0] == event["args"]["b"]["c"]
    assert (event["args"]["a"][1], event["args"]["d"]) == (1, 2)
    assert sum(repaired.values()) == 1


@pytest.mark.parametrize("text", [r"line\nbreak", r"\\server", r"\ud83d\ude00", r"\\ud800", "\N{GRINNING FACE}"])
def test_what_is_sound_is_not_mended(text: str) -> None:
    event, repaired = mended('{"ph": "X", "name": "%s"}' % text)  # noqa: UP031
    assert event == json.loads('{"ph": "X", "name": "%s"}' % text)  # noqa: UP031
    assert repaired == {}


@pytest.mark.parametrize(
    "number",
    ["NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "Inf", "-nan", "-nan(ind)", "1.#INF", "-1.#IND"],
)
def test_a_number_that_is_none_is_missing(number: str) -> None:
    event, repaired = mended('{"ph": "X", "name": "nan, inf", "args": {"bw": %s, "l": [1, %s]}}' % (number, number))  # noqa: UP031
    assert event == {"ph": "X", "name": "nan, inf", "args": {"bw": None, "l": [1, None]}}
    assert repaired == {NOT_FINITE: 1}


def test_numbers_are_exact() -> None:
    event, repaired = mended(
        '{"a": 18446744073709551615, "b": 1749812345678901.234, "c": 1E5, "d": -0.0, "e": %s, "f": 5e-324, "g": -7, '
        '"h": 1e400}' % ("9" * 4000)
    )
    assert event["a"] == 2**64 - 1
    assert event["b"] == Decimal("1749812345678901.234")
    assert (event["c"], event["d"], event["f"], event["g"]) == (10**5, 0, Decimal("5e-324"), -7)
    assert (event["e"], event["h"]) == (10**4000 - 1, 10**400)
    assert not any(isinstance(value, float) for value in event.values())
    assert repaired == {}


@pytest.mark.parametrize("number", ["9" * 5000, "0." + "1" * 5000, "1" * 5000 + "e-4999", "1e99999", "-1e" + "9" * 30])
def test_a_number_without_measure_costs_its_event_unless_it_is_an_argument(number: str) -> None:
    result = parse(between('{"ph": "X", "pid": %s}' % number))  # noqa: UP031
    assert result.events == [BEFORE, None, BEHIND]
    assert result.dropped == {UNREADABLE: 1}
    event, repaired = mended('{"ph": "X", "args": {"a": %s, "b": 1}}' % number)  # noqa: UP031
    assert event["args"] == {"a": None, "b": 1}
    assert repaired == {}


def test_of_two_equal_keys_the_last_counts() -> None:
    assert mended(r'{"ph": "X", "name": "\d", "name": "b"}')[0]["name"] == "b"
    assert mended('{"ph": "X", "name": "a", "name": "b"}')[0]["name"] == "b"


def test_bytes_that_are_not_utf8_are_replaced_as_python_does() -> None:
    for raw in (b"\xff\xfe", b"\xe2\x82", b"\xed\xa0\x80", b"\xc3"):
        event, repaired = mended(b'{"ph": "X", "name": "k' + raw + '\N{BULLET}"}'.encode())
        assert event["name"] == (b"k" + raw + "\N{BULLET}".encode()).decode(errors="replace")
        assert repaired == {NOT_UTF8: 1}


@pytest.mark.parametrize("event", ['{"ph": "X", "args": {"a": 1,}, "dur": 2,}', '{"ph": "X", "args": {"a": 1, } , }'])
def test_a_comma_that_nothing_follows_is_left_out(event: str) -> None:
    found, repaired = mended(event)
    assert found["args"] == {"a": 1}
    assert repaired == {TRAILING_COMMA: 1}


@pytest.mark.parametrize("depth", [3_000, 200_000])
@pytest.mark.parametrize("brackets", [('{"a":', "}"), ("[", "]"), ('[{"a": "]}", "b":[', "]}]")])
def test_values_without_measure_in_depth_are_missing_and_the_event_is_kept(
    depth: int, brackets: tuple[str, str]
) -> None:
    deep = brackets[0] * depth + "1" + brackets[1] * depth
    event, repaired = mended('{"ph": "X", "name": "deep", "args": {"x": %s, "y": 2}, "ts": 1}' % deep)  # noqa: UP031
    assert (event["name"], event["ts"], event["args"]["y"]) == ("deep", 1, 2)
    assert repaired == {TOO_DEEP: 1}


def test_one_event_with_several_faults_counts_under_each() -> None:
    event, repaired = mended(b'{"ph": "X", "name": "C:\\d\xff", "cat": "a "b" \x01", "x": nan, "y": inf, "z": [1,],}')
    assert event["name"] == "C:\\d\N{REPLACEMENT CHARACTER}"
    assert event["cat"] == 'a "b" \x01'
    assert repaired == dict.fromkeys(
        (STRAY_BACKSLASH, NOT_UTF8, STRAY_QUOTE, CONTROL_CHARACTER, NOT_FINITE, TRAILING_COMMA), 1
    )


@pytest.mark.parametrize(
    "broken",
    [
        '{"ph": "X", "name": "no end, "ts" 1}',
        '{"ph": "X", "name": "no end}',
        '{"ph": "X", "args": {"a": 1, "ts": 2}',
        '{"ph": "X", "args": {"a": [1, "ts": 2}}',
        '{"ph": "X", "args": {"l": [{"name": "a"}, {"name": "b"}, {"id": 3}], "x": oops}}',
        '{"ph": "X" "name": "no comma"}',
        '{"ph": "X", "ts": 0x10}',
        '{"ph": "X", "ts": 1.}',
        '{ph: "X"}',
        '["ph": "X", "ts": 1}',
        '"ph": "X", "ts": 1, "args": {"name": "x"}}',
        "undefined",
        "#",
        "{,}",
        '{"a": }}}}}',
    ],
)
def test_what_cannot_be_mended_costs_itself_alone(broken: str) -> None:
    assert parse(between(broken)).events[:: 2 if broken != "#" else 1] == [BEFORE, BEHIND]
    first = parse(broken + ", " + json.dumps(BEHIND) + "]")
    assert first.events[-1] == BEHIND
    last = parse(json.dumps(BEFORE) + ", " + broken + '], "displayTimeUnit": "ms"}')
    assert last.events[0] == BEFORE
    assert last.ended
    for result in (parse(between(broken)), first, last):
        assert result.events.count(None) == sum(result.dropped.values()) == (0 if broken == "#" else 1)


def test_elements_that_are_no_objects_are_left_out() -> None:
    result = parse('1, "text", null, [1, {"a": 2}], {"ph": "X"}, true]')
    assert result.events == [None] * 4 + [{"ph": "X"}, None]
    assert result.dropped == {NOT_AN_OBJECT: 5}


@pytest.mark.parametrize("separator", ["", " ", "\n", ",\n", " , ,", ",,", "]", "] ", "}", "},", ";", "["])
def test_what_stands_between_two_events_costs_none_of_them(separator: str) -> None:
    result = parse(json.dumps(BEFORE) + separator + json.dumps(BEHIND) + "]")
    assert result.events == [BEFORE, BEHIND]
    assert result.dropped == {}


@pytest.mark.parametrize(
    "following", ["", "}", ' , "traceName": "x"}', ', "other": 1}', "\n}\n", ', "deviceProperties": [{"id": 0}]}']
)
def test_the_end_of_the_list_is_told_to_the_byte(following: str) -> None:
    text = json.dumps(BEFORE) + " ]"
    for border in range(len(text) + len(following)):
        result = parse(text + following, borders=[border])
        assert (result.events, result.ended, result.consumed) == ([BEFORE], True, len(text))


def test_a_list_without_its_bracket_ends_at_the_next_field_of_the_file() -> None:
    text = json.dumps(BEFORE) + ', "baseTimeNanoseconds": 17}'
    for border in range(len(text)):
        result = parse(text, borders=[border])
        assert (result.events, result.ended) == ([BEFORE], True)
        assert text[result.consumed :].startswith('"baseTime')


@pytest.mark.parametrize("end", ["", ",", " ,\n"])
def test_only_the_array_form_may_lack_its_bracket(end: str) -> None:
    text = json.dumps(BEFORE) + end
    assert not parse(text, array_form=True).truncated
    assert parse(text, array_form=False).truncated


@pytest.mark.parametrize("array_form", [True, False])
def test_a_text_that_is_cut_inside_an_event_says_where(array_form: bool) -> None:
    whole, cut = json.dumps(BEFORE) + ", ", '{"ph": "X", "name": "a b", "ts": 15, "args": {"l": [1, {"c": true}]}}'
    for end in range(1, len(cut)):
        result = parse(whole + cut[:end], array_form=array_form)
        assert result.events == [BEFORE]
        assert (result.truncated, result.consumed, result.dropped) == (True, len(whole), {})


def test_a_damaged_last_event_is_not_a_cut() -> None:
    result = parse(json.dumps(BEFORE) + ', {"ph": "X", "name": "no end}]}')
    assert (result.events, result.dropped) == ([BEFORE, None], {UNREADABLE: 1})
    assert (result.ended, result.truncated) == (True, False)


def test_an_event_larger_than_one_may_be_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "MAX_EVENT_BYTES", 50_000)
    for inner in ("x" * 60_000, "\N{BULLET}" * 20_000):
        text = between('{"ph": "X", "name": "%s"}' % inner)  # noqa: UP031
        for step in (997, 7_001, 10**6):
            result = parse(text, borders=range(step, len(text), step))
            assert result.events == [BEFORE, None, BEHIND]
            assert result.dropped == {OVERSIZED: 1}
            assert result.ended


def test_an_event_without_an_end_does_not_swallow_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "MAX_EVENT_BYTES", 50_000)
    text = between('{"zz": [' + "[1]," * 20_000)
    result = parse(text, borders=range(1_000, len(text), 1_000))
    assert result.events == [BEFORE, None, BEHIND]
    assert sum(result.dropped.values()) == 1


NAMES = st.text(max_size=12) | st.sampled_from(["C:\\n\\x", '{"a": "b"}', "]}", "}, {", "\ud83d\ude00"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES | st.integers(-(10**9), 10**9).map(lambda n: n / 1024),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XBEiM"), "name": NAMES, "ts": st.integers(0, 10**15)},
    optional={"args": st.dictionaries(NAMES, VALUES, max_size=4), "dur": st.integers(0, 99), "id": VALUES},
)


def plain(value: Any) -> Any:
    """Decimal fractions as `json` gives them."""
    return json.loads(json.dumps(value, default=float))


@given(
    st.lists(EVENTS, max_size=5),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=4).map(sorted),
)
def test_sound_events_are_what_json_reads(
    events: list[dict[str, Any]], indent: int | None, ascii_only: bool, borders: list[int]
) -> None:
    text = json.dumps(events, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    result = parse(text[1:], borders=borders)
    assert plain(result.events) == json.loads(text)
    assert (result.consumed, result.ended, result.dropped, result.repaired) == (len(text) - 1, True, {}, {})


FIVE: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}},
    {
        "ph": "X",
        "cat": "kernel",
        "name": "void k<float>(int*)",
        "ts": 11,
        "dur": 2,
        "args": {"stream": 7, "d": [[2], []]},
    },
    {"name": "s", "id": 4, "ph": "s", "pid": 1, "tid": 2, "ts": 3, "cat": "ac2g", "bp": "e"},
    {"args": {"l": ["", "a"]}, "ph": "C", "pid": 1, "name": "memory", "ts": 4},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5, "dur": 1, "args": {"External id": 9}},
]
FIVE_TEXT = json.dumps(FIVE)[1:].encode() + b"}"
AT = st.integers(0, len(FIVE_TEXT) - 1)
BYTE = st.sampled_from(b'{}[]",:\\x0\n \xff\x00') | st.integers(0, 255)


def untouched(result: Result) -> int:
    kept = [plain(event) for event in result.events]
    return sum(event in kept for event in FIVE)


@settings(max_examples=400)
@given(AT, BYTE)
def test_a_wrong_byte_costs_one_event_at_most(at: int, byte: int) -> None:
    result = parse(FIVE_TEXT[:at] + bytes([byte]) + FIVE_TEXT[at + 1 :])
    assert untouched(result) >= 4
    assert len(result.events) >= 5
    assert result.events.count(None) == sum(result.dropped.values())


@settings(max_examples=200)
@given(AT, st.integers(1, 30))
def test_missing_bytes_cost_the_events_that_they_belong_to(at: int, count: int) -> None:
    result = parse(FIVE_TEXT[:at] + FIVE_TEXT[at + count :])
    assert untouched(result) >= 3


DAMAGE = st.lists(
    st.tuples(AT, st.integers(0, 9), st.binary(max_size=3) | st.lists(BYTE, max_size=3).map(bytes)), max_size=3
)


@settings(max_examples=300)
@given(DAMAGE, st.booleans(), st.lists(AT, max_size=6).map(sorted))
def test_the_outcome_does_not_depend_on_where_the_pieces_end(
    damage: list[tuple[int, int, bytes]], array_form: bool, borders: list[int]
) -> None:
    text = FIVE_TEXT
    for at, removed, put in damage:
        text = text[:at] + put + text[at + removed :]
    assert parse(text, borders=borders, array_form=array_form) == parse(text, array_form=array_form)


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_break_the_parser(data: bytes, array_form: bool) -> None:
    result = parse(data, array_form=array_form)
    assert 0 <= result.consumed <= len(data)
    assert result.events.count(None) == sum(result.dropped.values())


def test_a_stretch_of_white_space_alone_is_not_kept_for_the_next_window() -> None:
    parsed = parse_events(
        b" " * 2**20, final=False, array_form=False, dropped=Counter(), repaired=Counter(), resync=True
    )
    assert parsed.consumed > 2**20 - 2**15


def test_a_file_that_is_mostly_damage_is_given_up_within_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    step = repair._Stretch._step

    def counted(stretch: repair._Stretch) -> repair.Parsed | None:
        nonlocal steps
        steps += 1
        return step(stretch)

    monkeypatch.setattr(stream, "MAX_UNREADABLE", 50)
    monkeypatch.setattr(repair._Stretch, "_step", counted)
    with pytest.raises(UserError, match="More than 50 elements of the trace cannot be read"):
        read_bytes(b"[" + b"1, " * 5000 + b"1]", "test.json")
    assert steps <= 52
