"""Settings that take work off the host, or let the device work meanwhile. Each only where it is known to be the other
way, and only on platforms that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange
from spyreprof_analyzers.front_end import front_end_advice, front_end_binds

if TYPE_CHECKING:
    from spyreprof.recording.schema import EngineSettings
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.facts import Facts

_GPUS = frozenset({"cuda", "rocm", "hip", "xpu"})
_TOKENS_UP = "output tokens/s"


def on_gpu(settings: EngineSettings, device_kind: str | None) -> bool:
    """Does the engine run where graphs and asynchronous scheduling exist? Spyre's plug-ins and the CPU lack both."""
    return (settings.platform or device_kind or "") in _GPUS


def host_advice(facts: Facts, gap_share: float, rules: RuleBook) -> tuple[Advice, ...]:
    """What to change where the host holds up steps.

    Args:
        facts: settings in force.
        gap_share: share of the window between steps with work in flight.
        rules: what stands at its limit.
    """
    settings = facts.settings
    found: list[Advice] = []
    if on_gpu(settings, facts.device_kind) and settings.async_scheduling is False and gap_share > 0:
        found.append(_asynchronous(gap_share))
    found.extend(slow_settings(settings, facts.device_kind))
    if front_end_binds(facts.front_end, rules):
        found.extend(front_end_advice(settings))
    return tuple(found)


def slow_settings(settings: EngineSettings, device_kind: str | None) -> tuple[Advice, ...]:
    """Advice on settings that are known to hold up the host in every step."""
    found = [graphs()] if settings.eager is True and on_gpu(settings, device_kind) else []
    return (*found, *((_grammar(),) if settings.grammar is True else ()))


def graphs() -> Advice:
    """Leave eager mode: one launch in place of hundreds."""
    return Advice(
        id="enforce_eager",
        setting="enforce_eager",
        from_="on",
        to="off",
        from_origin="measured",
        expected=(ExpectedChange(metric="ITL", direction="down", note="launches of single kernels leave the step"),),
        pays=(
            ExpectedChange(metric="time to start", direction="up", note="compilation and capture of graphs"),
            ExpectedChange(metric="KV cache", direction="down", note="graphs take device memory"),
        ),
        preconditions=("the model runs compiled and from graphs",),
        test_arguments="--no-enforce-eager",
        refuted_if="the median decode step does not get shorter",
    )


def _asynchronous(gap_share: float) -> Advice:
    most = 1.0 / max(1.0 - gap_share, 0.05) - 1.0
    return Advice(
        id="async_scheduling",
        setting="async_scheduling",
        from_="off",
        to="on",
        from_origin="measured",
        expected=(
            ExpectedChange(
                metric=_TOKENS_UP, direction="up", high=most, origin="derived",
                note="at most: all of the time between steps hidden behind the device's work",
            ),
        ),
        pays=(
            ExpectedChange(
                metric="work for nothing", direction="up",
                note="a step is prepared before the last one's tokens are known, so ended requests may run once more",
            ),
        ),
        preconditions=("the executor, the speculative method and the sampling in use support it",),
        test_arguments="--async-scheduling",
        refuted_if="the time between steps does not fall",
    )  # fmt: skip


def _grammar() -> Advice:
    return Advice(
        id="structured_outputs_backend",
        setting="structured output backend",
        from_=None,
        to="guidance",
        from_origin="measured",
        expected=(
            ExpectedChange(
                metric=_TOKENS_UP, direction="up", note="allowed tokens are computed on the host for each request"
            ),
        ),
        pays=(ExpectedChange(metric="features of grammars", direction="down", note="backends take different ones"),),
        preconditions=(
            "another backend is in use now, and the same load is much faster without structured output",
        ),
        test_arguments="--structured-outputs-config.backend guidance",
        test_note="and once without structured output, for comparison",
        refuted_if="the time between steps is the same without structured output",
    )  # fmt: skip
