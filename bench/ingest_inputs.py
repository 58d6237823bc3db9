"""Inputs of `ingest.py`: traces recorded from the sample engine, and larger ones that repeat their events.

    python bench/ingest_inputs.py record FILE --mb 50 [--stacks]     # needs torch
    python bench/ingest_inputs.py amplify FROM TO --mb 250 [--epoch]

An amplified trace is made of the text of the one it repeats, so that its formatting is the profiler's own. Copies come
after one another in time, each with ids of its own; only the metadata events are not repeated. So the events of every
name, and the sum of their durations, are exact multiples.
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
MEGABYTE = 10**6
SEED = 7
# A recording's size is foreseen from one of so many steps.
CALIBRATION_STEPS = 8
# Of text that is put together at once.
PIECE_EVENTS = 4096

_EVENTS_BEGIN = re.compile(rb'"traceEvents": \[\s*')
_EVENTS_END = b"\n  ]"
_EVENT_BREAK = re.compile(rb"\n  \},\s*\{")
_METADATA = re.compile(rb'"ph": "M"')
_BASE_TIME = re.compile(rb'[ \t]*"baseTimeNanoseconds": (\d+),?[ \t]*\n')
_DURATION = re.compile(rb'"dur": (\d+)')
# 0 and negative numbers stand for "none" and are left.
_SHIFTED = re.compile(
    rb'(?P<time>(?<="ts": )\d+)'
    rb'|(?P<id>(?:(?<="correlation": )|(?<="External id": )|(?<="external id": )|(?<="id": )|(?<="Ev Idx": )'
    rb'|(?<="Record function id": )|(?<="Python id": )|(?<="Python parent id": ))[1-9]\d*)'
)


class NotKinetoError(Exception):
    """The text is not formatted as Kineto formats it."""


class Template(NamedTuple):
    """The text of some events, divided at the numbers that change from copy to copy.

    `literals` is one longer than `numbers`; `is_time` tells times from ids.
    """

    literals: list[bytes]
    numbers: list[int]
    is_time: list[bool]

    def text(self, time_us: int, ids: int) -> bytes:
        """Put the text together with both kinds of numbers shifted."""
        pieces = [self.literals[0]]
        for literal, number, is_time in zip(self.literals[1:], self.numbers, self.is_time, strict=True):
            pieces.append(b"%d" % (number + (time_us if is_time else ids)))
            pieces.append(literal)
        return b"".join(pieces)


def template(text: bytes) -> Template:
    """Divide the text of events."""
    literals, numbers, is_time = [], [], []
    end = 0
    for found in _SHIFTED.finditer(text):
        literals.append(text[end : found.start()])
        numbers.append(int(found.group()))
        is_time.append(found.lastgroup == "time")
        end = found.end()
    literals.append(text[end:])
    return Template(literals, numbers, is_time)


def read_text(path: Path) -> bytes:
    """The text of a trace, plain or gzipped."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def amplify(source: Path, target: Path, *, megabytes: float = 0.0, timed_events: int = 0, epoch: bool = False) -> int:
    """Repeat a trace's events until the file has so many megabytes and events; the value is the number of copies.

    Args:
        epoch: stamps are written as microseconds since the epoch, and the base time is left out.

    Raises:
        NotKinetoError: the source is not as Kineto formats it.
    """
    text = read_text(source)
    found = _EVENTS_BEGIN.search(text)
    end = text.find(_EVENTS_END, found.end()) if found is not None else -1
    if found is None or end < 0:
        raise NotKinetoError(f"{source} has no list of events as Kineto writes it")
    head, tail = text[: found.end()], text[end:]
    events = [*_events(text[found.end() : end].rstrip())]
    metadata = [event for event in events if _METADATA.search(event[:400])]
    timed = [event for event in events if not _METADATA.search(event[:400])]
    templates = [template(b",\n  ".join(timed[at : at + PIECE_EVENTS])) for at in range(0, len(timed), PIECE_EVENTS)]
    times = [n for part in templates for n, is_time in zip(part.numbers, part.is_time, strict=True) if is_time and n]
    ids = [n for part in templates for n, is_time in zip(part.numbers, part.is_time, strict=True) if not is_time]
    longest_us = max((int(n) for n in _DURATION.findall(text)), default=0)
    span_us = max(times) - min(times) + longest_us + 1000
    id_stride = max(ids, default=0) + 1
    base_us = 0
    if epoch:
        base = _BASE_TIME.search(head) or _BASE_TIME.search(tail)
        if base is None:
            raise NotKinetoError(f"{source} has no base time to add to its stamps")
        base_us = int(base.group(1)) // 1000
        head, tail = _BASE_TIME.sub(b"", head), _BASE_TIME.sub(b"", tail)
    size_bytes = sum(len(event) + 4 for event in timed)
    copies = max(1, math.ceil(megabytes * MEGABYTE / size_bytes), math.ceil(timed_events / max(len(timed), 1)))
    with target.open("wb") as out:
        out.write(head)
        first = True
        shifted = [template(event).text(base_us, 0) for event in metadata]
        for text in (*shifted, *_copies(templates, copies, span_us, id_stride, base_us)):
            out.write(text if first else b",\n  " + text)
            first = False
        out.write(b"\n  " + tail)
    return copies


