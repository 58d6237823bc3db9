"""The scenarios: each an engine and a load for it, chosen so that physics fixes what the bottleneck is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from command_line import Span


@dataclass(frozen=True)
class Scenario:
    """Defaults of the command line.

    Sizes assume one compute thread at 20 to 100 GFLOP/s and 8 to 30 GB/s: steps then take 0.02 to 0.4 s, but for
    `host`, whose point is that they are shorter. Lengths are in tokens, drawn evenly per request. A load with
    `concurrency` is closed: that many clients, each of which sends its next request when its last one is done.
    Else requests arrive at random, `request_rate` a second. `interrupt_*` describe a second kind of request, which
    arrives at random beside the others.
    """

    summary: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    max_num_seqs: int
    prompt_tokens: Span
    output_tokens: Span
    concurrency: int | None = None
    request_rate: float | None = None
    shared_prefix_tokens: int = 0
    reasoning_tokens: Span | None = None
    interrupt_prompt_tokens: Span | None = None
    interrupt_rate: float | None = None
    vocab: int = 512
    max_num_batched_tokens: int = 64
    max_model_len: int = 1024
    num_kv_blocks: int = 256
    block_size: int = 16
    no_prefix_caching: bool = False
    linear_layout: str = "dense"
    compile: bool = False
    compile_backend: str = "inductor"
    compile_shapes: str = "dynamic"


SCENARIOS = {
    "prefill": Scenario(
        summary="long prompts, hardly any output: arithmetic binds",
        layers=2,
        hidden=1536,
        ffn=6144,
        heads=12,
        kv_heads=4,
        max_num_seqs=8,
        prompt_tokens=Span((192, 384)),
        num_kv_blocks=512,
        output_tokens=Span((1, 3)),
        concurrency=1,
    ),
    "decode": Scenario(
        summary="one request at a time, weights far larger than the last-level cache: reading them binds",
        layers=2,
        hidden=2304,
        ffn=9216,
        heads=18,
        kv_heads=3,
        max_num_seqs=8,
        prompt_tokens=Span((8, 16)),
        output_tokens=Span((12, 24)),
        concurrency=1,
    ),
    "queue": Scenario(
        summary="many clients, a batch cap of 4 and KV cache to spare: the cap binds",
        layers=2,
        hidden=1792,
        ffn=7168,
        heads=14,
        kv_heads=2,
        max_num_seqs=4,
        prompt_tokens=Span((8, 16)),
        output_tokens=Span((20, 40)),
        concurrency=16,
    ),
    "healthy": Scenario(
        summary="light load: the engine idles most of the time",
        layers=2,
        hidden=1536,
        ffn=6144,
        heads=12,
        kv_heads=2,
        max_num_seqs=8,
        prompt_tokens=Span((16, 32)),
        output_tokens=Span((6, 12)),
        request_rate=0.8,
    ),
    "kv-capacity": Scenario(
        summary="many clients, batch cap out of reach, KV cache for five requests: its size binds",
        layers=2,
        hidden=1536,
        ffn=6144,
        heads=12,
        kv_heads=4,
        max_num_seqs=32,
        max_num_batched_tokens=96,
        prompt_tokens=Span((12, 20)),
        output_tokens=Span((28, 44)),
        concurrency=16,
        # One block holds a whole request: none grows, so none is thrown out.
        max_model_len=64,
        num_kv_blocks=5,
        block_size=64,
    ),
    "preemption": Scenario(
        summary="short prompts grow into a KV cache for two and a half: requests are thrown out and recomputed",
        layers=2,
        hidden=1280,
        ffn=5120,
        heads=10,
        kv_heads=2,
        max_num_seqs=32,
        prompt_tokens=Span((8, 16)),
        output_tokens=Span((64, 96)),
        concurrency=12,
        max_model_len=112,
        num_kv_blocks=70,
        block_size=4,
        no_prefix_caching=True,
    ),
    "host": Scenario(
        summary="tiny operators, many layers, one request at a time: Python and dispatch bind",
        layers=24,
        hidden=64,
        ffn=128,
        heads=4,
        kv_heads=2,
        max_num_seqs=8,
        prompt_tokens=Span((8, 16)),
        output_tokens=Span((48, 96)),
        concurrency=1,
    ),
    "mixed": Scenario(
        summary="one client decodes long outputs; long prompts arrive at random and their chunks share its steps",
        layers=2,
        hidden=1536,
        ffn=6144,
        heads=12,
        kv_heads=4,
        max_num_seqs=16,
        prompt_tokens=Span((8, 16)),
        output_tokens=Span((48, 96)),
        concurrency=1,
        interrupt_prompt_tokens=Span((128, 256)),
        interrupt_rate=0.5,
        num_kv_blocks=1024,
    ),
    "shared-prefix": Scenario(
        summary="prompts share a long prefix that the prefix cache keeps: reading the weights binds",
        layers=2,
        hidden=1792,
        ffn=7168,
        heads=14,
        kv_heads=2,
        max_num_seqs=8,
        prompt_tokens=Span((390, 400)),
        output_tokens=Span((16, 28)),
        shared_prefix_tokens=384,
        concurrency=1,
        num_kv_blocks=512,
    ),
    "reasoning": Scenario(
        summary="one request at a time, most of its output is thinking: reading the weights for it binds",
        layers=2,
        hidden=1792,
        ffn=7168,
        heads=14,
        kv_heads=2,
        max_num_seqs=8,
        prompt_tokens=Span((8, 16)),
        output_tokens=Span((40, 64)),
        reasoning_tokens=Span((24, 34)),
        concurrency=1,
    ),
    "compile": Scenario(
        summary="static shapes, and every prompt length is a new one: compilation binds",
        layers=1,
        hidden=128,
        ffn=384,
        heads=4,
        kv_heads=2,
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        prompt_tokens=Span((16, 1000)),
        output_tokens=Span((2, 4)),
        concurrency=1,
        num_kv_blocks=1024,
        compile=True,
        compile_backend="aot_eager",
        compile_shapes="static",
    ),
    "inefficient-kernel": Scenario(
        summary="weights in small tiles without a kernel made for them: neither peak is reached",
        layers=4,
        hidden=512,
        ffn=1536,
        heads=8,
        kv_heads=2,
        max_num_seqs=8,
        max_num_batched_tokens=16,
        prompt_tokens=Span((4, 8)),
        output_tokens=Span((24, 48)),
        concurrency=3,
        linear_layout="tiled",
    ),
}
# The same load, computed from the start for every request.
SCENARIOS["shared-prefix-uncached"] = replace(
    SCENARIOS["shared-prefix"],
    summary="the same prompts without prefix caching: computing the prefix again and again binds",
    no_prefix_caching=True,
)
DEFAULT_SCENARIO = "decode"
# Without a load, the engine is as in the lightest scenario.
ENGINE_WITHOUT_LOAD = "healthy"
