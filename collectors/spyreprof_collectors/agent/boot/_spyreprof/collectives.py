"""Rows of `torch.distributed`'s collectives: how long the caller was blocked in each, and how much it moved.

The public functions are covered in `torch.distributed.distributed_c10d` and, under the names that lie there already,
in `torch.distributed`. A call that another covered function makes is part of it and has no row of its own.
"""

from __future__ import annotations

import inspect
import sys
from time import monotonic_ns
from weakref import ref
from zlib import crc32

from .covering import like
from .threads import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .install import Agent

HOOK = "torch.distributed"
KIND = "collectives"
# Calls with `async_op=True` whose end is awaited at a time; the rows of more have no times.
MAX_AWAITED = 4096

# The argument that holds the larger side of the data: what is sent to all, or what comes from all.
_DATA = {
    "all_reduce": "tensor",
    "all_reduce_coalesced": "tensors",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor_list",
    "all_gather_single": "output_tensor",
    "all_gather_into_tensor": "output_tensor",
    "_all_gather_base": "output_tensor",
    "all_gather_coalesced": "output_tensor_lists",
    "gather": "tensor",
    "scatter": "tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
    "_reduce_scatter_base": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "barrier": "",
    "monitored_barrier": "",
    "send": "tensor",
    "recv": "tensor",
    "isend": "tensor",
    "irecv": "tensor",
}
# Functions whose data argument is one rank's part of the whole.
_PART_OF_ALL = frozenset(("gather", "scatter"))
# Calls between two ranks: the argument that names the other one, as a rank of the world and as one of the group.
_PEER = {
    "send": ("dst", "group_dst"),
    "isend": ("dst", "group_dst"),
    "recv": ("src", "group_src"),
    "irecv": ("src", "group_src"),
}


class _Group:
    """One process group as this process knows it.

    `number` is the same in every process of the group. `calls` counts the calls of the whole group, `peer_calls`
    those with each other rank and direction.
    """

    __slots__ = ("alive", "calls", "number", "peer_calls", "rank", "size")

    def __init__(self, alive: Any, number: int, size: int, rank: int) -> None:
        self.alive = alive
        self.number = number
        self.size = size
        self.rank = rank
        self.calls = 0
        self.peer_calls: dict[tuple[bool, int], int] = {}


class _Function:
    """Where a covered function takes what a row is made of."""

    __slots__ = ("async_at", "data", "data_at", "group_at", "name", "original", "peer_at")

    def __init__(self, name: str, original: Callable[..., Any]) -> None:
        places = {parameter: at for at, parameter in enumerate(inspect.signature(original).parameters)}
        self.name = name
        self.original = original
        self.data = _DATA[name]
        self.data_at = places.get(self.data, -1)
        self.group_at = places.get("group", -1)
        self.async_at = places.get("async_op", -1)
        self.peer_at = places.get(_PEER[name][0], -1) if name in _PEER else -1


