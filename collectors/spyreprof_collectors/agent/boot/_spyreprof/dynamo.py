"""Staying out of Dynamo's way, and noting when it compiles. Dynamo is never imported on the program's behalf."""

from __future__ import annotations

from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .install import Agent
    from .steps import Steps

SKIP_HOOK = "torch._dynamo.trace_rules"
COMPILE_HOOK = "torch._dynamo.callback"


def install(agent: Agent, steps: Steps) -> None:
    """Wait for the two modules of Dynamo that matter here."""
    compilations = _Compilations(agent, steps)
    agent.imports.when_imported("torch._dynamo.trace_rules", lambda module: _skip_agent(agent, module))
    agent.imports.when_imported("torch._dynamo.callback", compilations.install)
    agent.process.after_fork_in_child.append(compilations.forked)


def _skip_agent(agent: Agent, trace_rules: Any) -> None:
    """Have Dynamo treat the agent's files as it treats torch's own.

    After a graph break Dynamo looks into every function called below, and would compile the hooks with it.
    """
    if not hasattr(trace_rules, "add"):
        agent.process.hook(SKIP_HOOK, "missing", "torch._dynamo.trace_rules.add is not there")
        return
    trace_rules.add(__package__)
    agent.process.hook(SKIP_HOOK, "ok")


class _Compilations:
    """One row per outermost compilation of the process."""

    def __init__(self, agent: Agent, steps: Steps) -> None:
        self._agent = agent
        self._steps = steps
        self._started_ns: int | None = None

    def install(self, callback: ModuleType) -> None:
        handler: Any = getattr(callback, "callback_handler", None)
        needed = ("register_start_callback", "register_end_callback", "clear")
        if handler is None or not all(hasattr(handler, name) for name in needed):
            self._agent.process.hook(COMPILE_HOOK, "missing", "no callback_handler with start and end callbacks")
            return
        clear = handler.clear

        def clear_and_register() -> None:
            # torch._dynamo.reset() drops the callbacks of everybody.
            try:
                clear()
            finally:
                self._register(handler)

        handler.clear = clear_and_register
        self._register(handler)
        self._agent.process.hook(COMPILE_HOOK, "ok")

    def forked(self) -> None:
        self._started_ns = None

    def _register(self, handler: Any) -> None:
        if self._started not in handler.start_callbacks:
            handler.register_start_callback(self._started)
        if self._ended not in handler.end_callbacks:
            handler.register_end_callback(self._ended)

    # Older releases call back without arguments.
    def _started(self, *_arguments: object) -> None:
        self._started_ns = monotonic_ns()

    def _ended(self, *_arguments: object) -> None:
        started_ns, self._started_ns = self._started_ns, None
        if started_ns is not None:
            self._steps.compiles += 1
            self._agent.writer.add("compile", {"t0": started_ns, "t1": monotonic_ns()})
