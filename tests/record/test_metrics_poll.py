"""/metrics is polled where a recognised server of the program listens, and nowhere else."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording_run import python, record

from spyreprof.errors import UserError
from spyreprof_collectors.metrics_page import NotPrometheusError, Page, UnreachableError, prometheus_lines
from spyreprof_collectors.metrics_poll import MetricsCollector
from spyreprof_collectors.shards import ShardWriter

# Serves counters that move, and one bare socket that must stay alone. `listen` rows are what the agent writes; the
# program writes one itself, so that these tests are about the poller.
PROGRAM = """
import http.server, json, os, socket, sys, threading, time

polls = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global polls
        polls += 1
        body = (f"# HELP vllm:done_total h\\n# TYPE vllm:done_total counter\\n"
                f'vllm:done_total{{model="m"}} {polls}\\nvllm:same 7\\n').encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
bare = socket.create_server(("127.0.0.1", 0))
bare.settimeout(0.01)
touched = False
port = server.server_port
row = {"k": "listen", "t": time.monotonic_ns(), "server": "http.server", "host": "127.0.0.1", "port": port}
with open(f"{os.environ['SPYREPROF_DIR']}/shards/process-{os.getpid()}-fake.jsonl", "a") as file:
    file.write(json.dumps(row) + "\\n")
while polls < 4:
    try:
        bare.accept()
        touched = True
    except TimeoutError:
        pass
