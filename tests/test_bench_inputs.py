"""The inputs of the ingest bench are exact multiples of what they are made from."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
BASE_NS = 1_790_857_026_000_000_000

TRACE = """  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "a device"
    }
  ],
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [

  {
    "ph": "M",
    "name": "process_name",
    "ts": 5231165441058.175,
    "pid": 7,
    "tid": 0,
    "args": {
      "name": "python"
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm \\"ts\\": 3", "pid": 7, "tid": 7,
    "ts": 5231165441058.175, "dur": 0.305,
    "args": {
      "External id": 3,"Record function id": 0, "Concrete Inputs": ["", "{", "},\\n  {"], "Ev Idx": 0
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
    "ts": 5231165441060.000, "dur": 12.001,
    "args": {
      "External id": 3, "correlation": 9, "stream": 7, "bytes": 100
    }
  },
  {
    "ph": "s", "id": 9, "pid": 7, "tid": 7, "ts": 5231165441058.175,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "i",
    "s": "g",
    "name": "Record Window End",
    "pid": "",
    "tid": "",
    "ts": 5231165441080.013

  }
  ],"traceName": "/tmp/t.json" }"""


@pytest.fixture(scope="module")
def inputs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ingest_inputs", BENCH / "ingest_inputs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def amplified(inputs: ModuleType, tmp_path: Path, **options: Any) -> tuple[int, dict[str, Any]]:
    source, target = tmp_path / "source.json", tmp_path / "target.json"
    source.write_text(TRACE, encoding="utf-8")
    copies = inputs.amplify(source, target, **options)
    return copies, json.loads(target.read_bytes(), parse_float=Decimal)


def totals(trace: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    count: Counter[str] = Counter()
    dur_ns: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        if event["ph"] != "M":
            count[event["name"]] += 1
            dur_ns[event["name"]] += int(event.get("dur", 0) * 1000)
    return count, dur_ns


def test_counts_and_durations_of_every_name_are_exact_multiples(inputs: ModuleType, tmp_path: Path) -> None:
    copies, trace = amplified(inputs, tmp_path, timed_events=1000)
    assert copies == 250
    once = totals(json.loads(TRACE, parse_float=Decimal))
    assert totals(trace) == tuple(Counter({name: n * copies for name, n in part.items()}) for part in once)
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "M"] == ["process_name"]


def test_copies_follow_one_another_and_share_no_ids(inputs: ModuleType, tmp_path: Path) -> None:
    _, trace = amplified(inputs, tmp_path, timed_events=8)
    events = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    first, second = events[:4], events[4:]
    assert min(event["ts"] for event in second) > max(event["ts"] + event.get("dur", 0) for event in first)
    kernel, flow = second[1], second[2]
    assert kernel["args"]["correlation"] == flow["id"] == 9 + 10
    assert kernel["args"]["External id"] == second[0]["args"]["External id"] == 3 + 10
    assert second[0]["args"]["Record function id"] == 0
    assert kernel["args"]["bytes"] == 100
    assert second[0]["name"] == first[0]["name"] == 'aten::mm "ts": 3'


def test_stamps_that_count_from_the_epoch_say_the_same_time(inputs: ModuleType, tmp_path: Path) -> None:
    _, trace = amplified(inputs, tmp_path, epoch=True)
    assert "baseTimeNanoseconds" not in trace
    wanted = [event["ts"] + BASE_NS // 1000 for event in json.loads(TRACE, parse_float=Decimal)["traceEvents"]]
    assert [event["ts"] for event in trace["traceEvents"]] == wanted
    assert len(str(wanted[0])) == 16 + 4


def test_text_of_another_layout_is_refused(inputs: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "compact.json"
    source.write_text(json.dumps(json.loads(TRACE)), encoding="utf-8")
    with pytest.raises(inputs.NotKinetoError):
        inputs.amplify(source, tmp_path / "target.json", timed_events=8)
