"""One report of several runs of the same command: the median run's, with what the others say beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from spyreprof.findings import BoundClass, Confidence, Verdict
from spyreprof.recording.repeats import RunState
from spyreprof.report.model import Public, RepeatedRun, Report
from spyreprof.report.noise_floor import MIN_RUNS, median_run, noise_floor
from spyreprof.report.redact import own_words
from spyreprof.report.writer import seal

# One run that says something else may be an accident only where at least this many say the same.
AGREEING_FOR_MEDIUM = 3
_ORDER: tuple[Confidence, ...] = ("low", "medium", "high")
_STATES: dict[RunState, str] = {
    "complete": "complete",
    "stopped": "stopped by a signal or a failure of the program",
    "cut_off": "cut off with the recorder",
    "unreadable": "not readable",
}


@dataclass(frozen=True)
class JudgedRun:
    """A run and its report; None where it was not judged."""

    k: int
    state: RunState
    report: Report | None


def report_on_repeats(runs: Sequence[JudgedRun], of: int) -> Report:
    """Take the report of the median run, and put the noise floor and the verdicts of all runs into it.

    The confidence of the verdict falls where another run names another class: to at most low, or to at most medium
    where only one run does so against three or more, or where the others merely could not tell.

    Args:
        runs: all runs of a repeated recording. The reports of complete ones count; without a complete run, the
            last report is taken for want of a better.
        of: how many were asked for.
    """
    complete = {run.k: run.report for run in runs if run.state == "complete" and run.report is not None}
    reports = complete or {run.k: run.report for run in runs if run.report is not None}
    shown = median_run(complete) if complete else max(reports)
    report = reports[shown]
    quality = msgspec.structs.replace(report.quality, notes=(*report.quality.notes, *_notes(runs, len(complete), of)))
    others = {k: other.verdict for k, other in complete.items() if k != shown}
    return seal(
        msgspec.structs.replace(
            report,
            quality=quality,
            verdict=_compared(report.verdict, others),
            repeats=tuple(_entry(run, shown) for run in sorted(runs, key=lambda run: run.k)),
            noise_floor=noise_floor(complete),
        )
    )


def _entry(run: JudgedRun, shown: int) -> RepeatedRun:
    verdict = run.report.verdict if run.report is not None else None
    return RepeatedRun(
        k=run.k,
        state=run.state,
        primary=verdict.primary if verdict is not None else None,
        confidence=verdict.confidence if verdict is not None else None,
        shown=run.k == shown,
    )


def _notes(runs: Sequence[JudgedRun], complete: int, of: int) -> list[Public]:
    notes = [
        own_words(f"Run {run.k} of {of} does not count as a repeat: it was {_STATES[run.state]}.")
        for run in runs
        if run.state != "complete"
    ]
    if len(runs) < of:
        notes.append(own_words(f"{len(runs)} of {of} runs were begun."))
    if complete < MIN_RUNS:
        counted = "one complete run" if complete else "no complete run"
        notes.append(own_words(f"There is {counted}; a noise floor needs two."))
    return notes


def _compared(verdict: Verdict, others: dict[int, Verdict]) -> Verdict:
    """The verdict, less confident where other runs contradict it, and with the reason."""
    differing = {k: other for k, other in others.items() if other.primary != verdict.primary}
    if not differing:
        return verdict
    dissenting = [k for k, other in differing.items() if other.primary != "undetermined"]
    agreeing = 1 + len(others) - len(differing)
    alone = len(dissenting) <= 1 and agreeing >= AGREEING_FOR_MEDIUM
    limit: Confidence = "medium" if alone or not dissenting else "low"
    named = tuple(_differences({k: other.primary for k, other in sorted(differing.items())}))
    confidence = verdict.confidence
    if confidence is not None:
        confidence = min(confidence, limit, key=_ORDER.index)
    return msgspec.structs.replace(
        verdict, confidence=confidence, confidence_reasons=(*named, *verdict.confidence_reasons)
    )


def _differences(primaries: dict[int, BoundClass]) -> list[str]:
    """One sentence for each class that other runs name, or for those that could not tell."""
    sentences = []
    for primary in dict.fromkeys(primaries.values()):
        numbers = [str(k) for k, named in primaries.items() if named == primary]
        runs = f"run{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} of the same command"
        if primary == "undetermined":
            sentences.append(f"{runs} could not be judged")
        else:
            sentences.append(f"{runs} gave another verdict: {primary}")
    return sentences
