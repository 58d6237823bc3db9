"""What `spyreprof report` of a large trace holds in memory at its peak, all its processes together.

    python bench/report_memory.py DIR [--events 5000000] [--most-mb 1200]

Makes the trace in DIR, from the one that `ingest.py --make DIR` records, where it is not there yet (2 GB for 5 million
events). Runs once with nothing cached and once more, and fails where either needs more than the limit. Pages that two
processes share count twice, and so do mapped pages of files, so that this is rather too much than too little.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from ingest_inputs import MEGABYTE, make_larger
from ingest_measure import run

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--most-mb", type=float, default=1200.0)
    options = parser.parse_args()
    trace = make_larger(options.folder, options.events)
    print(f"{trace}: {trace.stat().st_size / MEGABYTE:,.0f} MB, {options.events:,} events or a few more")
    worst_mb = 0.0
    with tempfile.TemporaryDirectory(prefix="spyreprof-bench-") as cache:
        path = os.pathsep.join(str(ROOT / part) for part in ("", "collectors", "analyzers"))
        environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": cache}
        for state in ("nothing cached", "cached"):
            taken = run([sys.executable, "-m", "spyreprof", "report", str(trace)], environment, LIMIT_S)
            if taken.code != 0:
                sys.exit(f"report failed: {taken.said.strip() or taken.code}")
            peak_mb = taken.peak_bytes / MEGABYTE
            worst_mb = max(worst_mb, peak_mb)
            print(f"{state}: peak {peak_mb:,.0f} MB, {taken.wall_s:.1f} s, {taken.cpu_s:.1f} s of processor time")
    if worst_mb > options.most_mb:
        sys.exit(f"More than {options.most_mb:,.0f} MB.")


if __name__ == "__main__":
    main()
