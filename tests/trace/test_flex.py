"""Device counters of the older Spyre stack: wrapping, phases, and the clock behind them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from spyreprof.trace import flex
from spyreprof.trace.reader import read_bytes
from spyreprof.trace.table import MISSING, EventTable

TICKS_PER_US = 560
LANE = 2**63 + 4_711


def operation(name: str, ts_us: float, dur_us: float, ticks: list[int], **attr: str) -> list[dict[str, Any]]:
    told = {f"TS{n}": hex(tick % 2**32) for n, tick in enumerate(ticks, 1)} | attr
    common = {"name": name, "pid": 0, "tid": LANE, "attr": told}
    return [{"ph": "B", "ts": ts_us, **common}, {"ph": "E", "ts": ts_us + dur_us, **common}]


def table_of(*events: list[dict[str, Any]]) -> EventTable:
    return read_bytes(json.dumps([event for pair in events for event in pair]).encode(), "test.json")


def test_each_phase_is_told_by_its_own_two_ticks() -> None:
    ticks = [1_000, 1_560, 3_000, 8_600, 8_700]
    names = ("a DmaI", "a Cmpt Prep", "a Prep", "a Cmpt Exec", "a DmaO", "Execute Graph")
    table = table_of(*(operation(name, 10.0 * at, 1.0, ticks) for at, name in enumerate(names)))
    assert flex.span_ticks(table).tolist() == [560, 1_440, 1_440, 5_600, 100, MISSING]
    assert flex.tick_differences(table)[0].tolist() == [560, 1_440, 5_600, 100]


def test_counters_that_wrap_around_give_the_true_difference() -> None:
    table = table_of(operation("mm Cmpt Exec", 0.0, 1.0, [2**32 - 700, 2**32 - 690, 2**32 - 10, 2**32 + 550, 560]))
    assert flex.span_ticks(table).tolist() == [560]


def test_decimal_counters_are_read_like_hexadecimal_ones() -> None:
    pair = operation("mm Cmpt Exec", 0.0, 1.0, [0] * 5, TS3="100", TS4="0x2bc", Bytes="4096", Power="0x438d671c")
    table = table_of(pair)
    assert flex.span_ticks(table).tolist() == [600]
    assert table.arg("bytes").tolist() == [4096]
    assert table.arg("charge").tolist() == [0x438D671C]


def test_a_missing_or_impossible_counter_is_no_zero() -> None:
    short = operation("a Cmpt Exec", 0.0, 1.0, [1, 2, 3])
    odd = operation("b Cmpt Exec", 5.0, 1.0, [1, 2, 3, 4, 5], TS4="0x1ffffffff")
    words = operation("c Cmpt Exec", 9.0, 1.0, [1, 2, 3, 4, 5], TS4="late")
    table = table_of(short, odd, words)
    assert flex.span_ticks(table).tolist() == [MISSING] * 3
    assert flex.tick_clock(table) is None


def test_transfers_keep_their_peer_kind_and_group() -> None:
    transfer = operation("send DmaO", 0.0, 2.0, [0] * 5, Type="MultiCast", Peers="1,2", CollGroup="0x3")
    table = table_of(transfer)
    told = {name: table.text(int(table.arg(name)[0])) for name in ("transfer_type", "peer", "transfer_group")}
    assert told == {"transfer_type": "MultiCast", "peer": "1,2", "transfer_group": "0x3"}


def test_thread_ids_above_63_bits_stay_exact() -> None:
    table = table_of(operation("a Cmpt Exec", 0.0, 1.0, [1, 2, 3, 4, 5]))
    assert table.tid_values == (LANE,)


@pytest.mark.parametrize("wrap", [False, True], ids=["bare list", "object"])
def test_a_bare_list_and_an_object_read_alike(wrap: bool) -> None:
    events = operation("a Cmpt Exec", 0.0, 1.0, [0, 0, 0, TICKS_PER_US, 600])
    table = read_bytes(json.dumps({"traceEvents": events} if wrap else events).encode(), "test.json")
    clock = flex.tick_clock(table)
    assert clock is not None
    assert clock.ticks_per_us == TICKS_PER_US


def test_the_clock_is_fitted_and_spans_that_it_does_not_fit_are_named() -> None:
    rng = np.random.default_rng(7)
    spans = []
    for at, dur_us in enumerate(rng.uniform(0.4, 300, 40).round(3)):
        done = 1_000 + round(float(dur_us) * TICKS_PER_US)
        spans.append(operation(f"op{at} Cmpt Exec", 1_000.0 * at, float(dur_us), [0, 0, 1_000, done, done]))
    spans.append(operation("odd Cmpt Exec", 90_000.0, 100.0, [0, 0, 0, 107 * TICKS_PER_US, 0]))
    table = table_of(*spans)
    clock = flex.tick_clock(table)
    assert clock is not None
    assert clock.spans == 41
    assert clock.ticks_per_us == pytest.approx(TICKS_PER_US, rel=1e-3)
    assert [table.name(at) for at in clock.outliers] == ["odd Cmpt Exec"]


def test_other_traces_hold_no_such_counters() -> None:
    table = table_of([{"ph": "X", "name": "aten::mm", "ts": 0, "dur": 1, "pid": 1, "tid": 1}])
    assert not flex.is_flex(table)
    assert flex.tick_clock(table) is None
    assert flex.span_ticks(table).tolist() == [MISSING]
    assert flex.is_flex(table_of(operation("a Cmpt Exec", 0.0, 1.0, [1, 2, 3, 4, 5])))
