"""Command line of `serve.py`, and the scenarios that give its options their defaults."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from command_line import Parser, Span, not_negative, positive, positive_number, span

from .server import SMALLEST_VOCAB


@dataclass(frozen=True)
class Scenario:
    """An engine and a load for it, chosen so that one thing is the bottleneck.

    Sizes assume one compute thread at 20 to 100 GFLOP/s and 8 to 30 GB/s: steps then take 0.02 to 0.4 s.
    Lengths are in tokens, drawn evenly per request. A load with `concurrency` is closed: that many
    clients, each of which sends its next request when its last one is done. Else requests arrive at random,
    `request_rate` a second.
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
    vocab: int = 512
    max_num_batched_tokens: int = 64
    max_model_len: int = 1024
    num_kv_blocks: int = 256
    block_size: int = 16


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
}
DEFAULT_SCENARIO = "decode"
# Without a load, the engine is as in the lightest scenario.
ENGINE_WITHOUT_LOAD = "healthy"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="serve.py",
        description="A small continuous-batching LLM engine with random weights. With a scenario it also "
        "starts a load driver, and ends when the load does.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n"
        + "\n".join(f"  {name:8} {scenario.summary}" for name, scenario in SCENARIOS.items())
        + "\n\nOptions that are not given come from the scenario.",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--scenario",
        choices=[*SCENARIOS, "none"],
        default=DEFAULT_SCENARIO,
        help="default: %(default)s; none serves until it is stopped",
    )
    load.add_argument("--seed", type=not_negative, default=0, help="of weights, prompts and arrivals; default 0")
    load.add_argument(
        "--load-seconds", type=positive_number, default=60.0, help="how long requests are sent; default 60"
    )
    load.add_argument("--prompt-tokens", type=span, metavar="A:B", help="prompt length, drawn evenly")
    load.add_argument("--output-tokens", type=span, metavar="A:B", help="output length, drawn evenly")
    arrivals = load.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--request-rate", type=positive_number, metavar="R", help="requests arrive at random, R a second"
    )
    arrivals.add_argument(
        "--concurrency",
        type=positive,
        metavar="N",
        help="N clients, each sends when its last request is done",
    )
    load.add_argument(
        "--shared-prefix-tokens",
        type=not_negative,
        default=0,
        metavar="N",
        help="the first N tokens of every prompt are the same; default 0",
    )
    load.add_argument("--result", metavar="FILE", help="result file; default serve-bench-SCENARIO-seedSEED.json here")

    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-num-seqs", type=positive, metavar="N", help="requests in a batch")
    engine.add_argument("--max-num-batched-tokens", type=positive, metavar="N", help="tokens in a step")
    engine.add_argument("--max-model-len", type=positive, metavar="N", help="prompt and output of a request")
    engine.add_argument("--num-kv-blocks", type=positive, metavar="N", help="blocks of the KV cache")
    engine.add_argument("--block-size", type=positive, metavar="N", help="tokens in a block")
    engine.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt from its start")
    engine.add_argument("--compile", action="store_true", help="torch.compile the dense parts of every layer")
    engine.add_argument("--compile-backend", default="inductor", metavar="NAME", help="default: inductor")
    cpus = len(os.sched_getaffinity(0))
    engine.add_argument(
        "--threads",
        type=positive,
        # The front end, the load driver and whatever watches them need a core too: on one that they share
        # with the arithmetic they would wait for it, and so would every measurement.
        default=max(1, cpus - 1),
        metavar="N",
        help="compute threads; default: all CPUs but one",
    )

    model = parser.add_argument_group("model")
    for size in ("layers", "hidden", "ffn", "heads", "kv-heads", "vocab"):
        model.add_argument(f"--{size}", type=positive, metavar="N")

    http = parser.add_argument_group("http")
    http.add_argument("--host", default="127.0.0.1")
    http.add_argument("--port", type=not_negative, help="default: 8000 with --scenario none, else any free one")
    return parser


def parse_options(argv: list[str] | None = None) -> argparse.Namespace:
    """Options with every default filled in. A mistake ends the program: one sentence, exit code 2."""
    parser = _parser()
    options = parser.parse_args(argv)
    scenario = SCENARIOS[ENGINE_WITHOUT_LOAD if options.scenario == "none" else options.scenario]
    defaults = dict(vars(scenario))
    if options.request_rate is not None or options.concurrency is not None:
        # The two ways to load exclude each other.
        del defaults["request_rate"], defaults["concurrency"]
    for name, default in defaults.items():
        if getattr(options, name, None) is None:
            setattr(options, name, default)
    if options.port is None:
        options.port = 8000 if options.scenario == "none" else 0
    if options.result is None:
        options.result = f"serve-bench-{options.scenario}-seed{options.seed}.json"
    mistake = _mistake(options)
    if mistake is not None:
        parser.error(mistake)
    return options


def _mistake(options: argparse.Namespace) -> str | None:
    """What is wrong with options that are right one by one."""
    longest = options.prompt_tokens[1] + options.output_tokens[1]
    capacity = options.num_kv_blocks * options.block_size
    checks = (
        (options.hidden % (2 * options.heads) != 0, "--hidden must be a multiple of twice --heads"),
        (options.heads % options.kv_heads != 0, "--heads must be a multiple of --kv-heads"),
        (
            options.vocab < SMALLEST_VOCAB,
            f"--vocab must be at least {SMALLEST_VOCAB}: all bytes and the end token",
        ),
        (
            options.max_num_batched_tokens < options.max_num_seqs,
            "--max-num-batched-tokens must be at least --max-num-seqs: every running request computes a token "
            "in every step",
        ),
        (
            capacity < options.max_model_len,
            f"--num-kv-blocks times --block-size is {capacity} tokens, less than one request of "
            f"--max-model-len {options.max_model_len}",
        ),
        (
            options.scenario != "none" and longest > options.max_model_len,
            f"--prompt-tokens and --output-tokens reach {longest} tokens, more than --max-model-len "
            f"{options.max_model_len}",
        ),
        (
            options.scenario != "none" and not _can_hold(Path(options.result)),
            f"--result {options.result} is not a file that can be written",
        ),
        (options.port > 65535, "--port must be at most 65535"),
    )
    return next((sentence for wrong, sentence in checks if wrong), None)


def _can_hold(result: Path) -> bool:
    """Whether a result can be put here, asked before a minute of load rather than after it."""
    return result.parent.is_dir() and os.access(result.parent, os.W_OK) and not result.is_dir()
