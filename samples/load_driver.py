"""Sends completion requests to an OpenAI-style server, streams the answers, and writes how long each took.

Standard library only. Prompts, lengths and arrival times depend on the seed alone. The result file has the
fields of `vllm bench serve --save-result --save-detailed`, without the texts.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from command_line import LONGEST_INTERRUPT_OUTPUT, Parser, Span, not_negative, positive, positive_number, span

ANSWER_TIMEOUT_S = 600.0


@dataclass
class Outcome:
    """One request. Times are `time.perf_counter()` seconds; a failed request has an error and no times."""

    prompt_tokens: int
    start_s: float
    token_times_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    """What the server counted; None where it says nothing of them."""
    max_tokens: int | None = None
    finish_reason: str | None = None
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Sent to first token."""
        return self.token_times_s[0] - self.start_s if self.token_times_s and not self.error else 0.0

    @property
    def itls_s(self) -> list[float]:
        """Gaps between tokens."""
        if self.error:
            return []
        return [later - earlier for earlier, later in itertools.pairwise(self.token_times_s)]

    @property
    def e2el_s(self) -> float:
        """Sent to last token."""
        return self.token_times_s[-1] - self.start_s


@dataclass(frozen=True)
class Ask:
    """What one request asks for."""

    prompt: list[int]
    output_tokens: int
    reasoning_tokens: int | None = None
    """The part of the output that is thinking, without its two markers; None asks for none."""


@dataclass(frozen=True)
class Workload:
    """What is asked for, request by request."""

    seed: int | str
    prompt_tokens: Span
    output_tokens: Span
    shared_prefix_tokens: int
    vocab: int
    reasoning_tokens: Span | None = None

    def request(self, number: int) -> Ask:
        """A request: the same whoever sends it, and whenever."""
        random_numbers = random.Random(f"{self.seed}/request/{number}")
        length = random_numbers.randint(*self.prompt_tokens)
        output_tokens = random_numbers.randint(*self.output_tokens)
        shared = random.Random(f"{self.seed}/prefix").choices(range(self.vocab), k=self.shared_prefix_tokens)
        own = random_numbers.choices(range(self.vocab), k=length)
        # At least the last token differs, else the requests would all be one.
        prefix = shared[: length - 1]
        reasoning_tokens = None if self.reasoning_tokens is None else random_numbers.randint(*self.reasoning_tokens)
        return Ask(prefix + own[len(prefix) :], output_tokens, reasoning_tokens)

    def gap_s(self, number: int, request_rate: float) -> float:
        """Time between a request and the one before, for arrivals at random at a constant rate."""
        return random.Random(f"{self.seed}/gap/{number}").expovariate(request_rate)


