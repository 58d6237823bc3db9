"""`python samples/serve.py` from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from engine.options import SCENARIOS, parse_options

SHARED_PREFIX = ("shared-prefix", "shared-prefix-uncached")
TINY = [
    *("--layers", "2", "--hidden", "64", "--ffn", "128", "--heads", "4", "--kv-heads", "2"),
    *("--vocab", "300", "--threads", "1"),
]


def serve(folder: Path, samples: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(samples / "serve.py"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--scenario", "nonsense"], "--scenario"),
        (["--layers", "0"], "--layers"),
        (["--prompt-tokens", "9:3"], "--prompt-tokens"),
        (["--output-tokens", "many"], "--output-tokens"),
        (["--request-rate", "-1"], "--request-rate"),
        (["--request-rate", "nan"], "--request-rate"),
        (["--request-rate", "1", "--concurrency", "1"], "not allowed with"),
        (["--load-seconds", "0"], "--load-seconds"),
        (["--hidden", "100", "--heads", "7"], "--hidden must be a multiple"),
        (["--heads", "6", "--kv-heads", "4"], "--heads must be a multiple"),
        (["--vocab", "256"], "--vocab must be at least 259"),
        (["--max-num-batched-tokens", "2", "--max-num-seqs", "3"], "--max-num-batched-tokens must be"),
        (["--num-kv-blocks", "4"], "less than one request"),
        (["--prompt-tokens", "2000:3000"], "more than --max-model-len 1024"),
        (["--interrupt-prompt-tokens", "1000:1023", "--interrupt-rate", "1"], "more than --max-model-len 1024"),
        (["--interrupt-rate", "1"], "--interrupt-prompt-tokens and --interrupt-rate"),
        (["--scenario", "reasoning", "--reasoning-tokens", "20:40"], "--reasoning-tokens must be at least 3 less"),
        (["--linear-layout", "tiled", "--hidden", "100", "--heads", "5", "--kv-heads", "1"], "multiples of 8"),
        (["--linear-layout", "sparse"], "--linear-layout"),
        (["--port", "99999"], "--port"),
        (["surplus"], "surplus"),
        (["--result", "no/such/folder/r.json"], "--result no/such/folder/r.json"),
        (["--result", "/"], "--result /"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(options)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert len(printed.err.splitlines()) == 1
    assert named in printed.err


def test_a_wrong_option_ends_the_program_before_it_does_anything(tmp_path: Path, samples_folder: Path) -> None:
    ended = serve(tmp_path, samples_folder, "--layers", "none")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "serve.py: argument --layers: 'none' is not a whole number of 1 or more\n"
    assert not list(tmp_path.iterdir())


def test_options_win_over_the_scenario_s() -> None:
    options = parse_options(["--scenario", "healthy", "--concurrency", "3", "--hidden", "384"])
    assert (options.concurrency, options.request_rate) == (3, None)
    assert (options.hidden, options.ffn) == (384, SCENARIOS["healthy"].ffn)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_kv_cache_is_short_where_the_scenario_says_so_and_nowhere_else(name: str) -> None:
    options = parse_options(["--scenario", name])
    longest = options.prompt_tokens[1] + options.output_tokens[1]
    capacity = options.num_kv_blocks * options.block_size
    if name in ("kv-capacity", "preemption"):
        # There are more requests than fit, and the cap holds none of them back.
        assert options.concurrency * longest > 2.5 * capacity
        assert options.max_num_seqs > options.concurrency
    else:
        assert options.max_num_seqs * longest < 0.75 * capacity


def test_a_request_for_kv_capacity_never_grows_out_of_its_first_block() -> None:
    options = parse_options(["--scenario", "kv-capacity"])
    assert options.prompt_tokens[1] + options.output_tokens[1] <= options.block_size


def test_the_two_shared_prefix_scenarios_differ_in_caching_alone() -> None:
    cached, uncached = (vars(parse_options(["--scenario", name])) for name in SHARED_PREFIX)
    differ = {name for name in cached if cached[name] != uncached[name]}
    assert differ == {"scenario", "summary", "result", "no_prefix_caching"}


def test_switches_of_a_scenario_are_its_defaults_and_can_be_added_to_another() -> None:
    compiled = parse_options(["--scenario", "compile"])
    assert (compiled.compile, compiled.compile_backend, compiled.compile_shapes) == (True, "aot_eager", "static")
    added = parse_options(["--scenario", "decode", "--compile", "--no-prefix-caching"])
    assert (added.compile, added.compile_backend, added.compile_shapes) == (True, "inductor", "dynamic")
    assert added.no_prefix_caching is True
    assert parse_options([]).compile is False


def test_advice_in_vllms_names_can_be_appended_to_the_command() -> None:
    options = parse_options(["--no-prefix-caching", "--num-gpu-blocks-override", "77", "--enable-prefix-caching"])
    assert (options.num_kv_blocks, options.no_prefix_caching) == (77, False)


def test_a_port_in_use_is_one_sentence_and_exit_code_2(tmp_path: Path, samples_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = serve(tmp_path, samples_folder, "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 2
    assert ended.stderr.startswith("serve.py: cannot listen on 127.0.0.1:")
    assert len(ended.stderr.splitlines()) == 1


def test_a_python_without_torch_is_told_what_to_install(tmp_path: Path, samples_folder: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('gone', name='torch')")
    command = [sys.executable, str(samples_folder / "serve.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == "serve.py: this Python has no torch; install it with: pip install torch==2.13.0\n"


@pytest.mark.parametrize("compiled", [[], ["--compile", "--compile-backend", "aot_eager"]], ids=["eager", "compiled"])
def test_a_scenario_runs_from_start_to_end_and_its_result_adds_up(
    tmp_path: Path, samples_folder: Path, compiled: list[str]
) -> None:
    pytest.importorskip("torch")
    options = ["--scenario", "healthy", "--request-rate", "8", "--load-seconds", "2", "--seed", "3", *TINY, *compiled]
    ended = serve(tmp_path, samples_folder, *options)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["serve-bench-healthy-seed3.json"]
    result = json.loads((tmp_path / "serve-bench-healthy-seed3.json").read_text())
    assert result["completed"] == result["num_prompts"] > 4
    assert result["failed"] == 0
    lists = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    assert {len(result[name]) for name in lists} == {result["completed"]}
    assert [len(gaps) + 1 for gaps in result["itls"]] == result["output_lens"]
    for latency in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < result[f"median_{latency}_ms"] <= result[f"p99_{latency}_ms"]

    totals = result["engine"]
    assert totals["finished_requests"] == result["completed"]
    assert totals["prompt_tokens"] == result["total_input_tokens"] == sum(result["input_lens"])
    assert totals["generation_tokens"] == result["total_output_tokens"] == sum(result["output_lens"])
    assert totals["prefill_tokens"] == result["total_input_tokens"] - totals["prefix_cache_hits"]
    assert totals["decode_tokens"] == totals["generation_tokens"] - result["completed"]
    assert totals["prefix_cache_queries"] == result["total_input_tokens"]
    assert totals["steps"] <= totals["decode_tokens"] + result["completed"]
    assert 0 < totals["prefill_seconds"] + totals["decode_seconds"] + totals["mixed_seconds"] < result["duration"]


def test_thinking_is_counted_from_the_client_s_wish_to_the_result_file(tmp_path: Path, samples_folder: Path) -> None:
    pytest.importorskip("torch")
    ended = serve(tmp_path, samples_folder, "--scenario", "reasoning", "--load-seconds", "1", *TINY)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "serve-bench-reasoning-seed0.json").read_text())
    assert all(24 <= thinking <= 34 for thinking in result["reasoning_lens"])
    assert len(result["reasoning_lens"]) == result["completed"] > 1


def test_an_unknown_compiler_backend_is_one_sentence(tmp_path: Path, samples_folder: Path) -> None:
    pytest.importorskip("torch")
    ended = serve(tmp_path, samples_folder, *TINY, "--compile", "--compile-backend", "gnu")
    assert (ended.returncode, ended.stderr) == (2, "serve.py: torch has no compiler backend 'gnu'\n")


def test_a_load_that_gets_no_answer_ends_the_engine_with_exit_code_1(tmp_path: Path, samples_folder: Path) -> None:
    pytest.importorskip("torch")
    # The first arrival would come long after the end of the load.
    ended = serve(tmp_path, samples_folder, *TINY, "--request-rate", "0.0001", "--load-seconds", "0.2")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-2:] == [
        "load_driver.py: none of 0 requests was answered",
        "serve.py: the load driver failed with exit code 1",
    ]


def start_server(folder: Path, samples: Path) -> tuple[subprocess.Popen[str], str]:
    """A running `--scenario none`, once it says that it serves; and its address."""
    command = [sys.executable, str(samples / "serve.py"), "--scenario", "none", "--port", "0", *TINY]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("serving on "):
            return process, line.removeprefix("serving on ").strip()
    raise AssertionError("the server ended before it served")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_without_a_load_ends_well_when_told_to(
    tmp_path: Path, samples_folder: Path, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    process, _ = start_server(tmp_path, samples_folder)
    process.send_signal(number)
    assert process.wait(timeout=60) == 0


def test_the_same_seed_sends_the_same_requests(tmp_path: Path, samples_folder: Path) -> None:
    pytest.importorskip("torch")
    process, url = start_server(tmp_path, samples_folder)
    try:
        results = []
        for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
            command = [sys.executable, str(samples_folder / "load_driver.py"), f"--url={url}"]
            command += ["--request-rate=20", "--load-seconds=0.5", f"--seed={seed}", f"--result={name}.json"]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
            result = json.loads((tmp_path / f"{name}.json").read_text())
            results.append((result["input_lens"], result["output_lens"]))
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert results[0] == results[1] != results[2]


def test_an_interrupted_load_ends_with_the_signal_s_exit_code_and_leaves_no_driver(
    tmp_path: Path, samples_folder: Path
) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(samples_folder / "serve.py"), "--scenario", "healthy", *TINY]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("serving on ") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    # The driver held the other end of the pipe: it is gone once the pipe ends.
    process.stderr.read()
