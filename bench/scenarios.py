"""Is the verdict right? Record the samples under loads whose right answer is known, and count.

    python bench/scenarios.py --seed 1 --draws 60           every scenario four times, about 80 minutes
    python bench/scenarios.py --seed 1 --draws 60 --resume  the rest, after an interruption
    python bench/scenarios.py --defaults --repeat 3         the scenarios as they come, with fresh seeds
    python bench/scenarios.py --seed 1 --draws 60 --again   judge the same recordings anew, after a change of rules
    python bench/scenarios.py --seed 1 --dry-run            only print the commands

Model size, lengths, load and limits are drawn from the seed, within ranges in which physics fixes the answer
(`scenario_draws.py` says why). A run is right when its verdict is, the finding that it must bring is there, and none
is there that physics rules out. One run at a time: they would slow each other down. Exit code 0 when at least nine in
ten are right and none is wrong with high confidence.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scenario_answers import FORBIDDEN_FINDING, REQUIRED_FINDING, broken_premise, right_answers
from scenario_draws import DEFAULT_OPTIONS, DRAW

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
SEVERITIES = ("none", "info", "low", "medium", "high")


@dataclass(frozen=True)
class Draw:
    """One run: a scenario, and the options of `serve.py` that differ from its defaults."""

    number: int
    scenario: str
    seed: int
    options: dict[str, str]

    @property
    def name(self) -> str:
        """Names the run's files."""
        return f"{self.number:02d}-{self.scenario}"

    def program(self, load_seconds: float) -> list[str]:
        """The command that is recorded."""
        if self.scenario.startswith("interconnect"):
            command = [sys.executable, str(SAMPLES / "interconnect.py"), "--seed", str(self.seed)]
            command += ["--seconds", f"{load_seconds:g}"]
        else:
            command = [sys.executable, str(SAMPLES / "serve.py"), "--scenario", self.scenario, "--seed", str(self.seed)]
            command += ["--load-seconds", f"{load_seconds:g}"]
        for option, value in self.options.items():
            # A switch has no value.
            command += [f"--{option}", value] if value else [f"--{option}"]
        return command


@dataclass(frozen=True)
class Outcome:
    """What the report said of one run. None where it said nothing."""

    name: str
    scenario: str
    seed: int
    options: dict[str, str]
    result: str
    """right, undetermined, wrong, wrong_high (wrong with high confidence), finding (the verdict is right, the findings
    are not) or failed."""
    verdict: str | None
    confidence: str | None
    unexplained_share: float | None
    assigned_ratio: float | None
    worst_severity: str | None
    wall_s: float
    missing_findings: tuple[str, ...] = ()
    """Required, and not made."""
    excess_findings: tuple[str, ...] = ()
    """Ruled out by physics, and made."""
    failure: str | None = None


def drawn_runs(seed: int, count: int, scenario: str | None) -> Iterator[Draw]:
    """Scenarios in turn, everything else from the seed."""
    names = list(DRAW) if scenario is None else [scenario]
    for number in range(count):
        name = names[number % len(names)]
        numbers = random.Random(f"{seed}/{number}/{name}")
        yield Draw(number, name, numbers.randrange(1_000_000), DRAW[name](numbers))


def default_runs(seed: int, repeat: int, scenario: str | None) -> Iterator[Draw]:
    """The scenarios with their own sizes, each `repeat` times with a seed of its own."""
    names = list(DRAW) if scenario is None else [scenario]
    for number in range(repeat * len(names)):
        run_seed = random.Random(f"{seed}/{number}/default").randrange(1_000_000)
        name = names[number % len(names)]
        yield Draw(number, name, run_seed, DEFAULT_OPTIONS.get(name, {}))


def judge(draw: Draw, verdict: str, confidence: str | None, found: frozenset[str], right: frozenset[str]) -> str:
    """right, undetermined, wrong, wrong_high or finding."""
    if verdict == "undetermined":
        return "undetermined"
    if verdict not in right:
        return "wrong_high" if confidence == "high" else "wrong"
    required = REQUIRED_FINDING.get(draw.scenario, frozenset())
    return "right" if required <= found and not found & FORBIDDEN_FINDING[draw.scenario] else "finding"


def read_report(draw: Draw, report: dict[str, Any], totals: dict[str, float], wall_s: float) -> Outcome:
    """What a report.json says of a run; `totals` are the engine's own, empty where there is none."""
    verdict, confidence = report["verdict"]["primary"], report["verdict"]["confidence"]
    ratios = [phase["assigned_ratio"] for phase in report["phases"] if phase.get("assigned_ratio") is not None]
    severities = [SEVERITIES.index(finding["severity"]) for finding in report["findings"]]
    found = frozenset(finding["id"] for finding in report["findings"])
    return Outcome(
        draw.name,
        draw.scenario,
        draw.seed,
        draw.options,
        judge(draw, verdict, confidence, found, right_answers(draw.scenario, totals)),
        verdict,
        confidence,
        report["time_budget"]["unexplained_share"],
        min(ratios, default=None),
        SEVERITIES[max(severities, default=0)],
        wall_s,
        tuple(sorted(REQUIRED_FINDING.get(draw.scenario, frozenset()) - found)),
        tuple(sorted(found & FORBIDDEN_FINDING[draw.scenario])),
    )


