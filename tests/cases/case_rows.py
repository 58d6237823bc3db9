"""Rows that a case's facts stand for: engines and patterns of steps, gauges, requests, processes, stacks, traces."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from engine_builder import MS, Engine, Request, Run, S, open_loop, replay

from spyreprof.recording.schema import Interval
from spyreprof.trace.profiled import OperatorTime, ProfiledStep

US = 1_000
POLL_NS = 500_000_000

Row = dict[str, Any]

_PLAIN_STEP: Row = {"source": "annotation", "rank": 0, "compiles": 0, "profiled": False}
_GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "swapped": "vllm:num_requests_swapped",
    "old_kv_usage": "vllm:gpu_cache_usage_perc",
}


class Made:
    """Rows as they are made. The recording ends one second after the last of them, or when the case says."""

    def __init__(self, run: Row) -> None:
        self._rng = random.Random(0)
        self.steps: list[Row] = []
        self.requests: list[Row] = []
        self.counters: list[Row] = []
        self.compiles: list[Interval] = []
        self.end_ns = int(run.get("seconds", 0) * S)
        self.cut_ns = int(run["cut_s"] * S) if "cut_s" in run else None
        self.polled = False

    def replay(self, facts: Row, number: int) -> None:
        """A synthetic engine, its requests, gauges and histograms."""
        engine = _engine(facts)
        run = replay(engine, [request for load in facts["load"] for request in _arrivals(load)])
        late = _Late(run.steps, facts.get("slow_first", {}))
        self.end_ns = max(self.end_ns, late(run.end_ns))
        for row in run.steps:
            when = {"start_ns": late(row["start_ns"]), "end_ns": late(row["end_ns"])}
            self.steps.append({**row, **when, "writer": f"{number + 1}-a", **_PLAIN_STEP})
        for r in run.requests:
            r.arrival_ns, r.scheduled_ns, r.first_token_ns, r.end_ns = (
                late(time_ns) for time_ns in (r.arrival_ns, r.scheduled_ns, r.first_token_ns, r.end_ns)
            )
            marked = {"source": "agent", "queue_ns": r.scheduled_ns - r.arrival_ns} if facts.get("marked") else {}
            self.requests.append(_logged(r) | marked | _reasoning(r, facts.get("reasoning_ratio")))
        run.gauges = [(late(time_ns), *values) for time_ns, *values in run.gauges]
        run.preempted_ns = [late(time_ns) for time_ns in run.preempted_ns]
        self._exported(run, number, set(facts.get("without", [])))

    def _exported(self, run: Run, number: int, without: set[str]) -> None:
        labels = json.dumps({"engine": str(number)})

        def count(time_ns: int, name: str, value: float) -> None:
            if name not in without:
                self.counters.append(
                    {"time_ns": time_ns, "endpoint": 0, "name": f"vllm:{name}", "labels": labels, "value": value}
                )

        for name in ("queue", "prefill", "decode"):
            count(0, f"request_{name}_time_seconds_sum", 0.0)
        for name in ("num_preemptions_total", "prompt_tokens_total", "e2e_request_latency_seconds_count",
                     "prefix_cache_queries_total", "prefix_cache_hits_total"):  # fmt: skip
            count(0, name, 0)
        for time_ns, running, waiting, usage in run.gauges:
            count(time_ns, "num_requests_running", running)
            count(time_ns, "num_requests_waiting", waiting)
            count(time_ns, "kv_cache_usage_perc", usage)
        sums = {"queue": 0, "prefill": 0, "decode": 0}
        for finished, r in enumerate(sorted(run.requests, key=lambda r: r.end_ns), start=1):
            sums["queue"] += r.scheduled_ns - r.arrival_ns
            sums["prefill"] += r.first_token_ns - r.scheduled_ns
            sums["decode"] += r.end_ns - r.first_token_ns
            for name, total in sums.items():
                count(r.end_ns, f"request_{name}_time_seconds_sum", total / S)
            count(r.end_ns, "e2e_request_latency_seconds_count", finished)
        for preemptions, time_ns in enumerate(run.preempted_ns, start=1):
            count(time_ns, "num_preemptions_total", preemptions)
        prompts = 0
        for r in sorted(run.requests, key=lambda r: r.first_token_ns):
            prompts += r.prompt
            count(r.first_token_ns, "prompt_tokens_total", prompts)
            count(r.first_token_ns, "prefix_cache_queries_total", prompts)

    def pattern(self, facts: Row) -> None:
        """Steps that repeat: `each` lists steps, `times` in a row, with their length and the gap that follows."""
        now = int(facts.get("start_s", 0.0) * S)
        noise = facts.get("noise", 0.02)
        rank, rng = facts.get("rank", 0), self._rng
        for _ in range(facts.get("repeat", 1)):
            for step in (step for one in facts["each"] for step in [one] * one.get("times", 1)):
                length = _drawn(step["ms"], rng) * (1 + noise * (2 * rng.random() - 1))
                end = now + int(length * MS)
                self.steps.append(_step(step, now, end, rng) | {"writer": f"{rank + 1}-a", "rank": rank})
                now = end + int(_drawn(step.get("gap_ms", 0.1), rng) * MS)
        self.end_ns = max(self.end_ns, now + S)

    def log(self, group: Row) -> None:
        """Requests of a client's log."""
        self.requests += list(_requests(group, self.end_ns, self._rng))

    def compile(self, facts: Row) -> None:
        """Compilations, and the steps that they held up."""
        for number in range(facts.get("count", 1)):
            start = int((facts["start_s"] + number * facts.get("every_s", 0.0)) * S)
            end = start + int(facts["ms"] * MS)
            self.compiles.append(Interval(start, end, "compile", "1-a"))
            for row in self.steps:
                if row["start_ns"] <= start < row["end_ns"]:
                    row["compiles"] = row.get("compiles", 0) + 1

    def cut(self) -> None:
        """What the recording saw, where it ended before the load did: no request that was still open."""
        if self.cut_ns is None:
            return
        self.steps = [row for row in self.steps if row["end_ns"] <= self.cut_ns]
        self.counters = [row for row in self.counters if row["time_ns"] <= self.cut_ns]
        self.requests = [row for row in self.requests if row["arrival_ns"] + row["e2e_ns"] <= self.cut_ns]
        self.end_ns = self.cut_ns

    def sample(self, facts: Row) -> None:
        """Gauges, counters and histograms as a page shows them that is polled twice a second."""
        times = np.arange(0, self.end_ns, POLL_NS, dtype=np.int64)
        groups = [*facts.get("counters", []), *facts.get("histograms", [])]
        self.polled = bool(facts.get("gauges") or groups)
        for one in facts.get("gauges", []):
            labels = _labels(one)
            for key, name in _GAUGES.items():
                if key in one:
                    points = np.atleast_1d(np.asarray(one[key], dtype=np.float64))
                    values = np.interp(times, np.linspace(0, self.end_ns, len(points)), points)
                    whole = values if key.endswith("kv_usage") else np.rint(values)
                    self._rows(name, labels, times, whole)
        for one in groups:
            rises = {"": one["per_s"]} if "per_s" in one else _of_histogram(one)
            for suffix, per_s in rises.items():
                self._rows(one["name"] + suffix, _labels(one), times, one.get("start", 0) + per_s * times / S)
        for one in facts.get("info", []):
            self._rows(one["name"], json.dumps(one["labels"], sort_keys=True), times[:1], np.ones(1))

    def _rows(self, name: str, labels: str, times: Any, values: Any) -> None:
        before = None
        for time_ns, value in zip(times.tolist(), values.tolist(), strict=True):
            if value != before:
                self.counters.append(
                    {"time_ns": time_ns, "endpoint": 0, "name": name, "labels": labels, "value": value}
                )
            before = value

    def polls(self) -> list[Row] | None:
        """Every poll of the page; None where gauges come from a replay, which tells each of its steps."""
        times = range(0, self.end_ns, POLL_NS)
        return [{"time_ns": time_ns, "endpoint": 0, "ok": True} for time_ns in times] if self.polled else None


