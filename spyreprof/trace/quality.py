"""What became of a trace file's events while it was read."""

from __future__ import annotations

from dataclasses import dataclass, field

# Reasons for which an event is left out; the words stand in sentences and in report.json.
UNREADABLE = "not valid JSON"
NOT_AN_OBJECT = "not a JSON object"
OVERSIZED = "larger than an event may be"
NO_TIME = "no time stamp"
NO_PHASE = "no event type"
TIME_RANGE = "a time stamp out of range"
ZERO_TIME = "stamped with time 0"

# What was mended in an event that was kept.
NOT_FINITE = "numbers that are not finite, taken as missing"
STRAY_BACKSLASH = "backslashes that escape nothing, taken as they stand"
STRAY_QUOTE = "quotation marks inside a text"
CONTROL_CHARACTER = "control characters inside a text"
NOT_UTF8 = "bytes that are not UTF-8, replaced"
LONE_SURROGATE = "halves of surrogate pairs, replaced"
TOO_DEEP = "values nested too deeply, taken as missing"
TRAILING_COMMA = "commas that nothing follows, left out"


@dataclass(frozen=True)
class TraceQuality:
    """What became of the file's events.

    Attributes:
        events_read: elements of the file's list of events, readable or not.
        events_kept: rows of the table.
        metadata_events: names and sort orders of processes and threads; they become `TraceMetadata`.
        dropped: reason -> number of events left out.
        repaired: what was mended -> number of events that were kept thanks to it, however often in each.
        truncated_at_byte: where reading stopped when the file (or its compressed stream) is cut short; an offset in
            the text, after decompression.
        zero_duration: complete events that took no time; they are kept.
        negative_duration: complete events that end before they begin; kept without a duration.
        missing_duration: complete events without a duration; kept without one.
        unknown_phases: event type (`ph`) that the trace-event format does not define -> number; they are kept.
        paired: begin and end events that were joined into complete ones, counted as pairs.
        unmatched_begin: begin events without an end; kept without a duration.
        unmatched_end: end events without a begin; left out.
        crossed: pairs whose spans cross on one thread, so that they do not nest.
        stack_samples: samples of call stacks that stand beside the events; `spyreprof.stacks` reads them. None where
            there are so many that they were passed over uncounted.
        folded_values: names and other texts that share one because the file holds too many different ones.
    """

    events_read: int
    events_kept: int
    metadata_events: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    truncated_at_byte: int | None = None
    zero_duration: int = 0
    negative_duration: int = 0
    missing_duration: int = 0
    unknown_phases: dict[str, int] = field(default_factory=dict)
    paired: int = 0
    unmatched_begin: int = 0
    unmatched_end: int = 0
    crossed: int = 0
    stack_samples: int | None = 0
    folded_values: int = 0

    @property
    def truncated(self) -> bool:
        """Whether the file is cut short, so that later events are missing."""
        return self.truncated_at_byte is not None

    def sentences(self) -> tuple[str, ...]:
        """What a reader of the report must know; empty for a clean file."""
        said = []
        if self.truncated_at_byte is not None:
            said.append(
                f"The trace is cut short at byte {self.truncated_at_byte:,}; "
                f"{self.events_kept:,} complete events before it are used."
            )
        said.extend(f"Events of the trace left out, {why}: {n:,}." for why, n in sorted(self.dropped.items()))
        said.extend(f"Events of the trace, mended, {why}: {n:,}." for why, n in sorted(self.repaired.items()))
        for name, count in (
            ("Events of the trace that end before they begin", self.negative_duration),
            ("Events of the trace without a duration", self.missing_duration),
            ("Events of the trace of a type that its format does not define", sum(self.unknown_phases.values())),
            ("Begin events of the trace without an end", self.unmatched_begin),
            ("End events of the trace without a begin, left out", self.unmatched_end),
            ("Spans of the trace that cross another one of their thread", self.crossed),
            ("Samples of call stacks beside the events of the trace, read apart from them", self.stack_samples or 0),
            ("Texts of the trace that are shown as one, being too many different ones", self.folded_values),
        ):
            if count:
                said.append(f"{name}: {count:,}.")
        return tuple(said)
