"""Situations that people met, each a small input, and what a diagnosis must say of it and must not.

A case that no rule answers yet is marked `pending` and must fail: whoever writes the rule removes the mark.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from case_inputs import Case, cases, inputs_of

from spyreprof.findings import Advice, Diagnosis, Finding, Verdict
from spyreprof.registry import diagnose

CASES = cases()
KNOWN = {
    "class", "never_class", "secondary", "findings", "never_findings", "advise", "never_advise", "missing",
    "max_confidence", "max_severity", "says", "never_says",
}  # fmt: skip
DIRECTIONS = ("up", "down", "on", "off")
CONFIDENCES = ("low", "medium", "high")
SEVERITIES = ("info", "low", "medium", "high")


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def direction(advice: Advice) -> str:
    """Up or down for numbers, else the value itself."""
    if isinstance(advice.to, int | float) and isinstance(advice.from_, int | float):
        return "up" if advice.to > advice.from_ else "down"
    return str(advice.to)


def given(found: Diagnosis, wanted: str) -> list[Advice]:
    """Advice on a setting; `wanted` is a pattern of its name or of the advice's id, and may end in a direction."""
    setting, _, to = wanted.rpartition(" ")
    if to not in DIRECTIONS:
        setting, to = wanted, ""
    advice = [one for finding in found.findings for one in finding.advice]
    named = [one for one in advice if re.search(setting, f"{one.setting} {one.id}", re.IGNORECASE)]
    return [one for one in named if to in ("", direction(one))]


def everything_said(found: Diagnosis) -> str:
    """Headline, reason and texts of findings."""
    parts = [found.verdict.headline, found.verdict.reason]
    for finding in found.findings:
        parts += [finding.title, finding.text]
        for advice in finding.advice:
            parts += [*advice.preconditions, advice.test_note]
    return "\n".join(parts)


def named_as_missing(found: Diagnosis) -> str:
    open_questions = (*found.verdict.missing, *found.not_judged)
    return "\n".join(f"{one.topic} {one.reason} {one.obtain}" for one in open_questions)


def check(found: Diagnosis, expect: dict[str, Any]) -> None:
    verdict = found.verdict
    if "class" in expect:
        assert verdict.primary in as_list(expect["class"]), verdict.headline
    assert verdict.primary not in as_list(expect.get("never_class", []))
    assert set(as_list(expect.get("secondary", []))) <= set(verdict.secondary)
    rules = {finding.id for finding in found.findings}
    for rule in as_list(expect.get("findings", [])):
        # a rule id, the beginning of some, or a pattern of several
        assert any(re.match(rule, one) for one in rules), f"{rule} is not among {sorted(rules)}"
    for rule in as_list(expect.get("never_findings", [])):
        assert not any(re.match(rule, one) for one in rules), f"{rule} is among {sorted(rules)}"
    for wanted in as_list(expect.get("advise", [])):
        assert given(found, wanted), f"{wanted} is not advised"
    for unwanted in as_list(expect.get("never_advise", [])):
        assert not given(found, unwanted), f"{unwanted} is advised"
    if verdict.primary == "undetermined":
        said = named_as_missing(found).lower()
        for word in as_list(expect.get("missing", [])):
            assert word.lower() in said, f"{word} is not named as missing:\n{said}"
    if "max_confidence" in expect and verdict.confidence is not None:
        assert CONFIDENCES.index(verdict.confidence) <= CONFIDENCES.index(expect["max_confidence"])
    if "max_severity" in expect:
        above = [
            finding.id
            for finding in found.findings
            if SEVERITIES.index(finding.severity) > SEVERITIES.index(expect["max_severity"])
        ]
        assert above == []
    said = everything_said(found).lower()
    for word in as_list(expect.get("says", [])):
        assert word.lower() in said, f"{word} is not said:\n{said}"
    for word in as_list(expect.get("never_says", [])):
        assert word.lower() not in said, f"{word} is said"


def param(case: Case) -> Any:
    reason = "no rule answers it yet"
    # an error in a case or in an analyzer is no answer that is still missing
    marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if case.pending else []
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [param(case) for case in CASES])
def test_a_case_gets_the_class_the_findings_and_the_advice_it_needs_and_none_that_harms(case: Case) -> None:
    check(diagnose(inputs_of(case.facts)), case.facts["expect"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_tells_its_situation_and_a_symptom_beside_it_and_expects_only_what_is_checked(case: Case) -> None:
    assert case.text.startswith("# ")
    assert "\n# Beside it: " in case.text
    assert set(case.facts["expect"]) <= KNOWN
    assert {"class", "never_class", "max_severity"} & set(case.facts["expect"])


def advice_on(setting: str, from_: int | str, to: int | str) -> Advice:
    return Advice(
        id=setting.replace(" ", "_"), setting=setting, from_=from_, to=to, from_origin="measured", expected=(), pays=(),
        preconditions=(), test_arguments="", refuted_if="",
    )  # fmt: skip


def diagnosis_with(advice: Advice) -> Diagnosis:
    finding = Finding(
        id="SPY-KVC-001", rule_version=1, severity="high", title="", text="", phase=None, share=None, evidence=(),
        against=(), advice=(advice,),
    )  # fmt: skip
    verdict = Verdict(primary="queue_bound", confidence="high", secondary=(), headline="", reason="", witnesses=())
    return Diagnosis(
        window=None, time_budget=None, phases=(), latencies=(), verdict=verdict, findings=(finding,), not_judged=(),
        evidence=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "advice", "is_given"),
    [
        ("KV cache", advice_on("KV cache blocks", 100, 200), True),
        ("max_num_seqs", advice_on("max_num_seqs", 4, 8), True),
        ("max_num_seqs up", advice_on("max_num_seqs", 4, 8), True),
        ("max_num_seqs up", advice_on("max_num_seqs", 8, 4), False),
        ("max_num_seqs down", advice_on("max_num_seqs", 8, 4), True),
        ("async_scheduling on", advice_on("async_scheduling", "off", "on"), True),
        ("rout|balanc", advice_on("KV cache blocks", 100, 200), False),
    ],
)
def test_advice_is_known_by_its_setting_and_its_direction(wanted: str, advice: Advice, is_given: bool) -> None:
    assert bool(given(diagnosis_with(advice), wanted)) is is_given


@pytest.mark.parametrize(
    "expect",
    [
        {"class": "host_bound"},
        {"never_class": ["queue_bound"]},
        {"secondary": ["load_limited"]},
        {"findings": ["SPY-QUE-001"]},
        {"never_findings": ["SPY-KVC"]},
        {"advise": ["max_num_seqs up"]},
        {"never_advise": ["KV cache"]},
        {"max_confidence": "medium"},
        {"max_severity": "low"},
        {"says": ["1568"]},
    ],
)
def test_an_expectation_that_is_not_met_fails(expect: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check(diagnosis_with(advice_on("KV cache blocks", 100, 200)), expect)


def test_the_names_of_cases_are_what_happens() -> None:
    assert len(CASES) > 50
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){2,}", case.name) for case in CASES)
