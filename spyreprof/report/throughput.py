"""What a run delivered: output tokens and finished requests per second, each from the best source there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.recording.counters import delta
from spyreprof.report.model import Rate, Throughput
from spyreprof.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from spyreprof.findings import SteadyWindow, TimeBudget
    from spyreprof.recording.schema import AnalysisInputs

FROM_STEPS = "engine steps of the steady window"
FROM_LOG = "load generator's log"
FROM_COUNTERS = "engine metrics over the steady window"
_FINISHED = "vllm:e2e_request_latency_seconds_count"


def throughput(inputs: AnalysisInputs, window: SteadyWindow | None, budget: TimeBudget | None) -> Throughput | None:
    """Count what was delivered.

    Args:
        inputs: tables of the recording.
        window: the steady state; without one only the log of a load generator is asked.
        budget: its time without pauses; None where the window was not split.

    Returns:
        None when nothing counts either of the two.
    """
    log = _log(inputs.requests)
    tokens = _tokens_of_steps(inputs, window, budget) if window is not None else None
    if tokens is None and log is not None and log["output_tokens"].notna().all():
        tokens = _per_log(int(log["output_tokens"].sum()), log)
    requests = _per_log(len(log), log) if log is not None else None
    if requests is None and window is not None:
        requests = _requests_of_counters(inputs.counters, window)
    if tokens is None and requests is None:
        return None
    return Throughput(output_tokens=tokens, requests=requests)


def _tokens_of_steps(inputs: AnalysisInputs, window: SteadyWindow, budget: TimeBudget | None) -> Rate | None:
    judged_ns = budget.window_ns if budget is not None else window.end_ns - window.start_ns
    steps = inputs.steps
    steps = steps[(steps["start_ns"] >= window.start_ns) & (steps["end_ns"] <= window.end_ns)]
    for pause in inputs.pauses:
        steps = steps[(steps["end_ns"] <= pause.start_ns) | (steps["start_ns"] >= pause.end_ns)]
    if steps.empty or judged_ns <= 0:
        return None
    # Ranks of one engine generate the same tokens: the process whose steps took the most time speaks for all.
    busy = (steps["end_ns"] - steps["start_ns"]).groupby(steps["writer"]).sum()
    generated = steps.loc[steps["writer"] == busy.idxmax(), "generation_tokens"]
    # Without a decode step every token was a first one, which only a log counts.
    if generated.isna().any() or not generated.sum():
        return None
    return Rate(per_s=int(generated.sum()) / judged_ns * NS_PER_S, source=FROM_STEPS)


def _log(requests: pd.DataFrame) -> pd.DataFrame | None:
    """Requests that finished, all from one source; None without any."""
    done: pd.DataFrame = requests[~requests["failed"].fillna(False) & requests["e2e_ns"].notna()]
    if done.empty:
        return None
    counts = done["source"].value_counts()
    return done[done["source"] == counts.index[0]] if len(counts) else done


def _per_log(amount: int, log: pd.DataFrame) -> Rate | None:
    """An amount over the time from the first arrival to the last end; None where arrivals are not known."""
    if log["arrival_ns"].isna().any():
        return None
    span_ns = int((log["arrival_ns"] + log["e2e_ns"]).max()) - int(log["arrival_ns"].min())
    return Rate(per_s=amount / span_ns * NS_PER_S, source=FROM_LOG) if span_ns > 0 else None


def _requests_of_counters(counters: pd.DataFrame, window: SteadyWindow) -> Rate | None:
    finished = delta(counters, _FINISHED, start_ns=window.start_ns, end_ns=window.end_ns)
    length_ns = window.end_ns - window.start_ns
    if finished is None or length_ns <= 0:
        return None
    return Rate(per_s=finished / length_ns * NS_PER_S, source=FROM_COUNTERS)
