"""Calibration runs in the program's interpreter, prints one JSON object and ends by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_program import AGENT


def calibrate(*arguments: str, python: str = sys.executable, paths: str = "") -> tuple[int, dict[str, Any]]:
    ended = subprocess.run(
        [python, str(AGENT / "calibrate.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
    )
    (line,) = ended.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    return ended.returncode, result


def test_rates_and_costs_for_each_thread_count(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    code, result = calibrate("--threads", "1,2", "--seconds", "0.2", "--affinity", "0")
    assert (code, result["error"]) == (0, None)
    assert result["torch"] == torch.__version__
    assert result["affinity"] == [0]
    assert [entry["threads"] for entry in result["results"]] == [1, 2]
    for entry in result["results"]:
        repeats = entry["repeats"]
        assert entry["gemm_flops_per_s"]["float32"] == repeats["gemm_flops_per_s"]["best"]
        assert entry["read_bytes_per_s"] == repeats["read_bytes_per_s"]["best"]
        assert entry["dispatch_ns_per_operator"] == repeats["dispatch_ns_per_operator"]["best"]
        for name in ("gemm_flops_per_s", "read_bytes_per_s"):
            assert repeats[name]["best"] >= repeats[name]["median"] > 0
            assert repeats[name]["n"] >= 3
        assert 0 < repeats["dispatch_ns_per_operator"]["best"] <= repeats["dispatch_ns_per_operator"]["median"]
        cache = repeats["read_bytes_per_s"]["last_level_cache_bytes"]
        assert cache is None or repeats["read_bytes_per_s"]["buffer_bytes"] >= 2 * cache


def test_a_program_without_torch_is_told_in_the_result(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    code, result = calibrate(paths=str(tmp_path))
    assert code == 0
    assert result["error"] == "ImportError: no torch here"
    assert result["results"] == []


def test_what_an_import_prints_does_not_reach_the_result(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os\nprint('banner')\nos.write(1, b'more')\nraise ImportError('x')")
    code, result = calibrate(paths=str(tmp_path))
    assert (code, result["error"]) == (0, "ImportError: x")
