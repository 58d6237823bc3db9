"""What files of call stacks show, for a terminal: how good the data is, then which functions hold the weight."""

from __future__ import annotations

from collections.abc import Iterator

from spyreprof.report.figures import spell
from spyreprof.report.model import Report
from spyreprof.report.page import Column, Page
from spyreprof.report.stack_model import FunctionWeight, StackFileReport, StackProfileReport
from spyreprof.units import format_share

FILES_SHOWN = 4
PROFILES_SHOWN = 3
FUNCTIONS_SHOWN = 5
NOTES_SHOWN = 4
NAME_CELLS = 100

_TITLES = {
    "speedscope": "speedscope",
    "collapsed_stacks": "collapsed stacks",
    "trace": "samples beside the events of a trace",
}
_SECONDS = {"us": 1e-6, "ms": 1e-3}


def draw_stack_data(page: Page, report: Report, show_all: bool) -> None:
    """What the weights below are made from, and what is wrong with it."""
    if not report.stack_files:
        return
    shown = report.stack_files if show_all else report.stack_files[:FILES_SHOWN]
    for index, file in enumerate(shown):
        page.labelled("Stacks" if index == 0 else "", _read(file, show_all))
    if len(report.stack_files) > len(shown):
        page.labelled("", f"{len(report.stack_files) - len(shown)} more files of stacks: --all")
    notes = list(_notes(report))
    told = notes if show_all else notes[:NOTES_SHOWN]
    for sentence in told:
        page.labelled("", sentence)
    if len(notes) > len(told):
        page.labelled("", f"{len(notes) - len(told)} more about stacks: --all")
    page.blank()


def _read(file: StackFileReport, show_all: bool) -> str:
    dropped = f"{sum(part.samples for part in file.dropped):,} dropped"
    why = "; ".join(f"{part.what} {part.samples:,}" for part in file.dropped)
    parts = [f"{file.profiles_read:,} profile{'' if file.profiles_read == 1 else 's'} read"]
    if file.profiles_without_weight:
        parts.append(f"{file.profiles_without_weight:,} of them without weight")
    parts += [f"{_samples(file.samples_read)} read", f"{file.samples_kept:,} kept"]
    # of a profile that is listed the reasons stand among the sentences below
    told = why and (show_all or file.profiles_without_weight)
    parts.append(f"{dropped} ({why})" if told else dropped)
    return f"file {file.file} ({_TITLES.get(file.kind, file.kind)}): {', '.join(parts)}"


def _samples(number: int) -> str:
    return f"{number:,} sample{'' if number == 1 else 's'}"


def _notes(report: Report) -> Iterator[str]:
    for file in report.stack_files:
        for one in file.profiles:
            for note in one.notes:
                yield f"{_place(report, file, one)}: {note}"


def _place(report: Report, file: StackFileReport, one: StackProfileReport) -> str:
    of = f"file {file.file}, " if len(report.stack_files) > 1 else ""
    return f"{of}profile {one.profile}"


def draw_stacks(page: Page, report: Report, show_all: bool) -> None:
    """Which functions hold the weight of each profile, and how much of it waits."""
    profiles = [(file, one) for file in report.stack_files for one in file.profiles]
    for file, one in profiles if show_all else profiles[:PROFILES_SHOWN]:
        page.blank()
        name = f" {one.name}" if one.name else ""
        page.paragraph(f"Stacks, {_place(report, file, one)}{name}, in % of {_weight(one)}", style="bold")
        page.paragraph(f"{_samples(one.samples_kept)}; functions {one.functions_total:,}; {_waiting(one)}", indent=2)
        waits = one.waiting_ratio is not None
        columns = [Column("self"), Column("total"), *([Column("waits", numeric=False)] if waits else [])]
        columns.append(Column("function", numeric=False))
        page.table(columns, [_row(function, waits, show_all) for function in _chosen(one, show_all)], indent=2)
    total = sum(file.profiles_total for file in report.stack_files)
    shown = len(profiles) if show_all else min(len(profiles), PROFILES_SHOWN)
    if total > shown:
        listed = ": --all" if not show_all else " are not listed"
        page.paragraph(f"{total - shown:,} more profiles of stacks{listed}", indent=2)


def _weight(one: StackProfileReport) -> str:
    if one.unit == "samples":
        return f"a weight of {spell(one.weight, '')} (the file tells no unit: counted as samples, not as time)"
    if one.unit in _SECONDS:
        return spell(one.weight * _SECONDS[one.unit], "s")
    return spell(one.weight, one.unit)


def _waiting(one: StackProfileReport) -> str:
    if one.waiting_ratio is None:
        return f"waiting unknown: {one.waiting_reason or 'no reason given'}"
    return f"at least {format_share(one.waiting_ratio)} of it waits"


def _chosen(one: StackProfileReport, show_all: bool) -> list[FunctionWeight]:
    """Those with the most self weight and those with the most total weight, by self weight."""
    if show_all:
        return list(one.functions)
    by_total = sorted(one.functions, key=lambda function: -function.total_weight)[:FUNCTIONS_SHOWN]
    first = one.functions[:FUNCTIONS_SHOWN]
    return [function for function in one.functions if function in first or function in by_total]


def _row(function: FunctionWeight, waits: bool, show_all: bool) -> list[str]:
    name = function.name if show_all or len(function.name) <= NAME_CELLS else f"{function.name[: NAME_CELLS - 3]}..."
    known = [("yes" if function.waits else "")] if waits else []
    return [format_share(function.self_ratio), format_share(function.total_ratio), *known, name]
