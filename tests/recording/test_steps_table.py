"""The step table: exact columns, phases, and rows that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import START_NS, RecordingBuilder, decode_name, mixed_name, prefill_name

from spyreprof.recording import schema
from spyreprof.recording.store import Recording, open_recording


def recorded(tmp_path: Path, *steps: tuple[Any, ...]) -> Recording:
    return open_recording(RecordingBuilder(tmp_path / "run.spyreprof").process().steps(steps).write())


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("steps", schema.STEPS),
        ("requests", schema.REQUESTS),
        ("counters", schema.COUNTERS),
        ("usage", schema.USAGE),
        ("phases", schema.PHASES),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_every_table_has_exactly_the_declared_columns(
    tmp_path: Path, table: str, columns: tuple[schema.Column, ...], cached: bool
) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").steps([(1, 2, decode_name())]).metrics([(1, ["a 1"])])
    builder.usage([{"t": 1, "pid": 2, "cpu_ns": 3}]).bench(input_lens=[1])
    builder.shard("phases", [{"t0": 1, "t1": 2, "n": "sample"}])
    path = builder.write()
    if cached:
        getattr(open_recording(path), table)
    found = getattr(open_recording(path), table)
    assert len(found) == 1
    assert [(name, str(dtype)) for name, dtype in found.dtypes.items()] == [(c.name, c.dtype) for c in columns]


@pytest.mark.parametrize("table", ["steps", "requests", "counters", "usage"])
def test_a_table_without_rows_still_has_its_columns(tmp_path: Path, table: str) -> None:
    found = getattr(recorded(tmp_path), table)
    assert len(found) == 0
    declared = getattr(schema, table.upper())
    assert [(name, str(dtype)) for name, dtype in found.dtypes.items()] == [(c.name, c.dtype) for c in declared]


def test_a_detailed_name_fills_every_column(tmp_path: Path) -> None:
    name = "execute_66_context_1(sq64sk640sqsq4096sqsk40960)_generation_2(sq2sk100sqsq2sqsk100)"
    row = recorded(tmp_path, (START_NS, START_NS + 7, name, {"c": 3, "p": 1})).steps.iloc[0]
    assert row["start_ns"] == START_NS
    assert row["end_ns"] == START_NS + 7
    assert row["context_requests"] == 1
    assert row["context_tokens"] == 64
    assert row["context_seq_len_sum"] == 640
    assert row["context_q_k_sum"] == 40960
    assert row["generation_requests"] == 2
    assert row["generation_tokens"] == 2
    assert row["generation_seq_len_sum"] == 100
    assert row["compiles"] == 3
    assert row["profiled"]
    assert row["phase"] == "mixed"
    assert row["source"] == "annotation"
    assert pd.isna(row["rank"])


def test_a_simple_name_leaves_the_sums_missing_not_zero(tmp_path: Path) -> None:
    steps = recorded(tmp_path, (1, 2, "execute_context_0(0)_generation_8(8)")).steps
    assert steps["generation_requests"].tolist() == [8]
    assert steps["generation_seq_len_sum"].isna().all()
    assert steps["context_q_k_sum"].isna().all()
    assert steps["phase"].tolist() == ["decode"]
    assert not steps["profiled"].iloc[0]
    assert steps["compiles"].tolist() == [0]


def test_phases_follow_from_what_was_scheduled(tmp_path: Path) -> None:
    names = [
        decode_name(),
        prefill_name(),
        mixed_name(),
        "execute_new_1_cached_3",
        "execute_context_0(0)_generation_0(0)",
    ]
    steps = recorded(tmp_path, *((i, i + 1, name) for i, name in enumerate(names))).steps
    assert steps["phase"].iloc[:3].tolist() == ["decode", "prefill", "mixed"]
    assert steps["phase"].iloc[3:].isna().all()


def test_steps_are_sorted_by_start_across_processes(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof")
    builder.steps([(30, 40, decode_name()), (10, 20, decode_name())], writer="1-a")
    builder.steps([(15, 25, decode_name())], writer="2-b")
    steps = open_recording(builder.write()).steps
    assert steps["start_ns"].tolist() == [10, 15, 30]
    assert steps["writer"].tolist() == ["1-a", "2-b", "1-a"]


def test_nanoseconds_beyond_the_precision_of_a_double_stay_exact_through_the_cache(tmp_path: Path) -> None:
    start = 2**62 + 1
    path = RecordingBuilder(tmp_path / "run.spyreprof").steps([(start, start + 2, decode_name())]).write()
    for _ in range(2):
        steps = open_recording(path).steps
        assert steps["start_ns"].tolist() == [start]
        assert steps["end_ns"].tolist() == [start + 2]


def test_a_step_recorded_twice_counts_once(tmp_path: Path) -> None:
    recording = recorded(tmp_path, (1, 2, decode_name()), (1, 2, decode_name()), (3, 4, decode_name()))
    assert len(recording.steps) == 2
    assert recording.quality.counts["duplicate_steps"] == 1


def test_steps_of_two_processes_may_start_at_the_same_time(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof")
    builder.steps([(1, 2, decode_name())], writer="1-a").steps([(1, 2, decode_name())], writer="2-b")
    assert len(open_recording(builder.write()).steps) == 2


def test_bad_rows_cost_themselves_and_are_counted(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process().steps([(1, 2, decode_name())])
    builder.shard(
        "steps",
        [
            b"not json\n",
            b'{"t0": "3", "t1": 4, "n": "x"}\n',
            b'{"t0": 3}\n',
            b'{"t0": 99999999999999999999999, "t1": 4, "n": "x"}\n',
            b'{"t0": -1, "t1": 4, "n": "x"}\n',
            b"\xff\xfe\n",
            b"[" * 50_000 + b"\n",
            b"\n",
            {"t0": 5, "t1": 4, "n": decode_name()},
            {"t0": 5, "t1": 6, "n": "execute_order_66"},
            {"t0": 7, "t1": 8, "n": decode_name(), "a key of the future": 1},
            b'{"t0": 9, "t1": 10, "n": "exec',
        ],
    )
    recording = open_recording(builder.write())
    assert recording.steps["start_ns"].tolist() == [1, 7]
    counts = recording.quality.counts
    assert counts["unreadable_rows"] == 7
    assert counts["backward_steps"] == 1
    assert counts["unknown_step_names"] == 1
    assert counts["cut_lines"] == 1


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    name = decode_name()
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process()
    builder.shard("steps", [f'{{"t0": 1, "t1": 2, "n": "{name}"}}'])
    recording = open_recording(builder.write())
    assert len(recording.steps) == 1
    assert "cut_lines" not in recording.quality.counts


def test_a_shard_of_an_unknown_kind_is_left_alone_and_counted(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process().shard("hologram", [{"t": 1}])
    recording = open_recording(builder.write())
    assert recording.quality.counts["unknown_shards"] == 1


def test_an_endless_line_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spyreprof.recording import shards

    monkeypatch.setattr(shards, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(shards, "_CHUNK_BYTES", 300)
    builder = RecordingBuilder(tmp_path / "run.spyreprof").process()
    builder.shard("steps", [b"x" * 5000 + b"\n", {"t0": 1, "t1": 2, "n": decode_name()}])
    recording = open_recording(builder.write())
    assert recording.steps["start_ns"].tolist() == [1]
    assert recording.quality.counts["overlong_lines"] == 1


def test_a_step_says_what_marked_it(tmp_path: Path) -> None:
    recording = recorded(
        tmp_path,
        (START_NS, START_NS + 1, decode_name()),
        (START_NS + 2, START_NS + 3, "spyreprof_step[by=api ph=prefill]"),
        (START_NS + 4, START_NS + 5, "spyreprof_step[by=generate ph=decode gr=2]"),
    )
    assert recording.steps["source"].tolist() == ["annotation", "api", "transformers"]
    assert recording.steps["phase"].tolist() == ["decode", "prefill", "decode"]
    assert recording.steps["context_tokens"].isna().tolist() == [False, True, False]
