"""What py-spy beside the program costs it: steps per second with and without, in slices of one run that take turns."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overhead_loop import compared, in_words, recording, rotated, rows

LOOP = Path(__file__).with_name("overhead_loop.py")
RATE_HZ = 50
SLICE_S = 4
# The shards are written every half second or less.
FLUSH_S = 1.0
START_S = 60.0


def measured(size: str, rounds: int) -> dict[str, Any]:
    """Run the loop once and sample it now and then; `skipped` says why where that is not possible."""
    py_spy = shutil.which("py-spy")
    if py_spy is None:
        return {"skipped": "py-spy is not on the path (pip install py-spy)"}
    slices: dict[str, list[tuple[int, int]]] = {"py_spy": [], "none": [], "none_again": []}
    cpu_s: list[float] = []
    with recording({"window": None}) as (folder, environment):
        command = [sys.executable, str(LOOP), size, "0"]
        loop = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not _runs(loop, folder):
                return {"skipped": "the loop did not start"}
            # the first look at a process reads its libraries into the page cache
            fault = _sample(py_spy, loop.pid)
            for number in range(0 if fault else rounds):
                for key in rotated(list(slices), number):
                    started_ns, before_s = time.monotonic_ns(), _children_cpu_s()
                    if key == "py_spy":
                        fault = fault or _sample(py_spy, loop.pid)
                        cpu_s.append(_children_cpu_s() - before_s)
                    else:
                        time.sleep(SLICE_S)
                    slices[key].append((started_ns, time.monotonic_ns()))
            time.sleep(FLUSH_S)
            starts = [row["t0"] for row in rows(folder, "steps")]
        finally:
            loop.kill()
            loop.wait()
    if fault is not None:
        return {"skipped": f"py-spy may not sample here: {fault}"}
    return {"version": _version(py_spy), "rounds": rounds, **rates(slices, starts, cpu_s)}


def rates(slices: Mapping[str, list[tuple[int, int]]], starts_ns: list[int], cpu_s: list[float]) -> dict[str, Any]:
    """Steps per second of each slice, as ratios to the slice without py-spy of the same round.

    Args:
        slices: (start, end) of each, ns, by what ran in it.
        starts_ns: when each step began.
        cpu_s: processor time of py-spy in each of its slices.
    """
    per_s = {
        key: [sum(start <= at < end for at in starts_ns) / ((end - start) / 1e9) for start, end in spans]
        for key, spans in slices.items()
    }
    ratios, noise = (
        [one / bare for one, bare in zip(per_s[key], per_s["none"], strict=True)] for key in ("py_spy", "none_again")
    )
    sampled_s = sum(end - start for start, end in slices["py_spy"]) / 1e9
    return {
        "loop": compared(ratios, noise),
        "steps_per_s": sum(per_s["none"]) / len(per_s["none"]),
        "cpu_ratio": sum(cpu_s) / sampled_s,
        "slice_s": sampled_s / len(cpu_s),
    }


def _sample(py_spy: str, pid: int) -> str | None:
    """Sample for one slice; the value is why that failed, or None."""
    command = [py_spy, "record", "--nonblocking", "--pid", str(pid), "--rate", str(RATE_HZ)]
    command += ["--duration", str(SLICE_S), "--format", "raw", "--threads", "--output", os.devnull]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return said[0] if said else f"it ended with {done.returncode}"


def _runs(loop: subprocess.Popen[bytes], folder: Path) -> bool:
    until = time.monotonic() + START_S
    while time.monotonic() < until and loop.poll() is None:
        if rows(folder, "steps"):
            return True
        time.sleep(0.2)
    return False


def _children_cpu_s() -> float:
    """Processor time of the children that have ended; the loop has not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _version(py_spy: str) -> str:
    return subprocess.run([py_spy, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def print_table(result: Mapping[str, Any]) -> None:
    """Print the comparison, or why there is none."""
    print(f"\n(e) py-spy --nonblocking at {RATE_HZ} Hz: ", end="")
    if "skipped" in result:
        print(f"skipped, {result['skipped']}")
        return
    print(f"{result['version']}, slices of {result['slice_s']:.1f} s with its start, {result['rounds']} rounds")
    print(f"    steps per second with it over without: {in_words(result['loop'])}")
    print(f"    py-spy itself takes {result['cpu_ratio']:.1%} of one processor; {result['steps_per_s']:.0f} steps/s")
