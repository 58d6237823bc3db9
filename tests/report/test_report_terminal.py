"""The report as a person sees it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from golden_files import Golden
from hypothesis import given
from hypothesis import strategies as st
from report_builders import BATCH_ADVICE, BUDGET, FINDINGS, VERDICT, finished_report
from rich.cells import cell_len

from spyreprof import registry
from spyreprof.findings import BudgetPart, Evidence, NotJudged, TimeBudget
from spyreprof.report.figures import closing_shares, references, spell
from spyreprof.report.model import Conditions, Coverage, ProfilerWindows, Public, Report
from spyreprof.report.terminal import render
from spyreprof.report.terminal_findings import RULES_OF_VERDICTS, command_to_test
from spyreprof.report.writer import seal

GOLDEN = Path(__file__).parent / "golden"
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d[\d,]*(?:\.\d+)?(?![\w-])")


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_output_is_the_golden_file(golden: Golden, width: int) -> None:
    golden.check(GOLDEN / f"terminal-{width}.txt", render(seal(finished_report()), width).encode())


@pytest.mark.parametrize("width", [20, 40, 57, 80, 120, 200])
@pytest.mark.parametrize("show_all", [False, True])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_page(width: int, show_all: bool, ascii_only: bool) -> None:
    drawn = render(seal(finished_report()), width, show_all=show_all, ascii_only=ascii_only)
    assert max(cell_len(line) for line in drawn.splitlines()) <= width


def test_wide_characters_count_as_the_cells_they_take() -> None:
    report = finished_report(findings=(msgspec.structs.replace(FINDINGS[1], text="一" * 300),))
    assert max(cell_len(line) for line in render(report, 80).splitlines()) <= 80


def test_the_first_line_is_the_conditions_and_quality_stands_before_the_verdict() -> None:
    drawn = render(finished_report(), 80)
    assert drawn.startswith("Conditions   model unknown")
    assert drawn.index("Conditions") < drawn.index("Seen") < drawn.index("Window") < drawn.index("VERDICT")


def test_every_absent_condition_is_called_unknown() -> None:
    nothing = Conditions(
        hardware=None,
        device_kind=None,
        device_count=None,
        model=None,
        parameter_bytes=None,
        precision=None,
        batch=None,
        context=None,
        quantisation=None,
        software=None,
    )
    drawn = render(finished_report(conditions=nothing), 200).splitlines()[0]
    for name in ("model", "precision", "quantisation", "hardware", "device", "batch", "sequence length", "software"):
        assert f"{name} unknown" in drawn


def test_missing_counts_are_unknown_and_not_zero() -> None:
    nothing = Coverage(
        processes=None,
        processes_closed=None,
        steps=None,
        profiled_steps=None,
        assigned_ratio=None,
        requests=None,
        metric_polls=None,
    )
    quality = msgspec.structs.replace(finished_report().quality, coverage=nothing)
    seen = next(line for line in render(finished_report(quality=quality), 200).splitlines() if line.startswith("Seen"))
    assert seen.count("unknown") == 5
    assert "0" not in seen


def test_every_witness_is_named_with_its_stance() -> None:
    drawn = render(finished_report(), 120)
    assert re.search(r"^device trace agrees: .*\[e1\]$", drawn, re.MULTILINE)
    assert re.search(r"^engine +dissents \(queue_bound\): ", drawn, re.MULTILINE)
    assert re.search(r"^requests +silent: ", drawn, re.MULTILINE)


def test_an_undetermined_verdict_claims_no_confidence_and_says_what_is_missing() -> None:
    verdict = msgspec.structs.replace(
        VERDICT,
        primary="undetermined",
        confidence=None,
        headline="What binds is undetermined.",
        missing=(NotJudged(topic="peaks", reason="The calibration failed.", obtain="Record again."),),
    )
    drawn = render(finished_report(verdict=verdict), 120)
    assert "undetermined  no confidence claimed" in drawn
    assert "peaks: The calibration failed. Obtain: Record again." in drawn


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=9).filter(any),
    st.integers(0, 10**12),
    st.sampled_from([40, 80, 120]),
)
def test_printed_shares_add_up_to_the_window(parts: list[int], rest: int, width: int) -> None:
    window = sum(parts) + rest
    budget = TimeBudget(
        window_ns=window,
        parts=tuple(
            BudgetPart(id=f"part_{i}", ns=ns, share=ns / window, origin="measured") for i, ns in enumerate(parts)
        ),
        unexplained_ns=rest,
        unexplained_share=rest / window,
    )
    drawn = render(finished_report(time_budget=budget, findings=(), phases=()), width)
    block = drawn[drawn.index("Where the wall") : drawn.index("A verdict needs")]
    tenths = [
        round(float(share) * 10)
        for share in re.findall(r"^  (?:part \d|unexplained) +(\d+\.\d) %", block, re.MULTILINE)
    ]
    assert len(tenths) == len(parts) + 1
    assert sum(tenths) == 1000


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=12).filter(any))
def test_no_printed_share_is_a_tenth_of_a_percent_or_more_away_from_the_true_one(parts: list[int]) -> None:
    whole = sum(parts)
    for part, share in zip(parts, closing_shares(parts, whole), strict=True):
        assert abs(share - 100 * part / whole) < 0.1 + 1e-9


def test_every_number_in_the_findings_is_a_value_of_the_evidence_or_of_the_advice() -> None:
    report = seal(finished_report())
    drawn = render(report, 200, show_all=True)
    block = drawn[drawn.index("1 HIGH") : drawn.index("Not judged")]
    known = {"1", "2", "3", "4", "95"}  # the findings' own numbers, and the percentile that a metric is named for
    for evidence in report.evidence:
        known |= numbers(" ".join(spelled(evidence)))
    for finding in report.findings:
        known |= numbers("" if finding.share is None else spell(finding.share, "ratio"))
        for advice in finding.advice:
            known |= {str(advice.from_), str(advice.to)} | numbers(
                " ".join([*advice.preconditions, advice.refuted_if, advice.test_arguments])
            )
            for change in (*advice.expected, *advice.pays):
                if change.low is not None and change.high is not None:
                    known |= {f"{change.low * 100:+.0f}", f"{change.high * 100:+.0f}"}
            for row in advice.trade_off:
                known |= numbers(f"{row.value} {spell(row.itl_s, 's')}")
    known |= numbers(str(report.run.command_redacted))
    assert numbers(block) <= known


def spelled(evidence: Evidence) -> list[str]:
    values = [evidence.value, evidence.low, evidence.high]
    return (
        [
            *(spell(value, evidence.unit) for value in values),
            f"{evidence.value:.2f}" if isinstance(evidence.value, float) else "",
            f"{evidence.n:,}",
        ]
        if evidence.n is not None
        else [spell(value, evidence.unit) for value in values]
    )


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def test_three_findings_are_shown_and_the_rest_behind_all() -> None:
    assert "SPY-HOS-001" not in render(finished_report(), 80)
    assert "1 more finding: --all" in render(finished_report(), 80)
    assert "SPY-HOS-001" in render(finished_report(), 80, show_all=True)


def test_an_advice_shows_gain_price_precondition_test_and_refutation() -> None:
    drawn = render(finished_report(), 120)
    for line in (
        "Try          max_num_seqs 8 (meas) -> 16",
        "Expect       output_tokens_per_s +45 % to +80 % (est.)",
        "queue_time_p99 down, amount not predicted (est.); the queue empties",
        "Pays         itl_p50 +4 % to +15 % (est.)",
        "Precondition The KV cache holds 21 sequences of the observed lengths.",
        "Refuted if   ITL p50 rises by more than 25 %, or KV cache use exceeds 90 %.",
        "Against      Padding to the next bucket could eat part of the gain.",
    ):
        assert f"{line}\n" in drawn
    assert re.search(r"^ +16 +44\.6 ms +x1\.62 +yes +extrapolated$", drawn, re.MULTILINE)


def test_the_test_command_can_be_copied_even_where_it_is_wrapped() -> None:
    drawn = render(finished_report(), 60)
    block = drawn[drawn.index("Test command") + len("Test command") : drawn.index("Refuted if")]
    joined = " ".join(block.replace("\\\n", " ").split())
    assert joined == ("spyreprof record -- python samples/serve.py --scenario decode --seed 7 --max-num-seqs 16")


@pytest.mark.parametrize("command", [None, Public("python script-1"), Public("python 'unclosed")])
def test_a_command_that_is_not_wholly_public_is_left_to_the_user(command: Public | None) -> None:
    report = finished_report()
    complete = command is not None and "unclosed" in command
    run = msgspec.structs.replace(report.run, command_redacted=command, command_complete=complete)
    assert command_to_test(run, BATCH_ADVICE) == [
        "spyreprof",
        "record",
        "--",
        "<your command>",
        "--max-num-seqs",
        "16",
    ]


@pytest.mark.parametrize("old", ["--max-num-seqs 8 --seed 7", "--seed 7 --max-num-seqs=8"])
def test_a_setting_that_the_command_already_has_is_replaced(old: str) -> None:
    command = Public(f"python serve.py {old}")
    run = msgspec.structs.replace(finished_report().run, command_redacted=command, command_complete=True)
    assert " ".join(command_to_test(run, BATCH_ADVICE)) == (
        "spyreprof record -- python serve.py --seed 7 --max-num-seqs 16"
    )


def test_a_test_by_hand_stands_beside_the_command_and_not_in_it() -> None:
    advice = msgspec.structs.replace(BATCH_ADVICE, test_arguments="", test_note="with 2 concurrent clients")
    finding = msgspec.structs.replace(FINDINGS[0], advice=(advice,))
    drawn = render(finished_report(findings=(finding,)), 120)
    assert "record -- python samples/serve.py --scenario decode --seed 7\n               with 2 concurrent" in drawn


def test_a_share_that_the_text_names_is_not_repeated() -> None:
    finding = msgspec.structs.replace(FINDINGS[0], text="71.0 % of the window.")
    assert "Concerns" not in render(finished_report(findings=(finding,)), 120)


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ((), ""),
        (("e1",), " [e1]"),
        (("e1", "e2"), " [e1 e2]"),
        (("e1", "e2", "e3", "e7"), " [e1-e3 e7]"),
        (("e9", "e10", "e11", "x12"), " [e9-e11 x12]"),
        (("e3", "e2", "e1"), " [e3 e2 e1]"),
        (("e", "e1"), " [e e1]"),
    ],
)
def test_runs_of_evidence_are_shortened(ids: tuple[str, ...], shown: str) -> None:
    assert references(ids) == shown


def test_no_escape_sequence_without_color_and_the_same_words_with_it() -> None:
    plain = render(finished_report(), 80)
    colored = render(finished_report(), 80, color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_ascii_output_is_ascii() -> None:
    report = finished_report(findings=(msgspec.structs.replace(FINDINGS[1], text="3 µs × Σ → ≥ 一"),))
    drawn = render(report, 80, ascii_only=True)
    assert drawn.isascii()
    assert "3 us x sum  -> >= ?" in drawn
    assert "####" in drawn


def test_a_number_stays_with_its_unit_at_the_end_of_a_line() -> None:
    for width in range(40, 121):
        lines = [line.strip() for line in render(finished_report(), width).splitlines()]
        assert not [line for line in lines if re.match(r"(%|ms|s|GB/s)(\W|$)", line)]


def test_markup_and_control_characters_in_a_report_from_elsewhere_show_themselves() -> None:
    headline = "[red]x[/red] [link=http://a]b[/link] \x1b[31m\x9b1m\r\n\u202eabc\u200b"
    report = finished_report(verdict=msgspec.structs.replace(VERDICT, headline=headline))
    drawn = render(report, 200, color=False)
    assert r"[red]x[/red] [link=http://a]b[/link] \x1b[31m\x9b1m\x0d\x0a\u202eabc\u200b" in drawn
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]", drawn)


def test_a_report_of_nothing_is_still_drawn() -> None:
    report: Report = finished_report(
        window=None, time_budget=None, phases=(), latencies=(), findings=(), not_judged=(), evidence=()
    )
    drawn = render(report, 80)
    assert "no steady state: none was found" in drawn
    assert "No findings" in drawn


def test_no_findings_means_healthy_only_with_a_verdict() -> None:
    undetermined = msgspec.structs.replace(VERDICT, primary="undetermined", confidence=None)
    assert "asks for a change" in render(finished_report(findings=()), 80)
    assert "too little could be judged" in render(finished_report(findings=(), verdict=undetermined), 80)


def test_what_was_not_seen_at_all_is_missing() -> None:
    coverage = msgspec.structs.replace(finished_report().quality.coverage, requests=0, metric_polls=None)
    quality = msgspec.structs.replace(finished_report().quality, coverage=coverage)
    assert "Missing      no request log, no engine metrics\n" in render(finished_report(quality=quality), 80)
    nothing = msgspec.structs.replace(finished_report().quality, notes=(), collectors=())
    assert "Missing      nothing\n" in render(finished_report(quality=nothing), 80)


def test_what_the_verdict_lacks_is_said_once() -> None:
    lacking = NotJudged(topic="peaks", reason="The calibration failed", obtain="Record again")
    verdict = msgspec.structs.replace(VERDICT, missing=(lacking,))
    drawn = render(finished_report(verdict=verdict, not_judged=(lacking, *finished_report().not_judged)), 120)
    assert drawn.count("peaks: The calibration failed. Obtain: Record again.") == 1
    assert "Not judged   interconnect" in drawn


def test_a_long_last_column_wraps_before_the_table_falls_apart() -> None:
    latency = msgspec.structs.replace(finished_report().latencies[0], source="as the load generator saw it " * 4)
    drawn = render(finished_report(latencies=(latency,)), 80)
    block = drawn[drawn.index("Latencies") : drawn.index("1 HIGH")].splitlines()
    assert block[2].startswith("  ttft     35  1.20 s  840 ms  2.90 s  3.90 s  as the load generator")
    assert block[3] == " " * 47 + "the load generator saw it as the"


def test_a_budget_without_the_pauses_of_the_profiler_says_so() -> None:
    assert "in % of the window (42.0 s = 100 %)" in render(finished_report(), 80)
    window = msgspec.structs.replace(finished_report().window, end_ns=1_043_000_000_000)  # type: ignore[type-var]
    drawn = render(finished_report(window=window), 80)
    assert "Window       43.0 s steady state" in drawn
    assert "in % of the window without pauses (42.0 s = 100 %)" in drawn


def test_a_budget_of_no_time_draws_no_shares() -> None:
    empty = msgspec.structs.replace(BUDGET, window_ns=0, parts=(), unexplained_ns=0)
    assert "Where the wall time" not in render(finished_report(time_budget=empty), 80)


def test_a_phase_shows_what_slope_test_and_requests_say_and_the_trace_only_once() -> None:
    drawn = render(finished_report(), 120)
    assert "engine: slope test: fixed cost, not split [e1]" in drawn
    assert "requests: no request log and no histograms" in drawn
    assert "its reason" not in drawn


def test_mixed_steps_that_share_the_evidence_of_prefill_are_not_told_twice() -> None:
    prefill = msgspec.structs.replace(finished_report().phases[0], evidence=("e1",))
    mixed = msgspec.structs.replace(prefill, phase="mixed")
    drawn = render(finished_report(phases=(prefill, mixed)), 120)
    assert drawn.count(prefill.reason) == 1
    assert "judged together with prefill" in drawn


def test_the_profiler_says_how_long_it_held_the_program_up_and_what_it_refused() -> None:
    drawn = " ".join(render(finished_report(), 120).split())
    assert (
        "profiler windows: 2 opened, 4 steps, 1 not saved, held the program up for 310 ms in all (longest 190 ms), "
        "kept out of the steady state. 1 refused: recent steps are longer than 0.5 s" in drawn
    )


def test_a_run_without_profiler_windows_says_why_and_an_older_report_says_nothing() -> None:
    none = ProfilerWindows(
        opened=0,
        saved=0,
        refused=(),
        steps=None,
        operators=None,
        pause_total_ns=None,
        pause_longest_ns=None,
        pause_median_ns=None,
        share_of_recording=None,
        share_of_steady_window=None,
        windows=(),
        missing=Public("none was asked for"),
    )
    assert "profiler windows: no window: none was asked for\n" in render(finished_report(profiler_windows=none), 120)
    assert "profiler windows" not in render(finished_report(profiler_windows=None), 120)


@pytest.mark.parametrize(
    ("primary", "rule"),
    [
        ("decode_bandwidth_bound", "SPY-DEC-002"),
        ("queue_bound", "SPY-QUE-001"),
        ("compile_bound", "SPY-DEC-002"),
        ("undetermined", "SPY-DEC-002"),
    ],
)
def test_the_rule_to_read_is_that_of_the_verdict_else_of_the_first_finding(primary: str, rule: str) -> None:
    verdict = msgspec.structs.replace(VERDICT, primary=primary)
    assert f"why this rule: spyreprof rules info {rule}\n" in render(finished_report(verdict=verdict), 120)


def test_the_rule_of_every_verdict_is_among_the_rules() -> None:
    assert set(RULES_OF_VERDICTS.values()) <= {rule.id for rule in registry.rules().rules}


def test_what_a_cpu_does_is_not_called_a_device() -> None:
    assert "decode: operators " in render(finished_report(), 80)
    conditions = msgspec.structs.replace(finished_report().conditions, device_kind=Public("spyre"))
    assert "decode: device busy " in render(finished_report(conditions=conditions), 80)


def test_the_use_of_the_peaks_is_not_repeated_where_the_verdict_told_it() -> None:
    decode = finished_report().phases[1]
    told = msgspec.structs.replace(VERDICT.witnesses[0], text=f"decode: {decode.reason}")
    verdict = msgspec.structs.replace(VERDICT, witnesses=(told, *VERDICT.witnesses[1:]))
    drawn = render(finished_report(verdict=verdict), 200)
    assert drawn.count(decode.reason) == 1
    assert "decode     as the device trace says above [e2 e5]" in drawn
    assert "6.50 GB/s of 7.90 GB/s" not in drawn
    assert "6.50 GB/s of 7.90 GB/s" in render(finished_report(verdict=verdict), 200, show_all=True)
