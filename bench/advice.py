"""Is the advice true? Record the sample engine, do what the first advice says, and see whether the range held.

    python bench/advice.py --seed 1                       all trials, about 25 minutes
    python bench/advice.py --seed 1 --trial queue         one of them
    python bench/advice.py --seed 1 --again               compare what an earlier call recorded anew

Runs alternate: as it was, changed, as it was, changed, so that a machine that drifts does so for both. The advice is
that of the first run, and so is the range. A trial without advice is one in which nothing should be gained: there the
batch cap is doubled, and the output rate must stay as it was, within what runs of the same setting differ by.
One row for each metric that the advice promises or says will pay. Exit code 0 when nothing lies outside of its range.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVE = Path(__file__).resolve().parents[1] / "samples" / "serve.py"
# Without repeats of its own, no difference under this is one (as `spyreprof diff` has it).
LEAST_FLOOR = 0.05


@dataclass(frozen=True)
class Trial:
    """A scenario of the sample, and what must be known of its options to change a setting.

    `on` is the scenario that is the same with the advised switch on; `gains` is False where no setting should help.
    """

    name: str
    scenario: str
    on: str | None = None
    gains: bool = True


TRIALS = (
    Trial("queue", "queue"),
    Trial("kv-capacity", "kv-capacity"),
    Trial("preemption", "preemption"),
    Trial("mixed", "mixed"),
    Trial("prefix", "shared-prefix-uncached", on="shared-prefix"),
    Trial("decode", "decode", gains=False),
    Trial("healthy", "healthy", gains=False),
)
# What the sample can be told, and how it spells it.
SPELLED = {
    "--max-num-seqs": "--max-num-seqs",
    "--max-num-batched-tokens": "--max-num-batched-tokens",
    "--num-gpu-blocks-override": "--num-kv-blocks",
    "--enable-prefix-caching": "",  # a scenario of its own
}


@dataclass(frozen=True)
class Change:
    """One promised or paid change beside what came."""

    trial: str
    setting: str
    metric: str
    stated: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    floor: float
    result: str

    def row(self) -> str:
        """A line of the table."""
        measured = statistics.median(self.after) / statistics.median(self.before) - 1.0
        return (
            f"| {self.trial} | {self.setting} | {self.metric} | {self.stated} | {measured:+.0%} | ±{self.floor:.0%} "
            f"| {self.result} |"
        )


def latency(metric: str, field: str) -> Callable[[dict[str, Any]], float | None]:
    """Reads a percentile of the report."""

    def read(report: dict[str, Any]) -> float | None:
        rows = [row for row in report["latencies"] if row["metric"] == metric and row.get(field) is not None]
        return float(rows[0][field]) if rows else None

    return read


def output_rate(report: dict[str, Any]) -> float | None:
    """Output tokens per second of the steady window."""
    rate = (report["throughput"] or {}).get("output_tokens")
    return float(rate["per_s"]) if rate else None


def prefill_per_request(report: dict[str, Any]) -> float | None:
    """Time of prefill and mixed steps over finished requests."""
    rate = (report["throughput"] or {}).get("requests")
    share = sum(phase["share"] for phase in report["phases"] if phase["phase"] in ("prefill", "mixed"))
    return share / float(rate["per_s"]) if rate and share else None


def decode_step(report: dict[str, Any]) -> float | None:
    """Median decode step."""
    times = [phase["step_time_p50_ns"] for phase in report["phases"] if phase["phase"] == "decode"]
    return float(times[0]) if times and times[0] else None


def longest_gap(report: dict[str, Any]) -> float | None:
    """99th percentile of the gaps between tokens of all requests, from the load's result file.

    Most requests see no long gap at all, so that a median over them tells nothing.
    """
    gaps = [gap for gaps in report["_result"].get("itls", []) for gap in gaps]
    return statistics.quantiles(gaps, n=100)[98] if len(gaps) >= 100 else None


METRICS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "output tokens/s": output_rate,
    "ITL": latency("tpot", "p50_s"),
    "ITL 99th percentile": latency("tpot", "p99_s"),
    "longest gap between tokens": longest_gap,
    "decode step time": decode_step,
    "TTFT": latency("ttft", "mean_s"),
    # what a request waits for its place is most of its time to the first token
    "queue time": latency("ttft", "mean_s"),
    "prefill time": prefill_per_request,
}


def arguments(trial: Trial, seed: int, load_s: float, changed: dict[str, Any] | None) -> list[str]:
    """The sample's command line, with the advice's own arguments at its end."""
    scenario, more = trial.scenario, []
    if changed is not None:
        words = changed["test_arguments"].split()
        if trial.on is not None:
            scenario = trial.on
        else:
            more = [SPELLED.get(word, word) for word in words]
    return [sys.executable, str(SERVE), "--scenario", scenario, "--seed", str(seed), "--load-seconds", f"{load_s:g}",
            *more]  # fmt: skip


def record(name: str, folder: Path, program: list[str]) -> None:
    """Record one run in a folder of its own."""
    work, recording = folder / name, folder / f"{name}.spyreprof"
    for left_over in (work, recording):
        shutil.rmtree(left_over, ignore_errors=True)
    work.mkdir(parents=True)
    command = [sys.executable, "-m", "spyreprof", "record", "--out", str(recording), "--", *program]
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(command, cwd=work, stdout=log, stderr=log, check=True)


def read(name: str, folder: Path) -> dict[str, Any]:
    """The report of one run, and the load's result file under `_result`."""
    command = [sys.executable, "-m", "spyreprof", "report", str(folder / f"{name}.spyreprof"), "--json"]
    report: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    results = list((folder / name).glob("serve-bench-*.json"))
    report["_result"] = json.loads(results[0].read_text()) if results else {}
    return report


