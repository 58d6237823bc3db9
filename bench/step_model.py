"""Do intervals of the step model hold the truth, does it refuse what nobody can tell, and is the verdict right?

    nice python bench/step_model.py                 200 draws of each part, some minutes
    nice python bench/step_model.py --draws 40      a quick look
    nice python bench/step_model.py --parts terms   coefficients alone; `verdicts` alone

The engine (`step_engine.py`) is not the model that is fitted. The truth of a coefficient is therefore the local slope
of its expected cycle time over the region that was visited: the line, without negative slopes, that is nearest by
relative squares to what the fitted steps would take on a quiet machine at its usual speed, with the terms that were
fitted. The run itself had noise, spikes, a wandering speed, and a speed of its own, which is what intervals must hold.

Exit code 0 when every goal is met.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from step_engine import NS, Engine, Machine, Request, Run, poisson, run
from step_tables import step_table
from step_verdicts import Judged, judge

from spyreprof.rules import load_rules
from spyreprof_analyzers.engine_steps import DECODE, EngineSteps, engine_steps
from spyreprof_analyzers.slope import Regime, StepModel, fit_step_model, usual_cycle_ns
from spyreprof_analyzers.slope_tests import FIXED, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_Q_K, PER_REQUEST

RULES = load_rules()
T = TypeVar("T")
TERMS = (FIXED, PER_REQUEST, PER_CACHED_TOKEN, PER_CONTEXT_TOKEN, PER_Q_K)
COVERAGE = (0.84, 0.95)
MOST_HALF_WIDTH = 0.15
LEAST_REFUSED = 0.95
LEAST_RIGHT = 0.98
MOST_GREY = 0.15
BUCKETS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
# What kind of run, and how many of a hundred: by construction some hold nothing that tells a term.
KINDS = {"varied": 55, "padded": 15, "constant batch": 10, "knee": 10, "equal chunks": 10}
MUST_REFUSE = {"constant batch": (FIXED, PER_REQUEST), "equal chunks": (PER_CONTEXT_TOKEN,)}


@dataclass(frozen=True)
class Told:
    """What came of one coefficient."""

    kind: str
    name: str
    identifiable: bool
    covered: bool
    half_width: float
    truth: float
    value: float
    reason: str


def draw_engine(rng: np.random.Generator) -> Engine:
    """A device and a model: reading the weights takes 5 to 40 ms, and from 100 rows or more arithmetic takes longer."""
    weights_s, bytes_per_s = rng.uniform(0.005, 0.04), 10.0 ** rng.uniform(10.0, 12.0)
    weight_bytes = weights_s * bytes_per_s * 0.8
    return Engine(
        flop_per_s=bytes_per_s * 10.0 ** rng.uniform(2.0, 2.8),
        bytes_per_s=bytes_per_s,
        weight_bytes=weight_bytes,
        # 32 requests of 600 tokens read a fifth to twice the weights
        kv_bytes_per_token=rng.uniform(0.2, 2.0) * weight_bytes / (32 * 600),
        host_ns=rng.uniform(0.05, 0.6) * weights_s * NS,
        host_per_request_ns=rng.uniform(0.002, 0.03) * weights_s * NS,
        overlap=float(rng.choice([0.0, 0.5, 0.9])),
        corner=float(rng.choice([np.inf, 8.0, 4.0])),
        max_num_seqs=32,
        max_num_batched_tokens=int(rng.choice([256, 512, 1024])),
    )


def draw_machine(rng: np.random.Generator) -> Machine:
    """Half of the machines are their owner's alone: from run to run their speed differs by 3 %, of others by 8 %."""
    own = bool(rng.random() < 0.5)
    speed = float(np.exp(rng.normal(0.0, 0.03 if own else 0.08)))
    return Machine(
        own=own, speed=speed, wander=rng.uniform(0.002, 0.015), wander_s=rng.uniform(5.0, 60.0),
        noise=rng.uniform(0.005, 0.04), memory=rng.uniform(0.3, 0.9), spike_share=rng.uniform(0.0, 0.04),
        spike_s=rng.uniform(0.1, 1.0), spike_factor=rng.uniform(1.2, 2.0),
    )  # fmt: skip


def waves(engine: Engine, rng: np.random.Generator, steps: float, level: tuple[float, float]) -> list[Request]:
    """A load that goes up and down, of about so many steps; the level is the mean batch over the cap, low and high."""
    usual = engine.cycle_ns(*engine.parts(16, 0, 16 * 450, 16))[0]
    output = (20, 200)
    capacity = engine.max_num_seqs / (usual / NS) / (sum(output) / 2)
    phase, periods = rng.uniform(0, 2 * np.pi), rng.integers(3, 9)
    up = (1.0 + np.sin(np.arange(48) / 48 * 2 * np.pi * periods + phase)) / 2
    rates = capacity * (level[0] + (level[1] - level[0]) * up) * rng.uniform(0.7, 1.3, 48)
    # some prompts are long, and then attention over them is a cost of its own
    load = poisson(rng, rates, steps * usual / NS / 48, (50, 4000 if rng.random() < 0.4 else 800), output)
    if rng.random() < 0.6:
        # prompts grow longer and shorter in a rhythm of their own
        rhythm, start = rng.integers(2, 7), rng.uniform(0, 2 * np.pi)
        end = max(load[-1].arrival_ns, 1)
        for request in load:
            stretch = 1.0 + 0.8 * np.sin(request.arrival_ns / end * 2 * np.pi * rhythm + start)
            request.prompt = max(int(request.prompt * stretch), 8)
    return load


