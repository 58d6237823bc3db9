"""The loop whose speed is measured: decode steps of a small model, each under a step annotation.

    python bench/overhead_loop.py SIZE STEPS      # STEPS 0: until it is ended

Prints `seconds`, the time of all steps, as JSON. `record_overhead.py` runs it with and without the agent's windows.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BOOT = Path(__file__).resolve().parents[1] / "collectors" / "spyreprof_collectors" / "agent" / "boot"
WARM_UP_STEPS = 10


class Size(NamedTuple):
    """A model, the batch that it decodes, and how many steps are one measurement."""

    layers: int
    width: int
    batch: int
    steps: int


SIZES = {"small": Size(6, 512, 1, 1000), "usual": Size(24, 1024, 4, 100)}


def step_name(requests: int) -> str:
    """A mixed step's name in vLLM's detailed grammar."""
    return (
        f"execute_{64 + requests}_context_1(sq64sk64sqsq4096sqsk4096)"
        f"_generation_{requests}(sq{requests}sk{1000 * requests}sqsq{requests}sqsk{1000 * requests})"
    )


def step_function(torch: Any, size: Size) -> Callable[[], None]:
    """Make one decode step: in each layer a norm, two matmuls and a few small operators."""
    up = [torch.randn(size.width, 4 * size.width) for _ in range(size.layers)]
    down = [torch.randn(4 * size.width, size.width) for _ in range(size.layers)]

    def step() -> None:
        x = torch.ones(size.batch, size.width)
        for widen, narrow in zip(up, down, strict=True):
            hidden = torch.relu(torch.nn.functional.layer_norm(x, (size.width,)) @ widen)
            x = torch.nn.functional.layer_norm(x + hidden @ narrow, (size.width,))
        torch.softmax(x, dim=-1).argmax(dim=-1)

    return step


@contextmanager
def recording(options: Mapping[str, object]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Make a folder for the agent to record into, and the environment of a program that it enters."""
    with tempfile.TemporaryDirectory(prefix="spyreprof-bench-") as folder:
        (Path(folder) / "shards").mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": str(BOOT),
            "SPYREPROF_DIR": folder,
            "SPYREPROF_OPTIONS": json.dumps(options),
        }
        yield Path(folder), environment


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Rows of one kind, of all processes; a last line that is still being written is left out."""
    found = []
    for path in sorted((folder / "shards").glob(f"{kind}-*.jsonl")):
        text = path.read_text(encoding="utf-8")
        found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return found


def run_loop(size: str, environment: Mapping[str, str]) -> float:
    """Run the loop in a process of its own; the value is its time in seconds."""
    command = [sys.executable, __file__, size, str(SIZES[size].steps)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return float(json.loads(done.stdout)["seconds"])


def compared(ratios: list[float], noise: list[float]) -> dict[str, Any]:
    """Ratios of what is measured, beside those of the loop to itself.

    `beyond_noise` is false where the median is no further from 1 than the loop to itself came: it then says nothing.
    """
    median = statistics.median(ratios)
    return {
        "ratio_median": median,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "noise_median": statistics.median(noise),
        "noise_min": min(noise),
        "noise_max": max(noise),
        # either of two equal loops could have been the numerator
        "beyond_noise": abs(math.log(median)) > max(abs(math.log(ratio)) for ratio in noise),
    }


def in_words(result: Mapping[str, Any]) -> str:
    """A comparison as one clause."""
    said = "" if result["beyond_noise"] else ", below the noise floor: says nothing"
    return (
        f"{result['ratio_median']:.3f} [{result['ratio_min']:.3f}, {result['ratio_max']:.3f}] where the loop to itself "
        f"is {result['noise_median']:.3f} [{result['noise_min']:.3f}, {result['noise_max']:.3f}]{said}"
    )


def rotated(keys: list[str], number: int) -> list[str]:
    """The same keys, beginning with another one each time."""
    shift = number % len(keys)
    return keys[shift:] + keys[:shift]


def main() -> None:
    """Run the loop in this process."""
    import torch

    size, steps = SIZES[sys.argv[1]], int(sys.argv[2])
    torch.set_num_threads(1)
    step = step_function(torch, size)
    name = step_name(16)
    with torch.inference_mode():
        for _ in range(WARM_UP_STEPS):
            step()
        start_ns = time.perf_counter_ns()
        number = 0
        while number < steps or not steps:
            with torch.profiler.record_function(name):
                step()
            number += 1
        seconds = (time.perf_counter_ns() - start_ns) / 1e9
    json.dump({"seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
