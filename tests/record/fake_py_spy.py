"""A stand-in for py-spy that says and does what a test wants.

As the real one (0.4.3) it tells progress on stdout, errors on stderr, and writes its result where `--output` says.
"""

from __future__ import annotations

import sys
from pathlib import Path

STARTED = "py-spy> Sampling process 50 times a second for 8 seconds. Press Control-C to exit.\n"
STOPPED = "py-spy> Stopped sampling because Control-C pressed\n"
WRITTEN = "py-spy> Wrote raw flamegraph data to '/proc/self/fd/3'. Samples: 60 Errors: 4\n"
LIBRARY = "/usr/lib/python3.11"
STACKS = (
    f"thread (11): MainThread;<module> (/home/someone/serve.py);Linear.forward "
    f"({LIBRARY}/site-packages/torch/nn/modules/linear.py) 30\n"
    f"thread (11): MainThread;<module> (/home/someone/serve.py) 10\n"
    f"thread (0x7F01): reader; number 2;Thread.run ({LIBRARY}/threading.py);Queue.get ({LIBRARY}/queue.py) 20\n"
)


def install(folder: Path, body: str) -> Path:
    """Put an executable called py-spy into a folder. It logs its calls, session and process id to `calls`."""
    folder.mkdir(exist_ok=True)
    path = folder / "py-spy"
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, signal, sys, time\n"
        "if sys.argv[1] == '--version':\n"
        "    print('py-spy 0.4.3')\n"
        "    raise SystemExit\n"
        "argv = sys.argv[1:]\n"
        "pid = int(argv[argv.index('--pid') + 1])\n"
        "with open(os.path.join(os.path.dirname(sys.argv[0]), 'calls'), 'a') as calls:\n"
        "    calls.write(f'{os.getpid()} {os.getsid(0)} {pid} {\" \".join(argv)}\\n')\n"
        "def say(text):\n"
        "    sys.stdout.write(text)\n"
        "    sys.stdout.flush()\n"
        "def result(text):\n"
        "    with open(argv[argv.index('--output') + 1], 'w') as output:\n"
        "        output.write(text)\n" + body + "\n"
    )
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[str]:
    """The calls so far: `PID SESSION TARGET arguments`."""
    log = folder / "calls"
    return log.read_text().splitlines() if log.exists() else []


def results(stacks: str = STACKS) -> str:
    """The body of one that succeeds at once."""
    return f"say({STARTED!r})\nresult({stacks!r})\nsay({WRITTEN!r})"


def fails(*lines: str) -> str:
    """The body of one that ends with these lines on stderr."""
    return f"sys.stderr.write({chr(10).join(lines) + chr(10)!r})\nraise SystemExit(1)"
