"""The verdict on a synthetic run beside the class that the engine's own accounts give it, for `step_model.py`.

Eight kinds of load are drawn, each aimed at one class, with sizes that miss it now and then. The class is worked out
from what the engine spent, which no analyzer sees: shares of the time, what of a step was host work, how much of both
peaks was used, and how long requests were held back by the cap or by the KV cache. Where one of the numbers that decide
lies close to its threshold, either answer may be given: that is the grey zone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from step_engine import NS, Engine, Machine, Request, Run, poisson, run
from step_tables import step_table, table

from spyreprof.recording.schema import (
    COUNTERS,
    REQUESTS,
    USAGE,
    AnalysisInputs,
    EngineSettings,
    ModelFacts,
    Peak,
)
from spyreprof.rules import RuleBook
from spyreprof.targets import Targets
from spyreprof.trace.profiled import OperatorTime, ProfiledStep
from spyreprof_analyzers.diagnose import diagnose

SCENARIOS = ("prefill", "decode weights", "decode cache", "host", "cap", "full cache", "light", "slow kernels")
# Thresholds of the rules that decide, and how near to one is too near to call.
HIGH, LOW, NEITHER, HALF = 0.40, 0.25, 0.30, 0.50
NEAR_USE, NEAR_SHARE = 0.05, 0.10
OPERATORS = 100
POLL_NS = NS // 2


@dataclass(frozen=True)
class Judged:
    """One draw: what is true, what was said."""

    scenario: str
    truth: str
    grey: bool
    said: str
    confidence: str | None
    reason: str


def judge(number: int, seed: int, rules: RuleBook) -> Judged:
    """Draw a run, diagnose its tables, and compare."""
    rng = np.random.default_rng((seed, number, 1))
    scenario = SCENARIOS[number % len(SCENARIOS)]
    engine, load = draw(scenario, rng)
    machine = Machine(
        own=False, speed=float(np.exp(rng.normal(0.0, 0.05))), wander=rng.uniform(0.002, 0.015),
        noise=rng.uniform(0.005, 0.03), spike_share=rng.uniform(0.0, 0.03), spike_factor=rng.uniform(1.2, 1.8),
    )  # fmt: skip
    made = run(engine, machine, load, rng)
    truth, grey = true_class(engine, made)
    found = diagnose(inputs_of(engine, machine, made, rng), rules, Targets()).verdict
    return Judged(scenario, truth, grey, found.primary, found.confidence, found.reason)


def draw(scenario: str, rng: np.random.Generator) -> tuple[Engine, list[Request]]:
    """An engine, and a load that aims at one class."""
    weights_s, bytes_per_s = rng.uniform(0.01, 0.04), 10.0 ** rng.uniform(10.0, 12.0)
    efficiency = rng.uniform(0.6, 0.9)
    weight_bytes = weights_s * bytes_per_s * efficiency
    engine = Engine(
        flop_per_s=bytes_per_s * rng.uniform(100.0, 300.0), bytes_per_s=bytes_per_s, weight_bytes=weight_bytes,
        kv_bytes_per_token=weight_bytes * rng.uniform(1e-6, 1e-5), host_ns=rng.uniform(0.02, 0.25) * weights_s * NS,
        host_per_request_ns=rng.uniform(0.001, 0.005) * weights_s * NS, efficiency=efficiency,
        overlap=float(rng.choice([0.0, 0.5])), corner=float(rng.choice([np.inf, 8.0])), max_num_seqs=64,
        max_num_batched_tokens=512, kv_tokens=400_000,
    )  # fmt: skip
    prompt, output, batch, seconds = (30, 120), (60, 160), rng.uniform(8.0, 16.0), 0.0
    if scenario == "prefill":
        engine = replace(engine, max_num_batched_tokens=int(rng.choice([1024, 2048])))
        prompt, output, batch = (1000, 3000), (1, 4), 0.0
    elif scenario == "decode cache":
        engine = replace(engine, kv_bytes_per_token=weight_bytes / (batch * rng.uniform(200.0, 800.0)))
        prompt = (400, 800)
    elif scenario == "host":
        engine = replace(engine, host_ns=rng.uniform(1.3, 4.0) * weights_s * NS, overlap=0.0)
    elif scenario == "cap":
        engine, batch = replace(engine, max_num_seqs=int(rng.integers(2, 8))), rng.uniform(12.0, 24.0)
    elif scenario == "full cache":
        engine = replace(engine, kv_tokens=int(rng.uniform(1500, 3000)) // 16 * 16)
        batch = rng.uniform(24.0, 40.0)
    elif scenario == "light":
        batch = rng.uniform(0.05, 0.5)
    elif scenario == "slow kernels":
        slow = rng.uniform(0.05, 0.33)
        engine = replace(engine, efficiency=slow, host_ns=engine.host_ns * efficiency / slow)
    length = (sum(prompt) + sum(output) / 2) / 2
    usual = engine.cycle_ns(*engine.parts(max(batch, 1.0), 0, length * batch, batch))[0] / NS
    if scenario == "prefill":
        step = engine.cycle_ns(*engine.parts(engine.max_num_batched_tokens, 0, 0, 2))[0] / NS
        rate = rng.uniform(0.6, 1.3) * engine.max_num_batched_tokens / 2000 / step
        seconds = 500 * step
    else:
        rate = batch / usual / (sum(output) / 2)
        seconds = max(1000 * usual, 40 / rate)
    return engine, poisson(rng, np.full(12, rate), seconds / 12, prompt, output)


def true_class(engine: Engine, made: Run) -> tuple[str, bool]:
    """The class by the engine's own accounts, over all but the first and last tenth of the steps' time."""
    rows = made.rows
    start, end = rows[0]["start_ns"], rows[-1]["end_ns"]
    start, end = start + (end - start) // 10, end - (end - start) // 10
    inside = [place for place, row in enumerate(rows) if start <= row["start_ns"] < end]
    gauges = {time_ns: (running, waiting) for time_ns, running, waiting, _ in made.gauges}
    cycles, prefill, host, at_cap, full = 0.0, 0.0, 0.0, 0.0, 0.0
    usage: dict[str, list[tuple[float, float, float]]] = {"prefill": [], "decode": []}
    for place in inside:
        row, (quiet, compute, moved, shown) = rows[place], made.quiet[place]
        later = rows[place + 1]["start_ns"] if place + 1 < len(rows) else row["end_ns"]
        took = min(float(later - row["start_ns"]), 1.5 * (row["end_ns"] - row["start_ns"]))
        cycles += took
        host += took * shown / quiet
        if row["context_tokens"]:
            alone = 0.0
            if row["generation_requests"]:
                decodes, lengths = row["executed_generation_requests"], row["executed_generation_seq_len_sum"]
                alone = engine.cycle_ns(*engine.parts(decodes, 0, lengths, decodes))[0]
            prefill += took * (1.0 - alone / quiet)
        side = "prefill" if row["context_tokens"] else "decode"
        device = quiet - shown
        usage[side].append((device, compute * engine.efficiency, moved * engine.efficiency))
        running, waiting = gauges[row["start_ns"]]
        budget_left = row["context_tokens"] + row["generation_requests"] < engine.max_num_batched_tokens
        if waiting and budget_left:
            at_cap += took * (running >= engine.max_num_seqs)
            full += took * (running < engine.max_num_seqs)
    no_load = max(end - start - cycles, 0.0) / (end - start)
    shares = {"prefill": prefill / (end - start), "decode": (cycles - prefill) / (end - start)}
    side = max(shares, key=lambda name: shares[name])
    device, compute, moved = (sum(part) for part in zip(*usage[side], strict=True)) if usage[side] else (1.0, 0.0, 0.0)
    uses = compute / device, moved / device
    blocked = max(at_cap, full) / max(cycles, 1.0)
    close = abs(no_load - max(shares.values())) < NEAR_SHARE
    if no_load > max(shares.values()):
        return "load_limited", close
    near_blocked = abs(blocked - HALF) < NEAR_SHARE
    if blocked >= HALF and uses[0] < HIGH:
        return "queue_bound" if at_cap > full else "kv_capacity_bound", close or near_blocked or uses[
            0
        ] > HIGH - NEAR_USE
    close = close or near_blocked or abs(shares["prefill"] - shares["decode"]) < NEAR_SHARE
    host_share = host / max(cycles, 1.0)
    close = close or abs(host_share - HALF) < NEAR_SHARE or abs(host / (end - start) - HALF) < NEAR_SHARE
    if host_share >= HALF:
        return "host_bound", close
    near = any(abs(use - limit) < NEAR_USE for use in uses for limit in (LOW, NEITHER, HIGH) if use >= LOW - NEAR_USE)
    return _by_use(side, *uses), close or near


def _by_use(side: str, compute: float, moved: float) -> str:
    if side == "prefill" and compute >= HIGH and moved <= LOW:
        return "prefill_bound"
    if side == "decode" and moved >= HIGH and compute <= LOW:
        return "decode_bandwidth_bound"
    return "inefficient_kernel" if max(compute, moved) < NEITHER else "undetermined"


def inputs_of(engine: Engine, machine: Machine, made: Run, rng: np.random.Generator) -> AnalysisInputs:
    """What a recording of the run would hold."""
    settings = EngineSettings(
        kv_blocks=engine.kv_tokens // 16, block_size=16, source="metrics", max_num_seqs=engine.max_num_seqs
    )
    return AnalysisInputs(
        steps=step_table(made, executed=False),
        requests=table(REQUESTS, [_request(r) for r in made.requests]),
        counters=table(COUNTERS, _counters(made)),
        usage=table(USAGE, []),
        recording_start_ns=0,
        recording_end_ns=made.end_ns + NS,
        finished=True,
        peaks=(
            _peak("compute", engine.flop_per_s, machine, rng),
            _peak("memory_bandwidth", engine.bytes_per_s, machine, rng),
            Peak("dispatch", 200.0, "ns/operator", "measured", "calibration", 200.0, 200.0),
        ),
        model=ModelFacts(parameter_bytes=int(engine.weight_bytes), embedding_bytes=0, dtype="float16"),
        settings=settings,
        profiled_steps=_profiled(engine, made),
        device_kind="cpu",
        cpu_count=2,
    )  # fmt: skip


def _peak(resource: Any, value: float, machine: Machine, rng: np.random.Generator) -> Peak:
    """Measured on the machine as it was that day, which is as fast as the run, twice."""
    before, after = (value / machine.speed * (1.0 + float(rng.normal(0.0, 0.02))) for _ in range(2))
    unit = "flop/s" if resource == "compute" else "bytes/s"
    return Peak(resource, max(before, after), unit, "measured", "calibration", before, after)


def _profiled(engine: Engine, made: Run) -> tuple[ProfiledStep, ...]:
    """Four steps in a row of either kind, from when the batch was the usual one: a recorder waits for such a moment."""
    chosen: list[int] = []
    for context, size in ((False, "generation_requests"), (True, "context_tokens")):
        middle = range(len(made.rows) // 4, 3 * len(made.rows) // 4)
        places = [place for place in middle if bool(made.rows[place]["context_tokens"]) == context]
        if places:
            sizes = np.array([made.rows[place][size] for place in places])
            took = np.array([made.rows[place]["end_ns"] - made.rows[place]["start_ns"] for place in places])
            order = np.argsort(sizes, kind="stable")
            usual = sizes[order][np.searchsorted(np.cumsum(took[order]), took.sum() / 2)]
            from_middle = np.abs(np.arange(len(sizes)) - len(sizes) / 2)
            at = int(np.argmin(np.abs(sizes - usual) * len(sizes) + from_middle))
            chosen.extend(places[at : at + 4])
    steps = []
    for place in sorted(chosen):
        row, (quiet, _compute, _moved, shown) = made.rows[place], made.quiet[place]
        length = row["end_ns"] - row["start_ns"]
        outside = (1.0 - engine.between_steps) * shown
        gap = int(length * outside / (quiet - engine.between_steps * shown))
        rows = row["executed_context_tokens"] + row["executed_generation_requests"]
        cache = engine.kv_bytes_per_token * row["executed_generation_seq_len_sum"]
        pairs = row["context_q_k_sum"] + row["executed_generation_seq_len_sum"]
        work = length - gap
        attention = int(work * cache / (cache + engine.weight_bytes))
        steps.append(
            ProfiledStep(
                window=1, start_ns=row["start_ns"], end_ns=row["end_ns"], context_requests=row["context_requests"],
                context_tokens=row["context_tokens"], generation_requests=row["generation_requests"],
                generation_tokens=row["generation_tokens"], device_kind="cpu", operator_count=OPERATORS,
                operators=(
                    OperatorTime("matmul", work - attention, OPERATORS - 10, int(engine.flop_per_token * rows),
                                 int(engine.weight_bytes), work - attention),
                    OperatorTime("attention", attention, 10, int(2 * engine.kv_bytes_per_token * pairs), int(cache),
                                 attention),
                ),
                gap_ns=gap, device_busy_ns=None,
            )
        )  # fmt: skip
    return tuple(steps)


def _request(request: Request) -> dict[str, Any]:
    gaps = request.made - 1
    return {
        "arrival_ns": request.arrival_ns, "prompt_tokens": request.prompt, "output_tokens": request.made,
        "ttft_ns": request.first_ns - request.arrival_ns, "e2e_ns": request.end_ns - request.arrival_ns,
        **({"itl_mean_ns": (request.end_ns - request.first_ns) / gaps} if gaps else {}),
        "failed": False, "source": "bench_result",
    }  # fmt: skip


def _counters(made: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def count(time_ns: int, name: str, value: float) -> None:
        rows.append({"time_ns": time_ns, "endpoint": 0, "name": f"vllm:{name}", "labels": "{}", "value": value})

    for name in ("queue", "prefill", "decode"):
        count(0, f"request_{name}_time_seconds_sum", 0.0)
    for name in ("e2e_request_latency_seconds_count", "num_preemptions_total", "prompt_tokens_total"):
        count(0, name, 0.0)
    times = np.array([gauge[0] for gauge in made.gauges])
    polls = np.arange(times[0], made.end_ns, POLL_NS)
    for time_ns, place in zip(polls.tolist(), (np.searchsorted(times, polls, side="right") - 1).tolist(), strict=True):
        _, running, waiting, used = made.gauges[place]
        count(time_ns, "num_requests_running", running)
        count(time_ns, "num_requests_waiting", waiting)
        count(time_ns, "kv_cache_usage_perc", used)
    sums = np.zeros(3)
    for finished, r in enumerate(sorted(made.requests, key=lambda r: r.end_ns), start=1):
        sums += (r.scheduled_ns - r.arrival_ns, r.first_ns - r.scheduled_ns, r.end_ns - r.first_ns)
        for name, total in zip(("queue", "prefill", "decode"), (sums / NS).tolist(), strict=True):
            count(r.end_ns, f"request_{name}_time_seconds_sum", total)
        count(r.end_ns, "e2e_request_latency_seconds_count", finished)
    prompts = 0
    for r in sorted(made.requests, key=lambda r: r.first_ns):
        prompts += r.prompt
        count(r.first_ns, "prompt_tokens_total", prompts)
    return sorted(rows, key=lambda row: int(row["time_ns"]))
