"""What is said of a trace while it is read and before its report is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spyreprof.errors import UserError
from spyreprof.trace import cache
from spyreprof.trace.first_results import FirstLook, FirstResults

PREFILL = "execute_context_1(128)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_3(3)"


def span(name: str, cat: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


EVENTS = [
    span(PREFILL, "user_annotation", 0, 30),
    span(DECODE, "user_annotation", 40, 60),
    span(DECODE, "user_annotation", 100, 10),
    # the device's track repeats them
    span(PREFILL, "gpu_user_annotation", 0, 900),
    *(span("aten::mm", "cpu_op", 10 * n, 5) for n in range(6)),
    {**span("lost", "cpu_op", 0, 1), "ts": None},
]


def written(path: Path, events: list[Any]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def look_at(tmp_path: Path, *paths: Path) -> tuple[FirstLook, list[FirstResults]]:
    told: list[FirstResults] = []
    look = FirstLook(told.append)
    for number, path in enumerate(paths):
        cache.build(path, tmp_path / f"columns-{number}", watch=look)
        look.done(cache.load(tmp_path / f"columns-{number}"))
    return look, told


def test_counts_and_phases_are_told_when_a_trace_has_been_read(tmp_path: Path) -> None:
    look, [told] = look_at(tmp_path, written(tmp_path / "t.json", EVENTS))
    assert (told.trace, told.whole, told.events_read, told.events_kept) == (1, True, 11, 10)
    assert told.dropped == {"no time stamp": 1}
    assert told.phases == (("prefill", 0.3), ("decode", 0.7))
    assert told.categories == (("cpu_op", 6), ("user_annotation", 3), ("gpu_user_annotation", 1))
    assert look.now() is None


def test_events_read_are_those_kept_and_what_became_of_the_others(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}
    pair = [{"ph": phase, "name": "p", "pid": 1, "tid": 1, "ts": ts} for phase, ts in (("B", 1), ("E", 2), ("E", 3))]
    _, [told] = look_at(tmp_path, written(tmp_path / "t.json", [*EVENTS, named, *pair]))
    assert (told.metadata_events, told.paired) == (1, 1)
    assert told.dropped == {"no time stamp": 1, "an end without a begin": 1}
    assert told.events_read == told.events_kept + 1 + 1 + 2


def test_while_a_trace_is_read_the_same_is_known_of_what_was_read(tmp_path: Path) -> None:
    look = FirstLook(lambda results: None)
    assert look.now() is None
    cache.build(written(tmp_path / "t.json", EVENTS), tmp_path / "columns", watch=look)
    seen = look.now()
    assert seen is not None
    assert (seen.whole, seen.events_read, seen.events_kept, seen.dropped) == (False, 11, 10, {"no time stamp": 1})
    assert seen.phases == (("prefill", 0.3), ("decode", 0.7))


def test_traces_are_told_apart(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", EVENTS)
    second = written(tmp_path / "b.json", [span("x", "y", 1, 1)])
    _, told = look_at(tmp_path, first, second)
    assert [(one.trace, one.events_kept, one.phases) for one in told][1] == (2, 1, ())


def test_a_trace_that_could_not_be_read_leaves_nothing_in_the_next(tmp_path: Path) -> None:
    told: list[FirstResults] = []
    look = FirstLook(told.append)
    only_named = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]
    with pytest.raises(UserError):
        cache.build(written(tmp_path / "bad.json", only_named), tmp_path / "bad", watch=look)
    cache.build(written(tmp_path / "begun.json", EVENTS), tmp_path / "begun", watch=look)
    cache.build(written(tmp_path / "good.json", [span(DECODE, "user_annotation", 1, 1)]), tmp_path / "good", watch=look)
    seen = look.now()
    assert seen is not None and (seen.trace, seen.events_read, seen.phases) == (1, 1, (("decode", 1.0),))


def test_durations_beyond_an_integer_are_added_up(tmp_path: Path) -> None:
    events = [span(DECODE, "user_annotation", 1, 9e15) for _ in range(9)]
    _, [told] = look_at(tmp_path, written(tmp_path / "t.json", events))
    assert told.phases == (("decode", 1.0),)
