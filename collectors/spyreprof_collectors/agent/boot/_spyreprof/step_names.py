"""Step annotations of the engines that write them, told from every other annotation of a program.

A name enters the recording only when it matches one of these from end to end: so no foreign text can get in.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["context", "generation"]

# Every grammar below begins with one of these; looking for them is all that other annotations cost.
PREFIXES = ("execute_", "step[")

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
)
is_step = _STEP.fullmatch


def kind_of(name: str) -> Kind | None:
    """Say whether a step computes prompt tokens ("context") or only generates; None for any other name."""
    match = _STEP.fullmatch(name)
    if match is None:
        return None
    mode = match["mode"]
    if mode is not None:
        return "generation" if mode == "DECODE" else "context"
    requests = match["detailed"] or match["simple"] or match["new"]
    return "context" if int(requests) else "generation"
