"""Turns a case, one TOML file, into the tables that analyzers get.

A case names only what its situation tells: gauges per engine, rates of counters, steps of a small synthetic engine or
in patterns, requests, settings, what a profiler window showed. What it does not name is missing. Times stand in the
unit of their name; two numbers in a list are the ends of a range that is drawn from evenly, with a fixed seed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
from case_rows import Made, Row, profiled_steps, stack_rows, usage_rows
from engine_builder import table

from spyreprof.recording.counters import exported_engines
from spyreprof.recording.schema import (
    COUNTERS,
    POLLS,
    REQUESTS,
    STACKS,
    STEPS,
    USAGE,
    AnalysisInputs,
    Column,
    EngineSettings,
    ModelFacts,
    Peak,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PARTS = {
    "pending", "run", "settings", "model", "peaks", "engine", "steps", "gauges", "counters", "histograms", "info",
    "requests", "usage", "stacks", "compiles", "profiled", "expect",
}  # fmt: skip
_STACKS = (
    *(column for column in STACKS if column.name not in ("function", "file")),
    Column("frame", "Int64", "measured", "number of a function"),
)


class NotYetAnInputError(AssertionError):
    """The case names a fact that no table holds yet."""


@dataclass(frozen=True)
class Case:
    """One file: its name without suffix, its text, and what it holds."""

    name: str
    text: str
    facts: Row

    @property
    def pending(self) -> bool:
        """Whether no rule answers it yet."""
        return bool(self.facts.get("pending", False))


def cases() -> list[Case]:
    """All cases beside this file, by name."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        found.append(Case(path.stem, text, tomllib.loads(text)))
    return found


def inputs_of(facts: Row) -> AnalysisInputs:
    """The tables of one case."""
    if unknown := set(facts) - _PARTS:
        raise ValueError(f"no such part of a case: {', '.join(sorted(unknown))}")
    run = facts.get("run", {})
    made = Made(run)
    for number, engine in enumerate(facts.get("engine", [])):
        made.replay(engine, number)
    for pattern in facts.get("steps", []):
        made.pattern(pattern)
    made.sample(facts)
    for group in facts.get("requests", []):
        made.log(group)
    for group in facts.get("compiles", []):
        made.compile(group)
    made.cut()
    counters = _table(COUNTERS, sorted(made.counters, key=lambda row: row["time_ns"]))
    settings, engines = _settings(facts.get("settings", {})), exported_engines(counters)
    steps = sorted(made.steps, key=lambda row: row["start_ns"])
    polls = made.polls()
    return AnalysisInputs(
        steps=_table(STEPS, steps),
        requests=_table(REQUESTS, made.requests),
        counters=counters,
        usage=_table(USAGE, [row for group in facts.get("usage", []) for row in usage_rows(group, made.end_ns)]),
        recording_start_ns=0,
        recording_end_ns=made.end_ns,
        finished=run.get("finished", True),
        profiled_steps=tuple(
            shown for group in facts.get("profiled", []) for shown in profiled_steps(group, facts, steps)
        ),
        stacks=_table(_STACKS, list(stack_rows(facts["stacks"], made.end_ns))) if "stacks" in facts else None,
        compiles=tuple(sorted(made.compiles, key=lambda one: one.start_ns)),
        peaks=tuple(_peaks(facts.get("peaks", {}))),
        model=_typed(ModelFacts, facts.get("model", {})),
        settings=settings,
        settings_of=tuple((engine, settings) for engine in engines) if len(engines) > 1 else (),
        device_kind=run.get("device"),
        cpu_count=run.get("cpu_count"),
        polls=_table(POLLS, polls) if polls is not None else None,
    )


def _peaks(facts: Row) -> Iterator[Peak]:
    """Measured before and after the run, unless the case gives another origin."""
    origin = facts.get("origin", "measured")
    source = "calibration" if origin == "measured" else "hardware file"
    for name, resource, unit in (
        ("compute_flop_per_s", "compute", "flop/s"),
        ("read_bytes_per_s", "memory_bandwidth", "bytes/s"),
        ("dispatch_ns", "dispatch", "ns/operator"),
    ):
        if name in facts:
            value = float(facts[name])
            after = float(facts.get(f"{name}_after", value))
            twice = (value, after) if origin == "measured" else (None, None)
            yield Peak(resource, max(value, after), unit, origin, source, *twice)  # type: ignore[arg-type]


def _settings(facts: Row) -> EngineSettings:
    return _typed(EngineSettings, {"source": "/metrics", **facts} if facts else {})


def _typed(kind: Any, facts: Row) -> Any:
    names = {one.name for one in fields(kind)}
    if unknown := set(facts) - names:
        raise NotYetAnInputError(f"{kind.__name__} holds no {', '.join(sorted(unknown))}")
    return kind(**facts)


def _table(columns: tuple[Column, ...], rows: list[Row]) -> pd.DataFrame:
    """Rows as a table; a fact that the table cannot hold yet fails the case instead of being dropped."""
    names = {column.name for column in columns}
    if unknown := {key for row in rows for key in row} - names:
        raise NotYetAnInputError(f"no table holds {', '.join(sorted(unknown))}")
    return table(columns, rows)
