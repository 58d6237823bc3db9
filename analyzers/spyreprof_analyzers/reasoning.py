"""Reasoning: output tokens that no reader of the answer sees, and the decode time they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share
from spyreprof_analyzers.request_log import in_window

if TYPE_CHECKING:
    from spyreprof.findings import Severity, SteadyWindow
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.request_log import RequestLog


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning in the window's requests whose reasoning tokens are known.

    Attributes:
        requests: how many.
        output_share: of their output tokens.
        decode_share: of their decode time, were every output token equally slow.
        p50, p90: reasoning tokens of a request.
        saved_by_p50: share of output tokens that a limit at the median would have cut off.
    """

    requests: int
    output_share: float
    decode_share: float
    p50: float
    p90: float
    saved_by_p50: float


def reasoning(log: RequestLog | None, window: SteadyWindow) -> Reasoning | None:
    """Add it up; None where no request of the window says how many of its tokens were reasoning."""
    if log is None:
        return None
    known = in_window(log, window) & ~np.isnan(log.reasoning_tokens) & (log.output_tokens > 0)
    # more reasoning than output: the log counts the two apart, and the output's tokens are not all there
    known &= log.reasoning_tokens <= log.output_tokens
    thought, output = log.reasoning_tokens[known], log.output_tokens[known]
    decode_ns = (log.e2e_ns - log.ttft_ns)[known].astype(np.float64)
    if not known.any() or thought.sum() == 0:
        return None
    p50, p90 = np.percentile(thought, (50, 90))

    def saved(limit: float) -> float:
        return float((thought - np.minimum(thought, limit)).sum() / output.sum())

    ratio = np.minimum(thought / output, 1.0)
    return Reasoning(
        requests=int(known.sum()),
        output_share=float(thought.sum() / output.sum()),
        decode_share=float((decode_ns * ratio).sum() / max(decode_ns.sum(), 1.0)),
        p50=float(p50),
        p90=float(p90),
        saved_by_p50=saved(float(p50)),
    )


def reasons(context: Context) -> Finding | None:
    """Reasoning takes a material part of the window."""
    facts, rules, book = context.facts, context.rules, context.book
    seen, rule = facts.reasoning, rules["SPY-RSN-001"]
    if seen is None or seen.requests < rule.threshold("min_requests"):
        return None
    share = seen.decode_share * facts.shares.decode
    if share < rule.materiality_share:
        return None
    source = "request log"
    evidence = (
        book.add("reasoning.output_share", seen.output_share, "ratio", "measured", n=seen.requests, source=source,
                 method="reasoning tokens over output tokens"),
        book.add("reasoning.decode_share", seen.decode_share, "ratio", "estimated", n=seen.requests, source=source,
                 method="decode time of each request times its share of reasoning tokens, over all decode time"),
        book.add("output.visible_decode_share", 1.0 - seen.decode_share, "ratio", "estimated", n=seen.requests,
                 source=source, method="the rest of all decode time"),
        book.add("reasoning.tokens_p50", seen.p50, "tokens", "measured", n=seen.requests, source=source,
                 method="median over requests"),
        book.add("reasoning.tokens_p90", seen.p90, "tokens", "measured", n=seen.requests, source=source,
                 method="90th percentile over requests"),
        book.add("reasoning.window_share", share, "ratio", "estimated", source="request log and engine steps",
                 method="that share of decode time, over the window"),
    )  # fmt: skip
    severity: Severity = "info"
    if context.verdict.primary != "load_limited" and share >= rule.threshold("low_severity_share"):
        severity = "medium" if share >= rule.threshold("medium_severity_share") else "low"
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=f"{format_share(seen.output_share)} of the output tokens are reasoning: half of the requests spend "
        f"{seen.p50:.0f} tokens on it or more, one in ten {seen.p90:.0f} or more. That is about "
        f"{format_share(seen.decode_share)} of decode time and {format_share(share)} of the window, beside "
        f"{format_share(1.0 - seen.decode_share)} of decode time for what readers see; fewer of them shorten decode "
        "alone.",
        phase="decode",
        share=share,
        evidence=evidence,
        against=rule.false_positive_notes,
        advice=(_limit(seen),),
    )


def _limit(seen: Reasoning) -> Advice:
    """A limit at the median of what was seen."""
    to = max(round(seen.p50), 1)
    change = ExpectedChange(
        metric="output tokens per request", direction="down", note="only what exceeds the limit is saved"
    )
    if seen.saved_by_p50 > 0:
        change = ExpectedChange(
            metric="output tokens per request", direction="down", low=0.0, high=seen.saved_by_p50,
            note="at most what this limit would have cut off here; a model that is cut short may write a longer answer "
            "instead",
        )  # fmt: skip
    return Advice(
        id="reasoning_limit",
        setting="reasoning effort or largest number of reasoning tokens, at the client",
        from_=round(seen.p90),
        to=to,
        from_origin="measured",
        expected=(change,),
        pays=(
            ExpectedChange(metric="answer quality", direction="down", note="not measured here: test it on your own"),
        ),
        preconditions=("the model and the server take a limit on reasoning",),
        test_arguments="",
        test_note=f"with at most {to} reasoning tokens per request",
        refuted_if="output tokens per request do not fall, or answers get worse",
    )
