"""The steps of this process, whichever hook sees them: one row each, and the observers told. Needs no torch."""

from __future__ import annotations

from contextvars import ContextVar
from time import monotonic_ns
from weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from .install import Agent

    class Observer(Protocol):
        """Told of each step, in its thread. Both calls lie outside the step's time."""

        def step_begins(self, name: str) -> None: ...
        def step_ended(self, name: str, start_ns: int, end_ns: int) -> None: ...


# The facts of the threads are looked at again after so many steps.
FACTS_CHECK_STEPS = 256


class OpenStep:
    """A step that has begun. Whoever began it holds it: a step that is forgotten hides no later one."""

    __slots__ = ("__weakref__", "close_annotation", "compiles", "name", "open", "profiled", "start_ns")

    start_ns: int

    def __init__(self, name: str, compiles: int, profiled: bool) -> None:
        self.name = name
        self.compiles = compiles
        self.profiled = profiled
        self.open = True
        self.close_annotation: Callable[[], object] | None = None


class Steps:
    """Writes one row per step, and tells observers.

    A step that begins while another is open in the same context (of a thread, of an asyncio task) is part of that
    one and gives no row: an engine's own annotation inside a step that its program marks would count the time twice.

    Attributes:
        compiles: Dynamo compilations that have ended in this process.
        window_open: a profiler window of ours records.
        observers: told of each step; one that raises is taken out and recorded.
        dynamo_watches: tells whether Dynamo looks into every function called here, as it does after a graph break.
            What an observer calls, in torch and in the standard library, would then be compiled.
        is_compiling: tells whether Dynamo traces its caller; a constant in what it traces.
        annotate: opens a profiler annotation of a name and returns what closes it; None without torch.
        tell_facts: called in a step's thread, now and then; None without torch.
    """

    _until_check: int

    def __init__(self, agent: Agent) -> None:
        self.compiles = 0
        self.window_open = False
        self.observers: list[Observer] = []
        self.dynamo_watches: Callable[[], bool] = _never
        self.is_compiling: Callable[[], bool] = _never
        self.annotate: Callable[[str], Callable[[], object]] | None = None
        self.tell_facts: Callable[[], None] | None = None
        self._process = agent.process
        self._rows = agent.writer.buffer("steps")
        self._wake = agent.writer.wake
        self._start_over()
        agent.process.after_fork_in_child.append(self._start_over)

    def begin(self, name: str, annotate: bool = False) -> OpenStep | None:
        """Begin a step; the result goes to `end`.

        Args:
            name: a name of a known grammar.
            annotate: nobody else writes the name into profiler traces.

        Returns:
            None inside another step.
        """
        if self.current() is not None:
            return None
        if self.observers and not self.dynamo_watches():
            for observer in list(self.observers):
                try:
                    observer.step_begins(name)
                except Exception as error:
                    self._drop(observer, error)
        step = OpenStep(name, self.compiles, self.window_open)
        self._open.set(ref(step))
        step.start_ns = monotonic_ns()
        if annotate and step.profiled and self.annotate is not None:
            step.close_annotation = self.annotate(name)
        return step

    def end(self, step: OpenStep) -> None:
        """End a step, once."""
        if not step.open:
            return
        if step.close_annotation is not None:
            step.close_annotation()
        end_ns = monotonic_ns()
        step.open = False
        profiled = step.profiled or self.window_open
        self._rows.append((step.start_ns, end_ns, step.name, self.compiles - step.compiles, profiled))
        self._wake()
        self._until_check -= 1
        if self._until_check < 0 and self.tell_facts is not None:
            self._until_check = FACTS_CHECK_STEPS
            self.tell_facts()
        if self.observers and not self.dynamo_watches():
            for observer in list(self.observers):
                try:
                    observer.step_ended(step.name, step.start_ns, end_ns)
                except Exception as error:
                    self._drop(observer, error)

    def current(self) -> OpenStep | None:
        """The step that is open in this context."""
        found = self._open.get()
        step = found() if found is not None else None
        return step if step is not None and step.open else None

    def _start_over(self) -> None:
        """Also in a forked child: a step that was open is its parent's."""
        self._open: ContextVar[ref[OpenStep] | None] = ContextVar("spyreprof_step", default=None)
        self._until_check = 0

    def _drop(self, observer: Observer, error: Exception) -> None:
        if observer in self.observers:
            self.observers.remove(observer)
        self._process.hook_failed(type(observer).__name__, error)


def _never() -> bool:
    return False
