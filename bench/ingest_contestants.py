"""One contestant of `ingest.py`, in a process and an environment of its own.

    python bench/ingest_contestants.py NAME FILE SCRATCH [--totals]

Reads the file and ends. With `--totals` it also prints what it read, as JSON: `rows`, `dur_ns`, and both for each name.
Only what is imported by the named contestant has to be installed.
"""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

CHUNK_BYTES = 2**22
METADATA = "M"
Totals = dict[str, Any]


def opened(path: Path) -> Any:
    """The text of a trace, as a stream of bytes."""
    stream = path.open("rb")
    if stream.peek(2).startswith(b"\x1f\x8b"):
        return gzip.open(stream)
    return stream


def totals(rows: Iterable[tuple[str, int]]) -> Totals:
    """Counts and durations (ns) by name."""
    count: Counter[str] = Counter()
    dur_ns: Counter[str] = Counter()
    for name, dur in rows:
        count[name] += 1
        dur_ns[name] += dur
    names = {name: [n, dur_ns[name]] for name, n in count.items()}
    return {"rows": sum(count.values()), "dur_ns": sum(dur_ns.values()), "names": names}


def event_totals(events: Iterable[Any]) -> Totals:
    """The same from decoded events; metadata events are none."""
    return totals(
        (str(event.get("name") or ""), nanoseconds(event.get("dur")))
        for event in events
        if isinstance(event, dict) and event.get("ph") != METADATA
    )


def nanoseconds(microseconds: Any) -> int:
    """Exact for what a trace holds: three decimals."""
    return round(Decimal(repr(microseconds)) * 1000) if microseconds is not None else 0


def ceiling_read(path: Path, _scratch: Path) -> None:
    """The text into memory, piece by piece."""
    with opened(path) as stream:
        while stream.read(CHUNK_BYTES):
            pass


def ceiling_quotes(path: Path, _scratch: Path) -> None:
    """The same, and every byte looked at once."""
    with opened(path) as stream:
        while piece := stream.read(CHUNK_BYTES):
            piece.count(b'"')


def plain_json(path: Path, _scratch: Path) -> Callable[[], Totals]:
    """The standard library, as programs use it."""
    with opened(path) as stream:
        trace = json.load(stream)
    return lambda: event_totals(trace["traceEvents"])


def orjson_objects(path: Path, _scratch: Path) -> Callable[[], Totals]:
    """orjson, without the garbage collector that its many objects would wake."""
    import orjson

    gc.disable()
    with opened(path) as stream:
        trace = orjson.loads(stream.read())
    return lambda: event_totals(trace["traceEvents"])


def hta(path: Path, backend: str) -> Callable[[], Totals]:
    """HolisticTraceAnalysis: one rank's trace to its data frame."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserBackend, ParserConfig

    config = ParserConfig.get_default_cfg()
    config.set_parser_backend(ParserBackend(backend))
    _, frame, symbols = parse_trace_dataframe(str(path), config)
    names = symbols.get_sym_table()
    return lambda: totals(
        (names[code], nanoseconds(dur)) for code, dur in zip(frame["name"].tolist(), frame["dur"].tolist(), strict=True)
    )


def hta_json(path: Path, _scratch: Path) -> Callable[[], Totals]:
    """Its default."""
    return hta(path, "json")


def hta_batched(path: Path, _scratch: Path) -> Callable[[], Totals]:
    """The backend that its documentation advises for best results."""
    return hta(path, "ijson_batch_and_compress")


def acelyzer(path: Path, scratch: Path) -> Callable[[], Totals]:
    """aiu-trace-analyzer: the whole pipeline, to its output files."""
    out = scratch / "out.json"
    command = [str(Path(sys.executable).with_name("acelyzer")), "-D", "0", "-i", str(path), "-o", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=scratch)
    return lambda: event_totals(json.loads(out.read_bytes())["traceEvents"])


def table_totals(table: Any) -> Totals:
    """The same from our columns."""
    import numpy as np

    named = table.name_code
    count = np.bincount(named + 1, minlength=len(table.name_values) + 1)
    dur_ns = np.zeros(len(count), np.int64)
    np.add.at(dur_ns, named + 1, np.where(table.dur_ns < 0, 0, table.dur_ns))
    values = ("", *table.name_values)
    names: dict[str, list[int]] = {}
    for name, n, ns in zip(values, count.tolist(), dur_ns.tolist(), strict=True):
        if n:
            # An event without a name and one with an empty name are the same here.
            before = names.get(name, [0, 0])
            names[name] = [before[0] + n, before[1] + ns]
    return {"rows": len(table), "dur_ns": int(dur_ns.sum()), "names": names}


def ours_read(path: Path, _scratch: Path) -> Callable[[], Totals]:
    """To columns in memory."""
    from spyreprof.trace import reader

    table = reader.read(path)
    return lambda: table_totals(table)


def ours_ingest(path: Path, scratch: Path) -> Callable[[], Totals]:
    """To columns on disk."""
    from spyreprof.trace import cache

    cache.build(path, scratch / "columns")
    return lambda: table_totals(cache.load(scratch / "columns"))


CONTESTANTS: dict[str, Callable[[Path, Path], Callable[[], Totals] | None]] = {
    "read": ceiling_read,
    "quotes": ceiling_quotes,
    "json": plain_json,
    "orjson": orjson_objects,
    "hta-json": hta_json,
    "hta-batched": hta_batched,
    "acelyzer": acelyzer,
    "ours-read": ours_read,
    "ours-ingest": ours_ingest,
}


def main() -> None:
    """Be one contestant."""
    name, path, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    told = CONTESTANTS[name](path, scratch)
    if "--totals" in sys.argv and told is not None:
        json.dump(told(), sys.stdout)


if __name__ == "__main__":
    main()
