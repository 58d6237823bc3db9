"""Two runs that may be compared in every respect; a test changes only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from report_builders import EVIDENCE, LOAD, PHASES, THROUGHPUT, finished_report

from spyreprof.findings import Evidence
from spyreprof.report.diff.compare import compare
from spyreprof.report.diff.model import Change, Condition, Diff
from spyreprof.report.model import MetricNoise, NoiseFloor, Public, Rate, Report

HITS = Evidence(
    id="e7",
    metric="prefix_cache.hit_ratio",
    value=0.1,
    unit="ratio",
    origin="measured",
    method="prompt tokens found in the prefix cache over prompt tokens looked up",
    source="/metrics counters",
)
SETTINGS: dict[str, Any] = {"max_num_seqs": 8, "prefix_caching": True, "kv_blocks": 1000}


def run(
    name: str = "a1", *, tokens_per_s: float = 174.857, settings: dict[str, Any] | None = None, **changes: Any
) -> Report:
    """A run of `finished_report`; any field of a report, and these of its conditions, may be changed."""
    of_conditions = {key: changes.pop(key) for key in tuple(changes) if key in CONDITIONS}
    report = finished_report(
        evidence=(*EVIDENCE, HITS),
        settings={**SETTINGS, **(settings or {})},
        throughput=msgspec.structs.replace(
            THROUGHPUT, output_tokens=Rate(per_s=tokens_per_s, source="engine steps of the steady window")
        ),
    )
    report = msgspec.structs.replace(
        report,
        run=msgspec.structs.replace(report.run, run_id=Public(name)),
        conditions=msgspec.structs.replace(report.conditions, **of_conditions),
    )
    return msgspec.structs.replace(report, **changes)


CONDITIONS = ("hardware", "device_kind", "device_count", "model", "parameter_bytes", "precision", "batch", "context",
              "quantisation", "software")  # fmt: skip


def compared(b: Report, a: Report | None = None, *, shared: bool = False) -> Diff:
    return compare(a or run("a1"), b, shared_redactor=shared)


def condition(diff: Diff, name: str) -> Condition:
    return next(row for row in diff.conditions if row.name == name)


def change(diff: Diff, metric: str = "output_tokens_per_s") -> Change:
    return next(row for row in diff.changes if row.metric == metric)


def repeats(values: Sequence[float], metric: str = "output_tokens_per_s") -> NoiseFloor:
    """A noise floor of one metric."""
    noise = MetricNoise(
        metric=metric,
        unit="tokens/s",
        source="engine steps of the steady window",
        values=tuple(values),
        median=sorted(values)[len(values) // 2],
        relative_spread=None,
    )
    return NoiseFloor(runs=tuple(range(1, len(values) + 1)), metrics=(noise,), meaning="")


__all__ = ["LOAD", "PHASES", "change", "compared", "condition", "repeats", "run"]
