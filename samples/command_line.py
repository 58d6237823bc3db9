"""Options of the sample's two programs: checked one by one, and a mistake is one sentence and exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

# Output lengths of the second kind of request are drawn from 1 to this.
LONGEST_INTERRUPT_OUTPUT = 2


class Parser(argparse.ArgumentParser):
    """Does not print the whole usage for a mistake in one option."""

    def error(self, message: str) -> NoReturn:
        """End the program with one sentence."""
        self.exit(2, f"{self.prog}: {message}\n")


class Span(tuple[int, int]):
    """First and last of a range of token counts; prints as it is written, A:B."""

    def __str__(self) -> str:
        return f"{self[0]}:{self[1]}"


def span(text: str) -> Span:
    """Parse "A:B" with 1 <= A <= B, or a single number."""
    first, _, last = text.partition(":")
    last = last or first
    if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return Span((int(first), int(last)))
    raise argparse.ArgumentTypeError(f"{text!r} is not A:B with 1 <= A <= B")


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")


def not_negative(text: str) -> int:
    """A whole number, 0 or more."""
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0 < value < float("inf"):
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
