"""From a Report to bytes: rounding, refusal of numbers that are none, and the report's own identifier.

The same inputs give the same bytes: nothing here looks at a clock, and the order of fields is the model's.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from spyreprof.report.model import Report
from spyreprof.report.visible import visible

SIGNIFICANT_DIGITS = 6


def seal(report: Report) -> Report:
    """Bring a report into its canonical form and give it its identifier.

    Floats are rounded to six significant digits, control characters in texts are made visible, NaN and
    infinities become None with an entry under `not_judged`. Sealing a sealed report changes nothing.

    Raises:
        ValueError: a field that must hold a number holds none; an analyzer's bug, not the user's.
    """
    absent: list[str] = []
    content = canonical(msgspec.to_builtins(report), "", absent)
    for path in absent:
        content["not_judged"].append(
            {
                "topic": path,
                "reason": "The computation gave no finite number.",
                "obtain": "Report it as an error in spyreprof, with this file.",
            }
        )
    content["report_id"] = ""
    try:
        # Through the types, so that an int in a float field becomes the float that a reader would get back.
        unnamed = msgspec.convert(content, Report)
    except msgspec.ValidationError as error:
        raise ValueError(f"the report does not fit its own model: {error}") from error
    fields = msgspec.to_builtins(unnamed)
    del fields["report_id"]
    digest = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
    return msgspec.structs.replace(unnamed, report_id=f"sha256:{digest}")


def dump(report: Report) -> bytes:
    """Encode a report as `report.json`: UTF-8, two-space indent, final newline.

    Raises:
        ValueError: as `seal`.
    """
    return msgspec.json.format(msgspec.json.encode(seal(report)), indent=2) + b"\n"


def canonical(value: Any, path: str, absent: list[str]) -> Any:
    """Round, and make control characters visible; what is no number becomes None, and its path goes to `absent`."""
    if isinstance(value, dict):
        return {key: canonical(part, f"{path}.{key}" if path else key, absent) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(part, f"{path}[{index}]", absent) for index, part in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            absent.append(path)
            return None
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, str):
        return visible(value)
    return value
