"""The wheel holds what the tree holds, and the metadata says what runs where."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import spyreprof

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_source_and_data_file(wheel: zipfile.ZipFile) -> None:
    packed = set(wheel.namelist())
    plug_ins = {
        "spyreprof_collectors": "collectors",
        "spyreprof_agent": "collectors",
        "spyreprof_analyzers": "analyzers",
    }
    roots = {"spyreprof": ROOT, **{package: ROOT / folder for package, folder in plug_ins.items()}}
    missing = [
        name
        for package, base in roots.items()
        for path in (base / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        for name in [str(path.relative_to(base))]
        if name not in packed
    ]
    assert not missing


def test_the_wheel_carries_the_demo_recording(wheel: zipfile.ZipFile) -> None:
    assert "spyreprof/demo.spyreprof.zip" in wheel.namelist()


def test_the_version_is_said_once() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{spyreprof.__version__}"' in text


def requirements(wheel: zipfile.ZipFile) -> list[Requirement]:
    (name,) = (n for n in wheel.namelist() if n.startswith("spyreprof-") and n.endswith(".dist-info/METADATA"))
    lines = wheel.read(name).decode().split("\n\n", 1)[0].splitlines()
    return [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]


@pytest.mark.parametrize("machine", ["s390x", "ppc64le"])
def test_only_typer_is_required_where_other_wheels_do_not_exist(wheel: zipfile.ZipFile, machine: str) -> None:
    environment = {"platform_machine": machine, "python_version": "3.12", "extra": ""}
    needed = {r.name for r in requirements(wheel) if r.marker is None or r.marker.evaluate(environment)}
    assert needed == {"typer"}


def test_neither_torch_nor_vllm_is_required(wheel: zipfile.ZipFile) -> None:
    environment = {"platform_machine": "x86_64", "python_version": "3.12", "extra": ""}
    needed = {r.name for r in requirements(wheel) if r.marker is None or r.marker.evaluate(environment)}
    assert {"typer", "pandas", "textual", "py-spy"} <= needed
    assert not needed & {"torch", "vllm"}
