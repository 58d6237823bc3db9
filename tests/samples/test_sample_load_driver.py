"""The load driver: what it asks for, and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command_line import Span, span
from load_driver import Outcome, Workload, latency_fields, percentile, write_atomically


def test_requests_depend_on_seed_and_number_alone() -> None:
    def workload(seed: int) -> Workload:
        return Workload(seed, Span((5, 50)), Span((1, 9)), shared_prefix_tokens=0, vocab=256)

    assert [workload(1).request(n) for n in (4, 2)] == [workload(1).request(n) for n in (4, 2)]
    assert workload(1).request(4) != workload(2).request(4)
    assert workload(1).request(4).prompt != workload(1).request(5).prompt


def test_lengths_stay_within_their_spans_and_reach_both_ends() -> None:
    workload = Workload(0, Span((3, 6)), Span((1, 2)), shared_prefix_tokens=0, vocab=256)
    drawn = [workload.request(number) for number in range(200)]
    assert {len(ask.prompt) for ask in drawn} == {3, 4, 5, 6}
    assert {ask.output_tokens for ask in drawn} == {1, 2}
    assert {ask.reasoning_tokens for ask in drawn} == {None}


def test_asking_for_thinking_changes_neither_prompts_nor_output_lengths() -> None:
    plain = Workload(3, Span((3, 9)), Span((20, 30)), shared_prefix_tokens=0, vocab=256)
    thinking = Workload(3, Span((3, 9)), Span((20, 30)), 0, 256, reasoning_tokens=Span((4, 6)))
    pairs = [(plain.request(number), thinking.request(number)) for number in range(50)]
    assert all((a.prompt, a.output_tokens) == (b.prompt, b.output_tokens) for a, b in pairs)
    assert {asked.reasoning_tokens for _, asked in pairs} == {4, 5, 6}


def test_a_shared_prefix_is_shared_and_never_the_whole_prompt() -> None:
    workload = Workload(0, Span((10, 20)), Span((1, 1)), shared_prefix_tokens=15, vocab=256)
    drawn = [workload.request(number).prompt for number in range(50)]
    longest = max(drawn, key=len)
    for prompt in drawn:
        common = min(15, len(prompt) - 1)
        assert prompt[:common] == longest[:common]
    assert len({tuple(prompt) for prompt in drawn}) == 50


def test_gaps_between_arrivals_have_the_rate_s_mean() -> None:
    workload = Workload(0, Span((1, 1)), Span((1, 1)), 0, 256)
    gaps = [workload.gap_s(number, request_rate=4.0) for number in range(4000)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.05)
    assert workload.gap_s(7, 4.0) == workload.gap_s(7, 4.0)


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)
    assert percentile([5.0], 99) == 5.0


def test_nothing_measured_gives_no_fields_instead_of_zeros() -> None:
    assert latency_fields("itl", []) == {}
    assert latency_fields("itl", [0.5])["mean_itl_ms"] == 500.0


def test_times_of_a_request_follow_from_its_tokens() -> None:
    outcome = Outcome(3, start_s=10.0, token_times_s=[10.5, 10.75, 11.5])
    assert (outcome.ttft_s, outcome.itls_s, outcome.e2el_s) == (0.5, [0.25, 0.75], 1.5)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.write_text("old")
    write_atomically(target, {"a": 1})
    assert json.loads(target.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [target]


class _Thinking(BaseHTTPRequestHandler):
    """Answers at once, and counts reasoning tokens for whoever asked for thinking, as much as was asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        usage: dict[str, object] = {"completion_tokens": body["max_tokens"]}
        if "thinking_token_budget" in body:
            usage["completion_tokens_details"] = {"reasoning_tokens": body["thinking_token_budget"]}
        for chunk in ({"choices": [{"text": "x"}]}, {"choices": [], "usage": usage}):
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def thinking_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Thinking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class _Faulty(BaseHTTPRequestHandler):
    """Healthy, but every third answer is an error and every third stream breaks off."""

    count = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        _Faulty.count += 1
        self.send_response(500 if _Faulty.count % 3 == 0 else 200)
        self.end_headers()
        if _Faulty.count % 3:
            chunk = json.dumps({"choices": [{"text": "x"}]}).encode()
            self.wfile.write(b"data: " + chunk + b"\n\n" + b"data: " + chunk + b"\n\n")
        if _Faulty.count % 3 == 1:
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def faulty_url() -> Iterator[str]:
    _Faulty.count = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Faulty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def drive(folder: Path, samples: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(samples / "load_driver.py"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_failed_requests_are_counted_and_leave_the_statistics_alone(
    tmp_path: Path, samples_folder: Path, faulty_url: str
) -> None:
    options = ("--url", faulty_url, "--concurrency", "1", "--load-seconds", "0.5", "--result", "r.json")
    ended = drive(tmp_path, samples_folder, *options)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["num_prompts"] == result["completed"] + result["failed"] == len(result["errors"])
    assert set(result["errors"]) == {"", "HTTP 500", "stream ended early"}
    for error, output, ttft, itls in zip(
        result["errors"], result["output_lens"], result["ttfts"], result["itls"], strict=True
    ):
        assert (output, len(itls), ttft > 0) == ((2, 1, True) if not error else (0, 0, False))
    assert result["total_output_tokens"] == 2 * result["completed"]


def test_reasoning_tokens_of_each_request_are_those_of_its_usage(
    tmp_path: Path, samples_folder: Path, thinking_url: str
) -> None:
    options = ("--url", thinking_url, "--concurrency", "1", "--load-seconds", "0.3", "--result", "r.json")
    drive(tmp_path, samples_folder, *options, "--output-tokens", "9", "--reasoning-tokens", "2:4")
    result = json.loads((tmp_path / "r.json").read_text())
    workload = Workload(0, Span((16, 32)), Span((9, 9)), 0, 256, Span((2, 4)))
    asked = [workload.request(number).reasoning_tokens for number in range(result["completed"])]
    assert result["reasoning_lens"] == asked
    drive(tmp_path, samples_folder, *options)
    assert "reasoning_lens" not in json.loads((tmp_path / "r.json").read_text())


def test_a_second_kind_of_request_arrives_at_random_beside_the_first(
    tmp_path: Path, samples_folder: Path, thinking_url: str
) -> None:
    options = ["--url", thinking_url, "--concurrency", "1", "--load-seconds", "1", "--result", "r.json"]
    options += ["--prompt-tokens", "5:9", "--output-tokens", "7"]
    ended = drive(tmp_path, samples_folder, *options, "--interrupt-prompt-tokens", "40:50", "--interrupt-rate", "20")
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    second = Workload("0/interrupt", Span((40, 50)), Span((1, 2)), 0, 256)
    kinds = [(prompt >= 40, output) for prompt, output in zip(result["input_lens"], result["output_lens"], strict=True)]
    arrived = [prompt for prompt in result["input_lens"] if prompt >= 40]
    assert arrived == [len(second.request(number).prompt) for number in range(len(arrived))]
    assert {output for is_second, output in kinds if is_second} == {1, 2}
    assert {output for is_second, output in kinds if not is_second} == {7}
    due_s = 0.0
    number = 0
    while (due_s := due_s + second.gap_s(number, 20.0)) <= 1.0:
        number += 1
    assert len(arrived) == number
    assert result["interrupt_rate"] == 20.0


def test_a_server_that_nobody_runs_is_one_sentence(tmp_path: Path, samples_folder: Path) -> None:
    options = ("--url", "http://127.0.0.1:9", "--concurrency", "1", "--wait-seconds", "0.2")
    ended = drive(tmp_path, samples_folder, *options)
    assert ended.returncode == 1
    assert ended.stderr == "load_driver.py: http://127.0.0.1:9/health did not answer\n"
    assert not list(tmp_path.iterdir())


def test_a_wrong_option_of_the_driver_is_one_sentence(tmp_path: Path, samples_folder: Path) -> None:
    ended = drive(tmp_path, samples_folder, "--url", "http://127.0.0.1:9", "--concurrency", "0")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "--concurrency" in ended.stderr
    ended = drive(
        tmp_path, samples_folder, "--url", "http://127.0.0.1:9", "--concurrency", "1", "--interrupt-rate", "1"
    )
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "--interrupt-prompt-tokens" in ended.stderr


def test_spans_print_as_they_are_written() -> None:
    assert str(span("3:9")) == "3:9"
    assert span("4") == (4, 4)
