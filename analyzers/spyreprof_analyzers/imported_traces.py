"""What can be said of imported traces: no verdict, since they show neither the load nor a step without a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Diagnosis, NotJudged
from spyreprof_analyzers.verdict import undetermined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyreprof.trace.health import Fault
    from spyreprof_analyzers.book import EvidenceBook

_REASON = "every step was measured under a profiler, which slows the host, and traces show neither requests nor peaks"
_OBTAIN = (
    "run the engine under `spyreprof record`: most of its steps run without a profiler, beside the requests, the "
    "engine's metrics and this machine's peaks"
)
_STEPS_OBTAIN = "profile an engine that annotates its steps (vLLM, SGLang), or mark them with `spyreprof_agent`"
_DEVICE_OBTAIN = (
    "profile again with the device's activity, for instance ProfilerActivity.CUDA, and with no other profiler attached "
    "to the device"
)
_DEVICE_REASON = "a trace was to show a device and holds no work of it"
# What forbids to judge idle time, and how to get rid of it. The sentences of faults are not passed on: a recording may
# be a stranger's, and its texts are his.
_IDLE: dict[str, tuple[str, str]] = {
    "file_cut_short": ("a trace's file is cut short", "copy or export the trace again, whole"),
    "device_ends_early": (
        "the device's timeline ends before the host's launches",
        "profile fewer steps, so that the device's buffers hold all of them",
    ),
    "graph_kernels_missing": (
        "launches of recorded graphs show no work of the device",
        "profile without recorded graphs (eager mode), or with a profiler that sees inside them",
    ),
}
_IDLE_ELSE = ("a fault of a trace forbids it", "profile again")


def what_traces_show(faults: Sequence[Fault], engine_steps: int, book: EvidenceBook) -> Diagnosis:
    """Everything but a verdict: what is missing, and how to get it.

    Args:
        faults: of all traces.
        engine_steps: steps in them whose names tell their work.
        book: takes what is left open.
    """
    missing = NotJudged(topic="what binds the engine", reason=_REASON, obtain=_OBTAIN)
    for fault in faults:
        if fault.kind == "no_device_events":
            book.leave_open("time on the device, phases included", _DEVICE_REASON, _DEVICE_OBTAIN)
        elif "idle" in fault.forbids and fault.kind != "cpu_only":
            book.leave_open("idle time of the device", *_IDLE.get(fault.kind, _IDLE_ELSE))
    if not engine_steps:
        book.leave_open("prefill and decode", "no step of an engine is marked in the traces", _STEPS_OBTAIN)
    return Diagnosis(
        window=None,
        time_budget=None,
        phases=(),
        latencies=(),
        verdict=undetermined(_REASON, (missing,), ()),
        findings=(),
        not_judged=(missing, *book.not_judged),
        evidence=book.evidence,
    )
