"""The sample's HTTP front end, over a real socket."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.core import Engine  # noqa: E402
from engine.server import FrontEnd  # noqa: E402
from sample_builders import generate_plainly, tiny_engine  # noqa: E402


@pytest.fixture
def server() -> Iterator[tuple[FrontEnd, Engine]]:
    engine = tiny_engine(blocks=128)
    front_end = FrontEnd("127.0.0.1", 0)
    front_end.start(engine)
    loop = threading.Thread(target=engine.run)
    loop.start()
    yield front_end, engine
    engine.stop()
    loop.join()
    front_end.shutdown()
    front_end.server_close()


def ask(server: FrontEnd, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def test_a_completion_is_the_model_s_text_with_usage(server: tuple[FrontEnd, Engine]) -> None:
    front_end, engine = server
    status, content = ask(front_end, "POST", "/v1/completions", {"prompt": "abc", "max_tokens": 6})
    answer = json.loads(content)
    tokens = generate_plainly(engine.model, list(b"abc"), 6)
    assert status == 200
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    text = bytes(token for token in tokens if token < 256).decode(errors="replace")
    assert answer["choices"] == [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}]


def test_a_stream_sends_one_event_per_token_then_usage_then_done(server: tuple[FrontEnd, Engine]) -> None:
    front_end, engine = server
    body = {
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    _, content = ask(front_end, "POST", "/v1/completions", body)
    lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    *chunks, usage = [json.loads(line) for line in lines[:-1]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    tokens = generate_plainly(engine.model, [5, 6, 7], 4)
    whole = bytes(token for token in tokens if token < 256).decode(errors="replace")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_thinking_stands_between_its_markers_and_is_counted_in_the_usage(server: tuple[FrontEnd, Engine]) -> None:
    front_end, _ = server
    body = {
        "prompt": [5, 6, 7],
        "max_tokens": 9,
        "thinking_token_budget": 4,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    _, content = ask(front_end, "POST", "/v1/completions", body)
    lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
    *chunks, usage = [json.loads(line) for line in lines[:-1]]
    assert [chunk["choices"][0]["text"].endswith("<think>") for chunk in chunks].index(True) == 0
    assert [chunk["choices"][0]["text"].endswith("</think>") for chunk in chunks].index(True) == 5
    assert usage["usage"]["completion_tokens"] == len(chunks) == 9
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_thinking_that_the_token_limit_cuts_counts_as_far_as_it_came(server: tuple[FrontEnd, Engine]) -> None:
    front_end, _ = server
    body = {"prompt": [5], "max_tokens": 3, "thinking_token_budget": 50, "ignore_eos": True}
    _, content = ask(front_end, "POST", "/v1/completions", body)
    assert json.loads(content)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_requests_at_the_same_time_all_get_their_own_tokens(server: tuple[FrontEnd, Engine]) -> None:
    front_end, engine = server
    texts = {number: chr(97 + number) * (number + 1) for number in range(8)}
    answers: dict[int, Any] = {}

    def one(number: int) -> None:
        body = {"prompt": texts[number], "max_tokens": 5, "ignore_eos": True}
        answers[number] = json.loads(ask(front_end, "POST", "/v1/completions", body)[1])

    threads = [threading.Thread(target=one, args=(number,)) for number in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in texts.items():
        tokens = generate_plainly(engine.model, list(text.encode()), 5)
        expected = bytes(token for token in tokens if token < 256).decode(errors="replace")
        assert answers[number]["choices"][0]["text"] == expected


def test_health_metrics_and_unknown_paths(server: tuple[FrontEnd, Engine]) -> None:
    front_end, _ = server
    assert ask(front_end, "GET", "/health") == (200, b"")
    status, page = ask(front_end, "GET", "/metrics")
    assert status == 200
    assert b'vllm:num_requests_running{model_name="sample",engine="0"} 0.0\n' in page
    assert ask(front_end, "GET", "/nothing")[0] == 404
    assert ask(front_end, "POST", "/nothing", {})[0] == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        ([], "not a JSON object"),
        ({}, "prompt must be"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": [1, 300]}, "token ids from 0 to 299"),
        ({"prompt": [True]}, "token ids from 0 to 299"),
        ({"prompt": ["two", "texts"]}, "prompt must be"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 100_000}, "maximum model length is 512"),
        ({"prompt": "a", "temperature": 0.7}, "temperature"),
        ({"prompt": "a", "thinking_token_budget": -1}, "thinking_token_budget"),
    ],
)
def test_a_client_s_mistake_is_told_to_the_client(server: tuple[FrontEnd, Engine], body: Any, reason: str) -> None:
    status, content = ask(server[0], "POST", "/v1/completions", body)
    assert status == 400
    assert reason in json.loads(content)["error"]["message"]


def test_a_body_that_is_too_large_is_refused_unread(server: tuple[FrontEnd, Engine]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server[0].port, timeout=60)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", "999999999999")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_client_that_hangs_up_frees_its_place_in_the_batch(server: tuple[FrontEnd, Engine]) -> None:
    front_end, engine = server
    connection = http.client.HTTPConnection("127.0.0.1", front_end.port, timeout=60)
    body = {"prompt": "a", "max_tokens": 500, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    connection.getresponse().readline()
    connection.close()
    # Another request gets through the same engine; when both are over, the first one counts as aborted
    # unless all its tokens were out before the server noticed.
    ask(front_end, "POST", "/v1/completions", {"prompt": "b", "max_tokens": 2, "ignore_eos": True})
    while engine.scheduler.has_work:
        ask(front_end, "GET", "/health")
    assert engine.finished["abort"] + engine.finished["length"] == 2
    assert engine.scheduler.pool.num_free == engine.config.num_kv_blocks
