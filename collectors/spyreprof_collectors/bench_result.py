"""Finds the result file of a load generator and copies its numbers, never its texts."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors import folder
from spyreprof_collectors.manifest import CollectorState

MAX_FILE_BYTES = 64 * 2**20
MAX_FILES = 8
_MAX_CANDIDATES = 500

_SCALARS = frozenset(
    {
        "duration",
        "completed",
        "failed",
        "num_prompts",
        "max_concurrency",
        "request_rate",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "output_throughput",
    }
)
_STATISTIC = re.compile(r"(?:mean|median|std|p\d{1,3}(?:\.\d+)?)_(?:ttft|tpot|itl|e2el)_ms")
_LISTS = frozenset({"input_lens", "output_lens", "reasoning_lens", "max_tokens", "ttfts", "start_times"})
_NESTED_LISTS = frozenset({"itls"})


def collect(recording: Path, command: Sequence[str], started_epoch_ns: int) -> CollectorState:
    """Copy every result that was written since the program started into the recording.

    Looks into the working folder and the files and folders that the command names, not below them.

    Args:
        recording: the recording folder.
        command: the program's command line.
        started_epoch_ns: wall-clock time of the start; older files belong to another run.
    """
    copied, too_large = 0, 0
    for path in _candidates(recording, command, started_epoch_ns):
        if path.stat().st_size > MAX_FILE_BYTES:
            too_large += 1
            continue
        result = numbers_of(path)
        if result is None:
            continue
        if copied == MAX_FILES:
            return CollectorState("requests", "partial", f"only the {MAX_FILES} newest result files were taken")
        folder.write_json(recording / layout.BENCH / f"{copied}.json", result)
        copied += 1
    if copied:
        return CollectorState("requests", "ok")
    reason = "no load generator wrote a result file in the working folder or a folder that the command names"
    if too_large:
        reason = f"a JSON file of more than {MAX_FILE_BYTES >> 20} MB was left alone"
    return CollectorState(
        "requests", "unavailable", reason, "run `vllm bench serve --save-result --save-detailed` in the program"
    )


def numbers_of(path: Path) -> dict[str, object] | None:
    """Read a result in the form of `vllm bench serve`; None when the file holds something else."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or "completed" not in document:
        return None
    if "ttfts" not in document and "mean_ttft_ms" not in document:
        return None
    numbers: dict[str, object] = {}
    for key, value in document.items():
        if key in _SCALARS or _STATISTIC.fullmatch(key):
            if (number := _number(value)) is not None:
                numbers[key] = number
        elif key in _LISTS and isinstance(value, list):
            numbers[key] = [_number(item) for item in value]
        elif key in _NESTED_LISTS and isinstance(value, list):
            numbers[key] = [
                [gap for gap in map(_number, item) if gap is not None] if isinstance(item, list) else None
                for item in value
            ]
        elif key == "errors" and isinstance(value, list):
            # An error's text may quote a prompt; that there was one is all that counts.
            numbers[key] = [bool(item) for item in value]
        elif key == "finish_reasons" and isinstance(value, list):
            numbers[key] = [_reason(item) for item in value]
    return numbers


def _candidates(recording: Path, command: Sequence[str], started_epoch_ns: int) -> list[Path]:
    found: dict[Path, int] = {}
    for path in _json_files(command):
        try:
            status = path.stat()
            resolved = path.resolve()
        except OSError:
            continue
        if status.st_mtime_ns >= started_epoch_ns and recording not in resolved.parents and path.is_file():
            found[resolved] = status.st_mtime_ns
        if len(found) >= _MAX_CANDIDATES:
            break
    return sorted(found, key=lambda path: (-found[path], path))


def _json_files(command: Sequence[str]) -> Iterator[Path]:
    for word in command:
        for text in (word, word.partition("=")[2]):
            # os.path, unlike pathlib, takes a text that can be no path for one that does not exist
            if text.endswith(".json") and os.path.isfile(text):  # noqa: PTH113
                yield Path(text)
            elif os.path.isdir(text):  # noqa: PTH112
                yield from _in_folder(Path(text))
    yield from _in_folder(Path())


def _in_folder(path: Path) -> Iterator[Path]:
    try:
        with os.scandir(path) as entries:
            yield from (Path(entry.path) for entry in entries if entry.name.endswith(".json"))
    except OSError:
        return


def _reason(value: object) -> str | None:
    """One of a few words that are common knowledge: a text of somebody else is "other"."""
    if not value:
        return None
    return value if isinstance(value, str) and value in layout.FINISH_REASONS else "other"


def _number(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None
