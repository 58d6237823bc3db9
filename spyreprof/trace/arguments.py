"""The arguments of events: a second decoding, by category, of only those that become columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from spyreprof.trace import columns
from spyreprof.trace.codes import OtherIds, RawTextCodes, ValueCodes, integers
from spyreprof.trace.columns import ArgColumn, Group
from spyreprof.trace.table import MISSING, Integers

NO_ARGS = msgspec.Raw(b"{}")

_ABSENT = msgspec.Raw(b"")


class ArgumentCodes:
    """The dictionaries that the columns of arguments share."""

    def __init__(self) -> None:
        self.ids = OtherIds()
        self.dims = ValueCodes()
        self.types = ValueCodes()
        self.texts = ValueCodes()
        self._raw_dims = RawTextCodes(self.dims, lists_only=True)
        self._raw_types = RawTextCodes(self.types, lists_only=True)
        self._raw_texts = RawTextCodes(self.texts)

    def column(self, column: ArgColumn, values: Sequence[Any]) -> Integers:
        """Values of one argument as a column; texts are given as the JSON that spells them. Shape (n,)."""
        if column.kind == "integer":
            return integers(values)
        if column.kind == "id":
            return self.ids.column(values)
        codes = {columns.DIMS: self._raw_dims, columns.TYPES: self._raw_types}.get(column, self._raw_texts)
        return codes.encode(values).astype(np.int64)


class _Plan(NamedTuple):
    """How the arguments of one set of columns are decoded."""

    columns: tuple[ArgColumn, ...]
    decoder: msgspec.json.Decoder[list[Any]]


@lru_cache(maxsize=256)
def _plan(wanted: tuple[ArgColumn, ...]) -> _Plan:
    fields: list[tuple[str, Any, Any]] = [
        (column.name, msgspec.Raw, _ABSENT) if column.kind == "text" else (column.name, int | str | None, MISSING)
        for column in wanted
    ]
    struct = msgspec.defstruct("Arguments", fields, rename={column.name: column.key for column in wanted}, gc=False)
    return _Plan(wanted, msgspec.json.Decoder(list[struct]))  # type: ignore[valid-type]  # made just above


def decode_arguments(category: str | None, raws: Sequence[msgspec.Raw], codes: ArgumentCodes) -> dict[str, Integers]:
    """Decode the arguments of events of one category.

    Args:
        category: which arguments are wanted depends on it.
        raws: the JSON of `args` of each event; `NO_ARGS` for none.
        codes: dictionaries for what is no number.

    Returns:
        Columns by name, only those that some event has; shape (n,).
    """
    always = columns.wanted(category)
    optional = columns.optional(category)
    if not always and not optional:
        return {}
    text = b"[" + b",".join(raws) + b"]"
    # A key may be spelled with escapes.
    escaped = b"\\" in text and b"\\u00" in text
    groups = [group for group in optional if escaped or group.mark in text]
    if not always and not groups:
        return {}
    plan = _plan((*always, *(column for group in groups for column in group.columns)))
    try:
        rows = plan.decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return plain_arguments(category, [decoded(raw) for raw in raws], codes)
    result: dict[str, Integers] = {}
    for column in plan.columns:
        values: Sequence[Any] = list(map(attrgetter(column.name), rows))
        if column.kind == "text":
            values = list(map(bytes, values))
        _put(result, column, values, codes)
    _follow_leaders(result, groups)
    return result


def plain_arguments(
    category: str | None, rows: Sequence[Mapping[str, Any] | None], codes: ArgumentCodes
) -> dict[str, Integers]:
    """The same as `decode_arguments` from arguments that are decoded already."""
    groups = columns.optional(category)
    wanted = (*columns.wanted(category), *(column for group in groups for column in group.columns))
    result = arguments_of(rows, wanted, codes)
    _follow_leaders(result, groups)
    return result


def _follow_leaders(result: dict[str, Integers], groups: Sequence[Group]) -> None:
    for group in groups:
        if group.leader is None:
            continue
        leader = result.get(group.leader.name)
        for column in group.columns:
            if column.name in result:
                followed = np.where(leader != MISSING, result[column.name], MISSING) if leader is not None else None
                if followed is None or not (followed != MISSING).any():
                    del result[column.name]
                else:
                    result[column.name] = followed


def decoded(raw: msgspec.Raw) -> dict[str, Any] | None:
    """The object that a JSON text spells; None where it is none. Numbers may be out of a double's range."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        value = _decoded_slowly(raw)
    return value if isinstance(value, dict) else None


def _decoded_slowly(raw: msgspec.Raw) -> Any:
    try:
        return json.loads(bytes(raw).decode(errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def arguments_of(
    rows: Sequence[Mapping[str, Any] | None], wanted: Sequence[ArgColumn], codes: ArgumentCodes
) -> dict[str, Integers]:
    """Arguments that are decoded already as columns, only those that some event has; shape (n,)."""
    result: dict[str, Integers] = {}
    for column in wanted:
        values = [row.get(column.key) if row is not None else None for row in rows]
        if any(value is not None for value in values):
            spelled = [_spell(value) for value in values] if column.kind == "text" else values
            _put(result, column, spelled, codes)
    return result


def _put(result: dict[str, Integers], column: ArgColumn, values: Sequence[Any], codes: ArgumentCodes) -> None:
    made = codes.column(column, values)
    name = columns.EXTERNAL_ID.name if column is columns.EXTERNAL_ID_OLD else column.name
    if name in result:
        # Two spellings of one key: an event has but one of them.
        made = np.where(made == MISSING, result[name], made)
    if (made != MISSING).any():
        result[name] = made


def _spell(value: Any) -> bytes:
    if value is None:
        return b""
    try:
        return json.dumps(value, default=float).encode()
    except (ValueError, TypeError, RecursionError):
        return b""
