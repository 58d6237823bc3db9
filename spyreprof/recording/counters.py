"""The counter table, from polled Prometheus pages, and the questions that analyzers ask of it.

Only samples that changed are stored, so a value holds until the next row of its series. Functions here know
the older names of metrics, but never add an old and a new name together: both count the same thing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from spyreprof.recording import layout, schema
from spyreprof.recording.rows import MetricsRow
from spyreprof.recording.schema import EngineKey
from spyreprof.recording.shards import find_shards, read_rows
from spyreprof.recording.tables import frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.recording.source import Source

GARBAGE_METRIC_LINES = "garbage_metric_lines"

# New name -> names of older vLLM versions that mean the same.
OLDER_NAMES: dict[str, tuple[str, ...]] = {
    "vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc",),
    "vllm:prefix_cache_queries": ("vllm:gpu_prefix_cache_queries",),
    "vllm:prefix_cache_hits": ("vllm:gpu_prefix_cache_hits",),
    "vllm:inter_token_latency_seconds_sum": ("vllm:time_per_output_token_seconds_sum",),
    "vllm:inter_token_latency_seconds_count": ("vllm:time_per_output_token_seconds_count",),
    "vllm:inter_token_latency_seconds_bucket": ("vllm:time_per_output_token_seconds_bucket",),
}
# Three polls: one may be late and the one after it slow, and the gauges of the last answer still stand.
ANSWER_HOLDS_NS = 1_500_000_000
# Ray exports vLLM's metrics under a prefix of its own.
_RAY = "ray_"
# Labels that tell engines of one page apart.
_IDENTITY = ("engine", "model_name", "WorkerId", "ReplicaId", "instance", "pod")
_MOST_ENGINES = 128
_GAUGES_OF_AN_ENGINE = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def read_counters(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The counter table, ordered by time. Lines that are no samples are counted and cost nothing else."""
    time_ns: list[int] = []
    endpoint: list[int] = []
    names: list[str] = []
    labels: list[str] = []
    values: list[float] = []
    series = _SeriesNames()
    for shard in find_shards(source, layout.KIND_METRICS):
        for row in read_rows(source, shard.name, MetricsRow, counts):
            for line in row.lines:
                if not line or line.startswith("#") or line.isspace():
                    continue
                sample = _sample(line, series)
                if sample is None:
                    counts[GARBAGE_METRIC_LINES] += 1
                    continue
                time_ns.append(row.t)
                endpoint.append(row.endpoint)
                names.append(sample[0])
                labels.append(sample[1])
                values.append(sample[2])
    table = frame(
        schema.COUNTERS,
        {"time_ns": time_ns, "endpoint": endpoint, "name": names, "labels": labels, "value": values},
    )
    ordered: pd.DataFrame = table.sort_values("time_ns", kind="stable", ignore_index=True)
    return ordered


