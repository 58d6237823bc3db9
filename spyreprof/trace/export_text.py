"""Columns of a table as the text of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from spyreprof.trace.columns import ARG_COLUMNS, CORRELATION, DIMS, EXTERNAL_ID, TYPES
from spyreprof.trace.table import MISSING, CounterSamples, EventTable, Integers

_KEYS = {column.name: column.key for column in ARG_COLUMNS}
_KINDS = {column.name: column.kind for column in ARG_COLUMNS}


class SpelledColumns:
    """Columns of a table as the JSON of keys and values."""

    def __init__(self, table: EventTable) -> None:
        self._table = table
        self._names = [f'"name":{spell(name)}' for name in table.name_values] + ['"name":""']
        self._categories = [f',"cat":{spell(cat)}' for cat in table.cat_values] + [""]
        self._lists: dict[str, str] = {}
        self._counter_codes = [code for code, phase in enumerate(table.ph_values) if phase == "C"]
        self._counters = _counters_by_row(table.counters)

    def described(self, block: slice) -> list[str]:
        """Name and category of each row."""
        names, categories = self._table.name_code[block].tolist(), self._table.cat_code[block].tolist()
        return [self._names[name] + self._categories[cat] for name, cat in zip(names, categories, strict=True)]

    def ids(self, column: Integers, block: slice) -> list[str]:
        """The event's own id of each row, with a comma before it; empty where there is none."""
        return [f',"id":{self._id(value)}' if value != MISSING else "" for value in column[block].tolist()]

    def arguments(self, block: slice) -> list[str]:
        """What stands between the brackets of `args` of each row."""
        table = self._table
        if self._counters is not None and (in_block := self._of_counters(block)):
            found = [in_block.get(row, []) for row in range(block.start, block.stop)]
        else:
            found = [[] for _ in range(block.start, block.stop)]
        self._put(found, EXTERNAL_ID.key, table.external_id[block], self._id)
        self._put(found, CORRELATION.key, table.correlation[block], self._id)
        for name, column in table.args.items():
            if name in _KEYS:
                self._put(found, _KEYS[name], column[block], self._as(_KINDS[name]))
        self._put(found, DIMS.key, table.dims_code[block], lambda code: self._list(table.dims_values[code]))
        self._put(found, TYPES.key, table.types_code[block], lambda code: self._list(table.types_values[code]))
        counters = np.isin(table.ph_code[block], self._counter_codes).tolist()
        # Each number in the arguments of a counter is a line of its track: the row is no counter.
        if len(table.row):
            for place, row in enumerate(table.row[block].tolist()):
                if not counters[place]:
                    found[place].append(f'"row":{row}')
        return [",".join(args) for args in found]

    def _of_counters(self, block: slice) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        samples = self._counters
        if samples is None:
            return found
        low, high = np.searchsorted(samples.row, (block.start, block.stop)).tolist()
        for row, code, value in zip(
            samples.row[low:high].tolist(),
            samples.series_code[low:high].tolist(),
            samples.value[low:high].tolist(),
            strict=True,
        ):
            if np.isfinite(value):
                found.setdefault(row, []).append(f"{spell(samples.series_values[code])}:{_number(value)}")
        return found

    @staticmethod
    def _put(found: list[list[str]], key: str, column: Any, spell: Callable[[int], str]) -> None:
        there = np.flatnonzero(column != MISSING)
        for place, value in zip(there.tolist(), column[there].tolist(), strict=True):
            found[place].append(f'"{key}":{spell(value)}')

    def _as(self, kind: str) -> Callable[[int], str]:
        if kind == "id":
            return self._id
        return str if kind == "integer" else (lambda code: spell(self._table.text_values[code]))

    def _id(self, value: int) -> str:
        identity = self._table.identity(value)
        return str(identity) if isinstance(identity, int) else spell(str(identity))

    def _list(self, text: str) -> str:
        """The JSON of a list; one that had to be cut is a text."""
        known = self._lists.get(text)
        if known is None:
            try:
                msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                known = spell(text)
            else:
                known = text
            self._lists[text] = known
        return known


def _counters_by_row(samples: CounterSamples | None) -> CounterSamples | None:
    if samples is None:
        return None
    order = np.argsort(samples.row, kind="stable")
    return CounterSamples(samples.row[order], samples.series_code[order], samples.value[order], samples.series_values)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def microseconds(ns: int) -> str:
    """Nanoseconds as microseconds with three decimals."""
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def spell(text: str) -> str:
    """A text as JSON: ASCII alone, and nothing that a terminal would obey."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def spell_value(value: Any) -> str:
    """Any value as JSON; null where it is none that JSON can spell."""
    try:
        # Numbers that are not finite become null on the way, which plain json would not do.
        return json.dumps(msgspec.json.decode(msgspec.json.encode(value))).replace("\x7f", "\\u007f")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "null"
