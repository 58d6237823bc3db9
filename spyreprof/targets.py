"""What the user wants of the server: latency targets that advice must respect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets in seconds; None where the user gave none."""

    itl_p99_s: float | None = None
    ttft_p99_s: float | None = None
