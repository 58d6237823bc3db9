"""What is known of the model and of the engine's settings in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from spyreprof.recording import layout
from spyreprof.recording.counters import exported_engines, info_labels, of_engine
from spyreprof.recording.rows import CompileRow, ModuleRow
from spyreprof.recording.schema import EngineSettings, Interval, ModelFacts
from spyreprof.recording.shards import find_shards, read_mixed_rows, read_rows

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.recording.schema import EngineKey
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
    """The settings that one engine exposes as labels of its `_info` metrics; one that is not understood is missing."""
    labels = {
        **(info_labels(counters, _CACHE_CONFIG) or {}),
        **(info_labels(counters, _scheduler_config(counters)) or {}),
    }
    if not labels:
        return EngineSettings()
    read = {field: reads(labels[label]) for label, (field, reads) in _SETTINGS.items() if label in labels}
    return EngineSettings(source="/metrics", **read)


def settings_of_engines(
    counters: pd.DataFrame,
) -> tuple[EngineSettings, tuple[tuple[EngineKey, EngineSettings], ...]]:
    """What all engines of the pages agree on, and, where they are several, the settings of each."""
    keys = exported_engines(counters)
    if len(keys) < 2:
        return engine_settings(counters), ()
    each = tuple((key, engine_settings(of_engine(counters, key, keys))) for key in keys)
    first = each[0][1]
    shared = {
        field.name: getattr(first, field.name)
        for field in fields(EngineSettings)
        if all(getattr(settings, field.name) == getattr(first, field.name) for _, settings in each)
    }
    return EngineSettings(**shared), each


def _scheduler_config(counters: pd.DataFrame) -> str:
    """vLLM exposes no scheduler settings; an engine that does prefixes this name with its own."""
    names = counters["name"].unique()
    return next((name for name in sorted(names) if name.endswith(_SCHEDULER_CONFIG)), "")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


def _positive(text: str) -> int | None:
    """A size; 0 stands for one that the engine has not settled yet."""
    return _whole(text) or None


def _yes_no(text: str) -> bool | None:
    return {"True": True, "False": False}.get(text)


def _no_yes(text: str) -> bool | None:
    return {"True": False, "False": True}.get(text)


def _ratio(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 1.0 else None


def _kv_dtype(text: str) -> str | None:
    return text if text in _KV_DTYPES else None


# What vLLM calls the types of cached keys and values; any other text is a stranger's.
_KV_DTYPES = frozenset(
    {
        *("auto", "float16", "bfloat16", "float32", "int8", "int8_per_token_head", "int4_per_token_head", "nvfp4"),
        *("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"),
    }
)
# Label -> the field of the same meaning, and how its text is read.
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "num_gpu_blocks": ("kv_blocks", _positive),
    "block_size": ("block_size", _positive),
    "kv_cache_size_tokens": ("kv_tokens", _positive),
    "enable_prefix_caching": ("prefix_caching", _yes_no),
    "gpu_memory_utilization": ("memory_utilisation_ratio", _ratio),
    "cache_dtype": ("kv_dtype", _kv_dtype),
    "max_num_seqs": ("max_num_seqs", _positive),
    "max_num_batched_tokens": ("max_num_batched_tokens", _positive),
    "max_model_len": ("max_model_len", _positive),
    "long_prefill_token_threshold": ("long_prefill_token_threshold", _whole),
    "scheduler_reserve_full_isl": ("reserve_full_prompt", _yes_no),
    "async_scheduling": ("async_scheduling", _yes_no),
    "stream_interval": ("stream_interval", _positive),
    "tensor_parallel_size": ("tensor_parallel", _positive),
    "pipeline_parallel_size": ("pipeline_parallel", _positive),
    "data_parallel_size": ("data_parallel", _positive),
    "enable_expert_parallel": ("expert_parallel", _yes_no),
    "disable_custom_all_reduce": ("custom_all_reduce", _no_yes),
    "enforce_eager": ("eager", _yes_no),
    "num_speculative_tokens": ("speculative_tokens", _whole),
}
