"""What reading a trace costs, beside others that read the same file.

    python bench/ingest.py --make DIR                                    # inputs, some 2.5 GB; needs torch
    python bench/ingest.py DIR/t50.json DIR/t250.json --venvs DIR2       # peers are installed into DIR2

Every contestant is a process of its own. All run once with what they read compared with plain json (counts, durations,
both by name), which also warms the page cache, and then in rounds, in an order that is shuffled each round. Processor
time and memory are those of all processes of a contestant together. Ratios are taken within a round, to ours of the
same kind: ingest to ingest, report to report. Ours runs twice in each round: where its own ratio to itself leaves
0.95 to 1.05, or the machine is busy at the start, nothing is reported, unless with `--loaded`, which says so.

Peers: HolisticTraceAnalysis and aiu-trace-analyzer, in environments of their own; what is not installed in `--venvs`
is, with pip. aiu-trace-analyzer does more than read: it is compared with our whole report.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ingest_contestants import opened
from ingest_inputs import MEGABYTE, NotKinetoError, make
from ingest_measure import Run, run

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("ingest_contestants.py")
SEED = 5
BUSY_LOAD = 1.0
EVEN_RATIO = (0.95, 1.05)
PEERS = {
    "orjson": ("orjson==3.13.0",),
    "hta": ("HolisticTraceAnalysis==0.5.0", "ijson==3.6.0"),
    "acelyzer": ("aiu-trace-analyzer==1.3.0",),
}


class Contestant(NamedTuple):
    """What is run.

    Attributes:
        base: the contestant that ratios are taken to.
        venv: environment of a peer; None for ours.
        script: the name in `ingest_contestants.py`; None for the command line program.
        slow: runs in fewer rounds.
    """

    label: str
    base: str
    venv: str | None = None
    script: str | None = None
    slow: bool = False


INGEST, AGAIN, REPORT, CACHED = "ours-ingest", "ours-ingest-again", "ours-report", "ours-cached"
CONTESTANTS = {
    "read": Contestant("ceiling: the text is read", INGEST, script="read"),
    "quotes": Contestant("ceiling: and its quotation marks counted", INGEST, script="quotes"),
    INGEST: Contestant("**spyreprof: columns on disk**", INGEST, script="ours-ingest"),
    AGAIN: Contestant("the same once more", INGEST, script="ours-ingest"),
    "ours-read": Contestant("spyreprof: columns in memory", INGEST, script="ours-read"),
    "orjson": Contestant("orjson, gc off: objects", INGEST, venv="orjson", script="orjson"),
    "json": Contestant("json: objects", INGEST, script="json"),
    "hta-batched": Contestant(
        "HolisticTraceAnalysis, ijson_batch_and_compress", INGEST, venv="hta", script="hta-batched", slow=True
    ),
    "hta-json": Contestant("HolisticTraceAnalysis, json", INGEST, venv="hta", script="hta-json", slow=True),
    REPORT: Contestant("**spyreprof report, nothing cached**", REPORT),
    CACHED: Contestant("spyreprof report, cached", REPORT),
    "acelyzer": Contestant("aiu-trace-analyzer: all", REPORT, venv="acelyzer", script="acelyzer", slow=True),
}


def main() -> None:
    """Make inputs, or measure and print a table for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--make", type=Path, metavar="DIR", help="make the inputs that DIR lacks, and end")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache/spyreprof-bench", help="of the peers")
    parser.add_argument("--only", nargs="+", choices=[*CONTESTANTS], default=[*CONTESTANTS], help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=1, help="of HolisticTraceAnalysis and aiu-trace-analyzer")
    parser.add_argument(
        "--limit-s", type=float, default=900.0, help="of one run; a contestant over it is not run again"
    )
    parser.add_argument("--loaded", action="store_true", help="report on a busy machine too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    options = parser.parse_args()
    if options.make is not None:
        try:
            make(options.make)
        except NotKinetoError as error:
            sys.exit(str(error))
        return
    if not options.files:
        parser.error("no FILE; --make DIR makes some")
    load = os.getloadavg()[0]
    if load > BUSY_LOAD and not options.loaded:
        sys.exit(f"The machine is busy: load average {load:.2f}, more than {BUSY_LOAD:g}. Wait, or pass --loaded.")
    chosen = [key for key in CONTESTANTS if key in options.only]
    for key in chosen:
        venv = CONTESTANTS[key].venv
        if venv is not None:
            install(options.venvs, venv)
    results = []
    for file in options.files:
        result = measured(file.resolve(), chosen, options)
        results.append(result)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1))
        even = result["even_ratio"]
        if even is not None and not EVEN_RATIO[0] <= even <= EVEN_RATIO[1] and not options.loaded:
            sys.exit(f"{file}: ours took {even:.2f} times itself. Nothing is reported; wait for a quieter machine.")
        print(table(result), flush=True)


