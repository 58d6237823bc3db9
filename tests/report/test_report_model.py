"""The report as data: bytes, schema, identifier, reading back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from golden_files import Golden
from hypothesis import given
from hypothesis import strategies as st
from report_builders import BUDGET, EVIDENCE, finished_report

from spyreprof.errors import UserError
from spyreprof.findings import BudgetPart, Evidence, TimeBudget
from spyreprof.report.model import Report
from spyreprof.report.read import decode_report, read_report
from spyreprof.report.schema import report_schema, report_schema_bytes
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump, seal

GOLDEN = Path(__file__).parent / "golden"
SCHEMA_FILE = Path(__file__).parents[2] / "spyreprof/report/report.schema.json"


def content_of(report: Report) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(dump(report))
    return content


def test_report_json_is_the_golden_file_byte_for_byte(golden: Golden) -> None:
    golden.check(GOLDEN / "report.json", dump(finished_report()))


def test_the_committed_schema_is_the_generated_one(golden: Golden) -> None:
    golden.check(SCHEMA_FILE, report_schema_bytes())


def test_a_report_is_valid_under_its_published_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())
    jsonschema.validate(content_of(finished_report()), report_schema(), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", [[], ["verdict"], ["findings", 0, "advice", 0], ["time_budget", "parts", 0]])
def test_the_schema_refuses_an_unknown_key_and_a_missing_key_at_every_depth(path: list[str | int]) -> None:
    for spoil in (lambda part: part.update(surprise=1), lambda part: part.pop(next(iter(part)))):
        content: Any = content_of(finished_report())
        part = content
        for step in path:
            part = part[step]
        spoil(part)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, report_schema(), jsonschema.Draft202012Validator)


def test_the_names_that_scripts_rely_on_are_there() -> None:
    content = content_of(finished_report())
    assert content["schema_version"] == 1
    assert content["verdict"]["primary"] == "decode_bandwidth_bound"
    assert content["verdict"]["confidence"] == "high"
    assert content["verdict"]["secondary"] == ["queue_bound"]
    advice = content["findings"][0]["advice"][0]
    assert (advice["setting"], advice["from"], advice["to"]) == ("max_num_seqs", 8, 16)
    assert {"quality", "time_budget", "phases", "not_judged", "evidence"} <= content.keys()


@given(
    st.lists(st.integers(0, 10**13), min_size=0, max_size=8),
    st.integers(0, 10**13),
)
def test_parts_and_unexplained_are_the_window_to_the_nanosecond_in_json(parts: list[int], rest: int) -> None:
    window = sum(parts) + rest
    budget = TimeBudget(
        window_ns=window,
        parts=tuple(
            BudgetPart(id=f"p{i}", ns=ns, share=ns / window if window else 0.0, origin="measured")
            for i, ns in enumerate(parts)
        ),
        unexplained_ns=rest,
        unexplained_share=rest / window if window else 0.0,
    )
    written = content_of(finished_report(time_budget=budget))["time_budget"]
    assert sum(part["ns"] for part in written["parts"]) + written["unexplained_ns"] == written["window_ns"] == window


def test_sealing_twice_changes_nothing_and_equal_inputs_share_an_id() -> None:
    once = seal(finished_report())
    assert seal(once) == once
    assert once.report_id == seal(finished_report()).report_id
    other = msgspec.structs.replace(BUDGET, unexplained_ns=BUDGET.unexplained_ns + 1)
    assert seal(finished_report(time_budget=other)).report_id != once.report_id


def test_floats_have_six_significant_digits_and_integers_all_of_theirs() -> None:
    content = content_of(finished_report(evidence=(evidence(0.123456789), evidence(12345678.9), evidence(123456789))))
    assert [item["value"] for item in content["evidence"]] == [0.123457, 12345700.0, 123456789]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_becomes_null_and_is_named_as_not_judged(value: float) -> None:
    content = content_of(finished_report(evidence=(evidence(value),)))
    assert content["evidence"][0]["value"] is None
    assert "evidence[0].value" in [item["topic"] for item in content["not_judged"]]
    jsonschema.validate(content, report_schema(), jsonschema.Draft202012Validator)


def test_a_field_that_must_hold_a_number_refuses_one_that_is_none() -> None:
    broken = msgspec.structs.replace(BUDGET, unexplained_share=math.nan)
    with pytest.raises(ValueError, match="unexplained_share"):
        dump(finished_report(time_budget=broken))


def test_a_report_read_back_is_the_same_report_and_renders_the_same() -> None:
    report = seal(finished_report())
    read = decode_report(dump(report), "report.json")
    assert read == report
    assert dump(read) == dump(report)
    assert render(read, 80, show_all=True) == render(report, 80, show_all=True)


def test_unknown_keys_are_passed_over_on_reading() -> None:
    content = content_of(finished_report())
    content["later"] = {"x": 1}
    content["verdict"]["later"] = 2
    assert decode_report(json.dumps(content).encode(), "report.json") == seal(finished_report())


def test_a_newer_schema_version_is_refused_with_a_sentence() -> None:
    content = content_of(finished_report()) | {"schema_version": 2, "verdict": "of another shape"}
    with pytest.raises(UserError, match=r"schema version 2; this spyreprof reads up to 1\.") as caught:
        decode_report(json.dumps(content).encode(), "report.json")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"a": 1}', b"[" * 100_000])
def test_what_is_no_report_is_refused_with_a_sentence(content: bytes) -> None:
    with pytest.raises(UserError, match="is not a spyreprof report"):
        decode_report(content, "x.json")


def test_a_damaged_report_names_what_is_wrong_with_it() -> None:
    content = content_of(finished_report())
    content["verdict"]["primary"] = "astrology_bound"
    with pytest.raises(UserError, match=r"damaged.*verdict\.primary"):
        decode_report(json.dumps(content).encode(), "x.json")


def test_a_file_that_cannot_be_read_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_report(tmp_path / "absent.json")


def evidence(value: float) -> Evidence:
    return msgspec.structs.replace(EVIDENCE[0], value=value)
