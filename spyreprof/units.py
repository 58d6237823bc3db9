"""Conversions and the spelling of quantities. Stored values keep base units; only presentation converts.

Standard library only: the recorder imports this.
"""

from __future__ import annotations

NS_PER_S = 1_000_000_000
S_PER_NS = 1e-9


def format_seconds(seconds: float) -> str:
    """Spell a duration with three significant digits in the unit that suits it: 842 ms, 3.90 s, 12.4 µs."""
    magnitude = abs(seconds)
    if magnitude >= 600:
        return f"{seconds / 60:.0f} min"
    for limit, scale, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs"), (0.0, 1e9, "ns")):
        if magnitude >= limit:
            return f"{_three_digits(seconds * scale)} {unit}"
    return f"{seconds} s"  # NaN


def format_bytes(count: float) -> str:
    """Spell a size in decimal units, as memory bandwidths are quoted: 403 MB, 1.21 GB."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= limit:
            return f"{_three_digits(count / limit)} {unit}"
    return f"{count:.0f} B"


def format_rate(per_second: float, unit: str) -> str:
    """Spell a rate with an SI prefix: format_rate(7.9e9, "B/s") is 7.90 GB/s."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(per_second) >= limit:
            return f"{_three_digits(per_second / limit)} {prefix}{unit}"
    return f"{_three_digits(per_second)} {unit}"


def format_share(ratio: float) -> str:
    """Spell a ratio of 0 to 1 as a percentage with one decimal."""
    return f"{ratio * 100:.1f} %"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
