"""Speedscope's own file format, all versions: sampled and evented profiles over one list of frames."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec

from spyreprof.errors import UserError
from spyreprof.stacks.profile import ROOT, StackProfile, StackQuality, StackTree

NO_SUCH_FRAME = "a frame that the file does not define"
NO_WEIGHT = "no weight for the sample"
BAD_WEIGHT = "a weight that is no positive number"
NO_STACK = "an empty stack"
NOT_OPEN = "the end of a frame that is not open"
BAD_EVENT = "an event that neither opens nor closes a frame"
NO_TIME = "an event without a time"

# Frames taken out of the middle of a stack are cheap only where they are few.
MAX_REBUILT_FRAMES = 20_000_000

# Keeps out what is not finite, and integers whose sums would not fit.
_LARGEST = 2**62

_UNITS = frozenset(("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"))


class _Frame(msgspec.Struct):
    name: str | None = None
    file: str | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame] = []


class _Event(msgspec.Struct):
    type: str | None = None
    frame: Any = None
    at: Any = None


class _Profile(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    unit: str | None = None
    endValue: Any = None  # noqa: N815 - as the format spells it
    events: list[_Event] = []
    samples: list[list[Any]] = []
    weights: list[Any] = []


class _File(msgspec.Struct):
    shared: _Shared | None = None
    profiles: list[_Profile] | None = None


def read_speedscope(data: bytes, label: str) -> tuple[StackProfile, ...]:
    """Read a speedscope file from memory; a profile each, at least one of them with samples.

    Raises:
        UserError: it is no valid JSON, is not of this format, or has no samples.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as error:
        raise _refused(label, f"is no valid speedscope file: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(label, f"is no valid JSON: {error}") from error
    if file.shared is None or file.profiles is None:
        raise _refused(label, "is no speedscope file: it has no frames or no profiles")
    names = [_shown(frame) for frame in file.shared.frames]
    profiles = tuple(_read_profile(profile, names, label) for profile in file.profiles)
    if not any(map(len, profiles)):
        said = dict.fromkeys(sentence for profile in profiles for sentence in profile.quality.sentences())
        raise _refused(label, " ".join(("holds no stack samples.", *said)).removesuffix("."))
    return profiles


def _refused(label: str, why: str) -> UserError:
    return UserError(f"{label} {why}.", "Write it again with the tool that made it.")


def _shown(frame: _Frame) -> str:
    name = frame.name or "(no name)"
    return f"{name} ({frame.file})" if frame.file else name


def _read_profile(profile: _Profile, names: list[str], label: str) -> StackProfile:
    tree = StackTree(label)
    if profile.type == "evented":
        quality = _add_events(tree, profile, names, label)
    elif profile.type == "sampled":
        quality = _add_samples(tree, profile, names)
    else:
        raise _refused(label, "is no valid speedscope file: a profile in it is neither sampled nor evented")
    unit = profile.unit if profile.unit in _UNITS else "none"
    return tree.profile(profile.name or "", unit or "none", quality)


def _add_samples(tree: StackTree, profile: _Profile, names: list[str]) -> StackQuality:
    dropped: Counter[str] = Counter()
    kept = 0
    for at, sample in enumerate(profile.samples):
        # py-spy and others may leave the weights out where every sample weighs the same.
        weight = profile.weights[at] if at < len(profile.weights) else (None if profile.weights else 1)
        if weight is None:
            dropped[NO_WEIGHT] += 1
        elif not _is_number(weight) or weight < 0:
            dropped[BAD_WEIGHT] += 1
        elif not sample:
            dropped[NO_STACK] += 1
        elif not all(_is_index(frame, names) for frame in sample):
            dropped[NO_SUCH_FRAME] += 1
        else:
            node = ROOT
            for frame in sample:
                node = tree.child(node, tree.frame(names[frame]))
            tree.add(node, weight)
            kept += 1
    return StackQuality(len(profile.samples), kept, dropped=dict(dropped))


def _add_events(tree: StackTree, profile: _Profile, names: list[str], label: str) -> StackQuality:
    dropped: Counter[str] = Counter()
    usable: list[_Event] = []
    for event in profile.events:
        if event.type not in ("O", "C"):
            dropped[BAD_EVENT] += 1
        elif not _is_index(event.frame, names):
            dropped[NO_SUCH_FRAME] += 1
        elif not _is_number(event.at):
            dropped[NO_TIME] += 1
        else:
            usable.append(event)
    disorder = sum(later.at < earlier.at for earlier, later in pairwise(usable))
    if disorder:
        usable.sort(key=lambda event: event.at)
    stack = _OpenFrames(tree, label)
    now: int | float = 0
    for event in usable:
        stack.spend(event.at - now)
        now = event.at
        frame = tree.frame(names[event.frame])
        if event.type == "O":
            stack.open(frame)
        elif not stack.close(frame):
            dropped[NOT_OPEN] += 1
    unclosed = len(stack)
    if unclosed and _is_number(profile.endValue) and profile.endValue > now:
        stack.spend(profile.endValue - now)
    return StackQuality(
        samples_read=len(profile.events),
        samples_kept=len(profile.events) - sum(dropped.values()),
        dropped=dict(dropped),
        out_of_order=disorder,
        crossed=stack.crossed,
        unclosed=unclosed,
    )


class _OpenFrames:
    """The frames that are open at a time, outermost first, each with its node."""

    def __init__(self, tree: StackTree, label: str) -> None:
        self._tree, self._label = tree, label
        self._frames: list[int] = []
        self._nodes: list[int] = []
        self._rebuilt = 0
        self.crossed = 0

    def __len__(self) -> int:
        return len(self._frames)

    def spend(self, weight: int | float) -> None:
        """Time passes with these frames open."""
        if self._nodes and weight > 0:
            self._tree.add(self._nodes[-1], weight)

    def open(self, frame: int) -> None:
        self._frames.append(frame)
        self._nodes.append(self._tree.child(self._top(), frame))

    def close(self, frame: int) -> bool:
        """Close the innermost frame of that kind; False where none is open."""
        if self._frames and self._frames[-1] == frame:
            self._frames.pop()
            self._nodes.pop()
            return True
        place = len(self._frames) - 1
        while place >= 0 and self._frames[place] != frame:
            place -= 1
        self._rebuilt += len(self._frames) - max(place, 0)
        if self._rebuilt > MAX_REBUILT_FRAMES:
            raise UserError(
                f"The stack file {self._label} ends too many frames while inner ones go on.",
                "Write it again with the tool that made it; frames must end in the reverse order of their begin.",
            )
        if place < 0:
            return False
        self.crossed += 1
        above = self._frames[place + 1 :]
        del self._frames[place:], self._nodes[place:]
        for inner in above:
            self.open(inner)
        return True

    def _top(self) -> int:
        return self._nodes[-1] if self._nodes else ROOT


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def _is_index(value: Any, names: list[str]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names)