def draw(kind: str, rng: np.random.Generator) -> tuple[Run, Machine]:
    """A run of one kind."""
    engine, machine, clients = draw_engine(rng), draw_machine(rng), 0
    steps = rng.uniform(1500, 6000)
    if kind == "padded":
        engine = replace(engine, decode_buckets=BUCKETS, chunk=int(rng.choice([0, 64])))
    if kind == "knee":
        # arithmetic overtakes the reading of weights within the batches that run
        ridge = rng.uniform(10.0, 18.0)
        engine = replace(
            engine, flop_per_s=ridge * engine.bytes_per_s, corner=np.inf, kv_bytes_per_token=0.0, overlap=0.0,
            host_ns=engine.host_ns / 4, host_per_request_ns=engine.host_per_request_ns / 4,
            max_num_batched_tokens=256,
        )  # fmt: skip
    load = waves(engine, rng, steps, (0.1, 0.9))
    if kind == "knee":
        for request in load:
            request.prompt = request.prompt // 10 + 4
    if kind == "equal chunks":
        chunk = engine.max_num_batched_tokens
        engine = replace(engine, mixes=False)
        for request in load:
            request.prompt = chunk
    if kind == "constant batch":
        cap = int(rng.integers(2, 12))
        engine = replace(engine, max_num_seqs=cap, max_num_batched_tokens=1024)
        load = [Request(0, r.prompt, int(rng.integers(300, 500))) for r in load[: max(int(steps * cap / 400), 2 * cap)]]
        clients = cap
    return run(engine, machine, load, rng, clients), machine


def truth_of(regime: Regime, steps: EngineSteps, quiet: NDArray[np.float64], decode: bool) -> dict[str, float]:
    """The local slope of the quiet cycle time in the steps that a regime was fitted on."""
    size = steps.executed_generation_requests if decode else steps.executed_context_tokens
    kind = steps.phase == DECODE if decode else steps.context_tokens > 0
    own = kind & (size >= regime.low) & (size <= regime.high)
    lengths, beside = steps.executed_generation_seq_len_sum, steps.executed_generation_requests
    work = {
        FIXED: np.ones(len(steps)), "constant": np.ones(len(steps)), PER_REQUEST: beside, PER_CACHED_TOKEN: lengths,
        PER_CONTEXT_TOKEN: steps.executed_context_tokens, PER_Q_K: steps.context_q_k_sum,
        "per_generation_request_beside_prompts": beside,
    }  # fmt: skip
    design = np.stack([work[name][own].astype(np.float64) for name in regime.names], axis=1)
    scale = design.max(axis=0)
    found = nnls(design / scale / quiet[own, None], np.ones(int(own.sum())))[0] / scale
    return dict(zip(regime.names, found.tolist(), strict=True))


def compare(kind: str, model: StepModel, steps: EngineSteps, quiet: NDArray[np.float64]) -> list[Told]:
    """Every coefficient beside its truth."""
    told = []
    for regime, names in ((model.decode, TERMS[:3]), (model.prompts, TERMS[3:])):
        if regime is None:
            continue
        truth = truth_of(regime, steps, quiet, regime is model.decode)
        for name in names:
            term = regime.term(name)
            if term is None:
                continue
            value, low, high = term.ns_per_unit or 0.0, term.low or 0.0, term.high or 0.0
            known = truth.get(name, 0.0)
            told.append(
                Told(kind, name, term.identifiable, low <= known <= high, (high - value) / value if value else np.inf,
                     known, value, term.reason or "")
            )  # fmt: skip
    return told


def terms_of(number: int, seed: int) -> tuple[str, list[Told], str]:
    """One draw of a kind by its number: what came of its coefficients, and where its knee was found."""
    rng = np.random.default_rng((seed, number))
    kind = rng.choice(list(KINDS), p=np.array(list(KINDS.values())) / 100)
    made, machine = draw(str(kind), rng)
    # of padded engines every second tells nobody what it executed
    steps = engine_steps(step_table(made, executed=kind != "padded" or number % 2 == 0), "1-a")
    # as in a recording, warm-up is left out at one end, and at the other the steps after the last request came
    inside = (np.arange(len(steps)) >= 3) & (steps.start_ns <= max(r.scheduled_ns for r in made.requests))
    steps, quiet = steps.where(inside), np.array([q[0] for q in made.quiet])[inside]
    model = fit_step_model(steps, usual_cycle_ns(steps), RULES, own_machine=machine.own)
    if model is None:
        return str(kind), [], "no model"
    knee = ""
    if model.decode is not None and str(kind) == "knee":
        crossed = model.decode.knee is None and model.identified(PER_REQUEST) is not None
        knee = "one line across" if crossed and bent(model.decode, steps, quiet) else "apart or refused"
    return str(kind), compare(str(kind), model, steps, quiet), knee


