"""The counter table, and the questions that analyzers ask of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import SECOND, RecordingBuilder
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.recording.counters import answered, delta, exported_engines, info_labels, of_engine, series
from spyreprof.recording.store import Recording, open_recording

RUNNING = "vllm:num_requests_running"


def recorded(tmp_path: Path, *polls: tuple[int, Sequence[str]]) -> Recording:
    return open_recording(RecordingBuilder(tmp_path / "run.spyreprof").metrics(polls).write())


def test_samples_are_rows_with_labels_in_a_fixed_order(tmp_path: Path) -> None:
    counters = recorded(
        tmp_path, (5, ["# TYPE a gauge", 'a{z="1",b="x y}"} 2.5', "b 1e3 1700000000000", "c NaN"])
    ).counters
    assert counters["name"].tolist() == ["a", "b", "c"]
    assert counters["labels"].tolist() == ['{"b": "x y}", "z": "1"}', "{}", "{}"]
    assert counters["value"].tolist()[:2] == [2.5, 1000.0]
    assert math.isnan(counters["value"].iloc[2])
    assert counters["time_ns"].tolist() == [5, 5, 5]


def test_garbage_lines_are_counted_and_cost_only_themselves(tmp_path: Path) -> None:
    recording = recorded(
        tmp_path, (5, ["a 1", 'a{b="cut', "<html>", "a", "a b", 'x{y="z"} ', "a 1 2 3", '"quoted" name 1', "b 2"])
    )
    assert recording.counters["name"].tolist() == ["a", "b"]
    assert recording.quality.counts["garbage_metric_lines"] == 7


@given(st.text(max_size=40))
def test_no_line_can_break_the_reader(line: str) -> None:
    from spyreprof.recording.counters import _sample, _SeriesNames

    sample = _sample(line, _SeriesNames()) if line.strip() else None
    assert sample is None or isinstance(sample[2], float)


def test_a_gauge_is_carried_forward_per_series(tmp_path: Path) -> None:
    recording = recorded(
        tmp_path,
        (1, [f'{RUNNING}{{engine="0"}} 1', f'{RUNNING}{{engine="1"}} 5']),
        (3, [f'{RUNNING}{{engine="0"}} 2']),
    )
    wide = series(recording.counters, RUNNING)
    assert wide.index.tolist() == [1, 3]
    assert wide.sum(axis=1).tolist() == [6, 7]
    one = series(recording.counters, RUNNING, {"engine": "1"})
    assert one.iloc[:, 0].tolist() == [5]


def test_an_absent_metric_has_no_column_and_no_increase(tmp_path: Path) -> None:
    counters = recorded(tmp_path, (1, ["a 1"])).counters
    assert series(counters, RUNNING).shape == (0, 0)
    assert delta(counters, RUNNING) is None
    assert delta(counters, "a", {"engine": "0"}) is None
    assert info_labels(counters, "vllm:cache_config_info") is None


@pytest.mark.parametrize("exposed", ["vllm:prompt_tokens_total", "vllm:prompt_tokens", "ray_vllm:prompt_tokens_total"])
def test_a_counter_is_found_under_the_spellings_in_use(tmp_path: Path, exposed: str) -> None:
    counters = recorded(tmp_path, (1, [f"{exposed} 10"]), (2, [f"{exposed} 25"])).counters
    assert delta(counters, "vllm:prompt_tokens") == 15


def test_an_old_name_is_used_only_where_the_new_one_is_absent(tmp_path: Path) -> None:
    old, new = "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"
    both = recorded(tmp_path / "both", (1, [f"{old} 0.5", f"{new} 0.25"])).counters
    only_old = recorded(tmp_path / "old", (1, [f"{old} 0.5"])).counters
    assert series(both, new).to_numpy().tolist() == [[0.25]]
    assert series(only_old, new).to_numpy().tolist() == [[0.5]]


def test_token_gaps_under_both_names_count_once(tmp_path: Path) -> None:
    names = ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds")
    polls = [(t, [f"{name}_count {value}" for name in names]) for t, value in ((1, 0), (2, 30))]
    assert delta(recorded(tmp_path, *polls).counters, "vllm:inter_token_latency_seconds_count") == 30


def test_a_restarted_server_does_not_make_a_counter_fall(tmp_path: Path) -> None:
    counters = recorded(tmp_path, *((t, [f"a_total {v}"]) for t, v in enumerate([100, 130, 4, 10]))).counters
    assert delta(counters, "a") == 30 + 4 + 6


def test_a_series_born_after_the_first_poll_began_at_zero(tmp_path: Path) -> None:
    counters = recorded(
        tmp_path, (1, ["other 1"]), (2, ['done_total{reason="stop"} 3']), (3, ['done_total{reason="stop"} 5'])
    ).counters
    assert delta(counters, "done") == 5


def test_a_series_seen_in_the_first_poll_only_did_not_rise(tmp_path: Path) -> None:
    counters = recorded(tmp_path, (1, ["a_total 7"]), (2, ["b 1"])).counters
    assert delta(counters, "a") == 0


def test_the_increase_within_a_window_starts_at_the_value_in_force(tmp_path: Path) -> None:
    counters = recorded(tmp_path, *((t, [f"a_total {v}"]) for t, v in ((10, 1), (20, 5), (30, 9), (40, 20)))).counters
    assert delta(counters, "a", start_ns=25, end_ns=35) == 4
    assert delta(counters, "a", start_ns=20) == 15
    assert delta(counters, "a", end_ns=5) is None


def test_a_hit_rate_of_minus_one_means_off_and_is_missing(tmp_path: Path) -> None:
    name = "vllm:gpu_prefix_cache_hit_rate"
    wide = series(recorded(tmp_path, (1, [f"{name} -1"])).counters, name)
    assert wide.isna().all().all()
    assert wide.shape == (1, 1)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.integers(1, 19))
def test_increases_of_adjacent_windows_add_up(steps: list[int], cut: int) -> None:
    total = 0
    rows = []
    for time_ns, step in enumerate(steps):
        total += step
        rows.append((time_ns, 0, "a_total", "{}", float(total)))
    table = pd.DataFrame(rows, columns=["time_ns", "endpoint", "name", "labels", "value"])
    cut = min(cut, len(steps) - 1)
    first, second = delta(table, "a", end_ns=cut), delta(table, "a", start_ns=cut)
    assert first is not None
    assert second is not None
    assert first + second == delta(table, "a") == sum(steps[1:])


def test_an_answer_holds_for_a_while_and_not_longer(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof")
    builder.metrics([(10 * SECOND, ["a 1"]), (11 * SECOND, []), (20 * SECOND, ["a 2"])])
    builder.shard("metrics", [{"t": 12 * SECOND, "endpoint": 0, "lines": [], "ok": False}], "launcher")
    polls = open_recording(builder.write()).polls
    assert polls[["time_ns", "ok"]].values.tolist() == [
        [10 * SECOND, True],
        [11 * SECOND, True],
        [12 * SECOND, False],
        [20 * SECOND, True],
    ]
    times = np.array([9.9, 10, 11, 12.5, 12.6, 19.9, 20, 21.5, 21.6]) * SECOND
    assert answered(polls, 0, times.astype(np.int64)).tolist() == [False, *[True] * 3, False, False, True, True, False]
    assert not answered(polls, 1, times.astype(np.int64)).any()


def test_a_recording_that_noted_changes_alone_sets_no_limit(tmp_path: Path) -> None:
    recording = recorded(tmp_path, (10 * SECOND, ["a 1"]), (20 * SECOND, ["a 2"]))
    assert recording.polls.empty
    assert answered(recording.polls, 0, np.array([19 * SECOND])).all()
    assert answered(None, 0, np.array([19 * SECOND])).all()


def test_an_empty_page_is_no_sign_of_noted_polls(tmp_path: Path) -> None:
    assert recorded(tmp_path, (10 * SECOND, []), (20 * SECOND, ["a 2"])).polls.empty


def test_engines_are_told_apart_by_address_and_labels_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    lines = [f'{RUNNING}{{engine="{number}",model_name="m"}} {number}' for number in (10, 2, 0)]
    counters = recorded(tmp_path, (1, [*lines, 'other{engine="7"} 1'])).counters
    assert [dict(key.labels)["engine"] for key in exported_engines(counters)] == ["0", "2", "10"]
    assert exported_engines(recorded(tmp_path / "a", (1, ["http_requests_total 4"])).counters) == ()


def test_a_page_without_gauges_has_the_engines_that_its_counters_name(tmp_path: Path) -> None:
    lines = [f'vllm:generation_tokens_total{{engine="{number}"}} 5' for number in (0, 1)]
    keys = exported_engines(recorded(tmp_path, (1, [*lines, "vllm:cache_config_info 1"])).counters)
    assert [dict(key.labels) for key in keys] == [{"engine": "0"}, {"engine": "1"}]


def test_samples_of_an_engine_are_its_own_and_settings_that_hold_for_all(tmp_path: Path) -> None:
    lines = [f'{RUNNING}{{engine="{number}"}} {number}' for number in (0, 1)]
    shared = ['vllm:cache_config_info{block_size="16"} 1', "vllm:generation_tokens_total 9"]
    counters = recorded(tmp_path, (1, [*lines, *shared])).counters
    keys = exported_engines(counters)
    first = of_engine(counters, keys[0], keys)
    assert first["name"].tolist() == [RUNNING, "vllm:cache_config_info"]
    assert first["value"].tolist()[0] == 0


def test_labels_without_end_are_no_engines(tmp_path: Path) -> None:
    lines = [f'{RUNNING}{{engine="{number}"}} 1' for number in range(600)]
    assert exported_engines(recorded(tmp_path, (1, lines)).counters) == ()
    assert len(exported_engines(recorded(tmp_path / "few", (1, lines[:64])).counters)) == 64
