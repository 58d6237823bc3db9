"""The sample's modules are imported as `serve.py` sees them: from its own folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
sys.path.insert(0, str(SAMPLES))


@pytest.fixture(scope="session")
def samples_folder() -> Path:
    return SAMPLES
