"""What an import leaves of a file of call stacks in a recording: each profile in brief, with its data quality."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.recording.imported_files import read_stored
from spyreprof.recording.waiting import is_waiting, waits_in_file
from spyreprof.stacks.profile import StackProfile

if TYPE_CHECKING:
    from spyreprof.recording.source import Source

# Of each profile: functions by self weight, by total weight, and of those that wait.
TOP = 15
MAX_PROFILES = 32
MAX_FILES = 1024
MAX_NAME = 256
MAX_FILE_BYTES = 2**23

KINDS = ("speedscope", "collapsed_stacks", "trace")

# A weight whose unit the file does not tell is a number of samples, never a time.
SAMPLES = "samples"
UNITS = {
    "none": SAMPLES,
    "nanoseconds": "ns",
    "microseconds": "us",
    "milliseconds": "ms",
    "seconds": "s",
    "bytes": "bytes",
}
NO_FILES = "no frame names a Python file, so that a wait cannot be told from work"
NOT_TIME = "the weights are sizes, of which none can wait"

_STACKS = re.compile(rf"{layout.TRACES}/(\d{{1,6}})\.stacks\.json", re.ASCII)

# "wait (threading.py:302)" as py-spy and speedscope write it, "threading.py(302): wait" as torch does.
_PLACE_BEHIND = re.compile(r"(?P<function>.*\S) \((?P<file>[^()]+?)(?::\d{1,9})?\)", re.DOTALL)
_PLACE_BEFORE = re.compile(r"(?P<file>[^()]+\.pyx?)\(\d{1,9}\): (?P<function>.+)", re.DOTALL)
_LINE_BEHIND = re.compile(r"(?P<function>.*\S):\d{1,9}", re.DOTALL)
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(.+)", re.DOTALL)
_STANDARD = re.compile(r".*/lib(?:64)?/(?:python|pypy)3(?:\.\d+)?t?/(.+)", re.DOTALL)
_STDLIB = "<stdlib>/"


class StackFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a profile, all of its lines together. Weights are in the unit of the profile.

    Attributes:
        file: within its package where that is known; None where the frame names none.
        self_weight: of stacks that end in it.
        total_weight: of stacks that hold it, once each however often it recurs in them.
        waits: it is known to wait; None where that cannot be told.
    """

    function: str
    file: str | None
    self_weight: int | float
    total_weight: int | float
    waits: bool | None


class StackProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One profile of a file, such as one thread's.

    Attributes:
        name: as the file has it; None where it has none.
        unit: of the weights: "samples" where the file tells no unit, else "ns", "us", "ms", "s" or "bytes".
        weight: of all stacks.
        samples_read, samples_kept, comments, dropped, out_of_order, crossed, unclosed, truncated: as in `StackQuality`.
        quality: the same in sentences.
        functions: how many there are.
        top: those with the most weight by self weight, the largest first.
        waiting_weight: of stacks that end in a function that is known to wait; None where that cannot be told, see
            `waiting_reason`. Functions that are not known count as work, so that it is the least there can be.
    """

    name: str | None
    unit: str
    weight: int | float
    samples_read: int
    samples_kept: int
    comments: int
    dropped: dict[str, int]
    out_of_order: int
    crossed: int
    unclosed: int
    truncated: bool
    quality: tuple[str, ...]
    functions: int
    top: tuple[StackFunction, ...]
    waiting_weight: int | float | None
    waiting_reason: str | None


class StackFileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One file of stacks. Counts are of all its profiles, listed or not.

    Attributes:
        kind: "speedscope", "collapsed_stacks", or "trace" for samples that stand beside the events of a trace.
        profiles_read: profiles in the file.
        profiles_without_weight: those of which no sample with a weight is left; they are not listed.
        dropped: reason -> number of samples left out.
        profiles: those with the most weight by unit, the largest first.
        profiles_total: with weight; there may be more than are listed.
    """

    kind: str
    profiles_read: int
    profiles_without_weight: int
    samples_read: int
    samples_kept: int
    dropped: dict[str, int]
    profiles: tuple[StackProfileSummary, ...]
    profiles_total: int


def stacks_name(number: int) -> str:
    """Where the stacks of a file lie in its recording; numbers begin with 1."""
    return f"{layout.TRACES}/{number}.stacks.json"


def read_stack_files(source: Source) -> tuple[tuple[StackFileSummary, ...], int]:
    """The files of stacks of a recording in the order in which they were given, and how many are damaged."""
    numbered = sorted((int(match[1]), name) for name in source.names() if (match := _STACKS.fullmatch(name)))
    found = [read_stored(source, name, StackFileSummary, MAX_FILE_BYTES) for _, name in numbered[:MAX_FILES]]
    kept = tuple(one for one in found if one is not None and all(map(_is_plausible, one.profiles)))
    return kept, len(numbered) - len(kept)


