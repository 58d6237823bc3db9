"""What the rule files hold is what the analyzers use, and the other way round."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spyreprof import registry
from spyreprof.rules import Rule

ANALYZERS = Path(__file__).parents[2] / "analyzers/spyreprof_analyzers"
RULES = registry.rules().rules
RULE_ID = re.compile(r"SPY-[A-Z0-9]+-\d{3}")


def texts(path: Path) -> list[str]:
    """Strings of a module that are no part of a sentence."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


MODULES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(ANALYZERS.glob("*.py"))}
STRINGS = {path.stem: set(texts(path)) for path in sorted(ANALYZERS.glob("*.py"))}


def naming(rule: Rule) -> list[str]:
    """Modules that name a rule."""
    return [module for module, strings in STRINGS.items() if rule.id in strings]


def test_every_rule_that_the_analyzers_name_is_in_a_file() -> None:
    named = {text for strings in STRINGS.values() for text in strings if RULE_ID.fullmatch(text)}
    assert named == {rule.id for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_threshold_of_a_rule_is_read_where_the_rule_is_named(rule: Rule) -> None:
    modules = naming(rule)
    read = set().union(*(STRINGS[module] for module in modules))
    if any("context.severity(" in MODULES[module] for module in modules):
        read |= STRINGS["context"]
    assert set(rule.thresholds) <= read


def test_every_threshold_that_the_analyzers_ask_a_named_rule_for_is_in_its_file() -> None:
    asked = [
        found
        for text in MODULES.values()
        for found in re.findall(r'rules\["(SPY-[A-Z0-9]+-\d+)"\]\.threshold\(\s*"(\w+)"', text)
    ]
    assert len(asked) > 20
    by_id = {rule.id: rule for rule in RULES}
    assert [(rule_id, name) for rule_id, name in asked if name not in by_id[rule_id].thresholds] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_it_answers_what_it_lacks_and_when_it_is_wrong(rule: Rule) -> None:
    assert rule.answers.endswith("?")
    assert rule.condition and rule.needs and rule.false_positive_notes
    assert rule.abstain_when, "what is missing, and how to obtain it"
    for lack in rule.abstain_when:
        assert lack.missing and lack.obtain
        assert not lack.obtain.endswith(".")
    assert 0.0 <= rule.materiality_share < 1.0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_threshold_says_where_it_is_from(rule: Rule) -> None:
    for threshold in rule.thresholds.values():
        assert threshold.source and threshold.unit


def test_options_that_rules_name_exist() -> None:
    from typer.main import get_command

    from spyreprof.cli import build_app

    known = {
        option
        for verb in get_command(build_app()).commands.values()  # type: ignore[attr-defined]
        for parameter in verb.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    said = {word for rule in RULES for lack in rule.abstain_when for word in re.findall(r"`(--[\w-]+)", lack.obtain)}
    assert said
    assert said <= known
