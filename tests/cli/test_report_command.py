"""`spyreprof report` from the outside: inputs, outputs, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from report_builders import VERDICT, finished_report
from report_verbs import IMPORT_ROOTS, decode_recording, spyreprof

from spyreprof.report.terminal import render
from spyreprof.report.writer import dump, seal


@pytest.fixture
def report_json(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_bytes(dump(finished_report()))
    return path


def failed(result: subprocess.CompletedProcess[bytes], *, saying: str) -> None:
    """Wrong use: exit code 2, one line on stderr, no traceback, nothing on stdout."""
    stderr = result.stderr.decode()
    assert (result.returncode, result.stdout) == (2, b""), stderr
    assert "Traceback" not in stderr
    assert re.search(saying, stderr), stderr


def test_a_report_json_is_drawn_as_it_is(report_json: Path) -> None:
    result = spyreprof("report", report_json)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode() == render(seal(finished_report()), 80)
    assert result.stderr == b""


def test_json_of_a_report_json_is_the_same_bytes_in_both_spellings(report_json: Path) -> None:
    for option in (["--json"], ["--format", "json"]):
        assert spyreprof("report", report_json, *option).stdout == report_json.read_bytes()


def test_width_and_all_change_the_terminal_form(report_json: Path) -> None:
    assert spyreprof("report", report_json, "--width", "120", "--all").stdout.decode() == render(
        seal(finished_report()), 120, show_all=True
    )
    assert spyreprof("report", report_json, COLUMNS="100").stdout.decode() == render(seal(finished_report()), 100)


def test_out_writes_the_file_and_says_so_on_stderr(report_json: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy.json"
    result = spyreprof("report", report_json, "--json", "--out", out)
    assert (result.returncode, result.stdout) == (0, b"")
    assert out.read_bytes() == report_json.read_bytes()
    assert f"Wrote {out}." in result.stderr.decode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.json", "report.json"]


def test_out_writes_into_a_pipe_and_leaves_it_a_pipe(report_json: Path, tmp_path: Path) -> None:
    """What is no regular file is written to: a rename would put a file in the place of a device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert spyreprof("report", report_json, "--json", "--out", pipe).returncode == 0
        assert pipe.is_fifo()
        assert os.read(reader, 100) == report_json.read_bytes()[:100]
    finally:
        os.close(reader)


def test_out_follows_a_link_and_leaves_it_a_link(report_json: Path, tmp_path: Path) -> None:
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("old")
    link.symlink_to(target)
    assert spyreprof("report", report_json, "--json", "--out", link).returncode == 0
    assert link.is_symlink()
    assert target.read_bytes() == report_json.read_bytes()


def test_a_full_device_is_a_sentence(report_json: Path) -> None:
    failed(spyreprof("report", report_json, "--json", "--out", "/dev/full"), saying="No space left")
    assert Path("/dev/full").is_char_device()


def test_out_in_a_folder_that_is_not_there_is_a_sentence(report_json: Path, tmp_path: Path) -> None:
    failed(spyreprof("report", report_json, "--out", tmp_path / "no" / "x"), saying="cannot be written")