def engine_totals(draw: Draw, work_folder: Path) -> dict[str, float]:
    """The engine's counters from the result file of its load; empty for a program that is no engine.

    Raises:
        ValueError: there is no such file, or it holds no counters.
    """
    if draw.scenario.startswith("interconnect"):
        return {}
    path = work_folder / f"serve-bench-{draw.scenario}-seed{draw.seed}.json"
    try:
        totals: dict[str, float] = json.loads(path.read_text())["engine"]
    except (OSError, KeyError) as fault:
        raise ValueError(f"{path.name} has no totals of the engine") from fault
    return totals


def commands(draw: Draw, folder: Path, load_seconds: float) -> tuple[list[str], list[str]]:
    """The two commands of a run: record, report."""
    recording = folder / f"{draw.name}.spyreprof"
    spyreprof = [sys.executable, "-m", "spyreprof"]
    record = [*spyreprof, "record", "--out", str(recording), "--", *draw.program(load_seconds)]
    return record, [*spyreprof, "report", str(recording), "--json"]


def run(draw: Draw, folder: Path, load_seconds: float) -> Outcome:
    """Record and judge one run; what both print on stderr is kept beside the recording."""
    record, _ = commands(draw, folder, load_seconds)
    # A folder of its own: the recorder picks result files up from where the program runs.
    work_folder = folder / draw.name
    for left_over in (work_folder, Path(record[record.index("--out") + 1])):
        # Of a run that was interrupted.
        shutil.rmtree(left_over, ignore_errors=True)
    work_folder.mkdir()
    started_s = time.perf_counter()
    with (folder / f"{draw.name}.log").open("w") as log:
        recorded = subprocess.run(record, cwd=work_folder, stdout=log, stderr=log, check=False)
    if recorded.returncode != 0:
        return failed(draw, f"record ended with {recorded.returncode}", time.perf_counter() - started_s)
    return judged(draw, folder, started_s)


def judged(draw: Draw, folder: Path, started_s: float) -> Outcome:
    """Judge the recording of a run; `started_s` is when the run, or its judging alone, began."""
    _, report = commands(draw, folder, 0.0)
    with (folder / f"{draw.name}.log").open("a") as log:
        reported = subprocess.run(report, stdout=subprocess.PIPE, stderr=log, check=False)
    wall_s = time.perf_counter() - started_s
    if reported.returncode != 0:
        return failed(draw, f"report ended with {reported.returncode}", wall_s)
    try:
        totals = engine_totals(draw, folder / draw.name)
        failure = broken_premise(draw.scenario, totals)
        return (
            failed(draw, failure, wall_s) if failure else read_report(draw, json.loads(reported.stdout), totals, wall_s)
        )
    except (ValueError, KeyError, TypeError) as fault:
        return failed(draw, f"report.json: {type(fault).__name__} {fault}", wall_s)


def failed(draw: Draw, failure: str, wall_s: float) -> Outcome:
    """A run of which nothing was said."""
    unknown = (None, None, None, None, None)
    return Outcome(draw.name, draw.scenario, draw.seed, draw.options, "failed", *unknown, wall_s, failure=failure)


def share(value: float | None) -> str:
    """A ratio for the table."""
    return "?" if value is None else f"{value:.1%}"


def findings_of(outcome: Outcome) -> str:
    """Required and ruled-out findings for the table."""
    wrong = [f"no {name}" for name in outcome.missing_findings] + [
        f"surplus {name}" for name in outcome.excess_findings
    ]
    if wrong:
        return ", ".join(wrong)
    required = REQUIRED_FINDING.get(outcome.scenario, frozenset())
    return "?" if outcome.verdict is None else ", ".join(sorted(required)) or "-"


def row(outcome: Outcome) -> str:
    """A line of the table."""
    said = outcome.failure or f"{outcome.verdict} ({outcome.confidence})"
    return (
        f"{outcome.name:25} {outcome.seed:>6} {outcome.result:12} {said:33} {findings_of(outcome):24} "
        f"{share(outcome.unexplained_share):>11} {share(outcome.assigned_ratio):>8} {outcome.worst_severity or '?':8} "
        f"{outcome.wall_s:4.0f} s"
    )


HEADER = (
    f"{'run':25} {'seed':>6} {'result':12} {'verdict (confidence)':33} {'finding':24} "
    f"{'unexplained':>11} {'assigned':>8} {'severity':8} {'time':>6}"
)


