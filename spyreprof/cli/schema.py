"""`spyreprof schema`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer


class Document(str, Enum):
    """What has a published schema."""

    REPORT = "report"
    DIFF = "diff"


def command(
    document: Annotated[Document, typer.Argument(help="The document to describe.")] = Document.REPORT,
    as_json: Annotated[bool, typer.Option("--json", help="Accepted everywhere; a schema is always JSON.")] = False,
) -> None:
    """Print the JSON Schema of report.json, or of what `diff --json` writes."""
    from spyreprof.report.diff.schema import diff_schema_bytes
    from spyreprof.report.schema import report_schema_bytes

    sys.stdout.buffer.write(report_schema_bytes() if document is Document.REPORT else diff_schema_bytes())
    sys.stdout.buffer.flush()
