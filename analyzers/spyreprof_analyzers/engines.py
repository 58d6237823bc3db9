"""Which engines a recording holds: data-parallel ranks and servers beside one another, each with inputs of its own.

Engines are found twice: in the labels of the polled gauges, and in the processes that ran steps, of which ranks of one
model are one engine. The two are put together by what they say of running requests; numbers of their own they share
nowhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from spyreprof.recording.counters import exported_engines, of_engine
from spyreprof.recording.schema import EngineKey
from spyreprof_analyzers.collectives import connected_writers
from spyreprof_analyzers.engine_steps import EngineSteps, steps_by_writer
from spyreprof_analyzers.scheduler import gauges

if TYPE_CHECKING:
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.scheduler import Gauges

# Numbers of engines that are larger are no numbers of engines.
_MAX_NUMBER = 100_000


@dataclass(frozen=True)
class Engine:
    """One engine of several: its number, and the inputs that speak of it alone.

    `model` numbers the model that it serves where pages name one, so that engines of one model are known as such.
    """

    number: int
    inputs: AnalysisInputs
    model: int | None = None


def engines_of(inputs: AnalysisInputs, rules: RuleBook) -> tuple[Engine, ...]:
    """The engines of a recording; empty where it holds at most one."""
    keys = exported_engines(inputs.counters)
    groups = _step_groups(inputs, rules)
    if len(keys) < 2 and len(groups) < 2:
        return ()
    pairs = _paired(inputs, keys, groups, rules)
    numbers = _numbers([key for key, _ in pairs])
    names = sorted({dict(key.labels)["model_name"] for key in keys if "model_name" in dict(key.labels)})
    served = {name: place for place, name in enumerate(names)}
    return tuple(
        Engine(
            number,
            _inputs_of(inputs, key, keys, group),
            served.get(dict(key.labels).get("model_name", "")) if key is not None else None,
        )
        for number, (key, group) in sorted(zip(numbers, pairs, strict=True), key=lambda one: one[0])
    )


def _numbers(keys: list[EngineKey | None]) -> list[int]:
    """The engines' own numbers where they have some and no two are alike; else their order."""
    labels = [dict(key.labels).get("engine", "") if key is not None else "" for key in keys]
    own = [int(text) for text in labels if text.isascii() and text.isdigit() and len(text) < 8]
    if len(own) == len(keys) == len(set(own)) and max(own) < _MAX_NUMBER:
        return own
    return list(range(len(keys)))


def _inputs_of(
    inputs: AnalysisInputs, key: EngineKey | None, keys: tuple[EngineKey, ...], group: tuple[str, ...]
) -> AnalysisInputs:
    """What speaks of one engine. A client's log does not tell which engine served a request: its times are left out."""
    counters = of_engine(inputs.counters, key, keys) if key is not None else inputs.counters.iloc[:0]
    steps, collectives, phases = inputs.steps, inputs.collectives, inputs.named_phases
    own = {None, "", *group}
    return replace(
        inputs,
        steps=steps[steps["writer"].isin(group)],
        requests=inputs.requests.assign(arrival_ns=pd.array([pd.NA] * len(inputs.requests), dtype="Int64")),
        counters=counters,
        settings=dict(inputs.settings_of).get(key, inputs.settings) if key is not None else inputs.settings,
        profiled_steps=tuple(step for step in inputs.profiled_steps if step.writer in own),
        pauses=tuple(pause for pause in inputs.pauses if pause.writer in own),
        compiles=tuple(compiled for compiled in inputs.compiles if compiled.writer in own),
        collectives=collectives[collectives["writer"].isin(group)] if collectives is not None else None,
        named_phases=phases[phases["writer"].isin(group)] if phases is not None else None,
    )


def _step_groups(inputs: AnalysisInputs, rules: RuleBook) -> list[tuple[str, ...]]:
    """Processes that ran steps, by engine, the busiest engine first; ranks of one model are one engine.

    A process with too few steps to be judged counts with the busiest, whose confidence it lowers.
    """
    if inputs.steps.empty:
        return []
    writers = [str(name) for name in inputs.steps["writer"].unique()]
    if len(writers) == 1:
        return [tuple(writers)]
    of_writer = steps_by_writer(inputs.steps, writers)
    rank_of = {name: _rank(inputs.steps, name) for name in writers}
    left = sorted(writers, key=lambda name: (-int(of_writer[name].duration_ns.sum()), name))
    least = rules["SPY-GEN-001"].threshold("min_steps_any")
    small = [name for name in left[1:] if len(of_writer[name]) < least]
    left = [name for name in left if name not in small]
    groups: list[tuple[str, ...]] = []
    while left:
        first = left[0]
        tied = connected_writers(inputs.collectives, first) if inputs.collectives is not None else ()
        mine = [first]
        for name in left[1:]:
            known = rank_of[name] is not None and rank_of[first] is not None and rank_of[name] != rank_of[first]
            if name in tied:
                same = _same_work(of_writer[first], of_writer[name], rules)
            else:
                same = known and _in_step(of_writer[first], of_writer[name], rules)
            if same:
                mine.append(name)
        groups.append(tuple(mine))
        left = [name for name in left if name not in mine]
    groups[0] = (*groups[0], *small)
    return groups


