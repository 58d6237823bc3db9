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
    assert workload(1).request(4)[0] != workload(1).request(5)[0]


def test_lengths_stay_within_their_spans_and_reach_both_ends() -> None:
    workload = Workload(0, Span((3, 6)), Span((1, 2)), shared_prefix_tokens=0, vocab=256)
    drawn = [workload.request(number) for number in range(200)]
    assert {len(prompt) for prompt, _ in drawn} == {3, 4, 5, 6}
    assert {output for _, output in drawn} == {1, 2}


def test_a_shared_prefix_is_shared_and_never_the_whole_prompt() -> None:
    workload = Workload(0, Span((10, 20)), Span((1, 1)), shared_prefix_tokens=15, vocab=256)
    drawn = [workload.request(number)[0] for number in range(50)]
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


def test_spans_print_as_they_are_written() -> None:
    assert str(span("3:9")) == "3:9"
    assert span("4") == (4, 4)
