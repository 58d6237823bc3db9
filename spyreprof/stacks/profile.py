"""Call stacks as one tree: what every stack file is read into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spyreprof.errors import UserError

ROOT = -1

# The largest profiles in the field have some 100,000 different stacks.
MAX_NODES = 5_000_000
MAX_FRAMES_BYTES = 2**28

Integers = npt.NDArray[np.int64]
# int64, or float64 where the file has fractions
Weights = npt.NDArray[Any]


@dataclass(frozen=True)
class StackQuality:
    """What became of the samples of a profile.

    Attributes:
        samples_read: samples, lines or events of the file that belong to the profile, usable or not.
        samples_kept: those that are in the profile.
        comments: lines of comment.
        dropped: reason -> number of samples left out.
        out_of_order: events that stood before earlier ones; they were sorted.
        crossed: frames closed while an inner one was still open; the inner one stays open without it.
        unclosed: frames still open when the profile ends; they are closed at its end.
        truncated: the file is cut short.
    """

    samples_read: int
    samples_kept: int
    comments: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    out_of_order: int = 0
    crossed: int = 0
    unclosed: int = 0
    truncated: bool = False

    def sentences(self) -> tuple[str, ...]:
        """What a reader must know; empty for a clean profile."""
        said = [f"Stack samples left out, {why}: {n:,}." for why, n in sorted(self.dropped.items())]
        if self.truncated:
            said.insert(0, "The file of stacks is cut short; what stands before the cut is used.")
        for name, count in (
            ("Events of the stacks out of order, sorted", self.out_of_order),
            ("Frames that end while an inner one goes on", self.crossed),
            ("Frames that never end, closed at the profile's end", self.unclosed),
        ):
            if count:
                said.append(f"{name}: {count:,}.")
        return tuple(said)


class FrameWeights(NamedTuple):
    """Weight per frame; shape (f,) each.

    Attributes:
        self_weight: of stacks that end in the frame.
        total_weight: of stacks that hold the frame, once each however often it recurs in them.
    """

    self_weight: Weights
    total_weight: Weights


@dataclass(frozen=True)
class StackProfile:
    """The stacks of one profile, such as one thread's: a tree of frames. Shapes (n,) for nodes.

    Attributes:
        name: of the profile in its file; empty where it has none.
        unit: of the weights: "none" for counts, "seconds", "nanoseconds", "bytes", ... as the file says it.
        frames: names by frame code.
        frame_code: of each node, into `frames`.
        parent: node above, `ROOT` for outermost frames. Parents come before their children.
        weight: of the stacks that end at the node: integers, or doubles where the file has fractions.
        count: samples (or stretches of time) that end at the node.
    """

    name: str
    unit: str
    frames: tuple[str, ...]
    frame_code: Integers
    parent: Integers
    weight: Weights
    count: Integers
    quality: StackQuality

    def __len__(self) -> int:
        return len(self.frame_code)

    @property
    def total_weight(self) -> int | float:
        """Of all stacks."""
        total: int | float = self.weight.sum().item()
        return total

    def renamed(self, names: Sequence[str]) -> StackProfile:
        """The same stacks with other names of frames; frames of one name become one, as lines of one function do.

        Args:
            names: by frame code.
        """
        codes: dict[str, int] = {}
        changed = np.asarray([codes.setdefault(name, len(codes)) for name in names], np.int64)
        return replace(self, frames=tuple(codes), frame_code=changed[self.frame_code])

    def stack(self, node: int) -> tuple[str, ...]:
        """Names of the frames down to a node, outermost first."""
        names = []
        while node != ROOT:
            names.append(self.frames[self.frame_code[node]])
            node = int(self.parent[node])
        return tuple(reversed(names))

    def stacks(self) -> dict[tuple[str, ...], int | float]:
        """Weight by stack, for small profiles."""
        found: dict[tuple[str, ...], int | float] = {}
        for node in np.flatnonzero(self.count).tolist():
            stack = self.stack(node)
            found[stack] = found.get(stack, 0) + self.weight[node].item()
        return found

    def by_frame(self) -> FrameWeights:
        """Self and total weight of each frame; recursion counts once."""
        below = self.weight.tolist()
        parent = self.parent.tolist()
        for node in range(len(below) - 1, -1, -1):
            if parent[node] != ROOT:
                below[parent[node]] += below[node]
        own = np.zeros(len(self.frames), self.weight.dtype)
        np.add.at(own, self.frame_code, self.weight)
        total = np.zeros(len(self.frames), self.weight.dtype)
        outermost = self._outermost_of_their_frame()
        np.add.at(total, self.frame_code[outermost], np.asarray(below, self.weight.dtype)[outermost])
        return FrameWeights(own, total)

    def _outermost_of_their_frame(self) -> Integers:
        """Nodes that have no node of the same frame above them."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, above in enumerate(self.parent.tolist()):
            children[above].append(node)  # those without a parent go to the entry at the end
        frame = self.frame_code.tolist()
        open_count = [0] * len(self.frames)
        found = []
        left = [(node, False) for node in children[ROOT]]
        while left:
            node, leaving = left.pop()
            if leaving:
                open_count[frame[node]] -= 1
                continue
            if not open_count[frame[node]]:
                found.append(node)
            open_count[frame[node]] += 1
            left.append((node, True))
            left.extend((child, False) for child in children[node])
        return np.asarray(sorted(found), np.int64)


class StackTree:
    """Grows a profile sample by sample."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._codes: dict[str, int] = {}
        self._frames_bytes = 0
        self._nodes: dict[tuple[int, int], int] = {}
        self._frame: list[int] = []
        self._parent: list[int] = []
        self._weight: list[int | float] = []
        self._count: list[int] = []

    def frame(self, name: str) -> int:
        """The code of a frame.

        Raises:
            UserError: the names are too much to hold.
        """
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._codes)
            self._frames_bytes += len(name) + 100
            if self._frames_bytes > MAX_FRAMES_BYTES:
                raise self._too_large(f"than {MAX_FRAMES_BYTES / 2**20:.0f} MiB of frame names")
        return code

    def child(self, node: int, frame: int) -> int:
        """The node of a frame under a node or `ROOT`.

        Raises:
            UserError: there are too many different stacks to hold.
        """
        found = self._nodes.get((node, frame))
        if found is None:
            found = self._nodes[node, frame] = len(self._frame)
            if found >= MAX_NODES:
                raise self._too_large(f"than {MAX_NODES:,} different stacks")
            self._frame.append(frame)
            self._parent.append(node)
            self._weight.append(0)
            self._count.append(0)
        return found

    def add(self, node: int, weight: int | float) -> None:
        """Count a sample that ends at a node."""
        self._weight[node] += weight
        self._count[node] += 1

    def _too_large(self, what: str) -> UserError:
        return UserError(
            f"The stack file {self._label} holds more {what}, too much to read at once.",
            "Record for a shorter time, or without line numbers.",
        )

    def profile(self, name: str, unit: str, quality: StackQuality) -> StackProfile:
        """What was added, as columns."""
        exact = all(isinstance(weight, int) for weight in self._weight) and sum(self._weight) < 2**63
        return StackProfile(
            name=name,
            unit=unit,
            frames=tuple(self._codes),
            frame_code=np.asarray(self._frame, np.int64),
            parent=np.asarray(self._parent, np.int64),
            weight=np.asarray(self._weight, np.int64 if exact else np.float64),
            count=np.asarray(self._count, np.int64),
            quality=quality,
        )
