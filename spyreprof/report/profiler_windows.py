"""What the profiler windows of a recording cost the program.

A window holds the program up twice: while it opens, and while it is closed and written. Both are measured. Between
the two the program runs its steps, slower than usual; that is not part of the pause, and is kept out of the steady
state with it.
"""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from spyreprof.report.figures import UNKNOWN, spell
from spyreprof.report.model import ProfilerWindow, ProfilerWindows, Public, WindowRefusal
from spyreprof.report.redact import own_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spyreprof.findings import SteadyWindow
    from spyreprof.recording.manifest import Collector
    from spyreprof.recording.rows import WindowRow
    from spyreprof.recording.windows import Window
    from spyreprof.report.redact import Redactor

# Name of the hook, and of its state in the manifest.
PROFILER = "torch.profiler"
_LARGEST = 2**63 - 1

Span = tuple[int, int]


def profiler_windows(
    windows: Sequence[Window],
    collectors: Iterable[Collector],
    recording: Span,
    steady: SteadyWindow | None,
    redactor: Redactor,
) -> ProfilerWindows:
    """Sum up the windows of all processes.

    Args:
        windows: windows and refusals, in any order.
        collectors: their states tell why there is no window.
        recording: start and end, ns.
        steady: the stretch that is judged; None where there is none.
        redactor: reasons are sentences of the recorded process.
    """
    opened = [window.row for window in windows if window.row.t1 is not None]
    refused = Counter(window.row.reason or "" for window in windows if window.row.t1 is None)
    held = [pause for row in opened for pause in _pauses(row)]
    lengths = [length for row in opened if (length := _pause_ns(row)) is not None]
    steady_span = (steady.start_ns, steady.end_ns) if steady is not None else None
    return ProfilerWindows(
        opened=len(opened),
        saved=sum(row.state == "saved" for row in opened),
        refused=tuple(
            WindowRefusal(reason=redactor.text("sentence", reason), count=number)
            for reason, number in sorted(refused.items())
        ),
        steps=_sum(row.steps for row in opened),
        operators=_sum(row.operators for row in opened),
        pause_total_ns=_union_ns(held) if lengths else None,
        pause_longest_ns=max(lengths, default=None),
        pause_median_ns=int(median(lengths)) if lengths else None,
        share_of_recording=_share(held, recording) if lengths else None,
        share_of_steady_window=_share(held, steady_span) if lengths and steady_span else None,
        windows=tuple(
            ProfilerWindow(
                start_ns=row.t0,
                pause_ns=_pause_ns(row),
                kept_out_ns=row.t3 - row.t0 if row.t0 is not None and row.t3 is not None and row.t3 >= row.t0 else None,
                steps=row.steps,
                operators=row.operators,
                state=redactor.text("sentence", row.state),
                reason=redactor.optional("sentence", row.reason),
            )
            for row in sorted(opened, key=lambda row: row.t0 or 0)
        ),
        missing=None if opened else _why_none(bool(refused), collectors, redactor),
    )


def _why_none(refused: bool, collectors: Iterable[Collector], redactor: Redactor) -> Public:
    state = next((collector for collector in collectors if collector.name == PROFILER), None)
    if refused:
        return own_words("every window was refused")
    if state is None:
        return own_words("none was asked for, or the program did not load torch")
    if state.state != "ok":
        return redactor.text("sentence", state.reason or state.state)
    return own_words("no step came after the program had warmed up")


def _pauses(row: WindowRow) -> list[Span]:
    """Where the program was held up: the opening, and from the end of recording until it went on."""
    pairs = ((row.t0, row.t1), (row.t2, row.t3))
    return [(start, end) for start, end in pairs if start is not None and end is not None and end > start]


def _pause_ns(row: WindowRow) -> int | None:
    """Length of both parts; None where one of the four times is missing."""
    if None in (row.t0, row.t1, row.t2, row.t3):
        return None
    return sum(end - start for start, end in _pauses(row))


def _union_ns(spans: Iterable[Span]) -> int:
    """Time that at least one span covers: windows of several processes may hold the program up at once."""
    total = 0
    reached = -1
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _share(held: Iterable[Span], whole: Span) -> float | None:
    start_ns, end_ns = whole
    if end_ns <= start_ns:
        return None
    inside = [(max(start, start_ns), min(end, end_ns)) for start, end in held if start < end_ns and end > start_ns]
    return _union_ns(inside) / (end_ns - start_ns)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(sum(known), _LARGEST) if known else None


def in_words(windows: ProfilerWindows) -> str:
    """One line for a terminal: windows, steps, and for how long the program stood still."""
    if windows.missing is not None:
        said = f"no window: {windows.missing}"
    else:
        steps = UNKNOWN if windows.steps is None else f"{windows.steps:,}"
        said = f"{windows.opened:,} opened, {steps} steps"
        if windows.saved < windows.opened:
            said += f", {windows.opened - windows.saved:,} not saved"
        if windows.pause_total_ns is not None:
            total, longest = spell(windows.pause_total_ns, "ns"), spell(windows.pause_longest_ns, "ns")
            said += f", held the program up for {total} in all (longest {longest}), kept out of the steady state"
    refused = sum(refusal.count for refusal in windows.refused)
    if refused:
        reasons = "; ".join(refusal.reason for refusal in windows.refused)
        said += f". {refused:,} refused: {reasons}"
    return said
