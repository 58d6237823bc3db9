"""Names of functions reach a report only through the redactor."""

from __future__ import annotations

import msgspec
import pytest
from recorded_builder import FakeRecording, analysis_inputs, diagnosis

from spyreprof.findings import Evidence, Finding
from spyreprof.report.build import build_report
from spyreprof.report.redact import Redactor
from spyreprof.report.writer import dump

FRAMES = (
    ("Linear.forward", "torch/nn/modules/linear.py"),
    ("secret_recipe", "acme/core.py"),
    ("Queue.get", "<stdlib>/queue.py"),
    ("acme_helper", "acme/core.py"),
)


def finding(text: str) -> Finding:
    return Finding(
        id="SPY-HST-002", rule_version=1, severity="info", title="t", text=text, phase=None, share=None,
        evidence=("e1",), against=("nothing",),
    )  # fmt: skip


def report_text(text: str, method: str = "m", frames: tuple[tuple[str, str], ...] = FRAMES) -> str:
    number = Evidence(id="e1", metric="m", value=1, unit="", origin="measured", method=method, source="s")
    said = msgspec.structs.replace(diagnosis(), findings=(finding(text),), evidence=(number,))
    return dump(build_report(FakeRecording(frames=frames), said, analysis_inputs())).decode()


def test_functions_of_published_packages_are_named() -> None:
    said = report_text("in frame#0 and frame#2.", "looks at frame#0")
    assert "in Linear.forward (torch/nn/modules/linear.py) and Queue.get (queue.py)." in said
    assert "looks at Linear.forward (torch/nn/modules/linear.py)" in said


def test_functions_of_the_user_become_pseudonyms_that_stay_the_same() -> None:
    said = report_text("in frame#1, frame#3, frame#1", "looks at frame#1")
    assert "acme" not in said
    assert "secret_recipe" not in said
    assert "in function-1 (file-1), function-2 (file-1), function-1 (file-1)" in said
    assert "looks at function-1 (file-1)" in said


def test_names_that_are_not_used_are_not_counted_as_withheld() -> None:
    redactor = Redactor()
    redactor.frame("f", "acme.py")
    assert redactor.summary().removed == {"file": 1, "function": 1}
    assert '"function"' not in report_text("in frame#0")


def test_a_number_without_a_name_shows_nothing() -> None:
    assert "in frame#9." in report_text("in frame#9.")
    assert "in frame#0." in report_text("in frame#0.", frames=())


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("forward", "serve.py"),
        ("forward", "torch.py"),
        ("forward", "mytorch/nn.py"),
        ("forward", "torch/../../home/someone/x.py"),
        ("forward", "torch/customer name.py"),
        ("forward", "torch/x.py\x1b[31m"),
        ("förward", "torch/nn.py"),
        ("forward\nVERDICT", "torch/nn.py"),
        ("forward (of) [someone]", "torch/nn.py"),
        ("f" * 500, "torch/nn.py"),
        ("<module>", "<string>"),
    ],
)
def test_what_only_looks_published_is_withheld(function: str, file: str) -> None:
    said = Redactor().frame(function, file)
    assert said == "function-1 (file-1)"
