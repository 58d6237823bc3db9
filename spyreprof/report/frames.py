"""Puts names of Python functions into the analyzers' sentences, as far as they may be shown.

Analyzers know functions by number and write `frame#3`. A number that is not replaced shows nothing, so that a name can
reach a report only through the redactor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from spyreprof.findings import Evidence, Finding
    from spyreprof.report.redact import Redactor

_MARK = re.compile(r"frame#(\d{1,9})")


class FrameNames:
    """Names by number, redacted when they are first asked for."""

    def __init__(self, frames: Sequence[tuple[str, str]], redactor: Redactor) -> None:
        self._frames = frames
        self._redactor = redactor

    def findings(self, found: Sequence[Finding]) -> tuple[Finding, ...]:
        """The same findings with names in their texts."""
        return tuple(msgspec.structs.replace(finding, text=self._named(finding.text)) for finding in found)

    def evidence(self, found: Sequence[Evidence]) -> tuple[Evidence, ...]:
        """The same evidence with names in its methods."""
        return tuple(msgspec.structs.replace(one, method=self._named(one.method)) for one in found)

    def _named(self, text: str) -> str:
        return _MARK.sub(self._name, text)

    def _name(self, mark: re.Match[str]) -> str:
        number = int(mark.group(1))
        return self._redactor.frame(*self._frames[number]) if number < len(self._frames) else mark.group(0)