def good_enough(results: Counter[str]) -> bool:
    """Nine in ten right, and none wrong with high confidence."""
    total = sum(results.values())
    return total > 0 and 10 * results["right"] >= 9 * total and results["wrong_high"] == 0


def summarise(outcomes: list[Outcome]) -> str:
    """Counts over all runs."""
    results = Counter(outcome.result for outcome in outcomes)
    explained = [o.unexplained_share for o in outcomes if o.unexplained_share is not None]
    assigned = [o.assigned_ratio for o in outcomes if o.assigned_ratio is not None]
    quiet = [o for o in outcomes if o.scenario == "healthy" and o.worst_severity in SEVERITIES[:3]]
    healthy = sum(outcome.scenario == "healthy" for outcome in outcomes)
    return (
        f"{len(outcomes)} runs: {results['right']} right, {results['undetermined']} undetermined, "
        f"{results['wrong']} wrong, {results['wrong_high']} wrong with high confidence, "
        f"{results['finding']} with a wrong finding, {results['failed']} failed\n"
        f"unexplained at most 10 %: {sum(s <= 0.1 for s in explained)} of {len(explained)}; "
        f"at least 80 % of profiled step time assigned: {sum(r >= 0.8 for r in assigned)} of {len(assigned)}; "
        f"healthy runs without a finding above low: {len(quiet)} of {healthy}"
    )


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of all draws; default 0")
    parser.add_argument("--draws", type=int, default=60, metavar="N", help="number of drawn runs; default 60")
    parser.add_argument("--defaults", action="store_true", help="the scenarios' own sizes instead of drawn ones")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="with --defaults: runs of each scenario")
    parser.add_argument("--scenario", choices=list(DRAW), help="only this one")
    parser.add_argument("--load-seconds", type=float, default=60.0, metavar="S", help="load of each run; default 60")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: scenarios-seedN in this folder")
    parser.add_argument("--resume", action="store_true", help="go on in a folder that holds results of the same draws")
    parser.add_argument("--again", action="store_true", help="judge the recordings of an earlier call anew")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    return parser.parse_args()


def read_results(path: Path) -> list[Outcome]:
    """Outcomes of earlier runs; none where there is no file."""
    if not path.exists():
        return []
    outcomes = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        for name in ("missing_findings", "excess_findings"):
            fields[name] = tuple(fields[name])
        outcomes.append(Outcome(**fields))
    return outcomes


def still_to_run(draws: list[Draw], done: list[Outcome]) -> list[Draw] | None:
    """What is left of the draws; None when something done is none of them."""
    left = {(draw.name, draw.seed, tuple(draw.options.items())): draw for draw in draws}
    for outcome in done:
        if left.pop((outcome.name, outcome.seed, tuple(outcome.options.items())), None) is None:
            return None
    return list(left.values())


def judge_again(draws: list[Draw], folder: Path) -> int:
    """Judge what an earlier call recorded with the analyzers of today; its results file stays as it is."""
    print(HEADER, flush=True)
    outcomes: list[Outcome] = []
    for draw in draws:
        if (folder / f"{draw.name}.spyreprof").is_dir():
            outcomes.append(judged(draw, folder, time.perf_counter()))
            print(row(outcomes[-1]), flush=True)
    print(summarise(outcomes), flush=True)
    return 0 if good_enough(Counter(outcome.result for outcome in outcomes)) else 1


def main() -> int:
    """Run, print, count."""
    options = parse_options()
    folder = (options.out or Path(f"scenarios-seed{options.seed}")).resolve()
    if options.defaults:
        draws = list(default_runs(options.seed, options.repeat, options.scenario))
    else:
        draws = list(drawn_runs(options.seed, options.draws, options.scenario))
    if options.dry_run:
        for draw in draws:
            for command in commands(draw, folder, options.load_seconds):
                print(shlex.join(command))
        return 0
    if options.again:
        return judge_again(draws, folder)
    results_path = folder / "results.jsonl"
    if results_path.exists() and not options.resume:
        print(f"scenarios.py: {folder} holds results already; --resume, or choose another --out", file=sys.stderr)
        return 2
    outcomes = read_results(results_path)
    left = still_to_run(draws, outcomes)
    if left is None:
        print(f"scenarios.py: {folder} holds results of other draws; choose another --out", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    print("\n".join([HEADER, *map(row, outcomes)]), flush=True)
    try:
        for draw in left:
            outcomes.append(run(draw, folder, options.load_seconds))
            print(row(outcomes[-1]), flush=True)
            with results_path.open("a") as lines:
                lines.write(json.dumps(asdict(outcomes[-1])) + "\n")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        print(summarise(outcomes), flush=True)
    return 0 if good_enough(Counter(outcome.result for outcome in outcomes)) else 1


if __name__ == "__main__":
    sys.exit(main())
