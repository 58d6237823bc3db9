"""Committed files that output is compared with, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Golden:
    """Compares with the committed file, or writes it anew under --update-golden."""

    update: bool

    def check(self, path: Path, content: bytes) -> None:
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        assert content == path.read_bytes(), f"{path} differs; if that is wanted: pytest --update-golden"
