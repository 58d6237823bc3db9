"""Profiled engine steps: what a trace says about the time inside each step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spyreprof.trace.graphs import graph_launches
from spyreprof.trace.nesting import NO_PARENT, Nesting, nest, on_one_axis
from spyreprof.trace.operator_kinds import OperatorKind, kernel_kind, operator_kind
from spyreprof.trace.operators import Work, operator_work
from spyreprof.trace.relations import Relations, relate
from spyreprof.trace.roles import Role, Roles, roles
from spyreprof.trace.self_time import union_shares
from spyreprof.trace.steps import StepSpans, StepTable, spans_in_steps, step_table, steps_of_device
from spyreprof.trace.table import MISSING, EventTable, Flags, Integers

__all__ = ["OperatorKind", "OperatorTime", "ProfiledStep", "profiled_steps"]

# Kinds that count only where nothing of a lower layer runs: what remains of them is exposed.
_HIDDEN_BY_WORK: dict[OperatorKind, int] = {"copy": 1, "communication": 2}
_KINDS: tuple[OperatorKind, ...] = ("attention", "communication", "copy", "elementwise", "matmul", "other")
_LAYERS = np.asarray([_HIDDEN_BY_WORK.get(kind, 0) for kind in _KINDS], np.int64)
_OTHER = _KINDS.index("other")


# Steps are taken apart in groups of about so many operators: of all at once the intermediate arrays are the peak.
_PART_OPERATORS = 2**19


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Self time of one kind of operator within one profiled step.

    Attributes:
        ns: time, each nanosecond counted once.
        count: number of operators.
        flops: floating-point operations of the operators whose work is known; None when there is none.
        bytes: bytes that these must read and write once; None likewise.
        ns_with_model: the part of `ns` that belongs to operators whose work is known. Rates divide by it.
    """

    kind: OperatorKind
    ns: int
    count: int
    flops: int | None
    bytes: int | None
    ns_with_model: int


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One engine step as the device trace saw it.

    `start_ns` and `end_ns` are on the recording's clock. For a CPU device the operators are the leaf CPU
    operators of the step's thread; for an accelerator they are its kernels and copies, and `device_busy_ns`
    is the union.

    `gap_ns` is time within the step in which no operator ran on the step's thread.

    Request and token counts are None where the step's name does not carry them (SGLang's mixed steps).
    `device_busy_ns` is None when the capture holds no device events.
    `graphs_without_work` counts launches of recorded graphs within the step of which the profiler recorded no device
    work: the device was not idle for that.
    """

    window: int
    start_ns: int
    end_ns: int
    context_requests: int | None
    context_tokens: int | None
    generation_requests: int | None
    generation_tokens: int | None
    device_kind: str
    operator_count: int
    operators: tuple[OperatorTime, ...]
    gap_ns: int
    device_busy_ns: int | None
    writer: str | None = None
    graphs_without_work: int = 0


def profiled_steps(
    table: EventTable,
    clock_offset_ns: int,
    window: int,
    *,
    device_kind: str = "cpu",
    writer: str | None = None,
) -> tuple[ProfiledStep, ...]:
    """Take apart the time of every step annotation of a trace.

    Args:
        table: the trace's events.
        clock_offset_ns: wall-clock time minus the recording's clock when the trace was made.
        window: number of the profiler window, for the result.
        device_kind: where the program computed, e.g. "cpu", "cuda". With another device than the CPU and no
            device event in the trace, nothing can be said about the device: `operators` is then empty.
        writer: the process, for the result.

    Returns:
        The steps by start; steps that run inside another step of their thread are left out.
    """
    if not len(table):
        return ()
    found = roles(table)
    steps = step_table(table, found, profiler_steps=False)
    if table.quality.truncated:
        # a file that is cut short misses the operators of the steps around the cut: what is missing is not idle
        steps = steps.before(int(table.ts_ns.max()))
    taken = _taken_apart(table, found, steps, device_kind)
    result = []
    for index, work in enumerate(steps.works):
        if work is None:
            raise AssertionError("only steps that an engine named were asked for")
        result.append(
            ProfiledStep(
                window=window,
                start_ns=int(steps.start_ns[index]) - clock_offset_ns,
                end_ns=int(steps.end_ns[index]) - clock_offset_ns,
                context_requests=work.context_requests,
                context_tokens=work.context_tokens,
                generation_requests=work.generation_requests,
                generation_tokens=work.generation_tokens,
                device_kind=device_kind,
                operator_count=int(taken.operator_count[index]),
                operators=taken.totals[index],
                gap_ns=int(taken.gap_ns[index]),
                device_busy_ns=taken.busy_ns[index],
                writer=writer,
                graphs_without_work=int(taken.graphs_without_work[index]),
            )
        )
    return tuple(sorted(result, key=lambda step: (step.start_ns, step.end_ns)))


class _Taken(NamedTuple):
    """Steps taken apart: one entry for each."""

    totals: list[tuple[OperatorTime, ...]]
    busy_ns: list[int | None]
    operator_count: Integers
    gap_ns: Integers
    graphs_without_work: Integers


def _taken_apart(table: EventTable, found: Roles, steps: StepTable, device_kind: str) -> _Taken:
    # a compilation that the profiler shows as an operator takes the step's time like any other
    chosen = found.has(Role.HOST_OP) | (found.has(Role.COMPILE) & table.has_category("cpu_op"))
    chosen &= table.dur_ns != MISSING
    device = np.flatnonzero(found.device_work)
    if len(device):
        # What a step launches may run at any time: all steps at once.
        operators, relations = _Operators(table, np.flatnonzero(chosen), steps), relate(table, found)
        totals, shares = _device_totals(table, relations, steps, operators, device)
        lost = _graphs_without_work(table, found, relations, steps)
        return _Taken(totals, list(shares), *_counts_and_gaps(operators, steps), lost)
    parts = int(chosen.sum()) // _PART_OPERATORS + 1
    none, gap_ns = np.zeros(len(steps), np.int64), steps.end_ns - steps.start_ns
    taken = _Taken([], [None] * len(steps), none.copy(), gap_ns, none)
    for begin, end in pairwise(np.linspace(0, len(steps), parts + 1).astype(np.int64).tolist()):
        if begin == end:
            continue
        part = steps.part(begin, end)
        low_ns, high_ns = int(part.start_ns.min()), int(part.end_ns.max())
        near = chosen & (table.ts_ns < high_ns) & (table.ts_ns + table.dur_ns > low_ns - 1)
        operators = _Operators(table, np.flatnonzero(near), part)
        if device_kind == "cpu":
            taken.totals.extend(_operator_totals(operators, len(part)))
        else:
            taken.totals.extend([()] * len(part))
        taken.operator_count[begin:end], taken.gap_ns[begin:end] = _counts_and_gaps(operators, part)
    return taken


def _counts_and_gaps(operators: _Operators, steps: StepTable) -> tuple[Integers, Integers]:
    """How many operators ran in each step, and for how long none did."""
    count = np.bincount(operators.spans.step, minlength=len(steps))
    gap_ns = steps.end_ns - steps.start_ns
    np.subtract.at(gap_ns, operators.spans.step, operators.nesting.self_ns)
    return count, gap_ns


class _Operators:
    """The CPU operators within steps, each with its kind and work. Arrays go with `spans`.

    Attributes:
        kind: index into `_KINDS`.
        work_code: into `works`, where None stands for work that is not known.
    """

    spans: StepSpans
    nesting: Nesting
    kind: Integers
    work_code: Integers
    works: list[Work | None]

    def __init__(self, table: EventTable, rows: Integers, steps: StepTable) -> None:
        self.spans = spans_in_steps(table, steps, rows)
        self.nesting = nest(self.spans.step, self.spans.start_ns, self.spans.end_ns)
        row = self.spans.row
        self.kind = _kinds_of_names(table, row)
        n_types, n_dims = len(table.types_values) + 1, len(table.dims_values) + 1
        key = table.name_code[row].astype(np.int64) + 1
        key = (key * n_dims + table.dims_code[row] + 1) * n_types + table.types_code[row] + 1
        _, first, code = np.unique(key, return_index=True, return_inverse=True)
        self.works = [_work(table, int(at)) for at in row[first]]
        self.work_code = code.reshape(-1)

    def has_work(self) -> Flags:
        """Which operators have a known work."""
        return np.asarray([work is not None for work in self.works], np.bool_)[self.work_code]


def _kinds_of_names(table: EventTable, rows: Integers) -> Integers:
    codes, place = np.unique(table.name_code[rows], return_inverse=True)
    names = ["" if code == MISSING else table.name_values[code] for code in codes.tolist()]
    kinds = np.asarray([_KINDS.index(operator_kind(name)) for name in names], np.int64)
    return kinds[place.reshape(-1)]


def _work(table: EventTable, at: int) -> Work | None:
    dims, types = int(table.dims_code[at]), int(table.types_code[at])
    return operator_work(
        table.name(at),
        table.dims_values[dims] if dims != MISSING else None,
        table.types_values[types] if types != MISSING else None,
    )


class _Pieces(NamedTuple):
    """Pieces of time of operators or kernels; shape (m,) each.

    Attributes:
        step, kind: where the piece counts.
        ns: its time.
        with_model: whether its work is known.
        work_code: into a list of works, `MISSING` where the piece adds no work.
    """

    step: Integers
    kind: Integers
    ns: Integers
    with_model: Flags
    work_code: Integers


def _summed(pieces: _Pieces, works: list[Work | None], n_steps: int) -> list[tuple[OperatorTime, ...]]:
    """The totals of each step by kind, the largest first."""
    group = pieces.step * len(_KINDS) + pieces.kind
    n_groups = n_steps * len(_KINDS)
    ns, ns_with_model = np.zeros(n_groups, np.int64), np.zeros(n_groups, np.int64)
    np.add.at(ns, group, pieces.ns)
    np.add.at(ns_with_model, group[pieces.with_model], pieces.ns[pieces.with_model])
    count = np.bincount(group, minlength=n_groups)
    done = pieces.work_code != MISSING
    keys, times = np.unique(group[done] * len(works) + pieces.work_code[done], return_counts=True)
    # Work has no upper bound, so it is summed as Python's integers: once for each kind of operator in a step.
    summed: dict[int, tuple[int, int]] = {}
    for key, n in zip(keys.tolist(), times.tolist(), strict=True):
        place, code = divmod(key, len(works))
        work = works[code]
        if work is not None:
            flops, moved = summed.get(place, (0, 0))
            summed[place] = (flops + n * work.flops, moved + n * work.bytes)
    by_step: dict[int, list[OperatorTime]] = defaultdict(list)
    for place in np.flatnonzero(count).tolist():
        step, kind = divmod(place, len(_KINDS))
        flops_and_bytes = summed.get(place)
        by_step[step].append(
            OperatorTime(
                kind=_KINDS[kind],
                ns=int(ns[place]),
                count=int(count[place]),
                flops=flops_and_bytes[0] if flops_and_bytes else None,
                bytes=flops_and_bytes[1] if flops_and_bytes else None,
                ns_with_model=int(ns_with_model[place]),
            )
        )
    return [tuple(sorted(by_step[step], key=lambda total: (-total.ns, total.kind))) for step in range(n_steps)]


def _operator_totals(operators: _Operators, n_steps: int) -> list[tuple[OperatorTime, ...]]:
    """Self time by kind. Work is counted at the innermost operator that has a model: aten::linear around aten::addmm
    is one matrix product, not two.
    """
    nesting, kind = operators.nesting, operators.kind
    known = operators.has_work()
    before = np.concatenate(([0], np.cumsum(known)))
    counted = known & (before[nesting.last] == before[1:])
    # An operator of the same kind below a counted one is part of its execution.
    place = np.arange(len(kind))
    above = np.where(nesting.parent == NO_PARENT, place, nesting.parent)
    origin = np.where(~counted & (kind[above] == kind), above, place)
    while not np.array_equal(higher := origin[origin], origin):
        origin = higher
    pieces = _Pieces(
        step=operators.spans.step,
        kind=kind,
        ns=nesting.self_ns,
        with_model=counted[origin],
        work_code=np.where(counted, operators.work_code, MISSING),
    )
    return _summed(pieces, operators.works, n_steps)


def _graphs_without_work(table: EventTable, found: Roles, relations: Relations, steps: StepTable) -> Integers:
    """For each step, launches of graphs without device work; 0 where work that lost its ids may be theirs."""
    graphs = graph_launches(table, found, relations)
    empty = graphs.row[(graphs.pieces == 0) & (table.dur_ns[graphs.row] != MISSING)]
    if relations.unlinked + relations.ambiguous >= len(empty):
        return np.zeros(len(steps), np.int64)
    return np.bincount(spans_in_steps(table, steps, empty).step, minlength=len(steps))


def _device_totals(
    table: EventTable, relations: Relations, steps: StepTable, operators: _Operators, device: Integers
) -> tuple[list[tuple[OperatorTime, ...]], list[int]]:
    """Device time by kind of the work that each step launched, and its union."""
    step = steps_of_device(table, relations, steps, device)
    mine = step != MISSING
    order = np.lexsort((table.ts_ns[device[mine]], step[mine]))
    rows, step = device[mine][order], step[mine][order]
    # where the operator stands among those of the step's thread, if there
    spans, n = operators.spans, len(table)
    keys = spans.step * n + spans.row
    by_key = np.argsort(keys, kind="stable")
    wanted = step * n + relations.operator[rows]
    place = np.minimum(np.searchsorted(keys[by_key], wanted), max(len(keys) - 1, 0))
    launcher = np.full(len(rows), MISSING, np.int64)
    if len(keys):
        at = by_key[place]
        launcher = np.where((relations.operator[rows] != MISSING) & (keys[at] == wanted), at, MISSING)
    kind = _kernel_kinds(table, operators, rows, launcher)
    starts = table.ts_ns[rows]
    starts, ends = on_one_axis(step, starts, starts + table.dur_ns[rows])
    shares = union_shares(starts, ends, _LAYERS[kind])
    known = np.append(operators.has_work(), False)[launcher]
    # several kernels of one operator do its work once
    first = np.zeros(len(rows), np.bool_)
    first[np.unique(launcher, return_index=True)[1]] = True
    pieces = _Pieces(
        step=step,
        kind=kind,
        ns=shares,
        with_model=known,
        work_code=np.where(known & first, np.append(operators.work_code, MISSING)[launcher], MISSING),
    )
    busy_ns = np.zeros(len(steps), np.int64)
    np.add.at(busy_ns, step, shares)
    return _summed(pieces, operators.works, len(steps)), busy_ns.tolist()


def _kernel_kinds(table: EventTable, operators: _Operators, rows: Integers, launcher: Integers) -> Integers:
    """By the operator that launched it, else by its own name."""
    codes, place = np.unique(table.name_code[rows], return_inverse=True)
    names = ["" if code == MISSING else table.name_values[code] for code in codes.tolist()]
    by_name = np.asarray([_KINDS.index(kernel_kind(name)) for name in names], np.int64)[place.reshape(-1)]
    by_operator: npt.NDArray[np.int64] = np.append(operators.kind, _OTHER)[launcher]
    return np.where(by_operator == _OTHER, by_name, by_operator)
