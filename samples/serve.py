"""A small continuous-batching LLM engine, with a load to try it on.

    python serve.py                        one scenario from start to end: engine, load, result file
    python serve.py --scenario none        an OpenAI-style server on port 8000, until it is stopped

Weights are random and seeded, so there is nothing to download and nothing sensible to read in the answers;
the work is that of a real model of the same size. The engine itself begins in `engine/core.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from engine.options import TILE, parse_options
from engine.server import FrontEnd

if TYPE_CHECKING:
    from engine.core import Engine

# Whoever polls /metrics sees the final counters only if there is a poll between the last token and the end;
# polls come every second or so.
LINGER_S = 1.5


class UnusableError(Exception):
    """What was asked for cannot be had on this machine; the message is a sentence for the user."""


def say(sentence: str) -> None:
    """Progress, for a person."""
    print(sentence, file=sys.stderr, flush=True)


def build_engine(options: argparse.Namespace) -> Engine:
    """The engine that the options describe, warmed up."""
    # Here, not at the top of the file: mistakes in the options are told at once, not after torch's second
    # of import.
    import torch
    from engine.core import Engine, EngineConfig
    from engine.model import ModelConfig, build_decoder

    torch.set_num_threads(options.threads)
    sizes = ModelConfig(options.layers, options.hidden, options.ffn, options.heads, options.kv_heads, options.vocab)
    model = build_decoder(sizes, options.seed)
    if options.linear_layout == "tiled":
        model.tile_linears(TILE)
    if options.compile:
        if options.compile_backend not in torch.compiler.list_backends(exclude_tags=()):
            raise UnusableError(f"torch has no compiler backend {options.compile_backend!r}")
        model.compile_blocks(options.compile_backend, dynamic=options.compile_shapes == "dynamic")
    config = EngineConfig(
        options.max_num_seqs,
        options.max_num_batched_tokens,
        options.max_model_len,
        options.num_kv_blocks,
        options.block_size,
        enable_prefix_caching=not options.no_prefix_caching,
    )
    engine = Engine(model, config)
    try:
        engine.warm_up()
    except torch._dynamo.exc.BackendCompilerFailed as fault:
        cause = str(fault.inner_exception).partition("\n")[0]
        raise UnusableError(f"--compile failed here, backend {options.compile_backend}: {cause}") from fault
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    say(f"engine ready: {weight_bytes / 1e6:.0f} MB of float32 weights, compute threads: {options.threads}")
    return engine


class Load:
    """The load driver: another process, so that its work is not measured as the engine's."""

    def __init__(self, options: argparse.Namespace, port: int) -> None:
        self.result_path = Path(options.result)
        self.failure: str | None = None
        command = [sys.executable, str(Path(__file__).with_name("load_driver.py"))]
        command += [f"--url=http://{options.host}:{port}", f"--label={options.scenario}"]
        for name in (
            "seed",
            "load_seconds",
            "prompt_tokens",
            "output_tokens",
            "shared_prefix_tokens",
            "vocab",
            "result",
        ):
            command.append(f"--{name.replace('_', '-')}={getattr(options, name)}")
        for name in ("reasoning_tokens", "interrupt_prompt_tokens", "interrupt_rate"):
            if getattr(options, name) is not None:
                command.append(f"--{name.replace('_', '-')}={getattr(options, name)}")
        if options.concurrency is not None:
            command.append(f"--concurrency={options.concurrency}")
        else:
            command.append(f"--request-rate={options.request_rate}")
        self.process = subprocess.Popen(command)

    def watch(self, engine: Engine, stopped: threading.Event) -> None:
        """Wait for the load to end, complete its result, and stop the engine a little later."""
        try:
            code = self.process.wait()
            if code == 0:
                self.add_engine_totals(engine)
                stopped.wait(LINGER_S)
            else:
                self.failure = f"the load driver failed with exit code {code}"
        except OSError as fault:
            self.failure = f"cannot complete {self.result_path}: {fault.strerror}"
        finally:
            engine.stop()

    def add_engine_totals(self, engine: Engine) -> None:
        """Put the engine's own counters into the result file. Readers see the old file or the new one."""
        result = json.loads(self.result_path.read_text())
        result["engine"] = engine.totals()
        partial = self.result_path.with_name(f".{self.result_path.name}.{os.getpid()}")
        partial.write_text(json.dumps(result))
        partial.replace(self.result_path)

    def summary(self, options: argparse.Namespace) -> str:
        """One line about a completed result."""
        result = json.loads(self.result_path.read_text())
        return (
            f"{options.scenario}, seed {options.seed}: {result['engine']['steps']} steps, "
            f"{result['completed']} requests completed, {result['failed']} failed, "
            f"{result['total_input_tokens']} prompt and {result['total_output_tokens']} output tokens "
            f"in {result['duration']:.1f} s; see {self.result_path}"
        )


def main() -> int:
    """Serve; the exit code is 0 for a completed load or a server that was told to stop."""
    options = parse_options()
    try:
        front_end = FrontEnd(options.host, options.port)
    except OSError as fault:
        say(f"serve.py: cannot listen on {options.host}:{options.port}: {fault.strerror or fault}")
        return 2
    try:
        engine = build_engine(options)
    except ModuleNotFoundError as missing:
        say(f"serve.py: this Python has no {missing.name}; install it with: pip install torch==2.13.0")
        return 2
    except UnusableError as reason:
        say(f"serve.py: {reason}")
        return 2

    received: list[int] = []
    stopped = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        # The second one of the same kind ends the program at once, should the engine hang.
        signal.signal(number, signal.SIG_DFL)
        stopped.set()
        engine.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    front_end.start(engine)
    say(f"serving on http://{options.host}:{front_end.port}")
    if options.scenario == "none":
        engine.run()
        return 0

    load = Load(options, front_end.port)
    threading.Thread(target=load.watch, args=(engine, stopped), name="load-watch", daemon=True).start()
    engine.run()
    if load.process.poll() is None:
        load.process.terminate()
        load.process.wait()
    if received:
        return 128 + received[0]
    if load.failure is not None:
        say(f"serve.py: {load.failure}")
        return 1
    print(load.summary(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
