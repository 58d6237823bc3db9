"""A trace's columns on disk: built in bounded memory, loaded many times faster than the trace is read.

A folder holds one or two parts, each written by one process: Arrow files (Feather) of row groups that are sorted by
themselves, and what is known beside the columns as JSON. `events.json` is written last: without it there is no cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyreprof.errors import UserError
from spyreprof.trace import split
from spyreprof.trace.assemble import PartFacts, assemble, part_facts, sort_order
from spyreprof.trace.encode import Batch, Encoder
from spyreprof.trace.metadata import MetadataEvents
from spyreprof.trace.reader import finish, unreadable
from spyreprof.trace.stream import Reading, Window, read_events, read_part
from spyreprof.trace.table import MISSING, EventTable
from spyreprof.trace.text import open_text
from spyreprof.trace.version import COLUMNS_VERSION

if TYPE_CHECKING:
    from spyreprof.trace.first_results import FirstLook

INDEX = "events.json"
ROWS_PER_GROUP = 2**15
# Below this a second process costs more than it saves.
TWO_PROCESSES_BYTES = 2**26

# Called with the bytes of the file that were read and its size.
Progress = Callable[[int, int], None]

# With `-m` the current folder would come first among the places to import from, whatever lies there.
_SECOND = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from spyreprof.trace.second import main; sys.exit(main(sys.argv[2:]))"
)
_CODES = frozenset(("ph", "cat", "name", "pid", "tid", "dims", "types"))
_COUNTERS = ("counter_row", "counter_series", "counter_value")


def build(
    path: str | os.PathLike[str],
    directory: Path,
    *,
    progress: Progress | None = None,
    watch: FirstLook | None = None,
    processes: int | None = None,
) -> None:
    """Read a trace file once and write its columns into `directory`, which is made.

    Args:
        path: the trace, plain or gzipped.
        directory: must not exist, or be empty.
        progress: called now and then.
        watch: sees every batch that this process reads.
        processes: 1 or 2; None decides by the size of the file and the processors at hand.

    Raises:
        UserError: the trace cannot be read, or holds nothing.
        OSError: the columns cannot be written.
    """
    path = Path(path)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        size_bytes = path.stat().st_size
        stream = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with stream:
        place = _place(stream, size_bytes, processes)
        parts = _build_two(path, stream, directory, place, progress, watch) if place is not None else None
        if parts is None:
            stream.seek(0)
            parts = [_build_whole(stream, path, directory, size_bytes, progress, watch)]
    facts = parts[0]
    if not any(part.rows for part in parts):
        # Says why; the table is empty.
        finish(load_parts(directory, len(parts)), str(path), found=facts.found, empty=not size_bytes)
    index = {"version": COLUMNS_VERSION, "parts": len(parts)}
    (directory / INDEX).write_text(json.dumps(index))


def load(directory: Path, label: str = "trace") -> EventTable:
    """Load the columns that `build` wrote.

    Raises:
        UserError: there are none, they are damaged, or another version wrote them.
    """
    try:
        index = json.loads((directory / INDEX).read_bytes())
        if index["version"] != COLUMNS_VERSION:
            raise ValueError("another version")
        table = load_parts(directory, int(index["parts"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, _arrow_error()) as error:
        raise UserError(f"The columns of {label} are damaged: {error}.", "Import the trace again.") from error
    return finish(table, label, found=True, empty=False)


def load_parts(directory: Path, count: int) -> EventTable:
    """Put the parts together."""
    return assemble([_StoredPart(directory / f"part-{number}") for number in range(count)])


def _arrow_error() -> type[Exception]:
    import pyarrow

    error: type[Exception] = pyarrow.ArrowException
    return error


def _place(stream: IO[bytes], size_bytes: int, processes: int | None) -> int | None:
    """Where to divide the file between two processes; None for one."""
    if processes == 1 or (processes is None and (size_bytes < TWO_PROCESSES_BYTES or (os.cpu_count() or 1) < 2)):
        return None
    return split.find_place(stream, size_bytes)


def _watched(part: _PartWriter, encoder: Encoder, watch: FirstLook | None) -> Callable[[Batch], None]:
    if watch is None:
        return part

    def sink(batch: Batch) -> None:
        watch.batch(encoder, batch)
        part(batch)

    return sink


def _build_whole(
    stream: IO[bytes],
    path: Path,
    directory: Path,
    size_bytes: int,
    progress: Progress | None,
    watch: FirstLook | None,
) -> PartFacts:
    part, encoder = _PartWriter(directory / "part-0"), Encoder()
    counting = _Counting(stream, path, size_bytes, 1.0, progress)
    reading = read_events(open_text(counting, str(path)), encoder, _watched(part, encoder, watch))
    return part.close(encoder, reading)


def _build_two(
    path: Path,
    stream: IO[bytes],
    directory: Path,
    place: int,
    progress: Progress | None,
    watch: FirstLook | None,
) -> list[PartFacts] | None:
    """Read both parts at the same time; None where the division turns out to be wrong."""
    second = directory / "part-1"
    array_form = split.is_array(stream)
    arguments = [str(path), str(place), str(second), *(["array"] if array_form else [])]
    worker = subprocess.Popen(
        [sys.executable, "-c", _SECOND, "\n".join(sys.path), *arguments],
        stdin=subprocess.DEVNULL,
        # Ctrl-C is for the first process, which ends this one.
        start_new_session=True,
    )
    facts = None
    try:
        stream.seek(0)
        size_bytes = path.stat().st_size
        counting = _Counting(stream, path, size_bytes, size_bytes / max(place, 1), progress)
        part, encoder = _PartWriter(directory / "part-0"), Encoder()
        sink = _watched(part, encoder, watch)
        reading = read_events(open_text(counting, str(path), stop=place), encoder, sink)
        if not reading.ends_between_events:
            return None
        # The list goes on in the other part.
        reading.truncated_at_byte = None
        facts = part.close(encoder, reading)
        if worker.wait() != 0:
            return None
        return [facts, read_facts(second)]
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
        if facts is None or worker.returncode:
            shutil.rmtree(second, ignore_errors=True)


def build_second(path: Path, place: int, directory: Path, *, array_form: bool) -> None:
    """Read a file from a place between two of its events on."""
    part, encoder = _PartWriter(directory), Encoder()
    with path.open("rb") as stream:
        stream.seek(place)
        reading = read_part(open_text(stream, str(path)), encoder, part, offset=place, array_form=array_form)
    part.close(encoder, reading)


class _Counting:
    """A file that tells how far it has been read."""

    def __init__(
        self, stream: IO[bytes], path: Path, size_bytes: int, factor: float, progress: Progress | None
    ) -> None:
        self._stream, self._path = stream, path
        self._size_bytes, self._factor, self._progress = size_bytes, factor, progress
        self._done_bytes = 0

    def read(self, size: int = -1) -> bytes:
        try:
            piece = self._stream.read(size)
        except OSError as error:
            # Told from a failure to write the columns, which is not the trace's.
            raise unreadable(self._path, error) from error
        self._done_bytes += len(piece)
        if self._progress is not None:
            self._progress(min(int(self._done_bytes * self._factor), self._size_bytes), self._size_bytes)
        return piece


class _PartWriter:
    """Writes batches as sorted row groups. A column that turns up later begins a new file, whose rows all have it."""

    def __init__(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True)
        self._directory = directory
        self._columns: list[str] = []
        self._pending: list[Batch] = []
        self._pending_rows = 0
        self._counters: list[tuple[npt.NDArray[Any], ...]] = []
        self._writer: Any = None
        self._files = 0
        self._rows = 0

    def __call__(self, batch: Batch) -> None:
        self._pending.append(batch)
        self._pending_rows += len(batch)
        if self._pending_rows >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        import pyarrow

        batches, self._pending, self._pending_rows = self._pending, [], 0
        columns = list(dict.fromkeys(name for batch in batches for name in batch.columns))
        order = sort_order(*(_joined(batches, name) for name in ("pid", "tid", "ts_ns", "dur_ns")))
        self._take_counters(batches, order)
        self._rows += len(order)
        if self._writer is None or not set(columns) <= set(self._columns):
            self._open([*self._columns, *(name for name in columns if name not in self._columns)])
        # One column after the other: all of them joined, beside all of them sorted, would be the peak.
        arrays = [_to_arrow(_joined(batches, name)[order]) for name in self._columns]
        self._writer.write_batch(pyarrow.record_batch(arrays, names=self._columns))

    def _take_counters(self, batches: list[Batch], order: npt.NDArray[np.int64]) -> None:
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(self._rows, self._rows + len(order))
        before = 0
        for batch in batches:
            if len(batch.counter_row):
                rows = place[batch.counter_row + before]
                self._counters.append((rows, batch.counter_series, batch.counter_value))
            before += len(batch)

    def _open(self, columns: list[str]) -> None:
        import pyarrow

        self._close_file()
        self._columns = columns
        types = [pyarrow.int32() if name in _CODES else pyarrow.int64() for name in columns]
        schema = pyarrow.schema(list(zip(columns, types, strict=True)))
        options = pyarrow.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        path = self._directory / f"events-{self._files:03d}.arrow"
        self._writer = pyarrow.ipc.new_file(str(path), schema, options=options)
        self._files += 1

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self, encoder: Encoder, reading: Reading) -> PartFacts:
        """Write what is left, and what is known beside the columns."""
        self._flush()
        self._close_file()
        if self._counters:
            rows, series, values = (np.concatenate(column) for column in zip(*self._counters, strict=True))
            np.savez(self._directory / "counters.npz", counter_row=rows, counter_series=series, counter_value=values)
        facts = part_facts(encoder, reading, self._rows)
        (self._directory / "facts.json").write_text(json.dumps(_plain(facts)))
        return facts


# Arrow's own conversions import pandas where it is installed: a second, and 100 MB. Columns have no nulls.


def _to_arrow(column: npt.NDArray[Any]) -> Any:
    import pyarrow

    kind = pyarrow.int32() if column.dtype == np.int32 else pyarrow.int64()
    return pyarrow.Array.from_buffers(kind, len(column), [None, pyarrow.py_buffer(np.ascontiguousarray(column))])


def _from_arrow(column: Any) -> npt.NDArray[Any]:
    kind = np.dtype(np.int32 if column.type.bit_width == np.dtype(np.int32).itemsize * 8 else np.int64)
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def _joined(batches: list[Batch], name: str) -> npt.NDArray[Any]:
    pieces = [batch.columns[name] if name in batch.columns else _absent(name, len(batch)) for batch in batches]
    joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return joined.astype(np.int32, copy=False) if name in _CODES else joined


def _absent(name: str, rows: int) -> npt.NDArray[Any]:
    return np.full(rows, MISSING, np.int32 if name in _CODES else np.int64)


def _plain(facts: PartFacts) -> dict[str, Any]:
    names = facts.names
    plain = asdict(facts)
    plain["names"] = {
        "processes": list(names.processes.items()),
        "threads": [[*key, text] for key, text in names.threads.items()],
        "labels": list(names.labels.items()),
    }
    return plain


def read_facts(directory: Path) -> PartFacts:
    """What is known of a stored part beside its columns."""
    plain = json.loads((directory / "facts.json").read_bytes())
    names = MetadataEvents()
    names.processes = dict(map(tuple, plain["names"]["processes"]))
    names.threads = {(pid, tid): text for pid, tid, text in plain["names"]["threads"]}
    names.labels = dict(map(tuple, plain["names"]["labels"]))
    names.count = plain["metadata_events"]
    plain["names"] = names
    plain["windows"] = [Window(*window) for window in plain["windows"]]
    return PartFacts(**plain)


class _StoredPart:
    """A part that lies on disk."""

    def __init__(self, directory: Path) -> None:
        import pyarrow

        self.facts = read_facts(directory)
        self._maps = [pyarrow.memory_map(str(path)) for path in sorted(directory.glob("events-*.arrow"))]
        self._schemas = [pyarrow.ipc.open_file(source).schema for source in self._maps]
        self._counters: dict[str, npt.NDArray[Any]] = {}
        with suppress(FileNotFoundError), np.load(directory / "counters.npz", allow_pickle=False) as stored:
            self._counters = {name: stored[name] for name in _COUNTERS}
        self._counter_names = set(self._counters)

    def names(self) -> set[str]:
        """Columns that some event has."""
        return {name for schema in self._schemas for name in schema.names} | self._counter_names

    def take(self, name: str) -> npt.NDArray[Any]:
        """One column over all rows of the part."""
        import pyarrow

        if name in self._counters:
            return self._counters.pop(name)
        pieces = []
        for source, schema in zip(self._maps, self._schemas, strict=True):
            index = schema.get_field_index(name)
            # Only this column of each row group is decompressed.
            options = pyarrow.ipc.IpcReadOptions(included_fields=[max(index, 0)], use_threads=False)
            reader = pyarrow.ipc.open_file(source, options=options)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                pieces.append(_from_arrow(batch.column(0)) if index >= 0 else _absent(name, batch.num_rows))
        return np.concatenate(pieces) if pieces else _absent(name, 0)