def _labels(facts: Row) -> str:
    return json.dumps({"engine": str(facts.get("engine", 0))})


def _of_histogram(facts: Row) -> dict[str, float]:
    return {"_count": facts["count_per_s"], "_sum": facts["count_per_s"] * facts["mean_s"]}


def _engine(facts: Row) -> Engine:
    whole = {"max_num_seqs", "max_num_batched_tokens", "kv_tokens", "reserve_output", "noise", "seed"}
    units = {"fixed_ms": ("fixed_ns", MS), "per_request_ms": ("per_request_ns", MS), "gap_ms": ("gap_ns", MS),
             "per_cached_token_us": ("per_cached_token_ns", US),
             "per_context_token_us": ("per_context_token_ns", US)}  # fmt: skip
    known = {name: facts[name] for name in whole if name in facts}
    known |= {to: int(facts[name] * unit) for name, (to, unit) in units.items() if name in facts}
    beside = {"load", "slow_first", "reasoning_ratio", "without", "marked"}
    if unknown := set(facts) - whole - set(units) - beside:
        raise ValueError(f"the engine has no {', '.join(sorted(unknown))}")
    return Engine(**known)


class _Late:
    """Moves a time of the replay by what its first steps took longer than the engine's costs say."""

    def __init__(self, steps: list[Row], slow: Row) -> None:
        self._slow = steps[: slow.get("steps", 0)]
        self._times = slow.get("times", 1)

    def __call__(self, time_ns: int) -> int:
        done = sum(min(max(time_ns - row["start_ns"], 0), row["end_ns"] - row["start_ns"]) for row in self._slow)
        return time_ns + (self._times - 1) * done


