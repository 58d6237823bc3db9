"""Tables as a recording gives them, of what the synthetic engine of `step_engine.py` left."""

from __future__ import annotations

from typing import Any

import pandas as pd
from step_engine import Run

from spyreprof.recording.schema import STEPS, Column


def table(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table with the declared columns; what a row lacks is missing."""
    return pd.DataFrame(
        {c.name: pd.array([row.get(c.name, pd.NA) for row in rows], dtype=c.dtype) for c in columns}  # type: ignore[call-overload]
    )


def step_table(made: Run, executed: bool = True) -> pd.DataFrame:
    """The step table of a run; without what was executed, where nobody tells."""
    usual = {
        "writer": "1-a",
        "source": "api" if executed else "annotation",
        "rank": 0,
        "compiles": 0,
        "profiled": False,
    }
    hidden = () if executed else tuple(name for name in made.rows[0] if name.startswith("executed_"))
    return table(STEPS, [{**{k: v for k, v in row.items() if k not in hidden}, **usual} for row in made.rows])
