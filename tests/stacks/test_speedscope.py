"""Speedscope files: sampled and evented, of every version, sound and damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spyreprof.errors import UserError
from spyreprof.stacks import reader, speedscope
from spyreprof.stacks.profile import StackProfile
from spyreprof.stacks.reader import read_bytes

FRAMES = ["main", "step", "decode"]


def file_of(*profiles: dict[str, Any], **fields: Any) -> bytes:
    whole = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": name} for name in FRAMES]},
        "profiles": profiles,
        **fields,
    }
    return json.dumps(whole).encode()


def sampled(samples: list[Any], weights: list[Any], **fields: Any) -> dict[str, Any]:
    return {"type": "sampled", "name": "t", "unit": "seconds", "samples": samples, "weights": weights, **fields}


def evented(text: str, end: float | None = None, **fields: Any) -> dict[str, Any]:
    """Events written as "O0@1": frame 0 opens at 1."""
    events = [{"type": word[0], "frame": int(word[1]), "at": float(word[3:])} for word in text.split()]
    return {"type": "evented", "name": "t", "unit": "none", "events": events, "endValue": end, **fields}


def read_one(*profiles: dict[str, Any], **fields: Any) -> StackProfile:
    (found,) = read_bytes(file_of(*profiles, **fields), "test.json")
    return found


def refusal(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_bytes(data, "test.json")
    assert caught.value.remedy
    assert "\n" not in caught.value.problem
    return caught.value.problem


@pytest.mark.parametrize(
    "fields", [{"version": "0.0.1"}, {"version": "0.1.2"}, {"exporter": "speedscope@0.6.0", "activeProfileIndex": 0}]
)
def test_samples_of_every_version_are_stacks_with_weights(fields: dict[str, Any]) -> None:
    found = read_one(sampled([[0, 1, 2], [0, 1], [0, 1, 2]], [1, 2, 3]), **fields)
    assert found.stacks() == {("main", "step", "decode"): 4, ("main", "step"): 2}
    assert (found.name, found.unit, found.total_weight) == ("t", "seconds", 6)
    assert found.count.tolist() == [0, 1, 2]


def test_every_profile_of_a_file_is_read() -> None:
    two = [sampled([[0]], [1], name="one"), evented("O1@0 C1@2", name="two"), sampled([], [], name="empty")]
    assert [(found.name, found.stacks()) for found in read_bytes(file_of(*two), "f")] == [
        ("one", {("main",): 1}),
        ("two", {("step",): 2}),
        ("empty", {}),
    ]


def test_a_profile_whose_samples_are_all_left_out_says_why_beside_a_sound_one() -> None:
    sound, lost = read_bytes(file_of(sampled([[0]], [1]), sampled([[9]], [1])), "f")
    assert (len(sound), len(lost)) == (1, 0)
    assert lost.quality.dropped == {speedscope.NO_SUCH_FRAME: 1}


def test_frames_renamed_to_one_name_are_one_frame_and_recursion_between_them_counts_once() -> None:
    found = read_one(sampled([[0, 1, 2], [0]], [3, 1])).renamed(["main", "step", "step"])
    assert found.frames == ("main", "step")
    assert found.by_frame().self_weight.tolist() == [1, 3]
    assert found.by_frame().total_weight.tolist() == [4, 3]


def test_events_are_the_time_between_them() -> None:
    found = read_one(evented("O0@10 O1@12 C1@15 O2@15 C2@16 C0@20"))
    assert found.stacks() == {("main",): 6, ("main", "step"): 3, ("main", "decode"): 1}
    assert found.quality.sentences() == ()


def test_time_with_no_frame_open_belongs_to_no_stack() -> None:
    assert read_one(evented("O0@1 C0@2 O0@90 C0@91")).total_weight == 2


def test_events_out_of_order_are_sorted_and_counted() -> None:
    found = read_one(evented("O0@0 O1@4 C1@6 O2@1 C2@3 C0@9"))
    assert found.stacks() == {("main",): 5, ("main", "step"): 2, ("main", "decode"): 2}
    assert found.quality.out_of_order == 1
    assert "Events of the stacks out of order, sorted: 1." in found.quality.sentences()


def test_a_frame_that_ends_before_an_inner_one_leaves_it_open() -> None:
    found = read_one(evented("O0@0 O1@1 C0@3 C1@5"))
    assert found.stacks() == {("main",): 1, ("main", "step"): 2, ("step",): 2}
    assert found.quality.sentences() == ("Frames that end while an inner one goes on: 1.",)


def test_frames_that_never_end_last_until_the_end_of_the_profile() -> None:
    found = read_one(evented("O0@0 O1@4", end=10))
    assert found.stacks() == {("main",): 4, ("main", "step"): 6}
    assert found.quality.unclosed == 2


def test_an_end_of_a_frame_that_is_not_open_is_left_out() -> None:
    found = read_one(evented("O0@0 C1@4 C0@10"))
    assert found.stacks() == {("main",): 10}
    assert found.quality.dropped == {speedscope.NOT_OPEN: 1}


def test_events_that_are_none_are_left_out_by_reason() -> None:
    profile = evented("O0@0 X0@1 O9@2 C0@4")
    profile["events"].append({"type": "O", "frame": 0})
    found = read_one(profile)
    assert found.stacks() == {("main",): 4}
    assert set(found.quality.dropped) == {speedscope.BAD_EVENT, speedscope.NO_SUCH_FRAME, speedscope.NO_TIME}
    assert (found.quality.samples_read, found.quality.samples_kept) == (5, 2)


def test_samples_that_are_none_are_left_out_by_reason() -> None:
    found = read_one(sampled([[0], [7], [1, "x"], [], [2], [1], [0]], [1, 1, 1, 1, -1, "1"]))
    assert found.stacks() == {("main",): 1}
    assert found.quality.dropped == {
        speedscope.NO_SUCH_FRAME: 2,
        speedscope.NO_STACK: 1,
        speedscope.BAD_WEIGHT: 2,
        speedscope.NO_WEIGHT: 1,
    }


def test_samples_without_any_weights_count_one_each() -> None:
    assert read_one(sampled([[0], [0]], [])).stacks() == {("main",): 2}


def test_frames_of_one_name_in_two_files_are_two() -> None:
    frames = [{"name": "run", "file": "a.py"}, {"name": "run", "file": "b.py"}, {"file": "c.py"}]
    found = read_one(sampled([[0, 1, 2]], [1]), shared={"frames": frames})
    assert found.frames == ("run (a.py)", "run (b.py)", "(no name) (c.py)")


def test_an_unknown_unit_is_taken_for_counts() -> None:
    assert read_one(sampled([[0]], [1], unit="parsecs")).unit == "none"


def test_deep_events_need_no_deep_call_stack() -> None:
    depth = 30_000
    profile = evented("", end=None)
    profile["events"] = [{"type": "O", "frame": at % 2, "at": at} for at in range(depth)]
    profile["events"] += [{"type": "C", "frame": at % 2, "at": 2 * depth - at} for at in reversed(range(depth))]
    found = read_one(profile)
    assert len(found) == depth
    assert found.by_frame().total_weight[0] == 2 * depth


def test_stacks_that_are_too_tangled_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedscope, "MAX_REBUILT_FRAMES", 50)
    opens = " ".join(f"O{int(at == 0)}@{at}" for at in range(60))
    assert "ends too many frames while inner ones go on" in refusal(file_of(evented(f"{opens} C1@99")))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"profiles": [', "is no valid JSON"),
        (b'{"traceEvents": []}', "is no speedscope file"),
        (b'{"shared": {"frames": []}, "profiles": 3}', "is no valid speedscope file"),
        (b'{"shared": {"frames": []}, "profiles": []}', "holds no stack samples"),
        (file_of({"type": "sliced"}), "neither sampled nor evented"),
        (file_of(sampled([[9]], [1])), "holds no stack samples. Stack samples left out, a frame that the file does"),
        (b'{"shared": {"frames": []}, "profiles": [' + b"[" * 50_000, "is no valid"),
    ],
)
def test_what_is_no_speedscope_file_is_refused_in_a_sentence(data: bytes, why: str) -> None:
    assert why in refusal(data)


def test_a_file_that_is_too_large_is_told_as_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_JSON_BYTES", 2**20)
    monkeypatch.setattr(reader, "_PIECE_BYTES", 2**16)
    told = refusal(file_of(sampled([[0]] * 400_000, [1] * 400_000)))
    assert "more than 1 MiB of JSON, too much to read at once" in told


def test_samples_beside_trace_events_are_stacks_of_each_thread() -> None:
    frames = {"1": {"name": "root"}, "2": {"name": "f", "parent": 1}, "3": {"name": "g", "parent": "2"}}
    samples = [{"pid": 1, "tid": "7", "sf": sf, "weight": "2"} for sf in (1, 3, 3)]
    samples += [{"pid": 1, "tid": "8", "sf": 2}, {"pid": 1, "tid": "8", "sf": 99}]
    whole = {"traceEvents": [], "samples": samples, "stackFrames": frames}
    first, second = read_bytes(json.dumps(whole).encode(), "test.json")
    assert (first.name, first.stacks()) == ("process 1, thread 7", {("root",): 2, ("root", "f", "g"): 4})
    assert (second.stacks(), second.quality.samples_kept) == ({("root", "f"): 1}, 1)


def test_frames_that_call_themselves_are_no_endless_stack() -> None:
    frames = {"1": {"name": "a", "parent": 2}, "2": {"name": "b", "parent": 1}, "3": {"name": "c"}}
    whole = {"samples": [{"sf": 1}, {"sf": 3}], "stackFrames": frames}
    (found,) = read_bytes(json.dumps(whole).encode(), "test.json")
    assert found.stacks() == {("c",): 1}
    assert "frames that are their own callers: 1" in found.quality.sentences()[0]


def test_samples_that_name_no_frame_of_the_file_are_refused() -> None:
    assert "holds no stack samples" in refusal(b'{"samples": [{"sf": 4}], "stackFrames": {}}')
    assert "no readable samples" in refusal(b'{"samples": 4, "stackFrames": {}}')
