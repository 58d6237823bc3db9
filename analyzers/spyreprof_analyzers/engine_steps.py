"""Engine steps as integer arrays: the form that budget, slope and scheduler analysis work on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from numpy.typing import NDArray

    from spyreprof.recording.schema import Interval

# What a count that nothing tells is.
UNKNOWN = -1

PREFILL, DECODE, MIXED, UNKNOWN_PHASE = 0, 1, 2, 3
PHASE_NAMES = ("prefill", "decode", "mixed", "unknown")
_EXECUTED = ("context_tokens", "generation_requests", "generation_seq_len_sum")


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """Steps of one engine, ordered by start, all arrays of length n and dtype int64.

    Counts are `UNKNOWN` (-1) where the hook could not see them. Times are CLOCK_MONOTONIC nanoseconds. What was
    executed is what the device computed, padding included; where nobody told, it is the scheduled count, and never
    below it. `told_executed` counts the executed columns that were told.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    phase: NDArray[np.int64]
    context_requests: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    context_seq_len_sum: NDArray[np.int64]
    context_q_k_sum: NDArray[np.int64]
    generation_requests: NDArray[np.int64]
    generation_tokens: NDArray[np.int64]
    generation_seq_len_sum: NDArray[np.int64]
    executed_context_tokens: NDArray[np.int64]
    executed_generation_requests: NDArray[np.int64]
    executed_generation_seq_len_sum: NDArray[np.int64]
    told_executed: NDArray[np.int64]
    compiles: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Mask of the steps whose requests and tokens are all known. One that is not may still have a phase."""
        counts = (self.context_requests, self.context_tokens, self.generation_requests, self.generation_tokens)
        known = np.ones(len(self), dtype=np.bool_)
        for count in counts:
            known &= count != UNKNOWN
        return known

    @property
    def duration_ns(self) -> NDArray[np.int64]:
        """Step durations."""
        return self.end_ns - self.start_ns

    def clear_of(self, pauses: Iterable[Interval]) -> NDArray[np.bool_]:
        """Mask of the steps that no pause touches."""
        keep = np.ones(len(self), dtype=np.bool_)
        for pause in pauses:
            keep &= (self.end_ns <= pause.start_ns) | (self.start_ns >= pause.end_ns)
        return keep

    def where(self, mask: NDArray[np.bool_]) -> EngineSteps:
        """The steps that a boolean mask of length n selects."""
        return EngineSteps(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})

    def of_phase(self, phase: int) -> EngineSteps:
        """The steps of one phase."""
        return self.where(self.phase == phase)


def engine_steps(table: pd.DataFrame, writer: str) -> EngineSteps:
    """Take one writer's rows of the `steps` table (columns of `spyreprof.recording.schema.STEPS`)."""
    return _of_one(table[table["writer"] == writer])


def steps_by_writer(table: pd.DataFrame, writers: Iterable[str]) -> dict[str, EngineSteps]:
    """Take the rows of several writers, as `engine_steps` does for one, looking through the table once."""
    places = table.groupby("writer", sort=False).indices
    return {writer: _of_one(table.iloc[places.get(writer, [])]) for writer in writers}


def _of_one(rows: pd.DataFrame) -> EngineSteps:
    rows = rows.sort_values("start_ns", kind="stable")

    def column(name: str) -> NDArray[np.int64]:
        if name not in rows.columns:  # optional ones may be left out of a table that is made by hand
            return np.full(len(rows), UNKNOWN, dtype=np.int64)
        return np.asarray(rows[name].fillna(UNKNOWN), dtype=np.int64)

    executed = {name: column(f"executed_{name}") for name in _EXECUTED}
    context, generation = column("context_tokens"), column("generation_requests")
    # A step that its program marked may have a phase without counts; counts, where there are any, tell more.
    codes = {name: code for code, name in enumerate(PHASE_NAMES)}
    phase = np.asarray([codes.get(name, UNKNOWN_PHASE) for name in rows["phase"].fillna("unknown")], dtype=np.int64)
    known = (context != UNKNOWN) & (generation != UNKNOWN)
    phase[known & (context > 0) & (generation == 0)] = PREFILL
    phase[known & (context == 0) & (generation > 0)] = DECODE
    phase[known & (context > 0) & (generation > 0)] = MIXED
    return EngineSteps(
        start_ns=column("start_ns"),
        end_ns=column("end_ns"),
        phase=phase,
        context_requests=column("context_requests"),
        context_tokens=context,
        context_seq_len_sum=column("context_seq_len_sum"),
        context_q_k_sum=column("context_q_k_sum"),
        generation_requests=generation,
        generation_tokens=column("generation_tokens"),
        generation_seq_len_sum=column("generation_seq_len_sum"),
        # fewer than scheduled cannot have been executed: then the program counts something else
        **{f"executed_{name}": np.maximum(told, column(name)) for name, told in executed.items()},
        told_executed=np.sum([told != UNKNOWN for told in executed.values()], axis=0, dtype=np.int64),
        compiles=rows["compiles"].fillna(0).to_numpy(dtype=np.int64),
    )


def busiest_writer(table: pd.DataFrame) -> str | None:
    """The process whose steps took the most time; None when there are no steps."""
    if table.empty:
        return None
    busy = (table["end_ns"] - table["start_ns"]).groupby(table["writer"]).sum()
    return str(busy.idxmax())