def test_a_terminal_without_unicode_gets_ascii(report_json: Path) -> None:
    result = spyreprof("report", report_json, PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert b"####" in result.stdout


def test_color_only_on_a_terminal_and_never_with_no_color(report_json: Path) -> None:
    assert b"\x1b" not in spyreprof("report", report_json, TERM="xterm").stdout
    assert b"\x1b[" in on_a_terminal(report_json, TERM="xterm")
    assert b"\x1b" not in on_a_terminal(report_json, TERM="xterm", NO_COLOR="1")
    assert b"\x1b" not in on_a_terminal(report_json, TERM="dumb")


def on_a_terminal(report_json: Path, **environment: str) -> bytes:
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    roots = os.pathsep.join(map(str, IMPORT_ROOTS))
    with subprocess.Popen(
        [sys.executable, "-m", "spyreprof", "report", str(report_json), "--width", "80"],
        stdout=theirs,
        env={**inherited, "PYTHONPATH": roots, **environment},
    ) as process:
        os.close(theirs)
        drawn = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                break
            drawn += chunk
    os.close(ours)
    assert process.returncode == 0
    return drawn


@pytest.mark.parametrize(
    ("content", "saying"),
    [
        (b"", "is empty"),
        (b"\x1f\x8bxxxx", "is damaged"),
        (b'{"traceEvents": []}', "holds no timed events"),
        (b'{"schema_version": 1, "verdict": ', "is not a spyreprof report"),
        (b'{"schema_version": 1, "verdict": {}}', "damaged"),
        (b'{"schema_version": 99, "verdict": {}}', "schema version 99"),
        (b"PK\x03\x04 broken", ""),
    ],
)
def test_input_that_cannot_be_read_is_a_sentence_and_exit_2(tmp_path: Path, content: bytes, saying: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    failed(spyreprof("report", path), saying=saying)


def test_an_input_that_is_not_there_is_a_sentence_and_exit_2(tmp_path: Path) -> None:
    failed(spyreprof("report", tmp_path / "absent"), saying="There is no")


def test_a_folder_that_is_no_recording_is_a_sentence_and_exit_2(tmp_path: Path) -> None:
    failed(spyreprof("report", tmp_path), saying=str(tmp_path))


def test_several_inputs_are_a_sentence_and_exit_2(report_json: Path) -> None:
    failed(spyreprof("report", report_json, report_json), saying="read by itself")


def test_json_and_format_terminal_contradict_each_other(report_json: Path) -> None:
    failed(spyreprof("report", report_json, "--json", "--format", "terminal"), saying="contradict")


@pytest.mark.parametrize(
    ("slo", "saying"),
    [
        ("itl_p99", "not understood"),
        ("itl_p99=50", "not understood"),
        ("itl_p99=-1ms", "not understood"),
        ("itl_p50=50ms", "knows no 'itl_p50'"),
        ("itl_p99=50ms,itl_p99=60ms", "twice"),
        ("itl_p99=0ms", "more than 0"),
        ("itl_p99=50ms,ttft_p99=2s", "already made"),
    ],
)
def test_targets_that_make_no_sense_are_a_sentence_and_exit_2(report_json: Path, slo: str, saying: str) -> None:
    failed(spyreprof("report", report_json, "--slo", slo), saying=saying)


def test_strict_is_content_with_a_complete_report(tmp_path: Path) -> None:
    report = finished_report()
    coverage = msgspec.structs.replace(report.quality.coverage, processes_closed=1)
    quality = msgspec.structs.replace(report.quality, coverage=coverage)
    path = tmp_path / "report.json"
    path.write_bytes(dump(finished_report(quality=quality)))
    result = spyreprof("report", path, "--strict")
    assert (result.returncode, result.stderr) == (0, b"")


def test_strict_exits_with_3_and_says_what_is_missing_after_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    verdict = msgspec.structs.replace(VERDICT, primary="undetermined", confidence=None, reason="No peaks.")
    path.write_bytes(dump(finished_report(verdict=verdict)))
    assert spyreprof("report", path).returncode == 0
    result = spyreprof("report", path, "--strict")
    assert result.returncode == 3
    assert result.stdout.startswith(b"Conditions")
    assert result.stderr.decode().splitlines() == [
        "Strict: 1 of 1 processes ended without a closing row.",
        "Strict: The verdict is undetermined: No peaks.",
    ]


def test_a_recording_folder_and_its_packed_form_give_the_same_report(tmp_path: Path) -> None:
    recording = decode_recording(tmp_path / "run.spyreprof")
    folder, packed = recording.write(), recording.write_packed()
    first = spyreprof("report", folder, "--json")
    assert first.returncode == 0, first.stderr
    content = json.loads(first.stdout)
    assert content["quality"]["coverage"]["steps"] == 800
    assert content["conditions"]["precision"] == "float32"
    assert content["conditions"]["software"] == {"python": "3.11.7", "torch": "2.13.0+cpu"}
    budget = content["time_budget"]
    assert sum(part["ns"] for part in budget["parts"]) + budget["unexplained_ns"] == budget["window_ns"]
    assert spyreprof("report", packed, "--json").stdout == first.stdout
    # the second reading comes from cached tables
    assert spyreprof("report", folder, "--json").stdout == first.stdout


def test_the_report_of_a_recording_read_back_from_json_draws_the_same(tmp_path: Path) -> None:
    folder = decode_recording(tmp_path / "run.spyreprof").write()
    path = tmp_path / "report.json"
    spyreprof("report", folder, "--json", "--out", path)
    assert spyreprof("report", path, "--all").stdout == spyreprof("report", folder, "--all").stdout


def test_a_recording_that_was_cut_off_is_reported_and_strict_refuses_it(tmp_path: Path) -> None:
    folder = decode_recording(tmp_path / "run.spyreprof", ended=False).write()
    assert b"recording cut off before the program ended" in spyreprof("report", folder).stdout
    result = spyreprof("report", folder, "--strict")
    assert result.returncode == 3
    assert b"Strict: The recording was cut off before the program ended." in result.stderr


def test_strict_refuses_a_recording_without_its_traces_and_with_a_broken_result_file(tmp_path: Path) -> None:
    recording = decode_recording(tmp_path / "run.spyreprof")
    recording.files["bench/1.json"] = b"{"
    folder = recording.window({"traceEvents": []}, n=1).window(b"no trace", n=2).write()
    (missing,) = folder.glob("traces/*-1.*")
    missing.unlink()
    assert spyreprof("report", folder).returncode == 0
    result = spyreprof("report", folder, "--strict")
    assert result.returncode == 3
    said = result.stderr.decode().splitlines()
    assert "Strict: 1 result files of a load generator could not be read." in said
    assert "Strict: 2 traces of profiler windows are missing, cut short or unreadable." in said


def test_a_newer_recording_is_refused(tmp_path: Path) -> None:
    recording = decode_recording(tmp_path / "run.spyreprof")
    recording.manifest["schema_version"] = 99
    failed(spyreprof("report", recording.write()), saying="newer")


def test_a_report_json_is_drawn_without_the_packages_that_analyse(report_json: Path) -> None:
    code = (
        "import sys; from spyreprof.cli import main\n"
        f"try: main(['report', {str(report_json)!r}])\n"
        "finally: print(sorted({'pandas', 'numpy', 'scipy', 'pyarrow', 'textual'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, IMPORT_ROOTS))},
    )
    assert result.stderr.decode().strip() == "[]"


def test_stdout_on_a_full_device_is_a_sentence(report_json: Path) -> None:
    for form in ([], ["--json"]):
        with Path("/dev/full").open("wb") as full:
            result = subprocess.run(
                [sys.executable, "-m", "spyreprof", "report", str(report_json), *form],
                stdout=full, stderr=subprocess.PIPE, check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, IMPORT_ROOTS))},
            )  # fmt: skip
        assert (result.returncode, b"Traceback" in result.stderr) == (1, False), result.stderr
        assert b"no space is left" in result.stderr


