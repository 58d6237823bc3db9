"""What can be said without engine steps: usage, stacks, gauges, the engine's own histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyreprof.findings import Diagnosis, Finding, LatencySummary
from spyreprof.recording.counters import delta
from spyreprof.units import NS_PER_S, format_bytes, format_share
from spyreprof_analyzers import slow_requests
from spyreprof_analyzers.gauge_findings import GaugeContext, gauge_findings
from spyreprof_analyzers.host_stacks import describe, process_stacks
from spyreprof_analyzers.request_log import request_log, summarise
from spyreprof_analyzers.scheduler import gauges
from spyreprof_analyzers.unservable import unservable

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import Verdict
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.gauge_state import GaugeState
    from spyreprof_analyzers.stall import Stall

# (latency, the engine's histogram); the first spelling that was polled counts.
_HISTOGRAMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ttft", ("vllm:time_to_first_token_seconds",)),
    ("itl", ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
    ("e2e", ("vllm:e2e_request_latency_seconds",)),
    ("queue", ("vllm:request_queue_time_seconds",)),
    ("prefill", ("vllm:request_prefill_time_seconds",)),
    ("decode", ("vllm:request_decode_time_seconds",)),
)


def what_was_seen(
    inputs: AnalysisInputs,
    verdict: Verdict,
    state: GaugeState | None,
    stall: Stall | None,
    rules: RuleBook,
    book: EvidenceBook,
) -> Diagnosis:
    """What there is beside the verdict that gauges and counters gave.

    Args:
        inputs: of one engine.
        verdict: by `decide_by_gauges`.
        state: what it was reached from; None where no gauges were seen.
        stall: a time in which nothing was computed.
        rules: thresholds.
        book: takes numbers and open questions.
    """
    concluded: tuple[Finding, ...] = ()
    if state is not None:
        concluded = gauge_findings(GaugeContext(state, stall, inputs, verdict, rules, book))
    else:
        clash = unservable(inputs.settings, inputs.model, inputs.device_kind, rules, book)
        concluded = (clash,) if clash is not None else ()
    book.window = "recording"  # what follows is of all of it
    stacks = process_stacks(inputs.stacks, inputs.recording_start_ns, inputs.recording_end_ns, rules)
    found = (
        _usage(inputs, rules, book),
        _engine(inputs, rules, book),
        describe(stacks, rules, book, of="the busiest process" if stacks is not None else ""),
    )
    findings = (*concluded, *(finding for finding in found if finding is not None))
    _open_questions(inputs, stacks is not None, book)
    tails, dominated = slow_requests.without_steps(inputs, state.window if state is not None else None, rules, book)
    if dominated is not None:
        findings = (*findings, dominated)
    return Diagnosis(
        window=state.window if state is not None else None,
        time_budget=None,
        phases=(),
        latencies=_latencies(inputs),
        tails=tails,
        verdict=verdict,
        findings=findings,
        not_judged=(*verdict.missing, *book.not_judged),
        evidence=book.evidence,
    )


def _open_questions(inputs: AnalysisInputs, sampled: bool, book: EvidenceBook) -> None:
    if not sampled:
        book.leave_open(
            "where the host spends its time",
            "no Python stacks were sampled",
            "record with `--py-spy`, or attach with `--pid`; `spyreprof doctor` says whether it works here",
        )
    if inputs.counters.empty:
        book.leave_open(
            "queueing, KV capacity and request times",
            "no metrics of the engine were polled",
            "name its page: record with `--metrics-url`, or attach with `--url`, http://HOST:PORT/metrics",
        )
    if inputs.usage.empty:
        book.leave_open(
            "use of processors and memory", "no process was watched", "record the program, or attach with `--pid`"
        )


def _usage(inputs: AnalysisInputs, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    """Mean use of processors, and the most memory at one time."""
    rule = rules["SPY-OBS-001"]
    whole = inputs.usage[inputs.usage["tid"].isna()]
    if whole.empty:
        return None
    span_s = (int(whole["time_ns"].max()) - int(whole["time_ns"].min())) / NS_PER_S
    if span_s < rule.threshold("min_span"):
        return None
    by_process = whole.groupby("pid")["cpu_ns"].agg(lambda used: int(used.max()) - int(used.min()))
    cpus = by_process.sum() / NS_PER_S / span_s
    busiest = by_process.max() / NS_PER_S / span_s
    samples = int(whole["time_ns"].nunique())
    resident = whole.groupby("time_ns")["rss_bytes"].sum(min_count=1).dropna()

    def write(metric: str, value: float, unit: str, method: str) -> str:
        return book.add(f"host.{metric}", value, unit, "measured", n=samples, source="/proc", method=method)

    evidence = [
        write("cpus_used", float(cpus), "CPUs", "processor time of all processes over the time between their samples"),
        write("cpus_used_by_busiest", float(busiest), "CPUs", "the same of the process that used most"),
    ]
    of = f" of {inputs.cpu_count}" if inputs.cpu_count else ""
    processes = f"{len(by_process)} processes" if len(by_process) > 1 else "The process"
    text = f"{processes} used {cpus:.2f}{of} CPUs on average"
    if len(resident):
        most = int(resident.max())
        method = "largest sum of resident memory; shared pages count twice"
        evidence.append(write("resident_memory_max", most, "bytes", method))
        text += f" and at most {format_bytes(most)} of memory"
    text += "."
    if len(by_process) > 1:
        text += f" The busiest process used {busiest:.2f} CPUs."
    return _info("SPY-OBS-001", text, tuple(evidence), rules)


def _engine(inputs: AnalysisInputs, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    """Means of the scheduler's gauges, and rates of its counters."""
    seen = gauges(inputs.counters, inputs.polls, inputs.recording_end_ns)
    evidence: list[str] = []
    said: list[str] = []
    span_s = _polled_s(inputs.counters)
    if seen is not None:
        parts = (
            ("running", "requests", seen.running, "requests ran"),
            ("waiting", "requests", seen.waiting, "requests waited"),
            ("kv_usage", "ratio", seen.kv_usage_ratio, "of the KV cache was in use"),
        )
        for name, unit, values, what in parts:
            known = values[~np.isnan(values)]
            if len(known) == 0:
                continue
            mean, most = float(known.mean()), float(known.max())
            evidence += [
                book.add(f"engine.{name}_{kind}", value, unit, "measured", source="/metrics gauges",
                         method=f"{kind} over time while the page answered")
                for kind, value in (("mean", mean), ("max", most))
            ]  # fmt: skip
            spelled = (format_share(mean), format_share(most)) if unit == "ratio" else (f"{mean:.1f}", f"{most:.0f}")
            said.append(f"on average {spelled[0]} {what} (at most {spelled[1]})")
    for name, metric, what in (
        ("requests_per_s", "vllm:e2e_request_latency_seconds_count", "requests finished"),
        ("prompt_tokens_per_s", "vllm:prompt_tokens_total", "prompt tokens were taken in"),
        ("generation_tokens_per_s", "vllm:generation_tokens_total", "tokens were generated"),
    ):
        rise = delta(inputs.counters, metric) if span_s > 0 else None
        if rise is not None:
            evidence.append(
                book.add(f"engine.{name}", rise / span_s, "per second", "derived", source="/metrics counters",
                         method="rise of the counter over the time between first and last poll")
            )  # fmt: skip
            said.append(f"{rise / span_s:.2f} {what} a second")
    if not said:
        return None
    text = f"{said[0][:1].upper()}{'; '.join(said)[1:]}."
    return _info("SPY-OBS-002", text, tuple(evidence), rules)


