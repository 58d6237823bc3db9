"""How a report spells its numbers: units, origins, ranges, shares that add up."""

from __future__ import annotations

from collections.abc import Sequence

from spyreprof.findings import Evidence, ExpectedChange, Origin
from spyreprof.units import S_PER_NS, format_bytes, format_rate, format_seconds, format_share

UNKNOWN = "unknown"

ORIGIN_TAGS: dict[Origin, str] = {
    "measured": "meas",
    "derived": "derived",
    "estimated": "est.",
    "declared": "declared",
    "assumed": "assumed",
}


def spell(value: float | int | str | None, unit: str) -> str:
    """Spell a stored value: ns and s as a duration, ratio as a percentage, anything else beside its unit."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    spelled = {
        "ns": lambda: format_seconds(value * S_PER_NS),
        "s": lambda: format_seconds(value),
        "bytes": lambda: format_bytes(value),
        "bytes/s": lambda: format_rate(value, "B/s"),
        "flop/s": lambda: format_rate(value, "FLOP/s"),
        "ratio": lambda: format_share(value),
    }.get(unit)
    return spelled() if spelled else f"{count(value)} {unit}".rstrip()


def count(value: float | int) -> str:
    """Spell a count with thousands separators; a mean keeps three significant digits."""
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spell_evidence(evidence: Evidence) -> str:
    """One line for one number: id, metric, value, interval, origin, sample size."""
    parts = [evidence.id, evidence.metric, spell(evidence.value, evidence.unit)]
    if evidence.low is not None and evidence.high is not None:
        parts.append(f"[{spell(evidence.low, evidence.unit)} to {spell(evidence.high, evidence.unit)}]")
    basis = ORIGIN_TAGS[evidence.origin]
    if evidence.n is not None:
        basis += f", n={evidence.n:,}"
    return " ".join([*parts, f"({basis})"])


def references(ids: Sequence[str]) -> str:
    """Ids of evidence in brackets, runs of them shortened: " [e1-e8 e12]"; nothing for none."""
    runs: list[list[str]] = []
    for name in ids:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    shown = " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(run) for run in runs)
    return f" [{shown}]" if shown else ""


def _follows(before: str, name: str) -> bool:
    digits = before.lstrip("e")
    return digits.isdecimal() and name == f"e{int(digits) + 1}"


def spell_change(change: ExpectedChange) -> str:
    """Spell a predicted change as a range, or as a direction where no amount can be predicted."""
    if change.low is None or change.high is None:
        amount = f"{change.direction}, amount not predicted"
    else:
        low, high = _signed(change.low, change.direction), _signed(change.high, change.direction)
        ends = dict.fromkeys(f"{end * 100:+.0f} %" for end in (low, high))
        amount = " to ".join(ends)
    note = f"; {change.note}" if change.note else ""
    return f"{change.metric} {amount} ({ORIGIN_TAGS[change.origin]}){note}"


def spell_ratio(ratio: float) -> str:
    """A relative change with its sign and one decimal: "+12.5 %"."""
    return f"{ratio * 100:+.1f} %"


def _signed(ratio: float, direction: str) -> float:
    return -abs(ratio) if direction == "down" else ratio


def closing_shares(parts_ns: Sequence[int], whole_ns: int) -> list[float]:
    """Percentages with one decimal that add up to what they are parts of.

    Rounding each part alone would print budgets of 99.9 or 100.1 %, and a reader who adds them up would
    wonder where the rest went. The tenths left over go to the parts that lost most by rounding down.

    Args:
        parts_ns: the parts, none negative.
        whole_ns: their sum, more than 0.
    """
    tenths = [part * 1000 // whole_ns for part in parts_ns]
    lost = [part * 1000 % whole_ns for part in parts_ns]
    left_over = sum(parts_ns) * 1000 // whole_ns - sum(tenths)
    for index in sorted(range(len(lost)), key=lambda i: (-lost[i], i))[:left_over]:
        tenths[index] += 1
    return [value / 10 for value in tenths]
