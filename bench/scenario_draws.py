"""What `scenarios.py` draws: for every scenario, sizes within ranges in which physics fixes the answer.

Each `draw_*` says why. The ranges hold on machines from 20 to 100 GFLOP/s and 8 to 30 GB/s a thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable

VOCAB = 512
# What a fast machine of the above computes with; with it the shares of arithmetic are lower limits.
FAST_FLOP_PER_S = 70e9


def draw_model(numbers: random.Random, low_mb: float, high_mb: float) -> tuple[dict[str, str], float]:
    """A decoder whose weights lie between two sizes; returns its options and its size in megabytes.

    Few and wide layers: at these sizes a step is matrix multiplication, and what Python adds is small beside it.
    """
    while True:
        heads = numbers.randint(8, 24)
        hidden = 128 * heads
        kv_heads = numbers.choice([count for count in (2, 3, 4, 6) if heads % count == 0] or [heads])
        ffn = 128 * round(hidden * numbers.uniform(2.5, 4.0) / 128)
        layers = numbers.randint(1, 5)
        attention = 2 * hidden * hidden + 2 * hidden * 128 * kv_heads
        megabytes = 4 * (layers * (attention + 3 * hidden * ffn) + 2 * VOCAB * hidden) / 1e6
        if low_mb <= megabytes <= high_mb:
            sizes = {"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv-heads": kv_heads}
            return {name: str(value) for name, value in sizes.items()}, megabytes


def span_around(numbers: random.Random, mean: float, smallest: int) -> str:
    """A:B with the given middle and a drawn width."""
    half = mean * numbers.uniform(0.2, 0.5)
    first = max(smallest, round(mean - half))
    return f"{first}:{max(first, round(mean + half))}"


def limits(numbers: random.Random, longest: int, requests: int, max_num_seqs: int, chunk: int) -> dict[str, str]:
    """Engine limits with a KV cache of at least four times what `requests` requests can need."""
    block_size = numbers.choice([8, 16, 32])
    max_model_len = 64 * (-(-longest // 64))
    blocks = 4 * requests * (-(-longest // block_size)) + max_model_len // block_size
    return {
        "max-num-seqs": str(max_num_seqs),
        "max-num-batched-tokens": str(chunk),
        "max-model-len": str(max_model_len),
        "block-size": str(block_size),
        "num-kv-blocks": str(blocks),
    }


def longest_of(*spans: str) -> int:
    """Largest sum of the spans' ends."""
    return sum(int(span.partition(":")[2]) for span in spans)


def draw_prefill(numbers: random.Random) -> dict[str, str]:
    """Nearly all tokens are prompt tokens, in chunks of 48 rows and more: each weight that is read is used at least
    48 times. The cap is out of reach, and there is always a prompt to compute."""
    model, megabytes = draw_model(numbers, 150, 400)
    # Bounds seconds per request, so that even a busy machine completes 30 in a minute.
    prompt = span_around(numbers, min(numbers.uniform(160, 480), 90_000 / megabytes), 64)
    output = f"1:{numbers.randint(1, 3)}"
    concurrency = numbers.randint(1, 3)
    cap = numbers.randint(6, 16)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), concurrency, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_decode(numbers: random.Random) -> dict[str, str]:
    """One request at a time, many more decode steps than prompt tokens pay for: each reads all weights, which are
    ten to thirty times a last-level cache of 32 MB, and uses each weight once."""
    model, megabytes = draw_model(numbers, 320, 900)
    output = span_around(numbers, min(numbers.uniform(12, 32), 12_000 / megabytes), 8)
    prompt = span_around(numbers, numbers.uniform(6, 16), 3)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), 1, numbers.randint(4, 16), 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": "1",
    }


def draw_queue(numbers: random.Random) -> dict[str, str]:
    """Three to five times as many clients as the cap admits, KV cache for four times all of them, and little prefill:
    most of a request's time is waiting for a place, and a larger batch reads the weights no more often."""
    model, megabytes = draw_model(numbers, 200, 450)
    cap = numbers.randint(2, 6)
    concurrency = numbers.randint(3 * cap, 5 * cap)
    output = span_around(numbers, min(numbers.uniform(20, 44), 6_000 * cap / megabytes), 12)
    prompt = span_around(numbers, numbers.uniform(6, 14), 3)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), concurrency, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_healthy(numbers: random.Random) -> dict[str, str]:
    """Random arrivals, about one a second, of requests that take a fifth of one: mostly there is nothing to do."""
    model, megabytes = draw_model(numbers, 120, 300)
    output = span_around(numbers, min(numbers.uniform(6, 14), 2_400 / megabytes), 4)
    prompt = span_around(numbers, numbers.uniform(12, 28), 6)
    cap = numbers.randint(6, 16)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), cap, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "request-rate": f"{numbers.uniform(0.75, 1.1):.2f}",
    }


