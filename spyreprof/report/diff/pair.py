"""Two reports side by side, and how one condition of both becomes a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from spyreprof.report.diff.model import Condition, NeededFor, State
from spyreprof.report.model import Public, Report
from spyreprof.report.redact import holds_pseudonym, own_words

Value = TypeVar("Value")
RECORD_AGAIN = "Record both with this release, and compare the recordings."


@dataclass(frozen=True)
class Pair:
    """Two reports to compare.

    Attributes:
        shared: one redactor made both, so that equal pseudonyms stand for equal texts.
    """

    a: Report
    b: Report
    shared: bool


def row(
    name: str,
    a: Public | None,
    b: Public | None,
    state: State,
    *,
    needed_for: NeededFor = "all",
    note: str | None = None,
    obtain: str | None = None,
) -> Condition:
    """A row; nothing need be obtained where it is the same."""
    return Condition(
        name=name,
        a=a,
        b=b,
        state=state,
        needed_for=needed_for,
        note=note,
        obtain=obtain if state != "same" else None,
    )


def text(
    pair: Pair, name: str, a: Public | None, b: Public | None, *, obtain: str, needed_for: NeededFor = "all"
) -> Condition:
    """A row of two texts that either are the same or are not."""
    state, note = state_of_texts(pair, a, b)
    if state == "differs":
        obtain = f"Compare runs of the same {name}."
    return row(name, a, b, state, needed_for=needed_for, note=note, obtain=obtain)


def state_of_texts(pair: Pair, a: Public | None, b: Public | None) -> tuple[State, str | None]:
    """Whether two texts are the same, and why that is unknown: a pseudonym proves nothing outside of its own report."""
    if a is None or b is None:
        return "unknown", who_lacks(a, b)
    if not pair.shared and (holds_pseudonym(a) or holds_pseudonym(b)):
        return "unknown", "a pseudonym means something within its own report alone; compare the recordings"
    return ("same" if a == b else "differs"), None


def who_lacks(a: object, b: object) -> str:
    """Which side does not tell, in words."""
    return "neither side tells" if a is None and b is None else f"{'A' if a is None else 'B'} does not tell"


def spelled(value: Value | None, spell: Callable[[Value], str]) -> Public | None:
    """A value in words of our own and numbers; None stays None."""
    return None if value is None else own_words(spell(value))


def alike(a: float, b: float, tolerance: float) -> bool:
    """Whether two numbers differ by no more than a ratio of the larger."""
    largest = max(abs(a), abs(b))
    return largest == 0 or abs(a - b) <= tolerance * largest
