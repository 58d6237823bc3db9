"""A synthetic engine with known costs: a small replay that writes the tables analyzers read.

Requests arrive, run under a batch cap and a token budget (decode first, then prompt chunks), and in a KV cache that
either holds room for a request's output from the start or, when it runs out, preempts the youngest request, which is
recomputed. Every step takes exactly `fixed + per_request * decodes + per_cached_token * their lengths +
per_context_token * prompt tokens` nanoseconds, plus seeded noise where asked. What the analyzers should find is
therefore known.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pandas as pd

from spyreprof.recording.schema import (
    COUNTERS,
    REQUESTS,
    STEPS,
    USAGE,
    AnalysisInputs,
    EngineSettings,
    ModelFacts,
    Peak,
)
from spyreprof.trace.profiled import OperatorTime, ProfiledStep

MS = 1_000_000
S = 1_000_000_000
COMPUTE_PEAK = 40e9
READ_PEAK = 8e9


@dataclass(frozen=True)
class Engine:
    """Costs and limits of the synthetic engine."""

    fixed_ns: int = 50 * MS
    per_request_ns: int = 1 * MS
    per_cached_token_ns: int = 0
    per_context_token_ns: int = 1 * MS
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 64
    kv_tokens: int = 100_000
    reserve_output: bool = True
    gap_ns: int = 100_000
    noise: float = 0.02
    seed: int = 0


@dataclass
class Request:
    """A request on its way through the engine."""

    arrival_ns: int
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    made_before_preemption: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None

    @property
    def to_prefill(self) -> int:
        return self.prompt + self.made_before_preemption

    @property
    def length(self) -> int:
        return self.computed + self.made - self.made_before_preemption


@dataclass
class Run:
    """What the replay produced."""

    steps: list[dict[str, object]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    gauges: list[tuple[int, int, int, float]] = field(default_factory=list)
    preempted_ns: list[int] = field(default_factory=list)
    recomputed_tokens: int = 0
    end_ns: int = 0


def open_loop(
    seed: int, rate_per_s: float, seconds: float, prompt: tuple[int, int], output: tuple[int, int]
) -> list[Request]:
    """Poisson arrivals."""
    rng = random.Random(seed)
    arrivals: list[Request] = []
    now = 0.0
    while True:
        now += rng.expovariate(rate_per_s)
        if now > seconds:
            return arrivals
        arrivals.append(Request(int(now * S), rng.randint(*prompt), rng.randint(*output)))


def one_after_another(count: int, prompt: int, output: int) -> list[Request]:
    """A closed loop of one client: each request arrives when the one before has ended (arrival -1)."""
    return [Request(-1, prompt, output) for _ in range(count)]


def replay(engine: Engine, arrivals: list[Request]) -> Run:
    """Run the engine until every request has ended."""
    rng = random.Random(engine.seed)
    run = Run()
    waiting = [replace(request) for request in arrivals]
    running: list[Request] = []
    now = 0
    previous_end = 0
    while waiting or running:
        for request in waiting[:1]:
            if request.arrival_ns < 0 and not running:
                request.arrival_ns = previous_end + MS
        arrived = [r for r in waiting if 0 <= r.arrival_ns <= now]
        if not running and not arrived:
            now = min(r.arrival_ns for r in waiting if r.arrival_ns >= 0)
            run.gauges.append((previous_end + MS, 0, 0, 0.0))
            continue
        budget = engine.max_num_batched_tokens
        decodes = [r for r in running if r.computed == r.to_prefill]
        while not engine.reserve_output and sum(r.length for r in running) + len(decodes) > engine.kv_tokens:
            victim = running.pop()
            run.preempted_ns.append(now)
            run.recomputed_tokens += victim.length
            victim.computed, victim.made_before_preemption = 0, victim.made
            waiting.insert(0, victim)
            arrived = [r for r in waiting if 0 <= r.arrival_ns <= now]
            decodes = [r for r in running if r.computed == r.to_prefill]
        budget -= len(decodes)
        chunks: list[tuple[Request, int]] = []
        for request in running:
            if request.computed < request.to_prefill and budget > 0:
                size = min(budget, request.to_prefill - request.computed)
                chunks.append((request, size))
                budget -= size
        for request in arrived:
            if len(running) >= engine.max_num_seqs or budget <= 0:
                break
            if engine.reserve_output:
                used, needed = sum(r.prompt + r.output for r in running), request.prompt + request.output
            else:
                used, needed = sum(max(r.length, r.to_prefill) + 1 for r in running), request.to_prefill
            if used + needed > engine.kv_tokens:
                break
            waiting.remove(request)
            running.append(request)
            if request.scheduled_ns is None:
                request.scheduled_ns = now
            size = min(budget, request.to_prefill)
            chunks.append((request, size))
            budget -= size
        context = sum(size for _, size in chunks)
        cached = sum(r.length + 1 for r in decodes)
        cost = (
            engine.fixed_ns
            + engine.per_request_ns * len(decodes)
            + engine.per_cached_token_ns * cached
            + engine.per_context_token_ns * context
        )
        cost = int(cost * (1 + engine.noise * (2 * rng.random() - 1)))
        end = now + cost
        run.steps.append(
            {
                "start_ns": now,
                "end_ns": end,
                "writer": "1-a",
                "context_requests": len(chunks),
                "context_tokens": context,
                "context_seq_len_sum": sum(r.computed + size for r, size in chunks),
                "context_q_k_sum": sum(size * (r.computed + size) for r, size in chunks),
                "generation_requests": len(decodes),
                "generation_tokens": len(decodes),
                "generation_seq_len_sum": cached,
            }
        )
        waits = sum(1 for r in waiting if 0 <= r.arrival_ns <= now)
        usage = sum(r.length for r in running) / engine.kv_tokens
        run.gauges.append((now, len(running), waits, usage))
        for request, size in chunks:
            request.computed += size
            if request.computed == request.to_prefill:
                request.made += 1
                if request.first_token_ns is None:
                    request.first_token_ns = end
        for request in decodes:
            request.made += 1
        for request in [r for r in running if r.made >= r.output]:
            request.end_ns = end
            running.remove(request)
            run.requests.append(request)
        previous_end = end
        now = end + engine.gap_ns
    run.end_ns = now + S
    return run


def table(columns: tuple, rows: list[dict[str, object]]) -> pd.DataFrame:
    """Rows as a table with the declared columns and dtypes; what a row lacks is missing."""
    return pd.DataFrame(
        {
            column.name: pd.array([row.get(column.name, pd.NA) for row in rows], dtype=_dtype(column.dtype))
            if column.dtype[0].isupper() or column.dtype in ("string", "boolean")
            else pd.Series([row.get(column.name, 0) for row in rows], dtype=column.dtype)
            for column in columns
        }
    )


def _dtype(name: str) -> str:
    return name


def inputs(run: Run, engine: Engine, **changes: object) -> AnalysisInputs:
    """The tables of a run, complete: steps, requests, gauges, histograms, settings, model, peaks."""
    steps = [dict(row, source="annotation", rank=0, compiles=0, profiled=False) for row in run.steps]
    requests = [
        {
            "arrival_ns": r.arrival_ns,
            "prompt_tokens": r.prompt,
            "output_tokens": r.made,
            "ttft_ns": r.first_token_ns - r.arrival_ns,
            "e2e_ns": r.end_ns - r.arrival_ns,
            "itl_mean_ns": (r.end_ns - r.first_token_ns) / (r.made - 1) if r.made > 1 else pd.NA,
            "failed": False,
            "source": "bench_result",
        }
        for r in run.requests
    ]
    counters: list[dict[str, object]] = []

    def count(time_ns: int, name: str, value: float) -> None:
        counters.append({"time_ns": time_ns, "endpoint": 0, "name": name, "labels": "{}", "value": value})

    for name in ("queue", "prefill", "decode"):
        count(0, f"vllm:request_{name}_time_seconds_sum", 0.0)
    count(0, "vllm:e2e_request_latency_seconds_count", 0.0)
    for time_ns, running, waiting, usage in run.gauges:
        count(time_ns, "vllm:num_requests_running", running)
        count(time_ns, "vllm:num_requests_waiting", waiting)
        count(time_ns, "vllm:kv_cache_usage_perc", usage)
    queue = prefill = decode = 0
    for finished, r in enumerate(sorted(run.requests, key=lambda r: r.end_ns), start=1):
        queue += r.scheduled_ns - r.arrival_ns
        prefill += r.first_token_ns - r.scheduled_ns
        decode += r.end_ns - r.first_token_ns
        count(r.end_ns, "vllm:request_queue_time_seconds_sum", queue / S)
        count(r.end_ns, "vllm:request_prefill_time_seconds_sum", prefill / S)
        count(r.end_ns, "vllm:request_decode_time_seconds_sum", decode / S)
        count(r.end_ns, "vllm:e2e_request_latency_seconds_count", finished)
    for name in ("num_preemptions", "prompt_tokens", "prefix_cache_queries", "prefix_cache_hits"):
        count(0, f"vllm:{name}_total", 0)
    for preemptions, time_ns in enumerate(run.preempted_ns, start=1):
        count(time_ns, "vllm:num_preemptions_total", preemptions)
    prompts = 0
    for r in sorted(run.requests, key=lambda r: r.first_token_ns):
        prompts += r.prompt
        count(r.first_token_ns, "vllm:prompt_tokens_total", prompts)
        count(r.first_token_ns, "vllm:prefix_cache_queries_total", prompts)
    counters.sort(key=lambda row: row["time_ns"])
    made = AnalysisInputs(
        steps=table(STEPS, steps),
        requests=table(REQUESTS, requests),
        counters=table(COUNTERS, counters),
        usage=table(USAGE, []),
        recording_start_ns=0,
        recording_end_ns=run.end_ns,
        finished=True,
        peaks=peaks(),
        model=ModelFacts(
            parameter_bytes=int(0.8 * engine.fixed_ns / S * READ_PEAK), embedding_bytes=0, dtype="float32"
        ),
        settings=EngineSettings(
            kv_blocks=engine.kv_tokens // 16, block_size=16, source="metrics", max_num_seqs=engine.max_num_seqs
        ),
        device_kind="cpu",
        cpu_count=2,
    )
    return replace(made, **changes)


def peaks(*, compute_after: float = COMPUTE_PEAK, read_after: float = READ_PEAK) -> tuple[Peak, ...]:
    """Peaks measured before and after the run."""
    return (
        Peak(
            "compute",
            max(COMPUTE_PEAK, compute_after),
            "flop/s",
            "measured",
            "calibration",
            COMPUTE_PEAK,
            compute_after,
        ),
        Peak(
            "memory_bandwidth", max(READ_PEAK, read_after), "bytes/s", "measured", "calibration", READ_PEAK, read_after
        ),
        Peak("dispatch", 2_000.0, "ns/operator", "measured", "calibration", 2_000.0, 2_000.0),
    )


def profiled(
    run: Run,
    *,
    phase: str,
    compute_use: float,
    bandwidth_use: float,
    matmul_ratio: float = 0.85,
    gap_ratio: float = 0.05,
    unknown_ratio: float = 0.0,
    count: int = 4,
) -> tuple[ProfiledStep, ...]:
    """The first steps of a phase as a profiler window would show them, with the given use of the peaks."""
    wants_context = phase == "prefill"
    rows = [row for row in run.steps if bool(row["context_tokens"]) == wants_context][:count]
    steps = []
    for row in rows:
        length = row["end_ns"] - row["start_ns"]
        matmul, gap, unknown = (int(length * ratio) for ratio in (matmul_ratio, gap_ratio, unknown_ratio))
        operators = (
            OperatorTime(
                "matmul", matmul, 40, int(compute_use * COMPUTE_PEAK * matmul / S),
                int(bandwidth_use * READ_PEAK * matmul / S), matmul,
            ),
            OperatorTime("other", unknown, 10, None, None, 0),
            OperatorTime("elementwise", length - matmul - gap - unknown, 100, None, None, 0),
        )  # fmt: skip
        steps.append(
            ProfiledStep(
                window=1,
                start_ns=row["start_ns"],
                end_ns=row["end_ns"],
                context_requests=row["context_requests"],
                context_tokens=row["context_tokens"],
                generation_requests=row["generation_requests"],
                generation_tokens=row["generation_tokens"],
                device_kind="cpu",
                operator_count=150,
                operators=operators,
                gap_ns=gap,
                device_busy_ns=None,
            )
        )
    return tuple(steps)


def prefill_heavy(engine: Engine | None = None, seed: int = 1) -> tuple[Engine, Run]:
    """Long prompts, two output tokens, no cap in the way."""
    engine = engine or Engine(fixed_ns=10 * MS, per_context_token_ns=3 * MS, max_num_seqs=64)
    return engine, replay(engine, open_loop(seed, 0.55, 90, (350, 600), (1, 3)))


def decode_alone(engine: Engine | None = None) -> tuple[Engine, Run]:
    """One client, short prompts, longer outputs: batch 1."""
    engine = engine or Engine(fixed_ns=60 * MS)
    return engine, replay(engine, one_after_another(40, 8, 24))


def capped(engine: Engine | None = None, seed: int = 2) -> tuple[Engine, Run]:
    """Many requests, a cap of two, KV to spare."""
    engine = engine or Engine(max_num_seqs=2)
    return engine, replay(engine, open_loop(seed, 2.5, 40, (10, 20), (12, 24)))


def light(engine: Engine | None = None, seed: int = 3) -> tuple[Engine, Run]:
    """A request now and then."""
    engine = engine or Engine(fixed_ns=30 * MS)
    return engine, replay(engine, open_loop(seed, 0.5, 90, (20, 40), (6, 10)))
