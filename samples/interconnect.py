"""Tensor-parallel decode over two ranks: what a slow link, or a rank that comes late, does to every step.

    python interconnect.py                         two ranks on this machine, over loopback
    python interconnect.py --slow-rank-ms 40       rank 1 sleeps before the first collective of every step
    python interconnect.py --netns A,B --master 10.77.0.1:29500
                                                   each rank in a network namespace of its own (as root)
    python interconnect.py --rank 0 --world 2 --master HOST:PORT
                                                   one rank by hand, for two machines

Every matrix is divided among the ranks, so that each layer ends its attention and its feed-forward half with an
all-reduce of the (batch, hidden) activations. Weights are random and seeded; prompts count as computed, and their keys
and values are random too. Only decode steps are run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import Parser, not_negative, positive, positive_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

HEAD_DIM = 64
# Cached tokens of a request when it starts and when the next one takes its place.
CONTEXT = (4, 12)
WARM_UP_STEPS = 10
PATIENCE_S = 120.0


@dataclass
class Truth:
    """What a rank measured of itself, in seconds over all counted steps."""

    step_s: float = 0.0
    communication_s: float = 0.0
    sleep_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Everything else."""
        return self.step_s - self.communication_s - self.sleep_s


class Shard:
    """One rank's part of the decoder: its heads of every attention, its columns of every feed-forward network."""

    def __init__(self, options: argparse.Namespace, reduce: Callable[[Tensor], None]) -> None:
        import torch

        generator = torch.Generator().manual_seed(options.seed + options.rank)
        hidden, world = options.hidden, options.world
        width, ffn = hidden // world, options.ffn // world

        def weights(inputs: int, outputs: int) -> Tensor:
            bound = (3 / (inputs * world)) ** 0.5
            return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)

        self.layers = [
            (weights(hidden, 3 * width), weights(width, hidden), weights(hidden, ffn), weights(ffn, hidden))
            for _ in range(options.layers)
        ]
        cache = (options.layers, 2, options.batch, width // HEAD_DIM, CONTEXT[1], HEAD_DIM)
        self.cache = torch.randn(cache, generator=generator)
        self.reduce = reduce

    def step(self, x: Tensor, length: int) -> Tensor:
        """Compute one token for every request; x is (batch, hidden), `length` the cached tokens of each."""
        from torch.nn import functional

        for (qkv, attention_out, up, down), cache in zip(self.layers, self.cache, strict=True):
            normed = functional.rms_norm(x, x.shape[-1:])
            heads = (normed @ qkv).view(x.shape[0], 3, -1, HEAD_DIM)
            cache[0, :, :, length], cache[1, :, :, length] = heads[:, 1], heads[:, 2]
            keys, values = cache[0, :, :, : length + 1], cache[1, :, :, : length + 1]
            attended = functional.scaled_dot_product_attention(heads[:, 0].unsqueeze(2), keys, values)
            partial = attended.flatten(1) @ attention_out
            self.reduce(partial)
            x = x + partial
            partial = functional.silu(functional.rms_norm(x, x.shape[-1:]) @ up) @ down
            self.reduce(partial)
            x = x + partial
        return functional.rms_norm(x, x.shape[-1:])


def annotation(batch: int, length: int) -> str:
    """The step's name in a profile, as vLLM writes it in detail: requests, and sums of their q, k, q*q and q*k."""
    k = batch * (length + 1)
    return f"execute_{batch}_context_0(sq0sk0sqsq0sqsk0)_generation_{batch}(sq{batch}sk{k}sqsq{batch}sqsk{k})"


def run_rank(options: argparse.Namespace) -> None:
    """Be one rank from start to end; rank 0 writes the result."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.profiler import record_function

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{options.master}",
        rank=options.rank,
        world_size=options.world,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    truth = Truth()

    def reduce(partial: Tensor) -> None:
        began = time.perf_counter()
        dist.all_reduce(partial)
        truth.communication_s += time.perf_counter() - began

    late_s = options.slow_rank_ms / 1000 if options.rank == 1 else 0.0
    shard = Shard(options, reduce)
    x = torch.randn(options.batch, options.hidden, generator=torch.Generator().manual_seed(options.seed))

    def steps(count: int) -> None:
        nonlocal x
        for number in range(count):
            length = CONTEXT[0] + number % (CONTEXT[1] - CONTEXT[0])
            began = time.perf_counter()
            with record_function(annotation(options.batch, length)):
                if late_s:
                    time.sleep(late_s)
                    truth.sleep_s += time.perf_counter() - began
                x = shard.step(x, length)
            truth.step_s += time.perf_counter() - began

    with torch.no_grad():
        steps(WARM_UP_STEPS)
        # Rank 0 says how many steps fill the time, so that all ranks make the same number.
        count = torch.tensor([max(int(options.seconds * WARM_UP_STEPS / truth.step_s), WARM_UP_STEPS)])
        dist.broadcast(count, 0)
        dist.barrier()
        truth.step_s = truth.communication_s = truth.sleep_s = 0.0
        steps(int(count))
    sums = torch.tensor([[truth.step_s, truth.compute_s, truth.communication_s, truth.sleep_s]], dtype=torch.float64)
    parts = [torch.empty_like(sums) for _ in range(options.world)]
    dist.all_gather(parts, sums)
    dist.barrier()
    dist.destroy_process_group()
    if options.rank == 0:
        tell(options, int(count), [part[0].tolist() for part in parts])


def tell(options: argparse.Namespace, steps: int, ranks: list[list[float]]) -> None:
    """Write the result file, and one line about it."""
    names = ("step_s", "compute_s", "communication_s", "sleep_s")
    result = {
        "steps": steps,
        "messages_per_step": 2 * options.layers,
        "message_bytes": 4 * options.batch * options.hidden,
        "ranks": [dict(zip(names, sums, strict=True)) for sums in ranks],
    }
    Path(options.result).write_text(json.dumps(result, indent=1) + "\n")
    first = result["ranks"][0]
    print(
        f"{steps} steps of {first['step_s'] / steps * 1000:.1f} ms on rank 0, "
        f"{first['communication_s'] / first['step_s']:.0%} of it in {result['messages_per_step']} all-reduces "
        f"of {result['message_bytes'] / 1000:.0f} kB; {options.result}",
        flush=True,
    )


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(options: argparse.Namespace) -> int:
    """Start every rank as a process of its own and wait for all; when one fails, end the others."""
    master = options.master or f"127.0.0.1:{free_port()}"
    words = [sys.executable, __file__, f"--world={options.ranks}", f"--master={master}"]
    for name in ("seed", "seconds", "hidden", "ffn", "layers", "batch", "slow_rank_ms", "result"):
        words.append(f"--{name.replace('_', '-')}={getattr(options, name)}")
    environment = dict(os.environ)
    if not options.netns and not options.master:
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # A launcher that is ended takes its ranks with it; an exception out of here could leave the one just started.
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    ranks: list[subprocess.Popen[bytes]] = []
    for rank in range(options.ranks):
        inside = ["ip", "netns", "exec", options.netns[rank]] if options.netns else []
        ranks.append(subprocess.Popen([*inside, *words, f"--rank={rank}"], env=environment))
    try:
        while not ended and any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            time.sleep(0.05)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
    worst = max(abs(rank.wait()) for rank in ranks)
    return 128 + ended[0] if ended else worst


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Options, checked."""
    parser = Parser(prog="interconnect.py", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=not_negative, default=0)
    parser.add_argument("--seconds", type=positive_number, default=30.0, help="how long the counted steps last")
    parser.add_argument("--hidden", type=positive, default=128)
    parser.add_argument("--ffn", type=positive, default=64)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--batch", type=positive, default=1024, help="requests in every step")
    parser.add_argument("--slow-rank-ms", type=not_negative, default=0, help="rank 1 sleeps as long in every step")
    parser.add_argument("--result", default="interconnect-result.json", help="where the sums of all ranks go")
    parser.add_argument("--ranks", type=positive, default=2, help="how many ranks to start")
    parser.add_argument("--netns", type=lambda text: text.split(","), help="a network namespace for each rank")
    parser.add_argument("--master", help="HOST:PORT of rank 0, where the ranks are not all on loopback")
    parser.add_argument("--rank", type=not_negative, help="be this rank, and start no others")
    parser.add_argument("--world", type=positive, default=2, help="number of ranks, with --rank")
    options = parser.parse_args(words)
    ranks = options.ranks if options.rank is None else options.world
    if options.hidden % (HEAD_DIM * ranks):
        parser.error(f"--hidden must be a multiple of {HEAD_DIM} for each of {ranks} ranks")
    if options.ffn % ranks:
        parser.error(f"--ffn must be a multiple of the {ranks} ranks")
    if options.netns and len(options.netns) != ranks:
        parser.error(f"--netns must name {ranks} namespaces, one for each rank")
    if (options.netns or options.rank is not None) and not options.master:
        parser.error("--master must say where rank 0 is")
    if not Path(options.result).absolute().parent.is_dir() or Path(options.result).is_dir():
        parser.error(f"--result {options.result} is not a place for a file")
    if options.rank is not None and options.rank >= options.world:
        parser.error("--rank must be less than --world")
    return options


def main() -> int:
    """Run one rank, or start them all."""
    options = parse()
    if options.rank is None:
        return launch(options)
    run_rank(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
