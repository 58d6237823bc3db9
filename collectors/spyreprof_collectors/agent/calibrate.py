"""Peaks of this machine as the profiled program's own torch reaches them: run in the program's interpreter.

    PROGRAM_PYTHON calibrate.py --threads 1,2 --seconds 2 [--affinity 0,1]

Prints one JSON object. Stands alone: standard library and the program's torch. The CPU only: no call here brings
up an accelerator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GEMM_SIZE = 1024
READ_BYTES = 256 << 20
MAX_READ_BYTES = 2 << 30
# A buffer of less than this many last-level caches would in part be read from cache.
READ_CACHES = 4
# At most this part of the free memory is taken: the program about to run needs the rest.
MEMORY_SHARE = 0.25
DISPATCH_BLOCK = 1000
MIN_REPEATS = 3
# Parts of the time for each thread count; the rest is warm-up.
GEMM_PART, READ_PART, STREAM_PART, DISPATCH_PART = 0.4, 0.25, 0.15, 0.2


def main() -> None:
    """Measure and print; every failure is told inside the JSON, and the exit code is 0."""
    options = _parse()
    # Whatever an import prints must not reach the one who reads the JSON.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    result: dict[str, object] = {"t": time.monotonic_ns(), "torch": None, "affinity": [], "results": [], "error": None}
    try:
        _measure(options, result)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    json.dump(result, out)
    out.write("\n")
    out.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=_numbers, default=[1], help="thread counts, such as 1,2")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each thread count")
    parser.add_argument("--affinity", type=_numbers, default=None, help="CPUs to run on, such as 0,1")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _measure(options: argparse.Namespace, result: dict[str, object]) -> None:
    # Before torch is imported: OpenMP reads the affinity when it is loaded.
    if options.affinity:
        os.sched_setaffinity(0, options.affinity)
    result["affinity"] = sorted(os.sched_getaffinity(0))
    import torch

    result["torch"] = str(torch.__version__)
    results: list[dict[str, object]] = []
    result["results"] = results
    with torch.inference_mode():
        matrix, vector, product = _read_buffers(torch)
        left, right, target = (torch.ones(GEMM_SIZE, GEMM_SIZE) for _ in range(3))
        one, sum_ = torch.ones(1), torch.ones(1)

        def add_block() -> None:
            add = torch.add
            for _ in range(DISPATCH_BLOCK):
                add(one, one, out=sum_)

        for threads in options.threads:
            torch.set_num_threads(threads)
            gemm_ns = _repeat(lambda: torch.mm(left, right, out=target), options.seconds * GEMM_PART)
            read_ns = _repeat(lambda: torch.mv(matrix, vector, out=product), options.seconds * READ_PART)
            stream_ns = _repeat(matrix.sum, options.seconds * STREAM_PART)
            block_ns = _repeat(add_block, options.seconds * DISPATCH_PART)
            flops = 2 * GEMM_SIZE**3
            read_bytes = matrix.numel() * matrix.element_size()
            gemm = _rates([flops * 1e9 / ns for ns in gemm_ns])
            read = _rates([read_bytes * 1e9 / ns for ns in read_ns])
            stream = _rates([read_bytes * 1e9 / ns for ns in stream_ns])
            dispatch = _costs([ns / DISPATCH_BLOCK for ns in block_ns])
            results.append(
                {
                    "threads": threads,
                    "gemm_flops_per_s": {"float32": gemm["best"]},
                    # What a matrix-vector product reaches, which is what decode does. Some BLAS libraries run it
                    # on one thread however many there are; a plain sum shows what the memory itself can do.
                    "read_bytes_per_s": read["best"],
                    "stream_bytes_per_s": stream["best"],
                    "dispatch_ns_per_operator": dispatch["best"],
                    "repeats": {
                        "gemm_flops_per_s": {**gemm, "size": GEMM_SIZE},
                        "read_bytes_per_s": {
                            **read,
                            "buffer_bytes": read_bytes,
                            "last_level_cache_bytes": _last_level_cache_bytes(),
                        },
                        "stream_bytes_per_s": {**stream, "buffer_bytes": read_bytes},
                        "dispatch_ns_per_operator": {**dispatch, "operators": DISPATCH_BLOCK},
                    },
                }
            )


def _read_buffers(torch: Any) -> tuple[Any, Any, Any]:
    """Make a matrix far larger than the last-level cache, as memory permits, and the vectors to multiply it with."""
    wanted = min(max(READ_BYTES, READ_CACHES * (_last_level_cache_bytes() or 0)), MAX_READ_BYTES)
    free = _free_memory_bytes()
    if free is not None:
        wanted = min(wanted, int(free * MEMORY_SHARE))
    columns = 8192
    rows = max(wanted // (4 * columns), 1)
    return torch.ones(rows, columns), torch.ones(columns), torch.ones(rows)


def _repeat(work: Callable[[], object], seconds: float) -> list[int]:
    """Time the work again and again, after one run to warm up."""
    work()
    times_ns: list[int] = []
    deadline_ns = time.perf_counter_ns() + int(seconds * 1e9)
    while len(times_ns) < MIN_REPEATS or time.perf_counter_ns() < deadline_ns:
        start_ns = time.perf_counter_ns()
        work()
        times_ns.append(time.perf_counter_ns() - start_ns)
    return times_ns


def _rates(values: list[float]) -> dict[str, float]:
    """Of rates the best is the highest: whatever disturbs a repeat only slows it."""
    return {"best": max(values), "median": statistics.median(values), "n": len(values)}


def _costs(values: list[float]) -> dict[str, float]:
    return {"best": min(values), "median": statistics.median(values), "n": len(values)}


def _last_level_cache_bytes() -> int | None:
    folder = "/sys/devices/system/cpu/cpu0/cache"
    sizes: dict[int, int] = {}
    try:
        for name in os.listdir(folder):
            if name.startswith("index"):
                level = int(_read(f"{folder}/{name}/level"))
                size = _read(f"{folder}/{name}/size")
                sizes[level] = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return sizes[max(sizes)] if sizes else None


def _free_memory_bytes() -> int | None:
    """Free memory of the machine, or of the container where that is less."""
    found: list[int] = []
    try:
        for line in _read("/proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
        # "max" where the container has no limit of its own
        found.append(int(_read("/sys/fs/cgroup/memory.max")) - int(_read("/sys/fs/cgroup/memory.current")))
    except (OSError, ValueError, IndexError):
        pass
    return max(min(found), 0) if found else None


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


if __name__ == "__main__":
    main()
