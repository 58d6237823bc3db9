"""`demo`, `schema` and `rules` from the outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
from report_verbs import ROOT, decode_recording, spyreprof

from spyreprof.report.schema import report_schema, report_schema_bytes


def test_schema_prints_the_committed_schema() -> None:
    for arguments in (["schema"], ["schema", "report"], ["schema", "report", "--json"]):
        result = spyreprof(*arguments)
        assert (result.returncode, result.stdout) == (0, report_schema_bytes())


def test_schema_of_something_else_is_wrong_use() -> None:
    assert spyreprof("schema", "weather").returncode == 2


def test_rules_are_listed_and_each_can_be_shown() -> None:
    listed = json.loads(spyreprof("rules", "list", "--json").stdout)
    assert len(listed) > 5
    text = spyreprof("rules").stdout.decode()
    for rule in listed:
        assert rule["id"] in text
    info = spyreprof("rules", "info", listed[0]["id"].lower()).stdout.decode()
    assert info.startswith(listed[0]["id"])
    assert listed[0]["answers"] in " ".join(info.split())
    for threshold in listed[0]["thresholds"]:
        assert threshold in info
    assert json.loads(spyreprof("rules", "info", listed[0]["id"], "--json").stdout) == listed[0]


def test_show_is_an_older_name_of_info() -> None:
    assert spyreprof("rules", "show", "SPY-QUE-001").stdout == spyreprof("rules", "info", "SPY-QUE-001").stdout != b""


def test_the_page_of_rules_is_what_the_rules_say() -> None:
    printed = spyreprof("rules", "list", "--markdown").stdout.decode()
    assert printed == (ROOT / "docs/rules.md").read_text(encoding="utf-8"), "its first line tells how to write it anew"


def test_rules_need_no_guessing() -> None:
    for arguments, saying in (
        (["info"], "needs the id"),
        (["info", "SPY-XXX-999"], "There is no rule"),
        (["list", "SPY-GEN-001"], "takes no id"),
        (["list", "--json", "--markdown"], "two formats"),
    ):
        result = spyreprof("rules", *arguments)
        assert result.returncode == 2
        assert saying in result.stderr.decode()


def installation(tmp_path: Path) -> Path:
    """A copy of the core package, to stand where a checkout or a wheel would."""
    shutil.copytree(ROOT / "spyreprof", tmp_path / "spyreprof", ignore=shutil.ignore_patterns("__pycache__", "*.zip"))
    return tmp_path


def path_of(root: Path) -> str:
    return f"{root}:{ROOT / 'collectors'}:{ROOT / 'analyzers'}"


def test_demo_finds_its_recording_in_a_checkout_and_in_a_wheel(tmp_path: Path) -> None:
    root = installation(tmp_path)
    packed = decode_recording(tmp_path / "demo.spyreprof").write_packed()
    for place in (root / "samples", root / "spyreprof"):
        place.mkdir(exist_ok=True)
        copy = Path(shutil.copy(packed, place / "demo.spyreprof.zip"))
        result = spyreprof("demo", "--json", PYTHONPATH=path_of(root), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        jsonschema.validate(json.loads(result.stdout), report_schema(), jsonschema.Draft202012Validator)
        assert b"comes with spyreprof" in result.stderr
        copy.unlink()


def test_demo_without_its_recording_says_so(tmp_path: Path) -> None:
    result = spyreprof("demo", PYTHONPATH=path_of(installation(tmp_path)), cwd=tmp_path)
    assert result.returncode == 1
    assert b"without the demo recording" in result.stderr
    assert b"Traceback" not in result.stderr
