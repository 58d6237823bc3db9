"""Whether a change is more than noise: floors without repeats, intervals with them."""

from __future__ import annotations

import msgspec
import pytest
from diff_builders import PHASES, change, compared, repeats, run
from hypothesis import given, settings
from hypothesis import strategies as st

from spyreprof.report.diff import thresholds
from spyreprof.report.diff.changes import values_of
from spyreprof.report.model import MachinePeak, Rate


@pytest.mark.parametrize(
    ("tokens_per_s", "outcome"),
    [(109.9, "cannot_tell"), (110.2, "faster"), (91.0, "cannot_tell"), (90.8, "slower"), (200.0, "faster")],
)
def test_single_runs_claim_nothing_below_the_floor(tokens_per_s: float, outcome: str) -> None:
    found = change(compared(run("b2", tokens_per_s=tokens_per_s), run("a1", tokens_per_s=100.0)))
    assert found.outcome == outcome
    assert found.noise == pytest.approx(thresholds.SINGLE_RUN.value)
    assert found.low is not None and found.high is not None and found.change is not None
    assert found.low < found.change < found.high


def test_a_latency_that_rises_is_slower_and_a_tail_needs_more() -> None:
    b = run("b2")
    slow = [msgspec.structs.replace(row, p50_s=row.p50_s * 1.15, p90_s=row.p90_s * 1.15) for row in b.latencies]  # type: ignore[operator]
    diff = compared(msgspec.structs.replace(b, latencies=tuple(slow)))
    assert change(diff, "ttft_p50").outcome == "slower"
    assert change(diff, "ttft_p90").outcome == "cannot_tell"
    assert diff.verdict.outcome == "slower"


def test_gains_and_losses_together_are_a_trade_off_that_names_both() -> None:
    b = run("b2", tokens_per_s=300.0)
    slow = [msgspec.structs.replace(row, p50_s=row.p50_s * 1.5) for row in b.latencies]  # type: ignore[operator]
    verdict = compared(msgspec.structs.replace(b, latencies=tuple(slow))).verdict
    assert verdict.outcome == "trade_off"
    assert "output tokens +71.6 %" in verdict.headline
    assert "itl p50 +50.0 %" in verdict.headline


def test_repeats_that_lie_close_together_tell_a_small_change() -> None:
    a = run("a1", noise_floor=repeats([100.0, 100.5, 99.5, 100.2, 99.8]))
    b = run("b2", noise_floor=repeats([104.0, 104.5, 103.5, 104.2, 103.8]))
    found = change(compared(b, a))
    assert found.outcome == "faster"
    assert found.change == pytest.approx(0.04)
    assert "5 and 5 runs" in found.noise_basis


def test_repeats_of_one_session_do_not_show_what_changes_between_sessions() -> None:
    a = run("a1", peaks=(), noise_floor=repeats([100.0, 100.01, 99.99]))
    b = run("b2", noise_floor=repeats([101.5, 101.51, 101.49]))
    found = change(compared(b, a))
    assert found.outcome == "cannot_tell"
    assert found.noise == pytest.approx(thresholds.BETWEEN_SESSIONS.value)


def test_repeats_that_lie_far_apart_tell_only_a_large_change() -> None:
    a = run("a1", noise_floor=repeats([80.0, 100.0, 120.0]))
    assert change(compared(run("b2", tokens_per_s=115.0), a)).outcome == "cannot_tell"
    assert change(compared(run("b2", tokens_per_s=160.0), a)).outcome == "faster"


def test_repeats_of_one_side_stand_for_the_noise_of_both_and_claim_no_less_than_they_can() -> None:
    a = run("a1", noise_floor=repeats([100.0, 101.0, 99.0]))
    close = change(compared(run("b2", tokens_per_s=103.0), a))
    assert close.outcome == "cannot_tell"
    assert "3 and 1 runs" in close.noise_basis


@settings(max_examples=100)
@given(
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=6),
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=6),
)
def test_the_range_holds_the_change_and_exchanging_the_sides_turns_the_outcome(a: list[float], b: list[float]) -> None:
    sides = [
        run(name, noise_floor=repeats(v) if len(v) > 1 else None, tokens_per_s=v[0])
        for name, v in (("a1", a), ("b2", b))
    ]
    forth, back = change(compared(sides[1], sides[0])), change(compared(sides[0], sides[1]))
    assert forth.low is not None and forth.high is not None and forth.change is not None and forth.noise is not None
    assert forth.low <= forth.change <= forth.high
    assert forth.noise >= thresholds.BETWEEN_SESSIONS.value * 0.999
    if len(a) == len(b) == 1:
        assert forth.noise >= thresholds.SINGLE_RUN.value * 0.999
    turned = {"faster": "slower", "slower": "faster"}.get(forth.outcome, forth.outcome)
    assert back.outcome == turned
    assert (forth.outcome == "cannot_tell") == (forth.low <= 0 <= forth.high)


def test_a_metric_that_one_side_lacks_or_counts_otherwise_is_not_told() -> None:
    b = run("b2")
    assert b.throughput is not None
    lacking = msgspec.structs.replace(b, throughput=None)
    assert change(compared(lacking)).reason == "B has no value"
    assert change(compared(lacking)).b is None
    other = msgspec.structs.replace(b.throughput, output_tokens=Rate(per_s=500.0, source="load generator's log"))
    found = change(compared(msgspec.structs.replace(b, throughput=other)))
    assert found.outcome == "cannot_tell"
    assert "load generator's log" in (found.reason or "")


@pytest.mark.parametrize(("steps", "outcome"), [(29, "cannot_tell"), (30, "slower")])
def test_few_samples_show_no_change(steps: int, outcome: str) -> None:
    phases = tuple(msgspec.structs.replace(phase, steps=steps, step_time_p50_ns=90_000_000) for phase in PHASES)
    found = change(compared(run("b2", phases=phases)), "decode_step_p50")
    assert found.outcome == outcome


def test_a_value_of_zero_is_no_reference() -> None:
    assert "0 cannot be compared" in (change(compared(run("b2", tokens_per_s=0.0))).reason or "")


def test_values_come_from_all_repeats_that_have_them() -> None:
    floor = repeats([100.0, 110.0, 120.0])
    gap = msgspec.structs.replace(floor.metrics[0], values=(100.0, None, 120.0))
    found = values_of(run("a1", noise_floor=msgspec.structs.replace(floor, metrics=(gap,))))
    assert found["output_tokens_per_s"].values == (100.0, 120.0)


def test_a_run_compared_with_itself_tells_nothing() -> None:
    verdict = compared(run("a1"), run("a1")).verdict
    assert (verdict.outcome, verdict.headline) == ("cannot_tell", "A and B are the same run.")


def test_a_machine_whose_peaks_moved_between_single_runs_moves_the_floor() -> None:
    def peaks(speed: float) -> tuple[MachinePeak, ...]:
        return (
            MachinePeak(resource="compute", unit="flop/s", origin="measured", value=speed, before=speed, after=speed),
        )

    a = run("a1", tokens_per_s=100.0, peaks=peaks(100e9))
    assert change(compared(run("b2", tokens_per_s=112.0, peaks=peaks(114e9)), a)).outcome == "cannot_tell"
    assert change(compared(run("b2", tokens_per_s=112.0, peaks=peaks(101e9)), a)).outcome == "faster"
