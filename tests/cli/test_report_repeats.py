"""`report` of a repeated recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import MS, SECOND, START_NS, RecordingBuilder, decode_name
from report_verbs import spyreprof

from spyreprof.recording.pack import pack


def decoding(path: Path, step_ms: int, *, ended: bool = True) -> RecordingBuilder:
    """A minute of decode whose steps take a given time, and 20 ms of nothing between them."""
    end_ns = START_NS + 60 * SECOND if ended else None
    recording = RecordingBuilder(path, end_ns=end_ns).process(end_ns=end_ns)
    return recording.steps(
        (START_NS + SECOND + i * (step_ms + 20) * MS, START_NS + SECOND + i * (step_ms + 20) * MS + step_ms * MS,
         decode_name(seq_len_sum=64 + i))
        for i in range(500)
    )  # fmt: skip


def repeated(path: Path) -> Path:
    """Four runs of five: the third decodes slowest, the last was cut off with the recorder."""
    for k, step_ms in enumerate((50, 52, 60), start=1):
        run = decoding(path / f"runs/{k}", step_ms)
        run.manifest["repeat"] = {"k": k, "of": 5}
        run.write()
    decoding(path / "runs/4", 50, ended=False).write()
    listed = [{"k": k} for k in range(1, 5)]
    (path / "manifest.json").write_text(json.dumps({"schema_version": 1, "repeat_count": 5, "repeats": listed}))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeated(tmp_path_factory.mktemp("repeats") / "run.spyreprof")


def as_json(path: Path) -> dict[str, Any]:
    done = spyreprof("report", path, "--json")
    assert done.returncode == 0, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_median_run_is_reported_with_the_noise_floor_of_the_complete_ones(path: Path) -> None:
    report = as_json(path)
    assert report["run"]["repeat"] == {"k": 2, "of": 5}
    assert [(run["k"], run["state"], run["shown"]) for run in report["repeats"]] == [
        (1, "complete", False),
        (2, "complete", True),
        (3, "complete", False),
        (4, "cut_off", False),
    ]
    floor = report["noise_floor"]
    assert floor["runs"] == [1, 2, 3]
    metrics = {metric["metric"]: metric for metric in floor["metrics"]}
    assert metrics["decode_step_p50"]["values"] == [50e6, 52e6, 60e6]
    assert metrics["decode_step_p50"]["relative_spread"] == pytest.approx(10 / 52, rel=1e-5)
    assert metrics["output_tokens_per_s"]["values"] == [
        pytest.approx(1000 / 70, rel=0.01),
        pytest.approx(1000 / 72, rel=0.01),
        pytest.approx(1000 / 80, rel=0.01),
    ]
    assert metrics["ttft_p50"]["median"] is None
    assert report["throughput"]["output_tokens"]["per_s"] == metrics["output_tokens_per_s"]["values"][1]
    assert any("Run 4 of 5 does not count as a repeat" in note for note in report["quality"]["notes"])


def test_a_packed_one_is_reported_as_its_folder_is(path: Path, tmp_path: Path) -> None:
    assert as_json(pack(path, tmp_path / "p.spyreprof.zip")) == as_json(path)


def test_one_run_is_reported_alone(path: Path) -> None:
    report = as_json(path / "runs/3")
    assert report["run"]["repeat"] == {"k": 3, "of": 5}
    assert (report["noise_floor"], report["repeats"]) == (None, [])


def test_the_terminal_shows_both(path: Path) -> None:
    drawn = spyreprof("report", path).stdout.decode()
    assert "Noise floor, over 3 runs" in drawn
    assert "run 4         cut off, not judged" in drawn
    assert "repeat 2 of 5" in drawn


def test_strict_names_the_run_that_was_cut_off(path: Path) -> None:
    done = spyreprof("report", path, "--strict")
    assert done.returncode == 3
    assert b"Strict: Run 4 of the repeats was cut off or cannot be read." in done.stderr


def test_latency_targets_are_judged_in_the_run_that_is_shown(path: Path) -> None:
    drawn = spyreprof("report", path, "--slo", "itl_p99=1ms").stdout.decode()
    assert "itl p99 at most 1.00 ms: not met" in drawn


def test_a_recording_of_which_no_run_can_be_read_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 1, "repeats": [{"k": 1}]}))
    done = spyreprof("report", tmp_path)
    assert done.returncode == 2
    assert b"No run of" in done.stderr
    assert b"Traceback" not in done.stderr
