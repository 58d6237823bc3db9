"""Makes synthetic recordings and traces for tests: a test names only what it varies.

A whole recording:

    from builders import RecordingBuilder, decode_name

    recording = RecordingBuilder(tmp_path / "run.spyreprof")
    recording.steps([(1_000, 2_000, decode_name(requests=4, tokens=4, seq_len_sum=400))])
    recording.metrics([(0, ["vllm:num_requests_running 1.0"])])
    recording.bench(input_lens=[128], output_lens=[2], ttfts=[0.1], itls=[[0.05]], start_times=[1.0])
    path = recording.write()

Everything is written by the recording's contract (`spyreprof/recording/layout.py`), with the standard
library, so that a fault of the reader cannot hide behind the same fault in a writer.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SECOND = 1_000_000_000
MS = 1_000_000
# The recording's monotonic clock starts here, wall-clock time is EPOCH_OFFSET_NS later.
START_NS = 100 * SECOND
EPOCH_OFFSET_NS = 1_700_000_000 * SECOND
WRITER = "4242-16345785d8a0000"


def decode_name(
    *, requests: int = 1, tokens: int | None = None, seq_len_sum: int = 100, q_k_sum: int | None = None
) -> str:
    """A decode step in vLLM's detailed spelling."""
    tokens = requests if tokens is None else tokens
    q_k_sum = seq_len_sum if q_k_sum is None else q_k_sum
    return (
        f"execute_{tokens}_context_0(sq0sk0sqsq0sqsk0)"
        f"_generation_{requests}(sq{tokens}sk{seq_len_sum}sqsq{tokens}sqsk{q_k_sum})"
    )


def prefill_name(
    *, requests: int = 1, tokens: int = 64, seq_len_sum: int | None = None, q_k_sum: int | None = None
) -> str:
    """A prefill step in vLLM's detailed spelling."""
    seq_len_sum = tokens if seq_len_sum is None else seq_len_sum
    q_k_sum = tokens * seq_len_sum if q_k_sum is None else q_k_sum
    return (
        f"execute_{tokens}_context_{requests}(sq{tokens}sk{seq_len_sum}sqsq{tokens**2}sqsk{q_k_sum})"
        "_generation_0(sq0sk0sqsq0sqsk0)"
    )


def mixed_name(
    *,
    context_tokens: int = 64,
    context_seq_len: int = 64,
    generation_requests: int = 2,
    seq_len_sum: int = 200,
) -> str:
    """A step with one prefill chunk and some decodes in vLLM's detailed spelling."""
    return (
        f"execute_{context_tokens + generation_requests}"
        f"_context_1(sq{context_tokens}sk{context_seq_len}sqsq{context_tokens**2}"
        f"sqsk{context_tokens * context_seq_len})"
        f"_generation_{generation_requests}(sq{generation_requests}sk{seq_len_sum}"
        f"sqsq{generation_requests}sqsk{seq_len_sum})"
    )


def process_rows(
    *,
    start_ns: int = START_NS,
    end_ns: int | None = START_NS + 60 * SECOND,
    threads: int = 1,
    device_kind: str = "cpu",
    pid: int = 4242,
) -> list[dict[str, Any]]:
    """What the agent of one process writes; `end_ns=None` leaves out the closing row, as a SIGKILL does."""
    rows: list[dict[str, Any]] = [
        {
            "k": "open",
            "t": start_ns,
            "epoch_ns": start_ns + EPOCH_OFFSET_NS,
            "pid": pid,
            "ppid": 1,
            "python": "3.11.7",
            "implementation": "CPython",
            "executable": "/usr/bin/python3",
            "how": "sitecustomize",
        },
        {"k": "versions", "t": start_ns + 1, "torch": "2.13.0+cpu", "vllm": None},
        {
            "k": "torch",
            "t": start_ns + 2,
            "threads": threads,
            "interop_threads": 1,
            "affinity": [0, 1],
            "device_kind": device_kind,
            "cuda_built": False,
        },
        {"k": "hook", "t": start_ns + 3, "name": "torch.record_function", "state": "ok", "reason": None},
        {
            "k": "anchor",
            "t": start_ns + 10 * SECOND,
            "epoch_ns": start_ns + 10 * SECOND + EPOCH_OFFSET_NS,
        },
    ]
    if end_ns is not None:
        rows.append({"k": "close", "t": end_ns, "how": "atexit"})
    return rows


