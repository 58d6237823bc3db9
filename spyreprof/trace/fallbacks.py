"""Work that came back to the CPU: operators without a kernel on the device, and what their round trip costs.

A PrivateUse1 device shows no event for it; two shapes of the trace do. PyTorch's own fallback runs `aten::_to_cpu`
inside the operator. A fallback written in Python calls the operator again, on the CPU, between a copy to the host and
one back. Neither launches a kernel. Beyond these, a copy to the host, operators and a copy back, with no kernel on the
way, is a round trip whoever wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyreprof.trace.nesting import NO_PARENT, nest_rows
from spyreprof.trace.relations import Relations
from spyreprof.trace.roles import Role, Roles
from spyreprof.trace.table import MISSING, Codes, EventTable, Flags, Integers

# Only on these is an operator without a kernel a fallback; elsewhere it may be a CPU program's.
_DIALECTS = ("spyre", "privateuse1")
_TO_CPU = "aten::_to_cpu"
# Operators that move, allocate or look at tensors differently: between two copies they do no work of their own.
_NO_WORK = (
    "aten::to",
    "aten::_to_copy",
    "aten::_to_cpu",
    "aten::copy_",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::clone",
    "aten::contiguous",
    "aten::detach",
    "detach",
    "aten::alias",
    "aten::view",
    "aten::reshape",
    "aten::as_strided",
    "aten::resize_",
    "aten::set_",
    "aten::lift_fresh",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::is_nonzero",
    "aten::item",
    "aten::_local_scalar_dense",
)

BY_TO_CPU = 0
BY_SAME_OPERATOR = 1


@dataclass(frozen=True)
class Fallbacks:
    """Operators that ran on the CPU in place of the device; arrays have shape (k,), in the order of the table.

    Attributes:
        row: of the operator.
        basis: `BY_TO_CPU` or `BY_SAME_OPERATOR`.
        host_ns: its duration on the host.
        copies: copies that are linked to it.
        copy_ns: their summed time on the device.
        copy_bytes: their bytes; `MISSING` where no copy says so.
    """

    row: Integers
    basis: Integers
    host_ns: Integers
    copies: Integers
    copy_ns: Integers
    copy_bytes: Integers


@dataclass(frozen=True)
class RoundTrips:
    """A copy to the host, operators, and a copy back, without a kernel on the way; shape (k,) each.

    Attributes:
        to_host, to_device: rows of the two copies.
        operator: row of the first operator between them that works on the data.
        ns: from the begin of the first copy to the end of the second, as the device's track shows them.
        in_fallback: whether the operator is, or is part of, one of `Fallbacks`.
    """

    to_host: Integers
    to_device: Integers
    operator: Integers
    ns: Integers
    in_fallback: Flags


def fallbacks(table: EventTable, found: Roles, relations: Relations) -> tuple[Fallbacks, RoundTrips] | None:
    """Find both. None where the trace is of no PrivateUse1 device or shows no device work: nothing can be said then."""
    if found.dialect.name not in _DIALECTS or not found.device_work.any():
        return None
    ops = np.flatnonzero(found.has(Role.HOST_OP) & (table.dur_ns != MISSING))
    nesting = nest_rows(table, ops)
    place = np.full(len(table) + 1, MISSING, np.int64)
    place[ops] = np.arange(len(ops))
    work = np.flatnonzero(found.device_work)
    # where each piece of device work was asked for, among the operators
    asked = place[relations.operator[work]]
    copies = found.role[work] == Role.COPY
    to_host, to_device = _named(table, work, "DtoH") & copies, _named(table, work, "HtoD") & copies

    def inside(flags: Flags, values: Integers | None = None) -> Integers:
        """Sums over the work that each operator, or one inside it, asked for; shape as `ops`."""
        amount = np.zeros(len(ops) + 1, np.int64)
        chosen = flags & (asked != MISSING)
        np.add.at(amount, asked[chosen] + 1, 1 if values is None else values[chosen])
        total = np.cumsum(amount)
        summed: Integers = total[nesting.last] - total[:-1]
        return summed

    name = table.name_code[ops]
    parent = nesting.parent
    held = np.flatnonzero(parent != NO_PARENT)
    no_kernel = inside(~copies) == 0
    to_cpu, again = np.zeros(len(ops), np.bool_), np.zeros(len(ops), np.bool_)
    to_cpu[parent[held[_is(table, name[held], _TO_CPU)]]] = True
    again[parent[held[(name[held] == name[parent[held]]) & (name[held] != MISSING)]]] = True
    again &= (inside(to_host) > 0) & (inside(to_device) > 0)
    chosen = np.flatnonzero((to_cpu | again) & no_kernel)
    # of fallbacks inside each other the outermost counts
    reach = np.maximum.accumulate(nesting.last[chosen])
    chosen = chosen[np.concatenate(([True], chosen[1:] >= reach[:-1]))[: len(chosen)]]
    sizes = table.arg("bytes")[work]
    told = sizes != MISSING
    copy_bytes = np.where(inside(copies & told) > 0, inside(copies & told, sizes), MISSING)
    fallen = Fallbacks(
        row=ops[chosen],
        basis=np.where(to_cpu[chosen], BY_TO_CPU, BY_SAME_OPERATOR),
        host_ns=table.dur_ns[ops[chosen]],
        copies=inside(copies)[chosen],
        copy_ns=inside(copies, table.dur_ns[work])[chosen],
        copy_bytes=copy_bytes[chosen],
    )
    part = np.zeros(len(ops) + 1, np.int64)
    np.add.at(part, chosen, 1)
    np.add.at(part, nesting.last[chosen], -1)
    in_fallback = np.cumsum(part)[:-1] > 0
    works = ~np.isin(name, [code for code, text in enumerate(table.name_values) if text in _NO_WORK])
    known = asked != MISSING
    trips = _round_trips(table, ops, works, work[known], asked[known], to_host[known], to_device[known])
    return fallen, RoundTrips(*trips, in_fallback=in_fallback[place[trips[2]]])


def _named(table: EventTable, rows: Integers, part: str) -> Flags:
    named = np.asarray([*(part in name for name in table.name_values), False], np.bool_)
    found: Flags = named[table.name_code[rows]]
    return found


def _is(table: EventTable, name_code: Codes, name: str) -> Flags:
    code = table.name_values.index(name) if name in table.name_values else len(table.name_values)
    found: Flags = name_code == code
    return found


def _round_trips(
    table: EventTable,
    ops: Integers,
    works: Flags,
    work: Integers,
    asked: Integers,
    to_host: Flags,
    to_device: Flags,
) -> tuple[Integers, Integers, Integers, Integers]:
    """Copies to the host that are directly followed by one to the device, in the order in which a thread asked."""
    order = np.lexsort((table.ts_ns[work], asked))
    work, asked, to_host, to_device = work[order], asked[order], to_host[order], to_device[order]
    track = table.tracks()[ops]
    pair = np.flatnonzero(to_host[:-1] & to_device[1:] & (track[asked[:-1]] == track[asked[1:]]))
    # the first operator after the one that copied to the host that does work
    working = np.flatnonzero(works)
    at = np.searchsorted(working, asked[pair] + 1)
    operator = np.append(working, len(ops))[at]
    between = operator < asked[pair + 1]
    pair, operator = pair[between], operator[between]
    first, second = work[pair], work[pair + 1]
    ns = table.ts_ns[second] + table.dur_ns[second] - table.ts_ns[first]
    return first, second, ops[operator], ns
