"""The report for a terminal: one screen that says what was seen, what binds, and what to try.

Order is the argument: first what is wrong with the data, what the numbers hold for and what is missing, then the
verdict with its witnesses, then the figures behind it, then what to change. Colour repeats what a word already says.
"""

from __future__ import annotations

from spyreprof.findings import BudgetPart, Confidence, NotJudged, PeakUse, PhaseReport, Witness
from spyreprof.report.figures import (
    ORIGIN_TAGS,
    UNKNOWN,
    closing_shares,
    count,
    references,
    spell,
    spell_evidence,
)
from spyreprof.report.model import Coverage, Report, Run, Spread
from spyreprof.report.page import Column, Page
from spyreprof.report.profiler_windows import in_words
from spyreprof.report.terminal_engines import draw_engines
from spyreprof.report.terminal_findings import deciding_finding, draw_findings
from spyreprof.report.terminal_rates import draw_latencies, draw_repeats, draw_throughput, percentile
from spyreprof.report.terminal_requests import draw_cost, draw_tails
from spyreprof.report.terminal_stacks import draw_stack_data, draw_stacks
from spyreprof.report.terminal_traces import draw_data, draw_device_time
from spyreprof.units import format_bytes, format_seconds, format_share

LINES_SHOWN = 3
# Design rule: a budget with more unexplained time than this carries no verdict.
UNEXPLAINED_LIMIT = 0.20

_CONFIDENCE_STYLES: dict[Confidence, str] = {"high": "bold green", "medium": "bold yellow", "low": "bold red"}
_WITNESS_NAMES = {"device_trace": "device trace", "engine": "engine", "requests": "requests"}


def render(
    report: Report,
    width: int = 80,
    *,
    show_all: bool = False,
    color: bool = False,
    ascii_only: bool = False,
    again: str = "spyreprof report INPUT",
) -> str:
    """Draw a report.

    Args:
        report: from `build_report` or read back from a report.json.
        width: cells per line; no line is wider.
        show_all: every finding, evidence, note and collector, not only the first few.
        color: write ANSI styles.
        ascii_only: for terminals whose encoding has no more.
        again: the command that makes this report, in the user's own words.

    Returns:
        Lines, each ended by a newline.
    """
    page = Page(width, ascii_only)
    draw_data(page, report, show_all)
    draw_stack_data(page, report, show_all)
    _conditions(page, report)
    _quality(page, report, show_all)
    _window(page, report)
    _verdict(page, report, show_all)
    draw_engines(page, report)
    draw_device_time(page, report, show_all)
    draw_stacks(page, report, show_all)
    _time_budget(page, report)
    _phases(page, report, show_all)
    draw_throughput(page, report)
    draw_latencies(page, report)
    draw_tails(page, report, show_all)
    draw_cost(page, report, show_all)
    draw_repeats(page, report, show_all)
    draw_findings(page, report, show_all)
    _not_judged(page, report, show_all)
    if show_all:
        _evidence(page, report)
    _where_next(page, report, again, show_all)
    return page.render(color=color)


def _conditions(page: Page, report: Report) -> None:
    conditions, run = report.conditions, report.run
    device = conditions.device_kind or UNKNOWN
    if conditions.device_count is not None:
        device += f" x{conditions.device_count}"
    model = f"model {conditions.model or UNKNOWN}"
    if conditions.parameter_bytes is not None:
        model += f" ({format_bytes(conditions.parameter_bytes)})"
    software = [f"{name} {version}" for name, version in (conditions.software or {}).items()]
    page.flow(
        "Conditions",
        [
            model,
            f"precision {conditions.precision or UNKNOWN}",
            f"quantisation {conditions.quantisation or UNKNOWN}",
            f"hardware {conditions.hardware or UNKNOWN}",
            f"device {device}",
            f"batch {_spread(conditions.batch, '')}",
            # "context" are prompt tokens everywhere else
            f"sequence length {_spread(conditions.context, ' tokens')}",
            *(software or [f"software {UNKNOWN}"]),
        ],
    )
    items = [run.run_id or f"id {UNKNOWN}", _ending(run)]
    if run.started is not None:
        items.insert(1, f"started {run.started}")
    if run.repeat is not None:
        items.append(f"repeat {run.repeat.k} of {run.repeat.of}")
    page.flow("Run", items)
    page.labelled("Command", run.command_redacted or UNKNOWN)


