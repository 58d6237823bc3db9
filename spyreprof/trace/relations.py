"""What belongs together: device work, the call that launched it, and the operator that made the call.

A launch is found by the flow arrow between the two, else by their correlation id. Of an id that several launches have,
as in files merged from several ranks, the launch of the process that drove the device is taken (`merged`); where that
is not known, it links nothing: what would be a guess is counted as ambiguous. One launch of a
recorded graph has many kernels, which is as it should be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyreprof.trace.joins import Lookup
from spyreprof.trace.merged import launch_by_process
from spyreprof.trace.nesting import NO_PARENT, innermost, nest
from spyreprof.trace.roles import LAUNCHES, RUNTIME, WORK, Role, Roles
from spyreprof.trace.table import MISSING, EventTable, Flags, Integers


@dataclass(frozen=True)
class Relations:
    """Links between rows of a table; arrays have shape (n,) and hold `MISSING` where there is no link.

    Attributes:
        launch: row of the call that launched this device work.
        operator: row of the innermost CPU operator around that call.
        linked_by_flow, linked_by_correlation: how much device work was linked to a launch, and by what.
        ambiguous: device work whose ids belong to several launches.
        unlinked: device work of which no launch is known.
        ambiguous_ids: flow and correlation ids that device work has and several launches too.
        operators_by_id, operators_by_flow, operators_by_time: how the operators were found.
        unmatched_launches: launches that no device work is linked to.
        told: whether device work bears anything by which it could be linked: an id, or an arrow's end.
    """

    launch: Integers
    operator: Integers
    linked_by_flow: int
    linked_by_correlation: int
    ambiguous: int
    unlinked: int
    ambiguous_ids: int
    operators_by_id: int
    operators_by_flow: int
    operators_by_time: int
    unmatched_launches: int
    told: bool


def relate(table: EventTable, found: Roles) -> Relations:
    """Link device work to launches and operators."""
    work = np.flatnonzero(found.has(*WORK, Role.CONTAINER))
    counted = found.device_work
    calls = np.flatnonzero(found.has(*RUNTIME) & (table.dur_ns != MISSING))
    by_flow = _by_flow(table, found.dialect.launch_flows, work, calls)
    launch = by_flow.link
    linked_by_flow = int((launch[counted] != MISSING).sum())
    by_correlation, count = Lookup(table.correlation[calls], calls).find(table.correlation[work])
    open_ = launch[work] == MISSING
    launch[work] = np.where(open_ & (count == 1), by_correlation, launch[work])
    repeated = work[(launch[work] == MISSING) & (count > 1)]
    launch[repeated] = launch_by_process(table, calls, repeated, launch, found.has(Role.GRAPH_LAUNCH))
    linked = launch[counted] != MISSING
    several = np.zeros(len(table), np.bool_)
    several[work] = count > 1
    several |= by_flow.several
    repeated_ids = len(np.unique(table.correlation[work[count > 1]])) + by_flow.several_ids
    operator, how = _operators(table, found, launch, work)
    matched = np.zeros(len(table), np.bool_)
    matched[launch[work][launch[work] != MISSING]] = True
    return Relations(
        launch=launch,
        operator=operator,
        linked_by_flow=linked_by_flow,
        linked_by_correlation=int(linked.sum()) - linked_by_flow,
        ambiguous=int((several[counted] & ~linked).sum()),
        unlinked=int((~several[counted] & ~linked).sum()),
        ambiguous_ids=repeated_ids,
        operators_by_id=how[0],
        operators_by_flow=how[1],
        operators_by_time=how[2],
        unmatched_launches=int((found.has(*LAUNCHES) & ~matched).sum()),
        told=bool(
            (table.correlation[work] != MISSING).any()
            or (table.external_id[work] != MISSING).any()
            or (table.has_category(*found.dialect.launch_flows) & table.has_phase("f")).any()
        ),
    )


@dataclass(frozen=True)
class _Flows:
    """Links by flow arrows: `link` and `several` have shape (n,)."""

    link: Integers
    several: Flags
    several_ids: int


def _by_flow(table: EventTable, categories: tuple[str, ...], targets: Integers, sources: Integers) -> _Flows:
    """Follow arrows from spans of the host to those of a device.

    An arrow ends at the span of its thread that starts with it, and begins in the innermost one around it.
    """
    n = len(table)
    link = np.full(n, MISSING, np.int64)
    several = np.zeros(n, np.bool_)
    ours = table.has_category(*categories) & (table.flow_id != MISSING)
    begins, ends = np.flatnonzero(ours & table.has_phase("s")), np.flatnonzero(ours & table.has_phase("f"))
    if not len(begins) or not len(ends) or not len(targets):
        return _Flows(link, several, 0)
    begin, count = Lookup(table.flow_id[begins], begins).find(table.flow_id[ends])
    at = _starting_with(table, targets, ends)
    reaches = at != MISSING
    several[at[reaches & (count > 1)]] = True
    good = np.flatnonzero(reaches & (count == 1))
    source = np.full(n, MISSING, np.int64)
    source[begins] = _around(table, sources, begins)
    to, origin = at[good], source[begin[good]]
    # two arrows to one span must come from one place
    lowest, highest = np.full(n, n, np.int64), np.full(n, MISSING, np.int64)
    np.minimum.at(lowest, to, origin)
    np.maximum.at(highest, to, origin)
    agreed = lowest == highest
    link[agreed] = lowest[agreed]
    several |= (lowest < n) & ~agreed
    return _Flows(link, several, len(np.unique(table.flow_id[ends[reaches & (count > 1)]])))


def _starting_with(table: EventTable, spans: Integers, moments: Integers) -> Integers:
    """The one span that starts on the thread and at the time of each moment; `MISSING` where there are more or none."""
    n = len(table)
    track = table.tracks()
    new = np.concatenate(([True], (track[1:] != track[:-1]) | (table.ts_ns[1:] != table.ts_ns[:-1])))
    place = np.cumsum(new) - 1
    n_places = int(place[-1]) + 1 if n else 0
    count = np.bincount(place[spans], minlength=n_places)
    span_at = np.full(n_places, MISSING, np.int64)
    span_at[place[spans]] = spans
    return np.where(count[place[moments]] == 1, span_at[place[moments]], MISSING)


def _around(table: EventTable, spans: Integers, moments: Integers) -> Integers:
    """The innermost of the spans that runs on the thread and at the time of each moment, `MISSING` where none does.

    Args:
        spans: rows, ascending.
        moments: rows in any order, some maybe several times; their own duration does not matter.
    """
    if not len(spans) or not len(moments):
        return np.full(len(moments), MISSING, np.int64)
    is_span = np.zeros(len(table), np.bool_)
    is_span[spans] = True
    wanted = is_span.copy()
    wanted[moments] = True
    rows = np.flatnonzero(wanted)
    starts = table.ts_ns[rows]
    # a moment holds nothing, whatever its duration
    ends = starts + np.where(is_span[rows], table.dur_ns[rows], 0)
    parent = nest(table.tracks()[rows], starts, ends).parent
    holder = np.full(len(table), MISSING, np.int64)
    holder[rows] = np.where(parent == NO_PARENT, MISSING, rows[parent])
    answer: Integers = holder[moments]
    return answer


def _operators(table: EventTable, found: Roles, launch: Integers, work: Integers) -> tuple[Integers, list[int]]:
    """The operator of each piece of device work, and how many were found by id, by flow and by time."""
    operator = np.full(len(table), MISSING, np.int64)
    if not len(work):
        return operator, [0, 0, 0]
    operators = np.flatnonzero(found.has(Role.HOST_OP) & (table.dur_ns != MISSING))
    operator[work] = Lookup(table.external_id[operators], operators).only(table.external_id[work])
    by_id = operator != MISSING
    if found.dialect.operator_flows:
        arrows = _by_flow(table, found.dialect.operator_flows, work, operators).link
        operator = np.where(by_id, operator, arrows)
    by_flow = operator != MISSING
    rest = work[(operator[work] == MISSING) & (launch[work] != MISSING)]
    enclosing = _enclosing_anywhere if found.dialect.stray_calls else _around
    operator[rest] = enclosing(table, operators, launch[rest])
    after = operator != MISSING
    counts = [int((flags & found.device_work).sum()) for flags in (by_id, by_flow, after)]
    return operator, [counts[0], counts[1] - counts[0], counts[2] - counts[1]]


def _enclosing_anywhere(table: EventTable, operators: Integers, calls: Integers) -> Integers:
    """The innermost operator around each call, where calls may stand under a thread that runs no operator.

    If one thread alone of the process runs operators, such a call was made there.
    """
    answer = _around(table, operators, calls)
    track = table.tracks()
    busy, first = np.unique(track[operators], return_index=True)
    pids = table.pid_code[operators[first]]
    alone = np.bincount(pids[pids >= 0], minlength=len(table.pid_values) + 1) == 1
    track_of = np.full(len(table.pid_values) + 1, MISSING, np.int64)
    track_of[pids] = busy
    pid = table.pid_code[calls]
    lost = np.flatnonzero((answer == MISSING) & ~np.isin(track[calls], busy) & alone[pid])
    if len(lost):
        starts = table.ts_ns[operators]
        place = innermost(
            track[operators],
            starts,
            starts + table.dur_ns[operators],
            track_of[pid[lost]],
            table.ts_ns[calls[lost]],
        )
        answer[lost] = np.where(place == NO_PARENT, MISSING, operators[place])
    return answer
