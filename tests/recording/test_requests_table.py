"""The request table, from a load generator's result file."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import SECOND, START_NS, RecordingBuilder

from spyreprof.recording.store import Recording, open_recording

ARRIVAL_S = START_NS / SECOND + 1


def recorded(tmp_path: Path, **fields: object) -> Recording:
    return open_recording(RecordingBuilder(tmp_path / "run.spyreprof").bench(**fields).write())


def test_a_request_gets_its_latencies_in_nanoseconds(tmp_path: Path) -> None:
    row = recorded(
        tmp_path,
        input_lens=[128],
        output_lens=[3],
        ttfts=[0.5],
        itls=[[0.1, 0.3]],
        start_times=[ARRIVAL_S],
        errors=[False],
    ).requests.iloc[0]
    assert row["arrival_ns"] == START_NS + SECOND
    assert row["prompt_tokens"] == 128
    assert row["output_tokens"] == 3
    assert row["ttft_ns"] == 500_000_000
    assert row["e2e_ns"] == 900_000_000
    assert row["itl_mean_ns"] == pytest.approx(200_000_000)
    assert row["itl_max_ns"] == pytest.approx(300_000_000)
    assert not row["failed"]


def test_a_request_of_one_token_has_no_gap_between_tokens(tmp_path: Path) -> None:
    requests = recorded(tmp_path, input_lens=[5], output_lens=[1], ttfts=[0.25], itls=[[]]).requests
    assert requests["e2e_ns"].tolist() == [250_000_000]
    assert requests["itl_mean_ns"].isna().all()
    assert requests["itl_max_ns"].isna().all()


def test_a_failed_request_has_no_latency(tmp_path: Path) -> None:
    requests = recorded(
        tmp_path, input_lens=[5, 6], output_lens=[0, 2], ttfts=[0.0, 0.5], itls=[[], [0.1]], errors=[True, False]
    ).requests
    assert requests["failed"].tolist() == [True, False]
    assert requests["ttft_ns"].isna().tolist() == [True, False]
    assert requests["e2e_ns"].isna().tolist() == [True, False]


def test_what_the_file_does_not_say_is_missing(tmp_path: Path) -> None:
    requests = recorded(tmp_path, input_lens=[5]).requests
    for column in ("arrival_ns", "output_tokens", "ttft_ns", "e2e_ns", "itl_mean_ns", "failed"):
        assert requests[column].isna().all(), column


def test_lists_of_unequal_length_leave_gaps_rather_than_shift_requests(tmp_path: Path) -> None:
    requests = recorded(tmp_path, input_lens=[5, 6, 7], output_lens=[1, 2]).requests
    assert requests["prompt_tokens"].tolist() == [5, 6, 7]
    assert requests["output_tokens"].isna().tolist() == [False, False, True]


def test_the_part_of_the_output_that_is_reasoning_is_kept_apart(tmp_path: Path) -> None:
    requests = recorded(tmp_path, output_lens=[9, 9], reasoning_lens=[6, None]).requests
    assert requests["output_tokens"].tolist() == [9, 9]
    assert requests["reasoning_tokens"].iloc[0] == 6
    assert requests["reasoning_tokens"].isna().tolist() == [False, True]


def test_the_limit_of_a_request_and_why_it_ended_are_kept_and_foreign_words_are_not(tmp_path: Path) -> None:
    fields = {"max_tokens": [64, -1, None], "finish_reasons": ["length", "said something private", ""]}
    requests = recorded(tmp_path, output_lens=[64, 2, 3], **fields).requests
    assert requests["max_tokens"].isna().tolist() == [False, True, True]
    assert requests["max_tokens"].iloc[0] == 64
    assert requests["finish_reason"].fillna("unknown").tolist() == ["length", "other", "unknown"]
    assert requests["preemptions"].isna().all()


def test_requests_are_sorted_by_arrival(tmp_path: Path) -> None:
    requests = recorded(tmp_path, input_lens=[1, 2, 3], start_times=[ARRIVAL_S + 2, ARRIVAL_S, ARRIVAL_S + 1]).requests
    assert requests["prompt_tokens"].tolist() == [2, 3, 1]


@pytest.mark.parametrize("start_s", [3.0, 1_700_000_000.0])
def test_arrivals_on_another_clock_are_missing_and_the_reader_says_so(tmp_path: Path, start_s: float) -> None:
    recording = recorded(tmp_path, input_lens=[1], ttfts=[0.1], start_times=[start_s])
    assert recording.requests["arrival_ns"].isna().all()
    assert recording.requests["ttft_ns"].tolist() == [100_000_000]
    assert recording.quality.counts["bench_files_on_another_clock"] == 1


def test_a_result_with_statistics_that_are_not_a_number_is_read(tmp_path: Path) -> None:
    recording = recorded(tmp_path, input_lens=[1], ttfts=[float("nan")], std_ttft_ms=float("nan"))
    assert len(recording.requests) == 1
    assert recording.requests["ttft_ns"].isna().all()


def test_a_damaged_result_file_costs_itself(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").bench(input_lens=[1])
    builder.files["bench/2.json"] = b'{"input_lens": [1, 2'
    builder.files["bench/3.json"] = b'{"input_lens": "many"}'
    recording = open_recording(builder.write())
    assert len(recording.requests) == 1
    assert recording.quality.counts["unreadable_bench_files"] == 2


def marked(**fields: object) -> dict[str, object]:
    unknown = dict.fromkeys(("ts", "tf", "t1", "prompt", "cached", "output", "reasoning", "reason"))
    return {"k": "request", "t0": START_NS, **unknown, **fields}


def test_a_request_that_the_program_marked_has_its_times_and_its_queue(tmp_path: Path) -> None:
    whole = marked(
        ts=START_NS + 10, tf=START_NS + 30, t1=START_NS + 90,
        prompt=8, cached=4, output=4, reasoning=1, reason="stop", max_tokens=16, preemptions=3,
    )  # fmt: skip
    path = RecordingBuilder(tmp_path / "run.spyreprof").shard("requests", [whole]).write()
    row = open_recording(path).requests.iloc[0]
    assert (row["queue_ns"], row["ttft_ns"], row["e2e_ns"], row["itl_mean_ns"]) == (10, 30, 90, 20.0)
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"], row["reasoning_tokens"]) == (8, 4, 4, 1)
    assert (row["source"], bool(row["failed"])) == ("agent", False)
    assert (row["max_tokens"], row["finish_reason"], row["preemptions"]) == (16, "stop", 3)


@pytest.mark.parametrize("limit", [{}, {"max_tokens": None, "preemptions": None}])
def test_rows_of_recorders_that_knew_no_limit_leave_it_missing(tmp_path: Path, limit: dict[str, None]) -> None:
    row = marked(t1=START_NS + 5, reason="a text of the program", **limit)
    requests = open_recording(RecordingBuilder(tmp_path / "run.spyreprof").shard("requests", [row]).write()).requests
    assert requests["max_tokens"].isna().all()
    assert requests["preemptions"].isna().all()
    assert requests["finish_reason"].tolist() == ["other"]


def test_a_marked_request_without_an_end_is_neither_failed_nor_finished(tmp_path: Path) -> None:
    rows = [
        marked(),
        marked(t1=START_NS + 5, reason="abort"),
        marked(ts=START_NS + 9, tf=START_NS + 3),  # its first token came before it was scheduled
        marked(t0=-4),
    ]
    path = RecordingBuilder(tmp_path / "run.spyreprof").shard("requests", rows).write()
    recording = open_recording(path)
    assert recording.requests["failed"].isna().tolist() == [True, False]
    assert recording.requests["e2e_ns"].isna().tolist() == [True, False]
    assert recording.requests["failed"].tolist()[1] is True
    assert recording.quality.counts["backward_requests"] == 1
    assert recording.quality.counts["unreadable_rows"] == 1


def test_both_views_of_a_request_are_kept_and_told_apart(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "run.spyreprof").shard("requests", [marked(prompt=5)])
    builder.bench(input_lens=[5], output_lens=[1], ttfts=[0.25], itls=[[]], start_times=[ARRIVAL_S], reasoning_lens=[0])
    requests = open_recording(builder.write()).requests
    assert requests["source"].tolist() == ["agent", "bench_result"]
    assert requests["reasoning_tokens"].tolist()[1] == 0
