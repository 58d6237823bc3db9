"""A comparison for a terminal: the verdict, what changed, where, and under which conditions."""

from __future__ import annotations

from spyreprof.report.diff.compare import spell_range
from spyreprof.report.diff.model import Attribution, Change, Condition, Diff, FindingChange, Outcome, Overall, Side
from spyreprof.report.figures import UNKNOWN, spell, spell_ratio
from spyreprof.report.page import Column, Page
from spyreprof.units import format_share

PARTS_SHOWN = 8
_STYLES: dict[Overall, str] = {
    "faster": "bold green",
    "slower": "bold red",
    "trade_off": "bold yellow",
    "cannot_tell": "bold yellow",
    "withheld": "bold yellow",
}
_OUTCOMES: dict[Outcome, str] = {
    "faster": "faster",
    "slower": "slower",
    "cannot_tell": "cannot tell",
    "withheld": "withheld",
}
_PER = {"output_token": "output token", "window_second": "second of the window"}


def render(
    diff: Diff, width: int = 80, *, show_all: bool = False, color: bool = False, ascii_only: bool = False
) -> str:
    """Draw a comparison.

    Args:
        diff: from `compare`.
        width: cells per line; no line is wider.
        show_all: conditions that are the same, small parts, and findings that stayed, too.
        color: write ANSI styles.
        ascii_only: for terminals whose encoding has no more.
    """
    page = Page(width, ascii_only)
    for label, side in (("A", diff.a), ("B", diff.b)):
        page.flow(label, side_items(side))
        page.labelled("", side.headline)
    page.blank()
    line = page.text(diff.verdict.outcome.replace("_", " "), _STYLES[diff.verdict.outcome])
    line.append_text(page.text(f"  {diff.verdict.headline}", "bold"))
    page.labelled("VERDICT", line)
    page.labelled("", diff.verdict.reason)
    for condition in diff.conditions:
        if condition.bearing == "withholds" and condition.obtain:
            page.labelled("Needs", f"{condition.name}: {condition.obtain}")
    _conditions(page, diff, show_all)
    _changes(page, diff)
    _attribution(page, diff, show_all)
    _findings(page, diff, show_all)
    if not show_all:
        page.blank()
        page.labelled("Next", "everything: --all   as data: --json")
    return page.render(color=color)


def side_items(side: Side) -> list[str]:
    """What identifies a side."""
    items = [side.run_id or f"id {UNKNOWN}"]
    if side.started is not None:
        items.append(f"started {side.started}")
    items.append("one run" if side.runs == 1 else f"{side.runs} runs")
    confidence = f", confidence {side.confidence}" if side.confidence is not None else ""
    return [*items, f"{side.primary}{confidence}"]


def _conditions(page: Page, diff: Diff, show_all: bool) -> None:
    # What is unknown and of no consequence would only be in the way.
    shown = [c for c in diff.conditions if show_all or (c.bearing and (c.bearing != "noted" or c.state == "differs"))]
    same = [condition.name for condition in diff.conditions if condition.state == "same"]
    page.blank()
    page.paragraph("Conditions", style="bold")
    if shown:
        columns = [Column(name, numeric=False) for name in ("condition", "state", "means", "A and B")]
        page.table(columns, [condition_cells(condition) for condition in shown], indent=2)
    if not show_all and same:
        page.labelled("same", ", ".join(same), indent=2, label_width=6)


def condition_cells(condition: Condition) -> list[str]:
    """Name, state, meaning, and both values with what is to be said of them."""
    values = condition.a or UNKNOWN
    if condition.state != "same" or condition.a != condition.b:
        values = f"{values} | {condition.b or UNKNOWN}"
    note = f" ({condition.note})" if condition.note else ""
    return [condition.name, condition.state, (condition.bearing or "").replace("_", " "), f"{values}{note}"]


