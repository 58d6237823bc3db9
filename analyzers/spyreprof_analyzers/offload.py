"""Weights that are kept in host memory and cross the link at each step, as the engine's labels tell."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof_analyzers.book import EvidenceBook

_INFO, _LABEL = "vllm:cache_config_info", "cpu_offload_gb"
_BYTES_PER_GIB = 2**30


def offloaded_bytes(counters: pd.DataFrame) -> int | None:
    """Bytes of weights per device that the engine keeps in host memory; None where no label tells."""
    told = []
    for labels in counters.loc[counters["name"] == _INFO, "labels"].unique():
        try:
            value = float(json.loads(labels).get(_LABEL, "nan"))
        except (ValueError, TypeError, AttributeError):
            continue
        if math.isfinite(value) and 0 <= value < 2**20:
            told.append(round(value * _BYTES_PER_GIB))
    return max(told, default=None)


def leave_offload_open(counters: pd.DataFrame, book: EvidenceBook) -> None:
    """Say that weights lie in host memory, which steps alone cannot tell from slow kernels."""
    size = offloaded_bytes(counters)
    if size:
        book.add("offload.weight_bytes", size, "bytes", "measured", source="/metrics labels", window="settings",
                 method="cpu_offload_gb of vllm:cache_config_info")  # fmt: skip
        book.leave_open(
            "what reading weights from host memory costs",
            f"the engine offloads {size / _BYTES_PER_GIB:.3g} GiB of weights to host memory, which cross the host link "
            "at each step",
            "record with a profiler window, in which copies show, or once without CPU offload",
        )
