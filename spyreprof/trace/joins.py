"""Finding rows by an id."""

from __future__ import annotations

import numpy as np

from spyreprof.trace.table import MISSING, Integers

# Ids in a range of at most so many times their number (and some) are looked up in a table of that range.
_SPARSE = 8
_SMALL = 2**16


class Lookup:
    """Rows by id. An id may belong to several rows; `MISSING` belongs to none.

    Args:
        ids, rows: shape (m,), the id of each row.
    """

    def __init__(self, ids: Integers, rows: Integers) -> None:
        good = ids != MISSING
        ids, rows = ids[good], rows[good]
        order = np.argsort(ids, kind="stable")
        self._rows = rows[order]
        self._ids = ids[order]
        self._first: Integers | None = None
        if len(ids):
            low, high = int(self._ids[0]), int(self._ids[-1])
            if high - low < _SPARSE * len(ids) + _SMALL:
                self._low = low
                self._first = np.concatenate(([0], np.cumsum(np.bincount(self._ids - low))))

    def find(self, wanted: Integers) -> tuple[Integers, Integers]:
        """The first row of each id (in the order given at the start) and how many rows have it.

        Returns:
            Rows, `MISSING` where none has the id, and counts; shape (k,) each.
        """
        if not len(self._ids):
            return np.full(len(wanted), MISSING, np.int64), np.zeros(len(wanted), np.int64)
        if self._first is not None:
            high = self._low + len(self._first) - 2
            known = (wanted >= self._low) & (wanted <= high)
            place = np.where(known, wanted - self._low, 0)
            first, end = self._first[place], self._first[place + 1]
            count = np.where(known, end - first, 0)
        else:
            first = np.searchsorted(self._ids, wanted, "left")
            count = np.searchsorted(self._ids, wanted, "right") - first
        # -1 is no id even where numbers around it are
        count = np.where(wanted == MISSING, 0, count)
        rows = self._rows[np.minimum(first, len(self._rows) - 1)]
        return np.where(count > 0, rows, MISSING), count

    def only(self, wanted: Integers) -> Integers:
        """The row of each id that exactly one row has, else `MISSING`; shape (k,)."""
        rows, count = self.find(wanted)
        return np.where(count == 1, rows, MISSING)
