"""Step rows from step annotations, whether or not a profiler runs.

`torch.autograd.profiler.record_function` is patched on the class: Dynamo knows the class by identity and never
looks into the two methods, and TorchScript reads the source of what `__wrapped__` names.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns

from .step_names import PREFIXES, is_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from .install import Agent

    class Observer(Protocol):
        """Told of each step, in its thread. Both calls lie outside the step's time."""

        def step_begins(self, name: str) -> None: ...
        def step_ended(self, name: str, start_ns: int, end_ns: int) -> None: ...


HOOK = "torch.record_function"
# Where an open step keeps its start in the annotation object.
_OPEN = "_spyreprof_open"
THREADS_CHECK_STEPS = 256


class Steps:
    """Writes one row per step, and tells observers.

    Attributes:
        compiles: Dynamo compilations that have ended in this process.
        window_open: a profiler window of ours records.
        failed: the hook raised once and is off.
        observers: told of each step; one that raises is taken out and recorded.
    """

    def __init__(self, agent: Agent, torch: Any) -> None:
        self.compiles = 0
        self.window_open = False
        self.failed = False
        self.observers: list[Observer] = []
        self._agent = agent
        self._torch = torch
        self._rows = agent.writer.buffer("steps")
        self._wake = agent.writer.wake
        self._eval_frame_callback = _eval_frame_callback(torch)
        self._until_check = 0
        self._told: dict[str, object] | None = None

    def begin(self, name: str) -> tuple[int, int, bool]:
        """Begin a step; the result goes to `end`."""
        if self.observers and not self._dynamo_watches():
            for observer in list(self.observers):
                try:
                    observer.step_begins(name)
                except Exception as error:
                    self._drop(observer, error)
        return monotonic_ns(), self.compiles, self.window_open

    def end(self, name: str, opened: tuple[int, int, bool]) -> None:
        """End a step."""
        end_ns = monotonic_ns()
        start_ns, compiles, profiled = opened
        self._rows.append((start_ns, end_ns, name, self.compiles - compiles, profiled or self.window_open))
        self._wake()
        self._until_check -= 1
        if self._until_check < 0:
            self._until_check = THREADS_CHECK_STEPS
            self._tell_threads()
        if self.observers and not self._dynamo_watches():
            for observer in list(self.observers):
                try:
                    observer.step_ended(name, start_ns, end_ns)
                except Exception as error:
                    self._drop(observer, error)

    def forked(self) -> None:
        """Start over in a forked child."""
        self._told = None
        self._until_check = 0

    def fail(self, error: Exception) -> None:
        """Turn the hook off and record why."""
        self.failed = True
        self._agent.process.hook_failed(HOOK, error)

    def _dynamo_watches(self) -> bool:
        """Tell whether Dynamo looks into every function called here, as it does after a graph break.

        What an observer calls, in torch and in the standard library, would be compiled.
        """
        return callable(self._eval_frame_callback())

    def _drop(self, observer: Observer, error: Exception) -> None:
        if observer in self.observers:
            self.observers.remove(observer)
        self._agent.process.hook_failed(type(observer).__name__, error)

    def _tell_threads(self) -> None:
        torch = self._torch
        facts: dict[str, object] = {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "affinity": sorted(os.sched_getaffinity(0)),
            "device_kind": device_kind(torch),
            "cuda_built": torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None,
        }
        if facts != self._told:
            self._told = facts
            self._agent.process.note("torch", **facts)


def _eval_frame_callback(torch: Any) -> Callable[[], object]:
    dynamo = getattr(torch._C, "_dynamo", None)
    getter: Callable[[], object] | None = getattr(getattr(dynamo, "eval_frame", None), "get_eval_frame_callback", None)
    return getter or (lambda: None)


def device_kind(torch: Any) -> str:
    """Name the accelerator that the program has brought up; "cpu" where it has none."""
    for kind in ("cuda", "xpu"):
        module = sys.modules.get(f"torch.{kind}")
        if module is not None and module.is_initialized():
            return kind
    backend = torch._C._get_privateuse1_backend_name()
    return "cpu" if backend == "privateuseone" else str(backend)


def install(agent: Agent, torch: Any) -> Steps | None:
    """Patch `record_function`, once per class object."""
    record_function = getattr(sys.modules.get("torch.autograd.profiler"), "record_function", None)
    if record_function is None:
        agent.process.hook(HOOK, "missing", "torch.autograd.profiler.record_function is not there")
        return None
    if getattr(record_function, "_spyreprof", False):
        return None
    steps = Steps(agent, torch)
    enter, leave = _methods(steps, torch, record_function)
    record_function._spyreprof = True
    record_function.__enter__ = enter
    record_function.__exit__ = leave
    agent.process.after_fork_in_child.append(steps.forked)
    agent.process.hook(HOOK, "ok")
    return steps


def _methods(steps: Steps, torch: Any, record_function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the two methods. Locals of this function, since each global would cost a lookup per annotation."""
    is_compiling = getattr(torch.compiler, "is_compiling", None) or (lambda: False)
    original_enter = record_function.__enter__
    original_exit = record_function.__exit__
    begin, end = steps.begin, steps.end

    def __enter__(self: Any) -> Any:  # noqa: N807 - it becomes that method
        if is_compiling():
            return original_enter(self)
        name = self.name
        if type(name) is str and name.startswith(PREFIXES) and is_step(name) and not steps.failed:
            try:
                self.__dict__[_OPEN] = begin(name)
            except Exception as error:
                steps.fail(error)
        return original_enter(self)

    def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:  # noqa: N807
        if is_compiling():
            return original_exit(self, exc_type, exc_value, traceback)
        opened = self.__dict__.pop(_OPEN, None)
        if opened is None:
            return original_exit(self, exc_type, exc_value, traceback)
        try:
            return original_exit(self, exc_type, exc_value, traceback)
        finally:
            try:
                end(self.name, opened)
            except Exception as error:
                steps.fail(error)

    _look_like(__enter__, original_enter)
    _look_like(__exit__, original_exit)
    return __enter__, __exit__


def _look_like(method: Any, original: Any) -> None:
    method.__wrapped__ = original
    method.__doc__ = original.__doc__
    method.__qualname__ = original.__qualname__
    method.__module__ = original.__module__
