"""Where a change of time went: phase by phase and cause by cause, in whole nanoseconds that add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from spyreprof.findings import Phase, PhaseReport
from spyreprof.report.diff.model import Attribution, PartChange, PhaseChange
from spyreprof.report.model import Report
from spyreprof.units import NS_PER_S

UNEXPLAINED = "unexplained"
_NOT_SPLIT = "not_split"


def attribute(a: Report, b: Report, noise: float | None) -> tuple[Attribution | None, str | None]:
    """Cut the change of time into parts.

    For each output token where both sides count them, so that the whole is what throughput is the inverse of; else for
    each second of the window.

    Args:
        a, b: the two sides.
        noise: smallest change of throughput that can be told; None where that is not known.

    Returns:
        The attribution, or None and why there is none.
    """
    parts_a, parts_b = _parts(a), _parts(b)
    if parts_a is None or parts_b is None:
        lacking = "A" if parts_a is None else "B"
        return None, f"{lacking} has no time budget that adds up"
    tokens_a, tokens_b = _tokens(a), _tokens(b)
    basis: Literal["output_token", "window_second"] = "window_second"
    if tokens_a and tokens_b:
        basis = "output_token"
        whole = (sum(parts_a.values()) // tokens_a, sum(parts_b.values()) // tokens_b)
    else:
        whole = (NS_PER_S, NS_PER_S)
    parts_a, parts_b = _comparable(parts_a, parts_b)
    names = dict.fromkeys((*parts_a, *parts_b))
    ours = apportion([parts_a.get(name, 0) for name in names], whole[0])
    theirs = apportion([parts_b.get(name, 0) for name in names], whole[1])
    changes = [
        PartChange(id=name, a_ns=a_ns, b_ns=b_ns, change_ns=b_ns - a_ns)
        for name, a_ns, b_ns in zip(names, ours, theirs, strict=True)
        if a_ns or b_ns
    ]
    phases = _phases(a, b, sum(parts_a.values()), sum(parts_b.values()), whole)
    change_ns = whole[1] - whole[0]
    return Attribution(
        basis=basis,
        a_ns=whole[0],
        b_ns=whole[1],
        change_ns=change_ns,
        parts=tuple(sorted(changes, key=lambda part: (-abs(part.change_ns), part.id))),
        phases=phases,
        within_noise=basis == "output_token" and (noise is None or abs(change_ns) <= noise * whole[0]),
    ), None


def apportion(parts: list[int], whole: int) -> list[int]:
    """Whole numbers in the ratio of the parts that add up to `whole`; those that rounding took most from get its rest.

    Args:
        parts: none negative, and not all 0.
    """
    total = sum(parts)
    cut = [part * whole // total for part in parts]
    lost = [part * whole % total for part in parts]
    for index in sorted(range(len(parts)), key=lambda i: (-lost[i], i))[: whole - sum(cut)]:
        cut[index] += 1
    return cut


def _parts(report: Report) -> dict[str, int] | None:
    """The budget by the names of its parts; None where there is none, or a damaged one."""
    budget = report.time_budget
    if budget is None:
        return None
    parts: dict[str, int] = {}
    for name, ns in (*((part.id, part.ns) for part in budget.parts), (UNEXPLAINED, budget.unexplained_ns)):
        parts[name] = parts.get(name, 0) + ns
    adds_up = sum(parts.values()) == budget.window_ns > 0 and min(parts.values()) >= 0
    return parts if adds_up else None


def _tokens(report: Report) -> int:
    """Tokens that the steps of the window generated; 0 where that is not known of all."""
    counts = [phase.generation_tokens for phase in report.phases]
    return 0 if None in counts else max(0, sum(count or 0 for count in counts))


def _comparable(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Both cut alike: a phase that one side could not cut by resource is whole on the other, too."""
    whole = {name.partition(".")[0] for name in (*a, *b) if name.endswith(f".{_NOT_SPLIT}")}

    def merged(parts: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, ns in parts.items():
            phase = name.partition(".")[0]
            key = phase if phase in whole else name
            found[key] = found.get(key, 0) + ns
        return found

    return merged(a), merged(b)


def _phases(a: Report, b: Report, total_a: int, total_b: int, whole: tuple[int, int]) -> tuple[PhaseChange, ...]:
    by_name = [{phase.phase: phase for phase in report.phases} for report in (a, b)]
    return tuple(
        _phase(name, by_name[0].get(name), by_name[1].get(name), (total_a, total_b), whole)
        for name in dict.fromkeys((*by_name[0], *by_name[1]))
    )


def _phase(
    name: Phase, a: PhaseReport | None, b: PhaseReport | None, totals: tuple[int, int], whole: tuple[int, int]
) -> PhaseChange:
    sides = ((a, totals[0], whole[0]), (b, totals[1], whole[1]))
    times = [phase.time_ns * ns // total if phase is not None else 0 for phase, total, ns in sides]
    change_ns = times[1] - times[0]
    by_steps_ns = change_ns
    if a is not None and b is not None and a.steps > 0 and b.steps > 0:
        # steps for the same work, and the time of one: the middle of both ways to cut their product's change
        rates = [a.steps * whole[0] / totals[0], b.steps * whole[1] / totals[1]]
        lengths = [a.time_ns / a.steps, b.time_ns / b.steps]
        by_steps_ns = round((rates[1] - rates[0]) * (lengths[0] + lengths[1]) / 2)
    return PhaseChange(
        phase=name,
        a_ns=times[0],
        b_ns=times[1],
        change_ns=change_ns,
        by_steps_ns=by_steps_ns,
        by_step_time_ns=change_ns - by_steps_ns,
    )
