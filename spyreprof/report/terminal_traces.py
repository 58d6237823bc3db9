"""What traces of a profiler show, for a terminal: how good the data is, then where the time of devices went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spyreprof.report.figures import UNKNOWN, spell
from spyreprof.report.model import Report
from spyreprof.report.page import Column, Page
from spyreprof.report.trace_model import (
    EventsOf,
    TraceData,
    TraceDevice,
    TraceMessageSize,
    TraceName,
    TraceReport,
)
from spyreprof.units import format_share

TRACES_SHOWN = 4
FAULTS_SHOWN = 4
DEVICES_SHOWN = 8
NAMES_SHOWN = 5
# Longer names, mostly of C++ templates, are cut; --all shows all of them.
NAME_CELLS = 100


def draw_data(page: Page, report: Report, show_all: bool) -> None:
    """What the figures below are made from, and what is wrong with it."""
    if not report.traces:
        return
    shown = report.traces if show_all else report.traces[:TRACES_SHOWN]
    for index, trace in enumerate(shown):
        page.labelled("Data" if index == 0 else "", _read(trace, show_all))
    if len(report.traces) > len(shown):
        page.labelled("", f"{len(report.traces) - len(shown)} more traces: --all")
    sentences = list(_sentences(report))
    told = sentences if show_all else sentences[:FAULTS_SHOWN]
    for index, sentence in enumerate(told):
        page.labelled("Faults" if index == 0 else "", sentence)
    if not sentences:
        page.labelled("Faults", "none found")
    if len(sentences) > len(told):
        page.labelled("", f"{len(sentences) - len(told)} more: --all")
    page.blank()


def _read(trace: TraceReport, show_all: bool) -> str:
    data = trace.data
    parts = [f"{data.events_read:,} events read", f"{data.events_kept:,} kept"]
    others = ((data.metadata_events, "names of processes and threads"), (data.paired, "begins joined with their ends"))
    parts += [f"{number:,} {what}" for number, what in others if number]
    parts += [_counted(data.repaired, "repaired", show_all), _counted(data.dropped, "dropped", show_all)]
    cut = f"; cut short at byte {data.truncated_at_byte:,}" if data.truncated_at_byte is not None else ""
    line = f"{_name_of(trace)} ({data.dialect_title}): {', '.join(parts)}{cut}"
    return line + _linked(data)


def _name_of(trace: TraceReport) -> str:
    return f"trace {trace.trace}" + (f", rank {trace.data.rank}" if trace.data.rank is not None else "")


def _counted(parts: Sequence[EventsOf], verb: str, show_all: bool) -> str:
    total = f"{sum(part.events for part in parts):,} {verb}"
    # the reasons stand among the sentences below as well, unless these are cut
    why = "; ".join(f"{part.what} {part.events:,}" for part in parts)
    return f"{total} ({why})" if why and show_all else total


def _linked(data: TraceData) -> str:
    links = data.links
    if links is None:
        if not data.device_events:
            return "; no work of a device"
        pieces = UNKNOWN if data.device_work is None else f"{data.device_work:,}"
        return f"; pieces of device work: {pieces} (which launch each belongs to is {UNKNOWN})"
    linked = links.by_flow + links.by_correlation
    work = linked + links.ambiguous + links.unlinked
    share = f" ({format_share(linked / work)} linked to a launch)" if work else ""
    return f"; pieces of device work: {work:,}{share}"


def _sentences(report: Report) -> Iterator[str]:
    """The gravest first, whichever trace they are of."""
    several = len(report.traces) > 1
    for weight in range(3):
        if weight == 1 and report.trace_ranks is not None:
            yield from report.trace_ranks.notes
        for trace in report.traces:
            for fault in trace.faults:
                if weight == (0 if fault.forbids else 1 if fault.lowers else 2):
                    barred = f" Not told: {_claims(fault.forbids)}." if fault.forbids else ""
                    less = f" Less sure: {_claims(fault.lowers)}." if fault.lowers else ""
                    start = f"Trace {trace.trace}: " if several else ""
                    yield f"{start}{fault.sentence}{barred}{less}"
    for trace in report.traces:
        for note in trace.data.notes:
            yield f"Trace {trace.trace}: {note}" if several else note


def _claims(claims: Sequence[str]) -> str:
    return ", ".join(claim.replace("_", " ") for claim in claims)


def draw_device_time(page: Page, report: Report, show_all: bool) -> None:
    """Where the time of each device went, how the steps share theirs, and the names that took most."""
    several = len(report.traces) > 1
    _devices(page, report, several, show_all)
    shown = report.traces if show_all else report.traces[:1]
    for trace in shown:
        of = f", trace {trace.trace}" if several else ""
        _phases(page, trace, of)
        kernels = f"Kernels by time{of}, in % of all kernels' time; each counts in full where several run at once"
        _names(page, kernels, trace.kernels, show_all)
        own = f"Operators by self time{of} (without the operators and calls inside them)"
        _names(page, f"{own}, in % of all operators' self time", trace.operators, show_all)
        _sizes_and_graphs(page, trace, of)
        if show_all:
            _collectives(page, trace, of)
    if len(report.traces) > len(shown):
        page.paragraph(f"Phases and names of {len(report.traces) - len(shown)} more traces: --all", indent=2)


def _devices(page: Page, report: Report, several: bool, show_all: bool) -> None:
    rows: list[tuple[TraceReport, TraceDevice]] = [
        (trace, device) for trace in report.traces for device in trace.devices
    ]
    absent = [trace for trace in report.traces if not trace.devices]
    if not report.traces:
        return
    page.blank()
    page.paragraph("Device time, in % of the device's window", style="bold")
    shown = rows if show_all else rows[:DEVICES_SHOWN]
    columns = [Column("device", numeric=False), Column("window"), Column("busy"), Column("idle")]
    columns += [Column("exposed comm"), Column("exposed copy")]
    if shown:
        page.table(columns, [_device_row(trace, device, several) for trace, device in shown], indent=2)
        page.paragraph(f"window: {shown[0][1].window_basis}", indent=2, style="dim")
        unlisted = sum(trace.devices_total for trace in report.traces) - len(shown)
        if unlisted > 0:
            page.paragraph(f"{unlisted} more devices{': --all' if not show_all else ' are not listed'}", indent=2)
    for trace, device in shown if show_all else ():
        page.paragraph(_overlap(trace, device, several), indent=2)
    for reason in dict.fromkeys(_unknowns(device, show_all) for _, device in shown):
        for sentence in reason:
            page.paragraph(sentence, indent=2)
    for trace in absent:
        start = f"{_name_of(trace)}: " if several else ""
        page.paragraph(f"{start}{UNKNOWN}. {trace.data.device_reason or ''}".rstrip(), indent=2)


def _device_row(trace: TraceReport, device: TraceDevice, several: bool) -> list[str]:
    name = UNKNOWN if device.device is None else str(device.device)
    place = f"{_name_of(trace)}: " if several else ""
    return [
        f"{place}{name}",
        spell(device.window_ns, "ns"),
        *(
            UNKNOWN if ratio is None else format_share(ratio)
            for ratio in (
                device.busy_ratio,
                device.idle_ratio,
                device.exposed_communication_ratio,
                device.exposed_copy_ratio,
            )
        ),
    ]


def _overlap(trace: TraceReport, device: TraceDevice, several: bool) -> str:
    """What of communication and copies is hidden, in time: unions over the device's streams."""
    copies = f"copies {spell(device.copy_ns, 'ns')} (hidden {spell(device.hidden_copy_ns, 'ns')})"
    communication = spell(device.communication_ns, "ns")
    hidden = spell(device.hidden_communication_ns, "ns")
    place = f"{_name_of(trace)}: " if several else ""
    return (
        f"{place}device {UNKNOWN if device.device is None else device.device} (streams {device.streams:,}, "
        f"events {device.events:,}): computing {spell(device.compute_ns, 'ns')}; communication {communication} "
        f"(hidden behind computing {hidden}); {copies}"
    )


