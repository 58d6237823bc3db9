"""Stack files with wrong and missing bytes: a profile whose parts add up, or a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.errors import UserError
from spyreprof.stacks.reader import read_bytes

EVENTS = [
    {"type": kind, "frame": frame, "at": at}
    for at, (kind, frame) in enumerate(zip("OOCOCC", [0, 1, 1, 2, 2, 0], strict=True))
]
SOUND = [
    json.dumps(
        {
            "shared": {"frames": [{"name": "a"}, {"name": "b"}, {"name": "c", "file": "c.py"}]},
            "profiles": [
                {"type": "evented", "unit": "none", "endValue": 9, "events": EVENTS},
                {"type": "sampled", "unit": "seconds", "samples": [[0, 1], [2]], "weights": [1, 0.5]},
            ],
        }
    ).encode(),
    b"a;b;a 3\n# note\nb;c 4.5\nc 1\n",
    json.dumps(
        {
            "samples": [{"pid": 1, "tid": "2", "sf": 2, "weight": "3"}],
            "stackFrames": {"1": {"name": "root"}, "2": {"name": "f", "parent": 1}},
        }
    ).encode(),
]
_pieces = st.sampled_from(
    [b"", b'"', b"{", b"]", b"\\", b"-1", b"1e999", b"9" * 30, b"null", b";", b" ", b"\x00", b"\xff"]
)


@given(st.sampled_from(SOUND), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 6), _pieces), max_size=4))
def test_a_damaged_file_gives_profiles_that_add_up_or_a_sentence(
    data: bytes, damages: list[tuple[int, int, bytes]]
) -> None:
    for place, length, piece in damages:
        at = place % (len(data) + 1)
        data = data[:at] + piece + data[at + length :]
    try:
        profiles = read_bytes(data, "test")
    except UserError as error:
        assert "\n" not in error.problem
        return
    for profile in profiles:
        own, total = profile.by_frame()
        assert sum(own.tolist()) == pytest.approx(profile.total_weight)
        assert (own <= total * (1 + 1e-9)).all()
        assert total.max(initial=0) <= profile.total_weight * (1 + 1e-9)
        assert profile.quality.samples_kept <= profile.quality.samples_read
