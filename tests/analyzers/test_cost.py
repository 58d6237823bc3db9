"""What tokens and requests cost: exact sums, each kind of token by its own time, and what is withheld."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from engine_builder import capped, decode_alone, inputs, light, prefill_heavy, table
from hypothesis import given
from hypothesis import strategies as st

from spyreprof.findings import Diagnosis
from spyreprof.recording.schema import REQUESTS, AnalysisInputs, EngineSettings
from spyreprof.registry import diagnose, targets
from spyreprof.request_figures import Cost, CostLine
from spyreprof_analyzers.cost import Attribution

HOUR_NS = 3600 * 10**9
LOADS = {"prefill": prefill_heavy, "decode": decode_alone, "capped": capped, "light": light}


def priced(made: AnalysisInputs, price: str = "2.5") -> Diagnosis:
    return diagnose(made, targets(price_per_hour=Fraction(price)))


def loaded(name: str, **changes: object) -> AnalysisInputs:
    engine, run = LOADS[name]()
    return inputs(run, engine, **changes)


def line(cost: Cost, name: str) -> CostLine:
    return next(line for line in cost.lines if line.id == name)


def reason(diagnosis: Diagnosis) -> str:
    return next(f"{item.reason} {item.obtain}" for item in diagnosis.not_judged if item.topic == "cost")


LINES = st.sampled_from(["output", "visible_output", "reasoning", "overhead", "idle_capacity", "unexplained", "cached"])


@given(
    input_ns=st.integers(0, 2**62),
    others=st.dictionaries(LINES, st.integers(0, 2**62)),
    price=st.fractions(min_value=Fraction(1, 10**6), max_value=10**6),
)
def test_lines_add_up_to_hours_times_price_exactly_with_and_without_what_is_nobodys(
    input_ns: int, others: dict[str, int], price: Fraction
) -> None:
    spent = Attribution({"input": input_ns, **others}, {})
    whole = price * Fraction(spent.whole_ns, HOUR_NS)
    assert sum(spent.amount(name, price) for name in spent.ns) == whole
    shared = [amount for name in spent.ns if (amount := spent.all_in(name, price)) is not None]
    used = sum(spent.ns[name] for name in spent.ns if name in ("input", "output", "visible_output", "reasoning"))
    assert sum(shared) == (whole if used else 0)


@pytest.mark.parametrize("name", LOADS)
def test_the_lines_of_a_run_are_the_whole_window_to_the_nanosecond(name: str) -> None:
    diagnosis = priced(loaded(name))
    cost = diagnosis.cost
    assert sum(line.ns for line in cost.lines) == cost.window_ns == diagnosis.time_budget.window_ns
    assert cost.amount == pytest.approx(2.5 * cost.window_ns / HOUR_NS)
    assert sum(line.amount for line in cost.lines) == pytest.approx(cost.amount)
    assert all(line.ns >= 0 for line in cost.lines)


def test_idle_capacity_is_a_line_of_its_own_and_no_price_of_tokens() -> None:
    diagnosis = priced(loaded("light"))
    cost = diagnosis.cost
    idle = line(cost, "idle_capacity")
    assert idle.share > 0.3
    assert (idle.tokens, idle.per_million_tokens) == (None, None)
    output = line(cost, "output")
    assert output.all_in_per_million_tokens > 1.4 * output.per_million_tokens


def test_tokens_cost_the_time_of_their_phase() -> None:
    cost = priced(loaded("decode")).cost
    output = line(cost, "output")
    assert output.tokens > 0
    assert output.per_million_tokens == pytest.approx(2.5 * output.ns / HOUR_NS / output.tokens * 1e6)
    # 60 ms a step at batch 1, and the step of a prompt takes 68 ms for 8 tokens
    assert output.per_million_tokens == pytest.approx(2.5 / 3600 * 0.061 * 1e6, rel=0.03)
    assert line(cost, "input").per_million_tokens == pytest.approx(2.5 / 3600 * 0.068 / 8 * 1e6, rel=0.03)


@pytest.mark.parametrize("price", ["0.01", "25", "1000000"])
def test_every_amount_is_in_proportion_to_the_price(price: str) -> None:
    one, other = priced(loaded("capped"), "1").cost, priced(loaded("capped"), price).cost
    for line_of_one, line_of_other in zip(one.lines, other.lines, strict=True):
        assert line_of_other.amount == pytest.approx(line_of_one.amount * float(Fraction(price)))


# Requests


def test_a_request_costs_its_tokens_and_a_cut_takes_away_its_part() -> None:
    cost = priced(loaded("prefill")).cost
    median, high = cost.requests
    assert (median.percentile, high.percentile) == (50, 95)
    assert high.amount >= median.amount
    per_input, per_output = (line(cost, name).per_million_tokens / 1e6 for name in ("input", "output"))
    context, output = median.prompt_tokens * per_input, (median.output_tokens - 1) * per_output
    assert median.amount == pytest.approx(context + output)
    assert [(cut.of, cut.cut_ratio) for cut in median.cuts] == [
        (of, ratio) for of in ("context", "output") for ratio in (0.1, 0.25, 0.5)
    ]
    for cut in median.cuts:
        part = {"context": context, "output": output}[cut.of]
        assert cut.amount == pytest.approx(median.amount - cut.cut_ratio * part)
        assert cut.change_ratio == pytest.approx(-cut.cut_ratio * part / median.amount)


def test_cutting_the_output_saves_no_more_than_its_share_of_the_request() -> None:
    median = priced(loaded("prefill")).cost.requests[0]
    halves = {cut.of: -cut.change_ratio for cut in median.cuts if cut.cut_ratio == 0.5}
    assert halves["context"] + halves["output"] == pytest.approx(0.5)
    assert halves["output"] < 0.1


def test_without_a_request_log_tokens_are_priced_and_requests_are_not() -> None:
    cost = priced(loaded("capped", requests=table(REQUESTS, []))).cost
    assert cost.requests == ()
    assert any("none is priced" in note for note in cost.notes)
    assert line(cost, "output").per_million_tokens is not None


# Reasoning and cached tokens


def thinking(thought: object) -> AnalysisInputs:
    made = loaded("decode")
    requests = made.requests.assign(reasoning_tokens=thought).astype({"reasoning_tokens": "Int64"})
    return replace(made, requests=requests)


def test_reasoning_has_a_line_of_its_own_where_it_is_known() -> None:
    cost = priced(thinking(18)).cost
    reasoning, visible = line(cost, "reasoning"), line(cost, "visible_output")
    assert reasoning.ns / (reasoning.ns + visible.ns) == pytest.approx(0.75)
    assert reasoning.tokens / (reasoning.tokens + visible.tokens) == pytest.approx(0.75, abs=0.01)
    none = priced(thinking(0)).cost
    assert (line(none, "reasoning").ns, line(none, "reasoning").tokens) == (0, 0)


@pytest.mark.parametrize(("unknown", "apart"), [(1, True), (4, False)])
def test_reasoning_that_is_known_of_too_few_requests_stays_in_the_output(unknown: int, apart: bool) -> None:
    made = thinking(18)
    made.requests.loc[made.requests.index[5 : 5 + unknown], "reasoning_tokens"] = None
    cost = priced(made).cost
    assert ("reasoning" in {line.id for line in cost.lines}) is apart
    assert any("output is one line" in note for note in cost.notes) is not apart


def test_cached_tokens_take_no_step_and_unknown_ones_have_no_price() -> None:
    made = loaded("prefill")
    counters = made.counters
    queries = counters["name"] == "vllm:prefix_cache_queries_total"
    hits = counters[queries].assign(name="vllm:prefix_cache_hits_total", value=lambda found: found["value"] * 0.75)
    kept = counters[counters["name"] != "vllm:prefix_cache_hits_total"]
    import pandas as pd

    warm = pd.concat([kept, hits]).sort_values("time_ns", kind="stable", ignore_index=True)
    cost = priced(replace(made, counters=warm)).cost
    cached = line(cost, "cached")
    assert cached.tokens == pytest.approx(3 * line(cost, "input").tokens, abs=2)
    assert (cached.ns, cached.per_million_tokens) == (0, 0.0)
    assert cost.requests[0].cached_tokens == pytest.approx(0.75 * cost.requests[0].prompt_tokens, abs=1)
    cold = priced(replace(made, counters=kept[~kept["name"].str.contains("prefix_cache")])).cost
    assert (line(cold, "cached").tokens, line(cold, "cached").per_million_tokens) == (None, None)
    assert cold.requests[0].cached_tokens is None


def test_steps_without_counts_give_amounts_and_no_price_per_token() -> None:
    made = loaded("capped")
    marks = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}
    phase = [marks[row.context_tokens > 0, row.generation_requests > 0] for row in made.steps.itertuples()]
    blind = made.steps.assign(phase=phase, context_tokens=None, context_requests=None).astype(
        {"phase": "string", "context_tokens": "Int64", "context_requests": "Int64"}
    )
    cost = priced(replace(made, steps=blind)).cost
    assert line(cost, "output").ns > 0
    assert all(line.per_million_tokens is None for line in cost.lines)
    assert cost.requests == ()


# What is withheld, and what stands beside it


def test_without_a_price_the_report_names_the_option() -> None:
    diagnosis = diagnose(loaded("capped"))
    assert diagnosis.cost is None
    assert "--price-per-hour" in reason(diagnosis)


def test_without_steps_a_price_buys_nothing_and_the_report_says_why() -> None:
    made = loaded("capped")
    diagnosis = priced(replace(made, steps=made.steps.iloc[:0]))
    assert diagnosis.cost is None
    assert "no engine step" in reason(diagnosis)


@pytest.mark.parametrize(
    ("kind", "settings", "devices"),
    [
        ("cpu", EngineSettings(), 1),
        ("cuda", EngineSettings(), None),
        ("cuda", EngineSettings(tensor_parallel=4), None),
        ("cuda", EngineSettings(tensor_parallel=4, pipeline_parallel=2, data_parallel=1), 8),
    ],
)
def test_devices_are_counted_or_not_known(kind: str, settings: EngineSettings, devices: int | None) -> None:
    assert priced(loaded("capped", device_kind=kind, settings=settings)).cost.devices == devices


def test_a_price_changes_nothing_else() -> None:
    made = loaded("capped")
    with_price, without = priced(made), diagnose(made)
    assert with_price.verdict == without.verdict
    assert with_price.findings == without.findings
