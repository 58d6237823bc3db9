"""A synthetic engine that is not the model fitted to it, for `step_model.py`.

A step costs `max(compute, bytes) + host`: the larger of two times that grow with different work, a corner that may be
rounded, host work of which a part hides behind the device, decode batches padded to buckets, prompts padded to whole
chunks. What it takes is that times the speed of the machine in this run, times a speed that wanders, times noise that
remembers (an autoregression with heavy tails), times load spikes of a second or so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NS = 1_000_000_000


@dataclass(frozen=True)
class Engine:
    """Device, model, host and scheduler. Rates per second, times in nanoseconds."""

    flop_per_s: float
    bytes_per_s: float
    weight_bytes: float
    kv_bytes_per_token: float
    host_ns: float
    host_per_request_ns: float
    efficiency: float = 0.8
    overlap: float = 0.0
    # Exponent of the sum of compute and bytes: infinite is a sharp corner.
    corner: float = np.inf
    decode_buckets: tuple[int, ...] = ()
    chunk: int = 0
    between_steps: float = 0.1
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    kv_tokens: int = 10**9
    mixes: bool = True

    @property
    def flop_per_token(self) -> float:
        """Two for each weight of two bytes."""
        return self.weight_bytes

    def parts(self, rows: float, pairs: float, length: float, requests: float) -> tuple[float, float, float]:
        """Compute, bytes and host of a step in nanoseconds, on a quiet machine.

        Args:
            rows: tokens pushed through the weights, padding included.
            pairs: query x key lengths of prompts.
            length: tokens of the KV cache that are read.
            requests: how many requests the host prepares.
        """
        attention = self.kv_bytes_per_token * 2.0
        compute = (self.flop_per_token * rows + attention * (pairs + length)) / self.flop_per_s * NS
        moved = (self.weight_bytes + self.kv_bytes_per_token * length) / self.bytes_per_s * NS
        host = self.host_ns + self.host_per_request_ns * requests
        return compute / self.efficiency, moved / self.efficiency, host

    def device_ns(self, compute: float, moved: float) -> float:
        """What the device takes for both."""
        if np.isinf(self.corner):
            return max(compute, moved)
        return float((compute**self.corner + moved**self.corner) ** (1.0 / self.corner))

    def cycle_ns(self, compute: float, moved: float, host: float) -> tuple[float, float]:
        """Cycle time on a quiet machine, and how much of it is host work that shows."""
        device = self.device_ns(compute, moved)
        shown = host - self.overlap * min(host, device)
        return device + shown, shown


@dataclass(frozen=True)
class Machine:
    """How a machine disturbs a run. Relative standard deviations, and times in seconds."""

    own: bool
    speed: float
    wander: float = 0.01
    wander_s: float = 20.0
    noise: float = 0.02
    memory: float = 0.7
    spike_share: float = 0.02
    spike_s: float = 0.5
    spike_factor: float = 1.5


@dataclass
class Request:
    """A request on its way."""

    arrival_ns: int
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    scheduled_ns: int = -1
    first_ns: int = -1
    end_ns: int = -1


@dataclass
class Run:
    """What a run left: one row per step, its quiet cost beside it, gauges, and requests that ended."""

    rows: list[dict[str, int]] = field(default_factory=list)
    quiet: list[tuple[float, float, float, float]] = field(default_factory=list)
    gauges: list[tuple[int, int, int, float]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    end_ns: int = 0


class Disturbance:
    """Factors on step after step."""

    def __init__(self, machine: Machine, rng: np.random.Generator) -> None:
        self._machine, self._rng = machine, rng
        self._noise = self._wander = 0.0
        self._spike_until = -1

    def factor(self, now_ns: int, step_ns: float) -> float:
        """The factor on the quiet time of a step that begins now."""
        machine, rng = self._machine, self._rng
        # Student's t with 4 degrees of freedom has heavy tails and a standard deviation of sqrt(2)
        shock = float(rng.standard_t(4)) / 2.0**0.5
        self._noise = machine.memory * self._noise + (1.0 - machine.memory**2) ** 0.5 * shock
        keep = float(np.exp(-step_ns / NS / machine.wander_s))
        self._wander = keep * self._wander + (1.0 - keep**2) ** 0.5 * float(rng.standard_normal())
        if now_ns >= self._spike_until and rng.random() < machine.spike_share * step_ns / NS / machine.spike_s:
            self._spike_until = now_ns + int(rng.exponential(machine.spike_s) * NS)
        spiked = machine.spike_factor if now_ns < self._spike_until else 1.0
        scattered = max(1.0 + machine.noise * self._noise + machine.wander * self._wander, 0.5)
        return machine.speed * scattered * spiked


def padded(value: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds it; itself beyond the largest."""
    return next((bucket for bucket in buckets if bucket >= value), value) if value else 0


