"""Collects the words that spyreprof's own messages are made of.

A sentence in a recording (why a collector failed, what a process did) is let into a report word by word, and only
words that our own code can say are let through. This reads them from the string literals of the code that writes
recordings, and from the operating system's error messages, which it passes on.
"""

from __future__ import annotations

import ast
import os
import re
import signal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "spyreprof/report/vocabulary.txt"
SPEAKERS = (
    "collectors/spyreprof_collectors",
    "spyreprof/recording",
    "spyreprof/stacks",
    "spyreprof/trace",
    "spyreprof/inputs.py",
    "spyreprof/errors.py",
)

_WORD = re.compile(r"(?:--|[/.])?[A-Za-z][A-Za-z']*(?:[-_./:][A-Za-z0-9]+)*[A-Za-z0-9]*")
_EDGES = "([{\"'`<)]}>.,;:!?"
_LINUX_ERRORS = 134


def spoken_words() -> set[str]:
    """Lower-case words of all string literals that are no docstrings, and of the system's error messages."""
    words = {name.lower() for name in signal.Signals.__members__}
    texts = [os.strerror(number) for number in range(1, _LINUX_ERRORS)] + ["errno"]
    for speaker in SPEAKERS:
        path = ROOT / speaker
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            texts.extend(_literals(ast.parse(source.read_text(encoding="utf-8"))))
    for text in texts:
        for word in text.split():
            core = word.strip(_EDGES)
            if len(core) <= 40 and _WORD.fullmatch(core):
                words.add(core.lower())
    return words


def _literals(tree: ast.Module) -> list[str]:
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