print(json.dumps({"touched": touched, "port": port}))
"""


def test_a_page_is_polled_whole_first_and_last_and_by_changes_between(tmp_path: Path) -> None:
    run = record(tmp_path, python(PROGRAM))
    assert run.code == 0, run.stderr
    # the server ends before the recorder learns of it, so that a poll in between may fail
    rows = [row for row in run.rows("metrics") if row.get("ok", True)]
    assert [row["full"] for row in rows[:2]] == [True, False]
    assert rows[-1]["full"] is True
    assert rows[0]["lines"] == ["# TYPE vllm:done_total counter", 'vllm:done_total{model="m"} 1', "vllm:same 7"]
    assert rows[1]["lines"] == ['vllm:done_total{model="m"} 2']
    assert rows[-1]["lines"][0] == "# TYPE vllm:done_total counter"
    assert [row["t"] for row in rows] == sorted(row["t"] for row in rows)
    assert run.manifest["started_ns"] < rows[0]["t"] < run.manifest["ended_ns"]
    assert run.collector("metrics")["state"] == "ok"


def test_other_listeners_are_never_touched(tmp_path: Path) -> None:
    run = record(tmp_path, python(PROGRAM))
    assert b'"touched": false' in run.stdout


def test_a_program_without_a_server_says_so_in_the_recording(tmp_path: Path) -> None:
    state = record(tmp_path, python("pass")).collector("metrics")
    assert state["state"] == "unavailable"
    assert "no recognised HTTP server" in state["reason"]
    assert "--metrics-url" in state["obtain"]


class Answer:
    """A server in this process whose next answer a test decides."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b"a 1\n"
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str | None]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers.get("Authorization")))
                moved = outer.status == 307 and self.path == "/metrics/"
                self.send_response(200 if moved else outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def answer() -> Iterator[Answer]:
    made = Answer()
    yield made
    made.server.shutdown()
    made.server.server_close()


def collector(tmp_path: Path, page: Page | None) -> tuple[MetricsCollector, Path]:
    (tmp_path / "shards").mkdir(exist_ok=True)
    writer = ShardWriter(tmp_path, "metrics")
    return MetricsCollector(writer, tmp_path, page), writer.path


def test_buckets_are_written_at_longer_intervals_and_none_is_lost(
    tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock[0])
    metrics, shard = collector(tmp_path, Page("127.0.0.1", answer.port))
    for second in range(0, 14, 4):
        clock[0] = second * 1_000_000_000
        # the bucket moves once, early
        answer.body = f'a_count {second}\na_bucket{{le="1"}} {min(second, 4)}\n'.encode()
        metrics.sample()
    metrics.finish()
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    assert [row["lines"] for row in rows] == [
        ["a_count 0", 'a_bucket{le="1"} 0'],
        ["a_count 4"],
        ["a_count 8"],
        ["a_count 12", 'a_bucket{le="1"} 4'],
        ["a_count 12", 'a_bucket{le="1"} 4'],
    ]


REFUSALS = [(404, b"not here"), (200, b"<html>\n<body>\nhello\n</body>\n"), (401, b""), (302, b"")]


@pytest.mark.parametrize(("status", "body"), REFUSALS[1:])
def test_an_address_that_is_no_prometheus_page_is_asked_once(
    tmp_path: Path, answer: Answer, status: int, body: bytes
) -> None:
    answer.status, answer.body = status, body
    metrics, _ = collector(tmp_path, Page("127.0.0.1", answer.port))
    for _ in range(3):
        metrics.hurry()
        metrics.sample()
    assert len(answer.requests) == 1
    state = metrics.state(None)
    assert state.state == "unavailable"
    assert "polling ended" in (state.reason or "")


def test_a_page_that_a_starting_server_does_not_know_is_asked_for_three_times(tmp_path: Path, answer: Answer) -> None:
    metrics, _ = collector(tmp_path, Page("127.0.0.1", answer.port))
    answer.status = 404
    metrics.sample()
    metrics.sample()
    assert len(answer.requests) == 1, "no pause after a refusal"
    for _ in range(3):
        metrics.hurry()
        metrics.sample()
    assert len(answer.requests) == 3
    assert "polling ended, it answered 404" in (metrics.state(None).reason or "")


@pytest.mark.parametrize(("status", "body"), REFUSALS)
def test_a_page_that_was_good_may_be_refused_twice_in_a_row_and_no_more(
    tmp_path: Path, answer: Answer, status: int, body: bytes
) -> None:
    metrics, _ = collector(tmp_path, Page("127.0.0.1", answer.port))
    good = (200, b"a 1\n")
    for answer.status, answer.body in (good, (status, body), (status, body), good, *[(status, body)] * 4):
        metrics.hurry()
        metrics.sample()
    assert len(answer.requests) == 4 + 3
    assert "polling ended" in (metrics.state(None).reason or "")


def test_a_server_error_is_asked_again_later_and_recovers(tmp_path: Path, answer: Answer) -> None:
    metrics, shard = collector(tmp_path, Page("127.0.0.1", answer.port))
    answer.status = 503
    metrics.sample()
    metrics.sample()
    assert len(answer.requests) == 1, "no pause after a failure"
    answer.status = 200
    metrics.hurry()
    metrics.sample()
    assert metrics.state(None).state == "ok"
    assert [(row["lines"], row.get("ok", True)) for row in rows_of(shard)] == [([], False), (["a 1"], True)]


def test_a_poll_without_news_leaves_a_short_row(tmp_path: Path, answer: Answer) -> None:
    metrics, shard = collector(tmp_path, Page("127.0.0.1", answer.port))
    for _ in range(3):
        metrics.sample()
    answer.body = b"a 2\n"
    metrics.sample()
    first, *quiet, last = rows_of(shard)
    assert first["full"]
    assert [row["lines"] for row in quiet] == [[], []]
    assert last["lines"] == ["a 2"]
    lines = shard.read_text().splitlines()
    assert max(len(line) for line in lines[1:3]) < 60
    assert first["t"] < quiet[0]["t"] < quiet[1]["t"] < last["t"]


def test_a_page_that_hangs_leaves_rows_that_say_so(
    tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spyreprof_collectors.metrics_page.TIMEOUT_S", 0.2)
    metrics, shard = collector(tmp_path, Page("127.0.0.1", answer.port))
    metrics.sample()
    answer.server.shutdown()  # the socket still takes connections, nobody answers
    metrics.sample()
    assert [row.get("ok", True) for row in rows_of(shard)] == [True, False]
    assert len(shard.read_text().splitlines()[1]) < 60


def rows_of(shard: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shard.read_text().splitlines()]


def test_a_redirect_elsewhere_is_not_followed_but_a_mounted_page_is(answer: Answer) -> None:
    page = Page("127.0.0.1", answer.port)
    answer.status, answer.headers = 307, {"Location": f"http://127.0.0.1:{answer.port}/admin"}
    with pytest.raises(NotPrometheusError):
        page.fetch()
    answer.headers = {"Location": "/metrics/"}
    assert page.fetch() == ["a 1"]
    assert [path for path, _ in answer.requests] == ["/metrics", "/metrics", "/metrics/"]


def test_a_page_beyond_the_limit_is_not_read_to_its_end(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spyreprof_collectors.metrics_page.MAX_PAGE_BYTES", 100)
    answer.body = b"a 1\n" * 100
    with pytest.raises(NotPrometheusError, match="larger"):
        Page("127.0.0.1", answer.port).fetch()


def test_nobody_at_home_is_unreachable(answer: Answer) -> None:
    answer.server.shutdown()
    answer.server.server_close()
    with pytest.raises(UnreachableError):
        Page("127.0.0.1", answer.port).fetch()


def test_user_and_password_are_used_and_not_stored(tmp_path: Path, answer: Answer) -> None:
    page = Page.of_url(f"http://me:s3cret@127.0.0.1:{answer.port}/metrics")
    metrics, shard = collector(tmp_path, page)
    metrics.sample()
    assert answer.requests[0][1] == "Basic bWU6czNjcmV0"
    assert "s3cret" not in shard.read_text()
    assert f'"url":"http://127.0.0.1:{answer.port}/metrics"' in shard.read_text()


@pytest.mark.parametrize(
    ("host", "polled"),
    [
        ("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "127.0.0.1"),
        ("localhost", "localhost"), ("::1", "::1"), ("127.1.2.3", "127.1.2.3"),
        ("10.0.0.5", None), ("example.org", None), ("127.0.0.1.example.org", None),
    ],
)  # fmt: skip
def test_only_addresses_of_this_machine_are_polled(host: str, polled: str | None) -> None:
    page = Page.of_listener(host, 8000)
    assert (page and page.host) == polled


def test_a_server_on_an_outside_address_is_left_alone_and_named(tmp_path: Path) -> None:
    metrics, _ = collector(tmp_path, None)
    (tmp_path / "shards" / "process-1-a.jsonl").write_text('{"k":"listen","t":1,"host":"10.0.0.5","port":8000}\n')
    metrics.sample()
    assert "port 8000 listens on an outside address" in (metrics.state(None).reason or "")


def test_a_listen_row_that_is_cut_is_read_when_it_is_whole(tmp_path: Path, answer: Answer) -> None:
    metrics, _ = collector(tmp_path, None)
    shard = tmp_path / "shards" / "process-1-a.jsonl"
    row = f'{{"k":"listen","t":1,"host":"127.0.0.1","port":{answer.port}}}\n'
    shard.write_text(row[:20])
    metrics.sample()
    shard.write_text(row)
    metrics.sample()
    assert len(answer.requests) == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h/metrics", "http://", "http://h:port/", "http://[::1"])
def test_what_is_no_http_address_is_wrong_use(url: str) -> None:
    with pytest.raises(UserError):
        Page.of_url(url)


def test_a_bad_metrics_url_leaves_no_recording(tmp_path: Path) -> None:
    run = record(tmp_path, [sys.executable, "-c", "pass"], "--metrics-url", "ftp://h/")
    assert run.code == 2
    assert not run.path.exists()


def test_a_url_without_path_means_the_metrics_page() -> None:
    assert Page.of_url("http://host:9").url == "http://host:9/metrics"


def test_lines_that_are_no_samples_are_left_out() -> None:
    assert prometheus_lines("# HELP a b\n# TYPE a counter\na 1\nb{c=\"d e\"} 2 123\n\n# EOF\n???\n") == [
        "# TYPE a counter", "a 1", 'b{c="d e"} 2 123'
    ]  # fmt: skip


def test_the_counters_are_taken_just_before_a_terminating_signal_is_passed_on(tmp_path: Path) -> None:
    # The program counts 1000 just before it tells us to end it, so only a poll before the signal can see that.
    code = PROGRAM.replace("while polls < 4:", "while polls < 1:") + (
        "import signal\npolls = 1000\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    run = record(tmp_path, python(code))
    assert run.code == -15
    assert run.rows("metrics")[-1]["lines"][1] == 'vllm:done_total{model="m"} 1001'
