"""Command line of `serve.py`; the scenario gives the options their defaults."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from command_line import LONGEST_INTERRUPT_OUTPUT, Parser, not_negative, positive, positive_number, span

from .scenarios import DEFAULT_SCENARIO, ENGINE_WITHOUT_LOAD, SCENARIOS
from .vocabulary import SMALLEST_VOCAB

# Edge of the square blocks of a tiled weight.
TILE = 8


def _parser() -> argparse.ArgumentParser:
    width = max(len(name) for name in SCENARIOS)
    parser = Parser(
        prog="serve.py",
        description="A small continuous-batching LLM engine with random weights. With a scenario it also "
        "starts a load driver, and ends when the load does.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n"
        + "\n".join(f"  {name:{width}} {scenario.summary}" for name, scenario in SCENARIOS.items())
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
        metavar="N",
        help="the first N tokens of every prompt are the same",
    )
    load.add_argument(
        "--reasoning-tokens",
        type=span,
        metavar="A:B",
        help="output tokens between <think> and </think>; they and both markers are part of --output-tokens",
    )
    load.add_argument(
        "--interrupt-prompt-tokens",
        type=span,
        metavar="A:B",
        help="prompt length of a second kind of request, with 1 or 2 output tokens, beside the others",
    )
    load.add_argument("--interrupt-rate", type=positive_number, metavar="R", help="they arrive at random, R a second")
    load.add_argument("--result", metavar="FILE", help="result file; default serve-bench-SCENARIO-seedSEED.json here")

    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-num-seqs", type=positive, metavar="N", help="requests in a batch")
    engine.add_argument("--max-num-batched-tokens", type=positive, metavar="N", help="tokens in a step")
    engine.add_argument("--max-model-len", type=positive, metavar="N", help="prompt and output of a request")
    # vLLM's names work too, so that advice given for one engine can be tried on the other.
    engine.add_argument(
        "--num-kv-blocks", "--num-gpu-blocks-override", type=positive, metavar="N", help="blocks of the KV cache"
    )
    engine.add_argument("--block-size", type=positive, metavar="N", help="tokens in a block")
    # None: not given, so that the scenario decides.
    engine.add_argument(
        "--no-prefix-caching", action="store_true", default=None, help="compute every prompt from its start"
    )
    engine.add_argument(
        "--enable-prefix-caching",
        action="store_false",
        dest="no_prefix_caching",
        default=None,
        help="the default but in scenarios without it; the last of the two counts",
    )
    engine.add_argument(
        "--linear-layout",
        choices=["dense", "tiled"],
        help="how layers' weights are stored; tiled: in blocks of 8 x 8, which are multiplied one by one",
    )
    engine.add_argument(
        "--compile", action="store_true", default=None, help="torch.compile the dense parts of every layer"
    )
    engine.add_argument("--compile-backend", metavar="NAME", help="default: inductor")
    engine.add_argument(
        "--compile-shapes",
        choices=["static", "dynamic"],
        help="compile once for any number of tokens in a step, or again for each; default: dynamic",
    )
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
    if options.interrupt_prompt_tokens is not None:
        longest = max(longest, options.interrupt_prompt_tokens[1] + LONGEST_INTERRUPT_OUTPUT)
    capacity = options.num_kv_blocks * options.block_size
    tiled_sizes = (options.hidden, options.ffn, options.hidden // options.heads * options.kv_heads)
    checks = (
        (options.hidden % (2 * options.heads) != 0, "--hidden must be a multiple of twice --heads"),
        (options.heads % options.kv_heads != 0, "--heads must be a multiple of --kv-heads"),
        (
            options.vocab < SMALLEST_VOCAB,
            f"--vocab must be at least {SMALLEST_VOCAB}: all bytes, the end token and the markers of thinking",
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
            options.linear_layout == "tiled" and any(size % TILE for size in tiled_sizes),
            f"--linear-layout tiled needs --hidden, --ffn and the KV heads' size to be multiples of {TILE}",
        ),
        (
            options.reasoning_tokens is not None and options.reasoning_tokens[1] + 3 > options.output_tokens[0],
            "--reasoning-tokens must be at least 3 less than the shortest --output-tokens: two markers, one answer",
        ),
        (
            (options.interrupt_prompt_tokens is None) != (options.interrupt_rate is None),
            "--interrupt-prompt-tokens and --interrupt-rate go together",
        ),
        (
            options.scenario != "none" and longest > options.max_model_len,
            f"a prompt and its output reach {longest} tokens, more than --max-model-len {options.max_model_len}",
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
