"""The slope test recovers known costs, and refuses what the data cannot tell."""

from __future__ import annotations

import pytest
from engine_builder import MS, Engine, inputs, one_after_another, open_loop, replay

from spyreprof.rules import load_rules
from spyreprof_analyzers.engine_steps import engine_steps
from spyreprof_analyzers.slope import cycle_ns, fit_step_model
from spyreprof_analyzers.slope_tests import FIXED, PER_CONTEXT_TOKEN, PER_REQUEST


def fitted(engine: Engine, arrivals):
    run = replay(engine, arrivals)
    steps = engine_steps(inputs(run, engine).steps, "1-a")
    return fit_step_model(steps, cycle_ns(steps, 100 * MS), load_rules())


def test_known_costs_are_recovered_within_their_intervals() -> None:
    engine = Engine(fixed_ns=40 * MS, per_request_ns=5 * MS, per_context_token_ns=MS // 2, noise=0.03)
    model = fitted(engine, open_loop(1, 1.5, 120, (10, 60), (6, 30)))
    assert model.identified(FIXED) == pytest.approx(40 * MS, rel=0.1)
    assert model.identified(PER_REQUEST) == pytest.approx(5 * MS, rel=0.15)
    assert model.identified(PER_CONTEXT_TOKEN) == pytest.approx(MS / 2, rel=0.2)
    assert model.fit.relative_residual < 0.03


def test_a_constant_batch_leaves_the_fixed_cost_unsplit() -> None:
    model = fitted(Engine(), one_after_another(30, 8, 20))
    refused = {term.name: term.reason for term in model.fit.terms if not term.identifiable}
    assert PER_REQUEST in refused
    assert "not split" in refused[FIXED]


def test_too_few_steps_give_no_model() -> None:
    assert fitted(Engine(), one_after_another(1, 8, 20)) is None


def test_an_idle_gap_is_not_part_of_a_cycle() -> None:
    engine = Engine(noise=0.0)
    run = replay(engine, one_after_another(2, 8, 5))
    steps = engine_steps(inputs(run, engine).steps, "1-a")
    idle = steps.where(steps.start_ns >= 0)
    assert cycle_ns(idle, 2 * engine.gap_ns).max() <= int(steps.duration_ns.max()) + 2 * engine.gap_ns
