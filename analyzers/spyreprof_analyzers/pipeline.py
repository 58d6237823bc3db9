"""Pipeline stages that wait for each other because too few requests are in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof.units import format_share

if TYPE_CHECKING:
    from spyreprof_analyzers.context import Context


def stages_wait(context: Context) -> Finding | None:
    """Fewer requests than stages: a request is in one stage at a time, and the others idle."""
    facts, rule, book = context.facts, context.rules["SPY-PIP-001"], context.book
    stages, seen = facts.settings.pipeline_parallel, facts.admission
    if stages is None or stages < rule.threshold("min_stages") or seen is None or seen.waiting_p95 >= 1:
        return None
    running = max(seen.running_p95, 1.0)
    idle = 1.0 - running / stages
    share = facts.shares.prefill + facts.shares.decode + facts.shares.scheduler_gap
    if idle <= 0 or share * idle < rule.materiality_share:
        return None
    evidence = (
        book.add("pipeline.stages", stages, "stages", "measured", source="engine settings", window="settings",
                 method="pipeline-parallel size in force"),
        book.add("pipeline.running_p95", seen.running_p95, "requests", "measured", source="gauges",
                 method="95th percentile over time"),
    )  # fmt: skip
    to = 2 * stages
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(share * idle, rule),
        title=rule.title,
        text=f"{stages} pipeline stages serve {running:.0f} requests at a time: each stage idles for at least "
        f"{format_share(idle)} of the time, while others hold the requests.",
        phase=None,
        share=share * idle,
        evidence=evidence,
        against=context.against(*rule.false_positive_notes),
        advice=(
            Advice(
                id="client_concurrency",
                setting="client concurrency",
                from_=round(running),
                to=to,
                from_origin="measured",
                expected=(
                    ExpectedChange(
                        metric="output tokens/s", direction="up", high=to / running - 1.0,
                        note="at most in proportion to the requests; steps of more requests were not seen",
                    ),
                ),
                pays=(ExpectedChange(metric="ITL", direction="up", note="a step of more requests is no shorter"),),
                preconditions=("more requests are there to be served at the same time",),
                test_arguments="",
                test_note=f"under a load of {to} concurrent clients; for a lone client, compare "
                f"--tensor-parallel-size {stages} in one machine in place of stages",
                refuted_if="output tokens per second do not rise",
            ),
        ),
    )  # fmt: skip
