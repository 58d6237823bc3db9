"""`spyreprof report` and `spyreprof import` on files of call stacks, as a user runs them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command_lines import run

pytest.importorskip("msgspec")

COLLAPSED = (
    "main (serve.py:3);forward (torch/nn/modules/linear.py:125) 30\nmain (serve.py:3);wait (threading.py:320) 10\n"
)
EMPTY = {"shared": {"frames": [{"name": "main"}]}, "profiles": [{"type": "sampled", "samples": [[0]], "weights": [0]}]}


def test_a_file_of_stacks_is_reported_without_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").write_text(COLLAPSED)
    done = run("report", "stacks.txt", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "1 profile read, 2 samples read, 2 kept, 0 dropped" in said
    assert "Undetermined" in said
    assert "at least 25.0 % of it waits" in said
    assert "75.0 % 75.0 % forward (torch/nn/modules/linear.py)" in said
    assert "serve.py" not in said


def test_the_second_look_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt.gz").write_bytes(gzip.compress(COLLAPSED.encode()))
    first, second = (run("report", "stacks.txt.gz", "--json", cwd=tmp_path) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["stack_files"][0]["profiles"][0]["unit"] == "samples"


def test_an_import_of_stacks_is_reported_on_and_packed_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").write_text(COLLAPSED)
    done = run("import", "stacks.txt", "--out", "made.spyreprof", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "made.spyreprof\n", "")
    assert run("pack", "made.spyreprof", cwd=tmp_path).returncode == 0
    shown = run("report", "made.spyreprof.zip", cwd=tmp_path)
    assert "forward (torch/nn/modules/linear.py)" in shown.stdout
    assert "cut off" not in shown.stdout


@pytest.mark.parametrize("verb", ["report", "import"])
def test_stacks_without_weight_are_one_sentence_and_exit_code_2(tmp_path: Path, verb: str) -> None:
    (tmp_path / "stacks.json").write_text(json.dumps(EMPTY))
    done = run(verb, "stacks.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "The stacks of stacks.json have no weight." in done.stderr
    assert "Traceback" not in done.stderr


def test_strict_tells_of_samples_left_out(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").write_text(f"{COLLAPSED}no weight\n")
    done = run("report", "stacks.txt", "--strict", cwd=tmp_path)
    assert done.returncode == 3
    assert "File 1 of stacks holds 1 samples that could not be used." in done.stderr
