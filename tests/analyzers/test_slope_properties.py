"""The arithmetic of the slope test: what must hold whatever the steps are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from step_builder import decodes, fitted, mixed_sizes, steps_of

from spyreprof_analyzers import regression
from spyreprof_analyzers.step_models import not_falling

SEEDS = st.integers(0, 2**32 - 1)


def design_of(seed: int, terms: int, rows: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    design = np.column_stack((np.ones(rows), rng.uniform(0.0, 50.0, (rows, terms - 1))))
    truth = rng.uniform(0.5, 5.0, terms)
    return design, design @ truth * (1.0 + 0.02 * rng.standard_normal(rows)), truth


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 4), st.floats(1e-6, 1e9))
def test_scaling_all_times_scales_the_coefficients_and_their_errors(seed: int, terms: int, factor: float) -> None:
    design, target, _ = design_of(seed, terms)
    plain, scaled = regression.fit(design, target), regression.fit(design, target * factor)
    assert scaled.coefficients == pytest.approx(plain.coefficients * factor, rel=1e-6)
    assert np.diag(scaled.covariance) == pytest.approx(np.diag(plain.covariance) * factor**2, rel=1e-4)
    assert scaled.residual == pytest.approx(plain.residual, abs=1e-6)


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 4), st.floats(1e-3, 1e6))
def test_the_unit_of_the_work_changes_nothing_but_the_coefficient(seed: int, terms: int, factor: float) -> None:
    design, target, _ = design_of(seed, terms)
    scaled = design.copy()
    scaled[:, -1] *= factor
    plain, other = regression.fit(design, target), regression.fit(scaled, target)
    assert other.coefficients[-1] * factor == pytest.approx(plain.coefficients[-1], rel=1e-6)
    assert other.coefficients[:-1] == pytest.approx(plain.coefficients[:-1], rel=1e-6)


@settings(max_examples=60)
@given(SEEDS, st.integers(2, 5))
def test_no_coefficient_is_negative_where_the_best_line_would_have_one(seed: int, terms: int) -> None:
    rng = np.random.default_rng(seed)
    design, _, truth = design_of(seed, terms)
    target = np.maximum(design @ np.append(truth[:-1] + 60.0, -rng.uniform(0.1, 0.9)), 1.0)
    assert (regression.fit(design, target).coefficients >= 0).all()


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 6))
def test_trying_every_set_of_terms_finds_what_another_solver_finds(seed: int, terms: int) -> None:
    rng = np.random.default_rng(seed)
    rows, right = rng.standard_normal((30, terms)) + 0.5, rng.standard_normal(30)
    best, _ = nnls(rows, right)
    assert regression._bounded(rows.T @ rows, rows.T @ right, None) == pytest.approx(best, abs=1e-8)


def test_a_column_that_is_left_free_may_fall() -> None:
    size = np.tile(np.arange(1.0, 21.0), 20)
    design = np.column_stack((np.ones_like(size), size, np.maximum(size - 10.0, 0.0)))
    target = design @ np.array([40.0, 2.0, -1.5])
    assert regression.fit(design, target, free=2).coefficients == pytest.approx([40.0, 2.0, -1.5], rel=1e-6)
    assert regression.fit(design, target).coefficients[2] == 0.0


def test_a_few_wild_steps_move_nothing() -> None:
    design, target, truth = design_of(3, 2, 400)
    wild = target.copy()
    wild[::25] *= 30.0
    assert regression.fit(design, wild).coefficients == pytest.approx(truth, rel=0.05)


def test_steps_that_are_disturbed_together_say_less_than_as_many_on_their_own() -> None:
    rng = np.random.default_rng(1)
    design, _, truth = design_of(5, 2, 1000)
    order = np.argsort(design[:, 1], kind="stable")
    own = rng.standard_normal(1000)
    together = np.repeat(rng.standard_normal(20), 50)
    alone, shared = (
        regression.fit(design[order], (design @ truth)[order] * (1.0 + 0.02 * noise)) for noise in (own, together)
    )
    assert shared.covariance[1, 1] > 4.0 * alone.covariance[1, 1]


@settings(max_examples=25)
@given(SEEDS, st.integers(0, 10**15), st.sampled_from([1, 3, 1000]))
def test_shifting_the_clock_changes_nothing_and_stretching_it_stretches_the_coefficients(
    seed: int, shift_ns: int, factor: int
) -> None:
    sizes = mixed_sizes({2: 60, 4: 60, 8: 60, 12: 60}, seed)
    steps = decodes(sizes, seed=seed)
    work = {
        "generation_requests": steps.generation_requests, "generation_seq_len_sum": steps.generation_seq_len_sum,
    }  # fmt: skip
    plain = fitted(steps).fit
    moved = fitted(steps_of(steps.duration_ns, start_ns=shift_ns, **work)).fit
    assert moved == plain
    stretched = fitted(steps_of(steps.duration_ns * factor, **work)).fit
    for before, after in zip(plain.terms, stretched.terms, strict=True):
        # the drift of the machine is looked at in stretches of seconds, so that intervals may differ
        assert after.ns_per_unit == pytest.approx(before.ns_per_unit * factor, rel=1e-4, abs=1e-3)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e3)), min_size=1, max_size=30))
def test_values_that_are_made_to_rise_never_fall_and_keep_their_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    risen = not_falling(values, weights)
    assert (np.diff(risen) >= 0).all()
    assert (risen * weights).sum() == pytest.approx((values * weights).sum(), rel=1e-9)
    assert not_falling(risen, weights) == pytest.approx(risen)
    assert not_falling(np.sort(values), weights) == pytest.approx(np.sort(values))