def _spread(spread: Spread | None, unit: str) -> str:
    if spread is None:
        return UNKNOWN
    return f"mean {count(spread.mean)}{unit} ({count(spread.low)} to {count(spread.high)})"


def _ending(run: Run) -> str:
    lasted = f"{format_seconds(run.duration_s)}, " if run.duration_s is not None else ""
    if not run.finished:
        return f"{lasted}recording cut off before the program ended"
    if run.exit is None:
        return f"{lasted}exit {UNKNOWN}"
    if run.exit.signal is not None:
        return f"{lasted}killed by signal {run.exit.signal}"
    return f"{lasted}exit code {run.exit.code}"


def _quality(page: Page, report: Report, show_all: bool) -> None:
    quality = report.quality
    page.blank()
    page.flow("Seen", _seen(quality.coverage, bool(report.traces)))
    if report.profiler_windows is not None:
        page.labelled("", f"profiler windows: {in_words(report.profiler_windows)}")
    lacking = [collector for collector in quality.collectors if collector.state != "ok"]
    named = [f"{c.name} {c.state}: {c.reason}" if c.reason else f"{c.name} {c.state}" for c in lacking]
    # Said above, among the faults.
    of_ranks = report.trace_ranks.notes if report.trace_ranks is not None else ()
    notes = [note for note in quality.notes if note not in of_ranks]
    traced = any(trace.data.device_events for trace in report.traces)
    sentences = [*_unseen(quality.coverage, traced), *notes, *named]
    if not sentences:
        page.labelled("Missing", "nothing")
    shown = sentences if show_all else sentences[:LINES_SHOWN]
    for index, sentence in enumerate(shown):
        page.labelled("Missing" if index == 0 else "", sentence)
    if len(sentences) > len(shown):
        page.labelled("", f"{len(sentences) - len(shown)} more: --all")
    if show_all:
        for collector in quality.collectors:
            obtain = f" Obtain: {collector.obtain}" if collector.obtain else ""
            page.labelled("Collector", f"{collector.name} {collector.state}.{obtain}")
        removed = ", ".join(f"{number} {kind}" for kind, number in report.redaction.removed.items())
        page.labelled("Redacted", removed or "nothing")
        for source in report.inputs:
            counts = ", ".join(f"{name} {number:,}" for name, number in source.counts.items())
            page.labelled("Input", f"{source.kind}: {counts}")


def _seen(coverage: Coverage, traced: bool) -> list[str]:
    def counted(number: int | None, noun: str) -> str:
        return f"{noun} {UNKNOWN if number is None else f'{number:,}'}"

    profiled = counted(coverage.profiled_steps, "profiled steps")
    if coverage.assigned_ratio is not None:
        profiled += f" ({format_share(coverage.assigned_ratio)} of their time assigned)"
    # A trace does not show how its process ended.
    processes = counted(coverage.processes, "processes")
    if not traced and coverage.processes is not None and coverage.processes_closed is not None:
        processes += f" ({coverage.processes_closed:,} ended in order)"
    return [
        counted(coverage.steps, "steps"),
        profiled,
        counted(coverage.requests, "requests"),
        counted(coverage.metric_polls, "metric polls"),
        processes,
    ]


def _unseen(coverage: Coverage, traced: bool) -> list[str]:
    kinds = [
        (coverage.steps, "engine steps"),
        (coverage.profiled_steps or traced, "device trace"),
        (coverage.requests, "request log"),
        (coverage.metric_polls, "engine metrics"),
    ]
    absent = [noun for number, noun in kinds if not number]
    return [f"no {', no '.join(absent)}"] if absent else []


def _window(page: Page, report: Report) -> None:
    window = report.window
    if window is None:
        page.labelled("Window", f"no steady state: {_unsteady(report)}, so nothing below is judged over time")
        return
    length = format_seconds((window.end_ns - window.start_ns) * 1e-9)
    share = format_share(window.share_of_recording)
    page.labelled("Window", f"{length} steady state, {share} of the recording: {window.basis}")
    excluded = report.time_budget.excluded if report.time_budget else ()
    if excluded:
        page.flow("Left out", [f"{part.reason} {format_seconds(part.ns * 1e-9)}" for part in excluded])