def test_a_pipe_is_no_input_and_does_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    failed(spyreprof("report", pipe), saying="neither a file nor a folder")


def test_latency_targets_stand_beside_what_was_measured(tmp_path: Path) -> None:
    recording = decode_recording(tmp_path / "run.spyreprof").write()
    wide, tight = (spyreprof("report", recording, "--slo", f"itl_p99={limit}").stdout for limit in ("100s", "1us"))
    assert b"itl p99 at most 100 s: met" in wide
    assert b"not met" in tight
    # no request log: the question is named, not dropped
    asked = spyreprof("report", recording, "--slo", "ttft_p99=2s", "--all").stdout
    assert b"whether the TTFT target is met" in asked


def test_a_terminal_shows_commands_with_the_input_s_name_and_a_pipe_does_not(report_json: Path) -> None:
    shown = b"".join(on_a_terminal(report_json, NO_COLOR="1").split())
    assert b"".join((b"everything:spyreprofreport", str(report_json).encode(), b"--all")) in shown
    piped = spyreprof("report", report_json).stdout
    assert b"everything: spyreprof report INPUT --all" in piped
    assert str(report_json).encode() not in piped


def test_a_dash_is_no_file_to_write_to(report_json: Path, tmp_path: Path) -> None:
    refused = spyreprof("report", report_json, "--json", "--out", "-", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.decode() == "spyreprof: --out - names no file. Leave --out away to write to stdout.\n"
    assert not list(tmp_path.glob("-"))
