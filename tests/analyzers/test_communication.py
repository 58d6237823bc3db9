"""Collectives side by side: transfer, waiting, late ranks, and what they make of a verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from engine_builder import MS, Engine, Request, inputs, replay, table
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.findings import Diagnosis
from spyreprof.recording.schema import COLLECTIVES, STEPS, AnalysisInputs, Interval
from spyreprof.rules import load_rules
from spyreprof.targets import Targets
from spyreprof.trace.profiled import OperatorTime, ProfiledStep
from spyreprof_analyzers.collectives import Calls, match_calls, split_blocked
from spyreprof_analyzers.communication import ranks_of
from spyreprof_analyzers.diagnose import diagnose
from spyreprof_analyzers.engine_steps import engine_steps, steps_by_writer

RULES = load_rules()
A, B, C = "10-a", "11-b", "12-c"
STEP_NS = 100 * MS


def call(writer: str, rank: int, seq: int, start_ns: int, end_ns: int | None, **changes: object) -> dict[str, object]:
    row = {
        "launch_ns": start_ns, "start_ns": start_ns, "end_ns": end_ns, "writer": writer, "op": "all_reduce",
        "bytes": 1_000_000, "group": 7, "size": 2, "rank": rank, "seq": seq, "blocking": True,
    }  # fmt: skip
    return {**row, **changes}


def calls_of(*rows: dict[str, object]) -> pd.DataFrame:
    return table(COLLECTIVES, sorted(rows, key=lambda row: row["launch_ns"]))


def matched(*rows: dict[str, object], writers: tuple[str, ...] = (A, B)) -> Calls:
    return match_calls(calls_of(*rows), writers)


# One call of n ranks: arrivals, and an end after the last of them on every rank.
ARRIVALS = st.integers(2, 5).flatmap(
    lambda ranks: st.tuples(
        st.lists(st.integers(0, 10**9), min_size=ranks, max_size=ranks),
        st.lists(st.integers(0, 10**8), min_size=ranks, max_size=ranks),
    )
)


@given(ARRIVALS)
def test_transfer_and_waiting_add_up_to_the_blocked_time_of_every_rank(drawn: tuple[list[int], list[int]]) -> None:
    arrivals, tails = (np.array([part]) for part in drawn)
    end = arrivals.max() + tails
    for one_clock in (True, False):
        transfer, wait = split_blocked(arrivals, arrivals, end, one_clock=one_clock)
        assert (transfer + wait == end - arrivals).all()
        assert (transfer >= 0).all()
        assert (wait >= 0).all()
    transfer, wait = split_blocked(arrivals, arrivals, end, one_clock=True)
    assert (transfer == tails).all()
    assert (wait == arrivals.max() - arrivals).all()


@given(ARRIVALS, st.randoms())
def test_the_order_of_the_ranks_does_not_matter(drawn: tuple[list[int], list[int]], random: object) -> None:
    arrivals, tails = (np.array([part]) for part in drawn)
    end = arrivals.max() + tails
    order = list(range(arrivals.shape[1]))
    random.shuffle(order)
    straight = split_blocked(arrivals, arrivals, end, one_clock=True)
    shuffled = split_blocked(arrivals[:, order], arrivals[:, order], end[:, order], one_clock=True)
    for one, other in zip(straight, shuffled, strict=True):
        assert (one[:, order] == other).all()


def test_the_rank_that_comes_last_does_not_wait_and_causes_the_others_waiting() -> None:
    calls = matched(call(A, 0, 1, 0, 50), call(B, 1, 1, 30, 50))
    assert calls.wait_ns.tolist() == [30, 0]
    assert calls.transfer_ns.tolist() == [20, 20]
    assert calls.caused_ns.tolist() == [0, 30]
    assert [calls.writers[place] for place in calls.latest] == [B, B]


def test_calls_are_matched_by_group_and_number_whatever_lies_between() -> None:
    calls = matched(
        call(A, 0, 1, 0, 50), call(A, 0, 1, 60, 80, group=8), call(A, 0, 3, 90, 100),
        call(B, 1, 1, 70, 80, group=8), call(B, 1, 1, 30, 50), call(B, 1, 2, 85, 100),
    )  # fmt: skip
    by_key = {(calls.launch_ns[i]): bool(calls.matched[i]) for i in range(len(calls))}
    assert by_key == {0: True, 60: True, 90: False, 70: True, 30: True, 85: False}


def test_a_send_is_matched_with_its_receive_and_not_with_the_calls_of_the_group() -> None:
    calls = matched(
        call(A, 0, 1, 0, 50), call(A, 0, 1, 60, 90, op="send", peer=1),
        call(B, 1, 1, 70, 90, op="recv", peer=0), call(B, 1, 1, 10, 50),
    )  # fmt: skip
    assert calls.matched.all()
    assert dict(zip(calls.launch_ns.tolist(), calls.wait_ns.tolist(), strict=True)) == {0: 10, 10: 0, 60: 10, 70: 0}


def test_of_a_call_with_async_op_only_the_wait_blocks_and_the_launch_is_the_arrival() -> None:
    calls = matched(
        call(A, 0, 1, 0, 100, launch_ns=0), call(B, 1, 1, 80, 100, launch_ns=40, blocking=False),
        call(A, 0, 2, 200, 220), {**call(B, 1, 2, 210, None, blocking=False), "start_ns": None},
    )  # fmt: skip
    assert calls.wait_ns.tolist() == [40, 0, 10, 0]
    assert calls.transfer_ns.tolist() == [60, 20, 10, 0]


def test_ranks_whose_calls_end_before_the_last_arrives_have_no_common_clock() -> None:
    far = 10**12
    calls = matched(call(A, 0, 1, 0, 50), call(B, 1, 1, far, far + 20))
    assert not calls.one_clock
    assert calls.transfer_ns.tolist() == [20, 20]
    assert calls.wait_ns.tolist() == [30, 0]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((call(A, 0, 1, 0, 50),), "of a group of 2 ranks only 1 left rows"),
        (
            (call(A, 0, 1, 0, 50), call(B, 0, 1, 0, 50), call(C, 1, 1, 0, 50)),
            "2 processes say that they are rank 0 of one group",
        ),
        (
            (call(A, 0, 1, 0, 50), call(B, 1, 1, 0, 50), call(C, 2, 1, 0, 50)),
            "3 ranks left rows of a group of 2",
        ),
        (
            (call(A, 0, 1, 0, 50), call(A, 1, 1, 0, 50)),
            "one process says that it is several ranks of one group",
        ),
    ],
)
def test_a_rank_that_is_missing_or_twofold_leaves_calls_unmatched_with_the_reason(
    rows: tuple[dict[str, object], ...], reason: str
) -> None:
    calls = matched(*rows, writers=(A, B, C))
    assert not calls.matched.any()
    assert calls.missing == reason


@pytest.mark.parametrize(
    ("op", "size", "sent"),
    [
        ("all_reduce", 2, 1_000_000), ("all_reduce", 4, 1_500_000), ("all_gather", 4, 750_000),
        ("reduce_scatter_tensor", 4, 750_000), ("broadcast", 4, 1_000_000), ("send", 2, 1_000_000),
    ],
)  # fmt: skip
def test_what_a_rank_must_send_follows_the_usual_algorithms(op: str, size: int, sent: int) -> None:
    assert matched(call(A, 0, 1, 0, 50, op=op, size=size)).wire_bytes.tolist() == [sent]


def two_ranks(
    *, transfer: float, late: float = 0.0, jitter: float = 0.0, ranks: int = 2, missing: bool = False, steps: int = 400
) -> AnalysisInputs:
    """Steps of 100 ms on each of several ranks; shares of a step go to transfer, and to waiting for rank 1.

    With `jitter`, ranks are late in turn instead.
    """
    run = replay(Engine(), [Request(0, 16, steps)])
    base = inputs(run, Engine(), counters=inputs(run, Engine()).counters.iloc[:0])
    names = (A, B, C)[:ranks]
    step_rows, call_rows, profiled = [], [], []
    for number in range(steps):
        begin = number * (STEP_NS + MS)
        end = begin + STEP_NS
        arrives = end - int(transfer * STEP_NS)
        for rank, name in enumerate(names):
            row = {
                "start_ns": begin, "end_ns": end, "writer": name, "rank": rank, "source": "annotation", "compiles": 0,
                "context_requests": 0, "context_tokens": 0, "generation_requests": 8, "generation_tokens": 8,
                "generation_seq_len_sum": 800, "phase": "decode", "profiled": False,
            }  # fmt: skip
            step_rows.append(row)
            early = 0 if rank == 1 else int(late * STEP_NS)
            if jitter:
                early = 0 if rank == number % ranks else int(jitter * STEP_NS)
            if not (missing and rank == 1):
                call_rows.append(call(name, rank, number + 1, arrives - early, end, size=ranks))
    for number in (100, 200):
        begin = number * (STEP_NS + MS)
        for rank, name in enumerate(names):
            own = [row for row in call_rows if row["writer"] == name and begin <= row["start_ns"] < begin + STEP_NS]
            blocked = own[0]["end_ns"] - own[0]["start_ns"] if own else int(transfer * STEP_NS)
            # rank 1 sleeps where the others wait for it
            asleep = int(late * STEP_NS) if rank == 1 else 0
            work = STEP_NS - blocked - asleep
            profiled.append(
                ProfiledStep(
                    window=1, start_ns=begin, end_ns=begin + STEP_NS, context_requests=0, context_tokens=0,
                    generation_requests=8, generation_tokens=8, device_kind="cpu", operator_count=40, writer=name,
                    operators=(
                        OperatorTime("matmul", work, 40, work, work * 8, work),
                        OperatorTime("communication", 0, 1, None, None, 0),
                    ),
                    gap_ns=blocked + asleep, device_busy_ns=None,
                )
            )  # fmt: skip
    return replace(
        base,
        steps=table(STEPS, sorted(step_rows, key=lambda row: row["start_ns"])),
        collectives=calls_of(*call_rows),
        profiled_steps=tuple(profiled),
        recording_end_ns=steps * (STEP_NS + MS),
    )


def judged(made: AnalysisInputs) -> Diagnosis:
    return diagnose(made, RULES, Targets())


def ids(diagnosis: Diagnosis) -> list[str]:
    return [finding.id for finding in diagnosis.findings]


def evidence(diagnosis: Diagnosis, metric: str) -> float:
    return next(entry.value for entry in diagnosis.evidence if entry.metric == metric)


def test_a_link_that_takes_most_of_the_step_binds() -> None:
    diagnosis = judged(two_ranks(transfer=0.7))
    assert diagnosis.verdict.primary == "interconnect_bound"
    assert {view.name: view.agrees for view in diagnosis.verdict.witnesses} == {
        "device_trace": True, "engine": True, "requests": None,
    }  # fmt: skip
    assert "SPY-NET-001" in ids(diagnosis)
    assert "SPY-NET-002" not in ids(diagnosis)
    # 1 MB of an all-reduce of two ranks in 70 ms
    assert evidence(diagnosis, "communication.sent_bytes_per_s") == pytest.approx(1e6 / 0.07, rel=1e-6)
    assert evidence(diagnosis, "decode.transfer_share") == pytest.approx(0.7)
    assert not any("several processes" in reason for reason in diagnosis.verdict.confidence_reasons)


def test_the_headline_counts_only_the_time_in_which_data_moves() -> None:
    diagnosis = judged(two_ranks(transfer=0.6))
    assert diagnosis.verdict.headline.endswith("(59.4 % of the window).")


def test_a_link_that_nearly_binds_lowers_the_confidence_in_what_does() -> None:
    verdict = judged(two_ranks(transfer=0.46)).verdict
    assert verdict.primary != "interconnect_bound"
    assert verdict.confidence != "high"
    assert "the two largest parts of a step are close" in verdict.confidence_reasons


def test_a_link_that_takes_little_of_the_step_does_not_bind() -> None:
    diagnosis = judged(two_ranks(transfer=0.1))
    assert diagnosis.verdict.primary == "decode_bandwidth_bound"
    assert not {"SPY-NET-001", "SPY-NET-002"} & set(ids(diagnosis))


@pytest.mark.parametrize(("transfer", "binds"), [(0.24, False), (0.60, True)])
def test_both_sides_of_the_share_from_which_a_link_binds(transfer: float, binds: bool) -> None:
    assert (judged(two_ranks(transfer=transfer)).verdict.primary == "interconnect_bound") == binds


def test_without_profiled_steps_only_more_than_half_the_step_is_the_links_for_sure() -> None:
    for transfer, expected in ((0.45, False), (0.55, True)):
        made = replace(two_ranks(transfer=transfer), profiled_steps=())
        verdict = judged(made).verdict
        assert (verdict.primary == "interconnect_bound") == expected
        if expected:
            assert verdict.confidence != "high"


def test_a_late_rank_is_named_and_what_binds_it_is_the_verdict() -> None:
    diagnosis = judged(two_ranks(transfer=0.15, late=0.55))
    assert diagnosis.verdict.primary == "host_bound"
    late = next(finding for finding in diagnosis.findings if finding.id == "SPY-NET-002")
    assert late.text.startswith("Rank 1 ")
    assert evidence(diagnosis, "communication.late_ns") == 55 * MS
    assert evidence(diagnosis, "communication.others_wait_share") == pytest.approx(0.55)
    assert "SPY-NET-001" not in ids(diagnosis)


def test_ranks_that_are_late_in_turn_make_no_late_rank() -> None:
    diagnosis = judged(two_ranks(transfer=0.5, jitter=0.3))
    assert "SPY-NET-002" not in ids(diagnosis)
    assert diagnosis.verdict.primary == "interconnect_bound"


def test_three_ranks_are_judged_by_the_one_that_waits_least() -> None:
    diagnosis = judged(two_ranks(transfer=0.15, late=0.55, ranks=3))
    assert diagnosis.verdict.primary == "host_bound"
    assert next(f for f in diagnosis.findings if f.id == "SPY-NET-002").text.startswith("Rank 1 ")


def test_with_a_rank_missing_the_time_in_collectives_is_not_laid_at_the_links_door() -> None:
    diagnosis = judged(two_ranks(transfer=0.7, missing=True))
    assert diagnosis.verdict.primary == "undetermined"
    open_question = next(entry for entry in diagnosis.not_judged if "late rank" in entry.topic)
    assert open_question.reason == "of a group of 2 ranks only 1 left rows"
    assert not {"SPY-NET-001", "SPY-NET-002"} & set(ids(diagnosis))


def test_on_an_accelerator_the_time_of_a_call_says_nothing() -> None:
    diagnosis = judged(replace(two_ranks(transfer=0.7), device_kind="cuda", profiled_steps=()))
    assert diagnosis.verdict.primary != "interconnect_bound"
    assert any(entry.topic == "waiting between ranks" for entry in diagnosis.not_judged)


def test_a_pause_of_any_rank_is_a_pause_of_all() -> None:
    start_ns = 200 * (STEP_NS + MS)
    pause = Interval(start_ns + MS, start_ns + 3 * STEP_NS, "profiler window", B)
    diagnosis = judged(replace(two_ranks(transfer=0.7), pauses=(pause,)))
    budget = diagnosis.time_budget
    assert budget is not None
    paused = [part.ns for part in budget.excluded if part.reason.startswith("profiler windows")]
    assert paused == [pause.end_ns - pause.start_ns]


def test_the_budget_closes_and_names_waiting_apart_from_transfer() -> None:
    diagnosis = judged(two_ranks(transfer=0.4, jitter=0.3))
    budget = diagnosis.time_budget
    assert budget is not None
    assert sum(part.ns for part in budget.parts) + budget.unexplained_ns == budget.window_ns
    shares = {part.id: part.share for part in budget.parts}
    assert shares["decode.exposed_communication"] == pytest.approx(0.4, abs=0.01)
    assert shares["decode.waiting_for_ranks"] == pytest.approx(0.15, abs=0.01)


def views(diagnosis: Diagnosis) -> dict[str, str | None]:
    return {view.name: view.says for view in diagnosis.verdict.witnesses}


def test_profiled_steps_that_mostly_wait_for_a_rank_do_not_speak_for_the_link() -> None:
    """The judged rank is the last one in steps 100 and 200 and waits for half of the steps after them."""
    made = two_ranks(transfer=0.48, jitter=0.5)
    later = tuple(
        replace(step, start_ns=step.start_ns + STEP_NS + MS, end_ns=step.end_ns + STEP_NS + MS)
        for step in made.profiled_steps
    )
    moving, waiting = judged(made), judged(replace(made, profiled_steps=later))
    assert moving.verdict.primary == waiting.verdict.primary == "interconnect_bound"
    assert views(moving)["device_trace"] == "interconnect_bound"
    assert views(waiting)["device_trace"] is None
    # for as long a collective blocks and no operator runs
    assert evidence(waiting, "decode.trace_exposed_share") == pytest.approx(0.48)


def with_host(made: AnalysisInputs, ratio: float) -> AnalysisInputs:
    """The same with so much of the work of profiled steps passing outside operators."""

    def changed(step: ProfiledStep) -> ProfiledStep:
        work, rest = step.operators
        host = int(work.ns * ratio)
        smaller = OperatorTime("matmul", work.ns - host, work.count, work.flops, work.bytes, work.ns - host)
        return replace(step, operators=(smaller, rest), gap_ns=step.gap_ns + host)

    return replace(made, profiled_steps=tuple(changed(step) for step in made.profiled_steps))


@pytest.mark.parametrize(("transfer", "engine"), [(0.45, None), (0.55, "interconnect_bound")])
def test_without_the_traces_split_the_engine_names_the_link_from_half_of_all_steps(
    transfer: float, engine: str | None
) -> None:
    """The rest of a step is the host's and the device's by halves, which only the trace can tell."""
    diagnosis = judged(with_host(two_ranks(transfer=transfer), 0.5))
    assert diagnosis.verdict.primary == "interconnect_bound"
    assert views(diagnosis)["device_trace"] == "interconnect_bound"
    assert views(diagnosis)["engine"] == engine
    assert diagnosis.verdict.confidence != "high" or engine is not None
    decode = next(phase for phase in diagnosis.phases if phase.phase == "decode")
    assert {view.name: view.says for view in decode.views}["engine"] == engine


def test_each_witness_of_the_link_cites_its_own_numbers() -> None:
    diagnosis = judged(two_ranks(transfer=0.7))
    metric = {entry.id: entry.metric for entry in diagnosis.evidence}
    cited = {view.name: {metric[one] for one in view.evidence} for view in diagnosis.verdict.witnesses}
    assert cited["device_trace"] == {"decode.trace_exposed_share", "decode.trace_transfer_share"}
    assert {"decode.transfer_share", "decode.rank_wait_share"} <= cited["engine"]
    assert not cited["engine"] & cited["device_trace"]


def test_the_steps_of_several_processes_are_those_of_each() -> None:
    steps = two_ranks(transfer=0.5, steps=20).steps.iloc[::-1]
    found = steps_by_writer(steps, (A, B, C))
    assert list(found) == [A, B, C]
    for writer in (A, B):
        alone = engine_steps(steps, writer)
        assert len(alone) == 20
        assert all((getattr(found[writer], name) == getattr(alone, name)).all() for name in alone.__slots__)
    assert len(found[C]) == 0


@pytest.mark.parametrize(("part", "judged_rank"), [(0.6, 1), (0.4, 0)])
def test_a_process_that_ran_few_of_the_steps_is_not_the_one_that_is_judged(part: float, judged_rank: int) -> None:
    """Rank 1 is waited for and waits for nobody, but ran only a part of the steps."""
    made = two_ranks(transfer=0.3, late=0.3, steps=100)
    late = made.steps["writer"] == B
    few = made.steps[~late | (made.steps["start_ns"] < part * made.recording_end_ns)]
    assert ranks_of(replace(made, steps=few), A, RULES).judged == (A, B)[judged_rank]
