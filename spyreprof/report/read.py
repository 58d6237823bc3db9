"""Reading a report back: tolerant of fields we do not know, strict about everything else."""

from __future__ import annotations

from pathlib import Path

import msgspec

from spyreprof.errors import UserError
from spyreprof.report.model import SCHEMA_VERSION, Report

# A report holds summaries only. The largest one seen in tests is far below a megabyte.
MAX_BYTES = 64 * 1024 * 1024


class _Version(msgspec.Struct):
    schema_version: int


def read_report(path: Path) -> Report:
    """Read a report.json.

    Raises:
        UserError: the file cannot be read, is no report, or was written by a newer spyreprof.
    """
    return decode_report(_content(path), str(path))


def decode_report(content: bytes, name: str) -> Report:
    """Decode the bytes of a report.json; `name` is what messages call it.

    Raises:
        UserError: the content is no report, or a newer spyreprof wrote it.
    """
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{name} is not a spyreprof report: {error}.",
            "`spyreprof report RECORDING --json --out report.json` makes one.",
        ) from error
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{name} has schema version {version}; this spyreprof reads up to {SCHEMA_VERSION}.",
            "Update spyreprof, or have the report made again by this release.",
        )
    try:
        report = msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{name} is damaged: {error}.", "Make it again from the recording with `spyreprof report`."
        ) from error
    if _holds_huge_number(msgspec.to_builtins(report)):
        raise UserError(
            f"{name} is damaged: a number in it is too large.",
            "Make it again from the recording with `spyreprof report`.",
        )
    return report


def _holds_huge_number(value: object) -> bool:
    """Whether a whole number needs more than 64 bits, which none that we write does."""
    if isinstance(value, dict):
        return any(map(_holds_huge_number, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_huge_number, value))
    return isinstance(value, int) and abs(value) >= 2**63


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", "Give a report.json or a recording.") from error
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MiB, which no report is.", "Give a report.json.")
    return content
