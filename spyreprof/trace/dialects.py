"""Dialects of traces: what categories and names mean, by who wrote the trace. The data is in dialects.toml."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import resources
from typing import Literal, NamedTuple

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - one branch per interpreter
    import tomli as tomllib

GENERIC = "generic"


class Sort(NamedTuple):
    """What decides an event's role: texts that many events share. "" where absent."""

    category: str
    name: str
    process: str


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions on an event: see dialects.toml. Those not given hold for all."""

    categories: tuple[str, ...] | None = None
    processes: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()

    def may_fit(self, category: str, process: str) -> bool:
        """Whether events of the category and process can fit."""
        return (self.categories is None or category in self.categories) and (
            self.processes is None or process in self.processes
        )

    @property
    def asks_for_name(self) -> bool:
        """Whether the name matters."""
        return bool(self.names or self.prefixes or self.suffixes or self.contains)

    def fits_name(self, name: str) -> bool:
        """Whether an event of this name fits, given that its category and process do."""
        if not self.asks_for_name:
            return True
        if name in self.names or name.startswith(self.prefixes) or name.endswith(self.suffixes):
            return True
        lower = name.lower() if self.contains else ""
        return any(part in lower for part in self.contains)

    def fits(self, sort: Sort) -> bool:
        """Whether an event fits."""
        return self.may_fit(sort.category, sort.process) and self.fits_name(sort.name)


class Rule(Mark, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The role of the events that fit."""

    role: str
    origin: Literal["read", "measured", "guessed"]


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one kind of profiler writes: see dialects.toml."""

    name: str
    title: str
    containers: bool
    lane: Literal["stream", "thread"]
    stray_calls: bool = False
    launch_flows: tuple[str, ...] = ()
    operator_flows: tuple[str, ...] = ()
    marks: tuple[Mark, ...]
    rules: tuple[Rule, ...]

    def rules_for(self, category: str, process: str) -> tuple[Rule, ...]:
        """The rules that can fit events of a category and process, in order, up to the first that always does."""
        found = []
        for rule in self.rules:
            if rule.may_fit(category, process):
                found.append(rule)
                if not rule.asks_for_name:
                    break
        return tuple(found)


class _Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[Rule, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dialect: tuple[Dialect, ...]
    shared: _Shared


@lru_cache(maxsize=1)
def dialects() -> tuple[Dialect, ...]:
    """All dialects in the order in which they are tried; the shared rules stand behind each one's own."""
    text = resources.files(__package__ or __name__).joinpath("dialects.toml").read_text(encoding="utf-8")
    file = msgspec.convert(tomllib.loads(text), _File)
    return tuple(
        msgspec.structs.replace(dialect, rules=(*dialect.rules, *file.shared.rules)) for dialect in file.dialect
    )


def dialect_named(name: str) -> Dialect:
    """A dialect by its name; KeyError on one that does not exist is a bug of ours."""
    return {dialect.name: dialect for dialect in dialects()}[name]
