"""`spyreprof diff` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from builders import RecordingBuilder

from spyreprof.report.diff.schema import diff_schema_bytes

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "samples" / "demo.spyreprof.zip"


def diff(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "spyreprof", "diff", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.json"
    words = [sys.executable, "-m", "spyreprof", "report", str(DEMO), "--json", "--out", str(path)]
    subprocess.run(words, check=True, capture_output=True, cwd=ROOT)
    return path


def test_a_recording_and_its_report_are_the_same_run(report: Path) -> None:
    done = diff(DEMO, report)
    assert done.returncode == 0, done.stderr
    assert "A and B are the same run." in done.stdout
    assert done.stderr == ""


def test_json_holds_to_the_published_schema(report: Path, tmp_path: Path) -> None:
    done = diff(report, DEMO, "--json", "--out", tmp_path / "diff.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    written = json.loads((tmp_path / "diff.json").read_text())
    jsonschema.validate(written, json.loads(diff_schema_bytes()))
    # one side is a report, whose pseudonyms are its own, and the command holds some
    assert written["verdict"]["outcome"] == "cannot_tell"
    printed = subprocess.run(
        [sys.executable, "-m", "spyreprof", "schema", "diff"], capture_output=True, check=True, cwd=ROOT
    )
    assert printed.stdout == diff_schema_bytes()


def test_what_cannot_be_compared_is_no_failure_of_the_program(tmp_path: Path) -> None:
    empty = RecordingBuilder(tmp_path / "run.spyreprof").process().write()
    done = diff(DEMO, empty, "--format", "md")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("## withheld: No verdict. Different: hardware")
    assert "| model | unknown |" in done.stdout


def test_a_trace_is_compared_too_and_withheld_for_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = tmp_path / "trace.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
    )
    done = diff(DEMO, trace)
    assert done.returncode == 0, done.stderr
    assert "profiler" in done.stdout
    assert "withheld" in done.stdout


@pytest.mark.parametrize("content", [None, "", '{"schema_version": 1, "verdict": {}}', "hello"])
def test_an_input_that_cannot_be_read_is_one_sentence_and_exit_code_2(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "b"
    if content is not None:
        path.write_text(content)
    done = diff(DEMO, path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_wrong_use_is_exit_code_2(tmp_path: Path) -> None:
    assert diff(DEMO).returncode == 2
    assert diff(DEMO, DEMO, "--json", "--format", "md").returncode == 2
    done = diff(DEMO, DEMO, "--out", tmp_path / "no" / "folder")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_a_model_that_is_withheld_is_still_told_to_be_the_same_in_two_recordings_and_not_in_two_reports(
    tmp_path: Path,
) -> None:
    def condition(a: Path, b: Path) -> dict[str, object]:
        rows = json.loads(diff(a, b, "--json").stdout)["conditions"]
        return next(row for row in rows if row["name"] == "model")

    recordings, reports = [], []
    for name, model in (("a", "/data/mine"), ("b", "/data/mine"), ("c", "/data/other")):
        builder = RecordingBuilder(tmp_path / f"{name}.spyreprof").process()
        builder.manifest["command"] = ["python", "serve.py", "--model", model]
        builder.manifest["run_id"] = name * 32
        recordings.append(builder.write())
        reports.append(tmp_path / f"{name}.json")
        words = [sys.executable, "-m", "spyreprof", "report", str(recordings[-1]), "--json", "--out", str(reports[-1])]
        subprocess.run(words, check=True, capture_output=True, cwd=ROOT)
    same, other = condition(*recordings[:2]), condition(*recordings[1:])
    assert (same["state"], same["a"], same["b"]) == ("same", "model-1", "model-1")
    assert (other["state"], other["b"]) == ("differs", "model-2")
    assert condition(*reports[:2])["state"] == "unknown"
    assert condition(recordings[0], reports[1])["state"] == "unknown"
