"""Collective calls side by side: which rank came last, how long the others waited for it, how long data moved.

On one clock a call's data can move only once its last rank has arrived. What a rank is blocked before that moment is
waiting for another rank; what it is blocked after it is transfer. The two add up to its blocked time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

NOBODY = -1
MISSING_NS = -1
# Calls that end, on every rank, only after all ranks have arrived.
_SYNCHRONISING = (
    "all_reduce", "all_gather", "_all_gather", "reduce_scatter", "_reduce_scatter", "all_to_all", "barrier",
)  # fmt: skip
# With more calls than this ending before their last rank has arrived, the ranks' clocks differ.
MAX_ENDED_EARLY_RATIO = 0.05
# A second process that claims this much of a rank's calls makes it unknown which of the two is meant.
MAX_CLAIMED_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of some processes, by launch; all arrays of length n.

    Times are nanoseconds. `start_ns` and `end_ns` enclose the blocked time and are -1 where the caller never waited.
    `writer` and `latest` are places in `writers`. Of a call that is not `matched` with those of all other ranks,
    `transfer_ns` and `wait_ns` are 0 and `latest` is -1. `caused_ns` is the longest wait of another rank for this
    call's process, where that came last. `wire_bytes` is what each rank must send over its link at least, by the usual
    algorithms; -1 where unknown.
    """

    writers: tuple[str, ...]
    ranks: tuple[int, ...]
    writer: NDArray[np.int64]
    launch_ns: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]
    wire_bytes: NDArray[np.int64]
    matched: NDArray[np.bool_]
    transfer_ns: NDArray[np.int64]
    wait_ns: NDArray[np.int64]
    caused_ns: NDArray[np.int64]
    latest: NDArray[np.int64]
    one_clock: bool
    missing: str | None

    def __len__(self) -> int:
        return len(self.launch_ns)

    @property
    def blocked_ns(self) -> NDArray[np.int64]:
        """How long each call blocked its caller."""
        return np.where(self.start_ns >= 0, self.end_ns - self.start_ns, 0)


def connected_writers(table: pd.DataFrame, writer: str) -> tuple[str, ...]:
    """The process and all that are tied to it, directly or not, by process groups of two ranks and more."""
    shared = table[table["size"] > 1]
    members = {group: set(rows) for group, rows in shared.groupby("group")["writer"]}
    found, grew = {writer}, True
    while grew:
        grew = False
        for names in members.values():
            if names & found and not names <= found:
                found |= names
                grew = True
    return tuple(sorted(found))


def match_calls(table: pd.DataFrame, writers: tuple[str, ...]) -> Calls:
    """Put the calls of the same group and number side by side.

    Args:
        table: columns of `schema.COLLECTIVES`.
        writers: the processes to look at.
    """
    rows = table[table["writer"].isin(writers) & (table["size"] > 1)].reset_index(drop=True)
    code = {name: place for place, name in enumerate(writers)}
    columns = {
        name: np.asarray(rows[name].fillna(MISSING_NS), dtype=np.int64)
        for name in ("launch_ns", "start_ns", "end_ns", "bytes", "group", "size", "rank", "seq", "peer")
    }
    writer = np.asarray([code[name] for name in rows["writer"]], dtype=np.int64)
    ops = rows["op"].astype(str).to_numpy()
    pairs = _pairs(columns["rank"], columns["peer"], ops)
    length = len(rows)
    matched = np.zeros(length, dtype=np.bool_)
    transfer, wait, caused = (np.zeros(length, dtype=np.int64) for _ in range(3))
    latest = np.full(length, NOBODY, dtype=np.int64)
    missing: str | None = None
    sides: list[NDArray[np.int64]] = []
    for inside in _alike(columns["group"], pairs) if length else []:
        numbered = inside[columns["seq"][inside] > 0]
        if not len(numbered):
            continue
        found, reason = _side_by_side(numbered, columns, writer)
        missing = missing or reason
        if found is not None and found.shape[0]:
            sides.append(found)
    one_clock = _one_clock(sides, columns, ops)
    for side in sides:
        launch, start, end = (columns[name][side] for name in ("launch_ns", "start_ns", "end_ns"))
        transfer[side], wait[side] = split_blocked(launch, start, end, one_clock=one_clock)
        matched[side] = True
        last = launch.argmax(axis=1) if one_clock else wait[side].argmin(axis=1)
        call = np.arange(len(side))
        others = wait[side].copy()
        others[call, last] = 0
        latest[side] = writer[side[call, last]][:, None]
        caused[side[call, last]] = others.max(axis=1)
    ranks = [int(columns["rank"][writer == place][0]) if (writer == place).any() else place for place in code.values()]
    return Calls(
        writers=writers,
        ranks=tuple(ranks),
        writer=writer,
        launch_ns=columns["launch_ns"],
        start_ns=columns["start_ns"],
        end_ns=columns["end_ns"],
        bytes=columns["bytes"],
        wire_bytes=_wire_bytes(ops, columns["bytes"], columns["size"]),
        matched=matched,
        transfer_ns=transfer,
        wait_ns=wait,
        caused_ns=caused,
        latest=latest,
        one_clock=one_clock,
        missing=missing,
    )


