"""The house keeps its shape: small modules, light start-up, no foreign imports in the recorder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "spyreprof",
    "collectors/spyreprof_collectors",
    "collectors/spyreprof_agent",
    "analyzers/spyreprof_analyzers",
    "samples",
)
HEAVY = ("numpy", "pandas", "pyarrow", "scipy", "msgspec", "textual", "prometheus_client", "rich", "torch", "vllm")


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_fits_in_four_hundred_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def imported_by(code: str) -> set[str]:
    """Top-level names of modules that a fresh interpreter holds after running the code."""
    script = f"{code}\nimport sys\nprint('\\n'.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    path = [str(ROOT), str(ROOT / "collectors"), str(ROOT / "analyzers")]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.parametrize("verb", ["record", "attach", "doctor", "pack"])
def test_the_recording_verbs_import_nothing_heavy(verb: str) -> None:
    held = imported_by(f"import spyreprof.cli, spyreprof.cli.{verb}")
    assert not held & (set(HEAVY) - {"rich"})  # rich comes with Typer


def test_the_launcher_imports_the_standard_library_alone() -> None:
    held = imported_by("import spyreprof_collectors.launcher")
    assert not held & {*HEAVY, "typer", "click"}


def test_reading_a_recording_imports_neither_torch_nor_the_terminal_explorer() -> None:
    held = imported_by("import spyreprof.recording.store, spyreprof.registry, spyreprof_analyzers.diagnose")
    assert not held & {"torch", "vllm", "textual"}


TRACE = """{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2}]}"""


def test_reading_a_trace_imports_numpy_and_msgspec_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(TRACE)
    held = imported_by(f"from spyreprof.trace import reader\nassert len(reader.read({str(path)!r})) == 1")
    assert not held & (set(HEAVY) - {"numpy", "msgspec"})


def test_storing_and_loading_columns_imports_no_pandas(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(TRACE)
    held = imported_by(
        "import pathlib\nfrom spyreprof.trace import cache\n"
        f"cache.build({str(path)!r}, pathlib.Path({str(tmp_path / 'c')!r}))\n"
        f"assert len(cache.load(pathlib.Path({str(tmp_path / 'c')!r}))) == 1"
    )
    assert not held & (set(HEAVY) - {"numpy", "msgspec", "pyarrow"})


def test_a_second_look_at_a_trace_imports_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "t.json"
    path.write_text(TRACE)
    look = (
        "from pathlib import Path\nfrom spyreprof.cli.presenting import load_report\n"
        f"load_report([Path({str(path)!r})], None)"
    )
    assert "numpy" in imported_by(look)
    assert not imported_by(look) & {"numpy", "pandas", "pyarrow", "scipy", "textual", "prometheus_client"}


def test_the_agent_names_no_module_of_the_core() -> None:
    boot = ROOT / "collectors/spyreprof_collectors/agent"
    for path in boot.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for package in ("spyreprof", "spyreprof_collectors", "spyreprof_analyzers"):
            assert f"import {package}\n" not in text
            assert f"from {package}" not in text


def test_no_module_says_that_it_is_unfinished() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error")
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert not [mark for mark in marks if mark in text], path
