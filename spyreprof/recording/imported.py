"""Makes a recording of trace files that somebody already has, so that everything that reads recordings reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from spyreprof import __version__
from spyreprof.errors import EXIT_OUR_FAILURE, UserError
from spyreprof.inputs import InputKind, identify, not_read
from spyreprof.recording import layout
from spyreprof.recording.content_key import content_key
from spyreprof.recording.imported_files import events_name, steps_name, summary_name, writer_name
from spyreprof.recording.manifest import ImportedFile
from spyreprof.trace import cache
from spyreprof.trace.faults import Examined, examine
from spyreprof.trace.profiled import profiled_steps
from spyreprof.trace.ranks import MAX_WORLD_SIZE, ranks_of
from spyreprof.trace.summary import TraceSummary, summary_of

if TYPE_CHECKING:
    from spyreprof.trace.profiled import ProfiledStep
    from spyreprof.trace.table import EventTable, TraceMetadata

Progress = Callable[[int, int], None]

# rank-34, rank_3, dp0_pp0_tp1_dcp0_ep1_rank3; SGLang ends its names with -TP-3
_RANK_IN_NAME = re.compile(r"(?:(?<![a-z])rank[-_]?|-TP-)(\d{1,7})(?!\d)", re.IGNORECASE)
# What torch calls the devices of a dialect.
_DEVICES = {
    "flex": "spyre",
    "spyre": "spyre",
    "ascend": "npu",
    "mtia": "mtia",
    "xpu": "xpu",
    "rocm": "cuda",
    "cuda": "cuda",
    "privateuse1": "privateuse1",
}
# A device that the trace was to show and does not.
_UNSEEN_DEVICE = "accelerator"
_PARTS = (layout.SHARDS, layout.TRACES)
# Clocks that count from the start of a machine or a program are far below.
_YEAR_2000_NS = 946_684_800 * 10**9


class _Trace(NamedTuple):
    """What stays of a trace once it is read.

    Attributes:
        metadata: with the rank by the file's name where the trace does not tell it.
        rank_by_name: that is where it came from.
        without_times: its steps begin before the clock does.
    """

    path: Path
    metadata: TraceMetadata
    summary: TraceSummary
    device_kind: str | None
    rank_by_name: bool
    without_times: bool


def import_files(paths: Sequence[Path], out: Path, *, progress: Progress | None = None) -> None:
    """Make a recording folder of traces. Files of other kinds are named in its notes.

    Args:
        paths: files in any order.
        out: the folder, which must not exist or be empty.
        progress: told the bytes read so far and their total.

    Raises:
        UserError: there is no trace among the files, none can be read, or the folder cannot be written.
    """
    kinds = [identify(path) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if kind in (InputKind.RECORDING, InputKind.PACKED_RECORDING, InputKind.REPORT):
            raise UserError(
                f"{path} is {kind.value} already.", "Leave it out here, and read it with `spyreprof report`."
            )
    traces = [path for path, kind in zip(paths, kinds, strict=True) if kind is InputKind.TRACE]
    if not traces:
        raise not_read(paths[0], kinds[0]) if paths else UserError("No file is given.", "Name a trace.")
    others = Counter(kind for kind in kinds if kind is not InputKind.TRACE)
    notes = [f"Given but not read: {kind.value} ({count:,})." for kind, count in others.items()]
    is_new = _claim(out)
    try:
        _fill(out, traces, notes, progress)
    except OSError as error:
        _take_back(out, is_new)
        raise UserError(
            f"Cannot write into {out}: {(error.strerror or str(error)).lower()}.",
            "Free some space there, or name a folder elsewhere with --out.",
            exit_code=EXIT_OUR_FAILURE,
        ) from error
    except BaseException:
        _take_back(out, is_new)
        raise


def _fill(out: Path, paths: Sequence[Path], notes: list[str], progress: Progress | None) -> None:
    traces: list[_Trace] = []
    files: list[ImportedFile] = []
    refusals: list[UserError] = []
    sizes = [path.stat().st_size for path in paths]
    for place, path in enumerate(paths):
        try:
            file = ImportedFile(InputKind.TRACE.name.lower(), sizes[place], content_key(path), str(path.absolute()))
            if any(file.key == known.key for known in files):
                notes.append("A trace was given twice and is counted once.")
                continue
            said = _part_of(progress, sum(sizes[:place]), sum(sizes))
            traces.append(_import_trace(out, len(traces) + 1, path, said))
            files.append(file)
        except UserError as error:
            refusals.append(error)
            shutil.rmtree(_events(out, len(traces) + 1), ignore_errors=True)
    if not traces:
        raise refusals[0]
    if refusals:
        notes.append(f"Traces that were given and cannot be read, left out: {len(refusals):,}.")
    notes += _about_ranks(traces)
    if any(trace.without_times for trace in traces):
        notes.append("A trace has times before its clock began; its steps are left out.")
    # What that means for a verdict is the diagnosis' to say.
    notes.append("This recording was made of traces.")
    # Last: without it there is no recording.
    _write(out / layout.MANIFEST, json.dumps(_manifest(traces, files, notes), indent=1).encode() + b"\n")


def _import_trace(out: Path, number: int, path: Path, progress: Progress | None) -> _Trace:
    events = _events(out, number)
    cache.build(path, events, progress=progress)
    table = cache.load(events, "this trace")
    table, by_name = _with_rank(table, path)
    seen = examine(table)
    summary = summary_of(seen)
    _write(out / summary_name(number), msgspec.json.encode(summary))
    device_kind = _device_kind(seen)
    steps = _profiled(seen, number, device_kind)
    without_times = bool(steps) and min(step.start_ns for step in steps) < 0
    if without_times:
        steps = ()
    _write(out / steps_name(number), msgspec.json.encode(steps))
    _write_shards(out, number, seen, summary, device_kind, steps)
    return _Trace(path, table.metadata, summary, device_kind, by_name, without_times)


def _events(out: Path, number: int) -> Path:
    return out / events_name(number)


def _part_of(progress: Progress | None, before_bytes: int, total_bytes: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done_bytes, _: progress(before_bytes + done_bytes, total_bytes)


# ---- what a trace says


def _with_rank(table: EventTable, path: Path) -> tuple[EventTable, bool]:
    """The table with the rank that the file's name tells, where the trace itself does not."""
    said = table.metadata.distributed or {}
    match = _RANK_IN_NAME.search(path.name)
    if "rank" in said or match is None or int(match[1]) > MAX_WORLD_SIZE:
        return table, False
    metadata = replace(table.metadata, distributed={**said, "rank": int(match[1])})
    return replace(table, metadata=metadata), True


