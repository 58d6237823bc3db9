"""What can be said of imported files: no verdict, since they show neither the load nor a step without a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Diagnosis, NotJudged
from spyreprof_analyzers.verdict import undetermined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyreprof.recording.schema import ImportedStacks
    from spyreprof.trace.health import Fault
    from spyreprof_analyzers.book import EvidenceBook

_REASON = "every step was measured under a profiler, which slows the host, and traces show neither requests nor peaks"
_OBTAIN = (
    "run the engine under `spyreprof record`: most of its steps run without a profiler, beside the requests, the "
    "engine's metrics and this machine's peaks"
)
_STACKS_REASON = "call stacks show which functions a program was in, and neither its steps, its requests nor the device"
_STACKS_OBTAIN = (
    "run the engine under `spyreprof record --py-spy`, which looks at stacks beside steps, requests, metrics and peaks"
)
_UNIT_REASON = "a file of stacks does not tell what its samples weigh"
_UNIT_OBTAIN = "write stacks in a format that tells, for instance `py-spy record --format speedscope`"
_WAITS_REASON = "the frames of a profile name no Python files, by which functions that wait are known"
_WAITS_OBTAIN = "sample with a profiler that writes the file of each function, for instance py-spy"
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


def what_files_show(
    faults: Sequence[Fault], stacks: ImportedStacks | None, engine_steps: int, book: EvidenceBook
) -> Diagnosis:
    """Everything but a verdict: what is missing, and how to get it.

    Args:
        faults: of all traces.
        stacks: what is known of files of call stacks; None without any.
        engine_steps: steps in them whose names tell their work.
        book: takes what is left open.
    """
    alone = stacks is not None and stacks.alone
    reason, obtain = (_STACKS_REASON, _STACKS_OBTAIN) if alone else (_REASON, _OBTAIN)
    missing = NotJudged(topic="what binds the engine", reason=reason, obtain=obtain)
    for fault in faults:
        if fault.kind == "no_device_events":
            book.leave_open("time on the device, phases included", _DEVICE_REASON, _DEVICE_OBTAIN)
        elif "idle" in fault.forbids and fault.kind != "cpu_only":
            book.leave_open("idle time of the device", *_IDLE.get(fault.kind, _IDLE_ELSE))
    if not engine_steps and not alone:
        book.leave_open("prefill and decode", "no step of an engine is marked in the traces", _STEPS_OBTAIN)
    if stacks is not None and stacks.without_unit:
        book.leave_open("time in functions", _UNIT_REASON, _UNIT_OBTAIN)
    if stacks is not None and stacks.without_files:
        book.leave_open("waiting in functions", _WAITS_REASON, _WAITS_OBTAIN)
    return Diagnosis(
        window=None,
        time_budget=None,
        phases=(),
        latencies=(),
        verdict=undetermined(reason, (missing,), ()),
        findings=(),
        not_judged=(missing, *book.not_judged),
        evidence=book.evidence,
    )
