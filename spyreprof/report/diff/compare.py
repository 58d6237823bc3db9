"""From two reports to their comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from spyreprof import __version__
from spyreprof.findings import Finding, Phase, Severity
from spyreprof.report.diff import thresholds
from spyreprof.report.diff.attribution import attribute
from spyreprof.report.diff.changes import OUTPUT_TOKENS, compare_metrics, obstacles
from spyreprof.report.diff.conditions import compare_conditions
from spyreprof.report.diff.model import (
    SCHEMA_VERSION,
    Change,
    Condition,
    Diff,
    DiffVerdict,
    Fate,
    FindingChange,
    Side,
)
from spyreprof.report.diff.pair import Pair, state_of_texts
from spyreprof.report.diff.settings import COMMAND, SETTING, SOFTWARE, changed_options
from spyreprof.report.figures import spell_ratio
from spyreprof.report.model import Producer, Public, Report
from spyreprof.report.redact import own_words
from spyreprof.report.writer import canonical

_SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high")
_FATES: tuple[Fate, ...] = ("appeared", "vanished", "more_severe", "less_severe", "same")
_METRICS_NAMED = 3


def compare(a: Report, b: Report, *, shared_redactor: bool = False) -> Diff:
    """Compare the run before with the run after.

    Args:
        a, b: their reports.
        shared_redactor: both were made with one redactor, so that equal pseudonyms stand for equal texts.
    """
    pair = Pair(a, b, shared_redactor)
    conditions = compare_conditions(pair)
    changes = compare_metrics(pair, conditions)
    attribution, missing = None, None
    if obstacles(("all", "requests"), conditions):
        missing = "rates cannot be compared"
    else:
        noise = next((change.noise for change in changes if change.metric == OUTPUT_TOKENS), None)
        attribution, missing = attribute(a, b, noise)
    return seal(
        Diff(
            schema_version=SCHEMA_VERSION,
            producer=Producer(name="spyreprof", version=__version__),
            diff_id="",
            a=_side(a),
            b=_side(b),
            verdict=_verdict(pair, conditions, changes),
            conditions=conditions,
            changes=changes,
            attribution=attribution,
            attribution_missing=missing,
            findings=_findings(a.findings, b.findings),
            thresholds=thresholds.ALL,
        )
    )


def seal(diff: Diff) -> Diff:
    """Bring a comparison into its canonical form, as `spyreprof.report.writer.seal` does a report."""
    content = canonical(msgspec.to_builtins(diff), "", [])
    content["diff_id"] = ""
    unnamed = msgspec.convert(content, Diff)
    fields = msgspec.to_builtins(unnamed)
    del fields["diff_id"]
    digest = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
    return msgspec.structs.replace(unnamed, diff_id=f"sha256:{digest}")


def dump(diff: Diff) -> bytes:
    """Encode a comparison: UTF-8, two-space indent, final newline."""
    return msgspec.json.format(msgspec.json.encode(diff), indent=2) + b"\n"


def _side(report: Report) -> Side:
    return Side(
        report_id=report.report_id,
        run_id=report.run.run_id,
        started=report.run.started,
        runs=len(report.noise_floor.runs) if report.noise_floor is not None else 1,
        primary=report.verdict.primary,
        confidence=report.verdict.confidence,
        headline=report.verdict.headline,
    )


# ---- verdict


def _verdict(pair: Pair, conditions: Sequence[Condition], changes: Sequence[Change]) -> DiffVerdict:
    tested = tuple(_tested(condition) for condition in conditions if condition.bearing == "under_test")
    of_requests, of_steps = (obstacles(("all", needed), conditions) for needed in ("requests", "steps"))
    withheld_by = tuple(dict.fromkeys((*of_requests, *of_steps)))
    judged = [change for change in changes if change.outcome != "withheld"]
    if of_requests and of_steps:
        known = [condition for condition in conditions if condition.name in withheld_by]
        return DiffVerdict(
            outcome="withheld",
            headline=f"No verdict. {_complaint(known)}",
            reason="Two runs are compared only under the same conditions; what is unknown may differ.",
            under_test=tested,
            withheld_by=withheld_by,
        )
    gains = [change for change in judged if change.outcome == "faster"]
    losses = [change for change in judged if change.outcome == "slower"]
    if _is_one_run(pair):
        return DiffVerdict(
            outcome="cannot_tell",
            headline="A and B are the same run.",
            reason="Compare two runs.",
            under_test=(),
            withheld_by=withheld_by,
        )
    subject = f"Under test: {'; '.join(tested)}." if tested else "No known condition differs."
    if of_requests:
        subject += f" Rates and latencies cannot be compared: {_listed(of_requests)}."
    elif of_steps and not tested:
        subject += f" Single steps cannot be compared: {_listed(of_steps)}."
    if gains and losses:
        told = f"B gains and loses: {_named(gains)}, but {_named(losses)}."
        return DiffVerdict(
            outcome="trade_off", headline=told, reason=subject, under_test=tested, withheld_by=withheld_by
        )
    if gains or losses:
        return DiffVerdict(
            outcome="faster" if gains else "slower",
            headline=f"B is {'faster' if gains else 'slower'} than A: {_named(gains or losses)}.",
            reason=subject,
            under_test=tested,
            withheld_by=withheld_by,
        )
    why = "every change is within the noise" if judged else "nothing was measured on both sides"
    return DiffVerdict(
        outcome="cannot_tell",
        headline=f"Cannot tell whether B is faster than A: {why}.",
        reason=subject,
        under_test=tested,
        withheld_by=withheld_by,
    )


def _is_one_run(pair: Pair) -> bool:
    ids = (pair.a.run.run_id, pair.b.run.run_id)
    return state_of_texts(pair, *ids)[0] == "same" and pair.a.run.started == pair.b.run.started


def _tested(condition: Condition) -> Public:
    if condition.name == COMMAND:
        options = changed_options(condition.a, condition.b)
        return own_words("command: " + (", ".join(options) if options else "it differs in a part that is no option"))
    name = condition.name.removeprefix(SETTING).removeprefix(SOFTWARE)
    return own_words(f"{name} {condition.a} -> {condition.b}")


def _complaint(conditions: Sequence[Condition]) -> str:
    named = {state: [c.name for c in conditions if c.state == state] for state in ("differs", "unknown")}
    sentences = [f"Different: {_listed(named['differs'])}."] if named["differs"] else []
    return " ".join([*sentences, f"Unknown: {_listed(named['unknown'])}."] if named["unknown"] else sentences)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _named(changes: Sequence[Change]) -> str:
    named = [f"{change.metric.removesuffix('_per_s').replace('_', ' ')} {spell_range(change)}" for change in changes]
    more = len(named) - _METRICS_NAMED
    return ", ".join(named[:_METRICS_NAMED]) + (f" and {more} more" if more > 0 else "")


def spell_range(change: Change) -> str:
    """A change with its range: "+52 % (+38 % to +67 %)"."""
    if change.change is None or change.low is None or change.high is None:
        return ""
    return f"{spell_ratio(change.change)} ({spell_ratio(change.low)} to {spell_ratio(change.high)})"


# ---- findings


def _findings(a: Sequence[Finding], b: Sequence[Finding]) -> tuple[FindingChange, ...]:
    before, after = _by_key(a), _by_key(b)
    found = [_finding(before.get(key), after.get(key), {**before, **after}[key]) for key in {**before, **after}]
    return tuple(sorted(found, key=lambda change: _FATES.index(change.state)))


def _by_key(findings: Sequence[Finding]) -> dict[tuple[str, Phase | None], Finding]:
    # The first of several is the most severe.
    return {(finding.id, finding.phase): finding for finding in reversed(findings)}


def _finding(before: Finding | None, after: Finding | None, either: Finding) -> FindingChange:
    severities = (before.severity if before is not None else None, after.severity if after is not None else None)
    return FindingChange(
        id=either.id,
        title=either.title,
        phase=either.phase,
        state=_state(*severities),
        a=severities[0],
        b=severities[1],
    )


def _state(a: Severity | None, b: Severity | None) -> Fate:
    if a is None:
        return "appeared"
    if b is None:
        return "vanished"
    change = _SEVERITIES.index(b) - _SEVERITIES.index(a)
    return "more_severe" if change > 0 else "less_severe" if change < 0 else "same"