class Collectives:
    """Covers the functions of one `distributed_c10d` module and writes a row per call.

    Attributes:
        failed: the hook raised once and is off.
    """

    def __init__(self, agent: Agent, torch: Any, module: Any) -> None:
        self.failed = False
        self._agent = agent
        self._torch = torch
        self._module = module
        self._rows = agent.writer.buffer(KIND)
        self._wake = agent.writer.wake
        self._groups: dict[int, _Group] = {}
        self._counts: dict[int, _Group] = {}
        self._inside: set[int] = set()
        self._awaited: dict[int, tuple[Any, list[Any]]] = {}
        self._coalescing_told = False

    def install(self) -> None:
        """Cover what the module has; say so in a hook row."""
        module, process = self._module, self._agent.process
        if getattr(module, "_spyreprof", False):
            return
        covered = {name: getattr(module, name) for name in _DATA if callable(getattr(module, name, None))}
        if "all_reduce" not in covered or not hasattr(module, "GroupMember"):
            process.hook(HOOK, "missing", "torch.distributed.distributed_c10d has not the functions that were expected")
            return
        for name, original in covered.items():
            self._replace(name, original, _covering(self, _Function(name, original), self._torch))
        begin = getattr(module, "init_process_group", None)
        if callable(begin):
            self._replace("init_process_group", begin, _after(begin, self._tell_rank))
        work = getattr(module, "Work", None)
        if work is not None and hasattr(work, "wait"):
            work.wait = _waiting(self, work.wait, self._torch)
        module._spyreprof = True
        process.at_end.append(self._close)
        process.after_fork_in_child.append(self._forked)
        process.hook(HOOK, "ok")

    def _replace(self, name: str, original: Any, covering: Any) -> None:
        setattr(self._module, name, covering)
        # where the module was imported before us, its names lie elsewhere already
        package = sys.modules.get("torch.distributed")
        if getattr(package, name, None) is original:
            setattr(package, name, covering)
        remaps = getattr(
            sys.modules.get("torch.distributed._functional_collectives"), "traceable_collective_remaps", None
        )
        if isinstance(remaps, dict) and original in remaps:
            remaps[covering] = remaps[original]

    def call(self, function: _Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call of the program's, and write its row when it has returned."""
        thread = get_ident()
        if self.failed or thread in self._inside:
            return function.original(*arguments, **keywords)
        self._inside.add(thread)
        start_ns = monotonic_ns()
        try:
            result = function.original(*arguments, **keywords)
            end_ns = monotonic_ns()
        finally:
            self._inside.discard(thread)
        try:
            self._note(function, arguments, keywords, result, start_ns, end_ns)
        except Exception as error:
            self._fail(error)
        return result

    def awaited(self, work: Any) -> tuple[Any, list[Any]] | None:
        """Find the call with `async_op=True` that gave this work, as long as nobody has waited for it."""
        found = self._awaited.get(id(work))
        return found if found is not None and found[0]() is work else None

    def waited(self, work: Any, found: tuple[Any, list[Any]], start_ns: int, end_ns: int) -> None:
        """The program has waited for that call; the time of this is its row's blocking time."""
        try:
            if self._awaited.pop(id(work), None) is found:
                found[1][0], found[1][1] = start_ns, end_ns
                self._append(found[1])
        except Exception as error:
            self._fail(error)

    def _note(
        self,
        function: _Function,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        result: Any,
        start_ns: int,
        end_ns: int,
    ) -> None:
        handle = _argument(arguments, keywords, function.group_at, "group")
        handle = self._module.GroupMember.WORLD if handle is None else handle
        group = self._group(handle)
        if group is None or group.rank < 0:
            return
        if handle in self._module._world.pg_coalesce_state:
            self._tell_coalescing()
            return
        seq, peer = self._sequence(function, group, handle, arguments, keywords)
        moved = _bytes(_argument(arguments, keywords, function.data_at, function.data)) if function.data else 0
        if function.name in _PART_OF_ALL and moved is not None:
            moved *= group.size
        peers = function.name in _PEER
        pending = function.name in ("isend", "irecv") or bool(
            _argument(arguments, keywords, function.async_at, "async_op")
        )
        row = [
            None if pending else start_ns, None if pending else end_ns, function.name, moved, group.number,
            2 if peers else group.size, group.rank, seq, not pending, start_ns if pending else None, peer, peers,
        ]  # fmt: skip
        if not pending or result is None or len(self._awaited) >= MAX_AWAITED:
            self._append(row)
            return
        key = id(result)

        def gone(_: Any) -> None:
            # nobody waited: the row says so by having no times
            if self._awaited.get(key, (None, None))[1] is row:
                self._awaited.pop(key, None)
                self._append(row)

        self._awaited[key] = (ref(result, gone), row)

    def _sequence(
        self, function: _Function, group: _Group, handle: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[int, int | None]:
        """Number of this call among those that other ranks make with it, and the other rank if there is but one."""
        if function.name not in _PEER:
            group.calls += 1
            return group.calls, None
        by_world, by_group = _PEER[function.name]
        peer = keywords.get(by_group)
        if peer is None:
            peer = _argument(arguments, keywords, function.peer_at, by_world)
            peer = None if peer is None else self._module.get_group_rank(handle, peer)
        if peer is None:  # whoever sends first
            return 0, None
        sends = by_world == "dst"
        seq = group.peer_calls.get((sends, peer), 0) + 1
        group.peer_calls[sends, peer] = seq
        return seq, peer

    def _group(self, handle: Any) -> _Group | None:
        known = self._groups.get(id(handle))
        if known is not None and known.alive() is handle:
            return known
        if not isinstance(handle, self._module.ProcessGroup):
            return None
        module = self._module
        rank = int(module.get_rank(handle))
        name = module._get_process_group_name(handle)
        ranks = list(module.get_process_group_ranks(handle)) if rank >= 0 else []
        number = crc32(f"{name}:{ranks}".encode()) & 0x7FFFFFFF
        made = _Group(ref(handle), number, len(ranks), rank)
        before = self._counts.get(number)
        if before is not None:  # the same group, initialised anew
            made.calls, made.peer_calls = before.calls, before.peer_calls
        self._groups[id(handle)] = self._counts[number] = made
        return made

    def _append(self, row: list[Any]) -> None:
        self._rows.append(row)
        self._wake()

    def _tell_rank(self) -> None:
        module, process = self._module, self._agent.process
        try:
            rank, world = int(module.get_rank()), int(module.get_world_size())
            backend = str(module.get_backend())
        except Exception as error:
            process.hook_failed(f"{HOOK} rank", error)
            return
        process.note("dist", rank=rank, world=world, backend=backend)

    def _tell_coalescing(self) -> None:
        if not self._coalescing_told:
            self._coalescing_told = True
            self._agent.process.hook(f"{HOOK} coalescing", "missing", "calls made at one time have no rows")

    def _close(self) -> None:
        """Write the rows of calls that nobody waited for."""
        awaited, self._awaited = self._awaited, {}
        for _alive, row in awaited.values():
            self._append(row)

    def _forked(self) -> None:
        self._groups.clear()
        self._counts.clear()
        self._inside.clear()
        self._awaited.clear()

    def _fail(self, error: Exception) -> None:
        self.failed = True
        self._agent.process.hook_failed(HOOK, error)


def _argument(arguments: tuple[Any, ...], keywords: dict[str, Any], at: int, name: str) -> Any:
    if 0 <= at < len(arguments):
        return arguments[at]
    return keywords.get(name)


def _bytes(data: Any) -> int | None:
    """Bytes of a tensor or of nested lists of tensors; None where one does not say."""
    if isinstance(data, (list, tuple)):
        total = 0
        for item in data:
            size = _bytes(item)
            if size is None:
                return None
            total += size
        return total
    size = getattr(data, "nbytes", None)
    return size if isinstance(size, int) else None


def _covering(collectives: Collectives, function: _Function, torch: Any) -> Callable[..., Any]:
    is_compiling = getattr(torch.compiler, "is_compiling", None) or (lambda: False)
    original, call = function.original, collectives.call

    def covering(*arguments: Any, **keywords: Any) -> Any:
        if is_compiling():
            return original(*arguments, **keywords)
        return call(function, arguments, keywords)

    return like(covering, original)


def _waiting(collectives: Collectives, original: Any, torch: Any) -> Callable[..., Any]:
    is_compiling = getattr(torch.compiler, "is_compiling", None) or (lambda: False)

    # By a calling function of this name and with the work as its first argument, pybind11 tells a call of the base
    # class's method from one that is to go to a class of the program: it would call that one for ever.
    def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
        found = None if is_compiling() else collectives.awaited(self)
        if found is None:
            return original(self, *arguments, **keywords)
        start_ns = monotonic_ns()
        result = original(self, *arguments, **keywords)
        collectives.waited(self, found, start_ns, monotonic_ns())
        return result

    wait.__doc__ = original.__doc__
    wait.__qualname__ = "Work.wait"
    return wait


def _after(original: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    def covering(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        tell()
        return result

    return like(covering, original)


def install(agent: Agent, torch: Any) -> None:
    """Cover the collectives once the program has imported them, as `import torch` does."""
    agent.imports.when_imported(
        "torch.distributed.distributed_c10d", lambda module: Collectives(agent, torch, module).install()
    )
