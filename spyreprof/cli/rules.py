"""`spyreprof rules`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from spyreprof import registry
from spyreprof.errors import UserError

if TYPE_CHECKING:
    from spyreprof.report.page import Page
    from spyreprof.rules import Rule


class Action(str, Enum):
    """What to do with the rules. `show` is the older name of `info`."""

    LIST = "list"
    INFO = "info"
    SHOW = "show"


def command(
    action: Annotated[
        Action, typer.Argument(help="list: all rules; info: one rule in full (show does the same).")
    ] = Action.LIST,
    rule_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A rule's id, for info.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The rules as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The rules in full, as Markdown.")] = False,
) -> None:
    """Print the rules that judge a recording: their conditions, and where each threshold comes from."""
    import msgspec

    from spyreprof.cli.rules_markdown import markdown

    if as_json and as_markdown:
        raise UserError("--json and --markdown are two formats.", "Choose one of them.")
    rules, one = registry.rules().rules, action is not Action.LIST
    if one:
        rules = (_chosen(rules, rule_id),)
    elif rule_id is not None:
        raise UserError("`rules list` takes no id.", f"Write `spyreprof rules info {rule_id}`.")
    if as_json:
        document = rules[0] if one else rules
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
        return
    if as_markdown:
        sys.stdout.write(markdown(rules))
        return
    page = _page()
    if one:
        _draw(page, rules[0])
    else:
        for rule in rules:
            page.labelled(rule.id, f"{rule.title} ({rule.phase}): {rule.answers}")
    sys.stdout.write(page.render())


def _page() -> Page:
    import shutil

    from spyreprof.cli.presenting import shows_unicode
    from spyreprof.report.page import Page

    return Page(shutil.get_terminal_size((80, 24)).columns, ascii_only=not shows_unicode())


def _chosen(rules: tuple[Rule, ...], rule_id: str | None) -> Rule:
    remedy = "`spyreprof rules list` names them all."
    if rule_id is None:
        raise UserError("`rules info` needs the id of a rule.", remedy)
    for rule in rules:
        if rule.id.lower() == rule_id.lower():
            return rule
    raise UserError(f"There is no rule {rule_id!r}.", remedy)


def _draw(page: Page, rule: Rule) -> None:
    page.labelled(rule.id, f"{rule.title} (version {rule.version})")
    page.labelled("Answers", rule.answers)
    page.labelled("Phase", rule.phase)
    page.labelled("Needs", ", ".join(rule.needs) or "nothing")
    page.labelled("Condition", rule.condition)
    page.labelled("Silent under", f"{rule.materiality_share:.1%} of the window")
    for index, lack in enumerate(rule.abstain_when):
        page.labelled("Not without" if index == 0 else "", f"{lack.missing}. Obtain: {lack.obtain}.")
    if rule.catalogue is not None:
        page.labelled("Advice about", rule.catalogue)
    for index, note in enumerate(rule.false_positive_notes):
        page.labelled("May be wrong" if index == 0 else "", note)
    for index, (name, threshold) in enumerate(rule.thresholds.items()):
        text = f"{name} {threshold.value:g} {threshold.unit} ({threshold.origin}): {threshold.source}"
        page.labelled("Thresholds" if index == 0 else "", text)