def first_advice(report: dict[str, Any]) -> dict[str, Any] | None:
    """The first advice that the sample can carry out: it has no other precision, and one device."""
    for finding in report["findings"]:
        for advice in finding["advice"]:
            if advice["test_arguments"].partition(" ")[0] in SPELLED:
                return advice  # type: ignore[no-any-return]
    return None


def compare(trial: Trial, advice: dict[str, Any] | None, before: list[dict[str, Any]], after: list[dict[str, Any]],
            cap: int) -> list[Change]:  # fmt: skip
    """Every stated change beside the measured one."""
    if advice is None:
        setting = f"max_num_seqs {cap} -> {2 * cap} (not advised)"
        promised: list[dict[str, Any]] = [{"metric": "output tokens/s", "direction": "up", "low": 0.0, "high": 0.0}]
    else:
        setting = f"{advice['setting']} {advice['from']} -> {advice['to']}"
        promised = [*advice["expected"], *advice["pays"]]
    found = []
    for change in promised:
        metric = METRICS.get(change["metric"])
        values = [[metric(report) if metric else None for report in side] for side in (before, after)]
        if any(value is None for side in values for value in side):
            continue
        old, new = ([float(value or 0.0) for value in side] for side in values)
        floor = max(LEAST_FLOOR, *(max(side) / min(side) - 1.0 for side in (old, new)))
        stated, result = judge(change, statistics.median(new) / statistics.median(old) - 1.0, floor)
        found.append(Change(trial.name, setting, change["metric"], stated, tuple(old), tuple(new), floor, result))
    return found


def judge(change: dict[str, Any], measured: float, floor: float) -> tuple[str, str]:
    """The range in words; and inside, within noise (of its nearer end), outside, or what became of the direction."""
    sign = 1.0 if change["direction"] == "up" else -1.0
    low, high = change.get("low"), change.get("high")
    if low is None and high is None:
        if abs(measured) <= floor:
            return f"{change['direction']}, no number", "no change seen"
        return f"{change['direction']}, no number", "direction right" if measured * sign > 0 else "direction wrong"
    ends = sorted((sign * (low or 0.0), sign * (high if high is not None else low)))
    stated = f"{ends[0]:+.0%} to {ends[1]:+.0%}" if low is not None else f"at most {ends[0 if sign < 0 else 1]:+.0%}"
    if ends[0] <= measured <= ends[1]:
        return stated, "inside"
    beyond = max(ends[0] - measured, measured - ends[1])
    return stated, "inside, within noise" if beyond <= floor * (1.0 + max(measured, 0.0)) else "outside"


def cap_of(trial: Trial) -> int:
    """The batch cap of a scenario without advice; the samples' own default."""
    from engine.scenarios import SCENARIOS  # the path is set in main

    return SCENARIOS[trial.scenario].max_num_seqs


def run(trial: Trial, folder: Path, options: argparse.Namespace) -> list[Change]:
    """Record as it was and changed, in turns; or take what is there."""
    seed = random.Random(f"{options.seed}/{trial.name}").randrange(1_000_000)
    names = [f"{trial.name}-{number}{side}" for number in range(1, options.rounds + 1) for side in ("before", "after")]
    if not options.again:
        record(names[0], folder, arguments(trial, seed, options.load_seconds, None))
    first = read(names[0], folder)
    advice, cap = first_advice(first), cap_of(trial)
    trial_arguments = advice or {"test_arguments": f"--max-num-seqs {2 * cap}"}
    for name in names[1:] if not options.again else ():
        changed = trial_arguments if name.endswith("after") else None
        record(name, folder, arguments(trial, seed, options.load_seconds, changed))
    reports = {name: first if name == names[0] else read(name, folder) for name in names}
    before, after = ([reports[name] for name in names if name.endswith(side)] for side in ("before", "after"))
    found = compare(trial, advice, before, after, cap)
    if advice is None and trial.gains:
        print(f"{trial.name}: no advice was given ({first['verdict']['primary']})", file=sys.stderr)
    if advice is not None and not trial.gains:
        print(f"{trial.name}: advice was given where none should be: {advice['setting']}", file=sys.stderr)
    return found


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of all loads; default 0")
    parser.add_argument("--trial", choices=[trial.name for trial in TRIALS], action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of either setting; default 2")
    parser.add_argument("--load-seconds", type=float, default=40.0, metavar="S", help="load of each run; default 40")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: advice-seedN in this folder")
    parser.add_argument("--again", action="store_true", help="compare the recordings of an earlier call")
    return parser.parse_args()


def main() -> int:
    """Record, compare, print."""
    options = parse_options()
    sys.path.insert(0, str(SERVE.parent))
    folder = (options.out or Path(f"advice-seed{options.seed}")).resolve()
    print("| trial | setting | metric | stated | measured | same setting | result |\n|---|---|---|---|---|---|---|")
    results = []
    for trial in TRIALS:
        if options.trial and trial.name not in options.trial:
            continue
        for change in run(trial, folder, options):
            results.append(change.result)
            print(change.row(), flush=True)
    return 1 if not results or {"outside", "direction wrong"} & set(results) else 0


if __name__ == "__main__":
    sys.exit(main())