def _is_plausible(profile: StackProfileSummary) -> bool:
    weights = [profile.weight, *(weight for one in profile.top for weight in (one.self_weight, one.total_weight))]
    weights += [profile.waiting_weight] if profile.waiting_weight is not None else []
    return profile.weight > 0 and all(0 <= weight <= profile.weight * (1 + 1e-9) for weight in weights)


def summarise_stacks(profiles: Sequence[StackProfile], kind: str, label: str) -> StackFileSummary:
    """Sum up the profiles of one file.

    Raises:
        UserError: none of them has a weight.
    """
    weighty = [profile for profile in profiles if profile.total_weight > 0]
    dropped: Counter[str] = Counter()
    for profile in profiles:
        dropped.update(profile.quality.dropped)
    if not weighty:
        raise UserError(f"The stacks of {label} have no weight.", "Record them again, while the program runs.")
    # weights of different units do not compare; samples come last as they tell least
    units = [*(unit for unit in UNITS if unit != "none"), "none"]
    weighty.sort(key=lambda profile: (units.index(profile.unit), -profile.total_weight))
    return StackFileSummary(
        kind=kind,
        profiles_read=len(profiles),
        profiles_without_weight=len(profiles) - len(weighty),
        samples_read=sum(profile.quality.samples_read for profile in profiles),
        samples_kept=sum(profile.quality.samples_kept for profile in profiles),
        dropped=dict(sorted(dropped.items())),
        profiles=tuple(_summary(profile) for profile in weighty[:MAX_PROFILES]),
        profiles_total=len(weighty),
    )


def _summary(profile: StackProfile) -> StackProfileSummary:
    places = [function_and_file(name) for name in profile.frames]
    merged = profile.renamed([repr(place) for place in places])
    functions = list(dict.fromkeys(places))
    own, total = merged.by_frame()
    reason = _why_waits_unknown(profile.unit, functions)
    waits = np.asarray([file is not None and is_waiting(function, file) for function, file in functions], np.bool_)
    by_self, by_total = np.argsort(-own, kind="stable"), np.argsort(-total, kind="stable")
    chosen = {*by_self[:TOP].tolist(), *by_total[:TOP].tolist(), *by_self[waits[by_self]][:TOP].tolist()}
    quality = profile.quality
    return StackProfileSummary(
        name=profile.name[:MAX_NAME] or None,
        unit=UNITS.get(profile.unit, SAMPLES),
        weight=profile.total_weight,
        samples_read=quality.samples_read,
        samples_kept=quality.samples_kept,
        comments=quality.comments,
        dropped=dict(sorted(quality.dropped.items())),
        out_of_order=quality.out_of_order,
        crossed=quality.crossed,
        unclosed=quality.unclosed,
        truncated=quality.truncated,
        quality=quality.sentences(),
        functions=len(functions),
        top=tuple(
            StackFunction(
                function=functions[code][0][:MAX_NAME],
                file=_cut(functions[code][1]),
                self_weight=own[code].item(),
                total_weight=total[code].item(),
                waits=None if reason is not None else bool(waits[code]),
            )
            for code in by_self.tolist()
            if code in chosen and total[code] > 0
        ),
        waiting_weight=own[waits].sum().item() if reason is None else None,
        waiting_reason=reason,
    )


def _why_waits_unknown(unit: str, functions: Sequence[tuple[str, str | None]]) -> str | None:
    if unit == "bytes":
        return NOT_TIME
    return None if any((file or "").endswith((".py", ".pyx")) for _, file in functions) else NO_FILES


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:MAX_NAME]


@lru_cache(maxsize=65536)
def function_and_file(frame: str) -> tuple[str, str | None]:
    """The function that a frame names, without its line, and its file within its package, as far as that can be told.

    py-spy leaves the folder of the standard library out, so that its files look like the user's own. Only functions
    that are known to wait are taken for the library's, and without their class, which may be the user's.
    """
    match = _PLACE_BEHIND.fullmatch(frame) or _PLACE_BEFORE.fullmatch(frame)
    if match is None:
        plain = _LINE_BEHIND.fullmatch(frame)
        return (plain["function"] if plain else frame), None
    function, path = match["function"], match["file"].replace("\\", "/")
    for pattern, prefix in ((_INSTALLED, ""), (_STANDARD, _STDLIB)):
        found = pattern.fullmatch(path)
        if found is not None:
            return function, prefix + found[1]
    plain_name = function.rpartition(".")[2]
    if waits_in_file(plain_name, f"{_STDLIB}{path}"):
        return plain_name, f"{_STDLIB}{path}"
    return function, path
