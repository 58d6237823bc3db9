"""`python samples/interconnect.py` from outside, small."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import interconnect
import pytest
from recording_run import is_running, wait_until

from spyreprof.trace.annotations import parse_step_name

TINY = ["--hidden", "128", "--ffn", "2", "--layers", "1", "--batch", "2", "--seconds", "0.2"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--hidden", "100"], "--hidden must be a multiple of 64"),
        (["--ffn", "3"], "--ffn must be a multiple"),
        (["--netns", "a"], "--netns must name 2"),
        (["--netns", "a,b"], "--master must say where rank 0 is"),
        (["--rank", "0"], "--master must say where rank 0 is"),
        (["--rank", "2", "--master", "h:1"], "--rank must be less than --world"),
        (["--seconds", "0"], "--seconds"),
        (["--result", "no/such/folder/r.json"], "--result no/such/folder/r.json"),
        (["surplus"], "surplus"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        interconnect.parse(options)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert len(printed.err.splitlines()) == 1
    assert named in printed.err


def test_a_step_is_annotated_as_a_decode_of_the_whole_batch() -> None:
    work = parse_step_name(interconnect.annotation(batch=4, length=9))
    assert work is not None
    assert (work.context_tokens, work.generation_requests, work.generation_tokens) == (0, 4, 4)
    assert work.generation_seq_len_sum == 40


def run(folder: Path, samples_folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(samples_folder / "interconnect.py"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def test_two_ranks_run_the_same_steps_and_write_what_they_measured(tmp_path: Path, samples_folder: Path) -> None:
    pytest.importorskip("torch")
    done = run(tmp_path, samples_folder, *TINY, "--slow-rank-ms", "5", "--result", "truth.json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert (truth["messages_per_step"], truth["message_bytes"]) == (2, 4 * 2 * 128)
    prompt, late = truth["ranks"]
    assert prompt["sleep_s"] == 0
    assert late["sleep_s"] >= 0.005 * truth["steps"]
    for rank in (prompt, late):
        parts = rank["compute_s"] + rank["communication_s"] + rank["sleep_s"]
        assert parts == pytest.approx(rank["step_s"])


def test_a_launcher_that_is_ended_takes_its_ranks_with_it(tmp_path: Path, samples_folder: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(samples_folder / "interconnect.py"), *TINY, "--seconds", "600"]
    launcher = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2, "two ranks")
    ranks = [int(pid) for pid in children.read_text().split()]
    launcher.terminate()
    assert launcher.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not any(is_running(pid) for pid in ranks), "the end of both ranks")
