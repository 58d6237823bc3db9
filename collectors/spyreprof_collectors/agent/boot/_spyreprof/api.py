"""The recording side of `spyreprof_agent`: its steps, phases and requests become rows."""

from __future__ import annotations

import re
from time import monotonic_ns

from .step_names import MAX_COUNT, MAX_SUM, step_name
from .steps import OpenStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .install import Agent

HOOK = "spyreprof_agent"
# What a program passes wrongly is told under a name of its own: the hook itself is at work.
USE = "spyreprof_agent arguments"
PROTOCOL = 1

STEP_PHASES = frozenset(("prefill", "decode", "mixed"))
# Phases that are steps where no step is open.
_PHASES_AS_STEPS = frozenset(("prefill", "decode"))
REASONS = frozenset(("stop", "length", "abort", "error", "tool_calls"))
_is_name = re.compile("[a-z][a-z0-9_]{0,31}").fullmatch
_COUNTS = (
    ("context_requests", MAX_COUNT),
    ("context_tokens", MAX_COUNT),
    ("context_seq_len_sum", MAX_SUM),
    ("context_q_k_sum", MAX_SUM),
    ("generation_requests", MAX_COUNT),
    ("generation_tokens", MAX_COUNT),
    ("generation_seq_len_sum", MAX_SUM),
    ("executed_context_tokens", MAX_COUNT),
    ("executed_generation_requests", MAX_COUNT),
    ("executed_generation_seq_len_sum", MAX_SUM),
    ("speculative_tokens", MAX_COUNT),
)


def install(agent: Agent, module: Any) -> None:
    """Give the program's `spyreprof_agent` its recorder."""
    if getattr(module, "_PROTOCOL", None) != PROTOCOL:
        agent.process.hook(HOOK, "missing", "the program's own copy of spyreprof_agent is of another version")
        return
    module._recorder = Recorder(agent, module)
    agent.process.hook(HOOK, "ok")


def _fails_open(method: Any) -> Any:
    """Have a method of the recorder end the recording of the API, and nothing else, when it fails."""

    def guarded(self: Recorder, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:
            self.fail(error)
            return None

    return guarded


class Recorder:
    """What `spyreprof_agent` calls. No method raises.

    Attributes:
        steps: the steps of this process, whoever marks them.
    """

    def __init__(self, agent: Agent, module: Any) -> None:
        self.steps = agent.steps
        self._process = agent.process
        self._module = module
        self._phases = agent.writer.buffer("phases")
        self._requests = agent.requests
        self._wake = agent.writer.wake
        self._told: set[str] = set()
        agent.process.after_fork_in_child.append(self._told.clear)

    @_fails_open
    def begin_step(self, phase: Any, counts: tuple[Any, ...], left_open: Any) -> OpenStep | None:
        """Begin a step; None inside another one."""
        if left_open is not None:
            # Its time is not known: it ends nowhere.
            left_open.open = False
            self._tell("a step began again before it had ended: the first of the two is not recorded")
        if phase is not None and not (type(phase) is str and phase in STEP_PHASES):
            self._tell("the phase of a step is none of prefill, decode and mixed: unknown")
            phase = None
        known = [
            value if value is None or (type(value) is int and 0 <= value <= limit) else self._number(value, name, limit)
            # an older copy of spyreprof_agent passes fewer
            for value, (name, limit) in zip(counts, _COUNTS, strict=False)
        ]
        return self.steps.begin(step_name("api", phase, known), annotate=True)

    @_fails_open
    def end_step(self, step: Any) -> None:
        """End what `begin_step` gave."""
        if step is not None:
            self.steps.end(step)

    @_fails_open
    def begin_phase(self, name: Any) -> OpenStep | int | None:
        """Begin a named part; the result goes to `end_phase`."""
        if not (type(name) is str and _is_name(name)):
            self._tell("the name of a phase is no short identifier: it is not recorded")
            return None
        if name in _PHASES_AS_STEPS and self.steps.current() is None:
            return self.steps.begin(step_name("api", name), annotate=True)
        return monotonic_ns()

    @_fails_open
    def end_phase(self, name: str, opened: Any) -> None:
        """End a named part, or the step that it is."""
        if type(opened) is int:
            self._phases.append({"t0": opened, "t1": monotonic_ns(), "n": name})
            self._wake()
        elif opened is not None:
            self.steps.end(opened)

    @_fails_open
    def begin_request(self, prompt_tokens: Any, cached_tokens: Any, max_tokens: Any = None) -> dict[str, Any]:
        """A request arrived; the result goes to the other calls about it."""
        self._requests.marked = True
        prompt = self._number(prompt_tokens, "prompt_tokens")
        return self._requests.begin(
            prompt, self._number(cached_tokens, "cached_tokens"), self._number(max_tokens, "max_tokens")
        )

    @_fails_open
    def mark_request(self, row: Any, moment: Any) -> None:
        """Set the time of a moment, the first time."""
        if row is not None:
            self._requests.mark(row, moment)

    @_fails_open
    def end_request(
        self,
        row: Any,
        output_tokens: Any,
        cached_tokens: Any,
        reasoning_tokens: Any,
        reason: Any,
        preemptions: Any = None,
    ) -> None:
        """A request ended: its row is complete."""
        if row is None:
            return
        if reason is not None:
            reason = reason if type(reason) is str and reason in REASONS else "other"
        self._requests.end(
            row,
            output=self._number(output_tokens, "output_tokens"),
            cached=self._number(cached_tokens, "cached_tokens"),
            reasoning=self._number(reasoning_tokens, "reasoning_tokens"),
            reason=reason,
            preemptions=self._number(preemptions, "preemptions"),
        )

    def fail(self, error: Exception) -> None:
        """Record nothing more of the API, and say why."""
        self._module._recorder = None
        self._process.hook_failed(HOOK, error)

    def _number(self, value: Any, what: str, limit: int = MAX_COUNT) -> int | None:
        """A count; None, told once, for what is none."""
        if value is None:
            return None
        # Numbers of numpy are counts too. Others may do anything when they are turned into one: wait for a device.
        if isinstance(value, int) or type(value).__module__ == "numpy":
            try:
                number = value.__index__() if not isinstance(value, bool) else -1
            except (AttributeError, TypeError):
                number = -1
            if 0 <= number <= limit:
                return int(number)
        self._tell(f"{what} is no whole number from 0 to {limit}: unknown")
        return None

    def _tell(self, reason: str) -> None:
        """Record a wrong use, once."""
        if reason not in self._told:
            self._told.add(reason)
            self._process.hook(USE, "failed", reason)