def bent(regime: Regime, steps: EngineSteps, quiet: NDArray[np.float64]) -> bool:
    """Does a line miss the quiet cycle of decode steps by a tenth somewhere?"""
    own = steps.phase == DECODE
    truth = truth_of(regime, steps, quiet, True)
    line = truth.get(FIXED, 0.0) + truth.get(PER_REQUEST, 0.0) * steps.executed_generation_requests[own]
    line = line + truth.get(PER_CACHED_TOKEN, 0.0) * steps.executed_generation_seq_len_sum[own]
    return bool(np.percentile(np.abs(line / quiet[own] - 1.0), 95) > 0.1)


def report_terms(draws: Sequence[tuple[str, list[Told], str]]) -> bool:
    """Print what came of the coefficients; whether every goal is met."""
    told = [one for _, every, _ in draws for one in every]
    met = True
    print(f"\n{'coefficient':32}{'fitted':>8}{'told':>7}{'covered':>9}{'half-width':>12}{'error':>8}")
    for name in (*TERMS, "all"):
        own = [one for one in told if name in (one.name, "all")]
        known = [one for one in own if one.identifiable]
        if not known:
            print(f"{name:32}{len(own):8}{0:7}  nothing to say")
            met = False
            continue
        covered = float(np.mean([one.covered for one in known]))
        width = float(np.median([one.half_width for one in known]))
        error = float(np.median([abs(one.value / one.truth - 1.0) for one in known if one.truth]))
        good = COVERAGE[0] <= covered <= COVERAGE[1] and width <= MOST_HALF_WIDTH
        met = met and good
        print(f"{name:32}{len(own):8}{len(known):7}{covered:9.1%}{width:12.1%}{error:8.1%}{'' if good else '  missed'}")
    for kind, names in MUST_REFUSE.items():
        own = [one for one in told if one.kind == kind and one.name in names]
        refused = float(np.mean([not one.identifiable for one in own])) if own else 0.0
        good = refused >= LEAST_REFUSED
        met = met and good
        print(f"refused, {kind}: {refused:.1%} of {len(own)} coefficients{'' if good else '  missed'}")
    knees = Counter(knee for kind, _, knee in draws if kind == "knee" and knee)
    across = knees["one line across"] / max(sum(knees.values()), 1)
    met = met and across <= 1.0 - LEAST_REFUSED
    print(f"a knee within the batches that ran, fitted with one line: {across:.1%} of {sum(knees.values())}")
    return met


def report_verdicts(judged: Sequence[Judged]) -> bool:
    """Print how often the class was right; whether both goals are met."""
    clear = [one for one in judged if not one.grey]
    right, grey = float(np.mean([one.said == one.truth for one in clear])), 1.0 - len(clear) / len(judged)
    print(f"\n{'class by the accounts':28}{'clear':>7}{'right':>7}{'undetermined':>14}{'wrong':>7}{'grey':>6}")
    for truth in sorted({one.truth for one in judged}):
        own = [one for one in clear if one.truth == truth]
        said = Counter("right" if one.said == truth else one.said == "undetermined" for one in own)
        in_grey = sum(one.grey for one in judged if one.truth == truth)
        print(f"{truth:28}{len(own):7}{said['right']:7}{said[True]:14}{said[False]:7}{in_grey:6}")
    sure = [one for one in judged if one.said not in (one.truth, "undetermined") and one.confidence == "high"]
    print(f"right outside the grey zone: {right:.1%} of {len(clear)}; grey: {grey:.1%}")
    print(f"wrong with high confidence: {len(sure)}")
    for one in clear:
        if one.said != one.truth:
            print(f"  {one.scenario}: {one.truth}, said {one.said} ({one.confidence}): {one.reason}")
    return right >= LEAST_RIGHT and grey <= MOST_GREY and not any(not one.grey for one in sure)


def _each(work: Callable[[int], T], draws: int, processes: int) -> list[T]:
    started = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        done = list(pool.map(work, range(draws)))
    print(f"{draws} draws in {time.monotonic() - started:.0f} s")
    return done


def main() -> int:
    """Run the parts that were asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--draws", type=int, default=200)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--parts", nargs="+", choices=("terms", "verdicts"), default=["terms", "verdicts"])
    asked.add_argument("--processes", type=int, default=2)
    given = asked.parse_args()
    met = True
    if "terms" in given.parts:
        met = report_terms(_each(partial(terms_of, seed=given.seed), given.draws, given.processes)) and met
    if "verdicts" in given.parts:
        work = partial(judge, seed=given.seed, rules=RULES)
        met = report_verdicts(_each(work, given.draws, given.processes)) and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