def install(venvs: Path, name: str) -> None:
    """Make a peer's environment where there is none."""
    python = venvs / name / "bin" / "python"
    mark = venvs / name / "installed"
    wanted = "\n".join(PEERS[name])
    if mark.exists() and mark.read_text() == wanted:
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venvs / name)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS[name]], check=True)
    mark.write_text(wanted)


def measured(file: Path, chosen: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Check and measure one file."""
    with opened(file) as stream:
        text_bytes = 0
        while piece := stream.read(2**22):
            text_bytes += len(piece)
    with tempfile.TemporaryDirectory(prefix="spyreprof-bench-") as folder:
        warm = Path(folder) / "cache"
        warm.mkdir()
        checks: dict[str, dict[str, Any]] = {}
        out_of_race: dict[str, str] = {}
        # json first: the others are compared with it.
        for key in sorted({*chosen, "json"}, key=lambda key: (key != "json", list(CONTESTANTS).index(key))):
            if key != AGAIN:
                taken = one(key, file, options, warm, totals=True)
                out_of_race |= fault(key, taken, options.limit_s)
                if key not in out_of_race and taken.out.startswith("{"):
                    checks[key] = compared(json.loads(taken.out), checks.get("json"))
        rounds: list[dict[str, Run]] = []
        shuffle = random.Random(SEED)
        for number in range(options.rounds):
            order = [
                key
                for key in chosen
                if key not in out_of_race and not (CONTESTANTS[key].slow and number >= options.slow_rounds)
            ]
            shuffle.shuffle(order)
            rounds.append({})
            for key in order:
                taken = one(key, file, options, warm, totals=False)
                out_of_race |= fault(key, taken, options.limit_s)
                if key not in out_of_race:
                    rounds[-1][key] = taken
    even = ratios(rounds, AGAIN, INGEST)
    return {
        "file": file.name,
        "text_bytes": text_bytes,
        "file_bytes": file.stat().st_size,
        "chosen": list(chosen),
        "load_average": os.getloadavg()[0],
        "loaded": options.loaded,
        "even_ratio": statistics.median(even) if even else None,
        "out_of_race": out_of_race,
        "checks": {key: {name: v for name, v in check.items() if name != "names"} for key, check in checks.items()},
        "rounds": [{key: taken._asdict() | {"out": "", "said": ""} for key, taken in each.items()} for each in rounds],
        "cpu_ratios": {key: ratios(rounds, key, CONTESTANTS[key].base) for key in chosen},
    }


def one(key: str, file: Path, options: argparse.Namespace, warm: Path, *, totals: bool) -> Run:
    """Run a contestant once."""
    contestant = CONTESTANTS[key]
    print(f"{file.name}: {key}", file=sys.stderr, flush=True)
    python = sys.executable if contestant.venv is None else str(options.venvs / contestant.venv / "bin" / "python")
    environment = {**os.environ}
    environment.pop("PYTHONPATH", None)
    if contestant.venv is None:
        environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("", "collectors", "analyzers"))
    with tempfile.TemporaryDirectory(prefix="spyreprof-bench-") as scratch:
        environment["XDG_CACHE_HOME"] = str(warm) if key == CACHED else scratch
        if contestant.script is None:
            command = [python, "-m", "spyreprof", "report", str(file)]
        else:
            command = [python, str(SCRIPT), contestant.script, str(file), scratch, *(["--totals"] if totals else [])]
        return run(command, environment, options.limit_s)


def fault(key: str, taken: Run, limit_s: float) -> dict[str, str]:
    """Why a contestant is out of the race, if it is."""
    if taken.code is None:
        return {key: f"over {limit_s:.0f} s"}
    if taken.code != 0:
        last = taken.said.strip().splitlines()[-1:] or ["without a word"]
        return {key: f"failed: {last[0][:160]}"}
    return {}


def compared(found: dict[str, Any], truth: dict[str, Any] | None) -> dict[str, Any]:
    """What a contestant read beside what json read."""
    if truth is None:
        return found | {"answer": "taken as true"}
    if all(found[part] == truth[part] for part in ("rows", "dur_ns", "names")):
        return found | {"answer": "equal"}
    said = []
    if found["rows"] != truth["rows"]:
        said.append(f"{found['rows'] - truth['rows']:+,} events")
    if found["dur_ns"] != truth["dur_ns"]:
        said.append(f"durations {found['dur_ns'] / max(truth['dur_ns'], 1) - 1:+.1%}")
    names = truth["names"]
    for part, what in enumerate(("counts", "durations")):
        same = sum(found["names"].get(name, (0, 0))[part] == total[part] for name, total in names.items())
        if same < len(names):
            said.append(f"{what} of {same:,} of {len(names):,} names equal")
    return found | {"answer": ", ".join(said)}


def ratios(rounds: Sequence[dict[str, Run]], key: str, base: str) -> list[float]:
    """Processor time over that of the base, for each round that has both."""
    return [each[key].cpu_s / each[base].cpu_s for each in rounds if key in each and base in each]


def table(result: dict[str, Any]) -> str:
    """A result as Markdown."""
    megabytes = result["text_bytes"] / MEGABYTE
    packed = (
        f", {result['file_bytes'] / MEGABYTE:,.0f} MB on disk" if result["file_bytes"] != result["text_bytes"] else ""
    )
    true = result["checks"].get("json", {})
    rows = f", {true['rows']:,} events" if true else ""
    lines = [
        f"\n{result['file']}: {megabytes:,.0f} MB{packed}{rows}; load average {result['load_average']:.2f}"
        + ("; **on a busy machine**" if result["loaded"] else "")
        + "\n",
        "| contestant | CPU s | MB per CPU s | wall s | peak RSS MB | CPU, times ours | read |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in result["chosen"]:
        answer = result["checks"].get(key, {}).get("answer", "")
        lines.append(f"| {CONTESTANTS[key].label} | {cells(result, key, megabytes)} | {answer} |")
    return "\n".join(lines)


def cells(result: dict[str, Any], key: str, megabytes: float) -> str:
    """The measured columns of one contestant: medians, the largest peak, the range of the ratio."""
    if key in result["out_of_race"]:
        return f"{result['out_of_race'][key]} | | | |"
    taken = [each[key] for each in result["rounds"] if key in each]
    if not taken:
        return "not run | | | |"
    cpu_s, wall_s = (statistics.median(run[name] for run in taken) for name in ("cpu_s", "wall_s"))
    peak = max(run["peak_bytes"] for run in taken) / MEGABYTE
    ratio = result["cpu_ratios"][key]
    if key == CONTESTANTS[key].base:
        said = "1"
    elif len(ratio) > 1:
        said = f"{statistics.median(ratio):.2f} [{min(ratio):.2f}, {max(ratio):.2f}]"
    else:
        said = f"{ratio[0]:.2f}" if ratio else ""
    return f"{cpu_s:.2f} | {megabytes / cpu_s:,.1f} | {wall_s:.2f} | {peak:,.0f} | {said}"


if __name__ == "__main__":
    main()
