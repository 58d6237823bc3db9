"""`spyreprof import`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import MS, TraceBuilder, decode_name
from command_lines import run

pytest.importorskip("msgspec")


def trace(path: Path) -> Path:
    made = TraceBuilder()
    for number in range(3):
        made.step(decode_name(requests=2), 2 * MS * number, 2 * MS * number + MS)
        made.operator("aten::mm", 2 * MS * number, 2 * MS * number + MS // 2)
    return made.write(path)


def test_an_imported_recording_is_reported_on_like_any_other(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json.gz")
    trace(tmp_path / "rank1.json")
    done = run("import", "rank0.json.gz", "rank1.json", "--out", "made.spyreprof", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "made.spyreprof\n", "")
    report = run("report", "made.spyreprof", "--json", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    said = json.loads(report.stdout)
    assert said["verdict"]["primary"] == "undetermined"
    assert str(tmp_path) not in report.stdout
    packed = run("pack", "made.spyreprof", cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    shown = run("report", "made.spyreprof.zip", cwd=tmp_path)
    assert "under a profiler" in " ".join(shown.stdout.split())


def test_what_is_said_of_ranks_is_said_once(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json")
    run("import", "trace.json", "--out", "made.spyreprof", cwd=tmp_path)
    shown = " ".join(run("report", "made.spyreprof", cwd=tmp_path).stdout.split())
    assert shown.count("do not tell their rank") == 1
    assert "profiler windows:" not in shown


def test_without_a_name_the_folder_is_named_by_the_time(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json")
    done = run("import", "trace.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / done.stdout.strip() / "manifest.json").is_file()
    assert done.stdout.startswith("import-")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("hello\n", "text of an unknown kind"),
        ("# TYPE a counter\na 1\n", "Prometheus metrics, which is not read yet"),
        ('{"traceEvents": []}', "x"),
    ],
)
def test_nothing_readable_is_one_sentence(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "x").write_text(content)
    done = run("import", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = run("import", "gone.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "spyreprof: There is no gone.json. Check the path.\n")
