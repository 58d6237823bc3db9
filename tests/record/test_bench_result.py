"""Result files of load generators: numbers are copied, texts never."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from recording_run import python, record

from spyreprof_collectors.bench_result import MAX_FILES, collect, numbers_of

RESULT = {
    "date": "20261130", "backend": "vllm", "model_id": "secret-model", "label": "x", "tokenizer_id": "/home/me/tok",
    "duration": 12.5, "completed": 2, "failed": 1, "num_prompts": 3, "request_rate": "inf", "max_concurrency": None,
    "total_input_tokens": 30, "mean_ttft_ms": 10.0, "p99_itl_ms": 3.5, "p99.9_tpot_ms": 4.5, "std_e2el_ms": math.nan,
    "mean_secret_ms": 1.0, "ttfts": [0.1, math.nan, 0.3], "itls": [[0.01, math.inf, 0.02], "text", []],
    "input_lens": [10, 10, 10], "output_lens": [5, "prompt text", 5],
    "reasoning_lens": [2, None, "thought"], "start_times": [1.5, 2.5, True], "max_tokens": [64, "many", None],
    "finish_reasons": ["length", "said something private", None],
    "generated_texts": ["my private answer", "", ""], "prompts": ["my private question"],
    "errors": ["", "Traceback: my private question", ""],
}  # fmt: skip


def result_file(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**RESULT, **changes}))
    return path


def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.spyreprof"
    (path / "bench").mkdir(parents=True)
    return path


def test_only_numbers_of_the_allow_list_are_copied(tmp_path: Path) -> None:
    numbers = numbers_of(result_file(tmp_path / "r.json"))
    assert numbers == {
        "duration": 12.5, "completed": 2, "failed": 1, "num_prompts": 3, "total_input_tokens": 30,
        "mean_ttft_ms": 10.0, "p99_itl_ms": 3.5, "p99.9_tpot_ms": 4.5, "ttfts": [0.1, None, 0.3],
        "itls": [[0.01, 0.02], None, []], "input_lens": [10, 10, 10], "output_lens": [5, None, 5],
        "reasoning_lens": [2, None, None], "max_tokens": [64, None, None],
        "finish_reasons": ["length", "other", None],
        "start_times": [1.5, 2.5, None], "errors": [False, True, False],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{", '{"completed": 3}', '{"ttfts": [1]}', "[" * 100_000, "\x00", "7"])
def test_other_json_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    assert numbers_of(tmp_path / "other.json") is None


def test_a_result_written_during_the_run_is_picked_up_and_its_texts_are_dropped(tmp_path: Path) -> None:
    code = f"open('result.json', 'w').write({json.dumps(RESULT)!r})"
    run = record(tmp_path, python(code))
    (copy,) = (run.path / "bench").iterdir()
    assert json.loads(copy.read_text())["completed"] == 2
    everything = b"".join(path.read_bytes() for path in run.path.rglob("*.json*") if path.name != "manifest.json")
    assert b"private" not in everything
    assert run.collector("requests") == {"name": "requests", "state": "ok", "reason": None, "obtain": None}


def test_a_result_of_an_earlier_run_is_left_alone(tmp_path: Path) -> None:
    old = result_file(tmp_path / "old.json")
    os.utime(old, (1, 1))
    run = record(tmp_path, python("pass"))
    assert not list((run.path / "bench").iterdir())
    assert run.collector("requests")["state"] == "unavailable"


@pytest.mark.parametrize("word", ["{folder}", "--result-dir={folder}", "{folder}/r.json", "--result={folder}/r.json"])
def test_files_and_folders_that_the_command_names_are_looked_into(
    tmp_path: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, cwd = tmp_path / "elsewhere", tmp_path / "cwd"
    elsewhere.mkdir()
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    result_file(elsewhere / "r.json")
    into = recording(tmp_path)
    assert collect(into, ["bench", word.format(folder=elsewhere), "\0", "x" * 9000], 0).state == "ok"
    assert len(list((into / "bench").iterdir())) == 1


def test_folders_below_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    result_file(tmp_path / "deep" / "er" / "r.json")
    assert collect(recording(tmp_path), ["bench", "deep"], 0).state == "unavailable"


def test_one_file_named_twice_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result_file(tmp_path / "r.json")
    into = recording(tmp_path)
    collect(into, ["bench", "r.json", ".", str(tmp_path)], 0)
    assert len(list((into / "bench").iterdir())) == 1


def test_the_newest_files_are_taken_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(MAX_FILES + 3):
        os.utime(result_file(tmp_path / f"r{number}.json", completed=number), (1000 + number, 1000 + number))
    into = recording(tmp_path)
    assert collect(into, ["bench"], 0).state == "partial"
    taken = sorted(json.loads(path.read_text())["completed"] for path in (into / "bench").iterdir())
    assert taken == list(range(3, MAX_FILES + 3))


def test_a_file_beyond_the_limit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spyreprof_collectors.bench_result.MAX_FILE_BYTES", 100)
    result_file(tmp_path / "r.json")
    state = collect(recording(tmp_path), ["bench"], 0)
    assert state.state == "unavailable"
    assert "left alone" in (state.reason or "")