def _unknowns(device: TraceDevice, show_all: bool) -> tuple[str, ...]:
    reasons = [("idle", device.idle_reason), ("copies", device.copy_reason)]
    if show_all or device.exposed_copy_ns is not None:
        reasons.append(("overlap of copies", device.overlap_reason))
    return tuple(dict.fromkeys(f"{what} unknown: {reason}" for what, reason in reasons if reason is not None))


def _phases(page: Page, trace: TraceReport, of: str) -> None:
    page.blank()
    if not trace.phases:
        page.paragraph(f"Steps{of}: {UNKNOWN}. {trace.phases_reason or ''}".rstrip())
        return
    page.paragraph(f"Steps by their annotations{of}, in % of all steps' durations on the host", style="bold")
    columns = [Column("phase", numeric=False), Column("steps"), Column("share"), Column("device busy")]
    rows = [
        [one.phase, f"{one.steps:,}", format_share(one.host_ratio), spell(one.busy_ns, "ns")] for one in trace.phases
    ]
    page.table(columns, rows, indent=2)


def _names(page: Page, title: str, names: Sequence[TraceName], show_all: bool) -> None:
    if not names:
        return
    page.blank()
    page.paragraph(title, style="bold")
    shown = names if show_all else names[:NAMES_SHOWN]
    columns = [Column("share"), Column("count"), Column("name", numeric=False)]
    rows = [
        [
            UNKNOWN if one.ratio is None else format_share(one.ratio),
            f"{one.events:,}",
            one.name if show_all or len(one.name) <= NAME_CELLS else f"{one.name[: NAME_CELLS - 3]}...",
        ]
        for one in shown
    ]
    page.table(columns, rows, indent=2)


