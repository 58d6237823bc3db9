"""The comparison of two runs: the JSON of `spyreprof diff`, and what its renderers draw from.

A is the run before, B the run after. Units stand in names, ratios are of B over A less 1, absent is None and never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# At run time these are fields here, so that the imports are not for type checking only.
from spyreprof.findings import BoundClass, Confidence, Phase, Severity
from spyreprof.report.model import Producer
from spyreprof.report.public import Public

SCHEMA_VERSION = 1

State = Literal["same", "differs", "unknown"]
# What a condition has to be the same for: steps of the engine, what requests see (rates, latencies), all, or nothing.
NeededFor = Literal["all", "steps", "requests", "nothing"]
# What a condition that is not the same means: it is what the two runs try out, it follows from that, it forbids to
# compare, or it is merely told.
Bearing = Literal["under_test", "follows", "withholds", "noted"]
Outcome = Literal["faster", "slower", "cannot_tell", "withheld"]
Fate = Literal["appeared", "vanished", "more_severe", "less_severe", "same"]
Overall = Literal["faster", "slower", "trade_off", "cannot_tell", "withheld"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs.

    Attributes:
        report_id: of the report that was compared.
        runs: complete runs of a repeated recording that its numbers come from; 1 for any other.
        primary, confidence, headline: of its verdict.
    """

    report_id: str
    run_id: Public | None
    started: str | None
    runs: int
    primary: BoundClass
    confidence: Confidence | None
    headline: str


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a fair comparison keeps the same.

    Attributes:
        a, b: as the reports say it; None where one does not.
        state: "unknown" wherever one side does not tell, or tells it by a pseudonym of its own.
        needed_for: what cannot be compared without it.
        bearing: None where it is the same.
        note: how it was compared, or why it is unknown.
        obtain: how to have it told, or made the same; None where there is nothing to do.
    """

    name: str
    a: Public | None
    b: Public | None
    state: State
    needed_for: NeededFor
    bearing: Bearing | None = None
    note: str | None = None
    obtain: str | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One metric on both sides.

    Attributes:
        metric: e.g. "output_tokens_per_s".
        unit: "tokens/s", "requests/s", "s" or "ns".
        better: whether more of it is better.
        a, b: medians over the runs of each side; None where it was not measured.
        change: B over A less 1; None where it is withheld or cannot be formed.
        low, high: ends of the range that it lies in, noise considered.
        noise: the smallest change that can be told from noise, as a ratio.
        noise_basis: where that comes from, in words.
        reason: why nothing can be told, in words; None where it can.
    """

    metric: str
    unit: str
    better: Literal["higher", "lower"]
    a: float | None
    b: float | None
    change: float | None
    low: float | None
    high: float | None
    noise: float | None
    noise_basis: str
    outcome: Outcome
    reason: str | None


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time budget: `phase.cause`, such as "decode.host", or a kind of gap. `change_ns` is b less a."""

    id: str
    a_ns: int
    b_ns: int
    change_ns: int


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """All step time of one phase, and why it changed. `change_ns` is exactly the sum of the two reasons.

    Attributes:
        by_steps_ns: because more or fewer steps were run for the same work.
        by_step_time_ns: because a step took more or less time.
    """

    phase: Phase
    a_ns: int
    b_ns: int
    change_ns: int
    by_steps_ns: int
    by_step_time_ns: int


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Where the change of time went, in whole nanoseconds for each output token or each second of the window.

    Attributes:
        basis: what the nanoseconds are for.
        change_ns: `b_ns` less `a_ns`, and exactly the sum of `change_ns` of all parts.
        parts: the largest change first; "unexplained" is one of them.
        phases: without the time of steps that no resource was found for, which is unexplained.
        within_noise: the whole change is no larger than the noise, so that its parts prove nothing.
    """

    basis: Literal["output_token", "window_second"]
    a_ns: int
    b_ns: int
    change_ns: int
    parts: tuple[PartChange, ...]
    phases: tuple[PhaseChange, ...]
    within_noise: bool


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of one side or of both; a severity is None on the side that lacks it."""

    id: str
    title: str
    phase: Phase | None
    state: Fate
    a: Severity | None
    b: Severity | None


class DiffVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is concluded.

    Attributes:
        outcome: "withheld" where nothing may be compared, "trade_off" where some metrics gained and others lost.
        under_test: what the two runs try out, as sentences "max_num_seqs 4 -> 16"; empty where nothing known differs.
        withheld_by: names of the conditions that forbid to compare something.
    """

    outcome: Overall
    headline: str
    reason: str
    under_test: tuple[Public, ...]
    withheld_by: tuple[str, ...]


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A number that decided something, and where it comes from."""

    name: str
    value: float
    unit: str
    origin: Literal["read", "measured", "guessed"]
    source: str


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared."""

    schema_version: int
    producer: Producer
    diff_id: str
    a: Side
    b: Side
    verdict: DiffVerdict
    conditions: tuple[Condition, ...]
    changes: tuple[Change, ...]
    attribution: Attribution | None
    attribution_missing: str | None
    findings: tuple[FindingChange, ...]
    thresholds: tuple[Threshold, ...]
