"""The notebook page: its blocks run and print what it says, and its table of columns is the schema's."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import spyreprof

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "notebook.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n\n^```text\n(?P<printed>.*?)^```\n", re.DOTALL | re.MULTILINE)
COLUMNS = re.compile(r"(?<=<!-- columns -->\n).*(?=<!-- end of columns -->)", re.DOTALL)
DEMO = ROOT / "samples" / "demo.spyreprof.zip"


def outputs(page: str) -> list[str]:
    """What each block prints, run one after the other as in a notebook."""
    names: dict[str, Any] = {}
    printed = []
    for block in BLOCK.finditer(page):
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile(block["code"], str(PAGE), "exec"), names)
        printed.append(stream.getvalue())
    return printed


def column_table() -> str:
    columns = spyreprof.load(DEMO).columns
    lines = []
    for table, rows in columns.groupby("table", sort=False):
        lines += [f"\n### `{table}`\n", "| column | dtype | unit | origin | meaning |", "|---|---|---|---|---|"]
        lines += [f"| `{r.column}` | {r.dtype} | {r.unit} | {r.origin} | {r.meaning} |" for r in rows.itertuples()]
    return "\n".join(lines) + "\n\n"


def test_every_block_prints_what_the_page_says(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("```python") == len(BLOCK.findall(page))
    printed = iter(found := outputs(page))
    if pytestconfig.getoption("--update-golden"):
        shown = BLOCK.sub(
            lambda block: block[0].replace(f"```text\n{block['printed']}", f"```text\n{next(printed)}"), page
        )
        PAGE.write_text(shown, encoding="utf-8")
    else:
        assert [block["printed"] for block in BLOCK.finditer(page)] == found


def test_the_table_of_columns_is_that_of_the_schema(pytestconfig: pytest.Config) -> None:
    page = PAGE.read_text(encoding="utf-8")
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(COLUMNS.sub(lambda _: column_table(), page), encoding="utf-8")
    else:
        assert column_table() in page, "`pytest --update-golden tests/recording/test_notebook_page.py` writes the table"