def _logged(r: Request) -> Row:
    return {
        "arrival_ns": r.arrival_ns,
        "prompt_tokens": r.prompt,
        "output_tokens": r.made,
        "ttft_ns": r.first_token_ns - r.arrival_ns,
        "e2e_ns": r.end_ns - r.arrival_ns,
        "itl_mean_ns": (r.end_ns - r.first_token_ns) / (r.made - 1) if r.made > 1 else pd.NA,
        "failed": False,
        "source": "bench_result",
    }


def _reasoning(r: Request, ratio: float | None) -> Row:
    return {} if ratio is None else {"reasoning_tokens": int(ratio * r.made)}


def _arrivals(load: Row) -> list[Request]:
    """Requests of one client group: at a rate, all at once, or one by one."""
    rng = random.Random(load.get("seed", 1))
    prompt, output = (_range(load[key]) for key in ("prompt", "output"))
    at_ns = int(load.get("start_s", 0.0) * S)
    if "per_s" in load:
        made = open_loop(load.get("seed", 1), load["per_s"], load["seconds"], prompt, output)
        return [Request(r.arrival_ns + at_ns, r.prompt, r.output) for r in made]
    arrival = -1 if load.get("one_by_one") else at_ns
    return [Request(arrival, rng.randint(*prompt), rng.randint(*output)) for _ in range(load["count"])]


def _range(value: Any) -> tuple[int, int]:
    low, high = value if isinstance(value, list) else (value, value)
    return low, high


def _drawn(value: Any, rng: random.Random) -> float:
    return rng.uniform(*value) if isinstance(value, list) else float(value)


_EXECUTED = {
    "executed_prompt_tokens": "executed_context_tokens",
    "executed_decodes": "executed_generation_requests",
    "executed_cached": "executed_generation_seq_len_sum",
}


def _step(facts: Row, start_ns: int, end_ns: int, rng: random.Random) -> Row:
    """One step: `prompts` of `prompt_tokens` in all, `decodes` that hold `cached` tokens in all; padding apart."""
    prompts, prompt_tokens = int(facts.get("prompts", 0)), round(_drawn(facts.get("prompt_tokens", 0), rng))
    decodes = round(_drawn(facts.get("decodes", 0), rng))
    length = round(_drawn(facts.get("prompt_len", prompt_tokens), rng))
    executed = {to: round(_drawn(facts[name], rng)) for name, to in _EXECUTED.items() if name in facts}
    return {
        **executed,
        **_PLAIN_STEP, "start_ns": start_ns, "end_ns": end_ns,
        "context_requests": prompts, "context_tokens": prompt_tokens, "context_seq_len_sum": length,
        "context_q_k_sum": prompt_tokens * length, "generation_requests": decodes, "generation_tokens": decodes,
        "generation_seq_len_sum": round(_drawn(facts.get("cached", 0), rng)),
    }  # fmt: skip


