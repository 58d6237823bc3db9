"""Is the verdict right? Record the sample engine under loads whose right answer is known, and count.

    python bench/scenarios.py --seed 1                      30 drawn runs, about 45 minutes
    python bench/scenarios.py --defaults --repeat 3         the four scenarios as they come, with fresh seeds
    python bench/scenarios.py --seed 1 --dry-run            only print the commands

Model size, lengths, load and limits are drawn from the seed, within ranges in which physics fixes the answer (each
`draw_*` says why). Exit code 0 when at least nine in ten verdicts are right and none is wrong with high confidence.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SERVE = Path(__file__).resolve().parents[1] / "samples" / "serve.py"
RIGHT_ANSWER = {
    "prefill": "prefill_bound",
    "decode": "decode_bandwidth_bound",
    "queue": "queue_bound",
    "healthy": "load_limited",
}
SEVERITIES = ("none", "info", "low", "medium", "high")
VOCAB = 512


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
        command = [sys.executable, str(SERVE), "--scenario", self.scenario, "--seed", str(self.seed)]
        command += ["--load-seconds", f"{load_seconds:g}"]
        for option, value in self.options.items():
            command += [f"--{option}", value]
        return command


@dataclass(frozen=True)
class Outcome:
    """What the report said of one run. None where it said nothing."""

    name: str
    scenario: str
    seed: int
    options: dict[str, str]
    result: str
    """right, undetermined, wrong, wrong_high (wrong with high confidence) or failed."""
    verdict: str | None
    confidence: str | None
    unexplained_share: float | None
    assigned_ratio: float | None
    worst_severity: str | None
    wall_s: float
    failure: str | None = None


def draw_model(numbers: random.Random, low_mb: float, high_mb: float) -> tuple[dict[str, str], float]:
    """A decoder whose weights lie between two sizes; returns its options and its size in megabytes.

    Few and wide layers: at these sizes a step is matrix multiplication, and what Python adds is small beside it.
    """
    while True:
        heads = numbers.randint(8, 24)
        hidden = 128 * heads
        kv_heads = numbers.choice([count for count in (2, 3, 4, 6) if heads % count == 0] or [heads])
        ffn = 128 * round(hidden * numbers.uniform(2.5, 4.0) / 128)
        layers = numbers.randint(1, 5)
        attention = 2 * hidden * hidden + 2 * hidden * 128 * kv_heads
        megabytes = 4 * (layers * (attention + 3 * hidden * ffn) + 2 * VOCAB * hidden) / 1e6
        if low_mb <= megabytes <= high_mb:
            sizes = {"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv-heads": kv_heads}
            return {name: str(value) for name, value in sizes.items()}, megabytes


def span_around(numbers: random.Random, mean: float, smallest: int) -> str:
    """A:B with the given middle and a drawn width."""
    half = mean * numbers.uniform(0.2, 0.5)
    first = max(smallest, round(mean - half))
    return f"{first}:{max(first, round(mean + half))}"


def limits(numbers: random.Random, longest: int, requests: int, max_num_seqs: int, chunk: int) -> dict[str, str]:
    """Engine limits with a KV cache of at least four times what `requests` requests can need."""
    block_size = numbers.choice([8, 16, 32])
    max_model_len = 64 * (-(-longest // 64))
    blocks = 4 * requests * (-(-longest // block_size)) + max_model_len // block_size
    return {
        "max-num-seqs": str(max_num_seqs),
        "max-num-batched-tokens": str(chunk),
        "max-model-len": str(max_model_len),
        "block-size": str(block_size),
        "num-kv-blocks": str(blocks),
    }


def longest_of(*spans: str) -> int:
    """Largest sum of the spans' ends."""
    return sum(int(span.partition(":")[2]) for span in spans)


