"""What a run delivered: output tokens and finished requests per second, each from the best source there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.recording.counters import delta
from spyreprof.report.model import Rate, Throughput
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import Diagnosis, SteadyWindow
    from spyreprof.recording.schema import AnalysisInputs

FROM_STEPS = "engine steps of the steady window, without first tokens"
# Ranks of one model all make the same tokens; engines beside one another each make their own.
FROM_ONE_OF_SEVERAL = "engine steps of the steady window in one of several processes, without first tokens"
FROM_COUNTERS = "engine metrics over the steady window"
FROM_ALL_COUNTERS = "metrics of all engines over the steady window of the one that binds"
# Whose log of requests it is, by the table's `source`. The client's comes first.
LOGS = {"bench_result": "load generator's log", "agent": "requests marked by the program"}
_FINISHED = "vllm:e2e_request_latency_seconds_count"


def throughput(inputs: AnalysisInputs, diagnosis: Diagnosis) -> Throughput | None:
    """Count what was delivered.

    Args:
        inputs: tables of the recording.
        diagnosis: its steady window and the steps in it; without a window only a log of requests is asked.

    Returns:
        None when nothing counts either of the two.
    """
    log = next((log for source in LOGS if (log := _finished(inputs.requests, source)) is not None), None)
    tokens = _tokens_of_steps(inputs.steps, diagnosis)
    if tokens is None and log is not None and log["output_tokens"].notna().all():
        tokens = _per_log(int(log["output_tokens"].sum()), log)
    requests = _per_log(len(log), log) if log is not None else None
    if requests is None and diagnosis.window is not None:
        of_all = FROM_ALL_COUNTERS if diagnosis.engines else FROM_COUNTERS
        requests = _requests_of_counters(inputs.counters, diagnosis.window, of_all)
    if tokens is None and requests is None:
        return None
    return Throughput(output_tokens=tokens, requests=requests)


def _tokens_of_steps(steps: pd.DataFrame, diagnosis: Diagnosis) -> Rate | None:
    """Tokens of the judged steps over the judged time, both without pauses."""
    window, budget = diagnosis.window, diagnosis.time_budget
    if window is None or budget is None or budget.window_ns <= 0:
        return None
    inside = steps[(steps["start_ns"] >= window.start_ns) & (steps["end_ns"] <= window.end_ns)]
    if diagnosis.writers is not None:
        inside = inside[inside["writer"].isin(diagnosis.writers)]
    generated = [phase.generation_tokens for phase in diagnosis.phases]
    if None in generated or inside["generation_tokens"].isna().any():
        return None
    total = sum(tokens or 0 for tokens in generated)
    alone = inside["writer"].nunique() <= 1 and not diagnosis.engines
    source = FROM_STEPS if alone else FROM_ONE_OF_SEVERAL
    # Without a decode step every token was a first one, which only a log counts.
    return Rate(per_s=total / budget.window_ns * NS_PER_S, source=source) if total else None


def _finished(requests: pd.DataFrame, source: str) -> pd.DataFrame | None:
    """Requests of one source that finished; None without any."""
    requests = requests[requests["source"] == source]
    done: pd.DataFrame = requests[~requests["failed"].fillna(False) & requests["e2e_ns"].notna()]
    return None if done.empty else done


def _per_log(amount: int, log: pd.DataFrame) -> Rate | None:
    """An amount over the time from the first arrival to the last end; None where arrivals are not known."""
    if log["arrival_ns"].isna().any():
        return None
    span_ns = int((log["arrival_ns"] + log["e2e_ns"]).max()) - int(log["arrival_ns"].min())
    return Rate(per_s=amount / span_ns * NS_PER_S, source=LOGS[str(log["source"].iloc[0])]) if span_ns > 0 else None


def _requests_of_counters(counters: pd.DataFrame, window: SteadyWindow, source: str) -> Rate | None:
    finished = delta(counters, _FINISHED, start_ns=window.start_ns, end_ns=window.end_ns)
    length_ns = window.end_ns - window.start_ns
    if finished is None or length_ns <= 0:
        return None
    return Rate(per_s=finished / length_ns * NS_PER_S, source=source)
