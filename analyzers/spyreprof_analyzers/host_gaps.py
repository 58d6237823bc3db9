"""Time between steps with work in flight, and whether it is known to be the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Finding
from spyreprof.units import format_share
from spyreprof_analyzers.front_end import cite_use, front_end_binds
from spyreprof_analyzers.host_advice import host_advice
from spyreprof_analyzers.processes import share_one_interpreter

if TYPE_CHECKING:
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.context import Context
    from spyreprof_analyzers.facts import Facts


def gaps_are_the_hosts(facts: Facts, rules: RuleBook) -> str | None:
    """Why time between two steps is the host's and not a device's that still works; None where nothing tells.

    On an accelerator a step's span ends when the host has launched it. A CPU has no such rest, an engine without
    asynchronous scheduling waits for the tokens before it goes on, and a host at its limit needs no more reason.
    """
    if facts.device_kind == "cpu":
        return "on a CPU nothing goes on between steps"
    if facts.settings.async_scheduling is False:
        return "the engine waits for each step's tokens before it prepares the next (asynchronous scheduling is off)"
    if front_end_binds(facts.front_end, rules):
        return "the process in front of the engine stands at the limit of one core"
    if share_one_interpreter(facts.sampled, rules):
        return (
            "threads of the engine's process fill one core together, and none of them alone: they share an interpreter"
        )
    return None


def between_steps(context: Context) -> Finding | None:
    """Time passed between steps with work in flight."""
    facts, book, rules = context.facts, context.book, context.rules
    rule = rules["SPY-HST-001"]
    share = facts.shares.scheduler_gap
    if share < rule.materiality_share:
        return None
    evidence = [
        book.add(
            "window.scheduler_gap_share", share, "ratio", "measured", n=len(facts.steps), source="engine steps",
            method="time between steps with work in flight, over the window",
        ),
    ]  # fmt: skip
    text = (
        f"{format_share(share)} of the window passed between steps with work in flight: scheduling, sampling, or "
        "whatever else the engine does there"
    )
    why = gaps_are_the_hosts(facts, rules)
    if why is not None and facts.device_kind != "cpu":
        text += f"; {why}"
    use = next((use for use in facts.processes if use.pid == facts.engine_pid), None)
    if use is not None and why is not None:
        evidence.append(cite_use(use, "host.engine_cpus_used", book))
    of_work = share / max(share + facts.shares.prefill + facts.shares.decode, 1e-9)
    enough = of_work >= rule.threshold("min_between_steps")
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=context.severity(share, rule),
        title="The host binds between steps",
        text=f"{text}.",
        phase=None,
        share=share,
        evidence=tuple(evidence),
        against=context.against()
        if why is not None
        else context.against("a device that works on behind the host's span would look the same"),
        advice=host_advice(facts, share, rules) if enough and context.verdict.primary != "load_limited" else (),
    )