def _unsteady(report: Report) -> str:
    """Why there is no window."""
    if report.traces:
        return "traces do not show the load, which alone could be steady"
    if report.stack_files:
        return "stacks show no engine steps"
    return "none was found among the engine steps" if report.quality.coverage.steps else "no engine step was seen"


def _verdict(page: Page, report: Report, show_all: bool) -> None:
    verdict = report.verdict
    page.blank()
    page.labelled("VERDICT", page.text(verdict.headline, "bold"))
    line = page.text(verdict.primary)
    if verdict.confidence is None:
        line.append("  no confidence claimed")
    else:
        line.append("  confidence ")
        line.append(verdict.confidence, _CONFIDENCE_STYLES[verdict.confidence])
    if verdict.secondary:
        line.append(f"  also {', '.join(verdict.secondary)}")
    page.labelled("", line)
    if verdict.primary == "decode_bandwidth_bound" and "load_limited" in verdict.secondary:
        page.labelled("", "load_limited: clients send so little at once that the batch stays small")
    if verdict.reason not in verdict.headline:
        page.labelled("", verdict.reason)
    reasons = verdict.confidence_reasons if show_all else verdict.confidence_reasons[:LINES_SHOWN]
    for index, reason in enumerate(reasons):
        page.labelled("Confidence" if index == 0 else "", reason)
    for witness in verdict.witnesses:
        _witness(page, witness)
    for missing in verdict.missing:
        said = missing.reason in verdict.headline
        question = f"{missing.topic}. Obtain: {_sentence(missing.obtain)}" if said else _open_question(missing)
        page.labelled("Needs", question)


def _witness(page: Page, witness: Witness) -> None:
    stance, style = {True: ("agrees", "green"), False: ("dissents", "bold red"), None: ("silent", "dim")}[
        witness.agrees
    ]
    line = page.text(stance, style)
    said = f" ({witness.says})" if witness.says and witness.agrees is False else ""
    line.append_text(page.text(f"{said}: {witness.text}{references(witness.evidence)}"))
    page.labelled(_WITNESS_NAMES[witness.name], line)


def _time_budget(page: Page, report: Report) -> None:
    budget = report.time_budget
    if budget is None or budget.window_ns <= 0:
        return
    page.blank()
    whole = format_seconds(budget.window_ns * 1e-9)
    window = report.window
    paused = window is not None and window.end_ns - window.start_ns > budget.window_ns
    of = f"of the window{' without pauses' if paused else ''} ({whole} = 100 %)"
    page.paragraph(f"Where the wall time went, in % {of}", style="bold")
    shares = closing_shares([*(part.ns for part in budget.parts), budget.unexplained_ns], budget.window_ns)
    on_cpu = report.conditions.device_kind == "cpu"
    rows = [
        (part_label(part, on_cpu=on_cpu), share, ORIGIN_TAGS[part.origin])
        for part, share in zip(budget.parts, shares, strict=False)
    ]
    rows.append(("unexplained", shares[-1], ""))
    label_width = max(len(label) for label, _, _ in rows)
    tag_width = max(len(tag) for _, _, tag in rows)
    bar_length = page.width - (2 + label_width + 2 + 7 + 2 + tag_width + 2)
    for label, share, tag in rows:
        if bar_length < 8:
            page.paragraph(f"{label} {share:.1f} % {tag}".rstrip(), indent=2)
        else:
            start = f"  {label:<{label_width}}  {share:5.1f} %  {tag:<{tag_width}}  "
            page.lines.append(page.text(start + page.bar(share / 100, bar_length)))
    limit = f"A verdict needs at most {format_share(UNEXPLAINED_LIMIT)} unexplained."
    page.paragraph(limit, indent=2, style="dim")


def part_label(part: BudgetPart, *, on_cpu: bool) -> str:
    """Name a part of the budget in words: "decode.device_compute" is "decode: device busy", on a CPU "operators"."""
    named = part.id.replace("device_compute", "operators" if on_cpu else "device_busy")
    return named.replace(".", ": ").replace("_", " ")


