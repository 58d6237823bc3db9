"""Which conditions two runs share: what is not told is unknown; what must match and does not withholds the verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from diff_builders import LOAD, change, compared, condition, run

from spyreprof.report.model import Lengths, MachinePeak, Public, Spread
from spyreprof.report.redact import Redactor


def test_runs_under_the_same_conditions_differ_in_none_and_can_be_compared() -> None:
    diff = compared(run("b2"))
    assert [row.name for row in diff.conditions if row.bearing in {"withholds", "under_test"}] == []
    assert diff.verdict.withheld_by == ()
    assert "No known condition differs" in diff.verdict.reason


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("precision", "precision", Public("bfloat16")),
        ("hardware", "hardware", Public("AMD EPYC, 2 CPUs")),
        ("device count", "device_count", 2),
        ("model", "parameter_bytes", 403_177_473),
        ("precision", "precision", None),
        ("hardware", "hardware", None),
        ("device", "device_kind", None),
        ("device count", "device_count", None),
    ],
)
def test_what_was_run_and_where_must_be_known_and_the_same(name: str, field: str, value: Any) -> None:
    diff = compared(run("b2", tokens_per_s=400.0, **{field: value}))
    assert condition(diff, name).bearing == "withholds"
    assert condition(diff, name).state == ("unknown" if value is None else "differs")
    assert condition(diff, name).obtain
    assert diff.verdict.outcome == "withheld"
    assert name in diff.verdict.withheld_by
    assert change(diff).change is None
    assert diff.attribution is None


def test_a_field_that_neither_side_tells_is_unknown_and_not_equal() -> None:
    nothing = {"precision": None, "parameter_bytes": None}
    diff = compared(run("b2", **nothing), run("a1", **nothing))
    for name in ("model", "precision", "quantisation"):
        assert (condition(diff, name).state, condition(diff, name).bearing) == ("unknown", "withholds")


def test_the_bytes_of_the_parameters_tell_the_model_and_its_quantisation() -> None:
    diff = compared(run("b2"))
    assert condition(diff, "model").state == "same"
    assert condition(diff, "quantisation").state == "same"
    diff = compared(run("b2", parameter_bytes=403_177_400))
    assert condition(diff, "model").state == "differs"
    assert condition(diff, "quantisation").state == "unknown"


def test_names_of_models_that_differ_are_believed_over_their_size() -> None:
    diff = compared(
        run("b2", model=Public("ibm-granite/granite-3.3-8b")), run("a1", model=Public("meta-llama/Llama-3-8B"))
    )
    assert condition(diff, "model").state == "differs"


def test_equal_pseudonyms_of_two_reports_prove_nothing() -> None:
    hidden = {"hardware": Public("processor-1, 2 CPUs"), "software": {Public("torch"): Public("version-1")}}
    a, b = run("a1", **hidden), run("b2", **hidden)
    apart = compared(b, a)
    assert condition(apart, "hardware").state == "unknown"
    assert condition(apart, "version of torch").state == "unknown"
    assert "pseudonym" in (condition(apart, "hardware").note or "")
    assert apart.verdict.outcome == "withheld"
    together = compared(b, a, shared=True)
    assert condition(together, "hardware").state == "same"
    assert together.verdict.outcome != "withheld"


def test_one_redactor_gives_equal_texts_equal_pseudonyms_and_secrets_none_in_common() -> None:
    redactor = Redactor()
    first = redactor.command(["python", "serve.py", "--model", "/data/mine", "--port", "[redacted]"]).text
    again = redactor.command(["python", "serve.py", "--model", "/data/mine", "--port", "[redacted]"]).text
    assert first.split()[3] == again.split()[3] == "model-1"
    assert first.split()[5] != again.split()[5]


def test_an_accelerator_that_no_report_names_is_unknown_however_equal_the_processors_are() -> None:
    cuda = {"device_kind": Public("cuda"), "device_count": 1}
    diff = compared(run("b2", **cuda), run("a1", **cuda))
    assert condition(diff, "hardware").state == "unknown"
    assert diff.verdict.outcome == "withheld"


def test_ranks_in_the_settings_tell_the_number_of_devices() -> None:
    sides = [
        run(name, device_count=None, settings={"tensor_parallel": ranks})
        for name, ranks in (("a1", 2), ("b2", 2), ("c3", 4))
    ]
    assert condition(compared(sides[1], sides[0]), "device count").state == "same"
    assert condition(compared(sides[2], sides[0]), "device count").bearing == "withholds"


def test_a_setting_that_differs_is_what_is_tested_and_the_batch_follows_from_it() -> None:
    diff = compared(
        run("b2", tokens_per_s=260.0, settings={"max_num_seqs": 16}, batch=Spread(mean=12.0, low=1.0, high=16.0))
    )
    assert condition(diff, "setting max_num_seqs").bearing == "under_test"
    assert diff.verdict.under_test == ("max_num_seqs 8 -> 16",)
    assert condition(diff, "batch").bearing == "follows"
    assert diff.verdict.outcome == "faster"
    # a step of twelve requests is no longer the step of six
    assert change(diff, "decode_step_p50").outcome == "withheld"


def test_a_batch_that_differs_for_no_known_reason_forbids_to_compare_steps() -> None:
    diff = compared(run("b2", batch=Spread(mean=3.0, low=1.0, high=4.0)))
    assert condition(diff, "batch").bearing == "withholds"
    assert change(diff, "decode_step_p50").outcome == "withheld"
    assert change(diff).outcome != "withheld"


@pytest.mark.parametrize(
    ("mean", "low", "high", "state"),
    [(6.4, 1.0, 8.0, "same"), (6.5, 1.0, 8.0, "differs"), (6.1, 4.5, 8.0, "same"), (6.1, 4.6, 8.0, "differs")],
)
def test_batches_are_alike_by_their_mean_and_by_half_of_their_range(
    mean: float, low: float, high: float, state: str
) -> None:
    assert condition(compared(run("b2", batch=Spread(mean=mean, low=low, high=high))), "batch").state == state


def test_a_version_that_differs_is_tested_and_one_that_is_missing_is_unknown() -> None:
    newer = {Public("python"): Public("3.11.7"), Public("torch"): Public("2.14.0")}
    diff = compared(run("b2", software=newer))
    assert diff.verdict.under_test == ("torch 2.13.0+cpu -> 2.14.0",)
    diff = compared(run("b2", software={Public("python"): Public("3.11.7")}))
    assert condition(diff, "version of torch").bearing == "withholds"


def test_a_cache_that_the_engine_sized_a_little_otherwise_is_no_setting() -> None:
    assert compared(run("b2", settings={"kv_blocks": 990})).verdict.under_test == ()
    assert compared(run("b2", settings={"kv_blocks": 970})).verdict.under_test == ("kv_blocks 1000 -> 970",)


def test_settings_that_one_side_tells_alone_are_unknown_unless_the_commands_are_the_same() -> None:
    other = run("b2", settings={"eager": True})
    assert condition(compared(other), "settings").state == "same"  # the commands are complete and equal
    a = run("a1")
    a = msgspec.structs.replace(a, run=msgspec.structs.replace(a.run, command_redacted=None))
    assert condition(compared(other, a), "settings").bearing == "withholds"


def test_where_no_known_setting_differs_the_commands_say_what_is_tested() -> None:
    b = run("b2")
    command = Public("python samples/serve.py --scenario decode --seed 8 --compile")
    b = msgspec.structs.replace(b, settings=None, run=msgspec.structs.replace(b.run, command_redacted=command))
    diff = compared(b)
    assert diff.verdict.under_test == ("command: --seed 7 -> 8, --compile absent -> given",)
    assert condition(diff, "settings").bearing == "noted"


def test_commands_that_are_partly_withheld_are_not_the_same_for_looking_so() -> None:
    sides = []
    for name in ("a1", "b2"):
        side = run(name)
        shown = msgspec.structs.replace(side.run, command_complete=False)
        sides.append(msgspec.structs.replace(side, settings=None, run=shown))
    apart = compared(sides[1], sides[0])
    assert condition(apart, "command").state == "unknown"
    assert condition(apart, "settings").bearing == "withholds"
    assert condition(compared(sides[1], sides[0], shared=True), "settings").state == "same"


@pytest.mark.parametrize(
    ("load", "name", "state"),
    [
        (msgspec.structs.replace(LOAD, arrivals=None), "arrivals", "unknown"),
        (msgspec.structs.replace(LOAD, arrivals="open_loop"), "arrivals", "differs"),
        (msgspec.structs.replace(LOAD, most_in_flight=30), "arrivals", "differs"),
        (
            msgspec.structs.replace(LOAD, prompt_tokens=Lengths(mean=600.0, p50=512.0, p90=512.0)),
            "prompt tokens",
            "differs",
        ),
        (msgspec.structs.replace(LOAD, output_tokens=None), "output tokens", "unknown"),
        (None, "load", "unknown"),
    ],
)
def test_rates_and_latencies_need_the_same_load_and_steps_do_not(load: Any, name: str, state: str) -> None:
    diff = compared(run("b2", tokens_per_s=400.0, load=load))
    assert (condition(diff, name).state, condition(diff, name).bearing) == (state, "withholds")
    assert change(diff).outcome == "withheld"
    assert change(diff, "decode_step_p50").outcome == "cannot_tell"
    assert "Rates and latencies cannot be compared" in diff.verdict.reason
    # the time between tokens is that of steps of the same batch and context
    assert change(diff, "itl_p50").outcome == "cannot_tell"


def test_a_rate_that_follows_from_the_engine_is_no_condition_of_a_closed_loop() -> None:
    faster = msgspec.structs.replace(LOAD, arrivals_per_s=5.0)
    assert condition(compared(run("b2", load=faster)), "arrivals").state == "same"
    open_loop = msgspec.structs.replace(LOAD, arrivals="open_loop")
    diff = compared(run("b2", load=msgspec.structs.replace(faster, arrivals="open_loop")), run("a1", load=open_loop))
    assert condition(diff, "arrivals").state == "differs"


def test_a_warm_cache_is_not_compared_with_a_cold_one() -> None:
    b = run("b2", tokens_per_s=400.0)
    warm = [msgspec.structs.replace(item, value=0.8) if item.id == "e7" else item for item in b.evidence]
    diff = compared(msgspec.structs.replace(b, evidence=tuple(warm)))
    assert condition(diff, "prefix cache").bearing == "withholds"
    assert change(diff).outcome == "withheld"
    untold = compared(msgspec.structs.replace(b, evidence=b.evidence[:-1]))
    assert condition(untold, "prefix cache").state == "unknown"
    off = [run(name, settings={"prefix_caching": False}, evidence=b.evidence[:-1]) for name in ("a1", "b2")]
    assert condition(compared(off[1], off[0]), "prefix cache").state == "same"


def with_peaks(name: str, before: float, after: float, resource: Any = "compute") -> Any:
    peak = MachinePeak(
        resource=resource, unit="flop/s", origin="measured", value=max(before, after), before=before, after=after
    )
    return run(name, tokens_per_s=174.857 if name == "a1" else 260.0, peaks=(peak,))


@pytest.mark.parametrize(
    ("after", "again", "bearing", "outcome"),
    [
        (100e9, 114e9, None, "faster"),
        (100e9, 116e9, "noted", "faster"),
        (130e9, 130e9, "noted", "cannot_tell"),
        (149e9, 100e9, "noted", "cannot_tell"),
        (151e9, 151e9, "withholds", "withheld"),
    ],
)
def test_a_machine_that_ran_at_another_speed_is_found_by_its_peaks(
    after: float, again: float, bearing: str | None, outcome: str
) -> None:
    diff = compared(with_peaks("b2", 100e9, again), with_peaks("a1", 100e9, after))
    assert condition(diff, "measured peaks").bearing == bearing
    assert diff.verdict.outcome == outcome


def test_peaks_that_one_side_lacks_are_unknown_and_the_cost_of_a_dispatch_is_none() -> None:
    assert condition(compared(with_peaks("b2", 1e9, 1e9)), "measured peaks").state == "unknown"
    dispatch = [with_peaks(name, 1e3, 9e3, "dispatch") for name in ("a1", "b2")]
    assert condition(compared(dispatch[1], dispatch[0]), "measured peaks").state == "unknown"


def test_a_run_under_a_profiler_throughout_is_not_compared_with_one_that_was_not() -> None:
    assert condition(compared(run("b2", profiler_windows=None)), "profiler").bearing == "withholds"
    windows = run("b2").profiler_windows
    assert windows is not None
    none = msgspec.structs.replace(windows, opened=0)
    assert condition(compared(run("b2", profiler_windows=none)), "profiler").bearing == "noted"


def test_reports_of_two_releases_are_not_compared() -> None:
    b = run("b2")
    diff = compared(msgspec.structs.replace(b, producer=msgspec.structs.replace(b.producer, version="9.9.9")))
    assert condition(diff, "judged by spyreprof").bearing == "withholds"
    assert "Compare the recordings" in (condition(diff, "judged by spyreprof").obtain or "")


def test_a_price_is_no_condition() -> None:
    assert not [row.name for row in compared(run("b2")).conditions if "price" in row.name or "cost" in row.name]
