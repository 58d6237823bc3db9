"""Collective communication in a trace: which operation, how many bytes, among how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spyreprof.trace.nesting import NO_PARENT, nest_rows
from spyreprof.trace.roles import ON_HOST, Role, Roles
from spyreprof.trace.table import MISSING, Codes, EventTable, Flags, Integers

# Names of operations, by parts of names without "_" and in lower case; the first that fits is taken.
_OPERATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("wait", ("functional::wait", "wait")),
    ("send_recv", ("sendrecv",)),
    ("reduce_scatter", ("reducescatter",)),
    ("all_reduce", ("allreduce", "crossdevicereduce")),
    ("all_gather", ("allgather",)),
    ("all_to_all", ("alltoall",)),
    ("broadcast", ("broadcast", "bcast")),
    ("barrier", ("barrier",)),
    ("scatter", ("scatter",)),
    ("gather", ("gather",)),
    ("reduce", ("reduce",)),
    ("send", ("send",)),
    ("recv", ("recv", "receive")),
)
OPERATIONS: tuple[str, ...] = (*(name for name, _ in _OPERATIONS), "other")

# How names of a library's calls on the host begin.
_HOST_PREFIXES: tuple[tuple[str, str], ...] = (
    ("nccl:", "nccl"),
    ("rccl:", "rccl"),
    ("gloo:", "gloo"),
    ("xccl:", "xccl"),
    ("hccl:", "hccl"),
    ("mpi:", "mpi"),
    ("spyreccl:", "spyre-comms"),
    ("aiuCommsColl", "spyre-comms"),
    ("c10d::", ""),
    ("_c10d_functional::", ""),
    ("record_param_comms", ""),
)
# And parts of names of kernels, in lower case.
_KERNEL_PARTS: tuple[tuple[str, str], ...] = (
    ("rccl", "rccl"),
    ("nccl", "nccl"),
    ("hccl", "hccl"),
    ("hcom_", "hccl"),
    ("oneccl", "xccl"),
    ("xccl", "xccl"),
    ("senrdma", "spyre-comms"),
)
BACKENDS = ("nccl", "rccl", "gloo", "xccl", "hccl", "mpi", "spyre-comms", "")

# Bytes of an element, by the names that PyTorch gives to its types here.
ELEMENT_BYTES: dict[str, int] = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Float8_e4m3fn": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2": 1,
    "Float8_e5m2fnuz": 1,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}
_MAX_ELEMENTS = 2**55

# Messages by size, each up to its number of bytes; the last has no end. Small ones cost their latency, large ones their
# bandwidth. The limits are guesses: where one turns into the other depends on the link.
SIZE_CLASS_ENDS_BYTES = (32 * 2**10, 2**20, 32 * 2**20)


@dataclass(frozen=True)
class Collectives:
    """The collectives of a trace, in the order of the table; arrays have shape (m,).

    On the host, a call that stands inside another one, as nccl:all_reduce in c10d::allreduce_, is the same collective:
    the outermost stands here, with what the inner ones say.

    Attributes:
        row: of the event.
        operation: index into `OPERATIONS`.
        backend: index into `BACKENDS`.
        on_device: whether it is a kernel, else a call on the host.
        bytes: of the message: elements times their size, of the larger of input and output. `MISSING` where unknown.
        group_size: number of ranks; `MISSING` where unknown.
        process_group: code of the group's name among the table's `text_values`.
    """

    row: Integers
    operation: Codes
    backend: Codes
    on_device: Flags
    bytes: Integers
    group_size: Integers
    process_group: Integers

    def size_class(self) -> Integers:
        """Index into `SIZE_CLASS_ENDS_BYTES`, its length for larger ones, `MISSING` where unknown; shape (m,)."""
        found = np.searchsorted(np.asarray(SIZE_CLASS_ENDS_BYTES), self.bytes, "left")
        return np.where(self.bytes == MISSING, MISSING, found)


@lru_cache(maxsize=65536)
def operation_of(text: str) -> str:
    """The operation that a name of a collective, a call or a kernel speaks of; "other" where it speaks of none."""
    plain = text.lower().replace("_", "")
    return next((name for name, parts in _OPERATIONS if any(part in plain for part in parts)), "other")


def collectives(table: EventTable, found: Roles) -> Collectives:
    """Find the collectives on the device and on the host. Waits for one are listed as such."""
    on_device = np.flatnonzero(found.has(Role.COMMUNICATION_KERNEL))
    calls = np.flatnonzero(_is_call(table, found))
    outer, inner_of = _outermost(table, calls)
    rows = np.concatenate((on_device, outer))
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    device = np.isin(rows, on_device)
    taken = _Inherited(calls, inner_of, outer)
    everything = np.concatenate((on_device, calls))
    operation = np.full(len(table), MISSING, np.int64)
    operation[everything] = _operations(table, everything)
    backend = np.full(len(table), MISSING, np.int64)
    backend[calls] = _of_names(table, calls, _call_backend)
    rocm = found.dialect.name == "rocm"
    backend[on_device] = _of_names(table, on_device, lambda name: _kernel_backend(name, rocm=rocm))
    return Collectives(
        row=rows,
        operation=_or_last(taken.column(operation, rows), OPERATIONS),
        backend=_or_last(taken.column(backend, rows), BACKENDS),
        on_device=device,
        bytes=_bytes(table, taken, rows),
        group_size=taken.column(table.arg("group_size"), rows),
        process_group=taken.column(table.arg("process_group"), rows),
    )


def _or_last(codes: Integers, values: tuple[str, ...]) -> Codes:
    return np.where(codes == MISSING, len(values) - 1, codes).astype(np.int32)


def _of_names(table: EventTable, rows: Integers, code_of: Callable[[str], int]) -> Integers:
    codes, place = np.unique(table.name_code[rows], return_inverse=True)
    names = ["" if code == MISSING else table.name_values[code] for code in codes.tolist()]
    of_name = np.asarray([code_of(name) for name in names], np.int64)
    found: Integers = of_name[place.reshape(-1)]
    return found


def _operations(table: EventTable, rows: Integers) -> Integers:
    """The operation of each row by its argument, else by its name; `MISSING` where neither speaks of one."""
    text = table.arg("collective")[rows]
    codes, place = np.unique(text, return_inverse=True)
    of_text = np.asarray([_operation_code(table.text(code) or "") for code in codes.tolist()], np.int64)
    by_text = of_text[place.reshape(-1)]
    return np.where(by_text == MISSING, _of_names(table, rows, _operation_code), by_text)


def _operation_code(text: str) -> int:
    found = operation_of(text)
    return MISSING if found == "other" else OPERATIONS.index(found)


def _is_call(table: EventTable, found: Roles) -> Flags:
    prefixes = tuple(prefix for prefix, _ in _HOST_PREFIXES)
    named = np.asarray([*(name.startswith(prefixes) for name in table.name_values), False], np.bool_)
    chosen: Flags = named[table.name_code] & found.has(*ON_HOST) & (table.dur_ns != MISSING)
    return chosen


def _outermost(table: EventTable, calls: Integers) -> tuple[Integers, Integers]:
    """The calls that stand in no other, and for each call which of these it stands in."""
    if not len(calls):
        return calls, calls
    outside = nest_rows(table, calls).parent == NO_PARENT
    return calls[outside], np.cumsum(outside) - 1


class _Inherited:
    """Columns of collectives: their own values, else those of the first call inside that has one."""

    def __init__(self, calls: Integers, inner_of: Integers, outer: Integers) -> None:
        self._calls, self._inner_of, self._outer = calls, inner_of, outer

    def column(self, own: Integers, rows: Integers) -> Integers:
        values = own.copy()
        said = np.flatnonzero(values[self._calls] != MISSING)
        groups, first = np.unique(self._inner_of[said], return_index=True)
        values[self._outer[groups]] = values[self._calls[said[first]]]
        taken: Integers = values[rows]
        return taken


def _bytes(table: EventTable, taken: _Inherited, rows: Integers) -> Integers:
    own = np.maximum(table.arg("in_elements"), table.arg("out_elements"))
    elements = taken.column(own, rows)
    sizes = [ELEMENT_BYTES.get(text, MISSING) for text in table.text_values]
    size = np.asarray([*sizes, MISSING], np.int64)[taken.column(table.arg("element_type"), rows)]
    known = (elements >= 0) & (elements < _MAX_ELEMENTS) & (size != MISSING)
    found: Integers = np.where(known, elements * np.where(known, size, 0), MISSING)
    return found


def _call_backend(name: str) -> int:
    found = next((backend for prefix, backend in _HOST_PREFIXES if name.startswith(prefix)), "")
    return BACKENDS.index(found) if found else MISSING


def _kernel_backend(name: str, *, rocm: bool) -> int:
    lower = name.lower()
    found = next((backend for part, backend in _KERNEL_PARTS if part in lower), "")
    # RCCL's kernels bear NCCL's names
    found = "rccl" if found == "nccl" and rocm else found
    return BACKENDS.index(found) if found else MISSING