def _copies(templates: list[Template], copies: int, span_us: int, id_stride: int, base_us: int) -> Iterator[bytes]:
    for copy in range(copies):
        for part in templates:
            yield part.text(base_us + copy * span_us, copy * id_stride)


def _events(text: bytes) -> Iterator[bytes]:
    """The text of each event, by the line that ends it: nothing inside an event is indented by two spaces alone."""
    start = 0
    for found in _EVENT_BREAK.finditer(text):
        yield text[start : found.start() + len(b"\n  }")]
        start = found.end() - 1
    yield text[start:]


def record(target: Path, *, megabytes: float, stacks: bool) -> int:
    """Profile the sample engine for about so many megabytes of trace, with shapes; the value is the steps recorded."""
    import torch

    sys.path.insert(0, str(SAMPLES))
    from engine.core import Engine, EngineConfig
    from engine.model import ModelConfig, build_decoder
    from engine.scheduler import Request

    torch.set_num_threads(1)
    sizes = ModelConfig(layers=6, hidden=128, ffn=256, heads=4, kv_heads=2, vocab=512)
    engine = Engine(
        build_decoder(sizes, SEED),
        EngineConfig(max_num_seqs=4, max_num_batched_tokens=256, max_model_len=512, num_kv_blocks=256, block_size=16),
    )
    engine.warm_up()
    generator = torch.Generator().manual_seed(SEED)

    def profiled(steps: int, path: Path) -> None:
        options = {"record_shapes": True, "with_stack": stacks, "activities": [torch.profiler.ProfilerActivity.CPU]}
        with torch.profiler.profile(**options) as profile:
            for number in range(steps):
                if len(engine.scheduler.running) + len(engine.scheduler.waiting) < 4:
                    length = int(torch.randint(16, 96, (1,), generator=generator))
                    prompt = torch.randint(2, 500, (length,), generator=generator).tolist()
                    engine.submit(Request(f"request-{number}", prompt, max_tokens=64))
                engine.step()
        profile.export_chrome_trace(str(path))

    with tempfile.TemporaryDirectory(prefix="spyreprof-bench-") as folder:
        sizes_bytes = []
        for steps in (CALIBRATION_STEPS, 2 * CALIBRATION_STEPS):
            path = Path(folder) / f"{steps}.json"
            profiled(steps, path)
            sizes_bytes.append(path.stat().st_size)
    per_step_bytes = max(1.0, (sizes_bytes[1] - sizes_bytes[0]) / CALIBRATION_STEPS)
    steps = max(1, round(megabytes * MEGABYTE / per_step_bytes))
    profiled(steps, target)
    return steps


def make(folder: Path) -> None:
    """Make the inputs that a folder lacks. `s` has stacks, `e` stamps that count from the epoch.

    Raises:
        NotKinetoError: the installed torch writes traces of another form.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, stacks in (("t50.json", False), ("t50s.json", True)):
        _unless_there(folder / name, partial(record, megabytes=50.0, stacks=stacks))
    for name, source, megabytes, epoch in (
        ("t50e.json", "t50.json", 0.0, True),
        ("t250.json", "t50.json", 250.0, False),
        ("t250s.json", "t50s.json", 250.0, False),
        ("t250e.json", "t50.json", 250.0, True),
        ("t1g.json", "t50.json", 1000.0, False),
    ):
        _unless_there(folder / name, partial(amplify, folder / source, megabytes=megabytes, epoch=epoch))
    _unless_there(folder / "t250.json.gz", partial(_compress, folder / "t250.json"))


def make_larger(folder: Path, timed_events: int) -> Path:
    """Make a trace of so many events, or a few more, where the folder has none.

    Raises:
        NotKinetoError: as for `make`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, path = folder / "t50.json", folder / f"events-{timed_events}.json"
    _unless_there(source, partial(record, megabytes=50.0, stacks=False))
    _unless_there(path, partial(amplify, source, timed_events=timed_events))
    return path


def _unless_there(path: Path, maker: Callable[..., object]) -> None:
    if not path.exists():
        partial_path = path.with_name(f".{path.name}.partial")
        maker(target=partial_path)
        partial_path.replace(path)
        print(f"{path}: {path.stat().st_size / MEGABYTE:,.0f} MB", file=sys.stderr)


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as plain, gzip.open(target, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed, 2**20)


def main() -> None:
    """Make one input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("target", type=Path)
    recording.add_argument("--mb", type=float, default=50.0)
    recording.add_argument("--stacks", action="store_true")
    repeating = verbs.add_parser("amplify")
    repeating.add_argument("source", type=Path)
    repeating.add_argument("target", type=Path)
    repeating.add_argument("--mb", type=float, default=0.0, help="at least so large")
    repeating.add_argument("--events", type=int, default=0, help="at least so many")
    repeating.add_argument("--epoch", action="store_true")
    options = parser.parse_args()
    if options.verb == "record":
        print(f"{record(options.target, megabytes=options.mb, stacks=options.stacks)} steps")
        return
    try:
        copies = amplify(
            options.source, options.target, megabytes=options.mb, timed_events=options.events, epoch=options.epoch
        )
        print(f"{copies} copies")
    except NotKinetoError as error:
        sys.exit(f"{error}. Pass a trace as export_chrome_trace wrote it.")


if __name__ == "__main__":
    main()
