"""Where nothing but Typer is installed beside our wheel, everything is recorded and nothing is analysed."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from command_lines import ROOT, run

# found in the environment's site folder, not in this tree
INSTALLED = {"PYTHONPATH": ""}


def distributions(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Collect a distribution and what it requires, by what is installed beside us."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    found[key] = distribution
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            distributions(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0], found)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with our wheel, Typer, what Typer needs, and nothing else."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("typer-alone")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
    )  # fmt: skip
    found: dict[str, importlib.metadata.Distribution] = {}
    distributions("typer", found)
    for distribution in found.values():
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in {"..", "__pycache__"} and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ROOT],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for path in site.iterdir():
        assert not path.name.startswith(("numpy", "pandas", "msgspec", "pyarrow", "torch", "textual"))
    return python


def test_a_program_is_recorded_packed_and_the_machine_is_described(tmp_path: Path, bare_python: Path) -> None:
    done = run(
        "record", "--no-calibrate", "--out", "r.spyreprof", "--", sys.executable, "-c", "raise SystemExit(3)",
        cwd=tmp_path, python=bare_python, env=INSTALLED,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    manifest = json.loads((tmp_path / "r.spyreprof" / "manifest.json").read_text())
    assert manifest["exit"] == {"code": 3}
    # the agent came with the wheel, and into an interpreter other than ours
    assert len(manifest["processes"]) == 1
    assert run("pack", "r.spyreprof", cwd=tmp_path, python=bare_python, env=INSTALLED).stdout == "r.spyreprof.zip\n"
    described = run("doctor", "--json", cwd=tmp_path, python=bare_python, env=INSTALLED)
    assert described.returncode == 0
    states = {entry["name"]: entry["state"] for entry in json.loads(described.stdout)["capabilities"]}
    assert (states["python"], states["torch"]) == ("ok", "unavailable")


def test_the_report_says_in_one_sentence_how_to_go_on(tmp_path: Path, bare_python: Path) -> None:
    run(
        "record",
        "--no-calibrate",
        "-q",
        "--out",
        "r.spyreprof",
        "--",
        "true",
        cwd=tmp_path,
        python=bare_python,
        env=INSTALLED,
    )
    done = run("report", "r.spyreprof", cwd=tmp_path, python=bare_python, env=INSTALLED)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "spyreprof pack" in done.stderr


def test_help_lists_all_verbs(tmp_path: Path, bare_python: Path) -> None:
    done = run("--help", cwd=tmp_path, python=bare_python, env=INSTALLED)
    assert done.returncode == 0
    for verb in ("record", "attach", "report", "doctor", "pack", "demo", "schema"):
        assert f"  {verb} " in done.stdout
