"""A comparison as it is shown and written: golden files, hostile text, findings."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from diff_builders import compared, repeats, run
from golden_files import Golden
from hypothesis import given, settings
from hypothesis import strategies as st
from report_builders import FINDINGS
from rich.cells import cell_len

from spyreprof.errors import UserError
from spyreprof.report.diff import schema as schema_module
from spyreprof.report.diff.compare import dump, seal
from spyreprof.report.diff.markdown import markdown
from spyreprof.report.diff.model import Diff
from spyreprof.report.diff.schema import diff_schema_bytes
from spyreprof.report.diff.terminal import render
from spyreprof.report.model import Public, Spread
from spyreprof.report.read import decode_report

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "\x1b[31mred\x1b[0m\u202e[bold]x[/bold]|<script>`@team` [a](http://b)\r\n# forged"


def under_test() -> Diff:
    """A larger batch under test: throughput gains, a latency loses."""
    b = run("b2", tokens_per_s=263.0, settings={"max_num_seqs": 16}, batch=Spread(mean=12.0, low=1.0, high=16.0))
    slow = tuple(msgspec.structs.replace(row, p50_s=(row.p50_s or 0) * 1.4) for row in b.latencies)
    milder = (msgspec.structs.replace(FINDINGS[0], severity="low"), *FINDINGS[2:])
    phases = tuple(msgspec.structs.replace(p, generation_tokens=(p.generation_tokens or 0) * 3 // 2) for p in b.phases)
    return compared(msgspec.structs.replace(b, latencies=slow, findings=milder, phases=phases))


def withheld() -> Diff:
    return compared(run("b2", precision=Public("bfloat16"), load=None))


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_output_is_the_golden_file(golden: Golden, width: int) -> None:
    golden.check(GOLDEN / f"diff-{width}.txt", render(under_test(), width).encode())
    golden.check(GOLDEN / f"diff-withheld-{width}.txt", render(withheld(), width).encode())


def test_json_and_markdown_are_the_golden_files(golden: Golden) -> None:
    golden.check(GOLDEN / "diff.json", dump(under_test()))
    golden.check(GOLDEN / "diff.md", markdown(under_test()).encode())


def test_the_committed_schema_is_the_generated_one_and_holds(golden: Golden) -> None:
    golden.check(Path(schema_module.__file__).parent / "diff.schema.json", diff_schema_bytes())
    schema = json.loads(diff_schema_bytes())
    for diff in (under_test(), withheld()):
        jsonschema.validate(json.loads(dump(diff)), schema)


def test_the_same_reports_give_the_same_bytes_and_another_gives_another_identifier() -> None:
    assert dump(under_test()) == dump(under_test())
    assert seal(under_test()) == under_test()
    assert under_test().diff_id != withheld().diff_id


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("show_all", [False, True])
def test_no_line_is_wider_than_the_page(width: int, show_all: bool) -> None:
    for diff in (under_test(), withheld()):
        assert max(cell_len(line) for line in render(diff, width, show_all=show_all).splitlines()) <= width


def test_hostile_text_of_a_report_neither_moves_the_cursor_nor_becomes_markup() -> None:
    foreign = {"hardware": Public(HOSTILE), "model": Public(HOSTILE), "software": {Public(HOSTILE): Public(HOSTILE)}}
    b = run(HOSTILE, settings={HOSTILE: Public(HOSTILE)}, **foreign)
    diff = compared(msgspec.structs.replace(b, run=msgspec.structs.replace(b.run, command_redacted=Public(HOSTILE))))
    for shown in (render(diff, 80, show_all=True), dump(diff).decode(), markdown(diff)):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)
    written = markdown(diff)
    assert "<script>" not in written
    assert not re.search(r"(?<!\\)[<@`]", written)
    assert not re.search(r"^# forged", written, re.MULTILINE)
    # every row of a table has the cells of its heading
    for row in re.findall(r"^\|.*\|$", written, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) in {4, 5, 7, 3}


def test_findings_that_came_went_or_changed_are_told_apart() -> None:
    states = {change.id: (change.state, change.a, change.b) for change in under_test().findings}
    assert states["SPY-DEC-002"] == ("less_severe", "high", "low")
    assert states["SPY-QUE-001"] == ("vanished", "medium", None)
    assert states["SPY-INT-001"] == ("same", "low", "low")
    back = compared(run("a1"), run("b2", findings=FINDINGS[1:]))
    assert next(change for change in back.findings if change.id == "SPY-DEC-002").state == "appeared"


def test_the_verdicts_of_both_sides_are_shown() -> None:
    drawn = render(under_test(), 80)
    assert drawn.count("decode_bandwidth_bound, confidence high") == 2


def test_a_withheld_comparison_says_what_it_needs_and_how_to_have_it() -> None:
    drawn = render(withheld(), 120)
    assert "Different: precision. Unknown: model, quantisation, load." in drawn
    assert "Needs        load:" in drawn
    assert "withheld" in drawn


def test_what_decided_is_in_the_json_with_its_origin() -> None:
    named = {threshold["name"]: threshold for threshold in json.loads(dump(under_test()))["thresholds"]}
    assert named["noise_of_single_runs"]["value"] == 0.10
    assert named["noise_of_single_runs"]["origin"] == "guessed"


NUMBERS = (0, -1, 1, 2**62, -(2**62), 1e308, -1e308, 5e-324, 0.0, 0.5)


def spoiled(value: Any, draw: random.Random) -> Any:
    """A report with one number in five replaced by one that no report has."""
    if isinstance(value, dict):
        return {key: part if key in KEPT else spoiled(part, draw) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [spoiled(part, draw) for part in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and draw.random() < 0.2:
        return draw.choice([number for number in NUMBERS if isinstance(number, type(value))])
    return value


# Only certain numbers may stand there.
KEPT = ("schema_version", "percentile")


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_no_number_in_a_report_of_a_stranger_brings_a_comparison_down(seed: int) -> None:
    draw = random.Random(seed)
    floor = repeats([100.0, 101.0, 99.0])
    sides = [
        decode_report(json.dumps(spoiled(msgspec.to_builtins(run(name, noise_floor=floor)), draw)).encode(), name)
        for name in ("a1", "b2")
    ]
    diff = compared(sides[1], sides[0])
    render(diff, 80, show_all=True)
    markdown(diff)
    dump(diff)


def test_a_number_that_no_field_holds_is_damage() -> None:
    content = msgspec.json.encode(run("a1")).replace(b'"steps":1412', b'"steps":' + b"9" * 400)
    with pytest.raises(UserError, match="a number in it is too large"):
        decode_report(content, "report.json")
