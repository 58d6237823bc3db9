"""What a report says of call stacks: data quality first, honest units, nothing private, nothing unknown shown as 0."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from recorded_builder import FakeRecording, analysis_inputs, diagnosis
from report_builders import finished_report
from rich.cells import cell_len

from spyreprof.recording.imported_stacks import StackFileSummary, summarise_stacks
from spyreprof.report.build import build_report
from spyreprof.report.model import Public, Report
from spyreprof.report.read import decode_report
from spyreprof.report.schema import report_schema
from spyreprof.report.shortfall import shortfalls
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump
from spyreprof.stacks.reader import read_bytes

SITE = "/opt/venv/lib/python3.11/site-packages"
FRAMES = [
    ("main", "/home/alice/serve.py"),
    ("forward", f"{SITE}/torch/nn/modules/linear.py"),
    ("wait", "/usr/lib/python3.11/threading.py"),
]


def speedscope(*profiles: dict[str, Any], frames: Any = FRAMES, kind: str = "speedscope") -> StackFileSummary:
    named = [{"name": name, "file": file} for name, file in frames]
    data = json.dumps({"shared": {"frames": named}, "profiles": profiles}).encode()
    return summarise_stacks(read_bytes(data, "f"), kind, "f")


def sampled(weights: list[Any], unit: str = "seconds", name: str = "MainThread") -> dict[str, Any]:
    """Ends in main, in forward, and in a wait, in turn."""
    samples = [[0], [0, 1], [0, 2]][: len(weights)]
    return {"type": "sampled", "name": name, "unit": unit, "samples": samples, "weights": weights}


def collapsed(text: str) -> StackFileSummary:
    return summarise_stacks(read_bytes(text.encode(), "f"), "collapsed_stacks", "f")


def report_on(*files: StackFileSummary) -> Report:
    return build_report(FakeRecording(stack_files=files), diagnosis(), analysis_inputs())


def drawn(report: Report, **options: Any) -> str:
    return " ".join(render(report, 200, **options).split())


def test_a_report_on_stacks_is_valid_under_the_published_schema_and_read_back_the_same() -> None:
    report = report_on(speedscope(sampled([1.5, 2.25, 0.25])), collapsed("main;step 3\nno weight\nmain 1\n"))
    jsonschema.validate(json.loads(dump(report)), report_schema())
    assert decode_report(dump(report), "r") == report


def test_an_old_report_without_stacks_is_read_and_drawn() -> None:
    content = json.loads(dump(finished_report()))
    del content["stack_files"]
    report = decode_report(json.dumps(content).encode(), "r")
    assert report.stack_files == ()
    assert "Stacks" not in render(report, 80)


def test_weights_are_parts_of_their_profile() -> None:
    [[profile]] = [file.profiles for file in report_on(speedscope(sampled([1, 2, 1]))).stack_files]
    assert (profile.unit, profile.weight, profile.waiting_weight, profile.waiting_ratio) == ("s", 4, 1, 0.25)
    by_name = {one.name: one for one in profile.functions}
    forward = by_name[Public("forward (torch/nn/modules/linear.py)")]
    assert (forward.self_ratio, forward.total_ratio, forward.waits) == (0.5, 0.5, False)
    main = by_name[Public("function-1 (file-1)")]
    assert (main.self_ratio, main.total_ratio) == (0.25, 1)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("nanoseconds", "in % of 4,000 ns"),
        ("microseconds", "in % of 4.00 ms"),
        ("milliseconds", "in % of 4.00 s"),
        ("seconds", "in % of 67 min"),
        ("bytes", "in % of 4.00 kB"),
        ("none", "in % of a weight of 4,000 (the file tells no unit: counted as samples, not as time)"),
    ],
)
def test_a_weight_is_spelled_in_its_own_unit(unit: str, said: str) -> None:
    assert said.replace("4,000 ns", "4.00 µs") in drawn(report_on(speedscope(sampled([1000, 2000, 1000], unit))))


def test_data_quality_stands_first_and_functions_after_the_verdict() -> None:
    text = render(report_on(collapsed("main;step 3\nno weight\nmain 1\n")), 80)
    assert text.startswith("Stacks       file 1 (collapsed stacks): 1 profile read, 3 samples read, 2 kept,")
    order = [text.index(part) for part in ("1 dropped", "Conditions", "VERDICT", "Stacks, profile 1")]
    assert order == sorted(order)


def test_events_out_of_order_and_frames_without_an_end_are_told() -> None:
    events = [("O", 0, 1), ("O", 1, 5), ("C", 1, 3), ("C", 2, 6)]
    evented = {
        "type": "evented",
        "unit": "none",
        "endValue": 9,
        "events": [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events],
    }
    report = report_on(speedscope(evented))
    [profile] = report.stack_files[0].profiles
    assert (profile.out_of_order, profile.unclosed) == (1, 2)
    assert [(part.what, part.samples) for part in profile.dropped] == [("the end of a frame that is not open", 2)]
    text = drawn(report)
    assert "Events of the stacks out of order, sorted: 1." in text
    assert "Frames that never end, closed at the profile's end: 2." in text
    assert "2 dropped (the end of a frame that is not open 2)" in drawn(report, show_all=True)


def test_why_samples_of_a_profile_that_is_not_listed_were_dropped_is_told() -> None:
    lost = {"type": "sampled", "unit": "none", "samples": [[9], [9]], "weights": [1, 1]}
    text = drawn(report_on(speedscope(sampled([1]), lost)))
    assert "2 profiles read, 1 of them without weight, 3 samples read, 1 kept, 2 dropped (a frame that" in text


def test_unknown_waiting_has_its_reason_and_no_column() -> None:
    report = report_on(collapsed("main;step 3\n"))
    [profile] = report.stack_files[0].profiles
    assert (profile.waiting_weight, profile.waiting_ratio) == (None, None)
    text = drawn(report)
    assert "waiting unknown: no frame names a Python file" in text
    assert "self total function" in text


def test_waiting_is_said_to_be_the_least_there_can_be() -> None:
    text = drawn(report_on(speedscope(sampled([1, 2, 1]))))
    assert "at least 25.0 % of it waits" in text
    assert "25.0 % 25.0 % yes wait (threading.py)" in text


def test_each_file_is_an_input_with_its_counts() -> None:
    *_, given = report_on(collapsed("main;step 3\nno weight\nmain 1\n")).inputs
    assert (given.kind, dict(given.counts)) == (
        "stacks",
        {"profiles_read": 1, "samples_read": 3, "samples_kept": 2, "samples_dropped": 1},
    )


def test_strict_names_what_stacks_lack() -> None:
    lacking = shortfalls(report_on(collapsed("main;step 3\nno weight\nmain 1\n"), collapsed("main;step 3\n")))
    assert "File 1 of stacks holds 1 samples that could not be used." in lacking
    assert not any("File 2" in sentence for sentence in lacking)


HOSTILE = (
    "\x1b[31mrun\x1b]0;owned\x07",
    "<script>alert(document.cookie)</script>",
    "/home/alice/secret.py(12): run",
    "at::native::reduce_kernel<customer_kernel>",
    "[bold red]gemm[/bold red]",
    "gemm\u202elennahc",
    "token=hunter2",
    "acme_" * 90,
    "SecretPlan.get (queue.py:1)",
    "sched_yield (secret.py:1)",
    "hunter2_plan (threading.py:1)",
)
TRACES_OF_THEM = re.compile(
    r"owned|script|cookie|customer|alice|secret|Secret|bold|lennahc|hunter2|acme_acme|threading\.py"
)


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_of_a_hostile_name_reaches_the_report(name: str) -> None:
    hostile = speedscope(
        sampled([1, 2, 3], name=name),
        sampled([1, 2, 3], unit=name, name=name),
        frames=[(name, None), (name, name), (f"{name} (x.py:3)", f"/x/{name}.py")],
        kind=name,
    )
    report = report_on(hostile, collapsed(f"{name};step 3\nmain 1\n".replace("\x07", "")))
    text = render(report, 80, show_all=True)
    for told in (dump(report).decode(), text):
        assert not TRACES_OF_THEM.search(told)
        assert name not in told
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("show_all", [False, True])
def test_no_line_about_stacks_is_wider_than_the_page(width: int, show_all: bool) -> None:
    report = report_on(speedscope(sampled([1.5, 2.25, 0.25])), collapsed("main;step 3\nno weight\nmain 1\n"))
    for ascii_only in (False, True):
        lines = render(report, width, show_all=show_all, ascii_only=ascii_only).splitlines()
        assert max(cell_len(line) for line in lines) <= width


def test_without_all_long_lists_are_cut_and_say_so() -> None:
    report = report_on(*(speedscope(*(sampled([1, 2, 1]) for _ in range(3))) for _ in range(6)))
    short, full = drawn(report), drawn(report, show_all=True)
    assert "2 more files of stacks: --all" in short
    assert "15 more profiles of stacks: --all" in short
    assert "Stacks, file 6, profile 3" in full
    assert "more profiles of stacks" not in full


def test_profiles_that_are_not_even_in_the_report_are_counted() -> None:
    report = report_on(speedscope(*(sampled([1, 2, 1]) for _ in range(40))))
    assert "8 more profiles of stacks are not listed" in drawn(report, show_all=True)
