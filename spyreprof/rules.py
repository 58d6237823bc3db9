"""Rules as data: thresholds with their origin, texts, and what each rule needs.

The TOML files live beside the analyzers; the registry loads them and passes them in.
"""

from __future__ import annotations

import sys
from importlib import resources
from typing import Literal

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - one branch per interpreter
    import tomli as tomllib

RULES_PACKAGE = "spyreprof_analyzers.rules"


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number that decides, with how far it can be trusted.

    `origin`: "read" in a cited source, "measured" by a script of ours, "guessed" and to be calibrated.
    """

    value: float
    unit: str
    origin: Literal["read", "measured", "guessed"]
    source: str


class Abstention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input without which a rule stays silent or says less, and how to obtain it."""

    missing: str
    obtain: str


# In what order the advice of rules counts: the earlier speaks where two cannot both be followed.
Catalogue = Literal["unservable", "bug", "balance", "compile", "memory", "queue", "phase", "communication", "host"]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule.

    Attributes:
        answers: the question that it answers.
        catalogue: where its advice stands among that of others; None for a rule that advises nothing.
        materiality_share: the share of the window under which it stays silent.
        abstain_when: what must be there for it to speak, and how to obtain it.
    """

    id: str
    version: int
    title: str
    phase: Literal["prefill", "decode", "mixed", "all"]
    needs: tuple[str, ...]
    condition: str
    materiality_share: float
    false_positive_notes: tuple[str, ...]
    answers: str = ""
    catalogue: Catalogue | None = None
    abstain_when: tuple[Abstention, ...] = ()
    thresholds: dict[str, Threshold] = {}

    def threshold(self, name: str) -> float:
        """The value of a threshold; KeyError on a name that the rule file lacks is a bug of ours."""
        return self.thresholds[name].value


class RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One TOML file."""

    rule: tuple[Rule, ...]


class RuleBook:
    """All rules, found by id."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self._by_id = {rule.id: rule for rule in rules}
        if len(self._by_id) != len(rules):
            raise ValueError("two rules share an id")

    def __getitem__(self, rule_id: str) -> Rule:
        return self._by_id[rule_id]


def load_rules() -> RuleBook:
    """Read every rule file of the built-in analyzers, ordered by rule id."""
    rules: list[Rule] = []
    for entry in resources.files(RULES_PACKAGE).iterdir():
        if entry.name.endswith(".toml"):
            document = tomllib.loads(entry.read_text(encoding="utf-8"))
            rules.extend(msgspec.convert(document, RuleFile).rule)
    return RuleBook(tuple(sorted(rules, key=lambda rule: rule.id)))
