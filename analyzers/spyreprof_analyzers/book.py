"""The evidence book: every number of a diagnosis is written here once and referred to by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from spyreprof.findings import Evidence, NotJudged

if TYPE_CHECKING:
    from spyreprof.findings import EvidenceWindow, Origin


class EvidenceBook:
    """Collects evidence and open questions while the analyzers run.

    `window` is what a number speaks for where its writer does not say otherwise; `engine` is set while one of several
    engines is judged.
    """

    def __init__(self, window: EvidenceWindow = "steady") -> None:
        self.window: EvidenceWindow = window
        self.engine: int | None = None
        self._evidence: list[Evidence] = []
        self._not_judged: dict[str, NotJudged] = {}

    def add(  # noqa: PLR0913 - the fields of a piece of evidence
        self,
        metric: str,
        value: float | int | str | None,
        unit: str,
        origin: Origin,
        *,
        method: str,
        source: str,
        window: EvidenceWindow | None = None,
        n: int | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> str:
        """Write a number down; the value is its id. The same number from the same place is written once."""
        found = Evidence(
            id=f"e{len(self._evidence) + 1}",
            metric=metric,
            value=value,
            unit=unit,
            origin=origin,
            method=method,
            source=source,
            window=window or self.window,
            engine=self.engine,
            n=n,
            low=low,
            high=high,
        )
        same = next((e for e in self._evidence if msgspec.structs.replace(found, id=e.id) == e), None)
        if same is not None:
            return same.id
        self._evidence.append(found)
        return found.id

    def leave_open(self, topic: str, reason: str, obtain: str) -> None:
        """Say that a question was not judged, and what would answer it; a topic is named once."""
        self._not_judged.setdefault(topic, NotJudged(topic=topic, reason=reason, obtain=obtain))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Everything written so far, in order."""
        return tuple(self._evidence)

    @property
    def not_judged(self) -> tuple[NotJudged, ...]:
        """Every open question, in order."""
        return tuple(self._not_judged.values())
