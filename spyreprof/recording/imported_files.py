"""What an import leaves of each trace in a recording beside its shards, and reading that back.

A recording may come from a stranger: sizes are limited, and what does not fit its type is damaged.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from spyreprof.recording import layout
from spyreprof.recording.source import READ_ERRORS
from spyreprof.trace.profiled import ProfiledStep

if TYPE_CHECKING:
    from spyreprof.recording.source import Source
    from spyreprof.trace.summary import TraceSummary

MAX_SUMMARY_BYTES = 2**22
MAX_STEPS_BYTES = 2**28
MAX_SUMMARIES = 4096
STEPS_SUFFIX = ".steps.json"

_SUMMARY = re.compile(rf"{layout.TRACES}/(\d{{1,6}})\.summary\.json", re.ASCII)
_LIMIT = 2**63

Read = TypeVar("Read")


def summary_name(number: int) -> str:
    """Where the summary of an imported trace lies in its recording; numbers begin with 1."""
    return f"{layout.TRACES}/{number}.summary.json"


def steps_name(number: int) -> str:
    """Where its steps lie, taken apart."""
    return f"{layout.TRACES}/{number}{STEPS_SUFFIX}"


def events_name(number: int) -> str:
    """The folder of its events."""
    return f"{layout.TRACES}/{number}.events"


def writer_name(number: int) -> str:
    """By which writer its shards are."""
    return f"import-{number}"


def imported_traces(source: Source) -> list[int]:
    """The numbers of the imported traces of a recording, ascending."""
    return sorted(int(match[1]) for name in source.names() if (match := _SUMMARY.fullmatch(name)))[:MAX_SUMMARIES]


def read_summaries(source: Source) -> tuple[tuple[TraceSummary, ...], int]:
    """The summaries of all imported traces in order, and how many are damaged."""
    from spyreprof.trace.summary import TraceSummary

    numbered = sorted((int(match[1]), name) for name in source.names() if (match := _SUMMARY.fullmatch(name)))
    found = [read_stored(source, name, TraceSummary, MAX_SUMMARY_BYTES) for _, name in numbered[:MAX_SUMMARIES]]
    kept = tuple(summary for summary in found if summary is not None)
    return kept, len(numbered) - len(kept)


def read_steps(source: Source, name: str, number: int, writer: str) -> tuple[ProfiledStep, ...] | None:
    """The stored steps of one trace, as those of profiler window `number`; None where they are damaged."""
    steps = read_stored(source, name, tuple[ProfiledStep, ...], MAX_STEPS_BYTES)
    if steps is None or not all(map(_is_plausible, steps)):
        return None
    return tuple(replace(step, window=number, writer=writer) for step in steps)


def read_stored(source: Source, name: str, kind: Any, limit_bytes: int) -> Any:
    """What lies under a name, decoded as `kind`; None where it is absent, too large, or does not fit."""
    if name not in source.names():
        return None
    try:
        with source.open(name) as file:
            text = file.read(limit_bytes + 1)
        return msgspec.json.decode(text, type=kind) if len(text) <= limit_bytes else None
    except (*READ_ERRORS, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_plausible(step: ProfiledStep) -> bool:
    """Whether its numbers fit into columns, and it does not end before it begins."""
    counts = (
        step.context_requests,
        step.context_tokens,
        step.generation_requests,
        step.generation_tokens,
        step.operator_count,
        step.device_busy_ns,
        *(value for total in step.operators for value in (total.ns, total.count, total.ns_with_model)),
    )
    return (
        0 <= step.start_ns <= step.end_ns < _LIMIT
        and -_LIMIT <= step.gap_ns < _LIMIT
        and all(value is None or 0 <= value < _LIMIT for value in counts)
    )
