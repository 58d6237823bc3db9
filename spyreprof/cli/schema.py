"""`spyreprof schema`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer


class Document(str, Enum):
    """What has a published schema."""

    REPORT = "report"


def command(
    document: Annotated[Document, typer.Argument(help="The document to describe.")] = Document.REPORT,
    as_json: Annotated[bool, typer.Option("--json", help="Accepted everywhere; a schema is always JSON.")] = False,
) -> None:
    """Print the JSON Schema of report.json."""
    from spyreprof.report.schema import report_schema_bytes

    sys.stdout.buffer.write(report_schema_bytes())
    sys.stdout.buffer.flush()
