"""What is known of the model and of the engine's settings in force."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spyreprof.recording import layout
from spyreprof.recording.counters import info_labels
from spyreprof.recording.rows import CompileRow, ModuleRow
from spyreprof.recording.schema import EngineSettings, Interval, ModelFacts
from spyreprof.recording.shards import find_shards, read_mixed_rows, read_rows

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.recording.source import Source

_CACHE_CONFIG = "vllm:cache_config_info"
_SCHEDULER_CONFIG = ":scheduler_config_info"


def read_model(source: Source, counts: Counter[str]) -> ModelFacts:
    """Parameters of the largest module that was called inside steps; its dtype is the one most bytes have."""
    largest: ModuleRow | None = None
    size_bytes = -1
    for shard in find_shards(source, layout.KIND_MODEL):
        for row in read_mixed_rows(source, shard.name, {"module": ModuleRow}, counts):
            if row.parameter_bytes and sum(row.parameter_bytes.values()) > size_bytes:
                largest, size_bytes = row, sum(row.parameter_bytes.values())
    if largest is None or not largest.parameter_bytes:
        return ModelFacts()
    return ModelFacts(
        parameter_bytes=size_bytes,
        embedding_bytes=largest.embedding_bytes,
        dtype=max(largest.parameter_bytes, key=lambda dtype: (largest.parameter_bytes or {})[dtype]),
    )


def read_compiles(source: Source, counts: Counter[str]) -> tuple[Interval, ...]:
    """Compilations by Dynamo, by start."""
    found = [
        Interval(row.t0, row.t1, "compile", shard.writer)
        for shard in find_shards(source, layout.KIND_COMPILE)
        for row in read_rows(source, shard.name, CompileRow, counts)
        if row.t1 >= row.t0
    ]
    return tuple(sorted(found, key=lambda interval: (interval.start_ns, interval.end_ns)))


def engine_settings(counters: pd.DataFrame) -> EngineSettings:
    """The settings that the engine exposes as labels of its `_info` metrics."""
    cache = info_labels(counters, _CACHE_CONFIG) or {}
    scheduler = info_labels(counters, _scheduler_config(counters)) or {}
    if not cache and not scheduler:
        return EngineSettings()
    return EngineSettings(
        max_num_seqs=_whole(scheduler.get("max_num_seqs")),
        max_num_batched_tokens=_whole(scheduler.get("max_num_batched_tokens")),
        kv_blocks=_whole(cache.get("num_gpu_blocks")),
        block_size=_whole(cache.get("block_size")),
        prefix_caching={"True": True, "False": False}.get(cache.get("enable_prefix_caching", "")),
        source="/metrics",
    )


def _scheduler_config(counters: pd.DataFrame) -> str:
    """vLLM exposes no scheduler settings; an engine that does prefixes this name with its own."""
    names = counters["name"].unique()
    return next((name for name in sorted(names) if name.endswith(_SCHEDULER_CONFIG)), "")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 18 else None
