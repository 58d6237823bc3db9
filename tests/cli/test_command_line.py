"""What holds for every verb: help, version, wrong use, and how an error reads."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import SOURCE_ROOTS, make_recording, run

import spyreprof
from spyreprof import cli
from spyreprof.errors import UserError

# What must not be loaded to record: the analysing half. Some versions of Typer load rich themselves.
HEAVY = ("msgspec", "numpy", "pandas", "pyarrow", "scipy", "prometheus_client", "textual", "torch", "psutil")


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"spyreprof {spyreprof.__version__}\n")


def test_help_lists_every_verb(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    for verb in cli.VERBS:
        assert f"  {verb.name} " in done.stdout


def test_every_verb_has_a_module_with_a_command() -> None:
    for verb in cli.VERBS:
        assert callable(importlib.import_module(verb.module).command)


@pytest.mark.parametrize("verb", [verb.name for verb in cli.VERBS])
def test_every_verb_has_help(tmp_path: Path, verb: str) -> None:
    done = run(verb, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: spyreprof {verb} ")


@pytest.mark.parametrize("words", [["nonsense"], ["record", "--nonsense", "x"], ["--nonsense"], ["pack"]])
def test_wrong_use_exits_with_2_and_without_traceback(tmp_path: Path, words: list[str]) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_nothing_at_all_prints_help(tmp_path: Path) -> None:
    assert "Usage: spyreprof" in (done := run(cwd=tmp_path)).stdout + done.stderr


def test_a_users_mistake_is_one_line_with_problem_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise UserError("It broke.", "Mend it.", exit_code=3)

    monkeypatch.setattr(cli, "build_app", lambda _: lambda **__: fail(None))
    with pytest.raises(SystemExit) as end:
        cli.main(["record"])
    assert end.value.code == 3
    assert capsys.readouterr().err == "spyreprof: It broke. Mend it.\n"


def test_a_missing_analysis_package_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'msgspec.json'", name="msgspec.json")

    monkeypatch.setattr(cli, "build_app", lambda _: fail)
    with pytest.raises(SystemExit) as end:
        cli.main(["report", "x"])
    assert end.value.code == 1
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "spyreprof pack" in stderr


def test_a_module_of_ours_that_is_missing_stays_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'spyreprof.nothing'", name="spyreprof.nothing")

    monkeypatch.setattr(cli, "build_app", lambda _: fail)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["report", "x"])


def test_ctrl_c_in_a_verb_of_ours_exits_with_130(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, spyreprof.recording.pack as p\n"
        "p.pack = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['spyreprof', 'pack', 'x']\n"
        "from spyreprof.cli import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": SOURCE_ROOTS}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_had_enough_is_no_traceback(tmp_path: Path) -> None:
    make_recording(tmp_path)
    code = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, "-m", "spyreprof", "doctor", "--json"], cwd=tmp_path,
        env={"PYTHONPATH": SOURCE_ROOTS}, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words", [["record", "--no-calibrate", "-q", "--", "true"], ["doctor"], ["pack", "run.spyreprof"]]
)
def test_verbs_of_the_recorder_load_the_standard_library_and_typer_alone(tmp_path: Path, words: list[str]) -> None:
    make_recording(tmp_path)
    code = (
        "import sys\n"
        "from spyreprof.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code in (0, None), end.code\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env={"PYTHONPATH": SOURCE_ROOTS, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("heavy: []\n"), done.stderr
