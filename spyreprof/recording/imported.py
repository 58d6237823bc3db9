"""Makes a recording of traces and call stacks that somebody already has, so that all that reads recordings reads it."""

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
from spyreprof.inputs import STACKS, InputKind, identify, not_read
from spyreprof.recording import layout
from spyreprof.recording.content_key import content_key
from spyreprof.recording.imported_files import events_name, steps_name, summary_name, writer_name
from spyreprof.recording.imported_stacks import stacks_name, summarise_stacks
from spyreprof.recording.manifest import ImportedFile
from spyreprof.stacks.reader import read as read_stacks
from spyreprof.stacks.reader import read_samples_of_trace
from spyreprof.trace import cache
from spyreprof.trace.faults import Examined, examine
from spyreprof.trace.profiled import profiled_steps
from spyreprof.trace.ranks import MAX_WORLD_SIZE, ranks_of
from spyreprof.trace.summary import TraceSummary, summary_of

if TYPE_CHECKING:
    from spyreprof.stacks.profile import StackProfile
    from spyreprof.trace.first_results import FirstLook
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
        with_stacks: samples of call stacks stand beside its events.
    """

    path: Path
    metadata: TraceMetadata
    summary: TraceSummary
    device_kind: str | None
    rank_by_name: bool
    without_times: bool
    with_stacks: bool


def import_files(
    paths: Sequence[Path], out: Path, *, progress: Progress | None = None, watch: FirstLook | None = None
) -> None:
    """Make a recording folder of traces and files of call stacks. Files of other kinds are named in its notes.

    Args:
        paths: files in any order.
        out: the folder, which must not exist or be empty.
        progress: told the bytes read so far and their total.
        watch: sees what is read of traces while it is read.

    Raises:
        UserError: there is nothing of use among the files, none can be read, or the folder cannot be written.
    """
    kinds = [identify(path) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if kind in (InputKind.RECORDING, InputKind.PACKED_RECORDING, InputKind.REPORT):
            raise UserError(
                f"{path} is {kind.value} already.", "Leave it out here, and read it with `spyreprof report`."
            )
    wanted = [one for one in zip(paths, kinds, strict=True) if one[1] is InputKind.TRACE or one[1] in STACKS]
    if not wanted:
        raise not_read(paths[0], kinds[0]) if paths else UserError("No file is given.", "Name a trace.")
    others = Counter(kind for kind in kinds if kind is not InputKind.TRACE and kind not in STACKS)
    notes = [f"Given but not read: {kind.value} ({count:,})." for kind, count in others.items()]
    is_new = _claim(out)
    try:
        _fill(out, wanted, notes, progress, watch)
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


def _fill(
    out: Path,
    given: Sequence[tuple[Path, InputKind]],
    notes: list[str],
    progress: Progress | None,
    watch: FirstLook | None,
) -> None:
    made = _Made(out, notes, watch)
    files: list[ImportedFile] = []
    refusals: list[tuple[InputKind, UserError]] = []
    sizes = [path.stat().st_size for path, _ in given]
    for place, (path, kind) in enumerate(given):
        said = _part_of(progress, sum(sizes[:place]), sum(sizes))
        try:
            file = ImportedFile(kind.name.lower(), sizes[place], content_key(path), str(path.absolute()))
            if any(file.key == known.key for known in files):
                what = "trace" if kind is InputKind.TRACE else "file of stacks"
                notes.append(f"A {what} was given twice and is counted once.")
                continue
            if kind is InputKind.TRACE:
                made.add_trace(path, said)
            else:
                made.add_stacks(path, kind)
            files.append(file)
        except UserError as error:
            refusals.append((kind, error))
        if said is not None:
            said(sizes[place], sizes[place])
    if not files:
        raise refusals[0][1]
    for whose, what in ((True, "Traces"), (False, "Files of stacks")):
        refused = sum((kind is InputKind.TRACE) is whose for kind, _ in refusals)
        if refused:
            notes.append(f"{what} that were given and cannot be read, left out: {refused:,}.")
    traces = made.traces
    if traces:
        notes += _about_ranks(traces)
    if any(trace.without_times for trace in traces):
        notes.append("A trace has times before its clock began; its steps are left out.")
    # What that means for a verdict is the diagnosis' to say.
    of = " and ".join([*(["traces"] if traces else []), *(["call stacks"] if made.stack_files else [])])
    notes.append(f"This recording was made of {of}.")
    # Last: without it there is no recording.
    _write(out / layout.MANIFEST, json.dumps(_manifest(traces, files, notes), indent=1).encode() + b"\n")


class _Made:
    """What was made of the files so far."""

    def __init__(self, out: Path, notes: list[str], watch: FirstLook | None) -> None:
        self._out, self._notes, self._watch = out, notes, watch
        self.traces: list[_Trace] = []
        self.stack_files = 0

    def add_trace(self, path: Path, progress: Progress | None) -> None:
        """Import a trace, and the samples of stacks beside its events; these alone will do."""
        number = len(self.traces) + 1
        try:
            trace = _import_trace(self._out, number, path, progress, self._watch)
        except UserError:
            shutil.rmtree(_events(self._out, number), ignore_errors=True)
            if not self._add_samples_of(path):
                raise
            self._notes.append("A trace holds samples of call stacks and no timed events; the stacks are used.")
            return
        self.traces.append(trace)
        if trace.with_stacks and not self._add_samples_of(path):
            self._notes.append("Samples of call stacks beside the events of a trace cannot be used, left out.")

    def _add_samples_of(self, path: Path) -> bool:
        try:
            self._add(read_samples_of_trace(path), InputKind.TRACE, path)
        except UserError:
            return False
        return True

    def add_stacks(self, path: Path, kind: InputKind) -> None:
        self._add(read_stacks(path), kind, path)

    def _add(self, profiles: Sequence[StackProfile], kind: InputKind, path: Path) -> None:
        summary = summarise_stacks(profiles, kind.name.lower(), str(path))
        self.stack_files += 1
        _write(self._out / stacks_name(self.stack_files), msgspec.json.encode(summary))


def _import_trace(out: Path, number: int, path: Path, progress: Progress | None, watch: FirstLook | None) -> _Trace:
    events = _events(out, number)
    cache.build(path, events, progress=progress, watch=watch)
    table = cache.load(events, "this trace")
    if watch is not None:
        watch.done(table)
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
    with_stacks = table.quality.stack_samples != 0
    return _Trace(path, table.metadata, summary, device_kind, by_name, without_times, with_stacks)


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
        # what follows where the file is cut may be a device's
        return "cpu" if seen.found.dialect.name == "kineto" and not seen.table.quality.truncated else None
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
        "run_id": uuid.uuid4().hex,
        "spyreprof_version": __version__,
        "mode": "import",
        "command": [],
        "created_epoch_ns": _created_ns(traces),
        # Stacks have no times.
        "started_ns": max(min(trace.summary.start_ns for trace in traces), 0) if traces else None,
        "ended_ns": max(*(trace.summary.end_ns for trace in traces), 0) if traces else None,
        "collectors": [],
        "processes": [],
        "imported": [msgspec.to_builtins(file) for file in files],
        "notes": list(dict.fromkeys(notes)),
    }


def _created_ns(traces: Sequence[_Trace]) -> int | None:
    """When what the traces show began; None where their times are no dates."""
    begun = min((trace.summary.start_ns for trace in traces), default=None)
    return begun if begun is not None and begun > _YEAR_2000_NS else None


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
