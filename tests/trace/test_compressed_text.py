"""Compressed text of traces, read in pieces of any size, whole and cut short."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from spyreprof.trace import text

SOURCE = random.Random(7)
BODY = b"".join(b'{"ts": %d},\n' % SOURCE.getrandbits(30) for _ in range(20_000))

Inflater = Callable[[], tuple[Callable[[], Any], Any]]


def with_zlib() -> tuple[Callable[[], Any], Any]:
    return (lambda: zlib.decompressobj(wbits=31)), (zlib.error,)


def read_all(data: bytes, size: int) -> tuple[bytes, bool]:
    found = text.open_text(io.BytesIO(data), "test.gz")
    pieces = []
    while piece := found.read(size):
        pieces.append(piece)
    return b"".join(pieces), found.truncated


@pytest.fixture(params=["as installed", "zlib"])
def _either_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "zlib":
        monkeypatch.setattr(text, "_inflater", with_zlib)


@pytest.mark.usefixtures("_either_library")
@pytest.mark.parametrize("length", [0, 3, 4, 76, 1000, len(BODY)])
@pytest.mark.parametrize("size", [50, 2**22])
def test_a_whole_file_gives_all_of_its_text(length: int, size: int) -> None:
    packed = gzip.compress(BODY[:length])
    assert read_all(packed, size) == (BODY[:length], False)
    assert read_all(packed + gzip.compress(b"more"), size) == (BODY[:length] + b"more", False)


@pytest.mark.usefixtures("_either_library")
@pytest.mark.parametrize("length", [76, 1000, len(BODY)])
@pytest.mark.parametrize("size", [50, 2**22])
@pytest.mark.parametrize("missing", [1, 8, 20])
def test_a_file_cut_short_gives_all_that_stands_before_the_cut(length: int, size: int, missing: int) -> None:
    packed = gzip.compress(BODY[:length])[:-missing]
    expected = zlib.decompressobj(wbits=31).decompress(packed)
    assert read_all(packed, size) == (expected, True)


@pytest.mark.usefixtures("_either_library")
def test_a_damaged_file_ends_at_the_damage() -> None:
    packed = bytearray(gzip.compress(BODY))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    found, truncated = read_all(bytes(packed), 2**16)
    assert truncated
    assert len(found) < len(BODY)