def _latencies(inputs: AnalysisInputs) -> tuple[LatencySummary, ...]:
    """Percentiles from a load generator's log, else means from the engine's histograms."""
    log = request_log(inputs.requests)
    if log is not None:
        whole = [("ttft", log.ttft_ns / NS_PER_S), ("e2e", log.e2e_ns / NS_PER_S)]
        found = (summarise(metric, values, log.source) for metric, values in whole)
        return tuple(row for row in found if row is not None)
    rows = []
    for metric, spellings in _HISTOGRAMS:
        for name in spellings:
            count, total_s = delta(inputs.counters, f"{name}_count"), delta(inputs.counters, f"{name}_sum")
            if count and total_s is not None:
                rows.append(
                    LatencySummary(
                        metric=metric, n=round(count), mean_s=total_s / count, p50_s=None, p90_s=None, p99_s=None,
                        source="/metrics histograms",
                    )
                )  # fmt: skip
                break
    return tuple(rows)


def _polled_s(counters: pd.DataFrame) -> float:
    if counters.empty:
        return 0.0
    return (int(counters["time_ns"].max()) - int(counters["time_ns"].min())) / NS_PER_S


def _info(rule_id: str, text: str, evidence: tuple[str, ...], rules: RuleBook) -> Finding:
    rule = rules[rule_id]
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity="info",
        title=rule.title,
        text=text,
        phase=None,
        share=None,
        evidence=evidence,
        against=rule.false_positive_notes,
    )
