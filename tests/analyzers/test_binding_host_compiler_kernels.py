"""Host, compiler and kernels: what binds where neither peak is near, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_builder import (
    MS,
    READ_PEAK,
    Engine,
    Run,
    S,
    decode_alone,
    inputs,
    one_after_another,
    profiled,
    replay,
)

from spyreprof.findings import Diagnosis
from spyreprof.recording.schema import AnalysisInputs, Interval, ModelFacts
from spyreprof.registry import diagnose
from spyreprof.trace.profiled import OperatorTime, ProfiledStep


def witness(diagnosis: Diagnosis, name: str):
    return next(view for view in diagnosis.verdict.witnesses if view.name == name)


# The host: steps of 2 ms with a thousand tiny operators

US = 1_000
TINY = Engine(fixed_ns=2 * MS, per_request_ns=0, per_context_token_ns=0, gap_ns=100 * US, noise=0.02)
SMALL_MODEL = ModelFacts(parameter_bytes=int(0.1 * 2 * MS / S * READ_PEAK), embedding_bytes=0, dtype="float32")


def tiny_run(engine: Engine = TINY) -> Run:
    return replay(engine, one_after_another(60, 8, 40))


def tiny_steps(
    run: Run, *, stretch: float = 2.5, work_us: int = 500, dispatch_us: float = 0.5, operators: int = 1200
) -> tuple[ProfiledStep, ...]:
    """Profiled decode steps: a profiler stretches the time around operators, not the operators themselves.

    Of a usual step of 2 ms the operators work for `work_us`; each is dispatched for `dispatch_us`; views do nothing.
    """
    rows = [row for row in run.steps if not row["context_tokens"]][200:208]
    steps = []
    for row in rows:
        length = int((row["end_ns"] - row["start_ns"]) * stretch)
        matmul, views = 100, operators - 100
        work_ns, dispatch_ns = work_us * US, int(dispatch_us * US)
        kinds = (
            OperatorTime(
                "matmul", work_ns + matmul * dispatch_ns, matmul, 1000, 10_000, work_ns + matmul * dispatch_ns
            ),
            OperatorTime("other", views * dispatch_ns, views, None, None, 0),
        )
        steps.append(
            ProfiledStep(
                window=1, start_ns=row["start_ns"], end_ns=row["start_ns"] + length,
                context_requests=0, context_tokens=0, generation_requests=row["generation_requests"],
                generation_tokens=row["generation_tokens"], device_kind="cpu", operator_count=operators,
                operators=kinds, gap_ns=length - work_ns - operators * dispatch_ns, device_busy_ns=None,
            )
        )  # fmt: skip
    return tuple(steps)


def tiny(engine: Engine = TINY, **changes: object) -> AnalysisInputs:
    run = tiny_run(engine)
    return inputs(run, engine, **({"profiled_steps": tiny_steps(run), "model": SMALL_MODEL} | changes))


def test_tiny_operators_are_host_bound_and_views_are_no_unexplained_time() -> None:
    diagnosis = diagnose(tiny())
    assert diagnosis.verdict.primary == "host_bound"
    assert diagnosis.verdict.confidence in ("high", "medium")
    assert diagnosis.time_budget.unexplained_share < 0.05


@pytest.mark.parametrize(("work_us", "host"), [(1100, True), (1200, False)])
def test_the_host_binds_a_step_when_it_takes_most_of_the_usual_step(work_us: int, host: bool) -> None:
    """Steps of 2 ms and nothing between them. Of 1.15 ms in a hundred products, 0.15 ms are their dispatch."""
    engine = replace(TINY, gap_ns=0)
    shown = tiny_steps(tiny_run(engine), work_us=work_us)
    verdict = diagnose(tiny(engine, profiled_steps=shown)).verdict
    assert (verdict.primary == "host_bound") is host


@pytest.mark.parametrize("stretch", [1.0, 2.0, 6.0])
def test_what_the_profiler_adds_makes_no_host_bound(stretch: float) -> None:
    """Operators work for 1.8 of 2 ms; profiled, the step takes up to six times as long."""
    shown = tiny_steps(tiny_run(), stretch=stretch, work_us=1800, dispatch_us=0.05)
    assert diagnose(tiny(profiled_steps=shown)).verdict.primary != "host_bound"


def test_without_steps_like_the_profiled_ones_what_the_profiler_added_is_not_known() -> None:
    alien = tuple(replace(step, generation_requests=7) for step in tiny_steps(tiny_run()))
    like = tiny(profiled_steps=alien)
    diagnosis = diagnose(like)
    assert diagnosis.verdict.primary == "undetermined"


def test_a_profiled_step_that_was_disturbed_does_not_speak_for_the_others() -> None:
    """Half of the profiled steps lay under another program's load: their operators took six times as long."""
    calm = tiny_steps(tiny_run())
    slow = tuple(
        replace(
            step,
            end_ns=step.start_ns + 6 * (step.end_ns - step.start_ns),
            operators=tuple(replace(o, ns=6 * o.ns, ns_with_model=6 * o.ns_with_model) for o in step.operators),
            gap_ns=6 * step.gap_ns,
        )
        for step in calm[::2]
    )
    split = {part.id: part.share for part in diagnose(tiny(profiled_steps=(*slow, *calm[1::2]))).time_budget.parts}
    alone = {part.id: part.share for part in diagnose(tiny(profiled_steps=calm[1::2])).time_budget.parts}
    assert split["decode.host"] == pytest.approx(alone["decode.host"], rel=0.01)


