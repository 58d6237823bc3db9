"""Findings: each a statement with what speaks for it and against it. Without evidence there is no finding.

Each is made in the module of what it concludes; this one knows them all and puts them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof_analyzers import (
    compilation,
    decode_limits,
    efficiency,
    front_end,
    host_gaps,
    host_stacks,
    interconnect,
    interference,
    kv_cache,
    load,
    long_prompts,
    named_phases,
    output_tokens,
    padding,
    phase_findings,
    pipeline,
    prefix_cache,
    queueing,
    reasoning,
    sharding,
    slow_requests,
    slow_settings,
    small_chunks,
    stall,
    unservable,
)
from spyreprof_analyzers.arbitration import arbitrate

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyreprof.findings import Finding
    from spyreprof_analyzers.context import Context

FINDINGS: tuple[Callable[[Context], Finding | None], ...] = (
    unservable.cannot_serve,
    stall.stands_still,
    load.load_limited,
    queueing.at_cap,
    kv_cache.full,
    kv_cache.recompute,
    phase_findings.prefill,
    phase_findings.decode,
    efficiency.steps_far_from_peaks,
    decode_limits.batch_held_by_the_cache,
    interference.interrupted,
    long_prompts.behind_a_long_one,
    small_chunks.small_chunks,
    prefix_cache.caching_is_off,
    prefix_cache.finds_little,
    reasoning.reasons,
    output_tokens.outputs,
    padding.padded,
    slow_requests.dominated,
    interconnect.link,
    interconnect.late_rank,
    sharding.over_sharded,
    pipeline.stages_wait,
    compilation.compiles,
    host_gaps.between_steps,
    front_end.outside_of_the_engine,
    slow_settings.settings_that_slow,
    host_stacks.where_the_host_spends,
    named_phases.named_parts_of_the_host,
)

_ORDER = {"high": 0, "medium": 1, "low": 2, "info": 3}


def findings(context: Context) -> tuple[Finding, ...]:
    """All findings above their materiality floor, most severe and largest first."""
    found = [finding for conclude in FINDINGS if (finding := conclude(context)) is not None]
    ranked = sorted(found, key=lambda finding: (_ORDER[finding.severity], -(finding.share or 0.0)))
    return arbitrate(ranked, context.verdict.primary, context.rules)
