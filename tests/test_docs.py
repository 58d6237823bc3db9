"""What the pages say exists, and what exists is said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT, ROOT / "docs", ROOT / "samples", ROOT / "bench")
PAGES = sorted(page for folder in FOLDERS for page in folder.glob("*.md"))


def verbs() -> list[str]:
    helped = subprocess.run(
        [sys.executable, "-m", "spyreprof", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    commands = helped[helped.index("Commands") :]
    return re.findall(r"^\W*([a-z]+)\s{2,}", commands, flags=re.MULTILINE)


def test_every_verb_is_on_the_front_page_and_explains_itself() -> None:
    found = verbs()
    assert {"record", "report", "doctor", "pack", "demo"} <= set(found)
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in found:
        assert re.search(rf"`(spyreprof )?{verb}\b", front), verb
        helped = subprocess.run(
            [sys.executable, "-m", "spyreprof", verb, "--help"], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert helped.returncode == 0, helped.stderr
        assert len(helped.stdout.splitlines()) > 4, verb


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:spyreprof|collectors|analyzers|tests|samples|bench|docs)/[\w./]+\.\w+)`", text):
        assert (ROOT / name).exists(), name


def test_the_front_page_names_only_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"`?\bmake ([a-z-]+)", page.read_text(encoding="utf-8")):
            if target in {"demo", "test", "test-slow", "lint", "bench", "wheel", "clean", "help"}:
                assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_shard_kind_is_described() -> None:
    from spyreprof.recording import layout

    page = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    for name, value in vars(layout).items():
        if name.startswith("KIND_"):
            assert re.search(rf"^\| {value} \|", page, flags=re.MULTILINE), value
