"""The names that serving engines give to their steps, and what such a name says.

vLLM wraps each worker step in `record_function` with one of three spellings, SGLang with a fourth; a fifth is our
own, for steps that a program marks itself or that a hook of ours finds. A name counts only when it matches a spelling
completely: `execute_tool_call` of some other program is not a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

StepPhase = Literal["prefill", "decode", "mixed"]
StepSource = Literal["annotation", "api", "transformers"]


class StepWork(NamedTuple):
    """What one step had to do. Counts are None where the name does not carry them.

    `phase` is None when the name does not tell prefill from decode, or when nothing was scheduled. What was executed is
    what the device computed, padding included.
    """

    context_requests: int | None
    context_tokens: int | None
    context_seq_len_sum: int | None
    context_q_k_sum: int | None
    generation_requests: int | None
    generation_tokens: int | None
    generation_seq_len_sum: int | None
    phase: StepPhase | None
    executed_context_tokens: int | None = None
    executed_generation_requests: int | None = None
    executed_generation_seq_len_sum: int | None = None
    speculative_tokens: int | None = None


_N = r"(\d{1,12})"
# The sums of squared query x key lengths of a million-token prompt need more.
_SUM = r"(\d{1,20})"
_INT64_END = 2**63

_VLLM_DETAILED = re.compile(
    rf"execute_{_N}_context_{_N}\(sq{_N}sk{_SUM}sqsq{_SUM}sqsk{_SUM}\)"
    rf"_generation_{_N}\(sq{_N}sk{_SUM}sqsq{_SUM}sqsk{_SUM}\)"
)
_VLLM_SIMPLE = re.compile(rf"execute_context_{_N}\({_N}\)_generation_{_N}\({_N}\)")
_VLLM_OLD = re.compile(rf"execute_new_{_N}_cached_{_N}")
# SGLang gives the tokens of a prefill only, and the sums behind them only with detailed annotations:
# step[EXTEND bs=2 toks=12 c_sq=12 c_sqsq=80 c_sqsk=120 c_sk=20], step[MIXED bs=2 c=1 g=1 c_sq=5 ... g_sk=12]
_SGLANG = re.compile(
    rf"step\[(EXTEND|DECODE|MIXED) bs={_N}((?: (?:toks|[cg]|[cg]_(?:sq|sk|sqsq|sqsk))=\d{{1,20}}){{0,12}})\]"
)

_OWN = re.compile(
    r"spyreprof_step\[by=(?P<by>api|generate)(?: ph=(?P<ph>prefill|decode|mixed))?"
    r"(?: cr=(?P<cr>\d{1,12}))?(?: ct=(?P<ct>\d{1,12}))?(?: cs=(?P<cs>\d{1,20}))?(?: cqk=(?P<cqk>\d{1,20}))?"
    r"(?: gr=(?P<gr>\d{1,12}))?(?: gt=(?P<gt>\d{1,12}))?(?: gs=(?P<gs>\d{1,20}))?"
    r"(?: ect=(?P<ect>\d{1,12}))?(?: egr=(?P<egr>\d{1,12}))?(?: egs=(?P<egs>\d{1,20}))?(?: st=(?P<st>\d{1,12}))?\]"
)
_OWN_PREFIX = "spyreprof_step["


def step_source(name: str) -> StepSource:
    """Say what saw a step, by its name."""
    if not name.startswith(_OWN_PREFIX):
        return "annotation"
    return "api" if name.startswith(_OWN_PREFIX + "by=api") else "transformers"


def parse_step_name(name: str) -> StepWork | None:
    """Read a step name; None when it is not one."""
    # The prefixes are tested first because most names in a trace are operators.
    if name.startswith("execute_"):
        for pattern, read in _VLLM_SPELLINGS:
            match = pattern.fullmatch(name)
            if match:
                return read(match)
        return None
    if name.startswith("step["):
        match = _SGLANG.fullmatch(name)
        return _sglang(match) if match else None
    if name.startswith(_OWN_PREFIX):
        match = _OWN.fullmatch(name)
        return _own(match) if match else None
    return None


def _vllm_detailed(match: re.Match[str]) -> StepWork:
    _total, n_context, q, k, _qq, qk, n_generation, generation_q, generation_k, *_ = map(_count, match.groups())
    return StepWork(n_context, q, k, qk, n_generation, generation_q, generation_k, _phase(q, n_generation))


def _vllm_simple(match: re.Match[str]) -> StepWork:
    n_context, context_q, n_generation, generation_q = map(_count, match.groups())
    return StepWork(n_context, context_q, None, None, n_generation, generation_q, None, _phase(context_q, n_generation))


def _vllm_old(_match: re.Match[str]) -> StepWork:
    # "cached" mixes decodes with every prefill chunk after the first: neither count nor phase can be told.
    return StepWork(None, None, None, None, None, None, None, None)


def _sglang(match: re.Match[str]) -> StepWork:
    mode, batch = match.group(1), int(match.group(2))
    known = {key: _count(digits) for key, _, digits in (pair.partition("=") for pair in match.group(3).split())}
    context = (known.get("c"), known.get("c_sq"), known.get("c_sk"), known.get("c_sqsk"))
    generation = (known.get("g"), known.get("g_sq"), known.get("g_sk"))
    if mode == "EXTEND":
        tokens = known.get("c_sq", known.get("toks"))
        return StepWork(batch, tokens, *context[2:], 0, 0, 0, "prefill" if batch else None)
    if mode == "DECODE":
        # Without the sums it decodes one token per request: speculative decoding has modes of its own.
        tokens = known.get("g_sq", batch)
        return StepWork(0, 0, 0, 0, batch, tokens, generation[2], _phase(0, batch))
    return StepWork(*context, *generation, "mixed")


def _own(match: re.Match[str]) -> StepWork:
    cr, ct, cs, cqk, gr, gt, gs = (_optional(match[key]) for key in ("cr", "ct", "cs", "cqk", "gr", "gt", "gs"))
    phase: StepPhase | None = match["ph"]  # type: ignore[assignment]  # the pattern names no others
    # By what the words mean, a decode step computes no prompt and a prefill step continues no text.
    if phase == "decode" and not any((cr, ct, cs, cqk)):
        cr = ct = cs = cqk = 0
    if phase == "prefill" and not any((gr, gt, gs)):
        gr = gt = gs = 0
    if gt is None:
        gt = gr  # one token each: what speculates says so
    counted = _phase(ct, gr) if ct is not None and gr is not None else None
    executed = (_optional(match[key]) for key in ("ect", "egr", "egs", "st"))
    return StepWork(cr, ct, cs, cqk, gr, gt, gs, counted or phase, *executed)


def _optional(digits: str | None) -> int | None:
    return _count(digits) if digits is not None else None


def _count(digits: str) -> int | None:
    value = int(digits)
    return value if value < _INT64_END else None


def _phase(context_tokens: int | None, generation_requests: int | None) -> StepPhase | None:
    if context_tokens and generation_requests:
        return "mixed"
    if context_tokens:
        return "prefill"
    return "decode" if generation_requests else None


_VLLM_SPELLINGS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], StepWork]], ...] = (
    (_VLLM_DETAILED, _vllm_detailed),
    (_VLLM_SIMPLE, _vllm_simple),
    (_VLLM_OLD, _vllm_old),
)
