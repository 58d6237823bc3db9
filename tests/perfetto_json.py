"""What Perfetto asks of a Chrome JSON file, so that it draws every event."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

DRAWN = set("MXBEbenstfCi")


def assert_perfetto_takes(text: bytes, *, flows: bool = True) -> None:
    """Valid JSON; metadata first; numbers for processes and threads; spans nest; flows begin and end on spans."""
    document = json.loads(text, parse_float=Decimal)
    events: list[dict[str, Any]] = document["traceEvents"]
    kinds = [event["ph"] for event in events]
    assert set(kinds) <= DRAWN
    assert "M" not in kinds[kinds.count("M") :], "metadata behind other events"
    named = [(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"]
    assert len(named) == len(set(named)), "named twice"
    for event in events:
        assert isinstance(event["pid"], int) and 0 <= event["pid"] < 2**31
        assert isinstance(event["tid"], int) and 0 <= event["tid"] < 2**31
    assert_nested(events)
    if flows:
        assert_flows_are_bound(events)


def assert_nested(events: list[dict[str, Any]]) -> None:
    """As Perfetto stacks complete events: by time, those of equal times as they come."""
    tracks: dict[tuple[int, int], list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        open_ends: list[Decimal] = []
        for start, end in sorted(spans, key=lambda one: one[0]):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], "overlaps without nesting"
            open_ends.append(end)


def assert_flows_are_bound(events: list[dict[str, Any]]) -> None:
    spans = [(e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    for event in events:
        if event["ph"] in "stf":
            assert any(
                (pid, tid) == (event["pid"], event["tid"]) and start <= event["ts"] <= end
                for pid, tid, start, end in spans
            ), "a flow on no span"