def run(engine: Engine, machine: Machine, load: list[Request], rng: np.random.Generator, clients: int = 0) -> Run:
    """Serve a load until it ends.

    Args:
        engine, machine: what serves it, and what disturbs that.
        load: requests by arrival.
        rng: all that is random.
        clients: so many clients send the load in turn, each when its last request ended; 0 keeps the arrivals.
    """
    made, disturbance = Run(), Disturbance(machine, rng)
    ahead = list(load[::-1])
    waiting: list[Request] = []
    running: list[Request] = []
    now = 0
    for _ in range(clients):
        waiting.append(ahead.pop())
        waiting[-1].arrival_ns = 0
    while ahead or waiting or running:
        while not clients and ahead and ahead[-1].arrival_ns <= now:
            waiting.append(ahead.pop())
        if not running and not waiting:
            made.gauges.append((now, 0, 0, 0.0))
            now = ahead[-1].arrival_ns
            continue
        used = sum(r.prompt + r.output for r in running)
        decodes = [r for r in running if r.computed == r.prompt]
        chunks: list[tuple[Request, int]] = []
        budget = engine.max_num_batched_tokens - len(decodes) * engine.mixes
        for request in running:
            if request.computed < request.prompt and budget > 0 and (engine.mixes or not chunks):
                chunks.append((request, min(budget, request.prompt - request.computed)))
                budget -= chunks[-1][1]
        while waiting and len(running) < engine.max_num_seqs and budget > 0 and (engine.mixes or not chunks):
            if used + waiting[0].prompt + waiting[0].output > engine.kv_tokens:
                break
            request = waiting.pop(0)
            request.scheduled_ns = now
            running.append(request)
            used += request.prompt + request.output
            chunks.append((request, min(budget, request.prompt)))
            budget -= chunks[-1][1]
        if chunks and not engine.mixes:
            decodes = []
        now = _step(engine, disturbance, made, (running, waiting, decodes, chunks), now)
        for ended in [r for r in running if r.made >= r.output]:
            ended.end_ns = made.rows[-1]["end_ns"]
            running.remove(ended)
            made.requests.append(ended)
            if clients and ahead:
                waiting.append(ahead.pop())
                waiting[-1].arrival_ns = ended.end_ns
    made.end_ns = now
    return made


def _step(
    engine: Engine,
    disturbance: Disturbance,
    made: Run,
    batch: tuple[list[Request], list[Request], list[Request], list[tuple[Request, int]]],
    now: int,
) -> int:
    running, waiting, decodes, chunks = batch
    context = sum(size for _, size in chunks)
    pairs = sum(size * (r.computed + size) for r, size in chunks)
    lengths = sum(r.computed + r.made + 1 for r in decodes)
    rows = padded(len(decodes), engine.decode_buckets)
    whole = -(-context // engine.chunk) * engine.chunk if engine.chunk else context
    # a padded row reads as much of the cache as a usual one
    read = round(lengths * rows / len(decodes)) if decodes else 0
    parts = engine.parts(rows + whole, pairs, read, len(decodes) + len(chunks))
    quiet, shown = engine.cycle_ns(*parts)
    cycle = quiet * disturbance.factor(now, quiet)
    end = now + int(cycle - engine.between_steps * shown * cycle / quiet)
    # a request holds room for all of its output from the start
    held = sum(r.prompt + r.output for r in running)
    made.gauges.append((now, len(running), len(waiting), held / engine.kv_tokens))
    made.quiet.append((quiet, parts[0], parts[1], shown))
    made.rows.append(
        {
            "start_ns": now, "end_ns": end, "context_requests": len(chunks), "context_tokens": context,
            "context_seq_len_sum": sum(r.computed + size for r, size in chunks), "context_q_k_sum": pairs,
            "generation_requests": len(decodes), "generation_tokens": len(decodes),
            "generation_seq_len_sum": lengths, "executed_context_tokens": whole,
            "executed_generation_requests": rows, "executed_generation_seq_len_sum": read,
        }
    )  # fmt: skip
    for request, size in chunks:
        request.computed += size
        if request.computed == request.prompt:
            request.made += 1
            request.first_ns = end
    for request in decodes:
        request.made += 1
    return now + max(int(cycle), 1)


def poisson(
    rng: np.random.Generator, rate_per_s: NDArray[np.float64], slice_s: float,
    prompt: tuple[int, int], output: tuple[int, int],
) -> list[Request]:  # fmt: skip
    """Arrivals whose rate changes from slice to slice, with lengths drawn evenly from two ranges."""
    arrivals: list[Request] = []
    for place, rate in enumerate(rate_per_s.tolist()):
        times = np.sort(rng.random(rng.poisson(rate * slice_s))) * slice_s + place * slice_s
        arrivals.extend(
            Request(int(t * NS), int(rng.integers(*prompt, endpoint=True)), int(rng.integers(*output, endpoint=True)))
            for t in times.tolist()
        )
    return arrivals
