"""Step rows from step annotations, whether or not a profiler runs.

`torch.autograd.profiler.record_function` is patched on the class: Dynamo knows the class by identity and never
looks into the two methods, and TorchScript reads the source of what `__wrapped__` names.
"""

from __future__ import annotations

import os
import sys

from .step_names import PREFIXES, is_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .install import Agent
    from .steps import Steps

HOOK = "torch.record_function"
# Where an annotation object keeps its open step.
_OPEN = "_spyreprof_open"


class _Hook:
    """The patch of `record_function`, and whether it is still at work."""

    def __init__(self, agent: Agent) -> None:
        self.failed = False
        self._agent = agent

    def fail(self, error: Exception) -> None:
        """Turn the hook off and record why."""
        self.failed = True
        self._agent.process.hook_failed(HOOK, error)


class _Facts:
    """What torch was set up with when steps ran; a row whenever it has changed."""

    def __init__(self, agent: Agent, torch: Any) -> None:
        self._agent = agent
        self._torch = torch
        self._told: dict[str, object] | None = None

    def forked(self) -> None:
        """Tell it again in a forked child."""
        self._told = None

    def tell(self) -> None:
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
    """Patch `record_function`, once per class object, and give the steps what only torch can tell."""
    record_function = getattr(sys.modules.get("torch.autograd.profiler"), "record_function", None)
    if record_function is None:
        agent.process.hook(HOOK, "missing", "torch.autograd.profiler.record_function is not there")
        return None
    if getattr(record_function, "_spyreprof", False):
        return None
    steps = agent.steps
    original_enter, original_exit = record_function.__enter__, record_function.__exit__

    def annotate(name: str) -> Callable[[], object]:
        annotation = record_function(name)
        original_enter(annotation)
        return lambda: original_exit(annotation, None, None, None)

    eval_frame_callback = _eval_frame_callback(torch)
    steps.dynamo_watches = lambda: callable(eval_frame_callback())
    steps.is_compiling = getattr(torch.compiler, "is_compiling", None) or steps.is_compiling
    steps.annotate = annotate
    facts = _Facts(agent, torch)
    steps.tell_facts = facts.tell
    enter, leave = _methods(steps, _Hook(agent), record_function)
    record_function._spyreprof = True
    record_function.__enter__ = enter
    record_function.__exit__ = leave
    agent.process.after_fork_in_child.append(facts.forked)
    agent.process.hook(HOOK, "ok")
    return steps


def _methods(steps: Steps, hook: _Hook, record_function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the two methods. Locals of this function, since each global would cost a lookup per annotation."""
    is_compiling = steps.is_compiling
    original_enter = record_function.__enter__
    original_exit = record_function.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807 - it becomes that method
        if is_compiling():
            return original_enter(self)
        name = self.name
        if type(name) is str and name.startswith(PREFIXES) and is_step(name) and not hook.failed:
            try:
                step = steps.begin(name)
                if step is not None:
                    self.__dict__[_OPEN] = step
            except Exception as error:
                hook.fail(error)
        return original_enter(self)

    def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:  # noqa: N807
        if is_compiling():
            return original_exit(self, exc_type, exc_value, traceback)
        step = self.__dict__.pop(_OPEN, None)
        if step is None:
            return original_exit(self, exc_type, exc_value, traceback)
        try:
            return original_exit(self, exc_type, exc_value, traceback)
        finally:
            try:
                steps.end(step)
            except Exception as error:
                hook.fail(error)

    _look_like(__enter__, original_enter)
    _look_like(__exit__, original_exit)
    return __enter__, __exit__


def _look_like(method: Any, original: Any) -> None:
    method.__wrapped__ = original
    method.__doc__ = original.__doc__
    method.__qualname__ = original.__qualname__
    method.__module__ = original.__module__