def split_blocked(
    launch_ns: NDArray[np.int64], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], *, one_clock: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut blocked time into transfer and waiting; the two add up to it.

    Args:
        launch_ns, start_ns, end_ns: shape (calls, ranks); a start of -1 is a call that nobody waited for.
        one_clock: whether the ranks' times can be compared. If not, the rank that was blocked least is taken for the
            last one, which did not wait.
    """
    waited = start_ns >= 0
    if one_clock:
        arrived = np.clip(launch_ns.max(axis=1, keepdims=True), start_ns, end_ns)
        wait = np.where(waited, arrived - start_ns, 0)
        transfer = np.where(waited, end_ns - arrived, 0)
        return transfer, wait
    blocked = np.where(waited, end_ns - start_ns, 0)
    transfer = np.broadcast_to(blocked.min(axis=1, keepdims=True), blocked.shape)
    return transfer, blocked - transfer


def _pairs(rank: NDArray[np.int64], peer: NDArray[np.int64], ops: NDArray[np.str_]) -> NDArray[np.int64]:
    """-1 for calls of a whole group; else one number for each sender and receiver."""
    sends = np.isin(ops, ("send", "isend"))
    sender, receiver = np.where(sends, rank, peer), np.where(sends, peer, rank)
    return np.where(peer < 0, np.int64(-1), sender * 2**31 + receiver)


def _alike(group: NDArray[np.int64], pairs: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows of the same group and pair, each in their order; at least one row."""
    _, kind = np.unique(np.stack((group, pairs), axis=1), axis=0, return_inverse=True)
    order = np.argsort(kind.ravel(), kind="stable").astype(np.int64)
    return np.split(order, np.flatnonzero(np.diff(kind.ravel()[order])) + 1)


def _side_by_side(
    inside: NDArray[np.int64], columns: dict[str, NDArray[np.int64]], writer: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, str | None]:
    """Rows (calls, ranks) of calls that all ranks made; and why there are none."""
    expected = int(columns["size"][inside[0]])
    ranks = np.unique(columns["rank"][inside])
    if len(ranks) < expected:
        return None, f"of a group of {expected} ranks only {len(ranks)} left rows"
    if len(ranks) > expected:
        return None, f"{len(ranks)} ranks left rows of a group of {expected}"
    if len(np.unique(writer[inside])) < expected:
        return None, "one process says that it is several ranks of one group"
    by_rank: list[dict[int, int]] = []
    for rank in ranks:
        mine = inside[columns["rank"][inside] == rank]
        names, counts = np.unique(writer[mine], return_counts=True)
        if len(names) > 1 and counts.sum() - counts.max() > MAX_CLAIMED_RATIO * counts.sum():
            return None, f"{len(names)} processes say that they are rank {rank} of one group"
        mine = mine[writer[mine] == names[counts.argmax()]]
        by_rank.append(dict(zip(columns["seq"][mine].tolist(), mine.tolist(), strict=True)))
    common = sorted(set.intersection(*(set(rows) for rows in by_rank)))
    return np.array([[rows[seq] for rows in by_rank] for seq in common], dtype=np.int64).reshape(-1, expected), None


def _one_clock(sides: list[NDArray[np.int64]], columns: dict[str, NDArray[np.int64]], ops: NDArray[np.str_]) -> bool:
    """Whether no more than a few calls end, on some rank, before the last rank has arrived."""
    seen = early = 0
    for side in sides:
        chosen = side[[str(op).startswith(_SYNCHRONISING) for op in ops[side[:, 0]]]]
        last_ns = columns["launch_ns"][chosen].max(axis=1, keepdims=True, initial=0)
        ended_early = (columns["start_ns"][chosen] >= 0) & (columns["end_ns"][chosen] < last_ns)
        seen += len(chosen)
        early += int(ended_early.any(axis=1).sum())
    return early <= MAX_ENDED_EARLY_RATIO * seen


def _wire_bytes(ops: NDArray[np.str_], moved: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that a rank must send: 2 (n - 1) / n of an all-reduce, (n - 1) / n where each keeps its own part."""
    whole = np.isin(ops, ("broadcast", "reduce", "send", "recv", "isend", "irecv"))
    factor = np.where(whole, 1.0, (size - 1) / np.maximum(size, 1))
    factor = np.where(np.isin(ops, ("all_reduce", "all_reduce_coalesced")), 2 * factor, factor)
    return np.where(moved >= 0, (moved * factor).astype(np.int64), MISSING_NS)
