"""Launches of recorded graphs, and how much of what they ran the trace shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyreprof.trace.relations import Relations
from spyreprof.trace.roles import Role, Roles
from spyreprof.trace.table import MISSING, EventTable, Integers


@dataclass(frozen=True)
class GraphLaunches:
    """Launches of recorded graphs; arrays have shape (k,), in the order of the table.

    Attributes:
        row: of the launch.
        pieces: kernels, copies and fills that are linked to it. 0 where the profiler recorded none of the graph's: the
            device was not idle for that.
        device_ns: their summed time; they may overlap.
    """

    row: Integers
    pieces: Integers
    device_ns: Integers

    @property
    def recorded(self) -> int:
        """Launches of which device work was recorded."""
        return int((self.pieces > 0).sum())

    @property
    def coverage_ratio(self) -> float | None:
        """The share of launches of which device work was recorded; None without launches."""
        return self.recorded / len(self.row) if len(self.row) else None


def graph_launches(table: EventTable, found: Roles, relations: Relations) -> GraphLaunches:
    """Count what each launch of a graph ran."""
    rows = np.flatnonzero(found.has(Role.GRAPH_LAUNCH))
    place = np.full(len(table) + 1, MISSING, np.int64)
    place[rows] = np.arange(len(rows))
    work = np.flatnonzero(found.device_work & (relations.launch != MISSING))
    graph = place[relations.launch[work]]
    work, graph = work[graph != MISSING], graph[graph != MISSING]
    device_ns = np.zeros(len(rows), np.int64)
    np.add.at(device_ns, graph, table.dur_ns[work])
    return GraphLaunches(rows, np.bincount(graph, minlength=len(rows)), device_ns)
