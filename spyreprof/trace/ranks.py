"""Which ranks of a job several traces show, and which are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from spyreprof.trace.table import TraceMetadata

# A job of more ranks than this is no job: the number is damaged.
MAX_WORLD_SIZE = 2**20
MAX_MISSING = 16


class RankOfTrace(msgspec.Struct, frozen=True):
    """The rank of one trace. Every rank calls its device 0, so that traces are told apart by their place, not by that.

    Attributes:
        trace: place among the traces given.
        rank: 0 where the trace does not tell.
        told: whether the trace tells.
    """

    trace: int
    rank: int
    told: bool


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of several traces.

    Attributes:
        ranks: one for each trace, in the order given.
        world_size: how many ranks the job had; None where no trace tells.
        missing: ranks of which there is no trace, at most `MAX_MISSING`; None where the size is unknown.
        missing_count: how many these are.
        repeated: ranks that several traces claim.
        sentences: what a reader must know; empty where all ranks are there.
    """

    ranks: tuple[RankOfTrace, ...]
    world_size: int | None
    missing: tuple[int, ...] | None
    missing_count: int | None
    repeated: tuple[int, ...]
    sentences: tuple[str, ...]


def ranks_of(traces: Sequence[TraceMetadata]) -> Ranks:
    """Tell the ranks of traces of one job by what each says about itself."""
    return ranks_told([(_number(trace, "rank"), _number(trace, "world_size")) for trace in traces])


def ranks_told(traces: Sequence[tuple[int | None, int | None]]) -> Ranks:
    """As `ranks_of`, from the rank and the number of ranks that each trace tells."""
    ranks, sizes = [], set()
    for place, (rank, size) in enumerate(traces):
        ranks.append(RankOfTrace(place, 0 if rank is None else rank, rank is not None))
        if size:
            sizes.add(size)
    present = [one.rank for one in ranks if one.told] or [one.rank for one in ranks]
    repeated = tuple(sorted(rank for rank, count in Counter(present).items() if count > 1))
    world_size = max(sizes) if sizes else None
    shown = set(present)
    missing = None if world_size is None else _first_missing(shown, world_size)
    count = None if world_size is None else world_size - sum(rank < world_size for rank in shown)
    return Ranks(
        ranks=tuple(ranks),
        world_size=world_size,
        missing=missing,
        missing_count=count,
        repeated=repeated,
        sentences=tuple(_sentences(ranks, sizes, count, repeated)),
    )


def _number(trace: TraceMetadata, key: str) -> int | None:
    value = (trace.distributed or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WORLD_SIZE:
        return None
    return value


def _first_missing(shown: set[int], size: int) -> tuple[int, ...]:
    found: list[int] = []
    for rank in range(size):
        if rank not in shown:
            found.append(rank)
            if len(found) == MAX_MISSING:
                break
    return tuple(found)


def _sentences(ranks: list[RankOfTrace], sizes: set[int], missing: int | None, repeated: tuple[int, ...]) -> list[str]:
    said = []
    unknown = sum(not one.told for one in ranks)
    if unknown:
        said.append(f"Traces that do not tell their rank, taken for 0: {unknown:,} of {len(ranks):,}.")
    if len(sizes) > 1:
        said.append(f"The traces name different numbers of ranks: {len(sizes):,}. The largest is taken.")
    if missing:
        said.append(f"Ranks without a trace here, of which nothing is known: {missing:,} of {max(sizes):,}.")
    if repeated:
        said.append(f"Ranks with several traces: {len(repeated):,}.")
    return said