class RecordingBuilder:
    """Collects the parts of a recording and writes them as a folder or a packed file.

    Times are nanoseconds of the recording's monotonic clock. `path` should end in `.spyreprof`.
    """

    def __init__(self, path: Path, *, start_ns: int = START_NS, end_ns: int | None = START_NS + 60 * SECOND) -> None:
        self.path = path
        self.files: dict[str, bytes] = {}
        self.manifest: dict[str, Any] = {
            "schema_version": 1,
            "run_id": "00000000-0000-4000-8000-000000000001",
            "spyreprof_version": "0.1.0",
            "command": ["python", "serve.py"],
            "created_epoch_ns": start_ns + EPOCH_OFFSET_NS,
            "started_ns": start_ns,
            "ended_ns": end_ns,
            "exit": {"code": 0} if end_ns is not None else None,
            "host": {
                "machine": "x86_64",
                "system": "Linux",
                "kernel": "6.1",
                "cpu_model": "test",
                "cpu_count": 2,
                "affinity": [0, 1],
                "memory_bytes": 2**33,
                "l3_bytes": 2**25,
                "container": None,
            },
            "environment": {},
            "collectors": [{"name": "agent", "state": "ok", "reason": None, "obtain": None}],
            "processes": [],
            "interrupted": False,
            "notes": [],
        }

    def shard(self, kind: str, rows: Iterable[Any], writer: str = WRITER) -> RecordingBuilder:
        """Append rows to a shard. A `str` or `bytes` row is taken literally, without a newline."""
        name = f"shards/{kind}-{writer}.jsonl"
        self.files[name] = self.files.get(name, b"") + b"".join(_line(row) for row in rows)
        return self

    def process(self, writer: str = WRITER, **changes: Any) -> RecordingBuilder:
        """A recorded process with clock anchors and torch facts; `changes` as for `process_rows`."""
        return self.shard("process", process_rows(**changes), writer)

    def steps(self, steps: Iterable[tuple[Any, ...]], writer: str = WRITER) -> RecordingBuilder:
        """Steps as (start, end, name), optionally followed by a dict of further keys such as {"c": 1}."""
        return self.shard(
            "steps",
            ({"t0": s[0], "t1": s[1], "n": s[2], **(s[3] if len(s) > 3 else {})} for s in steps),
            writer,
        )

    def module(self, writer: str = WRITER, **changes: Any) -> RecordingBuilder:
        """What the agent learned of a model."""
        row = {
            "k": "module",
            "t": START_NS + 5,
            "module": "Decoder",
            "calls": 3,
            "parameter_bytes": {"float32": 400_000_000},
            "embedding_bytes": 50_000_000,
        }
        return self.shard("model", [{**row, **changes}], writer)

    def window(
        self, trace: dict[str, Any] | bytes | None = None, writer: str = WRITER, **changes: Any
    ) -> RecordingBuilder:
        """A profiler window; with `trace`, its file is stored too. `changes` override the row's keys."""
        number = changes.get("n", 1)
        row: dict[str, Any] = {
            "k": "window",
            "n": number,
            "t0": START_NS + SECOND,
            "t1": START_NS + SECOND + MS,
            "t2": START_NS + 2 * SECOND,
            "t3": START_NS + 2 * SECOND + 500 * MS,
            "steps": 1,
            "operators": 1,
            "file": None,
            "state": "saved",
            "reason": None,
        }
        if trace is not None:
            row["file"] = f"traces/{writer}-{number}.pt.trace.json.gz"
            content = trace if isinstance(trace, bytes) else gzip.compress(json.dumps(trace).encode(), 1)
            self.files[row["file"]] = content
        return self.shard("window", [{**row, **changes}], writer)

    def metrics(self, polls: Iterable[tuple[int, Sequence[str]]], endpoint: int = 0) -> RecordingBuilder:
        """Polls of a /metrics page as (time, changed sample lines); the first counts as a full page."""
        return self.shard(
            "metrics",
            (
                {
                    "t": time_ns,
                    "endpoint": endpoint,
                    "url": "http://127.0.0.1:8000/metrics",
                    "lines": list(lines),
                    "full": index == 0,
                }
                for index, (time_ns, lines) in enumerate(polls)
            ),
            "launcher",
        )

    def usage(self, rows: Iterable[dict[str, Any]]) -> RecordingBuilder:
        """Usage samples as the launcher writes them."""
        return self.shard("usage", rows, "launcher")

    def bench(self, name: str = "1", **fields: Any) -> RecordingBuilder:
        """A load generator's result; keyword arguments are its JSON fields."""
        self.files[f"bench/{name}.json"] = json.dumps(fields).encode()
        return self

    def calibration(
        self,
        when: str = "before",
        *,
        threads: int = 1,
        flops_per_s: float = 20e9,
        read_bytes_per_s: float = 8e9,
        stream_bytes_per_s: float | None = None,
        dispatch_ns: float = 5_000.0,
        dtype: str = "float32",
    ) -> RecordingBuilder:
        """Peaks measured `before` or `after` the run, for one number of threads."""
        self.files[f"calibration-{when}.json"] = json.dumps(
            {
                "t": START_NS,
                "torch": "2.13.0+cpu",
                "affinity": [0, 1],
                "results": [
                    {
                        "threads": threads,
                        "gemm_flops_per_s": {dtype: flops_per_s},
                        "read_bytes_per_s": read_bytes_per_s,
                        "stream_bytes_per_s": stream_bytes_per_s,
                        "dispatch_ns_per_operator": dispatch_ns,
                        "repeats": {"gemm": 5},
                    }
                ],
                "error": None,
            }
        ).encode()
        return self

    def write(self) -> Path:
        """Write the folder; the value is its path."""
        self.files.setdefault("manifest.json", json.dumps(self.manifest).encode())
        for name, content in self.files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return self.path

    def write_packed(self, *, prefix: str | None = None) -> Path:
        """Write one zip file as `spyreprof pack` does; the value is its path."""
        self.files.setdefault("manifest.json", json.dumps(self.manifest).encode())
        prefix = f"{self.path.name}/" if prefix is None else prefix
        packed = self.path.with_name(self.path.name + ".zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.files.items():
                archive.writestr(prefix + name, content)
        return packed


def _line(row: Any) -> bytes:
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode()
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


class TraceBuilder:
    """Collects the events of a torch.profiler trace of one CPU thread.

    Times are nanoseconds after the trace's base, written as decimal microseconds.
    """

    def __init__(self, *, base_ns: int = EPOCH_OFFSET_NS + START_NS, pid: int | str = 4242) -> None:
        self.base_ns = base_ns
        self.pid = pid
        self.events: list[dict[str, Any]] = []

    def event(self, name: str, start_ns: int, end_ns: int, **changes: Any) -> TraceBuilder:
        """A complete event; `changes` override or add keys (cat, tid, args, ...)."""
        event: dict[str, Any] = {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": self.pid,
            "tid": self.pid,
            "ts": start_ns / 1000,
            "dur": (end_ns - start_ns) / 1000,
        }
        self.events.append({**event, **changes})
        return self

    def step(self, name: str, start_ns: int, end_ns: int, **changes: Any) -> TraceBuilder:
        """A step annotation of the engine."""
        return self.event(name, start_ns, end_ns, cat="user_annotation", **changes)

    def operator(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
        **changes: Any,
    ) -> TraceBuilder:
        """An operator; shapes are written only when `dims` is given, as with record_shapes."""
        args: dict[str, Any] = {"External id": len(self.events) + 1}
        if dims is not None:
            args["Input Dims"] = dims
            args["Input type"] = types if types is not None else ["float"] * len(dims)
        return self.event(name, start_ns, end_ns, args=args, **changes)

    def kernel(self, name: str, start_ns: int, end_ns: int, *, correlation: int = 1, **changes: Any) -> TraceBuilder:
        """A device kernel on device 0, stream 7."""
        args = {"correlation": correlation, "device": 0, "stream": 7}
        return self.event(name, start_ns, end_ns, **{"cat": "kernel", "pid": 0, "tid": 7, "args": args, **changes})

    def build(self) -> dict[str, Any]:
        """The trace as a JSON object."""
        return {
            "schemaVersion": 1,
            "deviceProperties": [],
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.base_ns,
            "traceEvents": self.events,
            "traceName": "test.json",
        }

    def write(self, path: Path) -> Path:
        """Write it as JSON, gzipped when the name says so."""
        content = json.dumps(self.build()).encode()
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
        return path
