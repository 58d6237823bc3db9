"""A recording in memory: a real manifest, small tables, and what the analyzers said of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pandas as pd
from report_builders import BUDGET, EVIDENCE, FINDINGS, PHASES, VERDICT, finished_report

from spyreprof.findings import Diagnosis
from spyreprof.recording.imported_stacks import StackFileSummary
from spyreprof.recording.manifest import Collector, Exit, Host, Manifest, Process
from spyreprof.recording.rows import WindowRow
from spyreprof.recording.schema import COUNTERS, REQUESTS, STEPS, USAGE, AnalysisInputs, Column, ModelFacts
from spyreprof.recording.windows import Window
from spyreprof.trace.summary import TraceSummary

SECOND = 1_000_000_000

MANIFEST = Manifest(
    schema_version=1,
    run_id="7f3a01c2",
    spyreprof_version="0.1.0",
    command=["python", "samples/serve.py", "--scenario", "decode", "--seed", "7"],
    created_epoch_ns=1_796_040_000 * SECOND,
    started_ns=1_000 * SECOND,
    ended_ns=1_061 * SECOND,
    exit=Exit(code=0),
    host=Host(
        machine="x86_64",
        system="Linux",
        kernel="6.1.0",
        cpu_model="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        cpu_count=8,
        affinity=[0, 1],
    ),
    environment={"OMP_NUM_THREADS": "1"},
    collectors=[
        Collector(name="steps", state="ok"),
        Collector(
            name="metrics",
            state="partial",
            reason="polling stopped after 3 of 4 requests",
            obtain="record again with --metrics-url",
        ),
    ],
    processes=[
        Process(writer="4711-1", pid=4711, opened_ns=1_000 * SECOND, closed_ns=1_060 * SECOND, steps=3),
        Process(writer="4712-2", pid=4712, opened_ns=1_000 * SECOND, steps=0),
    ],
    notes=["Process 4712 ended without a closing row."],
)


def table(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[column.name for column in columns])
    return frame.astype({column.name: column.dtype for column in columns})


def decode_step(second: int, requests: int, context: int) -> dict[str, Any]:
    return {
        "start_ns": second * SECOND,
        "end_ns": second * SECOND + 20_000_000,
        "writer": "4711-1",
        "generation_requests": requests,
        "generation_tokens": requests,
        "generation_seq_len_sum": requests * context,
    }


def analysis_inputs(**changes: Any) -> AnalysisInputs:
    inputs = AnalysisInputs(
        steps=table(STEPS, [decode_step(1_001, 1, 64), decode_step(1_002, 3, 128), decode_step(1_900, 8, 900)]),
        requests=table(REQUESTS, []),
        counters=table(COUNTERS, []),
        usage=table(USAGE, []),
        recording_start_ns=1_000 * SECOND,
        recording_end_ns=1_061 * SECOND,
        finished=True,
        model=ModelFacts(parameter_bytes=403_177_472, dtype="float32"),
        device_kind="cpu",
    )
    return replace(inputs, **changes)


def diagnosis(**changes: Any) -> Diagnosis:
    report = finished_report()
    concluded = Diagnosis(
        window=report.window,
        time_budget=BUDGET,
        phases=PHASES,
        latencies=report.latencies,
        verdict=VERDICT,
        findings=FINDINGS,
        not_judged=report.not_judged,
        evidence=EVIDENCE,
    )
    return msgspec.structs.replace(concluded, **changes)


def window(second: float, *, opening_ms: int = 20, closing_ms: int = 80, writer: str = "4711-1", **row: Any) -> Window:
    """A saved window of 100 ms of recording, its opening at a second of the clock."""
    opening = int(second * SECOND)
    began = opening + opening_ms * 1_000_000
    ended = began + 100_000_000
    times = {"t0": opening, "t1": began, "t2": ended, "t3": ended + closing_ms * 1_000_000}
    return Window(writer, WindowRow(**{"state": "saved", "steps": 4, "operators": 1200, **times, **row}))


@dataclass
class FakeRecording:
    manifest: Manifest = MANIFEST
    processes: dict[str, SimpleNamespace] = field(
        default_factory=lambda: {"4711-1": SimpleNamespace(closed=True), "4712-2": SimpleNamespace(closed=False)}
    )
    versions: dict[str, str | None] = field(default_factory=lambda: {"torch": "2.13.0+cpu", "vllm": None})
    frames: tuple[tuple[str, str], ...] = ()
    windows: list[Window] = field(default_factory=list)
    trace_summaries: tuple[TraceSummary, ...] = ()
    stack_files: tuple[StackFileSummary, ...] = ()
    quality: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(notes=["2 lines could not be read."], counts={"cut_lines": 2})
    )
