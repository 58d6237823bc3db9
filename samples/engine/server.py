"""The HTTP front end: OpenAI-style completions, health and metrics, on the standard library's server.

One thread per connection. It turns text into tokens, hands the request to the engine, and waits for tokens.
"""

from __future__ import annotations

import codecs
import itertools
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from .scheduler import Request
from .vocabulary import EOS_TOKEN_ID, text_of

if TYPE_CHECKING:
    from .core import Engine

LARGEST_BODY_BYTES = 4_000_000


class BadRequestError(Exception):
    """The client's mistake, told to the client."""


def parse_prompt(prompt: object, vocab: int) -> list[int]:
    """Token ids of a prompt that is text or already a list of token ids."""
    if isinstance(prompt, str):
        return list(prompt.encode("utf-8", errors="replace"))
    if isinstance(prompt, list) and all(type(token) is int and 0 <= token < vocab for token in prompt):
        return prompt
    raise BadRequestError(f"prompt must be text, or a list of token ids from 0 to {vocab - 1}")


def parse_body(body: bytes, vocab: int) -> tuple[Request, dict[str, Any]]:
    """The engine's request, and the whole body for what concerns the answer's form."""
    try:
        fields = json.loads(body)
    except ValueError:
        raise BadRequestError("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise BadRequestError("the body is not a JSON object")
    max_tokens = fields.get("max_tokens", 16)
    if type(max_tokens) is not int or max_tokens < 1:
        raise BadRequestError("max_tokens must be a whole number, 1 or more")
    thinking = fields.get("thinking_token_budget")
    if thinking is not None and (type(thinking) is not int or thinking < 0):
        raise BadRequestError("thinking_token_budget must be a whole number, 0 or more, or absent")
    if fields.get("temperature") not in (None, 0):
        raise BadRequestError("this engine samples greedily: temperature must be 0 or absent")
    eos_token_id = None if fields.get("ignore_eos") is True else EOS_TOKEN_ID
    request_id = f"cmpl-{next(_request_numbers)}"
    prompt = parse_prompt(fields.get("prompt"), vocab)
    return Request(request_id, prompt, max_tokens, eos_token_id, thinking), fields


_request_numbers = itertools.count()


def output_tokens(request: Request) -> Iterator[tuple[int, str | None]]:
    """Tokens as they come, the last one with the finish reason."""
    finish_reason = None
    while finish_reason is None:
        token, finish_reason = request.events.get()
        yield token, finish_reason


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: FrontEnd
    protocol_version = "HTTP/1.1"
    # Otherwise a token may wait tens of milliseconds for company before it is sent.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Health and metrics."""
        if self.path == "/health":
            self._send(200, b"", "text/plain")
        elif self.path == "/metrics":
            self._send(200, self.server.engine.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._send_error(404, f"no such path: {self.path}")

    def do_POST(self) -> None:
        """Completions."""
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= LARGEST_BODY_BYTES:
            self.close_connection = True
            self._send_error(413, f"the body must be at most {LARGEST_BODY_BYTES} bytes")
            return
        body = self.rfile.read(length)
        if self.path != "/v1/completions":
            self._send_error(404, f"no such path: {self.path}")
            return
        try:
            request, fields = parse_body(body, self.server.engine.model.config.vocab)
            self.server.engine.submit(request)
        except (BadRequestError, ValueError) as mistake:
            self._send_error(400, str(mistake))
            return
        try:
            if fields.get("stream") is True:
                options = fields.get("stream_options")
                self._stream(request, isinstance(options, dict) and options.get("include_usage") is True)
            else:
                self._complete(request)
        except OSError:
            # The client hung up; its tokens must not take up room in the batch any longer.
            self.close_connection = True
            self.server.engine.abort(request)

    def _complete(self, request: Request) -> None:
        text = _Text()
        pieces = [text.piece(token, reason is not None) for token, reason in output_tokens(request)]
        answer = self._answer(request, "".join(pieces), request.finish_reason)
        self._send_json(200, {**answer, "usage": _usage(request)})

    def _stream(self, request: Request, include_usage: bool) -> None:
        """Server-sent events: one chunk per token, the last one with the finish reason, then [DONE]."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # The answer's length is not known when its head is sent: it ends where the connection does.
        self.send_header("Connection", "close")
        self.end_headers()
        text = _Text()
        for token, finish_reason in output_tokens(request):
            self._event(self._answer(request, text.piece(token, finish_reason is not None), finish_reason))
        if include_usage:
            self._event({**self._answer(request, "", None), "choices": [], "usage": _usage(request)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _answer(self, request: Request, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "id": request.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.server.engine.config.model_name,
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}],
        }

    def _send_json(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send_error(self, status: int, message: str) -> None:
        self._send_json(status, {"error": {"message": message, "type": "invalid_request_error", "code": status}})

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            # Whoever asked has stopped waiting; there is nobody to tell.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the engine prints its own progress."""


class _Text:
    """Turns tokens into text as they come; a character of several bytes comes out with its last byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def piece(self, token: int, is_last: bool) -> str:
        return self._decoder.decode(text_of(token), final=is_last)


def _usage(request: Request) -> dict[str, Any]:
    prompt, output = len(request.prompt_token_ids), len(request.output_token_ids)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    if request.num_thinking_tokens is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": request.num_reasoning_tokens}
    return usage


class FrontEnd(ThreadingHTTPServer):
    """Listens from construction on; answers once `start` gave it an engine."""

    daemon_threads = True
    request_queue_size = 128
    engine: Engine

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), Handler)

    @property
    def port(self) -> int:
        """The bound port, also where any free one was asked for."""
        return int(self.server_address[1])

    def start(self, engine: Engine) -> None:
        """Answer in a thread of its own; the engine's loop keeps the main thread."""
        self.engine = engine
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()
