"""Output tokens: how long answers are, how many of them a limit cuts short, and how far the limit lies above them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.facts import cite_share
from spyreprof_analyzers.request_log import MIN_FOR_P99, in_window, request_log

if TYPE_CHECKING:
    from spyreprof.findings import Severity, SteadyWindow
    from spyreprof.recording.schema import EngineSettings
    from spyreprof.rules import Rule
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.gauge_findings import GaugeContext
    from spyreprof_analyzers.request_log import RequestLog

# What an answer may need beyond the longest in a hundred that was seen.
MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class OutputTokens:
    """Output of the window's requests, in tokens.

    Attributes:
        requests: whose output is known.
        p50, p95, p99: percentiles; a 99th needs a hundred requests.
        at_limit_share: of the requests whose end is known, those that ended because `max_tokens` was reached; None
            where no end is known.
        ends: requests whose end is known.
        limit_p50: median `max_tokens` of the requests that had one; None where none had.
        limits: requests that had one.
    """

    requests: int
    p50: float
    p95: float
    p99: float | None
    at_limit_share: float | None
    ends: int
    limit_p50: float | None
    limits: int
    output: tuple[float, ...]

    @property
    def limit_that_fits(self) -> int:
        """A tenth above the 99th percentile; above the longest of fewer than a hundred."""
        return math.ceil(max(self.output) * MARGIN if self.p99 is None else self.p99 * MARGIN)


def output_tokens(log: RequestLog | None, window: SteadyWindow) -> OutputTokens | None:
    """Add it up; None where no request of the window says how long its output is."""
    if log is None:
        return None
    known = in_window(log, window) & (log.output_tokens > 0)
    if not known.any():
        return None
    output = log.output_tokens[known]
    ended = log.at_limit[known & ~np.isnan(log.at_limit)]
    limits = log.max_tokens[known & ~np.isnan(log.max_tokens)]
    return OutputTokens(
        requests=len(output),
        p50=float(np.percentile(output, 50)),
        p95=float(np.percentile(output, 95)),
        p99=float(np.percentile(output, 99)) if len(output) >= MIN_FOR_P99 else None,
        at_limit_share=float(ended.mean()) if len(ended) else None,
        ends=len(ended),
        limit_p50=float(np.median(limits)) if len(limits) else None,
        limits=len(limits),
        output=tuple(output.tolist()),
    )


def outputs(context: Context) -> Finding | None:
    """Limits far above what is generated, answers that a limit cuts, or a long tail of answers."""
    facts = context.facts
    decode = facts.shares.decode
    if facts.log is None or decode < context.rules["SPY-OUT-001"].materiality_share:
        return None
    seen = output_tokens(facts.log, facts.window)
    waits = facts.admission.blocked_share if facts.admission is not None else None
    found = _told(seen, facts.log.source, facts.settings, decode, waits, context)
    if found is None:
        return None
    return msgspec.structs.replace(found, evidence=(*found.evidence, cite_share("decode", facts, context.book)))


def outputs_without_steps(context: GaugeContext) -> Finding | None:
    """The same of an engine whose steps were not seen."""
    log = request_log(context.inputs.requests)
    if log is None:
        return None
    seen = output_tokens(log, context.state.window)
    return _told(seen, log.source, context.inputs.settings, None, context.state.waits_share, context)


def _told(
    seen: OutputTokens | None,
    source: str,
    settings: EngineSettings,
    decode: float | None,
    waits: float | None,
    context: Context | GaugeContext,
) -> Finding | None:
    rule, book = context.rules["SPY-OUT-001"], context.book
    if seen is None or seen.requests < rule.threshold("min_requests"):
        return None
    cut, wide, tail = _cut_short(seen, rule), _reserved(seen, settings, rule), _tail(seen, rule)
    if not (cut or wide or tail):
        return None
    evidence = [
        book.add(f"output.tokens_{name}", value, "tokens", "measured", n=seen.requests, source=source,
                 method=f"{name} over the requests of the window")
        for name, value in (("p50", seen.p50), ("p95", seen.p95), ("p99", seen.p99))
        if value is not None
    ]  # fmt: skip
    said = [f"Half of the requests generate {seen.p50:.0f} tokens or more, one in twenty {seen.p95:.0f} or more"]
    severity: Severity = "info"
    if tail and seen.p99 is not None:
        said.append(f"one in a hundred generates {seen.p99:.0f}, {seen.p99 / seen.p50:.1f} times the median")
    if cut and seen.at_limit_share is not None:
        evidence.append(
            book.add("output.at_limit_share", seen.at_limit_share, "ratio", "measured", n=seen.ends, source=source,
                     method="requests that ended because max_tokens was reached, over those whose end is known")
        )  # fmt: skip
        said.append(
            f"{format_share(seen.at_limit_share)} of them end because they reach max_tokens: cut short, perhaps"
        )
    if wide and seen.limit_p50 is not None:
        evidence.append(
            book.add("output.max_tokens_p50", seen.limit_p50, "tokens", "measured", n=seen.limits, source=source,
                     method="median limit of the requests that had one")
        )  # fmt: skip
        said.append(
            f"they allow {seen.limit_p50:.0f} in the median, {seen.limit_p50 / seen.p95:.1f} times the 95th percentile"
        )
        if settings.platform == "spyre" and context.verdict.primary != "load_limited":
            severity = "medium" if waits is not None and waits >= rule.materiality_share else "low"
    of_window = f", {format_share(decode)} of the window" if decode is not None else ""
    said.append(f"fewer output tokens shorten decode alone{of_window}")
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=f"{'; '.join(said)}.",
        phase="decode",
        share=decode,
        evidence=tuple(evidence),
        against=rule.false_positive_notes,
        advice=(_lower_limit(seen, settings),) if wide else (),
    )


def _cut_short(seen: OutputTokens, rule: Rule) -> bool:
    """Some answers are cut off; where all are, a load generator holds them to a length."""
    share = seen.at_limit_share
    if share is None or seen.ends < rule.threshold("min_requests"):
        return False
    return rule.threshold("min_cut_share") <= share <= rule.threshold("max_cut_share")


def _tail(seen: OutputTokens, rule: Rule) -> bool:
    return seen.p99 is not None and seen.p99 >= rule.threshold("min_tail_ratio") * seen.p50


def _reserved(seen: OutputTokens, settings: EngineSettings, rule: Rule) -> bool:
    """Limits lie far above what is generated, on an engine that may reserve room for them."""
    if settings.platform not in (None, "spyre"):
        # vLLM takes blocks as they fill: a high limit costs nothing there
        return False
    if seen.limit_p50 is None or seen.limits < rule.threshold("min_requests"):
        return False
    if seen.at_limit_share is not None and seen.at_limit_share >= rule.threshold("min_cut_share"):
        return False
    return seen.limit_p50 >= rule.threshold("min_over_ratio") * seen.p95 and seen.limit_that_fits < seen.limit_p50


def _lower_limit(seen: OutputTokens, settings: EngineSettings) -> Advice:
    """The 99th percentile and a tenth."""
    to = seen.limit_that_fits
    cut = sum(tokens > to for tokens in seen.output)
    sure = settings.platform == "spyre"
    return Advice(
        id="max_tokens",
        setting="max_tokens of the requests, at the client",
        from_=round(seen.limit_p50 or 0),
        to=to,
        from_origin="measured",
        expected=(
            ExpectedChange(
                metric="requests that run at once", direction="up",
                note="room that is reserved for tokens that never come is free for others",
            ),
        ),
        pays=(
            ExpectedChange(
                metric="answers that are cut off", direction="up",
                note=f"{cut} of the {seen.requests} answers seen here were longer",
            ),
        ),
        preconditions=(
            "requests wait while running ones hold room for max_tokens that they do not use"
            if sure
            else "the engine reserves room for max_tokens when it admits a request: the Spyre scheduler does, vLLM's "
            "own does not",
            "the load seen here is the usual one",
        ),
        test_arguments="",
        test_note=f"with max_tokens of {to} in each request",
        refuted_if="no more requests run at once, or more answers end because of their length",
    )  # fmt: skip
