"""Profiled engine steps: what a trace says about the time inside each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spyreprof.trace.annotations import StepWork, parse_step_name
from spyreprof.trace.operator_kinds import OperatorKind, kernel_kind, operator_kind
from spyreprof.trace.operators import Work, operator_work
from spyreprof.trace.self_time import NO_PARENT, divide, union_shares
from spyreprof.trace.table import MISSING, EventTable

__all__ = ["OperatorKind", "OperatorTime", "ProfiledStep", "profiled_steps"]

# Kinds that count only where nothing of a lower layer runs: what remains of them is exposed.
_HIDDEN_BY_WORK: dict[OperatorKind, int] = {"copy": 1, "communication": 2}
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime", "privateuse1_driver")

Indices = npt.NDArray[np.int64]


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
    operators = _Threads(table)
    device = _DeviceEvents(table)
    steps = []
    # a file that is cut short misses the operators of the steps around the cut: what is missing is not idle
    complete_ns = int(table.ts_ns.max()) if table.quality.truncated else None
    for step in _step_events(table):
        if complete_ns is not None and step.end_ns >= complete_ns:
            continue
        work = step.work
        on_thread = operators.inside(step)
        times = divide(operators.start_ns[on_thread], operators.end_ns[on_thread], step.start_ns, step.end_ns)
        busy_ns = None
        if len(device):
            totals, busy_ns = device.totals(step, operators, on_thread)
        elif device_kind == "cpu":
            totals = _operator_totals(table, operators.index[on_thread], times.self_ns, times.parent)
        else:
            totals = ()
        steps.append(
            ProfiledStep(
                window=window,
                start_ns=step.start_ns - clock_offset_ns,
                end_ns=step.end_ns - clock_offset_ns,
                context_requests=work.context_requests,
                context_tokens=work.context_tokens,
                generation_requests=work.generation_requests,
                generation_tokens=work.generation_tokens,
                device_kind=device_kind,
                operator_count=len(on_thread),
                operators=totals,
                gap_ns=times.gap_ns,
                device_busy_ns=busy_ns,
                writer=writer,
            )
        )
    return tuple(sorted(steps, key=lambda step: (step.start_ns, step.end_ns)))


class _Step(NamedTuple):
    """A step annotation: where it stands, on the trace's clock, and what its name says."""

    thread: int
    start_ns: int
    end_ns: int
    work: StepWork


def _step_events(table: EventTable) -> Iterator[_Step]:
    works = {code: work for code, name in enumerate(table.name_values) if (work := parse_step_name(name))}
    wanted = np.isin(table.name_code, list(works)) & table.has_phase("X") & table.has_category("user_annotation")
    index = np.flatnonzero(wanted & (table.dur_ns != MISSING))
    threads = table.tracks()[index]
    order = np.lexsort((-table.dur_ns[index], table.ts_ns[index], threads))
    thread_before, reached_ns = None, 0
    for place in order:
        at, thread = int(index[place]), int(threads[place])
        start_ns = int(table.ts_ns[at])
        end_ns = start_ns + int(table.dur_ns[at])
        if thread != thread_before or start_ns >= reached_ns:
            thread_before, reached_ns = thread, end_ns
            yield _Step(thread, start_ns, end_ns, works[int(table.name_code[at])])


class _Threads:
    """The CPU operators of a trace by thread and start, outer before inner.

    Arrays have shape (n,): `index` into the event table, `start_ns`, `end_ns`.
    """

    def __init__(self, table: EventTable) -> None:
        chosen = table.has_category("cpu_op") & table.has_phase("X") & (table.dur_ns != MISSING)
        index = np.flatnonzero(chosen)
        threads = table.tracks()[index]
        order = np.lexsort((index, -table.dur_ns[index], table.ts_ns[index], threads))
        self.index: Indices = index[order]
        self.thread = threads[order]
        self.start_ns = table.ts_ns[self.index]
        self.end_ns = self.start_ns + table.dur_ns[self.index]

    def inside(self, step: _Step) -> Indices:
        """Places of the operators that run in the step on its thread.

        One that encloses the whole step says nothing about it and is left out.
        """
        first = int(np.searchsorted(self.thread, step.thread, "left"))
        last = int(np.searchsorted(self.thread, step.thread, "right"))
        stop = first + int(np.searchsorted(self.start_ns[first:last], step.end_ns, "left"))
        begun = first + int(np.searchsorted(self.start_ns[first:last], step.start_ns, "left"))
        earlier = np.arange(first, begun)
        ends = self.end_ns[first:begun]
        earlier = earlier[(ends > step.start_ns) & (ends < step.end_ns)]
        return np.concatenate((earlier, np.arange(begun, stop)))


class _Total:
    """A sum over operators of one kind."""

    def __init__(self) -> None:
        self.ns = self.count = self.ns_with_model = self.flops = self.bytes = 0
        self.modelled = 0

    def add_work(self, work: Work) -> None:
        self.flops += work.flops
        self.bytes += work.bytes
        self.modelled += 1

    def freeze(self, kind: OperatorKind) -> OperatorTime:
        known = self.modelled > 0
        return OperatorTime(
            kind=kind,
            ns=self.ns,
            count=self.count,
            flops=self.flops if known else None,
            bytes=self.bytes if known else None,
            ns_with_model=self.ns_with_model,
        )


