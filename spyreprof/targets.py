"""What the user says of the server: latency targets that advice must respect, and what an hour of it costs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets in seconds, and the price of an hour in the user's currency; None where the user gave none."""

    itl_p99_s: float | None = None
    ttft_p99_s: float | None = None
    price_per_hour: Fraction | None = None
