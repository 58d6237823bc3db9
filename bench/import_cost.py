"""What importing each dependency costs: CPU seconds and memory of a fresh interpreter, less those of an empty one.

    python bench/import_cost.py [--rounds 5] [--json]

Rounds are interleaved, so that a slow moment of the machine falls on all alike; the median is printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys

PACKAGES = ("typer", "rich", "msgspec", "numpy", "pandas", "pyarrow", "scipy.optimize", "prometheus_client.parser",
            "textual.app")  # fmt: skip

PROBE = """
import resource, sys
before = resource.getrusage(resource.RUSAGE_SELF)
{statement}
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss - before.ru_maxrss)
"""


def cost(package: str) -> tuple[float, int]:
    """CPU seconds and kibibytes of one import; raises CalledProcessError when the package is absent."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=f"import {package}")], capture_output=True, text=True, check=True
    )
    seconds, kibibytes = done.stdout.split()
    return float(seconds), int(kibibytes)


def main() -> None:
    """Print one line per package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    samples: dict[str, list[tuple[float, int]]] = {package: [] for package in PACKAGES}
    for _ in range(options.rounds + 1):  # the first round fills the page cache and is dropped
        for package, seen in samples.items():
            seen.append(cost(package))
    rows = {
        package: {
            "cpu_ms": round(statistics.median(s for s, _ in seen[1:]) * 1e3, 1),
            "rss_mb": round(statistics.median(k for _, k in seen[1:]) * 1024 / 1e6, 1),
        }
        for package, seen in samples.items()
    }
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "rounds": options.rounds, "imports": rows}, indent=2))
        return
    for package, row in rows.items():
        print(f"{package:28} {row['cpu_ms']:8.1f} ms CPU {row['rss_mb']:8.1f} MB")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"({options.rounds} rounds, {usage.ru_utime + usage.ru_stime:.0f} s CPU in all)")


if __name__ == "__main__":
    main()
