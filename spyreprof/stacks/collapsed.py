"""Collapsed stacks: a line for each stack, frames separated by semicolons, then its weight."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from spyreprof.errors import UserError
from spyreprof.stacks.profile import ROOT, StackProfile, StackQuality, StackTree
from spyreprof.trace.text import Text

# A stack of 100,000 frames fits.
MAX_LINE_BYTES = 2**24
MAX_WEIGHT = 2**62
_PIECE_BYTES = 2**18

NO_WEIGHT = "no weight at the end of the line"
NO_FRAMES = "no frames before the weight"
TOO_LONG = "a line longer than a stack may be"
TOO_HEAVY = "a weight out of range"

_LINE = re.compile(r"(?P<frames>.*)[ \t](?P<weight>\d{1,30}(?:\.\d{1,30})?)\s*", re.ASCII | re.DOTALL)
_COMMENTS = ("# ", "//")


def read_collapsed(text: Text, label: str) -> StackProfile:
    """Read collapsed stacks line by line; lines that are no stack are counted and left out.

    Raises:
        UserError: most lines are no stack, or there are too many different ones to hold.
    """
    tree = StackTree(label)
    known: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    comments = kept = read = 0
    for raw in _lines(text):
        line = "" if raw is None else raw.decode(errors="replace").strip()
        if raw is not None and not line:
            continue
        if line == "#" or line.startswith(_COMMENTS):
            comments += 1
            continue
        read += 1
        match = _LINE.fullmatch(line) if raw is not None else None
        if match is None:
            dropped[TOO_LONG if raw is None else NO_WEIGHT] += 1
            continue
        weight = _number(match["weight"])
        frames = match["frames"]
        if weight is None or not frames.strip(" ;"):
            dropped[TOO_HEAVY if weight is None else NO_FRAMES] += 1
            continue
        node = known.get(frames)
        if node is None:
            node = ROOT
            for name in frames.split(";"):
                node = tree.child(node, tree.frame(name))
            known[frames] = node
            if len(known) > _REMEMBERED:
                known.clear()
        tree.add(node, weight)
        kept += 1
    quality = StackQuality(read, kept, comments, dict(dropped), truncated=text.truncated)
    if kept <= dropped[NO_WEIGHT] + dropped[NO_FRAMES]:
        raise UserError(
            " ".join((f"{label} is no file of collapsed stacks.", *quality.sentences())),
            "Each line names the frames of a stack, separated by semicolons, and then its weight.",
        )
    return tree.profile("", "none", quality)


# Lines of a profile repeat; beyond this many the memory would be better spent.
_REMEMBERED = 10_000


def _number(text: str) -> int | float | None:
    if "." not in text:
        return int(text) if int(text) < MAX_WEIGHT else None
    return float(text) if float(text) < MAX_WEIGHT else None


def _lines(text: Text) -> Iterator[bytes | None]:
    """Lines without their end; None for one that is too long to be held."""
    rest = b""
    skipping = False
    while piece := text.read(_PIECE_BYTES):
        first, *others = piece.split(b"\n")
        rest += first
        for line in others:
            yield None if skipping or len(rest) > MAX_LINE_BYTES else rest
            rest, skipping = line, False
        if len(rest) > MAX_LINE_BYTES:
            rest, skipping = b"", True
    if skipping or rest:
        yield None if skipping else rest
