"""Steps whose work and time a test gives, without an engine that schedules them."""

from __future__ import annotations

import numpy as np
from engine_builder import MS, table

from spyreprof.recording.schema import STEPS
from spyreprof.rules import Rule, RuleBook, load_rules
from spyreprof_analyzers.engine_steps import EngineSteps, engine_steps
from spyreprof_analyzers.slope import fit_step_model, usual_cycle_ns


def steps_of(durations_ns, *, gap_ns: int = 0, start_ns: int = 0, **columns) -> EngineSteps:
    """Steps one after another; columns as arrays of the same length, what is not given is 0."""
    durations = np.asarray(durations_ns, dtype=np.int64)
    starts = start_ns + np.concatenate(([0], np.cumsum(durations + gap_ns)[:-1]))
    given = {name: np.broadcast_to(values, durations.shape) for name, values in columns.items()}
    given.setdefault("generation_tokens", given.get("generation_requests", np.zeros_like(durations)))
    counted = ("context_requests", "context_tokens", "context_seq_len_sum", "context_q_k_sum", "generation_requests")
    rows = [
        {
            "start_ns": int(start), "end_ns": int(start + length), "writer": "1-a", "compiles": 0,
            **dict.fromkeys((*counted, "generation_seq_len_sum"), 0),
            **{name: int(values[i]) for name, values in given.items() if values[i] >= 0},
            **{name: None for name, values in given.items() if values[i] < 0},
        }
        for i, (start, length) in enumerate(zip(starts, durations, strict=True))
    ]  # fmt: skip
    return engine_steps(table(STEPS, rows), "1-a")


def decodes(sizes, *, fixed_ms=40.0, each_ms=2.0, cached_ns=0.0, lengths=None, noise=0.01, seed=0, **columns):
    """Decode steps of the given batch sizes, in a random order unless the lengths say which is which."""
    rng = np.random.default_rng(seed)
    sizes = np.asarray(sizes, dtype=np.int64)
    lengths = rng.integers(100, 900, len(sizes)) * sizes if lengths is None else np.asarray(lengths)
    cost = (fixed_ms + each_ms * sizes) * MS + cached_ns * lengths
    scattered = cost * (1.0 + noise * rng.standard_normal(len(sizes)))
    return steps_of(scattered, generation_requests=sizes, generation_seq_len_sum=lengths, **columns)


def mixed_sizes(counts: dict[int, int], seed: int = 0) -> np.ndarray:
    """So many steps of each size, shuffled."""
    sizes = np.repeat(list(counts), list(counts.values()))
    return np.random.default_rng(seed).permutation(sizes)


def fitted(steps: EngineSteps, rules: RuleBook | None = None, own_machine: bool | None = None):
    """The step model of steps without idle time."""
    return fit_step_model(steps, usual_cycle_ns(steps), rules or load_rules(), own_machine)


def reasons(model) -> dict[str, str]:
    """Why terms were refused."""
    return {term.name: term.reason for term in model.fit.terms if not term.identifiable}


def threshold(name: str, rule: str = "SPY-GEN-005") -> float:
    """A threshold of the rule files."""
    found: Rule = load_rules()[rule]
    return found.threshold(name)
