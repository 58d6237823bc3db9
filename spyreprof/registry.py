"""The one place that knows the built-in collectors and analyzers.

Everything here imports lazily: `record` must start with the standard library and Typer alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spyreprof.findings import Diagnosis
    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.diagnose import Targets
    from spyreprof_collectors.launcher import RecordOptions


def record(options: RecordOptions) -> int:
    """Run a program under the recorder; the value is the exit code to leave with."""
    from spyreprof_collectors.launcher import record as run

    return run(options)


def diagnose(inputs: AnalysisInputs, targets: Targets | None = None) -> Diagnosis:
    """Run every analyzer over one recording."""
    from spyreprof.rules import load_rules
    from spyreprof_analyzers.diagnose import Targets, diagnose

    return diagnose(inputs, load_rules(), targets or Targets())


def rules() -> RuleBook:
    """The built-in rules."""
    from spyreprof.rules import load_rules

    return load_rules()