def _requests(group: Row, end_ns: int, rng: random.Random) -> Iterator[Row]:
    """Requests of a client's log, evenly spread from `start_s` to `end_s`; `_ms` and token counts may be ranges."""
    start, count = int(group.get("start_s", 0.0) * S), group["count"]
    last = int(group["end_s"] * S) if "end_s" in group else end_ns
    for number in range(count):
        drawn = {key: _drawn(value, rng) for key, value in group.items() if key not in _NOT_OF_ONE_REQUEST}
        made = {key: round(value) for key, value in drawn.items() if not key.endswith("_ms")}
        made |= {key.removesuffix("_ms") + "_ns": round(value * MS) for key, value in drawn.items()
                 if key.endswith("_ms")}  # fmt: skip
        itl_ns = made.pop("itl_ns", None)
        if itl_ns is not None:
            made |= {"itl_mean_ns": itl_ns, "e2e_ns": made["ttft_ns"] + itl_ns * (made["output_tokens"] - 1)}
        yield {"arrival_ns": start + (last - start) * number // count, "failed": group.get("failed", False),
               "source": group.get("source", "bench_result"), **group.get("also", {}), **made}  # fmt: skip


_NOT_OF_ONE_REQUEST = {"count", "start_s", "end_s", "source", "failed", "also"}


def usage_rows(group: Row, end_ns: int) -> Iterator[Row]:
    """One process, or one of its threads, that uses as many CPUs all along; a row a second."""
    for second in range(end_ns // S + 1):
        rss = int(group.get("rss_gb", 4) * 1e9) if "tid" not in group else pd.NA
        yield {"time_ns": second * S, "pid": group["pid"], "tid": group.get("tid", pd.NA),
               "cpu_ns": int(second * group["cpus"] * S), "rss_bytes": rss}  # fmt: skip


def stack_rows(groups: list[Row], end_ns: int) -> Iterator[Row]:
    """Windows of 8 s, evenly spread: of 400 looks each, how many found a thread in a frame at work, or waiting."""
    for group in groups:
        for number in range(group.get("windows", 4)):
            start = end_ns // 10 + number * (end_ns * 8 // 10) // group.get("windows", 4)
            for one in group["frames"]:
                yield {
                    "start_ns": start, "end_ns": start + 8 * S, "pid": group["pid"], "thread": one["thread"],
                    "looks": 400, "rate_hz": 50, "with_sleeping": False, "state_known": True, "complete": True,
                    "frame": one["frame"], "waiting": one.get("waiting", False), "count": one["looks"],
                }  # fmt: skip


def profiled_steps(group: Row, facts: Row, steps: list[Row]) -> Iterator[ProfiledStep]:
    """Steps of a phase as a profiler saw them: shares of their time, and use of the peaks inside matmuls."""
    peaks = facts.get("peaks", {})
    wants = group["phase"] == "prefill"
    rows = [row for row in steps if bool(row["context_tokens"]) == wants]
    at = len(rows) // 3
    for row in rows[at : at + group.get("count", 6)]:
        length = row["end_ns"] - row["start_ns"]
        share = {kind: int(length * group.get(f"{kind}_share", 0.0)) for kind in _OPERATOR_KINDS}
        operators = tuple(
            OperatorTime(kind, ns, group.get("operators", 200) // len(_OPERATOR_KINDS), *_work(kind, ns, group, peaks))
            for kind, ns in share.items() if ns
        )  # fmt: skip
        busy = sum(share.values())
        on_cpu = facts["run"]["device"] == "cpu"
        yield ProfiledStep(
            window=1, start_ns=row["start_ns"], end_ns=row["end_ns"], context_requests=row["context_requests"],
            context_tokens=row["context_tokens"], generation_requests=row["generation_requests"],
            generation_tokens=row["generation_tokens"], device_kind=facts["run"]["device"],
            operator_count=group.get("operators", 200), operators=operators, gap_ns=length - busy,
            device_busy_ns=None if on_cpu else busy, writer=row["writer"],
        )  # fmt: skip


def _work(kind: str, ns: int, group: Row, peaks: Row) -> tuple[int | None, int | None, int]:
    """FLOPs, bytes and time with known work: the use of both peaks inside matmuls, or inside attention."""
    prefix = {"matmul": "", "attention": "attention_"}.get(kind)
    if prefix is None or f"{prefix}bandwidth_use" not in group:
        return None, None, 0
    read = int(group[f"{prefix}bandwidth_use"] * peaks["read_bytes_per_s"] * ns / S)
    return int(group.get(f"{prefix}compute_use", 0.01) * peaks["compute_flop_per_s"] * ns / S), read, ns


_OPERATOR_KINDS = ("matmul", "attention", "elementwise", "communication", "copy", "other")
