"""From summaries of files of call stacks to what a report says about them, redacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spyreprof.recording.imported_stacks import KINDS, SAMPLES, UNITS
from spyreprof.report.model import Input
from spyreprof.report.redact import Redactor, own_words
from spyreprof.report.stack_model import FunctionWeight, SamplesOf, StackFileReport, StackProfileReport

if TYPE_CHECKING:
    from spyreprof.recording.imported_stacks import StackFileSummary, StackFunction, StackProfileSummary

# A stored summary may be a stranger's: its kind is a known one, or it stays unnamed.
_OTHER = "unknown"


def stack_reports(summaries: Sequence[StackFileSummary], redactor: Redactor) -> tuple[StackFileReport, ...]:
    """What the report says of each file, in the order given."""
    return tuple(_file(number, summary, redactor) for number, summary in enumerate(summaries, start=1))


def stack_inputs(summaries: Sequence[StackFileSummary]) -> tuple[Input, ...]:
    """An input for each file, with the counts of its samples."""
    return tuple(
        Input(
            kind="stacks",
            counts={
                own_words("profiles_read"): one.profiles_read,
                own_words("samples_read"): one.samples_read,
                own_words("samples_kept"): one.samples_kept,
                own_words("samples_dropped"): sum(one.dropped.values()),
            },
        )
        for one in summaries
    )


def _file(number: int, summary: StackFileSummary, redactor: Redactor) -> StackFileReport:
    return StackFileReport(
        file=number,
        kind=summary.kind if summary.kind in KINDS else _OTHER,
        profiles_read=summary.profiles_read,
        profiles_without_weight=summary.profiles_without_weight,
        profiles_total=summary.profiles_total,
        samples_read=summary.samples_read,
        samples_kept=summary.samples_kept,
        dropped=_dropped(summary.dropped, redactor),
        profiles=tuple(_profile(place, one, redactor) for place, one in enumerate(summary.profiles, start=1)),
    )


def _dropped(counts: Mapping[str, int], redactor: Redactor) -> tuple[SamplesOf, ...]:
    by_number = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(SamplesOf(what=redactor.text("sentence", why), samples=number) for why, number in by_number)


def _profile(number: int, one: StackProfileSummary, redactor: Redactor) -> StackProfileReport:
    return StackProfileReport(
        profile=number,
        name=redactor.optional("sentence", one.name),
        unit=one.unit if one.unit in UNITS.values() else SAMPLES,
        weight=one.weight,
        samples_read=one.samples_read,
        samples_kept=one.samples_kept,
        dropped=_dropped(one.dropped, redactor),
        out_of_order=one.out_of_order,
        crossed=one.crossed,
        unclosed=one.unclosed,
        truncated=one.truncated,
        notes=tuple(redactor.text("sentence", sentence) for sentence in one.quality),
        functions_total=one.functions,
        functions=tuple(_function(function, one.weight, redactor) for function in one.top),
        waiting_weight=one.waiting_weight,
        waiting_ratio=None if one.waiting_weight is None else one.waiting_weight / one.weight,
        waiting_reason=redactor.optional("sentence", one.waiting_reason),
    )


def _function(one: StackFunction, weight: int | float, redactor: Redactor) -> FunctionWeight:
    return FunctionWeight(
        name=redactor.stack_frame(one.function, one.file),
        self_weight=one.self_weight,
        self_ratio=one.self_weight / weight,
        total_weight=one.total_weight,
        total_ratio=one.total_weight / weight,
        waits=one.waits,
    )
