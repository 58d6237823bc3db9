"""Dictionary encoding: each distinct value of a column once, its places in the column as small numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from spyreprof.trace.table import MISSING, OTHER_ID, Codes, Integers

# What distinct values of one column may take together. Real traces need some kilobytes; one that gives each event a
# name of its own must not fill the memory.
MAX_VALUES_BYTES = 2**25
MAX_VALUE_CHARACTERS = 2**14
FOLDED = "(further values, folded)"

_ENTRY_BYTES = 100  # of a dictionary entry beside its text


class ValueCodes(dict[Any, int]):
    """The code of each value, given out on first sight; None is `MISSING`. Beyond the limit all new values share one.

    Attributes:
        folded: how many times a value had to be folded.
    """

    def __init__(self, limit_bytes: int = MAX_VALUES_BYTES) -> None:
        super().__init__({None: MISSING})
        self.values_list: list[Any] = []
        self.folded = 0
        self._left_bytes = limit_bytes
        self._fold_code: int | None = None

    def __missing__(self, value: Any) -> int:
        size = len(value) if isinstance(value, (str, bytes)) else 8
        if size + _ENTRY_BYTES > self._left_bytes:
            self.folded += 1
            if self._fold_code is None:
                self._fold_code = self._append(FOLDED)
            return self._fold_code
        self._left_bytes -= size + _ENTRY_BYTES
        code = self[value] = self._append(self.shown(value))
        return code

    def _append(self, value: Any) -> int:
        self.values_list.append(value)
        return len(self.values_list) - 1

    def shown(self, value: Any) -> Any:
        """What is kept for a value that was seen."""
        if isinstance(value, str) and len(value) > MAX_VALUE_CHARACTERS:
            return value[:MAX_VALUE_CHARACTERS] + "\N{HORIZONTAL ELLIPSIS}"
        return value

    def encode(self, values: Sequence[Any]) -> Codes:
        """Codes of values; shape (n,)."""
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))


class IdentityCodes(ValueCodes):
    """Codes of process and thread ids: integers of any size, or texts."""

    def shown(self, value: Any) -> Any:
        """Whole floating-point numbers are integers; everything else that is no integer is a text."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        whole = whole_number(value) if isinstance(value, (float, Decimal)) else None
        return super().shown(str(value)) if whole is None else whole


class RawTextCodes(ValueCodes):
    """Codes of texts by the JSON that spells them; lists and objects are kept as JSON."""

    def __init__(self, texts: ValueCodes, *, lists_only: bool = False) -> None:
        super().__init__()
        self[b""] = MISSING
        self[b"null"] = MISSING
        self._texts = texts
        self._lists_only = lists_only

    def __missing__(self, raw: bytes) -> int:
        text = raw.decode(errors="replace")
        if self._lists_only and not text.startswith("["):
            return MISSING
        try:
            value = json.loads(text, strict=False)
            # One spelling for lists and objects, whatever their white space.
            text = value if isinstance(value, str) else json.dumps(value)
        except (ValueError, RecursionError):
            text = text.strip('"')
        code = self._texts[text]
        # Spellings are remembered only while there is room, like the texts.
        if len(raw) + _ENTRY_BYTES <= self._left_bytes:
            self._left_bytes -= len(raw) + _ENTRY_BYTES
            self[raw] = code
        return code


class OtherIds:
    """Ids that are no int64."""

    def __init__(self) -> None:
        self.codes = ValueCodes()

    def column(self, values: Sequence[Any]) -> Integers:
        """Ids of any kind as a column; shape (n,)."""
        ids = _all_integers(values)
        if ids is None or (len(ids) and int(ids.min()) <= OTHER_ID):
            ids = np.fromiter(map(self._one, values), np.int64, len(values))
        return ids

    def _one(self, value: Any) -> int:
        whole = whole_number(value)
        if whole is not None and OTHER_ID < whole < 2**63:
            return whole
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return OTHER_ID - self.codes[value]
        return MISSING


def integers(values: Sequence[Any]) -> Integers:
    """Counts as a column; what is no integer that fits is `MISSING`. Shape (n,)."""
    found = _all_integers(values)
    if found is None:
        found = np.full(len(values), MISSING, np.int64)
        for index, value in enumerate(values):
            whole = whole_number(value)
            if whole is not None and -(2**63) <= whole < 2**63:
                found[index] = whole
    return found


def _all_integers(values: Sequence[Any]) -> Integers | None:
    # numpy would cut the fraction off a float without a word
    if not set(map(type, values)) <= {int}:
        return None
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def whole_number(value: Any) -> int | None:
    """An integer, however it is spelled: a number without a fraction, or a text in decimal or hexadecimal digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return None
    try:
        if isinstance(value, str):
            if len(value) > 64:
                return None
            return int(value, 16) if value.strip().lower().startswith(("0x", "-0x")) else int(value)
        if isinstance(value, int):
            return value
        # What the quick decoder would have made of it.
        value = float(value)
        if not -1e30 < value < 1e30:
            return None
        number = int(value)
        return number if number == value else None
    except (ValueError, ArithmeticError):
        return None
