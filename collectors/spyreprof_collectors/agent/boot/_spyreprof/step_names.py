"""Step annotations of the engines that write them, told from every other annotation of a program.

A name enters the recording only when it matches one of these from end to end: so no foreign text can get in.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    Kind = Literal["context", "generation"]

# Every grammar below begins with one of these; looking for them is all that other annotations cost.
PREFIXES = ("execute_", "step[", "spyreprof_step[")

_N = r"\d{1,12}"
_SUMS = r"\(sq\d{1,20}sk\d{1,20}sqsq\d{1,20}sqsk\d{1,20}\)"
_STEP = re.compile(
    # vLLM, detailed trace annotation
    rf"execute_{_N}_context_(?P<detailed>{_N}){_SUMS}_generation_{_N}{_SUMS}"
    # vLLM
    rf"|execute_context_(?P<simple>{_N})\({_N}\)_generation_{_N}\({_N}\)"
    # vLLM before token counts were added
    rf"|execute_new_(?P<new>{_N})_cached_{_N}"
    # SGLang, with the sums that its roofline annotations append
    rf"|step\[(?P<mode>EXTEND|DECODE|MIXED) bs={_N}"
    rf"(?: (?:toks|[cg]|[cg]_(?:sq|sk|sqsq|sqsk))=\d{{1,20}}){{0,12}}\]"
    # ours, for steps that no engine annotates; what is not known is left out
    rf"|spyreprof_step\[by=(?P<by>api|generate)(?: ph=(?P<ph>prefill|decode|mixed))?"
    rf"(?: cr=(?P<cr>{_N}))?(?: ct=(?P<ct>{_N}))?(?: cs=\d{{1,20}})?(?: cqk=\d{{1,20}})?"
    rf"(?: gr=(?P<gr>{_N}))?(?: gt={_N})?(?: gs=\d{{1,20}})?"
    rf"(?: ect={_N})?(?: egr={_N})?(?: egs=\d{{1,20}})?(?: st={_N})?\]"
)
_COUNTS = ("cr", "ct", "cs", "cqk", "gr", "gt", "gs", "ect", "egr", "egs", "st")
MAX_COUNT = 10**12 - 1
MAX_SUM = 2**63 - 1
is_step = _STEP.fullmatch


def kind_of(name: str) -> Kind | None:
    """Say whether a step computes prompt tokens ("context") or only generates; None where the name does not tell."""
    match = _STEP.fullmatch(name)
    if match is None:
        return None
    if match["by"] is not None:
        return _own_kind(match)
    mode = match["mode"]
    if mode is not None:
        return "generation" if mode == "DECODE" else "context"
    requests = match["detailed"] or match["simple"] or match["new"]
    return "context" if int(requests) else "generation"


def step_name(by: Literal["api", "generate"], phase: str | None, counts: Iterable[int | None] = ()) -> str:
    """Spell a step of our own grammar.

    Args:
        by: what marks the step.
        phase: prefill, decode or mixed; None where unknown.
        counts: context requests, tokens, sequence lengths, query x key lengths; generation requests, tokens, sequence
            lengths; executed context tokens, generation requests and sequence lengths; speculative tokens. None where
            unknown, and so is what is left out. Requests and tokens up to `MAX_COUNT`, sums up to `MAX_SUM`.
    """
    fields = [f" {key}={count}" for key, count in zip(_COUNTS, counts, strict=False) if count is not None]
    return f"spyreprof_step[by={by}{'' if phase is None else f' ph={phase}'}{''.join(fields)}]"


def _own_kind(match: re.Match[str]) -> Kind | None:
    phase = match["ph"]
    if phase is not None:
        return "generation" if phase == "decode" else "context"
    if int(match["ct"] or match["cr"] or 0):
        return "context"
    # Without a word on prompts, a step that generates may have computed some.
    no_context = match["ct"] is not None or match["cr"] is not None
    return "generation" if no_context and int(match["gr"] or 0) else None