class Client:
    """Sends requests and keeps their outcomes. Usable from many threads."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.outcomes: list[Outcome] = []
        self.server_gone = threading.Event()
        self._lock = threading.Lock()

    def wait_until_healthy(self, wait_seconds: float) -> bool:
        """Poll /health until it answers 200; False when it has not after `wait_seconds`."""
        deadline_s = time.perf_counter() + wait_seconds
        while time.perf_counter() < deadline_s:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return True
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        return False

    def complete(self, ask: Ask) -> None:
        """Send one request and read its stream to the end."""
        body: dict[str, Any] = {
            "prompt": ask.prompt,
            "max_tokens": ask.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_TIMEOUT_S)
        if ask.reasoning_tokens is not None:
            body["thinking_token_budget"] = ask.reasoning_tokens
        outcome = Outcome(len(ask.prompt), time.perf_counter(), max_tokens=ask.output_tokens)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == 200:
                self._read_stream(response, outcome)
            else:
                outcome.error = f"HTTP {response.status}"
        except ConnectionRefusedError:
            outcome.error = "connection refused"
            self.server_gone.set()
        except (OSError, http.client.HTTPException, ValueError) as fault:
            outcome.error = type(fault).__name__
        finally:
            connection.close()
        outcome.end_s = time.perf_counter()
        with self._lock:
            self.outcomes.append(outcome)

    def _read_stream(self, response: http.client.HTTPResponse, outcome: Outcome) -> None:
        outcome.error = "stream ended early"
        for line in response:
            if not line.startswith(b"data:"):
                continue
            now_s = time.perf_counter()
            content = line[len(b"data:") :].strip()
            if content == b"[DONE]":
                if outcome.token_times_s:
                    outcome.error = ""
                    outcome.output_tokens = outcome.output_tokens or len(outcome.token_times_s)
                return
            chunk = json.loads(content)
            if chunk.get("choices"):
                outcome.token_times_s.append(now_s)
                outcome.finish_reason = chunk["choices"][0].get("finish_reason") or outcome.finish_reason
            if chunk.get("usage"):
                outcome.output_tokens = chunk["usage"]["completion_tokens"]
                details = chunk["usage"].get("completion_tokens_details") or {}
                outcome.reasoning_tokens = details.get("reasoning_tokens")


def run_closed(client: Client, workload: Workload, concurrency: int, load_seconds: float) -> None:
    """Keep `concurrency` requests in flight, then let them finish."""
    numbers = itertools.count()
    deadline_s = time.perf_counter() + load_seconds

    def one_client() -> None:
        while time.perf_counter() < deadline_s and not client.server_gone.is_set():
            client.complete(workload.request(next(numbers)))

    threads = [threading.Thread(target=one_client, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_open(client: Client, workload: Workload, request_rate: float, load_seconds: float) -> None:
    """Send requests when their time has come, however many are in flight, then let them finish."""
    threads: list[threading.Thread] = []
    start_s = time.perf_counter()
    due_s = 0.0
    for number in itertools.count():
        due_s += workload.gap_s(number, request_rate)
        if due_s > load_seconds or client.server_gone.wait(max(0.0, start_s + due_s - time.perf_counter())):
            break
        thread = threading.Thread(target=client.complete, args=(workload.request(number),), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def run_load(client: Client, options: argparse.Namespace) -> None:
    """Send what the options ask for: one kind of request, or two beside each other."""
    workload = Workload(
        options.seed,
        options.prompt_tokens,
        options.output_tokens,
        options.shared_prefix_tokens,
        options.vocab,
        options.reasoning_tokens,
    )
    interrupts: list[threading.Thread] = []
    if options.interrupt_rate is not None:
        short = Span((1, LONGEST_INTERRUPT_OUTPUT))
        # Seeded apart, else both kinds would begin with the same tokens.
        second = Workload(f"{options.seed}/interrupt", options.interrupt_prompt_tokens, short, 0, options.vocab)
        arguments = (client, second, options.interrupt_rate, options.load_seconds)
        interrupts.append(threading.Thread(target=run_open, args=arguments, daemon=True))
        interrupts[0].start()
    if options.concurrency is not None:
        run_closed(client, workload, options.concurrency, options.load_seconds)
    else:
        run_open(client, workload, options.request_rate, options.load_seconds)
    for thread in interrupts:
        thread.join()


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest values."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def latency_fields(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """Statistics in milliseconds; no fields where nothing was measured."""
    if not values_s:
        return {}
    values_ms = [value * 1000 for value in values_s]
    return {
        f"mean_{name}_ms": statistics.fmean(values_ms),
        f"median_{name}_ms": statistics.median(values_ms),
        f"std_{name}_ms": statistics.pstdev(values_ms),
        f"p99_{name}_ms": percentile(values_ms, 99),
    }


def reasoning_lens(outcomes: Sequence[Outcome]) -> dict[str, list[int | None]]:
    """Reasoning tokens of each request, None where the server gave none; no list where it never gave any."""
    lens = [outcome.reasoning_tokens for outcome in outcomes]
    return {} if all(length is None for length in lens) else {"reasoning_lens": lens}


def result(options: argparse.Namespace, outcomes: Sequence[Outcome], start_s: float, end_s: float) -> dict[str, Any]:
    """The result file's content."""
    good = [outcome for outcome in outcomes if not outcome.error]
    duration_s = end_s - start_s
    output_tokens = sum(outcome.output_tokens for outcome in good)
    input_tokens = sum(outcome.prompt_tokens for outcome in good)
    per_token_s = [
        (outcome.e2el_s - outcome.ttft_s) / (outcome.output_tokens - 1) for outcome in good if outcome.output_tokens > 1
    ]
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai",
        "label": options.label,
        "model_id": "sample",
        "num_prompts": len(outcomes),
        "request_rate": "inf" if options.request_rate is None else options.request_rate,
        "burstiness": 1.0,
        "max_concurrency": options.concurrency,
        **({} if options.interrupt_rate is None else {"interrupt_rate": options.interrupt_rate}),
        "seed": options.seed,
        "duration": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / duration_s,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / duration_s,
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens if not outcome.error else 0 for outcome in outcomes],
        **reasoning_lens(outcomes),
        "max_tokens": [outcome.max_tokens for outcome in outcomes],
        "finish_reasons": [outcome.finish_reason for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [outcome.itls_s for outcome in outcomes],
        "start_times": [outcome.start_s for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
        **latency_fields("ttft", [outcome.ttft_s for outcome in good]),
        **latency_fields("tpot", per_token_s),
        **latency_fields("itl", [gap for outcome in good for gap in outcome.itls_s]),
        **latency_fields("e2el", [outcome.e2el_s for outcome in good]),
    }


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Readers see no file or a whole one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def parse_options(argv: list[str] | None = None) -> argparse.Namespace:
    """Options; a mistake is one sentence and exit code 2."""
    parser = Parser(prog="load_driver.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True, help="the server, e.g. http://127.0.0.1:8000")
    parser.add_argument("--label", default="load", help="a name that goes into the result")
    parser.add_argument("--seed", type=not_negative, default=0, metavar="N")
    parser.add_argument(
        "--load-seconds", type=positive_number, default=60.0, metavar="S", help="how long requests are sent"
    )
    parser.add_argument(
        "--wait-seconds", type=positive_number, default=120.0, metavar="S", help="for /health to answer, at most"
    )
    parser.add_argument("--prompt-tokens", type=span, default=Span((16, 32)), metavar="A:B")
    parser.add_argument("--output-tokens", type=span, default=Span((8, 16)), metavar="A:B")
    parser.add_argument("--shared-prefix-tokens", type=not_negative, default=0, metavar="N")
    parser.add_argument("--vocab", type=positive, default=256, metavar="N", help="prompts' tokens are below it")
    parser.add_argument(
        "--reasoning-tokens", type=span, metavar="A:B", help="ask for so much thinking, as part of the output"
    )
    parser.add_argument(
        "--interrupt-prompt-tokens", type=span, metavar="A:B", help="a second kind of request, with hardly any output"
    )
    parser.add_argument(
        "--interrupt-rate", type=positive_number, metavar="R", help="random arrivals of the second kind a second"
    )
    arrivals = parser.add_mutually_exclusive_group(required=True)
    arrivals.add_argument("--concurrency", type=positive, metavar="N", help="closed loop: N requests in flight")
    arrivals.add_argument(
        "--request-rate", type=positive_number, metavar="R", help="open loop: R random arrivals a second"
    )
    parser.add_argument("--result", type=Path, default=Path("load-result.json"), metavar="FILE")
    options = parser.parse_args(argv)
    if (options.interrupt_prompt_tokens is None) != (options.interrupt_rate is None):
        parser.error("--interrupt-prompt-tokens and --interrupt-rate go together")
    return options


def main() -> int:
    """Run the load; 0 when at least one request was answered."""
    options = parse_options()
    client = Client(options.url)
    if not client.wait_until_healthy(options.wait_seconds):
        print(f"load_driver.py: {options.url}/health did not answer", file=sys.stderr)
        return 1
    start_s = time.perf_counter()
    run_load(client, options)
    outcomes = sorted(client.outcomes, key=lambda outcome: outcome.start_s)
    if all(outcome.error for outcome in outcomes):
        print(f"load_driver.py: none of {len(outcomes)} requests was answered", file=sys.stderr)
        return 1
    content = result(options, outcomes, start_s, time.perf_counter())
    try:
        write_atomically(options.result, content)
    except OSError as fault:
        print(f"load_driver.py: cannot write {options.result}: {fault.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
