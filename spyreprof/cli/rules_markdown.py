"""The rules as Markdown: `docs/rules.md` is what this prints of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spyreprof.rules import Rule

_HEAD = """\
# The rules

Written by `spyreprof rules list --markdown > docs/rules.md` from the rules' own data; a test holds the two equal.

A rule is silent where its share of the window is below its floor, and abstains where an input is missing. The origin of
a threshold is `read` in a cited source, `measured` by a script of ours, or `guessed` and to be calibrated. Where two
pieces of advice cannot both be followed, the earlier kind speaks: unservable, bug, balance, compile, memory, queue,
phase, communication, host.
"""


def markdown(rules: tuple[Rule, ...]) -> str:
    """All of the rules, in their order, each in full."""
    return "\n".join((_HEAD, *(_section(rule) for rule in rules)))


def _section(rule: Rule) -> str:
    lines = [
        f"## {rule.id}: {rule.title}",
        "",
        f"{rule.answers}",
        "",
        f"- Version {rule.version}, phase: {rule.phase}"
        + (f", its advice is about: {rule.catalogue}" if rule.catalogue is not None else ""),
        f"- Condition: {rule.condition}.",
        f"- Silent under {rule.materiality_share:.1%} of the window.",
        f"- Needs: {', '.join(f'`{name}`' for name in rule.needs)}.",
        *(f"- Abstains without {lack.missing}; obtain: {lack.obtain}." for lack in rule.abstain_when),
        *(f"- May be wrong: {note}" for note in rule.false_positive_notes),
        "",
    ]
    if rule.thresholds:
        lines += ["| threshold | value | unit | origin | source |", "|---|---:|---|---|---|"]
        for name, threshold in rule.thresholds.items():
            source = threshold.source.replace("|", "\\|")
            lines.append(f"| {name} | {threshold.value:g} | {threshold.unit} | {threshold.origin} | {source} |")
        lines.append("")
    return "\n".join(lines)