def draw_prefill(numbers: random.Random) -> dict[str, str]:
    """Nearly all tokens are prompt tokens, in chunks of 48 rows and more: each weight that is read is used at least
    48 times. The cap is out of reach, and there is always a prompt to compute."""
    model, megabytes = draw_model(numbers, 150, 400)
    # Bounds seconds per request, so that even a busy machine completes 30 in a minute.
    prompt = span_around(numbers, min(numbers.uniform(160, 480), 90_000 / megabytes), 64)
    output = f"1:{numbers.randint(1, 3)}"
    concurrency = numbers.randint(1, 3)
    cap = numbers.randint(6, 16)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), concurrency, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_decode(numbers: random.Random) -> dict[str, str]:
    """One request at a time, many more decode steps than prompt tokens pay for: each reads all weights, which are
    ten to thirty times a last-level cache of 32 MB, and uses each weight once."""
    model, megabytes = draw_model(numbers, 320, 900)
    output = span_around(numbers, min(numbers.uniform(12, 32), 12_000 / megabytes), 8)
    prompt = span_around(numbers, numbers.uniform(6, 16), 3)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), 1, numbers.randint(4, 16), 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": "1",
    }


def draw_queue(numbers: random.Random) -> dict[str, str]:
    """Three to five times as many clients as the cap admits, KV cache for four times all of them, and little prefill:
    most of a request's time is waiting for a place, and a larger batch reads the weights no more often."""
    model, megabytes = draw_model(numbers, 200, 450)
    cap = numbers.randint(2, 6)
    concurrency = numbers.randint(3 * cap, 5 * cap)
    output = span_around(numbers, min(numbers.uniform(20, 44), 6_000 * cap / megabytes), 12)
    prompt = span_around(numbers, numbers.uniform(6, 14), 3)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), concurrency, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "concurrency": str(concurrency),
    }


def draw_healthy(numbers: random.Random) -> dict[str, str]:
    """Random arrivals, about one a second, of requests that take a fifth of one: mostly there is nothing to do."""
    model, megabytes = draw_model(numbers, 120, 300)
    output = span_around(numbers, min(numbers.uniform(6, 14), 2_400 / megabytes), 4)
    prompt = span_around(numbers, numbers.uniform(12, 28), 6)
    cap = numbers.randint(6, 16)
    return {
        **model,
        **limits(numbers, longest_of(prompt, output), cap, cap, 8 * numbers.randint(6, 12)),
        "prompt-tokens": prompt,
        "output-tokens": output,
        "request-rate": f"{numbers.uniform(0.75, 1.1):.2f}",
    }


DRAW = {"prefill": draw_prefill, "decode": draw_decode, "queue": draw_queue, "healthy": draw_healthy}


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
        yield Draw(number, names[number % len(names)], run_seed, {})


def judge(scenario: str, verdict: str, confidence: str) -> str:
    """right, undetermined, wrong or wrong_high."""
    if verdict == RIGHT_ANSWER[scenario]:
        return "right"
    if verdict == "undetermined":
        return "undetermined"
    return "wrong_high" if confidence == "high" else "wrong"


def read_report(draw: Draw, report: dict[str, Any], wall_s: float) -> Outcome:
    """What a report.json says of a run."""
    verdict, confidence = report["verdict"]["primary"], report["verdict"]["confidence"]
    ratios = [phase["assigned_ratio"] for phase in report["phases"] if phase.get("assigned_ratio") is not None]
    severities = [SEVERITIES.index(finding["severity"]) for finding in report["findings"]]
    return Outcome(
        draw.name,
        draw.scenario,
        draw.seed,
        draw.options,
        judge(draw.scenario, verdict, confidence),
        verdict,
        confidence,
        report["time_budget"]["unexplained_share"],
        min(ratios, default=None),
        SEVERITIES[max(severities, default=0)],
        wall_s,
    )


