"""Fixtures of the comparison's tests."""

from __future__ import annotations

import pytest
from golden_files import Golden


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Comparison with committed files."""
    return Golden(update=bool(request.config.getoption("--update-golden")))