def _phases(page: Page, report: Report, show_all: bool) -> None:
    if not report.phases:
        return
    page.blank()
    page.paragraph("Phases, share in % of the window", style="bold")
    columns = [Column("phase", numeric=False), Column("steps"), Column("time"), Column("share")]
    columns += [Column("batch"), Column("step p50"), Column("step p99"), Column("bound", numeric=False)]
    page.table(columns, [_phase_row(phase) for phase in report.phases], indent=2)
    judged: set[tuple[str, ...]] = set()
    traced = " ".join(witness.text for witness in report.verdict.witnesses if witness.name == "device_trace")
    for phase in report.phases:
        if phase.evidence and phase.evidence in judged:
            # mixed steps share the profiled steps of prefill, and so all that is said of them
            page.labelled(phase.phase, "judged together with prefill", indent=2, label_width=11)
            continue
        judged.add(phase.evidence)
        # the use of the peaks stands with the verdict or here, and in the finding; its rates are in the evidence
        said = "as the device trace says above" if phase.reason in traced else phase.reason
        page.labelled(phase.phase, f"{said}{references(phase.evidence)}", indent=2, label_width=11)
        for use in phase.peak_use if show_all else ():
            page.labelled("", _spell_use(use), indent=2, label_width=11)
        for view in phase.views:
            if view.name != "device_trace":
                page.labelled("", f"{view.name}: {view.text}{references(view.evidence)}", indent=2, label_width=11)
        if show_all:
            _slope(page, phase)


def _spell_use(use: PeakUse) -> str:
    unit = {"compute": "flop/s", "memory_bandwidth": "bytes/s"}[use.resource]
    reached = f"{spell(use.achieved_per_s, unit)} of {spell(use.peak_per_s, unit)}"
    tag = ORIGIN_TAGS[use.peak_origin]
    return f"{use.resource.replace('_', ' ')} {format_share(use.use_ratio)}: {reached} (peak {tag})"


def _phase_row(phase: PhaseReport) -> list[str]:
    return [
        phase.phase,
        f"{phase.steps:,}",
        spell(phase.time_ns, "ns"),
        format_share(phase.share),
        UNKNOWN if phase.batch_mean is None else count(phase.batch_mean),
        spell(phase.step_time_p50_ns, "ns"),
        percentile(phase.step_time_p99_ns, "ns"),
        phase.bound.replace("_", " "),
    ]


def _slope(page: Page, phase: PhaseReport) -> None:
    slope = phase.slope
    if slope is None:
        return
    for term in slope.terms:
        if term.ns_per_unit is None or not term.identifiable:
            text = f"{term.name} not separable: {term.reason or 'no reason given'}"
        else:
            text = f"{term.name} {spell(term.ns_per_unit, 'ns')} per unit"
            if term.low is not None and term.high is not None:
                text += f" [{spell(term.low, 'ns')} to {spell(term.high, 'ns')}]"
        page.labelled("slope test", f"{text} (n={slope.n_steps:,})", indent=2, label_width=11)


def _not_judged(page: Page, report: Report, show_all: bool) -> None:
    # What the verdict itself lacks was said beside it.
    questions = [item for item in report.not_judged if item not in report.verdict.missing]
    if not questions:
        return
    page.blank()
    shown = questions if show_all else questions[:LINES_SHOWN]
    for index, item in enumerate(shown):
        page.labelled("Not judged" if index == 0 else "", _open_question(item))
    if len(questions) > len(shown):
        page.labelled("", f"{len(questions) - len(shown)} more: --all")


def _open_question(item: NotJudged) -> str:
    return f"{item.topic}: {_sentence(item.reason)} Obtain: {_sentence(item.obtain)}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _evidence(page: Page, report: Report) -> None:
    page.blank()
    page.paragraph("Evidence", style="bold")
    for evidence in report.evidence:
        page.labelled("", f"{spell_evidence(evidence)}; {evidence.source}: {evidence.method}", label_width=2)


def _where_next(page: Page, report: Report, again: str, show_all: bool) -> None:
    page.blank()
    steps = [] if show_all else [f"everything: {again} --all"]
    steps.append(f"for a ticket: {again} --json --out report.json")
    finding = deciding_finding(report)
    if finding is not None:
        steps.append(f"why this rule: spyreprof rules info {finding.id}")
    page.flow("Next", steps)