def read_polls(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The poll table, ordered by time.

    Recorders before it was noted wrote a row only when something changed. They never wrote a partial row without
    lines, so a recording without one has no poll table.
    """
    rows: list[tuple[int, int, bool]] = []
    noted = False
    for shard in find_shards(source, layout.KIND_METRICS):
        for row in read_rows(source, shard.name, MetricsRow, counts):
            rows.append((row.t, row.endpoint, row.ok))
            noted = noted or not (row.lines or row.full)
    kept = sorted(rows) if noted else []
    return frame(
        schema.POLLS,
        {"time_ns": [row[0] for row in kept], "endpoint": [row[1] for row in kept], "ok": [row[2] for row in kept]},
    )


def answered(polls: pd.DataFrame | None, endpoint: int, time_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """At which times, shape (n,), the last answer of an endpoint is recent enough to hold still.

    All of them where the polls were not noted.
    """
    if polls is None or polls.empty:
        return np.ones(len(time_ns), dtype=np.bool_)
    good = polls[(polls["endpoint"] == endpoint) & polls["ok"]]["time_ns"].to_numpy(dtype=np.int64)
    if len(good) == 0:
        return np.zeros(len(time_ns), dtype=np.bool_)
    last = np.searchsorted(good, time_ns, side="right") - 1
    recent: NDArray[np.bool_] = (last >= 0) & (time_ns - good[np.maximum(last, 0)] <= ANSWER_HOLDS_NS)
    return recent


class _SeriesNames:
    """Parses `name{labels}` once per distinct text: a page repeats the same few hundred for hours."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str] | None] = {}

    def __getitem__(self, text: str) -> tuple[str, str] | None:
        if text not in self._known:
            if len(self._known) > 1_000_000:
                self._known.clear()
            self._known[text] = _parse_series(text)
        return self._known[text]


def _parse_series(text: str) -> tuple[str, str] | None:
    try:
        for family in text_string_to_metric_families(f"{text} 0\n"):
            for sample in family.samples:
                if sample.name and not any(character.isspace() for character in sample.name):
                    return sample.name, json.dumps(sample.labels, sort_keys=True)
    # The parser raises whatever its string handling meets on text that is not a sample.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        pass
    return None


def _sample(line: str, series: _SeriesNames) -> tuple[str, str, float] | None:
    brace = line.rfind("}")
    if brace >= 0:
        text, rest = line[: brace + 1], line[brace + 1 :].split()
    else:
        text, *rest = line.split()
    # A value, and perhaps a time stamp.
    if len(rest) not in (1, 2):
        return None
    try:
        value = float(rest[0])
    except ValueError:
        return None
    name = series[text]
    return (*name, value) if name else None


def series(counters: pd.DataFrame, name: str, labels: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The values of a metric over time, carried forward.

    Args:
        counters: the counter table.
        name: metric in its current spelling; `_total`, Ray's prefix and older names are found too.
        labels: only series that carry all of these.

    Returns:
        One column per series, named (endpoint, labels JSON); the index is `time_ns` of every change of any of
        them, ascending. NaN before a series' first sample, and where the engine says "off" with a hit rate
        of -1. Without columns when the metric is absent.
    """
    found = _select(counters, name, labels)
    if found.empty:
        nothing: pd.DataFrame = pd.DataFrame(index=pd.Index([], dtype="int64", name="time_ns"))
        return nothing
    values = found["value"]
    if name.endswith("_hit_rate"):
        values = values.where(values != -1.0)
    wide = (
        found.assign(value=values)
        .drop_duplicates(["time_ns", "endpoint", "labels"], keep="last")
        .pivot(index="time_ns", columns=["endpoint", "labels"], values="value")
        .sort_index()
    )
    carried: pd.DataFrame = wide.ffill()
    return carried


def delta(
    counters: pd.DataFrame,
    name: str,
    labels: Mapping[str, str] | None = None,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
) -> float | None:
    """How much a counter, or a histogram's `_sum`, `_count` or `_bucket`, rose; summed over its series.

    A counter that falls was reset by a restart of the server, and counts on from zero. A series that first
    shows up after the first poll of its endpoint was created in between, and began at zero.

    Args:
        counters: the counter table.
        name: metric, as for `series`.
        labels: only series that carry all of these.
        start_ns, end_ns: from the value in force at `start_ns` to the value in force at `end_ns`; None is the
            first and the last poll.

    Returns:
        None when the metric is absent, or was not polled before `end_ns`.
    """
    found = _select(counters, name, labels)
    found = found[np.isfinite(found["value"])]
    if end_ns is not None:
        found = found[found["time_ns"] <= end_ns]
    if found.empty:
        return None
    first_poll = counters.groupby("endpoint")["time_ns"].min()
    total = 0.0
    for (endpoint, _labels), one in found.groupby(["endpoint", "labels"], sort=False):
        values = one["value"].to_numpy(dtype="float64")
        times = one["time_ns"].to_numpy(dtype="int64")
        before = int(np.searchsorted(times, start_ns, side="right")) if start_ns is not None else 0
        if before:
            values = values[before - 1 :]
        elif times[0] > first_poll[endpoint]:
            values = np.concatenate(([0.0], values))
        rises = np.diff(values)
        total += float(np.where(rises >= 0, rises, values[1:]).sum())
    return total


def _select(counters: pd.DataFrame, name: str, labels: Mapping[str, str] | None) -> pd.DataFrame:
    for candidate in _spellings(name):
        found: pd.DataFrame = counters[counters["name"] == candidate]
        if found.empty:
            continue
        if labels:
            wanted = {text for text in found["labels"].unique() if _matches(text, labels)}
            found = found[found["labels"].isin(wanted)]
        return found
    nothing: pd.DataFrame = counters.iloc[:0]
    return nothing


def _spellings(name: str) -> Iterator[str]:
    for base in (name, *OLDER_NAMES.get(name.removesuffix("_total"), ())):
        for spelling in (base, f"{base}_total"):
            yield spelling
            yield _RAY + spelling


def _matches(labels_json: str, wanted: Mapping[str, str]) -> bool:
    have = json.loads(labels_json)
    return all(have.get(key) == value for key, value in wanted.items())


def exported_engines(counters: pd.DataFrame) -> tuple[EngineKey, ...]:
    """The engines that the polled pages show, in order: one for each set of labels of the scheduler's gauges.

    A page without these gauges counts by the `engine` labels of whatever it has of vLLM's.
    """
    names = {spelling for name in _GAUGES_OF_AN_ENGINE for spelling in _spellings(name)}
    of_vllm = [name for name in counters["name"].unique() if name.removeprefix(_RAY).startswith("vllm:")]
    vllm = counters[counters["name"].isin(of_vllm)]
    found: set[EngineKey] = set()
    for endpoint, rows in vllm.groupby("endpoint"):
        chosen = rows[rows["name"].isin(names)]
        telling = (chosen if len(chosen) else rows)["labels"].unique()
        keys = {EngineKey(int(endpoint), _identity(text)) for text in telling}
        labelled = {key for key in keys if key.labels}
        found |= labelled or keys
    if len(found) > _MOST_ENGINES:
        return ()  # labels of something else, of which there is no end
    return tuple(sorted(found, key=lambda key: (key.endpoint, *(_in_number_order(value) for _, value in key.labels))))


def of_engine(counters: pd.DataFrame, key: EngineKey, keys: tuple[EngineKey, ...]) -> pd.DataFrame:
    """The samples of one engine: of its page, without those of others, and without those that are of several.

    Args:
        counters: the counter table.
        key: the engine.
        keys: all engines, from `exported_engines`.
    """
    page = counters[counters["endpoint"] == key.endpoint]
    beside = [other for other in keys if other != key and other.endpoint == key.endpoint]
    mine, wanted = set(), dict(key.labels)
    for text in page["labels"].unique():
        have = dict(_identity(text))
        fits = all(wanted.get(name, value) == value for name, value in have.items())
        shared = any(all(dict(one.labels).get(name, value) == value for name, value in have.items()) for one in beside)
        if fits:
            mine.add((text, shared))
    alone = page["labels"].isin({text for text, shared in mine if not shared})
    # settings hold for all engines of the page that do not state their own
    common = page["labels"].isin({text for text, shared in mine if shared}) & page["name"].str.endswith("_info")
    chosen: pd.DataFrame = page[alone | common]
    return chosen


def _identity(labels_json: str) -> tuple[tuple[str, str], ...]:
    have = json.loads(labels_json)
    return tuple((name, str(have[name])) for name in _IDENTITY if name in have)


def _in_number_order(text: str) -> tuple[int, str]:
    return (int(text), text) if text.isascii() and text.isdigit() and len(text) < 10 else (10**10, text)


def info_labels(counters: pd.DataFrame, name: str) -> dict[str, str] | None:
    """The labels of an `_info` metric, whose value says nothing; None when it is absent."""
    found = _select(counters, name, None)
    return dict(json.loads(found["labels"].iloc[-1])) if not found.empty else None
