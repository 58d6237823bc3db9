"""What each recorded process said of itself: clocks, torch, versions, and how it ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spyreprof.recording import layout
from spyreprof.recording.rows import (
    AnchorRow,
    CloseRow,
    DistributedRow,
    MomentRow,
    OpenRow,
    TorchRow,
    VersionsRow,
)
from spyreprof.recording.shards import find_shards, read_mixed_rows

if TYPE_CHECKING:
    from spyreprof.recording.source import Source

_ROWS: dict[str, Any] = {
    "open": OpenRow,
    "anchor": AnchorRow,
    "versions": VersionsRow,
    "torch": TorchRow,
    "dist": DistributedRow,
    "hook": MomentRow,
    "close": CloseRow,
    "exec": CloseRow,
    "listen": MomentRow,
}


@dataclass
class ProcessFacts:
    """One process. `closed` says that it ended in an orderly way, or became another program by exec.

    `anchors` are (CLOCK_MONOTONIC, wall-clock) pairs in nanoseconds, by the first.
    """

    writer: str
    pid: int | None = None
    closed: bool = False
    last_ns: int | None = None
    anchors: list[tuple[int, int]] = field(default_factory=list)
    torch: TorchRow | None = None
    distributed: DistributedRow | None = None
    versions: dict[str, str | None] = field(default_factory=dict)

    def clock_offsets_ns(self, near_ns: int | None) -> list[int]:
        """Wall-clock time minus CLOCK_MONOTONIC at each anchor, the nearest to `near_ns` first.

        They differ where the wall clock was set in between.
        """
        ordered = sorted(self.anchors, key=lambda anchor: abs(anchor[0] - (near_ns or anchor[0])))
        return [epoch_ns - t for t, epoch_ns in ordered]


def read_processes(source: Source, counts: Counter[str]) -> dict[str, ProcessFacts]:
    """Read the process shards, by writer."""
    processes: dict[str, ProcessFacts] = {}
    for shard in find_shards(source, layout.KIND_PROCESS):
        process = processes.setdefault(shard.writer, ProcessFacts(shard.writer))
        for row in read_mixed_rows(source, shard.name, _ROWS, counts):
            _note(process, row)
        process.anchors.sort()
    return processes


def _note(process: ProcessFacts, row: Any) -> None:
    if isinstance(row, dict):
        process.versions.update(
            (name, version)
            for name, version in row.items()
            if name not in {"k", "t"} and (version is None or isinstance(version, str))
        )
        return
    process.last_ns = max(process.last_ns or 0, row.t)
    if isinstance(row, OpenRow):
        process.pid = row.pid
    if isinstance(row, (OpenRow, AnchorRow)):
        process.anchors.append((row.t, row.epoch_ns))
    elif isinstance(row, TorchRow):
        # Written again whenever it changed: the last one holds for most of the run.
        process.torch = row
    elif isinstance(row, DistributedRow):
        process.distributed = row
    elif isinstance(row, CloseRow):
        process.closed = True
