"""The published JSON Schema of a comparison; `diff.schema.json` beside this module is the same as a file."""

from __future__ import annotations

import msgspec

from spyreprof.report.diff.model import SCHEMA_VERSION, Diff
from spyreprof.report.schema import strict_schema


def diff_schema_bytes() -> bytes:
    """The schema as it is committed and printed: two-space indent, final newline."""
    return msgspec.json.format(msgspec.json.encode(strict_schema(Diff, "diff", SCHEMA_VERSION)), indent=2) + b"\n"
