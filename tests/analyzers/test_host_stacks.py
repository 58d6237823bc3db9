"""Where the host spends its time, from tables of stacks with known shares."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from spyreprof.findings import Finding
from spyreprof.recording.schema import STACKS
from spyreprof.rules import load_rules
from spyreprof_analyzers.book import EvidenceBook
from spyreprof_analyzers.host_stacks import ProcessStacks, describe, pid_of, process_stacks

RULES = load_rules()
S = 1_000_000_000
WORKS, WAITS = False, True


def window(
    start_s: int, looks: int, stacks: dict[tuple[str, int], tuple[int, bool]], **changes: Any
) -> list[dict[str, Any]]:
    """Rows of one window of 8 s. Keys are (thread, frame), values (looks that found it there, a waiting function)."""
    common = {
        "start_ns": start_s * S,
        "end_ns": (start_s + 8) * S,
        "pid": 7,
        "looks": looks,
        "rate_hz": 50,
        "with_sleeping": False,
        "state_known": True,
        "complete": True,
        **changes,
    }
    empty = {**common, "thread": None, "frame": None, "waiting": None, "count": 0, "state_known": None}
    return [
        {**common, "thread": thread, "frame": frame, "waiting": waiting, "count": count}
        for (thread, frame), (count, waiting) in stacks.items()
    ] or [empty]


def table(*windows: list[dict[str, Any]]) -> pd.DataFrame:
    rows = [row for one in windows for row in one]
    dtypes = {column.name: column.dtype for column in STACKS if column.name not in {"function", "file"}}
    dtypes["frame"] = "Int64"
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=dtype) for name, dtype in dtypes.items()})


def seen(stacks: pd.DataFrame, start_s: int = 0, end_s: int = 1000, pid: int | None = 7) -> ProcessStacks:
    found = process_stacks(stacks, start_s * S, end_s * S, RULES, pid)
    assert found is not None
    return found


def finding(stacks: pd.DataFrame) -> tuple[Finding | None, EvidenceBook]:
    book = EvidenceBook()
    return describe(seen(stacks), RULES, book, of="the process"), book


def test_the_busiest_thread_works_in_the_looks_that_found_it_running_in_no_waiting_function() -> None:
    stacks = table(window(0, 400, {("1", 0): (200, WORKS), ("1", 1): (100, WAITS), ("2", 0): (50, WORKS)}))
    found = seen(stacks)
    assert found.working_share == pytest.approx(0.5)
    assert found.share_of_work == pytest.approx(200 / 250)
    assert found.functions == ((0, 1.0),)


def test_windows_of_all_threads_tell_where_it_waits_and_not_how_much_it_works() -> None:
    stacks = table(
        window(0, 400, {("1", 0): (200, WORKS)}),
        # present in frame 0 for 30 of 40 looks, running there for half of all: a quarter of the time it sleeps there
        window(8, 40, {("1", 0): (30, WORKS), ("1", 1): (10, WAITS), ("2", 5): (40, WAITS)}, with_sleeping=True),
    )
    found = seen(stacks)
    assert found.working_share == pytest.approx(0.5)
    assert found.looks == 400
    assert dict(found.waits) == {0: pytest.approx(0.25), 1: pytest.approx(0.25)}


def test_only_windows_of_the_judged_time_and_process_count() -> None:
    stacks = table(
        window(0, 400, {("1", 0): (400, WORKS)}),
        window(100, 400, {("1", 3): (100, WORKS)}),
        window(100, 400, {("9", 4): (400, WORKS)}, pid=8),
    )
    found = seen(stacks, 90, 200)
    assert (found.pid, found.working_share, found.functions) == (7, pytest.approx(0.25), ((3, 1.0),))
    assert process_stacks(stacks, 90 * S, 200 * S, RULES, 99) is None
    assert process_stacks(stacks, 500 * S, 600 * S, RULES, 7) is None
    assert process_stacks(None, 0, S, RULES, 7) is None


def test_without_a_judged_process_the_one_that_worked_most_is_described() -> None:
    stacks = table(window(0, 400, {("1", 0): (10, WORKS)}), window(0, 400, {("9", 4): (300, WORKS)}, pid=8))
    assert seen(stacks, pid=None).pid == 8


def test_windows_cut_short_do_not_count_where_there_are_whole_ones() -> None:
    whole = window(0, 400, {("1", 0): (400, WORKS)})
    cut = window(8, 400, {("1", 0): (40, WORKS)}, complete=False)
    assert seen(table(whole, cut)).working_share == pytest.approx(1.0)
    alone = seen(table(cut))
    assert alone.cut_short
    assert alone.working_share == pytest.approx(0.1)


@pytest.mark.parametrize(("others", "named"), [(99, True), (100, False)])
def test_a_function_is_named_from_a_hundredth_of_the_work_on(others: int, named: bool) -> None:
    found = seen(table(window(0, 200, {("main", 1): (others, WORKS), ("main", 2): (1, WORKS)})))
    assert (2 in [frame for frame, _ in found.functions]) is named


@pytest.mark.parametrize(("looks", "waits"), [(5, True), (4, False)])
def test_a_place_is_one_where_a_thread_waits_from_a_twentieth_of_the_looks_on(looks: int, waits: bool) -> None:
    running = window(0, 100, {("main", 1): (50, WORKS)})
    sleeping = window(10, 100, {("main", 1): (50, WORKS), ("main", 2): (looks, WAITS)}, with_sleeping=True)
    assert bool(seen(table(running, sleeping)).waits) is waits


def test_a_process_that_only_sleeps_has_no_function_to_name() -> None:
    found, _ = finding(table(window(0, 400, {})))
    assert found is not None
    assert "worked in 0.0 %" in found.text
    assert "frame#" not in found.text


@pytest.mark.parametrize(("looks", "told"), [(99, False), (100, True)])
def test_it_is_told_from_a_hundred_looks_on(looks: int, told: bool) -> None:
    found, _ = finding(table(window(0, looks, {("1", 0): (looks // 2, WORKS)})))
    assert (found is not None) == told


def test_the_finding_names_functions_by_number_and_every_number_has_its_evidence() -> None:
    stacks = table(
        window(0, 400, {("1", 0): (300, WORKS), ("1", 1): (99, WORKS), ("1", 2): (1, WORKS)}),
        window(8, 100, {("1", 4): (50, WAITS), ("1", 0): (50, WORKS)}, with_sleeping=True),
    )
    found, book = finding(stacks)
    assert found is not None
    assert (found.id, found.severity, found.share) == ("SPY-HST-002", "info", None)
    assert "frame#0 (75.0 %) and frame#1 (24.8 %)" in found.text
    assert "frame#2" not in found.text, "less than a hundredth of the work"
    assert "waited in or below frame#4" in found.text
    written = {evidence.id: evidence for evidence in book.evidence}
    assert set(found.evidence) == set(written)
    assert all(one.n == 400 and "50 looks a second" in one.source for one in written.values())


def test_a_python_that_does_not_tell_who_sleeps_speaks_against_it() -> None:
    known, _ = finding(table(window(0, 400, {("1", 0): (300, WORKS)})))
    unknown, _ = finding(table(window(0, 400, {("0x7f", 0): (300, WORKS)}, state_known=False)))
    assert known is not None
    assert unknown is not None
    assert "or slept inside C code" in unknown.text
    assert "or slept inside C code" not in known.text
    assert not any("which thread sleeps" in text for text in known.against)
    assert any("which thread sleeps" in text for text in unknown.against)


def test_the_process_of_a_writer_is_in_its_name() -> None:
    assert pid_of("4711-1a2b") == 4711
    assert pid_of("somebody") is None