def _changes(page: Page, diff: Diff) -> None:
    page.blank()
    page.paragraph("What changed, from A to B", style="bold")
    if not diff.changes:
        page.paragraph("Nothing was measured.", indent=2)
        return
    columns = [Column("metric", numeric=False), Column("A"), Column("B"), Column("change")]
    columns += [Column("outcome", numeric=False), Column("range", numeric=False)]
    page.table(columns, [change_cells(change) for change in diff.changes], indent=2)
    told = [(change.noise, change.noise_basis) for change in diff.changes if change.noise is not None]
    for index, (noise, basis) in enumerate(dict.fromkeys(told)):
        page.labelled("noise" if index == 0 else "", f"{format_share(noise)}: {basis}", indent=2, label_width=7)


def change_cells(change: Change) -> list[str]:
    """Metric, both values, the change, what it means, and its range or why there is none."""
    per_s = change.metric.endswith("_per_s")
    # Of a rate the name has the unit.
    ends = [spell(value, "" if per_s else change.unit) for value in (change.a, change.b)]
    name = change.metric.replace("_per_s", "/s").replace("_", " ")
    if change.change is None:
        return [name, *ends, "", _OUTCOMES[change.outcome], change.reason or ""]
    range_ = spell_range(change).partition("(")[2].removesuffix(")")
    return [name, *ends, spell_ratio(change.change), _OUTCOMES[change.outcome], range_]


def _attribution(page: Page, diff: Diff, show_all: bool) -> None:
    found = diff.attribution
    page.blank()
    page.paragraph("Where it changed", style="bold")
    if found is None:
        page.paragraph(f"Not told: {diff.attribution_missing or UNKNOWN}.", indent=2)
        return
    for sentence in attribution_sentences(found):
        page.paragraph(sentence, indent=2)
    columns = [Column("part", numeric=False), Column("A ns"), Column("B ns"), Column("change ns")]
    parts = found.parts if show_all else found.parts[:PARTS_SHOWN]
    rows = [[part.id.replace(".", ": ").replace("_", " "), *numbers(part.a_ns, part.b_ns)] for part in parts]
    if len(parts) < len(found.parts):
        hidden = found.parts[len(parts) :]
        rows.append(
            [
                f"{len(hidden)} more: --all",
                *numbers(sum(part.a_ns for part in hidden), sum(part.b_ns for part in hidden)),
            ]
        )
    rows.append(["sum", *numbers(found.a_ns, found.b_ns)])
    page.table(columns, rows, indent=2)
    for phase in found.phases:
        page.labelled(phase.phase, phase_sentence(phase.by_steps_ns, phase.by_step_time_ns), indent=2, label_width=9)


def numbers(a_ns: int, b_ns: int) -> list[str]:
    """Both sides and the change of a part, in nanoseconds to the last digit so that they can be added up."""
    return [f"{a_ns:,}", f"{b_ns:,}", f"{b_ns - a_ns:+,}"]


def phase_sentence(by_steps_ns: int, by_step_time_ns: int) -> str:
    """Why the time of a phase changed."""
    return f"{by_steps_ns:+,} ns by the number of steps, {by_step_time_ns:+,} ns by the time of a step"


def attribution_sentences(found: Attribution) -> list[str]:
    """What the nanoseconds are for, and what they prove."""
    sentences = [f"Wall time per {_PER[found.basis]}, cut by what ran; the parts add up exactly."]
    if found.basis == "window_second":
        sentences.append("Output tokens are not counted on both sides, so these are shares of the time alone.")
    elif found.within_noise:
        sentences.append("The whole change is within the noise, so its parts prove nothing.")
    return sentences


def _findings(page: Page, diff: Diff, show_all: bool) -> None:
    moved = [finding for finding in diff.findings if show_all or finding.state != "same"]
    page.blank()
    page.paragraph("Findings", style="bold")
    for finding in moved:
        page.labelled(finding.state.replace("_", " "), finding_sentence(finding), indent=2, label_width=13)
    stayed = sum(finding.state == "same" for finding in diff.findings)
    if not moved:
        page.paragraph(f"{stayed} on both sides, none appeared or vanished.", indent=2)


def finding_sentence(finding: FindingChange) -> str:
    """The finding, and how severe it was on either side."""
    severities = " -> ".join(severity or "absent" for severity in (finding.a, finding.b))
    return f"{finding.id} {finding.title} ({severities})"
