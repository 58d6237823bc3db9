"""What one call costs that the agent answers beside step annotations: the explicit API, and a covered collective."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

CALLS_PER_ROUND = 2000


class Variant(NamedTuple):
    """One way to make the call: what to set up before a round of it, and the call."""

    prepare: Callable[[], object]
    call: Callable[[], object]


def interleaved(variants: Mapping[str, Variant], rounds: int, count: int) -> dict[str, float]:
    """Microseconds of one call each, in turns: the least and the median over the rounds."""
    times: dict[str, list[float]] = {key: [] for key in variants}
    for _ in range(rounds):
        for key, (prepare, call) in variants.items():
            prepare()
            start_ns = time.perf_counter_ns()
            for _ in range(count):
                call()
            times[key].append((time.perf_counter_ns() - start_ns) / count / 1000)
    told = {}
    for key, values in times.items():
        told[f"{key}_min_us"] = min(values)
        told[f"{key}_median_us"] = statistics.median(values)
    return told


def step_api(rounds: int) -> dict[str, Any]:
    """A step marked with `spyreprof_agent.step`, recorded and not; `skipped` where there is no such module."""
    try:
        agent = importlib.import_module("spyreprof_agent")
    except ImportError:
        return {"skipped": "this version has no spyreprof_agent"}
    recorder = agent._recorder
    if recorder is None:
        return {"skipped": "the agent did not enter spyreprof_agent"}

    def step() -> None:
        with agent.step("mixed", context_requests=1, context_tokens=64, generation_requests=16):
            pass

    off = Variant(lambda: setattr(agent, "_recorder", None), step)
    on = Variant(lambda: setattr(agent, "_recorder", recorder), step)
    return interleaved({"off": off, "off_again": off, "on": on}, rounds, CALLS_PER_ROUND)


def collective(torch: Any, rounds: int) -> dict[str, Any]:
    """An all_reduce of one number in a group of one process, covered and not; `skipped` where nothing covers it.

    The wait inside of it is covered in both.
    """
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return {"skipped": "this torch has no torch.distributed"}
    module = distributed.distributed_c10d
    if not getattr(module, "_spyreprof", False):
        return {"skipped": "the agent covers no collectives"}
    covered = module.all_reduce
    bare = covered.__wrapped__
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        number = torch.ones(1)
        off, on = (Variant(lambda: None, lambda call=call: call(number)) for call in (bare, covered))
        return interleaved({"off": off, "off_again": off, "on": on}, rounds, CALLS_PER_ROUND // 4)
    finally:
        distributed.destroy_process_group()


def print_table(api: Mapping[str, Any], reduced: Mapping[str, Any]) -> None:
    """Print both."""
    print("\n(f) other calls, not recorded and recorded; µs, min / median")
    for label, result in (("spyreprof_agent.step", api), ("all_reduce, one process", reduced)):
        if "skipped" in result:
            print(f"{label:>26}  skipped, {result['skipped']}")
            continue
        cells = [
            f"{name} {result[f'{key}_min_us']:.2f} / {result[f'{key}_median_us']:.2f}"
            for key, name in (("off", "off"), ("off_again", "off again"), ("on", "on"))
        ]
        added = result["on_median_us"] - result["off_median_us"]
        print(f"{label:>26}  {'   '.join(cells)}   added {added:.2f}")