def draw_kv_capacity(numbers: random.Random) -> dict[str, str]:
    """Three to five times as many clients as the KV cache holds requests, and a cap above all of them. A block holds
    a whole request, so none grows and none is preempted: as many run as there are blocks, all blocks are in use, and
    the others wait. Outputs are more than twice as long as prompts, so most time goes into decodes, of which a larger
    cache would put more into each reading of the weights."""
    model, _ = draw_model(numbers, 150, 300)
    block_size, prompt = numbers.choice([(32, "4:8"), (64, "6:16"), (64, "10:18")])
    blocks = numbers.randint(4, 7)
    longest_output = block_size - longest_of(prompt)
    output = f"{round(longest_output * numbers.uniform(0.6, 0.75))}:{longest_output}"
    concurrency = numbers.randint(3 * blocks, 5 * blocks)
    return {
        **model,
        "max-num-seqs": str(concurrency + numbers.randint(4, 20)),
        "max-num-batched-tokens": str(8 * numbers.randint(8, 12)),
        "max-model-len": str(block_size),
        "block-size": str(block_size),
        "num-kv-blocks": str(blocks),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_preemption(numbers: random.Random) -> dict[str, str]:
    """Prompts are short and outputs eight times as long, so a request is admitted with a tenth of the KV cache that
    it will need. The cache holds two or three whole requests, the clients send eight and more, and nothing is cached:
    the youngest is thrown out again and again, and computed from its start each time."""
    model, _ = draw_model(numbers, 120, 250)
    output_mean = numbers.uniform(56, 88)
    output = span_around(numbers, output_mean, 32)
    prompt = span_around(numbers, output_mean / 8, 3)
    longest = longest_of(prompt, output)
    block_size = numbers.choice([4, 8])
    max_model_len = block_size * -(-longest // block_size)
    concurrency = numbers.randint(8, 14)
    return {
        **model,
        "max-num-seqs": str(concurrency + numbers.randint(4, 20)),
        "max-num-batched-tokens": str(8 * numbers.randint(8, 12)),
        "max-model-len": str(max_model_len),
        "block-size": str(block_size),
        "num-kv-blocks": str(round(numbers.uniform(2.2, 3.0) * max_model_len / block_size)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
        "no-prefix-caching": "",
    }


def draw_host(numbers: random.Random) -> dict[str, str]:
    """Matrices of 48 to 96 rows stay in the second-level cache, and multiplying one takes about a microsecond: less
    than calling it from Python. A step is hundreds of such calls."""
    heads = numbers.randint(3, 6)
    hidden = 16 * heads
    output = span_around(numbers, numbers.uniform(48, 96), 24)
    prompt = span_around(numbers, numbers.uniform(6, 16), 3)
    concurrency = numbers.randint(1, 2)
    return {
        "layers": str(numbers.randint(16, 32)),
        "hidden": str(hidden),
        "ffn": str(2 * hidden),
        "heads": str(heads),
        "kv-heads": str(heads),
        **limits(numbers, longest_of(prompt, output), concurrency, numbers.randint(6, 16), 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_mixed(numbers: random.Random) -> dict[str, str]:
    """One client decodes all the time, a step of which reads the weights once. Long prompts arrive at random, and
    their chunks of 48 rows and more join its steps, which then take several times as long: its tokens come late.
    Prompts take 15 to 45 % of the time on a fast machine and more on a slow one, so which of the two is larger is
    told by the engine's own time of steps."""
    model, megabytes = draw_model(numbers, 150, 300)
    output = span_around(numbers, numbers.uniform(48, 80), 32)
    prompt = span_around(numbers, numbers.uniform(6, 14), 3)
    interrupt_mean = numbers.uniform(128, 224)
    interrupt = span_around(numbers, interrupt_mean, 64)
    seconds_each = interrupt_mean * 2 * (megabytes * 1e6 / 4) / FAST_FLOP_PER_S
    longest = max(longest_of(prompt, output), longest_of(interrupt) + 2)
    cap = numbers.randint(16, 24)
    return {
        **model,
        **limits(numbers, longest, cap, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": "1",
        "interrupt-prompt-tokens": interrupt,
        "interrupt-rate": f"{numbers.uniform(0.15, 0.45) / seconds_each:.2f}",
    }


def _shared_prefix(numbers: random.Random, prefix: int, output_mean: float) -> dict[str, str]:
    model, _ = draw_model(numbers, 200, 400)
    prompt = f"{prefix + numbers.randint(4, 8)}:{prefix + numbers.randint(9, 12)}"
    output = span_around(numbers, output_mean, 6)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), 2, numbers.randint(4, 16), 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "shared-prefix-tokens": str(prefix),
        "concurrency": "1",
    }


def draw_shared_prefix(numbers: random.Random) -> dict[str, str]:
    """One request at a time, whose long prefix is in the cache from the second request on: a dozen prompt tokens are
    left to compute, in one step, before 20 and more decode steps that each read all weights."""
    return _shared_prefix(numbers, 32 * numbers.randint(8, 14), numbers.uniform(20, 32))


def draw_shared_prefix_uncached(numbers: random.Random) -> dict[str, str]:
    """The same prompts, computed from their start for every request: 30 and more prompt tokens for each output token.
    Reading the weights for a decode takes as long as arithmetic for about seven rows of a chunk."""
    return {
        **_shared_prefix(numbers, 32 * numbers.randint(10, 14), numbers.uniform(8, 11)),
        "no-prefix-caching": "",
    }


def draw_reasoning(numbers: random.Random) -> dict[str, str]:
    """As decode: one request at a time, each step reads all weights. Of its output more than half is thinking."""
    model, megabytes = draw_model(numbers, 250, 500)
    reasoning = span_around(numbers, min(numbers.uniform(20, 40), 10_000 / megabytes), 12)
    # The answer, with room for both markers.
    first = longest_of(reasoning) + 3
    output = f"{first}:{first + numbers.randint(2, 8)}"
    prompt = span_around(numbers, numbers.uniform(6, 14), 3)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), 1, numbers.randint(4, 16), 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "reasoning-tokens": reasoning,
        "concurrency": "1",
    }


def draw_compile(numbers: random.Random) -> dict[str, str]:
    """Static shapes: every prompt length is compiled for when it first comes, which takes a tenth of a second and
    more, and computed in milliseconds, as the model is tiny. Hundreds of lengths are drawn from, evenly."""
    heads = numbers.randint(3, 6)
    longest = numbers.randint(800, 1000)
    prompt = f"{numbers.randint(8, 24)}:{longest}"
    output = f"2:{numbers.randint(2, 4)}"
    concurrency = numbers.randint(1, 2)
    return {
        "layers": str(numbers.randint(1, 2)),
        "hidden": str(32 * heads),
        "ffn": str(96 * heads),
        "heads": str(heads),
        "kv-heads": str(heads),
        **limits(numbers, longest_of(prompt, output), concurrency, numbers.randint(4, 8), 1024),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_inefficient_kernel(numbers: random.Random) -> dict[str, str]:
    """Weights in tiles of 8 x 8, of which a step of two to five rows multiplies each one by one: products of a few
    hundred operations, in which starting takes longer than computing or reading. Neither peak can be near, on any
    machine, and the weights are far too many for Python between the operators to matter."""
    heads = numbers.randint(6, 9)
    concurrency = numbers.randint(2, 5)
    output = span_around(numbers, numbers.uniform(24, 48), 12)
    prompt = span_around(numbers, 6, 3)
    return {
        "layers": str(numbers.randint(3, 5)),
        "hidden": str(64 * heads),
        "ffn": str(192 * heads),
        "heads": str(heads),
        "kv-heads": str(heads // 3 if heads % 3 == 0 else heads),
        "linear-layout": "tiled",
        **limits(numbers, longest_of(prompt, output), concurrency, numbers.randint(8, 12), 16),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_interconnect(_numbers: random.Random) -> dict[str, str]:
    """Two ranks whose link carries megabytes a step at a small part of what their arithmetic could use: most of a
    step is transfer, for both at the same time."""
    return {}


def draw_interconnect_late_rank(numbers: random.Random) -> dict[str, str]:
    """The same, but one rank starts each exchange late: the other waits for it and not for the link."""
    return {"slow-rank-ms": str(numbers.randint(150, 300))}


DRAW: dict[str, Callable[[random.Random], dict[str, str]]] = {
    "prefill": draw_prefill,
    "decode": draw_decode,
    "queue": draw_queue,
    "healthy": draw_healthy,
    "kv-capacity": draw_kv_capacity,
    "preemption": draw_preemption,
    "host": draw_host,
    "mixed": draw_mixed,
    "shared-prefix": draw_shared_prefix,
    "shared-prefix-uncached": draw_shared_prefix_uncached,
    "reasoning": draw_reasoning,
    "compile": draw_compile,
    "inefficient-kernel": draw_inefficient_kernel,
    "interconnect": draw_interconnect,
    "interconnect-late-rank": draw_interconnect_late_rank,
}
# What a scenario needs beside its own name even where nothing is drawn.
DEFAULT_OPTIONS = {"interconnect-late-rank": {"slow-rank-ms": "200"}}