def _freeze(totals: dict[OperatorKind, _Total]) -> tuple[OperatorTime, ...]:
    return tuple(totals[kind].freeze(kind) for kind in sorted(totals, key=lambda kind: (-totals[kind].ns, kind)))


def _work(table: EventTable, at: int) -> Work | None:
    dims, types = int(table.dims_code[at]), int(table.types_code[at])
    return operator_work(
        table.name(at),
        table.dims_values[dims] if dims != MISSING else None,
        table.types_values[types] if types != MISSING else None,
    )


def _counted_works(table: EventTable, index: Indices, parent: Indices) -> list[Work | None]:
    """The work of each operator, counted at the innermost one that has a model: aten::linear around aten::addmm
    is one matrix product, not two.
    """
    works = [_work(table, int(at)) for at in index]
    has_inner = [False] * len(works)
    for place, work in enumerate(works):
        if work is None:
            continue
        above = int(parent[place])
        while above != NO_PARENT and not has_inner[above]:
            has_inner[above] = True
            above = int(parent[above])
    return [None if inner else work for work, inner in zip(works, has_inner, strict=True)]


def _operator_totals(
    table: EventTable, index: Indices, self_ns: npt.NDArray[np.int64], parent: Indices
) -> tuple[OperatorTime, ...]:
    totals: dict[OperatorKind, _Total] = defaultdict(_Total)
    works = _counted_works(table, index, parent)
    kinds = [operator_kind(table.name(int(at))) for at in index]
    # An operator of the same kind below a counted one is part of its execution.
    modelled = [False] * len(works)
    for place, (work, kind) in enumerate(zip(works, kinds, strict=True)):
        total = totals[kind]
        own_ns, above = int(self_ns[place]), int(parent[place])
        modelled[place] = work is not None or (above != NO_PARENT and modelled[above] and kinds[above] == kind)
        total.ns += own_ns
        total.count += 1
        if modelled[place]:
            total.ns_with_model += own_ns
        if work is not None:
            total.add_work(work)
    return _freeze(totals)


class _DeviceEvents:
    """Kernels, copies and fills of a trace, with the host moment that launched each."""

    def __init__(self, table: EventTable) -> None:
        self._table = table
        chosen = table.has_category(*_DEVICE_CATEGORIES) & table.has_phase("X") & (table.dur_ns != MISSING)
        index = np.flatnonzero(chosen)
        self._index: Indices = index[np.argsort(table.ts_ns[index], kind="stable")]
        self._start_ns = table.ts_ns[self._index]
        self._end_ns = self._start_ns + table.dur_ns[self._index]
        self._launch_ns = self._launch_times()

    def __len__(self) -> int:
        return len(self._index)

    def _launch_times(self) -> npt.NDArray[np.int64]:
        """When the host launched each event; its own start where no launch is linked to it."""
        table = self._table
        launches = np.flatnonzero(table.has_category(*_LAUNCH_CATEGORIES) & (table.correlation != MISSING))
        times = dict(zip(table.correlation[launches].tolist(), table.ts_ns[launches].tolist(), strict=True))
        correlations = table.correlation[self._index].tolist()
        return np.asarray(
            [times.get(c, own) for c, own in zip(correlations, self._start_ns.tolist(), strict=True)], np.int64
        )

    def totals(self, step: _Step, operators: _Threads, on_thread: Indices) -> tuple[tuple[OperatorTime, ...], int]:
        """Device time by kind of the events that the step launched, and their union.

        Work that runs on past the step's end on the host still belongs to the step.
        """
        table = self._table
        mine = np.flatnonzero((self._launch_ns >= step.start_ns) & (self._launch_ns < step.end_ns))
        host = operators.index[on_thread]
        by_id = dict(zip(table.external_id[host].tolist(), host.tolist(), strict=True))
        by_id.pop(MISSING, None)
        totals: dict[OperatorKind, _Total] = defaultdict(_Total)
        counted: set[int] = set()
        launchers = [by_id.get(int(table.external_id[at])) for at in self._index[mine].tolist()]
        kinds = [self._kind(at, launcher) for at, launcher in zip(self._index[mine].tolist(), launchers, strict=True)]
        layers = np.asarray([_HIDDEN_BY_WORK.get(kind, 0) for kind in kinds], np.int64)
        shares = union_shares(self._start_ns[mine], self._end_ns[mine], layers)
        for launcher, kind, share_ns in zip(launchers, kinds, shares.tolist(), strict=True):
            work = _work(table, launcher) if launcher is not None else None
            total = totals[kind]
            total.ns += share_ns
            total.count += 1
            if work is not None and launcher is not None:
                total.ns_with_model += share_ns
                if launcher not in counted:
                    counted.add(launcher)
                    total.add_work(work)
        return _freeze(totals), int(shares.sum())

    def _kind(self, event: int, launcher: int | None) -> OperatorKind:
        """By the operator that launched it, else by its own name."""
        kind = operator_kind(self._table.name(launcher)) if launcher is not None else "other"
        return kernel_kind(self._table.name(event)) if kind == "other" else kind