def _device_kind(seen: Examined) -> str | None:
    """Where the program computed; None where the trace does not tell."""
    kinds = {fault.kind for fault in seen.health.faults}
    if "no_device_events" in kinds:
        return _DEVICES.get(seen.found.dialect.name, _UNSEEN_DEVICE)
    if "cpu_only" in kinds:
        return "cpu" if seen.found.dialect.name == "kineto" else None
    return _DEVICES.get(seen.found.dialect.name, _UNSEEN_DEVICE)


def _profiled(seen: Examined, number: int, device_kind: str | None) -> tuple[ProfiledStep, ...]:
    """The steps taken apart, with nothing of what the trace's faults forbid to say."""
    kind = device_kind or _UNSEEN_DEVICE
    steps = profiled_steps(seen.table, 0, number, device_kind=kind, writer=writer_name(number))
    if kind == "cpu" or not seen.health.forbids("busy"):
        return steps
    return tuple(replace(step, operators=(), device_busy_ns=None) for step in steps)


def _about_ranks(traces: Sequence[_Trace]) -> list[str]:
    notes = list(ranks_of([trace.metadata for trace in traces]).sentences)
    by_name = sum(trace.rank_by_name for trace in traces)
    if by_name:
        notes.append(f"Ranks taken from the names of files: {by_name:,}.")
    return notes


# ---- writing


def _write_shards(
    out: Path,
    number: int,
    seen: Examined,
    summary: TraceSummary,
    device_kind: str | None,
    steps: tuple[ProfiledStep, ...],
) -> None:
    # The trace's own clock is the recording's.
    start_ns, end_ns = max(summary.start_ns, 0), max(summary.end_ns, 0)
    process: list[Mapping[str, object]] = [
        {"k": "open", "t": start_ns, "epoch_ns": start_ns, "how": "import"},
        {"k": "dist", "t": start_ns, "rank": summary.rank.rank, "world": summary.world_size},
    ]
    if device_kind is not None:
        process.append({"k": "torch", "t": start_ns, "device_kind": device_kind})
    process += [{"k": "anchor", "t": end_ns, "epoch_ns": end_ns}, {"k": "close", "t": end_ns, "how": "import"}]
    _write_shard(out, layout.KIND_PROCESS, number, process)
    if not steps:
        return
    kept = {(step.start_ns, step.end_ns) for step in steps}
    found = seen.steps
    spans = zip(found.row.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), found.works, strict=True)
    rows: list[Mapping[str, object]] = [
        {"t0": start, "t1": end, "n": seen.table.name(row), "p": 1}
        for row, start, end, work in spans
        if work is not None and (start, end) in kept
    ]
    _write_shard(out, layout.KIND_STEPS, number, rows)
    # Without times of its own: nothing else ran that this window could have held up.
    window = {"k": "window", "n": 1, "state": "saved", "file": steps_name(number), "steps": len(rows)}
    _write_shard(out, layout.KIND_WINDOW, number, [window])


def _write_shard(out: Path, kind: str, number: int, rows: Sequence[Mapping[str, object]]) -> None:
    path = out / layout.SHARDS / f"{kind}-{writer_name(number)}.jsonl"
    _write(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _manifest(traces: Sequence[_Trace], files: Sequence[ImportedFile], notes: Sequence[str]) -> dict[str, object]:
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "run_id": str(uuid.uuid4()),
        "spyreprof_version": __version__,
        "mode": "import",
        "command": [],
        "created_epoch_ns": _created_ns(traces),
        "started_ns": max(min(trace.summary.start_ns for trace in traces), 0),
        "ended_ns": max(*(trace.summary.end_ns for trace in traces), 0),
        "collectors": [],
        "processes": [],
        "imported": [msgspec.to_builtins(file) for file in files],
        "notes": list(dict.fromkeys(notes)),
    }


def _created_ns(traces: Sequence[_Trace]) -> int | None:
    """When what the traces show began; None where their times are no dates."""
    begun = min(trace.summary.start_ns for trace in traces)
    return begun if begun > _YEAR_2000_NS else None


def _claim(out: Path) -> bool:
    """Make the folder; whether it is new."""
    try:
        is_new = not out.exists()
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UserError(f"{out} is not empty.", "Name another folder with --out; nothing is overwritten.")
        for part in _PARTS:
            (out / part).mkdir(mode=0o700)
    except OSError as error:
        raise UserError(
            f"Cannot make the recording folder {out}: {(error.strerror or str(error)).lower()}.",
            "Name another folder with --out.",
        ) from error
    return is_new


def _take_back(out: Path, is_new: bool) -> None:
    for part in _PARTS:
        shutil.rmtree(out / part, ignore_errors=True)
    if is_new:
        shutil.rmtree(out, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
