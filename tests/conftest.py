"""What every test may use."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Shells start background jobs with Ctrl-C ignored, and children inherit that: tests of it must not depend on the shell.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup, with the end of the terminal.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine is slow; how long an example takes says nothing about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# builders of one area are imported by name from the others
for folder in (Path(__file__).parent, *sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir())):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are compared as bytes; this option alone writes them."""
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing them")