def test_kernels_are_not_blamed_where_the_host_may_take_most_of_the_step() -> None:
    """With all that the profiler added taken off the host, its share is under half; with a part of it, above."""
    shown = tiny_steps(tiny_run(), stretch=4.0, work_us=1200)
    diagnosis = diagnose(tiny(profiled_steps=shown))
    assert diagnosis.verdict.primary not in ("inefficient_kernel", "host_bound")
    assert "kernels are not blamed" in witness(diagnosis, "device_trace").text


def test_half_of_a_step_and_the_time_between_steps_make_the_host_bind_together() -> None:
    engine = replace(TINY, gap_ns=700 * US)
    shown = tiny_steps(tiny_run(engine), work_us=1200)
    diagnosis = diagnose(tiny(engine, profiled_steps=shown))
    assert diagnosis.verdict.primary == "host_bound"
    assert "in steps and between them" in diagnosis.verdict.reason


def test_time_between_steps_of_an_accelerator_is_not_added_to_the_hosts() -> None:
    """Its device may still work on the step before."""
    engine = replace(TINY, gap_ns=700 * US)
    made = tiny(engine, profiled_steps=tiny_steps(tiny_run(engine), work_us=1200), device_kind="cuda")
    assert diagnose(made).verdict.primary != "host_bound"


@pytest.mark.parametrize(("gap_us", "agrees"), [(450, True), (250, None)])
def test_step_rows_speak_for_the_host_only_by_the_time_between_steps(gap_us: int, agrees: bool | None) -> None:
    engine = replace(TINY, gap_ns=gap_us * US)
    diagnosis = diagnose(tiny(engine, profiled_steps=tiny_steps(tiny_run(engine))))
    assert diagnosis.verdict.primary == "host_bound"
    assert witness(diagnosis, "engine").agrees is agrees
    assert diagnosis.verdict.confidence == ("high" if agrees else "medium")


def test_without_model_size_step_rows_say_nothing_of_the_host() -> None:
    engine = replace(TINY, gap_ns=450 * US)
    made = tiny(engine, profiled_steps=tiny_steps(tiny_run(engine)), model=ModelFacts())
    assert witness(diagnose(made), "engine").agrees is None


# Kernels that reach neither peak


def slow_kernels(compute: float = 0.03, bandwidth: float = 0.1, **changes: object) -> AnalysisInputs:
    engine, run = decode_alone()
    shown = profiled(run, phase="decode", compute_use=compute, bandwidth_use=bandwidth)
    small = ModelFacts(parameter_bytes=int(0.06 * READ_PEAK * 0.1), embedding_bytes=0, dtype="float32")
    return inputs(run, engine, **({"profiled_steps": shown, "model": small} | changes))


def test_a_step_that_neither_floor_explains_confirms_inefficient_kernels() -> None:
    diagnosis = diagnose(slow_kernels())
    assert (diagnosis.verdict.primary, diagnosis.verdict.confidence) == ("inefficient_kernel", "high")
    assert witness(diagnosis, "engine").agrees
    cited = {e.id: e.metric for e in diagnosis.evidence}
    assert {"decode.weight_floor_ratio", "decode.flop_floor_ratio"} <= {
        cited[e] for e in witness(diagnosis, "engine").evidence
    }


@pytest.mark.parametrize(("floor", "agrees"), [(0.29, True), (0.31, None), (0.5, False)])
def test_a_floor_that_explains_the_step_does_not(floor: float, agrees: bool | None) -> None:
    model = ModelFacts(parameter_bytes=int(floor * READ_PEAK * 0.061), embedding_bytes=0, dtype="float32")
    assert witness(diagnose(slow_kernels(model=model)), "engine").agrees is agrees


@pytest.mark.parametrize("model", [ModelFacts(), ModelFacts(parameter_bytes=1_000_000)])
def test_without_both_floors_the_engine_is_silent_about_kernels(model: ModelFacts) -> None:
    diagnosis = diagnose(slow_kernels(model=model))
    assert witness(diagnosis, "engine").agrees is None
    assert diagnosis.verdict.confidence == "medium"


