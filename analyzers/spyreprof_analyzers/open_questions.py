"""What was not judged for want of an input, and what would supply it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof_analyzers.verdict import steady_state_missing

if TYPE_CHECKING:
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts


def open_questions(inputs: AnalysisInputs, facts: Facts, book: EvidenceBook) -> None:
    """Leave open what traces, peaks, gauges or a request log would have answered."""
    unsteady = steady_state_missing(facts.drift)
    if unsteady is not None:
        book.leave_open(unsteady.topic, unsteady.reason, unsteady.obtain)
    ran = {"prefill": facts.shares.prefill > 0, "decode": facts.shares.decode > 0}
    for side, bound in facts.bounds.items():
        unseen = bound.use is None and bound.peak_use == () and not bound.evidence
        if inputs.profiled_steps and ran[side] and unseen:
            book.leave_open(
                f"what binds {side}",
                bound.reason,
                "record longer, so that a profiler window falls on usual steps of this phase",
            )
    if not inputs.profiled_steps:
        book.leave_open(
            "where time inside a step goes",
            "the recording holds no profiler window",
            "record steps that run torch, without `--profile-window off`, long enough for 20 steps before the window",
        )
    for resource, reason in facts.peaks.refused.items():
        book.leave_open(f"use of the {resource.replace('_', ' ')} peak", reason, "record again on a quiet machine")
    if not inputs.peaks:
        book.leave_open(
            "use of peaks",
            "no peak of this machine was measured",
            "record steps that run torch, without `--no-calibrate`",
        )
    if facts.admission is None:
        book.leave_open(
            "queueing and KV capacity",
            "vLLM's gauges of running and waiting requests were not seen, or not while steps ran",
            "record with `--metrics-url http://HOST:PORT/metrics` where the engine's port is not found",
        )
    if facts.log is None:
        book.leave_open(
            "latency of single requests",
            "no request log was found",
            "let the load generator write its result JSON (vllm bench serve --save-result --save-detailed)",
        )
