"""Opens a recording: the one door through which everything else reads it."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from spyreprof.recording import layout, schema
from spyreprof.recording.cache import Build, cached_table
from spyreprof.recording.counters import read_counters
from spyreprof.recording.manifest import Manifest, read_manifest
from spyreprof.recording.requests import read_requests
from spyreprof.recording.shards import find_shards
from spyreprof.recording.source import Source, open_source
from spyreprof.recording.tables import read_steps, read_usage

if TYPE_CHECKING:
    import os

    import pandas as pd


class Recording:
    """One recording, a folder or a packed file. Tables are built when first asked for.

    Attributes:
        path: where it lies.
        manifest: what was run, where and how it ended.
    """

    def __init__(self, source: Source, manifest: Manifest) -> None:
        self.path = source.path
        self.manifest = manifest
        self.source = source
        self.counts: Counter[str] = Counter()

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Engine steps by start: the columns of `schema.STEPS`."""
        return self._table("steps", schema.STEPS, self._shards(layout.KIND_STEPS), self._read_steps)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """Requests by arrival: the columns of `schema.REQUESTS`."""
        inputs = [name for name in self.source.names() if name.startswith(f"{layout.BENCH}/")]
        return self._table("requests", schema.REQUESTS, inputs, self._read_requests)

    @cached_property
    def counters(self) -> pd.DataFrame:
        """Changed samples of polled /metrics pages by time: the columns of `schema.COUNTERS`."""
        return self._table("counters", schema.COUNTERS, self._shards(layout.KIND_METRICS), self._read_counters)

    @cached_property
    def usage(self) -> pd.DataFrame:
        """Processor time and memory by time: the columns of `schema.USAGE`."""
        return self._table("usage", schema.USAGE, self._shards(layout.KIND_USAGE), self._read_usage)

    def _table(self, name: str, columns: tuple[schema.Column, ...], inputs: list[str], build: Build) -> pd.DataFrame:
        table, counts = cached_table(self.source, name, columns, inputs, build)
        self.counts.update(counts)
        return table

    def _shards(self, kind: str) -> list[str]:
        return [shard.name for shard in find_shards(self.source, kind)]

    def _read_steps(self, counts: Counter[str]) -> pd.DataFrame:
        return read_steps(self.source, counts)

    def _read_requests(self, counts: Counter[str]) -> pd.DataFrame:
        return read_requests(self.source, self.manifest.started_ns, self.manifest.ended_ns, counts)

    def _read_counters(self, counts: Counter[str]) -> pd.DataFrame:
        return read_counters(self.source, counts)

    def _read_usage(self, counts: Counter[str]) -> pd.DataFrame:
        return read_usage(self.source, counts)


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording folder or a packed recording.

    Raises:
        UserError: nothing is there, it is no recording, it is damaged beyond reading, or a newer version
            made it.
    """
    source = open_source(Path(path))
    return Recording(source, read_manifest(source))