def _sizes_and_graphs(page: Page, trace: TraceReport, of: str) -> None:
    """A line each, where there are any."""
    if trace.message_sizes or trace.graphs is not None:
        page.blank()
    # calls on the host return before the data has moved, so that kernels tell more where there are both
    on_device = any(one.on_device for one in trace.message_sizes)
    chosen = [one for one in trace.message_sizes if one.on_device == on_device]
    if chosen:
        where = "on the device" if on_device else "on the host"
        sizes = "; ".join(f"{_size(one)} {one.events:,} ({spell(one.raw_sum_ns, 'ns')})" for one in chosen)
        page.paragraph(f"Collectives {where} by message size{of}, with the sum of their durations: {sizes}")
    if trace.graphs is not None:
        graphs = trace.graphs
        share = UNKNOWN if graphs.coverage_ratio is None else format_share(graphs.coverage_ratio)
        page.paragraph(f"Launches of recorded graphs{of}: {graphs.launches:,}, {share} of them with work of the device")


def _size(one: TraceMessageSize) -> str:
    if not one.size_known:
        return "of unknown size"
    return "larger" if one.up_to_bytes is None else f"up to {_binary(one.up_to_bytes)}"


def _binary(count_bytes: int) -> str:
    # the limits of the classes are powers of two
    return f"{count_bytes // 2**20} MiB" if count_bytes >= 2**20 else f"{count_bytes // 2**10} KiB"


def _collectives(page: Page, trace: TraceReport, of: str) -> None:
    if not trace.collectives:
        return
    page.blank()
    page.paragraph(f"Collectives{of}; durations added up, waiting for other ranks included", style="bold")
    columns = [Column("operation", numeric=False), Column("count"), Column("sum"), Column("bytes")]
    columns += [Column("on", numeric=False), Column("library", numeric=False)]
    rows = [
        [
            one.operation,
            f"{one.events:,}",
            spell(one.raw_sum_ns, "ns"),
            spell(one.bytes, "bytes"),
            "device" if one.on_device else "host",
            one.backend or UNKNOWN,
        ]
        for one in trace.collectives
    ]
    page.table(columns, rows, indent=2)
