"""What dominates the p99: runs whose slowest requests are slow for a known reason, and inputs that cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from engine_builder import MS, Engine, Request, Run, S, inputs, open_loop, replay, table
from hypothesis import given, settings
from hypothesis import strategies as st

from spyreprof.findings import Diagnosis, Finding
from spyreprof.recording.schema import REQUESTS, AnalysisInputs, Interval
from spyreprof.registry import diagnose, rules, targets
from spyreprof.request_figures import TailLatency, TailPart
from spyreprof_analyzers.engine_steps import engine_steps
from spyreprof_analyzers.request_log import marked_requests, request_log
from spyreprof_analyzers.request_time import RequestTime, request_time
from spyreprof_analyzers.slow_requests import _dominant

ENGINE = Engine(fixed_ns=20 * MS, per_request_ns=0, per_context_token_ns=1 * MS, noise=0.0, max_num_seqs=16)


def tail(diagnosis: Diagnosis, metric: str) -> TailLatency | None:
    return next((tail for tail in diagnosis.tails if tail.metric == metric), None)


def share(found: TailLatency, part: str, group: str = "slowest") -> float | None:
    return next(getattr(row, f"{group}_share") for row in found.parts if row.id == part)


def finding(diagnosis: Diagnosis) -> Finding | None:
    return next((f for f in diagnosis.findings if f.id == "SPY-P99-001"), None)


def open_topics(diagnosis: Diagnosis) -> dict[str, str]:
    return {item.topic: f"{item.reason} {item.obtain}" for item in diagnosis.not_judged}


def as_marked(made: AnalysisInputs, run: Run, **columns: object) -> AnalysisInputs:
    """The same requests as the program itself marks them: with the time at which each was scheduled."""
    queue = {r.arrival_ns: r.scheduled_ns - r.arrival_ns for r in run.requests}
    requests = made.requests.assign(source="agent", queue_ns=[queue[at] for at in made.requests["arrival_ns"]])
    types = {column.name: column.dtype for column in REQUESTS}
    return replace(made, requests=requests.assign(**columns).astype(types))


def steady(count: int, every_ms: int = 300, output: int = 6) -> list[Request]:
    """Requests one after another, so far apart that none waits."""
    return [Request(at * every_ms * MS, 16, output) for at in range(count)]


def queued() -> tuple[Engine, Run]:
    """A cap of four, and now and then a burst that has to wait for a place."""
    engine = replace(ENGINE, max_num_seqs=4)
    bursts = [Request((at * 15 + 5) * S, 16, 6) for at in range(5) for _ in range(12)]
    return engine, replay(engine, steady(300) + bursts)


def interrupted() -> tuple[Engine, Run]:
    """Short requests, and now and then one whose long prompt holds up those that decode."""
    engine = replace(ENGINE, max_num_batched_tokens=512)
    long = [Request((at * 4 + 1) * S, 480, 2) for at in range(22)]
    return engine, replay(engine, sorted(steady(300, output=12) + long, key=lambda r: r.arrival_ns))


def judged(engine: Engine, run: Run, slo: dict[str, float] | None = None, **columns: object) -> Diagnosis:
    return diagnose(as_marked(inputs(run, engine), run, **columns), targets(**slo) if slo else None)


# Each cause by its name


def test_requests_that_wait_for_a_place_are_slow_to_their_first_token_because_of_the_queue() -> None:
    found = tail(judged(*queued()), "ttft")
    assert (found.dominant, found.slowest) == ("queue", 20)
    assert found.dominant_share > 0.9
    assert share(found, "queue") > 0.7 > share(found, "queue", "median")
    assert "queue" in found.reason


def test_gaps_between_tokens_that_prompts_of_others_stretch_are_called_so() -> None:
    found = tail(judged(*interrupted()), "itl")
    assert found.dominant == "interference"
    assert share(found, "interference") > 0.4
    assert share(found, "interference", "median") == pytest.approx(0.0, abs=0.1)


def test_the_requests_that_generate_most_are_slow_because_they_decode_and_the_text_says_how_much_more() -> None:
    rng = np.random.default_rng(0)
    loads = [Request(at * 300 * MS, 16, int(rng.choice([6, 7, 40], p=[0.5, 0.4, 0.1]))) for at in range(320)]
    found = tail(judged(ENGINE, replay(ENGINE, loads)), "e2e")
    assert found.dominant == "decode"
    assert found.slowest_output_tokens == 40
    assert "generate 40 tokens" in found.reason


def test_longer_prompts_are_called_prefill_with_their_lengths() -> None:
    loads = [Request(at * 600 * MS, 300 if at % 10 == 0 else 30, 4) for at in range(300)]
    found = tail(judged(ENGINE, replay(ENGINE, loads)), "ttft")
    assert found.dominant == "prefill"
    assert "prompts of 300 tokens" in found.reason


def test_steps_that_take_longer_are_not_told_as_longer_answers() -> None:
    """A machine that is slow for a while: the same tokens, each later."""
    run = replay(ENGINE, steady(320, every_ms=600))
    shift = 0
    slow = {id(row) for at, row in enumerate(run.steps) if at // 6 % 15 == 7}
    moved = {}
    for row in run.steps:
        before = row["end_ns"]
        row["start_ns"] += shift
        if id(row) in slow:
            shift += 60 * MS
        row["end_ns"] = before + shift
        moved[before] = row["end_ns"]
    for r in run.requests:
        begun = r.arrival_ns
        r.arrival_ns += moved[r.first_token_ns] - r.first_token_ns
        r.scheduled_ns += r.arrival_ns - begun
        r.first_token_ns, r.end_ns = moved[r.first_token_ns], moved[r.end_ns]
    run.end_ns += shift
    found = tail(judged(ENGINE, run), "itl")
    assert found.dominant == "decode"
    assert "not their number" in found.reason


def compiling() -> AnalysisInputs:
    """Of 300 requests twenty wait a second for a compilation in the step of their prompt."""
    run = replay(ENGINE, steady(300))
    shift, prompts, rows, compiles = 0, 0, [], []
    for row in run.steps:
        row["start_ns"] += shift
        if row["context_tokens"]:
            prompts += 1
            if prompts > 50 and prompts % 12 == 0:
                compiles.append(Interval(row["start_ns"], row["start_ns"] + S, "compile"))
                shift += S
        row["end_ns"] += shift
    for at in (at for at, row in enumerate(run.steps) if row["context_tokens"]):
        begun = run.steps[at]["start_ns"] - MS
        rows.append({
            "arrival_ns": begun, "prompt_tokens": 16, "output_tokens": 6, "failed": False, "queue_ns": MS,
            "ttft_ns": run.steps[at]["end_ns"] - begun, "e2e_ns": run.steps[at + 5]["end_ns"] - begun,
            "source": "agent",
        })  # fmt: skip
    made = inputs(replay(ENGINE, steady(1)), ENGINE)
    steps = inputs(run, ENGINE).steps
    return replace(
        made, steps=steps, requests=table(REQUESTS, rows), compiles=tuple(compiles), recording_end_ns=run.end_ns + shift
    )


def test_a_compilation_that_holds_up_some_requests_is_called_so() -> None:
    found = tail(diagnose(compiling()), "ttft")
    assert found.dominant == "compile"
    assert share(found, "compile", "median") == 0.0


def preempting() -> tuple[Engine, Run]:
    """A KV cache that bursts overfill: the youngest requests lose their place and are computed again."""
    engine = replace(ENGINE, kv_tokens=260, reserve_output=False, max_num_batched_tokens=256)
    bursts = [Request((at * 12 + 5) * S, 30, 24) for at in range(8) for _ in range(6)]
    return engine, replay(engine, sorted(steady(300, output=20) + bursts, key=lambda r: r.arrival_ns))


def test_requests_that_lose_their_place_are_slow_because_of_preemption_whether_or_not_the_program_says_which() -> None:
    engine, run = preempting()
    assert len(run.preempted_ns) > 20
    found = tail(judged(engine, run), "itl")
    assert found.dominant == "preemption"
    assert share(found, "preemption", "median") == 0.0
    counted = judged(engine, run, preemptions=0)
    assert share(tail(counted, "itl"), "preemption") == 0.0
    assert tail(counted, "itl").dominant is None


def test_steps_without_a_token_are_no_preemption_where_only_a_client_saw_them_or_nobody_counted() -> None:
    engine, run = preempting()
    made = inputs(run, engine)
    seen_by_a_client = tail(diagnose(made), "itl")
    assert (seen_by_a_client.dominant, share(seen_by_a_client, "preemption")) == (None, None)
    assert share(seen_by_a_client, "unknown") > 0.3
    uncounted = made.counters[made.counters["name"] != "vllm:num_preemptions_total"]
    found = tail(diagnose(as_marked(replace(made, counters=uncounted), run)), "itl")
    assert (found.dominant, share(found, "preemption")) == (None, None)


def with_client(made: AnalysisInputs, before_ns: object, after_ns: int = MS) -> AnalysisInputs:
    """The marked requests and, beside them, what a client saw of the same."""
    marks = made.requests
    outside = np.asarray(before_ns) * np.ones(len(marks), dtype=np.int64)
    seen = marks.assign(
        source="bench_result", queue_ns=pd.NA, arrival_ns=marks["arrival_ns"] - outside,
        ttft_ns=marks["ttft_ns"] + outside + after_ns, e2e_ns=marks["e2e_ns"] + outside + after_ns,
    )  # fmt: skip
    types = {column.name: column.dtype for column in REQUESTS}
    return replace(made, requests=pd.concat([marks, seen], ignore_index=True).astype(types))


def test_time_outside_the_engine_is_told_where_a_client_and_the_program_saw_the_same_requests() -> None:
    run = replay(ENGINE, steady(300))
    made = as_marked(inputs(run, ENGINE), run)
    slow = np.where(np.arange(300) % 12 == 0, 200 * MS, 2 * MS)
    found = tail(diagnose(with_client(made, slow)), "ttft")
    assert found.dominant == "front_end"
    assert found.source == "load generator's log"
    assert any("matched" in note for note in found.notes)


def test_a_client_whose_requests_the_marks_do_not_know_is_not_matched_with_them() -> None:
    run = replay(ENGINE, steady(300))
    made = with_client(as_marked(inputs(run, ENGINE), run), 2 * MS)
    other = made.requests["source"] == "bench_result"
    requests = made.requests.assign(prompt_tokens=made.requests["prompt_tokens"].mask(other, 99))
    found = tail(diagnose(replace(made, requests=requests)), "ttft")
    assert found.source == "requests marked by the program"
    assert share(found, "front_end") is None


# What is not known is not zero


def test_a_client_alone_leaves_the_time_to_first_token_whole_and_says_so() -> None:
    engine, run = queued()
    diagnosis = diagnose(inputs(run, engine))
    found = tail(diagnosis, "ttft")
    assert found.dominant is None
    assert (share(found, "queue"), share(found, "prefill"), share(found, "front_end")) == (None, None, None)
    assert share(found, "unknown") > 0.9
    assert "nothing here takes apart" in found.reason
    assert any("scheduled" in note for note in found.notes)


def test_a_client_alone_still_tells_what_stretches_the_gaps_between_tokens() -> None:
    engine, run = interrupted()
    diagnosis = diagnose(inputs(run, engine))
    assert tail(diagnosis, "itl").dominant == "interference"


def test_the_largest_gap_is_the_step_that_made_it() -> None:
    engine, run = interrupted()
    made = inputs(run, engine)
    ends = np.asarray([row["end_ns"] for row in run.steps if row["generation_requests"]])
    gaps = []
    for r in run.requests:
        inside = ends[(ends > r.first_token_ns) & (ends <= r.end_ns)]
        gaps.append(float(np.diff(np.concatenate(([r.first_token_ns], inside))).max()))
    found = tail(diagnose(replace(made, requests=made.requests.assign(itl_max_ns=gaps))), "itl_max")
    assert found.dominant == "interference"
    assert share(found, "unknown") == 0.0
    half = [gap / 2 for gap in gaps]
    other = tail(diagnose(replace(made, requests=made.requests.assign(itl_max_ns=half))), "itl_max")
    assert (other.dominant, share(other, "unknown")) == (None, 1.0)


def test_steps_that_lack_the_tokens_of_the_requests_leave_their_decode_whole() -> None:
    engine, run = interrupted()
    run.steps = [row for at, row in enumerate(run.steps) if at % 10 or row["context_tokens"]]
    found = tail(judged(engine, run), "itl")
    assert found.dominant is None
    assert share(found, "decode") is None
    assert share(found, "unknown") == 1.0
    assert any("step rows do not hold the tokens" in note for note in found.notes)


def test_requests_in_a_profiler_pause_are_left_out() -> None:
    engine, run = queued()
    made = as_marked(inputs(run, engine), run)
    whole = tail(diagnose(made), "ttft")
    burst = Interval(20 * S, 20 * S + 100 * MS, "profiler window")
    assert tail(diagnose(replace(made, pauses=(burst,))), "ttft").requests < whole.requests - 10


@pytest.mark.parametrize("drop", ["requests", "arrivals"])
def test_without_requests_on_this_clock_it_is_left_open_with_what_to_obtain(drop: str) -> None:
    engine, run = queued()
    made = inputs(run, engine)
    rows = table(REQUESTS, []) if drop == "requests" else made.requests.assign(arrival_ns=pd.NA)
    diagnosis = diagnose(replace(made, requests=rows.astype({"arrival_ns": "Int64"})))
    assert diagnosis.tails == ()
    assert "spyreprof_agent" in open_topics(diagnosis)["what dominates the 99th percentile of latencies"]


def test_without_steps_it_is_left_open_too() -> None:
    engine, run = queued()
    made = inputs(run, engine)
    diagnosis = diagnose(replace(made, steps=made.steps.iloc[:0]))
    assert "step" in open_topics(diagnosis)["what dominates the 99th percentile of latencies"]


def test_without_steps_the_marks_still_tell_the_queue_and_leave_the_decode_whole() -> None:
    engine, run = queued()
    made = as_marked(inputs(run, engine), run)
    diagnosis = diagnose(replace(made, steps=made.steps.iloc[:0]))
    assert tail(diagnosis, "ttft").dominant == "queue"
    assert (share(tail(diagnosis, "itl"), "decode"), share(tail(diagnosis, "itl"), "unknown")) == (None, 1.0)
    assert finding(diagnosis).severity == "info"
    assert set(finding(diagnosis).evidence) <= {e.id for e in diagnosis.evidence}
    assert "what dominates the 99th percentile of latencies" not in open_topics(diagnosis)


# Where it begins to speak


@pytest.mark.parametrize(("count", "speaks"), [(199, False), (200, True)])
def test_fewer_than_two_hundred_requests_are_withheld(count: int, speaks: bool) -> None:
    engine, run = queued()
    made = as_marked(inputs(run, engine), run)
    inside = diagnose(made).window
    kept = made.requests[made.requests["arrival_ns"].between(inside.start_ns, inside.end_ns - 1)].iloc[-count:]
    diagnosis = diagnose(replace(made, requests=kept))
    assert bool(diagnosis.tails) is speaks
    reason = open_topics(diagnosis).get("what dominates the 99th percentile of latencies", "")
    assert (f"{count} requests" in reason) is not speaks


def test_of_many_requests_the_slowest_are_one_in_a_hundred() -> None:
    run = replay(ENGINE, steady(2_150, every_ms=100, output=2))
    found = tail(judged(ENGINE, run), "e2e")
    assert found.slowest == -(-found.requests // 100)
    assert found.slowest > 20


@pytest.mark.parametrize(("queue_s", "dominant"), [(0.50, "queue"), (0.49, None)])
def test_what_makes_less_than_half_of_the_difference_does_not_dominate(queue_s: float, dominant: str | None) -> None:
    more = {"queue": queue_s, "prefill": 0.26, "decode": -0.5, "unknown": 0.74 - queue_s, "front_end": None}
    rows = [
        TailPart(id=name, slowest_ns=1, slowest_share=0.1, median_ns=1, median_share=0.1, excess_s=excess)
        for name, excess in more.items()
    ]
    part, share_of_it, reason = _dominant(rows, 2.0, 1.0, rules()["SPY-P99-001"])
    assert part == dominant
    assert share_of_it == (queue_s if dominant else None)
    assert ("no part makes most" in reason) is (dominant is None)


@pytest.mark.parametrize(("late_ms", "told"), [(6, False), (12, True)])
def test_a_tail_that_is_hardly_longer_than_the_rest_is_no_tail(late_ms: int, told: bool) -> None:
    """A first token takes 36 ms here; a fifth more is 43 ms."""
    run = replay(ENGINE, steady(300))
    made = with_client(as_marked(inputs(run, ENGINE), run), (np.arange(300) % 12 == 0) * late_ms * MS, 0)
    found = tail(diagnose(made), "ttft")
    assert (found.dominant is not None) is told
    assert ("hardly slower" in found.reason) is not told


@pytest.mark.parametrize(
    ("strangers", "source"), [(15, "load generator's log"), (16, "requests marked by the program")]
)
def test_a_client_is_matched_with_the_marks_when_nineteen_of_twenty_of_its_requests_are(
    strangers: int, source: str
) -> None:
    run = replay(ENGINE, steady(300))
    made = with_client(as_marked(inputs(run, ENGINE), run), 2 * MS)
    rows = made.requests.index[made.requests["source"] == "bench_result"][:strangers]
    made.requests.loc[rows, "prompt_tokens"] = 99
    times = request_time(
        request_log(made.requests), marked_requests(made.requests), engine_steps(made.steps, "1-a"), made, 1, rules()
    )
    assert times.log.source == source


@pytest.mark.parametrize(("lost", "told"), [(75, True), (76, False)])
def test_steps_count_as_whole_from_nineteen_of_twenty_tokens_on(lost: int, told: bool) -> None:
    """Three hundred requests of six tokens get five each from steps that generate."""
    run = replay(ENGINE, steady(300))
    generating = [row for row in run.steps if row["generation_requests"]]
    assert sum(row["generation_tokens"] for row in generating) == 1500
    for row in generating[:lost]:
        row["generation_tokens"] = 0
    assert ("decode" not in times_of(ENGINE, run, 1).untold) is told


@pytest.mark.parametrize(("missed", "unknown"), [(2, False), (3, True)])
def test_a_step_or_two_at_the_ends_of_a_request_are_no_steps_that_passed_it_by(missed: int, unknown: bool) -> None:
    run = replay(ENGINE, steady(300))
    times = times_of(ENGINE, run, 1, output_tokens=6 - missed)
    assert bool((times.later["unknown"] > 0).any()) is unknown


@pytest.mark.parametrize(("stretch", "told"), [(1.25, True), (1.26, False)])
def test_a_largest_gap_is_the_engines_longest_stretch_when_they_differ_by_a_fifth_at_most(
    stretch: float, told: bool
) -> None:
    """Steps that decode take 20 ms and 0.1 ms lie between them."""
    run = replay(ENGINE, steady(300))
    found = tail(judged(ENGINE, run, itl_max_ns=20.1 * MS * stretch), "itl_max")
    assert (share(found, "decode") > 0) is told
    assert (share(found, "unknown") == 1.0) is not told


# The finding


def test_a_target_that_the_slowest_requests_miss_makes_the_finding_matter() -> None:
    assert finding(judged(*queued())).severity == "info"
    missed = judged(*queued(), {"ttft_p99_s": 0.05})
    assert finding(missed).severity == "medium"
    assert "target is missed" in finding(missed).text
    assert (tail(missed, "ttft").target_p99_s, tail(missed, "ttft").target_met) == (0.05, False)
    assert finding(judged(*queued(), {"ttft_p99_s": 60.0})).severity == "info"


def test_every_number_of_the_finding_exists_and_something_speaks_against_it() -> None:
    diagnosis = judged(*queued())
    found = finding(diagnosis)
    assert found.evidence and found.against
    assert set(found.evidence) <= {e.id for e in diagnosis.evidence}


def test_requests_that_are_all_alike_make_no_finding() -> None:
    assert finding(judged(ENGINE, replay(ENGINE, steady(300)))) is None


def test_a_healthy_load_has_nothing_above_info() -> None:
    engine = Engine(noise=0.05)
    diagnosis = judged(engine, replay(engine, open_loop(4, 1.2, 300, (10, 20), (6, 10))))
    assert diagnosis.tails
    assert finding(diagnosis) is None or finding(diagnosis).severity == "info"


# Sums


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), source=st.sampled_from(["client", "marks", "both"]), cap=st.sampled_from([2, 4, 16]),
    engines=st.integers(1, 2),
)  # fmt: skip
def test_parts_add_up_to_the_time_of_every_request_to_the_nanosecond(
    seed: int, source: str, cap: int, engines: int
) -> None:
    engine = Engine(fixed_ns=20 * MS, max_num_seqs=cap, seed=seed, kv_tokens=200, reserve_output=bool(seed % 2))
    run = replay(engine, open_loop(seed, 4.0, 6, (5, 60), (1, 20)))
    if not run.requests:
        return
    made = inputs(run, engine, compiles=(Interval(2 * S, 2 * S + seed * MS // 5, "compile"),))
    if source != "client":
        made = as_marked(made, run)
    if source == "both":
        made = with_client(made, 3 * MS)
    log, marked = request_log(made.requests), marked_requests(made.requests)
    times = request_time(
        None if source == "marks" else log, marked, engine_steps(made.steps, "1-a"), made, engines, rules()
    )
    assert (sum(times.first.values()) == times.log.ttft_ns).all()
    assert (sum(times.later.values()) == times.log.e2e_ns - times.log.ttft_ns).all()
    for part in (*times.first.values(), *times.later.values()):
        assert part.dtype == np.int64
        assert (part >= 0).all()


@pytest.mark.parametrize("with_marks", [True, False])
def test_the_parts_of_both_groups_add_up_to_their_time(with_marks: bool) -> None:
    engine, run = queued()
    made = inputs(run, engine)
    for found in diagnose(as_marked(made, run) if with_marks else made).tails:
        for group in ("slowest", "median"):
            ns = [getattr(row, f"{group}_ns") for row in found.parts if getattr(row, f"{group}_ns") is not None]
            assert sum(ns) == getattr(found, f"{group}_ns")
        if found.metric in ("ttft", "e2e"):
            assert found.slowest_ns == pytest.approx(found.slowest_mean_s * found.slowest * S, rel=1e-9)


@pytest.mark.parametrize("load", [queued, interrupted, preempting])
def test_the_order_of_the_rows_is_irrelevant(load) -> None:
    engine, run = load()
    made = with_client(as_marked(inputs(run, engine), run), 2 * MS)
    shuffled = made.requests.sample(frac=1.0, random_state=1, ignore_index=True)
    assert diagnose(replace(made, requests=shuffled)).tails == diagnose(made).tails


def times_of(engine: Engine, run: Run, engines: int, **columns: object) -> RequestTime:
    made = as_marked(inputs(run, engine), run, **columns)
    everything = engine_steps(made.steps, "1-a")
    return request_time(None, marked_requests(made.requests), everything, made, engines, rules())


def test_requests_of_several_engines_keep_their_queue_and_prefill_and_leave_their_decode_whole() -> None:
    engine, run = queued()
    one, two = times_of(engine, run, 1), times_of(engine, run, 2)
    assert (two.first["queue"] == one.first["queue"]).all()
    assert "decode" not in two.later
    assert (two.later["unknown"] == two.log.e2e_ns - two.log.ttft_ns).all()
    assert any("several engines" in note for note in two.notes)


def test_where_a_step_may_give_several_tokens_the_decode_of_preempted_requests_is_not_known() -> None:
    engine, run = preempting()
    again = np.arange(len(run.requests)) % 30 == 0
    for row in run.steps:
        row["generation_tokens"] *= 2
    times = times_of(engine, run, 1, preemptions=again.astype(int))
    decoded = times.log.e2e_ns - times.log.ttft_ns
    known = times.log.preemptions == 0
    assert (times.later["unknown"][~known] == decoded[~known]).all()
    assert times.later["decode"][known].sum() > 0
    assert "preemption" in times.untold
    assert "preemption" not in times_of(engine, run, 1, preemptions=0).untold