def _rank(steps: pd.DataFrame, writer: str) -> int | None:
    known = steps.loc[steps["writer"] == writer, "rank"].dropna()
    return int(known.iloc[0]) if len(known) else None


def _work(steps: EngineSteps) -> list[tuple[int, ...]]:
    columns = (steps.context_requests, steps.context_tokens, steps.generation_requests, steps.generation_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _same_work(one: EngineSteps, other: EngineSteps, rules: RuleBook) -> bool:
    """Did two processes that exchange data run steps of the same work? So do ranks of one model and no others.

    Taken for granted where the work is not known.
    """
    if not (one.counted.all() and other.counted.all()):
        return True
    first, second = Counter(_work(one)), Counter(_work(other))
    return (first & second).total() >= rules["SPY-GEN-008"].threshold("same_work_ratio") * min(len(one), len(other))


def _in_step(one: EngineSteps, other: EngineSteps, rules: RuleBook) -> bool:
    """Do two processes with ranks of their own run the same steps at the same time?"""
    rule = rules["SPY-GEN-008"]
    if len(one) > len(other):
        one, other = other, one
    at = np.clip(np.searchsorted(other.start_ns, one.start_ns), 1, max(len(other) - 1, 1))
    before, after = at - 1, np.minimum(at, len(other) - 1)
    apart_before, apart_after = (np.abs(other.start_ns[place] - one.start_ns) for place in (before, after))
    nearest = np.where(apart_before <= apart_after, before, after)
    apart = np.minimum(apart_before, apart_after)
    alike = np.ones(len(one), dtype=np.bool_)
    for name in ("context_requests", "context_tokens", "generation_requests", "generation_tokens"):
        alike &= getattr(one, name) == getattr(other, name)[nearest]
    together = alike & (apart <= rule.threshold("max_start_ratio") * one.duration_ns)
    return bool(together.mean() >= rule.threshold("same_work_ratio"))


def _paired(
    inputs: AnalysisInputs, keys: tuple[EngineKey, ...], groups: list[tuple[str, ...]], rules: RuleBook
) -> list[tuple[EngineKey | None, tuple[str, ...]]]:
    """Put the engines of the pages beside those of the step rows, the most alike first.

    Where there are fewer of one kind, a pair must resemble each other: gauges of one engine judge no other.
    """
    seen = {key: gauges(of_engine(inputs.counters, key, keys), inputs.polls, inputs.recording_end_ns) for key in keys}
    of_writer = steps_by_writer(inputs.steps, [group[0] for group in groups])
    apart = sorted(
        (
            (distance, keys.index(key), place)
            for key in keys
            for place, group in enumerate(groups)
            if (distance := _apart(of_writer[group[0]], seen[key])) is not None
        ),
    )
    limit = np.inf if len(keys) == len(groups) else rules["SPY-GEN-008"].threshold("max_distance")
    pairs: dict[int, int] = {}
    for distance, key_place, place in apart:
        if key_place not in pairs and place not in pairs.values() and distance <= limit:
            pairs[key_place] = place
    if len(keys) == len(groups) == 1:
        pairs = {0: 0}
    made: list[tuple[EngineKey | None, tuple[str, ...]]] = [
        (key, groups[pairs[at]] if at in pairs else ()) for at, key in enumerate(keys)
    ]
    made.extend((None, group) for place, group in enumerate(groups) if place not in pairs.values())
    return made


def _apart(steps: EngineSteps, seen: Gauges | None) -> float | None:
    """How far the running gauge is from the requests in steps, over their mean; None where they cannot be compared."""
    known = steps.where(steps.counted)
    if seen is None or len(known) == 0 or len(seen.time_ns) == 0:
        return None
    at = np.searchsorted(known.start_ns, seen.time_ns, side="right") - 1
    inside = (at >= 0) & (seen.time_ns < known.end_ns[np.maximum(at, 0)]) & ~np.isnan(seen.running)
    if not inside.any():
        return None
    in_step = (known.context_requests + known.generation_requests)[at[inside]].astype(np.float64)
    running = seen.running[inside]
    return float(np.abs(running - in_step).mean() / max((running.mean() + in_step.mean()) / 2, 1.0))
