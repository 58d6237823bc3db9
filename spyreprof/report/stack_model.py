"""What a report says about files of call stacks: first how good the data is, then which functions hold the weight.

A weight has the unit that its file tells: "samples" where it tells none, else "ns", "us", "ms", "s" or "bytes". Ratios
run from 0 to 1. None is unknown, and a reason stands beside it.
"""

from __future__ import annotations

import msgspec

from spyreprof.report.public import Public


class SamplesOf(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples were left out for one reason."""

    what: Public
    samples: int


class FunctionWeight(msgspec.Struct, frozen=True, kw_only=True):
    """One function, all of its lines together.

    Attributes:
        name: as it is where it is of a published package, else a pseudonym.
        self_weight, self_ratio: of stacks that end in it, and their part of the profile.
        total_weight, total_ratio: of stacks that hold it, once each however often it recurs in them.
        waits: it is known to wait; None where that cannot be told.
    """

    name: Public
    self_weight: int | float
    self_ratio: float
    total_weight: int | float
    total_ratio: float
    waits: bool | None


class StackProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One profile of a file, such as one thread's.

    Attributes:
        profile: its number among those listed of the file, from 1.
        name: as far as it may be shown; None where the file gives none.
        unit: of the weights.
        weight: of all stacks.
        samples_read: samples, lines or events that belong to the profile, usable or not.
        samples_kept: those that the weights are made from.
        dropped: those left out, by reason. The end of a frame that is not open is one.
        out_of_order: events that stood before earlier ones, sorted.
        crossed: frames that end while an inner one goes on.
        unclosed: frames that never end, closed at the profile's end.
        truncated: the file is cut short.
        notes: all that in words.
        functions_total: there may be more than are listed.
        functions: those with the most self weight, those with the most total weight, and those that wait longest,
            together, by self weight.
        waiting_weight: of stacks that end in a function that is known to wait. Functions that are not known count as
            work, so that it is the least there can be. None where it cannot be told, see `waiting_reason`.
    """

    profile: int
    name: Public | None
    unit: str
    weight: int | float
    samples_read: int
    samples_kept: int
    dropped: tuple[SamplesOf, ...]
    out_of_order: int
    crossed: int
    unclosed: int
    truncated: bool
    notes: tuple[Public, ...]
    functions_total: int
    functions: tuple[FunctionWeight, ...]
    waiting_weight: int | float | None
    waiting_ratio: float | None
    waiting_reason: Public | None


class StackFileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file of call stacks. Counts are of all its profiles, listed or not.

    Attributes:
        file: its number among the files of stacks in the report, from 1.
        kind: "speedscope", "collapsed_stacks", or "trace" for samples beside the events of a trace.
        profiles_read: profiles in the file.
        profiles_without_weight: those of which no sample with a weight is left; they are not listed.
        profiles_total: with weight; there may be more than are listed.
        profiles: those with the most weight, by unit, samples without one last.
    """

    file: int
    kind: str
    profiles_read: int
    profiles_without_weight: int
    profiles_total: int
    samples_read: int
    samples_kept: int
    dropped: tuple[SamplesOf, ...]
    profiles: tuple[StackProfileReport, ...]
