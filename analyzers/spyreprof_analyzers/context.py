"""What every finding is concluded from, and what findings of one kind say alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spyreprof.findings import Severity, Verdict
    from spyreprof.request_figures import TailLatency
    from spyreprof.rules import Rule, RuleBook
    from spyreprof.targets import Targets
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.facts import Facts

NOTHING_AGAINST = "nothing in this recording speaks against it"


@dataclass(frozen=True, slots=True)
class Context:
    """The picture of one engine, the verdict reached from it, and where numbers are written down.

    A finding is a function of this alone.
    """

    facts: Facts
    verdict: Verdict
    targets: Targets
    rules: RuleBook
    book: EvidenceBook
    tails: tuple[TailLatency, ...] = ()

    def severity(self, share: float, rule: Rule) -> Severity:
        """From a share of the window; an engine that idles for want of load has no severe finding."""
        if self.verdict.primary == "load_limited":
            return "low"
        if share >= rule.threshold("high_severity_share"):
            return "high"
        return "medium" if share >= rule.threshold("medium_severity_share") else "low"

    def against(self, *more: str) -> tuple[str, ...]:
        """Dissenting witnesses, then what else speaks against a finding."""
        views = self.verdict.witnesses
        said = [f"{view.name.replace('_', ' ')}: {view.text}" for view in views if view.agrees is False]
        return (*said, *more) or (NOTHING_AGAINST,)
