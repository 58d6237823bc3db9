"""Profiled engine steps: what the device trace says about one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OperatorKind = Literal["matmul", "attention", "elementwise", "copy", "communication", "other"]


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Self time of one kind of operator within one profiled step.

    Attributes:
        ns: time, each nanosecond counted once.
        count: number of operators.
        flops: floating-point operations, or None where shapes or a formula are missing.
        bytes: bytes that must be read and written once, or None likewise.
        ns_with_model: the part of `ns` whose operators have both `flops` and `bytes`.
    """

    kind: OperatorKind
    ns: int
    count: int
    flops: int | None
    bytes: int | None
    ns_with_model: int


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One engine step as the device trace saw it.

    `start_ns` and `end_ns` are on the recording's clock. For a CPU device the operators are the leaf CPU
    operators of the step's thread; for an accelerator they are its kernels and copies, and `device_busy_ns`
    is the union.

    `gap_ns` is time within the step in which no operator ran on the step's thread.

    Request and token counts are None where the step's name does not carry them (SGLang's mixed steps).
    `device_busy_ns` is None when the capture holds no device events.
    """

    window: int
    start_ns: int
    end_ns: int
    context_requests: int | None
    context_tokens: int | None
    generation_requests: int | None
    generation_tokens: int | None
    device_kind: str
    operator_count: int
    operators: tuple[OperatorTime, ...]
    gap_ns: int
    device_busy_ns: int | None
    writer: str | None = None