@pytest.mark.parametrize(("bandwidth", "confidence"), [(0.24, "high"), (0.26, "medium")])
def test_use_close_to_the_limit_of_inefficiency_lowers_confidence(bandwidth: float, confidence: str) -> None:
    verdict = diagnose(slow_kernels(bandwidth=bandwidth)).verdict
    assert (verdict.primary, verdict.confidence) == ("inefficient_kernel", confidence)


# Compilation


def compiling(every: int = 2, *, from_step: int = 0, flagged: bool = True, count: int = 60) -> AnalysisInputs:
    """Decode in which every n-th step begins with a compilation of a second."""
    engine, run = decode_alone()
    rows, events, shift = [], [], 0
    for at, row in enumerate(run.steps[: 4 * count]):
        start = row["start_ns"] + shift
        hit = at >= from_step and at % every == 0
        if hit:
            events.append(Interval(start + MS, start + MS + S, "compile", "1-a"))
            shift += S
        rows.append({**row, "start_ns": start, "end_ns": row["end_ns"] + shift, "hit": int(hit and flagged)})
    run.steps = rows
    run.end_ns = rows[-1]["end_ns"] + S
    made = inputs(run, engine, compiles=tuple(events))
    flags = [row["hit"] for row in rows]
    return replace(made, steps=made.steps.assign(compiles=flags).astype({"compiles": "Int64"}))


def test_compilation_that_never_ends_is_the_verdict_although_steps_are_few() -> None:
    diagnosis = diagnose(compiling(count=30))
    assert diagnosis.verdict.primary == "compile_bound"
    assert diagnosis.verdict.confidence in ("medium", "high")
    assert [view.name for view in diagnosis.verdict.witnesses if view.agrees] == ["engine"]
    finding = diagnosis.findings[0]
    assert (finding.id, finding.severity) == ("SPY-CMP-001", "high")


def test_steps_that_compile_are_not_said_to_be_slow_for_no_known_reason() -> None:
    small = ModelFacts(parameter_bytes=100_000, embedding_bytes=0, dtype="float32", layers=1, kv_heads=1, head_dim=1)
    made = replace(compiling(), model=small)
    unexplained = replace(made, compiles=(), steps=made.steps.assign(compiles=0).astype({"compiles": "Int64"}))
    assert "SPY-EFF-001" in {finding.id for finding in diagnose(unexplained).findings}
    found = diagnose(made)
    assert found.verdict.primary == "compile_bound"
    assert "SPY-EFF-001" not in {finding.id for finding in found.findings}


def test_a_recording_in_which_compilation_never_ends_keeps_its_beginning() -> None:
    made = compiling(every=3)
    window = diagnose(made).window
    first = int(made.steps["start_ns"].iloc[4])
    assert window.start_ns <= first


def test_compilation_that_ends_is_warm_up() -> None:
    engine, run = decode_alone()
    made = inputs(run, engine)
    flags = [int(at < 40) for at in range(len(made.steps))]
    warm = replace(made, steps=made.steps.assign(compiles=flags).astype({"compiles": "Int64"}))
    assert diagnose(warm).window.start_ns >= int(made.steps["start_ns"].iloc[40])


@pytest.mark.parametrize(("every", "share_binds"), [(16, True), (24, False)])
def test_compilation_binds_where_it_is_the_largest_share(every: int, share_binds: bool) -> None:
    """A second of compilation stands against sixteen or twenty-four steps of 60 ms."""
    verdict = diagnose(compiling(every=every, count=200)).verdict
    assert (verdict.primary == "compile_bound") is share_binds


def test_few_compilations_never_give_more_than_low_confidence() -> None:
    made = compiling(every=12, count=24)
    assert 3 < len(made.compiles) < 10
    diagnosis = diagnose(made)
    if diagnosis.verdict.primary == "compile_bound":
        assert diagnosis.verdict.confidence == "low"


def test_compilation_beside_steps_that_run_on_is_no_verdict() -> None:
    """Another thread compiles: no step says that anything was compiled in it."""
    diagnosis = diagnose(compiling(flagged=False))
    assert diagnosis.verdict.primary == "undetermined"
    assert "beside" in diagnosis.verdict.reason


def test_without_compile_events_nothing_is_said_of_compilation() -> None:
    diagnosis = diagnose(replace(compiling(), compiles=()))
    assert diagnosis.verdict.primary != "compile_bound"
    assert not [f for f in diagnosis.findings if f.id == "SPY-CMP-001"]


@pytest.mark.parametrize("made", [tiny(), slow_kernels(), compiling()])
def test_every_number_that_these_verdicts_cite_exists(made: AnalysisInputs) -> None:
    diagnosis = diagnose(made)
    known = {e.id for e in diagnosis.evidence}
    cited = [e for view in diagnosis.verdict.witnesses for e in view.evidence]
    cited += [e for f in diagnosis.findings for e in f.evidence]
    assert cited
    assert set(cited) <= known
