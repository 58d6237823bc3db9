"""Parameter bytes of the models that a step uses, found from the frames that the step runs in.

Hooks on modules would take part in Dynamo's guards, and a search through all objects of the process would keep dead
ones alive; what the caller of a step can reach holds the model in every engine's way of writing it.
"""

from __future__ import annotations

import sys
from itertools import islice
from time import monotonic_ns
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Any

    from .install import Agent
    from .steps import Steps

HOOK = "model facts"
# The first steps may compile, or load what is missing; after these the model is the one that serves.
_AFTER_STEPS = 3
_MIN_MODULE_BYTES = 1 << 20
_MAX_FRAMES = 8
_MAX_DEPTH = 4
_MAX_OBJECTS = 20_000
_MAX_ITEMS = 256
_OPTIMIZED_FRAME = 0x1  # inspect.CO_OPTIMIZED: locals live in slots, f_locals is a copy
_UNSHARED_REFERENCES = 3  # the frame, the local name, the argument of getrefcount
_FRAMES_COPY_LOCALS = sys.version_info < (3, 13)


class ModelFacts:
    """Observer of the first steps that writes one row per model, then leaves."""

    def __init__(self, agent: Agent, torch: Any, steps: Steps) -> None:
        self._agent = agent
        self._torch = torch
        self._steps = steps
        self._seen = 0

    def install(self) -> None:
        """Begin to observe, here and in forked children."""
        self._steps.observers.append(self)
        self._agent.process.after_fork_in_child.append(self._forked)

    def step_begins(self, name: str) -> None:
        """Nothing to do: the model is looked for when a step has used it."""

    def step_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """After the first steps, look for the models once."""
        self._seen += 1
        if self._seen < _AFTER_STEPS:
            return
        self._steps.observers.remove(self)
        found = 0
        for module in _outermost(self._torch, _reachable(self._torch, sys._getframe(1))):
            row = _describe(self._torch, module)
            if row is not None:
                found += 1
                self._agent.writer.add("model", {"k": "module", "t": monotonic_ns(), **row})
        if found:
            self._agent.process.hook(HOOK, "ok")
        else:
            self._agent.process.hook(HOOK, "missing", "no torch module of 1 MB or more is within reach of a step")

    def _forked(self) -> None:
        self._seen = 0
        if self not in self._steps.observers:
            self._steps.observers.append(self)


def _reachable(torch: Any, frame: FrameType | None) -> list[Any]:
    """Collect modules that frames can reach, breadth first, running no code of the program."""
    module_class = torch.nn.Module
    leaf_classes = (torch.Tensor, ModuleType, type, BuiltinFunctionType, str, bytes, int, float)
    modules: list[Any] = []
    seen: set[int] = set()
    layer: list[Any] = [value for values in _frame_values(frame) for value in values]
    for _ in range(_MAX_DEPTH):
        next_layer: list[Any] = []
        for value in layer:
            # By type and not by isinstance, which asks the object and so may run the program's code.
            kinds = type(value).__mro__
            if id(value) in seen or any(leaf in kinds for leaf in leaf_classes):
                continue
            seen.add(id(value))
            if len(seen) > _MAX_OBJECTS:
                return modules
            if module_class in kinds:
                modules.append(value)
            else:
                next_layer.extend(_children(value))
        layer = next_layer
    return modules


def _frame_values(frame: FrameType | None) -> Iterator[list[Any]]:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        if frame.f_globals.get("__name__", "").partition(".")[0] not in {__package__, "torch"}:
            values = frame.f_locals
            yield list(values.values())
            copied = frame.f_code.co_flags & _OPTIMIZED_FRAME and _FRAMES_COPY_LOCALS
            if copied and sys.getrefcount(values) <= _UNSHARED_REFERENCES:
                # The copy stays with the frame, and would keep tensors alive that the program has let go. One that
                # the program got from `locals()` is left alone.
                values.clear()
            if frame.f_globals is not values:
                yield list(frame.f_globals.values())
        frame = frame.f_back


def _children(value: Any) -> Iterable[Any]:
    # A copy of a huge cache, made only to be cut, would stop the program and take its memory.
    kind = type(value)
    if kind in {list, tuple, set, frozenset}:
        return list(islice(value, _MAX_ITEMS))
    if kind is dict:
        return list(islice(value.values(), _MAX_ITEMS))
    if kind is MethodType:
        return (value.__self__,)
    if kind is FunctionType:
        return [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return list(islice(attributes.values(), _MAX_ITEMS)) if type(attributes) is dict else ()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _outermost(torch: Any, modules: list[Any]) -> list[Any]:
    """Drop modules that lie inside others of the list."""
    inner: set[int] = set()
    for module in modules:
        if id(module) not in inner:
            inner.update(id(child) for child in module.modules() if child is not module)
    return [module for module in modules if id(module) not in inner]


def _describe(torch: Any, root: Any) -> dict[str, object] | None:
    """Add up the parameters below a module; None when they are too few to be a model.

    `parameter_bytes` holds all of them. `embedding_bytes` is the part in embedding tables, of which a step reads a
    few rows only; a table that another module uses too, as an output head does, is read whole and not among them.
    """
    embeddings: dict[int, int] = {}
    others: set[int] = set()
    sizes: dict[int, int] = {}
    by_dtype: dict[str, int] = {}
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    with torch._C.DisableTorchFunctionSubclass():
        for module in root.modules():
            is_table = isinstance(module, tables)
            for parameter in module.parameters(recurse=False):
                key = id(parameter)
                if key not in sizes:
                    sizes[key] = parameter.numel() * parameter.element_size()
                    dtype = str(parameter.dtype).removeprefix("torch.")
                    by_dtype[dtype] = by_dtype.get(dtype, 0) + sizes[key]
                if is_table:
                    embeddings[key] = sizes[key]
                else:
                    others.add(key)
    if sum(sizes.values()) < _MIN_MODULE_BYTES:
        return None
    compiled = root._modules.get("_orig_mod") if type(root).__name__ == "OptimizedModule" else None
    return {
        "module": type(root if compiled is None else compiled).__name__,
        "calls": None,
        "parameter_bytes": by_dtype,
        "embedding_bytes": sum(size for key, size in embeddings.items() if key not in others),
    }
