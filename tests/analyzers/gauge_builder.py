"""Pages of metrics as they are polled twice a second: gauges that go from point to point, counters at a rate."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from engine_builder import table

from spyreprof.findings import Advice, Diagnosis, Finding
from spyreprof.recording.schema import COUNTERS, POLLS, REQUESTS, STEPS, USAGE, AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose

S = 1_000_000_000
POLL_NS = S // 2
RUNNING, WAITING, KV = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
SETTINGS = EngineSettings(
    max_num_seqs=64, max_num_batched_tokens=8192, kv_blocks=25_000, block_size=16, source="/metrics"
)
# Finished requests that waited most of their time.
QUEUED = {
    "vllm:generation_tokens_total": 900.0,
    "vllm:prompt_tokens_total": 300.0,
    "vllm:num_preemptions_total": 0.0,
    "vllm:e2e_request_latency_seconds_count": 2.0,
    "vllm:request_queue_time_seconds_sum": 60.0,
    "vllm:request_prefill_time_seconds_sum": 1.0,
    "vllm:request_decode_time_seconds_sum": 30.0,
}

Points = float | list[float]


def page(
    gauges: dict[str, Points],
    rates: dict[str, float] | None = None,
    *,
    seconds: float = 120,
    engine: int | None = 0,
    endpoint: int = 0,
    labels: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of the counter table: a gauge's points are spread evenly, a counter rises by its rate per second."""
    times = np.arange(0, int(seconds * S), POLL_NS, dtype=np.int64)
    own = ({"engine": str(engine)} if engine is not None else {}) | (labels or {})
    values = {
        name: np.interp(
            times, np.linspace(0, times[-1], np.size(points)), np.atleast_1d(np.asarray(points, dtype=float))
        )
        for name, points in gauges.items()
    }
    values |= {name: per_s * times / S for name, per_s in (rates or {}).items()}
    return [
        {"time_ns": int(time_ns), "endpoint": endpoint, "name": name, "labels": json.dumps(own, sort_keys=True),
         "value": float(value)}
        for name, column in values.items()
        for time_ns, value in zip(times, column, strict=True)
    ]  # fmt: skip


def polled(rows: list[dict[str, Any]], **changes: Any) -> AnalysisInputs:
    """A recording of polled pages and nothing else."""
    rows = sorted(rows, key=lambda row: row["time_ns"])
    end_ns = rows[-1]["time_ns"] + POLL_NS
    times = sorted({(row["time_ns"], row["endpoint"]) for row in rows})
    made = AnalysisInputs(
        steps=table(STEPS, []),
        requests=table(REQUESTS, []),
        counters=table(COUNTERS, rows),
        usage=table(USAGE, []),
        polls=table(POLLS, [{"time_ns": time_ns, "endpoint": endpoint, "ok": True} for time_ns, endpoint in times]),
        recording_start_ns=0,
        recording_end_ns=end_ns,
        finished=True,
        settings=SETTINGS,
        device_kind="cuda",
    )
    return replace(made, **changes)


def state(
    running: Points, waiting: Points, kv: Points | None, rates: dict[str, float] | None = None, **changes: Any
) -> AnalysisInputs:
    """One engine's page."""
    gauges: dict[str, Points] = {RUNNING: running, WAITING: waiting}
    if kv is not None:
        gauges[KV] = kv
    seconds = changes.pop("seconds", 120)
    return polled(page(gauges, QUEUED if rates is None else rates, seconds=seconds), **changes)


def without(made: AnalysisInputs, *names: str) -> AnalysisInputs:
    """The same page less some families."""
    return replace(made, counters=made.counters[~made.counters["name"].isin(names)])


def renamed(made: AnalysisInputs, names: dict[str, str]) -> AnalysisInputs:
    """The same page with other names for its samples."""
    counters = made.counters.copy()
    counters["name"] = pd.array([names.get(name, name) for name in counters["name"]], dtype="string")
    return replace(made, counters=counters)


def finding(made: AnalysisInputs | Diagnosis, rule: str) -> Finding | None:
    """The finding of a rule; None where it stays silent."""
    found = diagnose(made) if isinstance(made, AnalysisInputs) else made
    return next((one for one in found.findings if one.id == rule), None)


def advice(found: Finding | None) -> dict[str, Advice]:
    """Advice of a finding by setting."""
    return {one.setting: one for one in found.advice} if found is not None else {}
