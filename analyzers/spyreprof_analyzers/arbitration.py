"""Which advice may stand beside which. A finding stays whatever becomes of its advice, and says what was held back.

Advice counts in the order of the catalogue: what cannot be served, known bugs, uneven engines, compilation, memory, the
batch cap, the phases, communication, the host. The earlier speaks where two cannot both be followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from spyreprof.rules import Catalogue
from spyreprof_analyzers.context import NOTHING_AGAINST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyreprof.findings import Advice, BoundClass, Finding
    from spyreprof.rules import RuleBook

_ORDER: dict[str | None, int] = {kind: place for place, kind in enumerate(get_args(Catalogue))}
_LAST = len(_ORDER)
# More requests at once need more of the KV cache, and the activations of larger steps leave less of it.
_TAKES_MEMORY = frozenset({"max_num_seqs", "client concurrency", "max_num_batched_tokens"})
# Nothing else is worth a try before these are put right.
_FIRST = frozenset({"unservable", "bug", "balance"})


def arbitrate(findings: Sequence[Finding], primary: BoundClass, rules: RuleBook) -> tuple[Finding, ...]:
    """The same findings in their order, with the advice that may appear together.

    Args:
        findings: most severe and largest first.
        primary: the verdict.
        rules: tells of each finding's rule what its advice is about.
    """
    ranked = sorted(range(len(findings)), key=lambda place: _place(findings[place], rules))
    kept: list[tuple[Advice, Finding]] = []
    decided: dict[int, Finding] = {}
    for place in ranked:
        finding = findings[place]
        accepted, refused = [], []
        for advice in finding.advice:
            if any(advice == settled and of.id == finding.id for settled, of in kept):
                continue  # a rule that speaks of several phases advises once
            why = _refused(advice, finding, findings, kept, primary, rules)
            if why is None:
                accepted.append(advice)
                kept.append((advice, finding))
            else:
                refused.append(f"advice on {advice.setting} is held back: {why}")
        decided[place] = _with(finding, accepted, refused)
    return tuple(decided[place] for place in range(len(findings)))


def _place(finding: Finding, rules: RuleBook) -> int:
    return _ORDER.get(rules[finding.id].catalogue, _LAST)


def _with(finding: Finding, accepted: list[Advice], refused: list[str]) -> Finding:
    if len(accepted) == len(finding.advice):
        return finding
    against = tuple(said for said in finding.against if said != NOTHING_AGAINST or not refused)
    return msgspec.structs.replace(
        finding, advice=tuple(accepted), against=(*against, *(said for said in refused if said not in against))
    )


def _refused(
    advice: Advice,
    finding: Finding,
    findings: Sequence[Finding],
    kept: list[tuple[Advice, Finding]],
    primary: BoundClass,
    rules: RuleBook,
) -> str | None:
    """Why an advice may not appear; None where it may."""
    place = _place(finding, rules)
    for other in findings:
        kind = rules[other.id].catalogue
        if other is finding or other.severity == "info":
            continue
        if kind in _FIRST and _ORDER[kind] < place and other.severity == "high":
            return f"{other.id} comes first"
        if kind == "memory" and _takes_memory(advice):
            return f"{other.id} asks for memory, and this needs more of it"
    if primary == "compile_bound" and place > _ORDER["compile"]:
        return "compilation took most of the window, so that little else was measured"
    for settled, of in kept:
        if _without_effect(settled, advice):
            return f"{of.id} sets {settled.setting} to {settled.to}, beside which it has no effect"
        if settled.setting != advice.setting:
            continue
        if _direction(settled) == _direction(advice) is not None or settled.to == advice.to:
            return f"{of.id} changes it in the same direction"
        return f"{of.id} changes it otherwise"
    return None


def _without_effect(one: Advice, other: Advice) -> bool:
    """Is it a limit on one prompt that the budget of a whole step does not exceed?"""
    values = {advice.setting: advice.to for advice in (one, other)}
    limit, budget = values.get("long_prefill_token_threshold"), values.get("max_num_batched_tokens")
    return isinstance(limit, (int, float)) and isinstance(budget, (int, float)) and budget <= limit


def _takes_memory(advice: Advice) -> bool:
    return advice.setting in _TAKES_MEMORY and _direction(advice) != -1


def _direction(advice: Advice) -> int | None:
    """1 up, -1 down; None where the values are no numbers."""
    if not isinstance(advice.from_, (int, float)) or not isinstance(advice.to, (int, float)):
        return None
    return 1 if advice.to > advice.from_ else -1
