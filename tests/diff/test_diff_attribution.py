"""Where a change of time went: in whole nanoseconds that add up, whatever the budgets hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from diff_builders import PHASES, compared, run
from hypothesis import given, settings
from hypothesis import strategies as st

from spyreprof.findings import BudgetPart, TimeBudget
from spyreprof.report.diff.attribution import apportion, attribute
from spyreprof.report.model import Report

PARTS = ("prefill.device_compute", "decode.device_compute", "decode.host", "decode.not_split", "compile",
         "scheduler_gap", "waiting_unscheduled", "no_load")  # fmt: skip


def with_budget(parts: dict[str, int], unexplained_ns: int = 0, tokens: int | None = 100, name: str = "a1") -> Report:
    whole = sum(parts.values()) + unexplained_ns
    budget = TimeBudget(
        window_ns=whole,
        parts=tuple(
            BudgetPart(id=part, ns=ns, share=ns / max(whole, 1), origin="measured") for part, ns in parts.items()
        ),
        unexplained_ns=unexplained_ns,
        unexplained_share=unexplained_ns / max(whole, 1),
    )
    phases = tuple(
        msgspec.structs.replace(phase, generation_tokens=tokens if phase.phase == "decode" else 0) for phase in PHASES
    )
    return run(name, time_budget=budget, phases=phases)


def test_parts_are_time_per_output_token_and_say_what_changed() -> None:
    a = with_budget({"decode.device_compute": 8_000, "decode.host": 1_000, "scheduler_gap": 500}, 500, tokens=10)
    b = with_budget({"decode.device_compute": 8_000, "decode.host": 3_000}, 0, tokens=20)
    found, missing = attribute(a, b, noise=0.1)
    assert missing is None
    assert found is not None
    assert (found.basis, found.a_ns, found.b_ns, found.change_ns) == ("output_token", 1_000, 550, -450)
    assert {part.id: part.change_ns for part in found.parts} == {
        "decode.device_compute": -400,
        "decode.host": 50,
        "scheduler_gap": -50,
        "unexplained": -50,
    }
    assert found.parts[0].id == "decode.device_compute"


def test_without_tokens_the_parts_are_of_a_second_of_the_window() -> None:
    found, _ = attribute(with_budget({"decode.host": 1}, 3, tokens=None), with_budget({"decode.host": 1}, 1), noise=0.1)
    assert found is not None
    assert (found.basis, found.a_ns, found.b_ns) == ("window_second", 1_000_000_000, 1_000_000_000)
    assert {part.id: part.change_ns for part in found.parts} == {
        "decode.host": 250_000_000,
        "unexplained": -250_000_000,
    }


def test_a_phase_that_one_side_could_not_cut_is_compared_whole() -> None:
    a = with_budget({"decode.device_compute": 900, "decode.host": 100}, tokens=1)
    b = with_budget({"decode.not_split": 700}, tokens=1)
    found, _ = attribute(a, b, noise=0.1)
    assert found is not None
    assert [(part.id, part.change_ns) for part in found.parts] == [("decode", -300)]


budgets = st.dictionaries(st.sampled_from(PARTS), st.integers(0, 10**15), max_size=len(PARTS))


@settings(max_examples=200)
@given(budgets, budgets, st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**7), st.integers(0, 10**7))
def test_all_parts_add_up_to_the_nanosecond(
    a: dict[str, int], b: dict[str, int], rest_a: int, rest_b: int, tokens_a: int, tokens_b: int
) -> None:
    sides = (with_budget(a, rest_a, tokens_a), with_budget(b, rest_b, tokens_b))
    found, missing = attribute(*sides, noise=0.1)
    if not (sum(a.values()) + rest_a and sum(b.values()) + rest_b):
        assert found is None
        assert missing
        return
    assert found is not None
    assert sum(part.a_ns for part in found.parts) == found.a_ns
    assert sum(part.b_ns for part in found.parts) == found.b_ns
    assert sum(part.change_ns for part in found.parts) == found.change_ns == found.b_ns - found.a_ns
    for phase in found.phases:
        assert phase.by_steps_ns + phase.by_step_time_ns == phase.change_ns == phase.b_ns - phase.a_ns


@given(st.lists(st.integers(0, 10**18), min_size=1, max_size=20).filter(any), st.integers(0, 10**12))
def test_what_is_apportioned_is_all_there_and_in_proportion(parts: list[int], whole: int) -> None:
    cut = apportion(parts, whole)
    assert sum(cut) == whole
    assert all(abs(piece * sum(parts) - part * whole) <= sum(parts) for piece, part in zip(cut, parts, strict=True))


def test_a_phase_changes_by_the_number_of_its_steps_and_by_their_time() -> None:
    phases = tuple(
        msgspec.structs.replace(phase, steps=phase.steps // 2, time_ns=phase.time_ns // 2)
        if phase.phase == "decode"
        else phase
        for phase in PHASES
    )
    found, _ = attribute(run("a1"), run("b2", phases=phases), noise=0.1)
    assert found is not None
    decode = next(phase for phase in found.phases if phase.phase == "decode")
    assert decode.change_ns < 0
    assert decode.by_steps_ns == pytest.approx(decode.change_ns, rel=1e-3)
    longer = tuple(
        msgspec.structs.replace(phase, time_ns=phase.time_ns * 2) if phase.phase == "decode" else phase
        for phase in PHASES
    )
    found, _ = attribute(run("a1"), run("b2", phases=longer), noise=0.1)
    assert found is not None
    decode = next(phase for phase in found.phases if phase.phase == "decode")
    assert decode.by_steps_ns == 0
    assert decode.by_step_time_ns == decode.change_ns > 0


def test_a_whole_change_within_the_noise_says_that_its_parts_prove_nothing() -> None:
    def within(noise: float | None, tokens: int) -> bool:
        found, _ = attribute(
            with_budget({"decode.host": 10**6}, tokens=100), with_budget({"decode.host": 10**6}, tokens=tokens), noise
        )
        assert found is not None
        return found.within_noise

    assert within(0.1, 105)
    assert not within(0.1, 150)
    assert within(None, 150)


@pytest.mark.parametrize("damage", [{"window_ns": 5}, {"unexplained_ns": -1}])
def test_a_budget_that_does_not_add_up_is_not_cut(damage: dict[str, Any]) -> None:
    b = run("b2")
    assert b.time_budget is not None
    diff = compared(msgspec.structs.replace(b, time_budget=msgspec.structs.replace(b.time_budget, **damage)))
    assert diff.attribution is None
    assert diff.attribution_missing == "B has no time budget that adds up"
    assert compared(run("b2", time_budget=None)).attribution is None
