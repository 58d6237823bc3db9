"""What clients wait for outside of the engine: the process that takes requests in, tokenises, and sends text out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import NS_PER_S, format_seconds, format_share
from spyreprof_analyzers.processes import at_limit
from spyreprof_analyzers.request_log import in_window

if TYPE_CHECKING:
    from spyreprof.findings import Severity, SteadyWindow
    from spyreprof.recording.schema import EngineSettings
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.processes import ProcessUse
    from spyreprof_analyzers.request_log import RequestLog, RequestTimes

_STREAM_INTERVAL = 8


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Time to the first token, as clients and as the engine see it; means over requests.

    `process` is one that runs no steps and stands at the limit of one core; None where none does, or nobody looked.
    """

    ttft_s: float
    outside_s: float
    requests: int
    process: ProcessUse | None
    watched: bool

    @property
    def outside_share(self) -> float:
        """Share of the time to the first token that passes outside of the engine."""
        return self.outside_s / self.ttft_s if self.ttft_s > 0 else 0.0


def front_end(
    log: RequestLog | None,
    times: RequestTimes | None,
    window: SteadyWindow,
    processes: tuple[ProcessUse, ...],
    engine_pids: frozenset[int],
    rules: RuleBook,
) -> FrontEnd | None:
    """Compare the clients' log with the engine's own times; None where one of them is missing.

    Args:
        log: of the clients.
        times: queue and prefill by the engine's histograms.
        window: whose requests count.
        processes: use of processors.
        engine_pids: processes that run steps, which are not in front of the engine.
        rules: what stands at its limit.
    """
    if log is None or times is None or times.queue_s is None or times.source == log.source or times.requests <= 0:
        return None
    inside = in_window(log, window)
    if int(inside.sum()) < rules["SPY-HST-004"].threshold("min_requests"):
        return None
    ttft_s = float(log.ttft_ns[inside].mean()) / NS_PER_S
    engine_s = (times.queue_s + times.prefill_s) / times.requests
    full = [use for use in processes if use.pid not in engine_pids and at_limit(use, rules)]
    return FrontEnd(
        ttft_s=ttft_s,
        outside_s=max(ttft_s - engine_s, 0.0),
        requests=int(inside.sum()),
        process=max(full, key=lambda use: use.cpus, default=None),
        watched=bool(processes),
    )


def front_end_binds(seen: FrontEnd | None, rules: RuleBook) -> bool:
    """Do requests spend a material time outside of the engine, with a process there at its limit?"""
    return seen is not None and seen.process is not None and seen.outside_share >= _least(rules)


def _least(rules: RuleBook) -> float:
    return rules["SPY-HST-004"].threshold("min_outside_share")


def outside_of_the_engine(context: Context) -> Finding | None:
    """Requests spend much of the time to their first token before the engine knows of them, or after it answered."""
    facts, rule, seen = context.facts, context.rules["SPY-HST-004"], context.facts.front_end
    if seen is None or seen.outside_share < rule.threshold("min_outside_share"):
        return None
    share = facts.shares.front_end + facts.shares.scheduler_gap
    if seen.process is None or share < rule.materiality_share:
        # the network or the client itself may hold the requests
        severity: Severity = "low"
    else:
        severity = context.severity(share, rule)
    found = describe_outside(seen, severity, share, facts.settings, context.rules, context.book)
    return msgspec.structs.replace(found, against=context.against(*found.against))


def describe_outside(
    seen: FrontEnd,
    severity: Severity,
    share: float | None,
    settings: EngineSettings,
    rules: RuleBook,
    book: EvidenceBook,
) -> Finding:
    """The finding that requests spend much of the time to their first token outside of the engine."""
    rule = rules["SPY-HST-004"]
    text = (
        f"{format_share(seen.outside_share)} of the time to the first token passes outside of the engine: clients wait "
        f"{format_seconds(seen.ttft_s)} on average, of which queue and prefill are "
        f"{format_seconds(seen.ttft_s - seen.outside_s)}."
    )
    against = list(rule.false_positive_notes)
    if seen.process is not None:
        text += (
            f" A process that runs no steps uses {seen.process.cpus:.2f} CPUs: one core is the limit of what it can do."
        )
    elif seen.watched:
        against.append("no process outside of the engine stands at the limit of one core")
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=text,
        phase=None,
        share=share,
        evidence=cite_front_end(seen, book),
        against=tuple(against),
        advice=front_end_advice(settings) if seen.process is not None else (),
    )


def cite_front_end(seen: FrontEnd, book: EvidenceBook) -> tuple[str, ...]:
    """Write down what clients and engine see; the values are evidence ids."""
    cited = [
        book.add("front_end.outside_share", seen.outside_share, "ratio", "derived", n=seen.requests,
                 source="load generator's log and /metrics histograms",
                 method="mean time to first token less mean queue and prefill time, over the former"),
        book.add("front_end.outside_s", seen.outside_s, "s", "derived", n=seen.requests,
                 source="load generator's log and /metrics histograms", method="the same in seconds"),
    ]  # fmt: skip
    if seen.process is not None:
        cited.append(cite_use(seen.process, "front_end.cpus_used", book))
    return tuple(cited)


def cite_use(use: ProcessUse, metric: str, book: EvidenceBook) -> str:
    """Write down the processor time of a process; the value is its evidence id."""
    return book.add(
        metric, use.cpus, "CPUs", "measured", n=use.samples, source="/proc",
        method="processor time of the process over the time between its samples",
    )  # fmt: skip


def front_end_advice(settings: EngineSettings) -> tuple[Advice, ...]:
    """More processes in front of the engine, and fewer messages to each client."""
    servers = settings.api_servers
    found = [
        Advice(
            id="api_server_count",
            setting="api_server_count",
            from_=servers if servers is not None else 1,
            to=2 * (servers or 1),
            from_origin="measured" if servers is not None else "assumed",
            expected=(ExpectedChange(metric="TTFT", direction="down", note="each process takes some of the requests"),),
            pays=(
                ExpectedChange(metric="host cores in use", direction="up", note="one more core for each process"),
                ExpectedChange(metric="metrics in the log", direction="down", note="the periodic log line is off then"),
            ),
            preconditions=("cores are free, and clients connect anew often enough to be spread",),
            test_arguments=f"--api-server-count {2 * (servers or 1)}",
            refuted_if="the time to the first token outside of the engine does not fall",
        )
    ]  # fmt: skip
    if settings.stream_interval == 1:
        found.append(
            Advice(
                id="stream_interval",
                setting="stream_interval",
                from_=1,
                to=_STREAM_INTERVAL,
                from_origin="measured",
                expected=(ExpectedChange(metric="host work per token", direction="down", note="fewer messages"),),
                pays=(ExpectedChange(metric="gaps that a client sees", direction="up", note="tokens come in groups"),),
                preconditions=("clients stream, and take tokens in groups",),
                test_arguments=f"--stream-interval {_STREAM_INTERVAL}",
                refuted_if="the process in front of the engine uses as much of its core as before",
            )
        )  # fmt: skip
    return tuple(found)
