"""Samples beside the events of a Chrome trace: `samples` that point into a tree of `stackFrames`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec

from spyreprof.errors import UserError
from spyreprof.stacks.profile import ROOT, StackProfile, StackQuality, StackTree

NO_SUCH_FRAME = "a frame that the file does not define"
ENDLESS_STACK = "frames that are their own callers"


class _Frame(msgspec.Struct):
    name: str | None = None
    parent: int | str | None = None


class _Sample(msgspec.Struct):
    pid: Any = None
    tid: Any = None
    sf: int | str | None = None
    weight: Any = None


class _File(msgspec.Struct):
    samples: list[_Sample] | None = None
    frames: dict[str, _Frame] = msgspec.field(name="stackFrames", default={})


def read_chrome_samples(data: bytes, label: str) -> tuple[StackProfile, ...]:
    """Read the samples of a Chrome trace from memory: a profile for each thread, weights as the file gives them.

    Raises:
        UserError: it is no valid JSON, or has no samples that can be used.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(label, f"has no readable samples: {error}") from error
    threads: defaultdict[tuple[str, str], list[_Sample]] = defaultdict(list)
    for sample in file.samples or ():
        threads[str(sample.pid), str(sample.tid)].append(sample)
    profiles = tuple(
        _thread(samples, file.frames, f"process {pid}, thread {tid}", label) for (pid, tid), samples in threads.items()
    )
    if not any(map(len, profiles)):
        said = dict.fromkeys(sentence for profile in profiles for sentence in profile.quality.sentences())
        raise _refused(label, " ".join(("holds no stack samples.", *said)).removesuffix("."))
    return profiles


def _refused(label: str, why: str) -> UserError:
    return UserError(f"{label} {why}.", "Write it again with the tool that made it.")


def _thread(samples: list[_Sample], frames: dict[str, _Frame], name: str, label: str) -> StackProfile:
    tree = StackTree(label)
    nodes: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    kept = 0
    for sample in samples:
        path, reason = _path(str(sample.sf), frames, nodes)
        if reason is not None:
            dropped[reason] += 1
            continue
        for key in reversed(path):
            frame = frames[key]
            above = nodes[str(frame.parent)] if frame.parent is not None else ROOT
            nodes[key] = tree.child(above, tree.frame(frame.name or "(no name)"))
        tree.add(nodes[str(sample.sf)], _weight(sample.weight))
        kept += 1
    return tree.profile(name, "none", StackQuality(len(samples), kept, dropped=dict(dropped)))


def _path(key: str, frames: dict[str, _Frame], nodes: dict[str, int]) -> tuple[list[str], str | None]:
    """The frames from `key` upwards that have no node yet, and why the stack cannot be used."""
    path: dict[str, None] = {}
    while key not in nodes:
        frame = frames.get(key)
        if frame is None:
            return [], NO_SUCH_FRAME
        if key in path:
            return [], ENDLESS_STACK
        path[key] = None
        if frame.parent is None:
            break
        key = str(frame.parent)
    return list(path), None


def _weight(value: Any) -> int:
    """A sample that does not say what it weighs counts as one."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62:
        return value
    return 1
