"""The published JSON Schema of a report.

Strict, because it describes what we write: every field is present and no other is. Reading is tolerant
(`spyreprof.report.read`): a field added by a newer release of the same schema version is passed over.

`report.schema.json` beside this module is the same schema as a file, for people who validate without us.
"""

from __future__ import annotations

from typing import Any

import msgspec

from spyreprof.report.model import SCHEMA_VERSION, Report


def report_schema() -> dict[str, Any]:
    """Build the JSON Schema (draft 2020-12) of `report.json`."""
    return strict_schema(Report, "report", SCHEMA_VERSION)


def strict_schema(model: type[msgspec.Struct], title: str, version: int) -> dict[str, Any]:
    """Build the JSON Schema (draft 2020-12) of a document whose fields are all written."""
    schema = msgspec.json.schema(model)
    for definition in schema["$defs"].values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
            definition["additionalProperties"] = False
            for field in definition["properties"].values():
                # Defaults are for building a report in Python; a written report has every field.
                field.pop("default", None)
    schema["$defs"][model.__name__]["properties"]["schema_version"] = {"const": version}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"spyreprof {title}, schema version {version}",
        **schema,
    }


def report_schema_bytes() -> bytes:
    """The schema as it is committed and printed: two-space indent, final newline."""
    return msgspec.json.format(msgspec.json.encode(report_schema()), indent=2) + b"\n"
