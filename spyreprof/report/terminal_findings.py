"""Findings in the terminal: what was found, what speaks against it, what to try, and how to refute that."""

from __future__ import annotations

import shlex

from spyreprof.findings import Advice, BoundClass, Finding, Severity
from spyreprof.report.figures import ORIGIN_TAGS, UNKNOWN, count, spell, spell_change, spell_evidence
from spyreprof.report.model import Report, Run
from spyreprof.report.page import Column, Page
from spyreprof.units import format_share

FINDINGS_SHOWN = 3
EVIDENCE_SHOWN = 6

_SEVERITY_STYLES: dict[Severity, str] = {
    "high": "bold red",
    "medium": "bold yellow",
    "low": "cyan",
    "info": "dim",
}
_YOUR_COMMAND = "<your command>"
# The rule whose finding says the same as a verdict.
RULES_OF_VERDICTS: dict[BoundClass, str] = {
    "prefill_bound": "SPY-PRE-001",
    "decode_bandwidth_bound": "SPY-DEC-001",
    "interconnect_bound": "SPY-NET-001",
    "host_bound": "SPY-HST-001",
    "queue_bound": "SPY-QUE-001",
    "kv_capacity_bound": "SPY-KVC-001",
    "compile_bound": "SPY-CMP-001",
    "inefficient_kernel": "SPY-KRN-001",
    "load_limited": "SPY-LOD-001",
}


def deciding_finding(report: Report) -> Finding | None:
    """The finding that says what the verdict says; where none does, the first."""
    rule = RULES_OF_VERDICTS.get(report.verdict.primary)
    said = (finding for finding in report.findings if finding.id == rule)
    return next(said, next(iter(report.findings), None))


def command_to_test(run: Run, advice: Advice) -> list[str]:
    """The words of the command that tests an advice; with the user's own only if all of it is public."""
    command = None
    if run.command_complete and run.command_redacted:
        command = _shell_words(run.command_redacted)
    arguments = _shell_words(advice.test_arguments) or []
    return ["spyreprof", "record", "--", *_without(command or [_YOUR_COMMAND], arguments), *arguments]


def _without(command: list[str], arguments: list[str]) -> list[str]:
    """The command less the options that the arguments set anew: given twice, they would puzzle a reader."""
    replaced = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    kept: list[str] = []
    drop_value = False
    for word in command:
        name, equals, _ = word.partition("=")
        if name in replaced:
            drop_value = not equals
            continue
        if not (drop_value and not word.startswith("--")):
            kept.append(word)
        drop_value = False
    return kept


def _shell_words(command: str) -> list[str] | None:
    """Quoted words of a command; None for what no shell takes: a report.json from elsewhere may hold it."""
    try:
        return [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:
        return None


def draw_findings(page: Page, report: Report, show_all: bool) -> None:
    """The first few findings in full, or all of them."""
    page.blank()
    if not report.findings:
        # An undecided run is not a healthy one.
        undecided = report.verdict.primary == "undetermined"
        why = "too little could be judged" if undecided else "nothing in this recording asks for a change"
        page.paragraph(f"No findings: {why}.", style="bold")
        return
    shown = report.findings if show_all else report.findings[:FINDINGS_SHOWN]
    for number, finding in enumerate(shown, start=1):
        if number > 1:
            page.blank()
        _finding(page, report, number, finding, show_all)
    if len(report.findings) > len(shown):
        page.blank()
        hidden = len(report.findings) - len(shown)
        page.paragraph(f"{hidden} more finding{'s' if hidden > 1 else ''}: --all")


def _finding(page: Page, report: Report, number: int, finding: Finding, show_all: bool) -> None:
    head = page.text(f"{number} ").append(finding.severity.upper(), _SEVERITY_STYLES[finding.severity])
    head.append_text(page.text(f"  {finding.id}  {finding.title}", "bold"))
    page.labelled("", head, label_width=0)
    share = None if finding.share is None else format_share(finding.share)
    of_window = "" if share is None or share in finding.text else f" Concerns {share} of the window."
    page.paragraph(f"{finding.text}{of_window}", indent=2)
    by_id = {evidence.id: evidence for evidence in report.evidence}
    known = [by_id[name] for name in finding.evidence if name in by_id]
    listed = known if show_all else known[:EVIDENCE_SHOWN]
    for index, evidence in enumerate(listed):
        page.labelled("Evidence" if index == 0 else "", spell_evidence(evidence), indent=2)
    if len(known) > len(listed):
        page.labelled("", f"{len(known) - len(listed)} more: --all", indent=2)
    for index, sentence in enumerate(finding.against):
        page.labelled("Against" if index == 0 else "", sentence, indent=2)
    for advice in finding.advice:
        _advice(page, report.run, advice)


def _advice(page: Page, run: Run, advice: Advice) -> None:
    start = UNKNOWN if advice.from_ is None else f"{advice.from_} ({ORIGIN_TAGS[advice.from_origin]})"
    page.labelled("Try", f"{advice.setting} {start} -> {advice.to}", indent=2)
    for label, changes in (("Expect", advice.expected), ("Pays", advice.pays)):
        for index, change in enumerate(changes):
            page.labelled(label if index == 0 else "", spell_change(change), indent=2)
    if advice.trade_off:
        _trade_off(page, advice)
    for index, condition in enumerate(advice.preconditions):
        page.labelled("Precondition" if index == 0 else "", condition, indent=2)
    page.command("Test command", command_to_test(run, advice), indent=2)
    if advice.test_note:
        page.labelled("", advice.test_note, indent=2)
    page.labelled("Refuted if", advice.refuted_if, indent=2)


def _trade_off(page: Page, advice: Advice) -> None:
    page.labelled("Trade-off", "no latency target given (--slo), so the choice is yours", indent=2)
    columns = [Column(advice.setting), Column("ITL"), Column("throughput"), Column("fits KV", numeric=False)]
    columns.append(Column("basis", numeric=False))
    rows = [
        [
            count(row.value),
            spell(row.itl_s, "s"),
            UNKNOWN if row.throughput_ratio is None else f"x{row.throughput_ratio:.2f}",
            {True: "yes", False: "no", None: UNKNOWN}[row.fits_kv],
            "extrapolated" if row.extrapolated else "within observed",
        ]
        for row in advice.trade_off
    ]
    page.table(columns, rows, indent=15 if page.width >= 70 else 4)
