"""Redaction end to end: foreign text in every file of a recording, through reader and analyzers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import MS, SECOND, START_NS, RecordingBuilder, decode_name, mixed_name

from spyreprof import registry
from spyreprof.recording.store import open_recording
from spyreprof.report.build import build_report
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump

CANARY = "Zqcanary"
STEP_MS = 50


def spoiled(value: Any) -> Any:
    """The same JSON with the canary in every text, keys and the words that steer the reader excepted."""
    if isinstance(value, dict):
        return {
            key: part if key in {"k", "state", "n", "file", "device_kind", "lines"} else spoiled(part)
            for key, part in value.items()
        } | {CANARY: CANARY}
    if isinstance(value, list):
        return [spoiled(part) for part in value]
    return f"{CANARY} /home/{CANARY}/x {value}" if isinstance(value, str) else value


def hostile_recording(path: Path) -> Path:
    recording = RecordingBuilder(path)
    recording.process()
    starts = [START_NS + SECOND + i * STEP_MS * MS for i in range(1000)]
    recording.steps(
        (
            start,
            start + STEP_MS * MS - 1,
            mixed_name() if i % 20 == 0 else decode_name(requests=2, seq_len_sum=200 + i),
        )
        for i, start in enumerate(starts)
    )
    recording.steps([(START_NS, START_NS + 1, f"execute_{CANARY}")])
    recording.module(module=CANARY)
    recording.window(state="failed", reason=f"OSError: /home/{CANARY}/trace: {CANARY}")
    recording.metrics(
        (
            start,
            [
                f'vllm:num_requests_running{{engine="0",model_name="{CANARY}"}} 2.0',
                f'vllm:num_requests_waiting{{engine="0",model_name="{CANARY}"}} 5.0',
                f'vllm:kv_cache_usage_perc{{engine="0",model_name="{CANARY}"}} 0.2',
                f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="900",cache_dtype="{CANARY}"}} 1.0',
            ],
        )
        for start in starts[::10]
    )
    recording.usage(
        [
            {
                "t": START_NS + SECOND * i,
                "pid": 4242,
                "ppid": 1,
                "name": CANARY,
                "cpu_ns": SECOND * i,
                "rss_bytes": 10**9,
                "threads": [[4242, CANARY, SECOND * i]],
            }
            for i in range(50)
        ]
    )
    recording.shard(
        "stacks",
        [
            {
                "t0": starts[100],
                "t1": starts[200],
                "pid": 4242,
                "samples": 500,
                "rate_hz": 100,
                "frames": [[f"{CANARY}.run", f"torch/{CANARY}.py"]],
                "threads": [{"thread": "4242", "stacks": [[[0], 400]]}],
            }
        ],
    )
    recording.shard("phases", [{"t0": start, "t1": start + MS, "n": CANARY.lower()} for start in starts[::10]])
    recording.shard(
        "collectives",
        [
            {"t0": start, "t1": start + MS, "op": CANARY, "bytes": 8, "group": 1, "size": 2, "rank": 0, "seq": seq}
            for seq, start in enumerate(starts, start=1)
        ],
    )
    recording.shard("requests", [{"k": "request", "t0": starts[100], "t1": starts[200], "reason": CANARY}])
    recording.bench(
        input_lens=[64] * 40,
        output_lens=[20] * 40,
        ttfts=[0.1] * 40,
        itls=[[0.05] * 19] * 40,
        start_times=[(START_NS + i * SECOND) / 1e9 for i in range(40)],
        errors=[False] * 40,
        generated_texts=[CANARY] * 40,
        model_id=CANARY,
    )
    recording.calibration("before", read_bytes_per_s=9e9)
    recording.calibration("after", read_bytes_per_s=9e9)
    recording.manifest["processes"] = [
        {"writer": "4242-1", "pid": 4242, "opened_ns": START_NS, "closed_ns": None, "closed_how": "x", "python": "3"}
    ]
    recording.manifest["notes"] = ["a note"]
    recording.manifest = spoiled(recording.manifest)
    for name, content in recording.files.items():
        if name.endswith(".jsonl"):
            rows = [json.dumps(spoiled(json.loads(line))).encode() for line in content.splitlines()]
            recording.files[name] = b"\n".join(rows) + b"\n"
        elif name.endswith(".json"):
            recording.files[name] = json.dumps(spoiled(json.loads(content))).encode()
    return recording.write()


@pytest.mark.parametrize("target", [None, 0.02])
def test_no_file_of_a_recording_brings_foreign_text_into_the_report(tmp_path: Path, target: float | None) -> None:
    recording = open_recording(hostile_recording(tmp_path / "run.spyreprof"))
    inputs = recording.analysis_inputs()
    diagnosis = registry.diagnose(inputs, registry.targets(itl_p99_s=target))
    report = build_report(recording, diagnosis, inputs)
    written = dump(report).decode() + render(report, 500, show_all=True)
    assert CANARY.lower() not in written.lower()
    assert str(tmp_path) not in written
    # the recording was read, not refused: what stands in the report comes from it
    assert report.quality.coverage.steps == 1000
    assert report.quality.coverage.requests == 40 + 1
    assert report.quality.coverage.metric_polls
    assert report.redaction.removed
    findings = {finding.id: finding.text for finding in report.findings}
    assert "function-1" in findings["SPY-HST-002"]
    assert "part 1" in findings["SPY-HST-003"]
