"""The request table: what a load generator's result files say, and what the program marked itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from spyreprof.recording import layout, schema
from spyreprof.recording.rows import BenchResult, RequestRow
from spyreprof.recording.shards import find_shards, read_mixed_rows
from spyreprof.recording.source import READ_ERRORS
from spyreprof.recording.tables import frame
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.recording.source import Source

UNREADABLE_BENCH_FILES = "unreadable_bench_files"
FOREIGN_CLOCK_FILES = "bench_files_on_another_clock"
BACKWARD_REQUESTS = "backward_requests"

MAX_BENCH_BYTES = 2**30
# 292 years: the largest time that int64 nanoseconds hold.
_MAX_S = 9.2e9
# The driver's clock reading and the recorder's own start are taken by different processes.
_SLACK_NS = NS_PER_S
# Reasons with which a marked request counts as failed.
_FAILED = frozenset(("abort", "error"))

Item = TypeVar("Item")


def read_requests(source: Source, start_ns: int | None, end_ns: int | None, counts: Counter[str]) -> pd.DataFrame:
    """The request table, by arrival where it is known.

    Args:
        source: the recording.
        start_ns, end_ns: the recording's span; arrivals outside of it were taken on another machine's clock,
            so the whole file's arrivals are then missing. None switches that side of the check off.
        counts: files that could not be used are counted here.
    """
    rows = _marked_requests(source, counts)
    for name in source.names():
        if name.startswith(layout.BENCH + "/") and name.endswith(".json"):
            result = _read_file(source, name, counts)
            if result is not None:
                requests = _requests(result)
                if not _on_our_clock(requests, start_ns, end_ns):
                    counts[FOREIGN_CLOCK_FILES] += 1
                    for request in requests:
                        request.arrival_ns = None
                rows.extend(requests)
    table = frame(
        schema.REQUESTS,
        {field: [getattr(row, field) for row in rows] for field in _Request.__struct_fields__},
    )
    ordered: pd.DataFrame = table.sort_values("arrival_ns", kind="stable", ignore_index=True, na_position="last")
    return ordered


class _Request(msgspec.Struct):
    """One row; the fields are columns of the table."""

    arrival_ns: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_ns: int | None
    e2e_ns: int | None
    itl_mean_ns: float | None
    itl_max_ns: float | None
    failed: bool | None
    source: str = "bench_result"
    queue_ns: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    max_tokens: int | None = None
    finish_reason: str | None = None
    preemptions: int | None = None


def _marked_requests(source: Source, counts: Counter[str]) -> list[_Request]:
    """The requests that programs marked with `spyreprof_agent.request`, or that a hook found."""
    found: list[_Request] = []
    for shard in find_shards(source, layout.KIND_REQUESTS):
        for row in read_mixed_rows(source, shard.name, {"request": RequestRow}, counts):
            moments = [moment for moment in (row.t0, row.ts, row.tf, row.t1) if moment is not None]
            if moments != sorted(moments):
                counts[BACKWARD_REQUESTS] += 1
            else:
                found.append(_marked(row))
    return found


def _marked(row: RequestRow) -> _Request:
    gap_ns: float | None = None
    if row.t1 is not None and row.tf is not None and row.output is not None and row.output > 1:
        gap_ns = (row.t1 - row.tf) / (row.output - 1)
    return _Request(
        arrival_ns=row.t0,
        prompt_tokens=row.prompt,
        output_tokens=row.output,
        ttft_ns=row.tf - row.t0 if row.tf is not None else None,
        e2e_ns=row.t1 - row.t0 if row.t1 is not None else None,
        itl_mean_ns=gap_ns,
        itl_max_ns=None,
        failed=row.reason in _FAILED if row.t1 is not None else None,
        source="agent",
        queue_ns=row.ts - row.t0 if row.ts is not None else None,
        cached_tokens=row.cached,
        reasoning_tokens=row.reasoning,
        max_tokens=row.max_tokens,
        finish_reason=_reason(row.reason),
        preemptions=row.preemptions,
    )


def _read_file(source: Source, name: str, counts: Counter[str]) -> BenchResult | None:
    try:
        with source.open(name) as file:
            text = file.read(MAX_BENCH_BYTES)
        try:
            return msgspec.json.decode(text, type=BenchResult)
        except msgspec.DecodeError:
            # Python's own writer spells missing statistics NaN, which only Python's own reader takes.
            return msgspec.convert(json.loads(text), type=BenchResult)
    except (*READ_ERRORS, msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        counts[UNREADABLE_BENCH_FILES] += 1
        return None


def _requests(result: BenchResult) -> list[_Request]:
    lists: tuple[Sequence[object] | None, ...] = (
        result.input_lens,
        result.output_lens,
        result.ttfts,
        result.itls,
        result.start_times,
        result.errors,
        result.reasoning_lens,
        result.max_tokens,
        result.finish_reasons,
    )
    return [_request(result, index) for index in range(max((len(a) for a in lists if a), default=0))]


def _request(result: BenchResult, index: int) -> _Request:
    error = _item(result.errors, index)
    output_tokens = _item(result.output_lens, index)
    ttft_s = _item(result.ttfts, index)
    gaps_s = [gap for gap in _item(result.itls, index) or [] if 0 <= gap < _MAX_S]
    # An error is an empty text (or false) for a request that completed.
    failed = bool(error) if result.errors is not None else None
    # The generator writes 0 where no first token came.
    if failed or not ttft_s:
        ttft_s = None
    return _Request(
        arrival_ns=_to_ns(_item(result.start_times, index)),
        prompt_tokens=_count(_item(result.input_lens, index)),
        output_tokens=_count(output_tokens),
        ttft_ns=_to_ns(ttft_s),
        e2e_ns=_to_ns(ttft_s + math.fsum(gaps_s)) if ttft_s is not None else None,
        itl_mean_ns=math.fsum(gaps_s) / len(gaps_s) * NS_PER_S if gaps_s else None,
        itl_max_ns=max(gaps_s) * NS_PER_S if gaps_s else None,
        failed=failed,
        reasoning_tokens=_count(_item(result.reasoning_lens, index)),
        max_tokens=_count(_item(result.max_tokens, index)),
        finish_reason=_reason(_item(result.finish_reasons, index)),
    )


def _item(values: Sequence[Item | None] | None, index: int) -> Item | None:
    return values[index] if values is not None and index < len(values) else None


def _reason(text: str | None) -> str | None:
    """One of the words that are common knowledge: a recording may have been written by anybody."""
    if not text:
        return None
    return text if text in layout.FINISH_REASONS else "other"


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < 2**63 else None


def _to_ns(seconds: float | None) -> int | None:
    return round(seconds * NS_PER_S) if seconds is not None and 0 <= seconds < _MAX_S else None


def _on_our_clock(requests: list[_Request], start_ns: int | None, end_ns: int | None) -> bool:
    arrivals = [request.arrival_ns for request in requests if request.arrival_ns is not None]
    if not arrivals:
        return True
    after_start = start_ns is None or min(arrivals) >= start_ns - _SLACK_NS
    return after_start and (end_ns is None or max(arrivals) <= end_ns + _SLACK_NS)