def commands(draw: Draw, folder: Path, load_seconds: float) -> tuple[list[str], list[str]]:
    """The two commands of a run: record, report."""
    recording = folder / f"{draw.name}.spyreprof"
    spyreprof = [sys.executable, "-m", "spyreprof"]
    record = [*spyreprof, "record", "--out", str(recording), "--", *draw.program(load_seconds)]
    return record, [*spyreprof, "report", str(recording), "--json"]


def run(draw: Draw, folder: Path, load_seconds: float) -> Outcome:
    """Record and report one run; what both print on stderr is kept beside the recording."""
    record, report = commands(draw, folder, load_seconds)
    # A folder of its own: the recorder picks result files up from where the program runs.
    work_folder = folder / draw.name
    work_folder.mkdir()
    started_s = time.perf_counter()
    with (folder / f"{draw.name}.log").open("w") as log:
        recorded = subprocess.run(record, cwd=work_folder, stdout=log, stderr=log, check=False)
        reported = subprocess.run(report, stdout=subprocess.PIPE, stderr=log, check=False)
    wall_s = time.perf_counter() - started_s
    failure = None
    if recorded.returncode != 0:
        failure = f"record ended with {recorded.returncode}"
    elif reported.returncode != 0:
        failure = f"report ended with {reported.returncode}"
    else:
        try:
            return read_report(draw, json.loads(reported.stdout), wall_s)
        except (ValueError, KeyError, TypeError) as fault:
            failure = f"report.json: {type(fault).__name__} {fault}"
    unknown = (None, None, None, None, None)
    return Outcome(draw.name, draw.scenario, draw.seed, draw.options, "failed", *unknown, wall_s, failure)


def share(value: float | None) -> str:
    """A ratio for the table."""
    return "?" if value is None else f"{value:.1%}"


def row(outcome: Outcome) -> str:
    """A line of the table."""
    said = outcome.failure or f"{outcome.verdict} ({outcome.confidence})"
    return (
        f"{outcome.name:12} {outcome.seed:>7} {outcome.result:13} {said:38} {share(outcome.unexplained_share):>12} "
        f"{share(outcome.assigned_ratio):>9} {outcome.worst_severity or '?':9} {outcome.wall_s:5.0f} s"
    )


HEADER = (
    f"{'run':12} {'seed':>7} {'result':13} {'verdict (confidence)':38} {'unexplained':>12} {'assigned':>9} "
    f"{'severity':9} {'time':>7}"
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
        f"{results['wrong']} wrong, {results['wrong_high']} wrong with high confidence, {results['failed']} failed\n"
        f"unexplained at most 10 %: {sum(s <= 0.1 for s in explained)} of {len(explained)}; "
        f"at least 80 % of profiled step time assigned: {sum(r >= 0.8 for r in assigned)} of {len(assigned)}; "
        f"healthy runs without a finding above low: {len(quiet)} of {healthy}"
    )


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of all draws; default 0")
    parser.add_argument("--draws", type=int, default=30, metavar="N", help="number of drawn runs; default 30")
    parser.add_argument("--defaults", action="store_true", help="the scenarios' own sizes instead of drawn ones")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="with --defaults: runs of each scenario")
    parser.add_argument("--scenario", choices=list(DRAW), help="only this one")
    parser.add_argument("--load-seconds", type=float, default=60.0, metavar="S", help="load of each run; default 60")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: scenarios-seedN in this folder")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    return parser.parse_args()


def main() -> int:
    """Run, print, count."""
    options = parse_options()
    folder = (options.out or Path(f"scenarios-seed{options.seed}")).resolve()
    if options.defaults:
        draws = default_runs(options.seed, options.repeat, options.scenario)
    else:
        draws = drawn_runs(options.seed, options.draws, options.scenario)
    if options.dry_run:
        for draw in draws:
            for command in commands(draw, folder, options.load_seconds):
                print(shlex.join(command))
        return 0
    results_path = folder / "results.jsonl"
    if results_path.exists():
        print(f"scenarios.py: {folder} holds results already; choose another --out", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    print(HEADER, flush=True)
    try:
        for draw in draws:
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
