"""What is said where no engine step was seen: usage, gauges, histograms, stacks, and what is left open."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from spyreprof.findings import Diagnosis
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS, USAGE, AnalysisInputs, Column
from spyreprof.rules import load_rules
from spyreprof.targets import Targets
from spyreprof_analyzers.diagnose import diagnose

S = 1_000_000_000


def table(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        {column.name: pd.Series([row.get(column.name) for row in rows], dtype=column.dtype) for column in columns}
    )


def usage(second: int, pid: int, cpu_s: float, rss_bytes: int = 10**9, tid: int | None = None) -> dict[str, Any]:
    rss = rss_bytes if tid is None else None
    return {"time_ns": second * S, "pid": pid, "tid": tid, "cpu_ns": int(cpu_s * S), "rss_bytes": rss}


def sample(second: int, name: str, value: float) -> dict[str, Any]:
    return {"time_ns": second * S, "endpoint": 0, "name": f"vllm:{name}", "labels": "{}", "value": value}


def judged(**changes: Any) -> Diagnosis:
    usual = {
        "steps": table(STEPS, []),
        "requests": table(REQUESTS, []),
        "counters": table(COUNTERS, []),
        "usage": table(USAGE, []),
        "recording_start_ns": 0,
        "recording_end_ns": 100 * S,
        "finished": True,
    }
    return diagnose(AnalysisInputs(**{**usual, **changes}), load_rules(), Targets())


def texts(found: Diagnosis) -> dict[str, str]:
    return {finding.id: finding.text for finding in found.findings}


def test_with_nothing_at_all_every_question_is_open_with_a_remedy() -> None:
    found = judged()
    assert found.verdict.primary == "undetermined"
    assert found.findings == ()
    topics = [question.topic for question in found.not_judged]
    assert topics[0] == "everything"
    assert any("host" in topic for topic in topics)
    assert any("queueing" in topic for topic in topics)
    assert any("memory" in topic for topic in topics)
    assert all(question.obtain for question in found.not_judged)


def test_usage_is_summed_over_processes_and_threads_are_not_counted_twice() -> None:
    rows = [usage(second, 7, second * 1.5) for second in range(11)]
    rows += [usage(second, 7, second * 1.4, tid=8) for second in range(11)]
    rows += [usage(second, 9, second * 0.5, rss_bytes=2 * 10**9) for second in range(11)]
    found = judged(usage=table(USAGE, rows), cpu_count=4)
    assert found.verdict.primary == "undetermined"
    text = texts(found)["SPY-OBS-001"]
    assert "2 processes used 2.00 of 4 CPUs on average and at most 3.00 GB" in text
    assert "The busiest process used 1.50 CPUs." in text
    assert found.verdict.missing[0].topic == "what binds the engine"


def test_memory_that_could_not_be_read_is_not_told_as_none() -> None:
    rows = [dict(usage(second, 7, second * 1.5), rss_bytes=None) for second in range(11)]
    found = judged(usage=table(USAGE, rows))
    text = texts(found)["SPY-OBS-001"]
    assert text == "The process used 1.50 CPUs on average."
    assert not any(entry.metric == "host.resident_memory_max" for entry in found.evidence)


@pytest.mark.parametrize(("seconds", "told"), [(1, False), (2, True)])
def test_usage_needs_two_seconds(seconds: int, told: bool) -> None:
    rows = [usage(second, 7, second) for second in range(seconds + 1)]
    assert ("SPY-OBS-001" in texts(judged(usage=table(USAGE, rows)))) == told


def test_gauges_and_counters_of_the_engine_are_told_with_their_means() -> None:
    rows = []
    for second in range(11):
        rows += [
            sample(second, "num_requests_running", 4 if second < 5 else 8),
            sample(second, "num_requests_waiting", 2),
            sample(second, "kv_cache_usage_perc", 0.5),
            sample(second, "generation_tokens_total", second * 30),
        ]
    text = texts(judged(counters=table(COUNTERS, rows)))["SPY-OBS-002"]
    assert "requests ran (at most 8)" in text
    assert "2.0 requests waited" in text
    assert "50.0 % of the KV cache was in use" in text
    assert "30.00 tokens were generated a second" in text


def test_means_of_request_times_come_from_the_histograms_and_no_percentile_is_made_up() -> None:
    rows = [
        sample(second, f"time_to_first_token_seconds_{part}", value * second)
        for second in range(11)
        for part, value in (("sum", 0.5), ("count", 2))
    ]
    (ttft,) = judged(counters=table(COUNTERS, rows)).latencies
    assert (ttft.metric, ttft.n, ttft.mean_s) == ("ttft", 20, pytest.approx(0.25))
    assert (ttft.p50_s, ttft.p90_s, ttft.p99_s) == (None, None, None)


def test_a_page_on_which_nothing_happened_has_no_mean() -> None:
    rows = [sample(second, "time_to_first_token_seconds_count", 5) for second in range(5)]
    rows += [sample(second, "time_to_first_token_seconds_sum", 3) for second in range(5)]
    assert judged(counters=table(COUNTERS, rows)).latencies == ()
