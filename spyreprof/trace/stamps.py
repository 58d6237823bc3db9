"""Microseconds, as a trace spells them, to whole nanoseconds, exactly.

Three ways of equal result: from doubles, which are exact only while they are small; from the digits, for whole columns
at once; and value by value, for spellings that the other two do not take.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import numpy as np

from spyreprof.trace.table import Flags, Integers

# Below 2^43 µs a double still tells nanoseconds apart: its spacing is 2^-10 µs. Above, only the digits do.
EXACT_BELOW_US = float(2**43)

_INT64 = range(-(2**63), 2**63)
_COMMA = b","
# Nanoseconds of a number of more digits do not fit; a longer one is refused before it is computed with.
_LONGEST = 64
_MOST_DIGITS = 18
_NUMBER_BYTES = b"0123456789-.,"


class InexactError(ValueError):
    """A double is too large to tell nanoseconds apart: read the digits instead."""


class Nanoseconds(NamedTuple):
    """`ns` has shape (n,); where `good` is false it holds 0."""

    ns: Integers
    good: Flags


def from_doubles(us: Sequence[float | None]) -> Nanoseconds:
    """Convert microseconds that a JSON decoder made doubles of; None is not good.

    Raises:
        InexactError: a value lies outside of what doubles can hold to the nanosecond.
    """
    values = np.asarray(us, np.float64)
    good = ~np.isnan(values)
    missing = not good.all()
    if missing:
        values = np.where(good, values, 0.0)
    if len(values) and not (values.min() > -EXACT_BELOW_US and values.max() < EXACT_BELOW_US):
        raise InexactError
    # The fraction is scaled by itself: the product of the whole value is rounded too, from 2^42 µs on to halves, and
    # a half would go to the even neighbour.
    whole = np.trunc(values)
    ns = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    return Nanoseconds(ns, good)


def from_digits(texts: Sequence[msgspec.Raw]) -> Nanoseconds:
    """Convert the JSON text of microseconds: numbers, or strings that hold one; an empty text is not good."""
    joined = _COMMA.join(texts)
    whole = _whole_column(joined, len(texts))
    return Nanoseconds(whole, np.ones(len(texts), np.bool_)) if whole is not None else from_values(_unquoted(texts))


def _unquoted(texts: Sequence[msgspec.Raw]) -> list[str | None]:
    return [bytes(text).strip(b'"').decode(errors="replace") or None for text in texts]


def _whole_column(joined: bytes, count: int) -> Integers | None:
    """All numbers at once where they are spelled alike: without decimals, or all with three."""
    if not count:
        return np.zeros(0, np.int64)
    joined = joined.translate(None, b'"')
    if joined.translate(None, _NUMBER_BYTES):
        return None
    text = np.frombuffer(joined, np.uint8)
    ends = np.append(np.flatnonzero(text == ord(",")), len(text))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts
    dots = np.flatnonzero(text == ord("."))
    if len(ends) != count or int(lengths.min()) < 1 or int(lengths.max()) > _MOST_DIGITS + 1:
        return None
    if len(dots) not in (0, count) or (len(dots) and not (np.array_equal(dots, ends - 4) and (dots > starts).all())):
        return None
    minus = np.flatnonzero(text == ord("-"))
    if len(minus) and not (np.isin(minus, starts).all() and not np.isin(minus + 1, ends).any()):
        return None
    digits = joined.replace(b".", b"") if len(dots) else joined
    with warnings.catch_warnings():
        # What it would warn of is text that is no number; then the count is short.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            numbers = np.fromstring(digits, np.int64, sep=",")
        except ValueError:
            return None
    if len(numbers) != count:
        return None
    if len(dots):
        return numbers
    largest = 2**63 // 1000
    return numbers * 1000 if int(numbers.max()) < largest and int(numbers.min()) > -largest else None


def from_values(values: Sequence[Any]) -> Nanoseconds:
    """Convert microseconds of any spelling: int, float, Decimal, or text; what is no number in range is not good."""
    ns = np.zeros(len(values), np.int64)
    good = np.zeros(len(values), np.bool_)
    for index, value in enumerate(values):
        whole = nanoseconds(value)
        if whole is not None:
            ns[index], good[index] = whole, True
    return Nanoseconds(ns, good)


def nanoseconds(value: Any) -> int | None:
    """One value in microseconds as whole nanoseconds, rounded half to even; None where it is no time in range."""
    if isinstance(value, str):
        if len(value) > _LONGEST:
            return None
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        if not -(2.0**63) < value < 2.0**63:
            return None
        # As in `from_doubles`: the product of a large double is rounded before it is rounded here.
        whole_us = int(value)
        whole = whole_us * 1000 + round((value - whole_us) * 1000)
    except (ArithmeticError, ValueError):
        return None
    return whole if whole in _INT64 else None
