"""Hardware files: each number with its source, and sentences for files that are wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spyreprof.errors import EXIT_WRONG_USE, UserError
from spyreprof.hardware.profile import built_in_names, load_hardware

VALUE = """
value = 1e12
unit = "flop/s"
kind = "vendor"
source = "data sheet"
date = "2026-01"
condition = "dense"
"""


def refusal(name: str) -> UserError:
    with pytest.raises(UserError) as caught:
        load_hardware(name)
    assert caught.value.exit_code == EXIT_WRONG_USE
    assert caught.value.remedy
    return caught.value


def own_file(tmp_path: Path, content: str) -> str:
    path = tmp_path / "own.toml"
    path.write_text(content)
    return str(path)


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_number_says_who_says_so_when_and_for_what(name: str) -> None:
    profile = load_hardware(name)
    assert profile.name == name
    assert profile.title
    for _field, value in profile.values():
        assert value.value > 0
        assert value.source
        assert value.condition
        assert re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", value.date)


def test_spyre_has_the_peaks_of_its_own_software() -> None:
    values = dict(load_hardware("spyre").values())
    assert values["compute_flops_per_s.float16"].value == 98.304e12
    assert values["memory_bytes_per_s"].value == 204.8e9
    assert values["memory_sustained_bytes_per_s"].value == 150e9
    assert values["scratchpad_bytes_per_core"].value == 2 * 2**20
    assert {value.kind for value in values.values()} == {"upstream-source"}


def test_no_peak_is_declared_for_a_processor() -> None:
    profile = load_hardware("cpu")
    assert list(profile.values()) == []
    assert profile.note is not None
    assert "measures" in profile.note


def test_an_unknown_name_lists_what_exists() -> None:
    error = refusal("h100")
    assert "'h100'" in error.problem
    assert all(name in error.remedy for name in built_in_names())


def test_a_file_of_ones_own_is_given_by_its_path(tmp_path: Path) -> None:
    profile = load_hardware(own_file(tmp_path, f'title = "mine"\n[compute_flops_per_s.bfloat16]{VALUE}'))
    assert profile.name == "own"
    assert [(name, value.value) for name, value in profile.values()] == [("compute_flops_per_s.bfloat16", 1e12)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("title = ", "not valid"),
        ("", "title"),
        ('title = "x"\npeak = 3', "peak"),
        ('title = "x"\n[compute_flops_per_s.float16]\nvalue = 1.0', "unit"),
        (f'title = "x"\n[memory_bytes_per_s]{VALUE}', "'flop/s', not 'bytes/s'"),
        (f'title = "x"\n[compute_flops_per_s.f]{VALUE.replace("1e12", "-1.0")}', "positive"),
        (f'title = "x"\n[compute_flops_per_s.f]{VALUE.replace("1e12", "inf")}', "positive"),
        (f'title = "x"\n[compute_flops_per_s.f]{VALUE.replace("vendor", "hearsay")}', "hearsay"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, content: str, said: str) -> None:
    error = refusal(own_file(tmp_path, content))
    assert said in error.problem
    assert "\n" not in error.problem


def test_a_path_where_nothing_is_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(str(tmp_path / "nothing.toml")).problem


def spyreprof(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spyreprof", "hardware", *words], capture_output=True, text=True, check=False
    )


def test_show_prints_numbers_with_their_source() -> None:
    shown = spyreprof("show", "spyre")
    assert shown.returncode == 0
    assert shown.stderr == ""
    for expected in ("98.3 TFLOP/s", "205 GB/s", "150 GB/s", "upstream-source", "work_division.py"):
        assert expected in shown.stdout


def test_show_as_json_is_exact() -> None:
    document = json.loads(spyreprof("show", "spyre", "--json").stdout)
    assert document["compute_flops_per_s"]["float16"]["value"] == 98.304e12
    assert document["name"] == "spyre"


def test_list_names_every_file() -> None:
    plain, as_json = spyreprof("list"), spyreprof("list", "--json")
    assert all(name in plain.stdout for name in built_in_names())
    assert [profile["name"] for profile in json.loads(as_json.stdout)] == list(built_in_names())


@pytest.mark.parametrize("words", [("show", "h100"), ("show",), ("list", "spyre")])
def test_wrong_use_is_one_sentence_and_exit_2(words: tuple[str, ...]) -> None:
    shown = spyreprof(*words)
    assert shown.returncode == EXIT_WRONG_USE
    assert shown.stdout == ""
    assert "Traceback" not in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
