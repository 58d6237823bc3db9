"""Which conditions two runs share. A condition that one of them does not tell is unknown, never the same."""

from __future__ import annotations

import msgspec

from spyreprof.report.diff.identity import identity
from spyreprof.report.diff.model import Condition
from spyreprof.report.diff.pair import Pair
from spyreprof.report.diff.settings import COMMAND, SETTING, SETTINGS, SOFTWARE, settings_and_versions
from spyreprof.report.diff.workload import workload


def compare_conditions(pair: Pair) -> tuple[Condition, ...]:
    """All conditions in the order in which a reader asks for them, each with what it means for the verdict."""
    return with_bearing((*identity(pair), *settings_and_versions(pair), *workload(pair)))


def with_bearing(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Say of each condition that is not the same what that means.

    Settings and versions are what a comparison may be about; where no setting that is known differs, what the commands
    say differently. Batch and context follow from what is under test where requests were the same.
    """
    by_name = {condition.name: condition for condition in conditions}
    under_test = {c.name for c in conditions if c.state == "differs" and c.name.startswith((SETTING, SOFTWARE))}
    told_by_command = by_name[COMMAND].state == "differs" and not any(name.startswith(SETTING) for name in under_test)
    if told_by_command:
        under_test.add(COMMAND)
    same_requests = all(c.state == "same" for c in conditions if c.needed_for == "requests")
    found = []
    for condition in conditions:
        if condition.state == "same":
            found.append(condition)
        elif condition.name in under_test:
            found.append(msgspec.structs.replace(condition, bearing="under_test", obtain=None))
        elif condition.needed_for == "nothing" or (told_by_command and condition.name == SETTINGS):
            found.append(msgspec.structs.replace(condition, bearing="noted"))
        elif condition.needed_for == "steps" and condition.state == "differs" and under_test and same_requests:
            found.append(msgspec.structs.replace(condition, bearing="follows"))
        else:
            found.append(msgspec.structs.replace(condition, bearing="withholds"))
    return tuple(found)
