"""What can be said of a trace while it is read, and as soon as it has been: counts, and how its steps share their time.

A full report has to relate millions of events first. This takes what every batch holds anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyreprof.trace.annotations import parse_step_name
from spyreprof.trace.table import MISSING

if TYPE_CHECKING:
    from spyreprof.trace.encode import Batch, Encoder
    from spyreprof.trace.table import EventTable

# Where annotations of steps stand; those on a device's track repeat them.
_CATEGORIES_OF_STEPS = ("user_annotation", "Operator", "cpu_op")
_PHASES = ("prefill", "decode", "mixed")
_NO_STEP = len(_PHASES)


@dataclass(frozen=True)
class FirstResults:
    """What is known of a trace.

    Attributes:
        trace: its number among those that are read, from 1.
        whole: it has been read to its end.
        events_read, events_kept: so far; of a file that two processes read, one sees its own part until the end.
        metadata_events, paired: as in `TraceQuality`, known at the end alone, as is what was repaired.
        repaired, dropped: by reason.
        categories: events of each category, the most frequent first; None stands for those without one.
        phases: part of all steps' durations that those of one phase take; empty without steps whose names tell it.
    """

    trace: int
    whole: bool
    events_read: int
    events_kept: int
    metadata_events: int
    paired: int
    repaired: Mapping[str, int]
    dropped: Mapping[str, int]
    categories: tuple[tuple[str | None, int], ...]
    phases: tuple[tuple[str, float], ...]


class FirstLook:
    """Watches traces being read, one after the other.

    Args:
        tell: called once for each trace that has been read to its end.
    """

    def __init__(self, tell: Callable[[FirstResults], None]) -> None:
        self._tell = tell
        self._trace = 1
        self._begin(None)

    def _begin(self, encoder: Encoder | None) -> None:
        self._encoder = encoder
        self._read = self._kept = 0
        self._dropped: dict[str, int] = {}
        self._cat_values: Sequence[Any] = ()
        self._by_category = np.zeros(0, np.int64)
        self._phase_of_name = np.zeros(0, np.int8)
        self._phase_ns = np.zeros(_NO_STEP + 1)

    def batch(self, encoder: Encoder, batch: Batch) -> None:
        """Take note of a batch that was read."""
        if encoder is not self._encoder:
            # a file whose reading failed may have been begun before
            self._begin(encoder)
        self._read, self._kept = encoder.rows, self._kept + len(batch)
        self._dropped = dict(encoder.dropped)
        self._cat_values = encoder.cat.values_list
        counts = np.bincount(batch.columns["cat"] + 1, minlength=len(self._by_category))
        counts[: len(self._by_category)] += self._by_category
        self._by_category = counts
        new = encoder.name.values_list[len(self._phase_of_name) :]
        self._phase_of_name = np.concatenate((self._phase_of_name, _phases_of(new)))
        self._phase_ns += _phase_ns(
            self._phase_of_name, batch.columns["name"], batch.columns["cat"], self._cat_values, batch.columns["dur_ns"]
        )

    def now(self) -> FirstResults | None:
        """What was seen of the trace that is being read; None before its first events."""
        if not self._read:
            return None
        return FirstResults(
            self._trace,
            False,
            self._read,
            self._kept,
            0,
            0,
            {},
            self._dropped,
            _most_frequent(self._by_category, self._cat_values),
            _shares(self._phase_ns),
        )

    def done(self, table: EventTable) -> None:
        """A trace has been read to its end."""
        quality = table.quality
        ns = _phase_ns(_phases_of(table.name_values), table.name_code, table.cat_code, table.cat_values, table.dur_ns)
        dropped = dict(quality.dropped)
        if quality.unmatched_end:
            dropped["an end without a begin"] = quality.unmatched_end
        results = FirstResults(
            self._trace,
            True,
            quality.events_read,
            quality.events_kept,
            quality.metadata_events,
            quality.paired,
            dict(quality.repaired),
            dropped,
            _most_frequent(np.bincount(table.cat_code + 1), table.cat_values),
            _shares(ns),
        )
        self._trace += 1
        self._begin(None)
        self._tell(results)


def _phases_of(names: Iterable[str]) -> npt.NDArray[np.int8]:
    """The phase of steps of each name, as an index into `_PHASES`; `_NO_STEP` for other names."""
    works = (parse_step_name(name) for name in names)
    return np.asarray([_PHASES.index(work.phase) if work and work.phase else _NO_STEP for work in works], np.int8)


def _phase_ns(
    phase_of_name: npt.NDArray[np.int8],
    name: npt.NDArray[Any],
    category: npt.NDArray[Any],
    category_values: Sequence[Any],
    dur_ns: npt.NDArray[Any],
) -> npt.NDArray[np.float64]:
    """Durations of steps by phase, added up; shape (4,), the last for what is no step."""
    phase = np.append(phase_of_name, np.int8(_NO_STEP))[name]
    wanted = [code for code, value in enumerate(category_values) if value in _CATEGORIES_OF_STEPS]
    steps = np.flatnonzero((phase != _NO_STEP) & np.isin(category, wanted) & (dur_ns != MISSING))
    # of damaged events they may add up to more than an integer holds
    ns = np.zeros(_NO_STEP + 1)
    np.add.at(ns, phase[steps], dur_ns[steps])
    return ns


def _shares(ns: npt.NDArray[np.float64]) -> tuple[tuple[str, float], ...]:
    whole = float(ns.sum())
    return tuple((name, part / whole) for name, part in zip(_PHASES, ns.tolist(), strict=False) if part > 0)


def _most_frequent(counts: npt.NDArray[np.int64], values: Sequence[Any]) -> tuple[tuple[str | None, int], ...]:
    names = (None, *values)
    order = np.argsort(-counts, kind="stable")
    return tuple((names[code], int(counts[code])) for code in order.tolist() if counts[code])
