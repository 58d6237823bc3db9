"""Collapsed stacks: every encoding and line end that tools write, and lines that are no stacks."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from spyreprof.errors import UserError
from spyreprof.stacks import collapsed, profile
from spyreprof.stacks.profile import StackProfile
from spyreprof.stacks.reader import read, read_bytes

LINES = "main;step;decode 3\nmain;step;decode 2\nmain;step 4\nmain;wait 1"
STACKS = {("main", "step", "decode"): 5, ("main", "step"): 4, ("main", "wait"): 1}


def read_one(data: bytes | str) -> StackProfile:
    (found,) = read_bytes(data.encode() if isinstance(data, str) else data, "test.txt")
    return found


def refusal(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_bytes(data, "test.txt")
    assert caught.value.remedy
    return caught.value.problem


def shares(found: StackProfile) -> dict[str, tuple[float, float]]:
    own, total = found.by_frame()
    return {name: (own[code].item(), total[code].item()) for code, name in enumerate(found.frames)}


@pytest.mark.parametrize(
    "data",
    [
        LINES.encode(),
        LINES.replace("\n", "\r\n").encode(),
        (LINES + "\n").encode("utf-16"),
        b"\xfe\xff" + LINES.encode("utf-16-be"),
        LINES.encode("utf-8-sig"),
        gzip.compress(LINES.encode()),
    ],
    ids=["plain", "crlf", "utf-16", "utf-16 big endian", "utf-8 mark", "gzip"],
)
def test_the_same_stacks_are_found_however_the_text_is_stored(data: bytes) -> None:
    found = read_one(data)
    assert found.stacks() == STACKS
    assert (found.unit, found.total_weight, found.weight.dtype) == ("none", 10, np.int64)
    assert found.quality.sentences() == ()


def test_a_file_is_read_from_its_path(tmp_path: object) -> None:
    path = tmp_path / "stacks.anything"  # type: ignore[operator]
    path.write_text(LINES)
    assert read(path)[0].stacks() == STACKS
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path)  # type: ignore[arg-type]


def test_self_time_is_where_stacks_end_and_total_time_is_all_below() -> None:
    assert shares(read_one(LINES)) == {"main": (0, 10), "step": (4, 9), "decode": (5, 5), "wait": (1, 1)}


def test_recursion_counts_once() -> None:
    found = read_one("a;b;a;b;a 3\nb;a;a 4\na 1\n")
    assert shares(found) == {"a": (8, 8), "b": (0, 7)}


def test_invalid_lines_are_counted_and_left_out() -> None:
    found = read_one(f"# made by hand\n// by hand\n#\n\n{LINES}\nno weight here\n;; 3\na;b {10**25}\n")
    assert found.stacks() == STACKS
    assert found.quality.comments == 3
    assert (found.quality.samples_read, found.quality.samples_kept) == (7, 4)
    assert found.quality.sentences() == (
        "Stack samples left out, a weight out of range: 1.",
        "Stack samples left out, no frames before the weight: 1.",
        "Stack samples left out, no weight at the end of the line: 1.",
    )


def test_frames_may_hold_blanks_and_brackets() -> None:
    found = read_one("<module> (serve.py:3);run loop (a b.py:12) 7\n")
    assert found.stacks() == {("<module> (serve.py:3)", "run loop (a b.py:12)"): 7}


def test_weights_with_a_fraction_stay_fractions() -> None:
    found = read_one("a;b 0.25\na 1\n")
    assert found.stacks() == {("a", "b"): 0.25, ("a",): 1.0}
    assert found.weight.dtype == np.float64


def test_weights_whose_sum_is_no_int64_are_kept_as_doubles() -> None:
    heavy = collapsed.MAX_WEIGHT - 1
    found = read_one("".join(f"f{at} {heavy}\n" for at in range(4)))
    assert found.total_weight == pytest.approx(4 * heavy)


def test_very_deep_stacks_need_no_deep_call_stack() -> None:
    depth = 50_000
    found = read_one(";".join(f"f{at % 3}" for at in range(depth)) + " 2\n")
    assert len(found) == depth
    assert shares(found) == {"f0": (0, 2), "f1": (2, 2), "f2": (0, 2)}
    assert len(found.stack(depth - 1)) == depth


def test_stacks_that_meet_again_after_many_others_share_their_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapsed, "_REMEMBERED", 2)
    found = read_one("".join(f"a;f{at % 5} 1\n" for at in range(25)))
    assert set(found.stacks().values()) == {5}
    assert len(found) == 6


def test_a_line_longer_than_a_stack_may_be_is_left_out_with_its_size_as_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapsed, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(collapsed, "_PIECE_BYTES", 300)
    found = read_one(f"a 1\n{'long;' * 1000}end 1\nb 2\nc 3\n{'x' * 2000}")
    assert found.stacks() == {("a",): 1, ("b",): 2, ("c",): 3}
    assert found.quality.dropped == {collapsed.TOO_LONG: 2}


def test_too_many_different_stacks_are_told_as_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MAX_NODES", 10)
    told = refusal("".join(f"f{at};g 1\n" for at in range(20)).encode())
    assert "more than 10 different stacks, too much to read at once" in told


def test_too_many_names_are_told_as_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MAX_FRAMES_BYTES", 2**20)
    assert "more than 1 MiB of frame names" in refusal(f"{'f' * 2**20};g 1\n".encode())


def test_a_text_whose_lines_are_mostly_no_stacks_is_none() -> None:
    told = refusal(b"the server started\nlistening on port 8000\nready\nreceived a request\n")
    assert told.startswith("test.txt is no file of collapsed stacks.")
    assert "no weight at the end of the line: 3" in told


@pytest.mark.parametrize("data", [b"", b" \n\t\n", b"\xff\xfe"], ids=["no bytes", "blanks", "a mark alone"])
def test_an_empty_file_is_told_as_empty(data: bytes) -> None:
    assert "is empty" in refusal(data)


def test_a_compressed_file_that_is_cut_short_says_so() -> None:
    lines = "".join(f"main;f{at * 7919 % 1013} {at}\n" for at in range(5000))
    found = read_one(gzip.compress(lines.encode())[:-2000])
    assert found.quality.truncated
    assert "cut short" in found.quality.sentences()[0]
