"""What recording costs the recorded program, per step.

    python bench/record_overhead.py [--rounds 15] [--step-ms 50] [--parts hook windows py-spy] [--json]

hook: (a) the enter and exit of a step annotation with the agent and without, interleaved in one process, and the row
that the flusher thread writes for it. (b) The claim: microseconds per step over a step time. (c) The ratio: step times
of a small decode loop with and without the agent, interleaved, beside the ratio of the loop to itself. (f) The same
for a step marked with spyreprof_agent.step, and for a collective.

windows: (d) what profiler windows cost, from the times that the agent records of them: the pauses of opening one and
of closing and writing it, the slowdown of the steps inside, each per operator, and all of it spread over 1,000 steps.
Beside it the time of the loop with windows over the one without, in processes that take turns.

py-spy: (e) steps per second while `py-spy --nonblocking` samples the loop over those while it does not, in slices that
take turns, and the processor time of py-spy itself.

Whatever is compared stands beside the ratio of the loop to itself. A ratio within that noise floor says nothing; the
claim rests on (a).

Needs torch. The aim is at most 10 µs and 20 ns per scheduled request for each step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import overhead_calls
import overhead_py_spy
import overhead_windows
from overhead_loop import SIZES, compared, in_words, recording, rotated, step_function, step_name

PARTS = ("hook", "windows", "py-spy")
REQUESTS = (1, 16, 64)
CALLS_PER_ROUND = 4000
# What half a second of 50 ms steps leaves to be flushed.
ROWS_PER_FLUSH = 10
FLUSHES_PER_ROUND = 20
# A window that is always due and never opens: the dearest state that a step finds the agent in.
NEVER = {"window": {"after_steps": 1_000_000_000}}
LOOP_STEPS = 100
# Processes with windows, and slices with py-spy, for each so many rounds of the hook.
ROUNDS_PER_PROCESS = 3
AIM_US, AIM_PER_REQUEST_NS = 10.0, 20.0


def main() -> None:
    """Measure in a process of its own, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--step-ms", type=float, default=50.0, help="step time that the claim is made for")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure; default: all")
    options = parser.parse_args()
    if options.measure:
        json.dump(measure(options.rounds), sys.stdout)
        return
    result: dict[str, Any] = {"load_average_before": os.getloadavg()[0]}
    if "hook" in options.parts:
        result |= measured(options.rounds)
        result["claim"] = claim(result, options.step_ms)
    few = max(3, options.rounds // ROUNDS_PER_PROCESS)
    if "windows" in options.parts:
        result["windows"] = {size: overhead_windows.measured(size, few) for size in SIZES}
    if "py-spy" in options.parts:
        result["py_spy"] = overhead_py_spy.measured("small", few)
    result["load_average"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print_tables(result)


def measured(rounds: int) -> dict[str, Any]:
    """Run `measure` twice in processes with the agent: without a profiler window to wait for, and with one."""
    results = {}
    for name, agent_options in (("no window", {"window": None}), ("window pending", NEVER)):
        with recording(agent_options) as (_, environment):
            command = [sys.executable, __file__, "--measure", "--rounds", str(rounds)]
            results[name] = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    return {"states": results, "rounds": rounds}


def measure(rounds: int) -> dict[str, Any]:
    """Measure in this process, into which the agent was installed at start-up."""
    import torch

    switch = Switch(torch)
    torch.set_num_threads(1)
    names = {str(requests): step_name(requests) for requests in REQUESTS}
    hooks = {key: hook_cost(torch, switch, name, rounds) for key, name in (*names.items(), ("other", "forward"))}
    return {
        "torch": torch.__version__,
        "hooks": hooks,
        "row_us": row_cost(rounds),
        "loop": loop_ratio(torch, switch, rounds),
        "step_api": overhead_calls.step_api(rounds),
        "collective": overhead_calls.collective(torch, rounds),
    }


class Switch:
    """Takes the agent's methods off `record_function` and puts them back."""

    def __init__(self, torch: Any) -> None:
        self.owner = torch.autograd.profiler.record_function
        self.hooked = (self.owner.__enter__, self.owner.__exit__)
        self.bare = tuple(method.__wrapped__ for method in self.hooked)

    def set(self, hooked: bool) -> None:
        """Switch to the hooked methods, or to torch's own."""
        self.owner.__enter__, self.owner.__exit__ = self.hooked if hooked else self.bare


def hook_cost(torch: Any, switch: Switch, name: str, rounds: int) -> dict[str, float]:
    """Microseconds of one annotation: bare, bare once more, and with the agent, in turns."""
    annotation = torch.profiler.record_function

    def once() -> float:
        start_ns = time.perf_counter_ns()
        for _ in range(CALLS_PER_ROUND):
            with annotation(name):
                pass
        return (time.perf_counter_ns() - start_ns) / CALLS_PER_ROUND / 1000

    times: dict[str, list[float]] = {"bare": [], "bare_again": [], "agent": []}
    for _ in range(rounds):
        for key, taken in times.items():
            switch.set(key == "agent")
            taken.append(once())
    switch.set(True)
    result = {}
    for key, values in times.items():
        result[f"{key}_min_us"] = min(values)
        result[f"{key}_median_us"] = statistics.median(values)
    return result


def row_cost(rounds: int) -> dict[str, float]:
    """Microseconds that the flusher thread spends on a step row: encoding, and its part of one append."""
    from _spyreprof.install import install

    agent = install("bench")
    assert agent is not None
    agent.writer.before_fork()  # the flusher must not take the rows first
    rows = agent.writer.buffer("steps")
    times = []
    for _ in range(rounds * FLUSHES_PER_ROUND):
        rows.extend([(10**12, 10**12 + 1, step_name(16), 0, False)] * ROWS_PER_FLUSH)
        start_ns = time.perf_counter_ns()
        agent.writer.flush()
        times.append((time.perf_counter_ns() - start_ns) / ROWS_PER_FLUSH / 1000)
    return {"min_us": min(times), "median_us": statistics.median(times)}


def loop_ratio(torch: Any, switch: Switch, rounds: int) -> dict[str, Any]:
    """The step time of a small decode loop: with the agent over bare, beside bare over bare."""
    step = step_function(torch, SIZES["small"])
    name = step_name(16)

    def steps() -> float:
        start_ns = time.perf_counter_ns()
        for _ in range(LOOP_STEPS):
            with torch.profiler.record_function(name):
                step()
        return (time.perf_counter_ns() - start_ns) / LOOP_STEPS / 1000

    agent, noise, step_us = [], [], []
    with torch.inference_mode():
        steps()
        for number in range(rounds):
            times = {}
            for key in rotated(["bare", "agent", "bare_again"], number):
                switch.set(key == "agent")
                times[key] = steps()
            step_us.append(times["bare"])
            agent.append(times["agent"] / times["bare"])
            noise.append(times["bare_again"] / times["bare"])
    switch.set(True)
    return {"step_median_us": statistics.median(step_us), **compared(agent, noise)}


def claim(result: dict[str, Any], step_ms: float) -> dict[str, float]:
    """The cost of a step in its dearest state, by medians: fixed, per scheduled request, and as part of a step."""
    state = result["states"]["window pending"]
    added = {
        requests: state["hooks"][str(requests)]["agent_median_us"] - state["hooks"][str(requests)]["bare_median_us"]
        for requests in REQUESTS
    }
    low, high = REQUESTS[0], REQUESTS[-1]
    per_request_ns = (added[high] - added[low]) / (high - low) * 1000
    step_us = max(added.values()) + state["row_us"]["median_us"]
    return {
        "hook_us": max(added.values()),
        "per_request_ns": per_request_ns,
        "row_us": state["row_us"]["median_us"],
        "step_us": step_us,
        "step_ms": step_ms,
        "ratio": step_us / (step_ms * 1000),
        "aim_us": AIM_US,
        "aim_per_request_ns": AIM_PER_REQUEST_NS,
    }


def print_tables(result: dict[str, Any]) -> None:
    """Print the parts that were measured."""
    if "states" in result:
        print_hook(result)
    for size, told in result.get("windows", {}).items():
        overhead_windows.print_table(size, told)
    if "py_spy" in result:
        overhead_py_spy.print_table(result["py_spy"])
    print(f"\nload average {result['load_average_before']:.2f} before, {result['load_average']:.2f} after")


def print_hook(result: dict[str, Any]) -> None:
    """Print what the agent's calls cost."""
    for state, values in result["states"].items():
        rounds = f"{result['rounds']} rounds of {CALLS_PER_ROUND}"
        print(f"\n(a) one annotation, {state}; µs, {rounds}, torch {values['torch']}")
        print(f"{'annotation':>22} {'bare':>14} {'bare again':>14} {'agent':>14} {'added':>14}   (min / median)")
        for key, row in values["hooks"].items():
            label = "not a step" if key == "other" else f"step of {key} requests"
            added = [row[f"agent_{which}_us"] - row[f"bare_{which}_us"] for which in ("min", "median")]
            cells = [
                f"{row[f'{column}_min_us']:6.2f} /{row[f'{column}_median_us']:6.2f}"
                for column in ("bare", "bare_again", "agent")
            ]
            print(f"{label:>22} {cells[0]:>14} {cells[1]:>14} {cells[2]:>14} {added[0]:6.2f} /{added[1]:6.2f}")
        row = values["row_us"]
        print(f"{'row, in the flusher':>22} {'':>14} {'':>14} {row['min_us']:6.2f} /{row['median_us']:6.2f}")
    stated = result["claim"]
    print(
        f"\n(b) {stated['hook_us']:.1f} µs in the step's thread ({stated['per_request_ns']:+.1f} ns per request) and "
        f"{stated['row_us']:.1f} µs in the flusher: {stated['ratio']:.4%} of a step of {stated['step_ms']:g} ms. "
        f"Aim: {AIM_US:g} µs and {AIM_PER_REQUEST_NS:g} ns per request."
    )
    for state, values in result["states"].items():
        loop = values["loop"]
        print(f"(c) {state}, a step of {loop['step_median_us']:.0f} µs with the agent over bare: {in_words(loop)}")
    values = result["states"]["window pending"]
    overhead_calls.print_table(values["step_api"], values["collective"])


if __name__ == "__main__":
    main()
