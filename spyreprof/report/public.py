"""The type of text that came from outside and was let through by `spyreprof.report.redact`."""

from __future__ import annotations

from typing import NewType

Public = NewType("Public", str)
