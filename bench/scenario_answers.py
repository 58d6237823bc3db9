"""What is right to say of each scenario of `scenarios.py`: verdict, and findings by their id."""

from __future__ import annotations

from scenario_draws import DRAW

# Where two are named, either is right: see `right_answers` for `mixed`.
RIGHT_ANSWER: dict[str, frozenset[str]] = {
    "prefill": frozenset({"prefill_bound"}),
    "decode": frozenset({"decode_bandwidth_bound"}),
    "queue": frozenset({"queue_bound"}),
    "healthy": frozenset({"load_limited"}),
    "kv-capacity": frozenset({"kv_capacity_bound"}),
    "preemption": frozenset({"kv_capacity_bound"}),
    "host": frozenset({"host_bound"}),
    "mixed": frozenset({"prefill_bound", "decode_bandwidth_bound"}),
    "shared-prefix": frozenset({"decode_bandwidth_bound"}),
    "shared-prefix-uncached": frozenset({"prefill_bound"}),
    "reasoning": frozenset({"decode_bandwidth_bound"}),
    "compile": frozenset({"compile_bound"}),
    "inefficient-kernel": frozenset({"inefficient_kernel"}),
    "interconnect": frozenset({"interconnect_bound"}),
    # Whatever binds the late rank, but not the link.
    "interconnect-late-rank": frozenset(
        {"prefill_bound", "decode_bandwidth_bound", "host_bound", "inefficient_kernel", "load_limited", "queue_bound"}
    ),
}
REQUIRED_FINDING: dict[str, frozenset[str]] = {
    "kv-capacity": frozenset({"SPY-KVC-001"}),
    "preemption": frozenset({"SPY-KVC-001", "SPY-KVC-002"}),
    "host": frozenset({"SPY-HST-001"}),
    "mixed": frozenset({"SPY-INT-001"}),
    "shared-prefix-uncached": frozenset({"SPY-PFX-001"}),
    "reasoning": frozenset({"SPY-RSN-001"}),
    "compile": frozenset({"SPY-CMP-001"}),
    "inefficient-kernel": frozenset({"SPY-KRN-001"}),
    "interconnect": frozenset({"SPY-NET-001"}),
    "interconnect-late-rank": frozenset({"SPY-NET-002"}),
}
# Findings about something that only these scenarios hold: KV cache that is short, thinking, compilation in the
# steady state, several ranks.
ONLY_IN: dict[str, frozenset[str]] = {
    "SPY-KVC-001": frozenset({"kv-capacity", "preemption"}),
    "SPY-KVC-002": frozenset({"kv-capacity", "preemption"}),
    "SPY-RSN-001": frozenset({"reasoning"}),
    "SPY-CMP-001": frozenset({"compile"}),
    "SPY-NET-001": frozenset({"interconnect"}),
    "SPY-NET-002": frozenset({"interconnect", "interconnect-late-rank"}),
}
# One request at a time: no prefill comes between its tokens.
_ONE_CLIENT = frozenset({"SPY-INT-001"})
FORBIDDEN_FINDING: dict[str, frozenset[str]] = {
    name: frozenset(finding for finding, owners in ONLY_IN.items() if name not in owners) for name in DRAW
}
# Not SPY-KRN-001: the few rows of these short prompts may reach neither peak, and saying so is right.
FORBIDDEN_FINDING["decode"] |= _ONE_CLIENT
FORBIDDEN_FINDING["reasoning"] |= _ONE_CLIENT
FORBIDDEN_FINDING["prefill"] |= {"SPY-KRN-001"}
FORBIDDEN_FINDING["shared-prefix"] |= _ONE_CLIENT | {"SPY-PFX-001"}
FORBIDDEN_FINDING["shared-prefix-uncached"] |= _ONE_CLIENT
FORBIDDEN_FINDING["interconnect-late-rank"] |= {"SPY-NET-001"}
# Shares of time that are nearer to each other than this are no order.
CLOSE_RATIO = 0.85


def right_answers(scenario: str, totals: dict[str, float]) -> frozenset[str]:
    """Verdicts that are right. Of `mixed`, the engine's own time of steps tells which of the two takes longer: a step
    that holds a chunk of a prompt is arithmetic, whatever decodes it holds beside."""
    if scenario != "mixed":
        return RIGHT_ANSWER[scenario]
    arithmetic = totals["prefill_seconds"] + totals["mixed_seconds"]
    reading = totals["decode_seconds"]
    if min(arithmetic, reading) >= CLOSE_RATIO * max(arithmetic, reading):
        return RIGHT_ANSWER[scenario]
    return frozenset({"prefill_bound" if arithmetic > reading else "decode_bandwidth_bound"})


def broken_premise(scenario: str, totals: dict[str, float]) -> str | None:
    """Why a run was not what its scenario is meant to be, by the engine's own counters: then nothing is judged."""
    if scenario == "kv-capacity" and totals["preemptions"] > 0:
        return "requests were preempted"
    if scenario == "preemption" and totals["recomputed_tokens"] < 0.3 * totals["prefill_tokens"]:
        return "hardly anything was recomputed"
    if scenario == "shared-prefix" and totals["prefix_cache_hits"] < 0.8 * totals["prefix_cache_queries"]:
        return "the prefix was not cached"
    return None
