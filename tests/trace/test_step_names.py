"""Step names of vLLM and SGLang: what each spelling says, and what is no step name."""

from __future__ import annotations

import pytest

from spyreprof.trace.annotations import StepWork, parse_step_name


@pytest.mark.parametrize(
    ("name", "work"),
    [
        (
            "execute_66_context_1(sq64sk640sqsq4096sqsk40960)_generation_2(sq2sk100sqsq2sqsk100)",
            StepWork(1, 64, 640, 40960, 2, 2, 100, "mixed"),
        ),
        (
            "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk800sqsq8sqsk800)",
            StepWork(0, 0, 0, 0, 8, 8, 800, "decode"),
        ),
        (
            "execute_64_context_2(sq64sk64sqsq2048sqsk2048)_generation_0(sq0sk0sqsq0sqsk0)",
            StepWork(2, 64, 64, 2048, 0, 0, 0, "prefill"),
        ),
        ("execute_context_6(511)_generation_1(1)", StepWork(6, 511, None, None, 1, 1, None, "mixed")),
        ("execute_context_0(0)_generation_8(16)", StepWork(0, 0, None, None, 8, 16, None, "decode")),
        ("execute_new_1_cached_3", StepWork(None, None, None, None, None, None, None, None)),
        ("step[DECODE bs=64]", StepWork(0, 0, 0, 0, 64, 64, None, "decode")),
        ("step[EXTEND bs=2 toks=12]", StepWork(2, 12, None, None, 0, 0, 0, "prefill")),
        ("step[MIXED bs=2]", StepWork(None, None, None, None, None, None, None, "mixed")),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
            StepWork(0, 0, 0, 0, 64, 128, 131072, "decode"),
        ),
        (
            "step[EXTEND bs=2 toks=12 c_sq=12 c_sqsq=80 c_sqsk=120 c_sk=20]",
            StepWork(2, 12, 20, 120, 0, 0, 0, "prefill"),
        ),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            StepWork(1, 5, 8, 40, 1, 1, 12, "mixed"),
        ),
        # What a program marks: a phase means that the counts of the other kind are zero.
        ("spyreprof_step[by=api]", StepWork(None, None, None, None, None, None, None, None)),
        ("spyreprof_step[by=api ph=decode]", StepWork(0, 0, 0, 0, None, None, None, "decode")),
        ("spyreprof_step[by=api ph=decode gr=4 gs=90]", StepWork(0, 0, 0, 0, 4, 4, 90, "decode")),
        ("spyreprof_step[by=api ph=prefill ct=8]", StepWork(None, 8, None, None, 0, 0, 0, "prefill")),
        ("spyreprof_step[by=api ct=8 gr=2 gt=6]", StepWork(None, 8, None, None, 2, 6, None, "mixed")),
        ("spyreprof_step[by=api gr=2]", StepWork(None, None, None, None, 2, 2, None, None)),
        (
            "spyreprof_step[by=api ph=decode gr=3 gt=9 gs=90 egr=4 egs=128 st=6]",
            StepWork(0, 0, 0, 0, 3, 9, 90, "decode", None, 4, 128, 6),
        ),
        (
            "spyreprof_step[by=api ph=prefill cr=1 ct=15 ect=512]",
            StepWork(1, 15, None, None, 0, 0, 0, "prefill", 512, None, None, None),
        ),
        # Counts of both kinds tell more than the word.
        ("spyreprof_step[by=api ph=decode cr=1 ct=8 gr=2]", StepWork(1, 8, None, None, 2, 2, None, "mixed")),
        (
            "spyreprof_step[by=generate ph=prefill cr=1 ct=4 cs=14 cqk=56 gr=0 gt=0 gs=0]",
            StepWork(1, 4, 14, 56, 0, 0, 0, "prefill"),
        ),
    ],
)
def test_a_known_spelling_gives_what_it_carries_and_nothing_else(name: str, work: StepWork) -> None:
    assert parse_step_name(name) == work


@pytest.mark.parametrize(
    "name",
    [
        "",
        "aten::mm",
        "execute_order_66",
        "execute_tool_call",
        "execute_context_1(1)_generation_0(0)\n",
        " execute_context_1(1)_generation_0(0)",
        "execute_context_1(1)_generation_0(0) extra",
        "execute_context_1(-1)_generation_0(0)",
        "execute_context_1(١)_generation_0(0)"[:18] + "x)_generation_0(0)",
        "step[IDLE bs=1]",
        "step[DECODE]",
        "step[DECODE bs=1 prompt=secret]",
        "spyreprof_step[by=secret]",
        "spyreprof_step[by=api gr=1 ct=1]",
        "spyreprof_step[by=api ph=decode] extra",
        "execute_context_" + "9" * 5000 + "(1)_generation_0(0)",
    ],
)
def test_anything_else_is_no_step(name: str) -> None:
    assert parse_step_name(name) is None


def test_a_sum_that_no_table_can_hold_is_missing() -> None:
    name = f"execute_1_context_1(sq1sk{10**19}sqsq1sqsk1)_generation_0(sq0sk0sqsq0sqsk0)"
    work = parse_step_name(name)
    assert work is not None
    assert work.context_seq_len_sum is None
    assert work.context_tokens == 1


@pytest.mark.parametrize("name", ["execute_context_0(0)_generation_0(0)", "step[DECODE bs=0]", "step[EXTEND bs=0]"])
def test_an_empty_step_has_no_phase(name: str) -> None:
    work = parse_step_name(name)
    assert work is not None
    assert work.phase is None
