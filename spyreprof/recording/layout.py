"""Names inside a recording folder, and the rows of its shards.

Standard library only: the recorder imports this. `docs/recording.md` describes the rows for readers.

Every time in a row is CLOCK_MONOTONIC in nanoseconds (`time.monotonic_ns()`), which all processes of one
Linux host share and no clock correction moves. Each process writes anchors (`t` beside `epoch_ns`) that turn
it into wall-clock time.
"""

from __future__ import annotations

SCHEMA_VERSION = 1
SUFFIX = ".spyreprof"

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
SHARDS = "shards"
TRACES = "traces"
TABLES = "tables"
BENCH = "bench"
# A repeated recording: a manifest that lists the runs, and `runs/1/ ... runs/N/`, each a complete recording.
RUNS = "runs"
MAX_RUNS = 99
CALIBRATION_BEFORE = "calibration-before.json"
CALIBRATION_AFTER = "calibration-after.json"

# Why a request ended, as engines of the OpenAI kind say it; any other word is recorded as "other".
FINISH_REASONS = frozenset(("stop", "length", "abort", "error", "tool_calls"))

# Shard files are `shards/<kind>-<writer>.jsonl`; the writer is `<pid>-<start in hex>` for a profiled process,
# `launcher` for the recorder itself.
KIND_PROCESS = "process"
KIND_STEPS = "steps"
KIND_MODEL = "model"
KIND_WINDOW = "window"
KIND_COMPILE = "compile"
KIND_USAGE = "usage"
KIND_METRICS = "metrics"
KIND_STACKS = "stacks"
KIND_COLLECTIVES = "collectives"
KIND_PHASES = "phases"
KIND_REQUESTS = "requests"
KINDS = frozenset(
    (
        KIND_PROCESS,
        KIND_STEPS,
        KIND_MODEL,
        KIND_WINDOW,
        KIND_COMPILE,
        KIND_USAGE,
        KIND_METRICS,
        KIND_STACKS,
        KIND_COLLECTIVES,
        KIND_PHASES,
        KIND_REQUESTS,
    )
)
