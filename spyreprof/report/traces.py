"""From summaries of traces to what a report says about them, redacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from spyreprof.report.model import Input, Public
from spyreprof.report.redact import Redactor, own_words
from spyreprof.report.trace_model import (
    EventsOf,
    TraceBusy,
    TraceCollective,
    TraceData,
    TraceDevice,
    TraceFault,
    TraceGraphs,
    TraceLinks,
    TraceMemory,
    TraceMessageSize,
    TraceName,
    TracePhase,
    TraceRanks,
    TraceReport,
)
from spyreprof.trace.collectives import BACKENDS, OPERATIONS
from spyreprof.trace.device_time import WINDOW_BASIS
from spyreprof.trace.dialects import GENERIC, dialects
from spyreprof.trace.ranks import ranks_told

if TYPE_CHECKING:
    from spyreprof.trace.device_time import DeviceTime
    from spyreprof.trace.health import Fault
    from spyreprof.trace.summary import CollectiveTime, NameTime, TraceSummary
    from spyreprof.trace.timeline import BusyOverTime

# A process may have any number in a trace; JSON readers know these.
_INT64_END = 2**63


def trace_reports(summaries: Sequence[TraceSummary], redactor: Redactor) -> tuple[TraceReport, ...]:
    """What the report says of each trace, in the order given."""
    return tuple(_trace(number, summary, redactor) for number, summary in enumerate(summaries, start=1))


def trace_ranks(summaries: Sequence[TraceSummary], redactor: Redactor) -> TraceRanks | None:
    """Which ranks the traces show; None where no trace tells of ranks."""
    told = [(one.rank.rank if one.rank.told else None, one.world_size) for one in summaries]
    if all(rank is None and size is None for rank, size in told):
        return None
    ranks = ranks_told(told)
    return TraceRanks(
        world_size=ranks.world_size,
        missing=ranks.missing,
        missing_count=ranks.missing_count,
        repeated=ranks.repeated,
        notes=tuple(redactor.text("sentence", sentence) for sentence in ranks.sentences),
    )


def trace_inputs(summaries: Sequence[TraceSummary]) -> tuple[Input, ...]:
    """An input for each trace, with the counts of its events."""
    return tuple(
        Input(
            kind="torch_trace",
            counts={
                own_words("events_read"): one.events_read,
                own_words("events_kept"): one.events_kept,
                own_words("events_repaired"): sum(one.repaired.values()),
                own_words("events_dropped"): sum(one.dropped.values()) + one.unmatched_end,
            },
        )
        for one in summaries
    )


def _trace(number: int, summary: TraceSummary, redactor: Redactor) -> TraceReport:
    # sorted() is stable: faults of equal weight stay in the order in which they were looked for
    faults = sorted(summary.faults, key=lambda fault: (not fault.forbids, not fault.lowers))
    return TraceReport(
        trace=number,
        data=_data(summary, redactor),
        faults=tuple(_fault(fault, redactor) for fault in faults),
        devices=tuple(
            _device(device, busy, redactor)
            for device, busy in zip_longest(summary.devices, summary.busy_over_time[: len(summary.devices)])
        ),
        devices_total=summary.devices_total,
        steps=summary.steps,
        phases=tuple(
            TracePhase(
                phase=one.phase,
                steps=one.steps,
                host_sum_ns=one.host_ns,
                host_ratio=one.host_ratio,
                busy_ns=one.busy_ns,
            )
            for one in summary.phases
        ),
        phases_reason=redactor.optional("sentence", summary.phases_reason),
        kernels=tuple(_name(one, redactor.event_name("kernel", one.name)) for one in summary.kernels),
        operators=tuple(_name(one, redactor.event_name("operator", one.name)) for one in summary.operators),
        collectives=tuple(_collective(one) for one in summary.collectives),
        memory=tuple(
            TraceMemory(
                device_type=one.device_type,
                device_id=one.device_id,
                allocated_bytes=one.allocated_bytes,
                reserved_bytes=one.reserved_bytes,
            )
            for one in summary.memory
        ),
        message_sizes=tuple(
            TraceMessageSize(
                on_device=one.on_device,
                up_to_bytes=one.up_to_bytes,
                size_known=one.size_known,
                events=one.events,
                raw_sum_ns=one.raw_sum_ns,
                bytes=one.bytes,
            )
            for one in summary.message_sizes
        ),
        graphs=TraceGraphs(
            launches=summary.graphs.launches,
            recorded=summary.graphs.recorded,
            coverage_ratio=summary.graphs.coverage_ratio,
        )
        if summary.graphs is not None
        else None,
    )


def _data(summary: TraceSummary, redactor: Redactor) -> TraceData:
    links = summary.links
    # A stored summary may be a stranger's: what is ours comes from us, not from there.
    titles = {dialect.name: dialect.title for dialect in dialects()}
    dialect = summary.dialect if summary.dialect in titles else GENERIC
    return TraceData(
        dialect=own_words(dialect),
        dialect_title=own_words(titles[dialect]),
        events_read=summary.events_read,
        events_kept=summary.events_kept,
        metadata_events=summary.metadata_events,
        paired=summary.paired,
        repaired=_events_of(summary.repaired, redactor),
        dropped=_dropped(summary, redactor),
        truncated_at_byte=summary.truncated_at_byte,
        start_ns=summary.start_ns,
        end_ns=summary.end_ns,
        device_events=summary.devices_total > 0,
        device_reason=redactor.optional("sentence", summary.devices_reason),
        links=TraceLinks(
            by_flow=links.by_flow,
            by_correlation=links.by_correlation,
            ambiguous=links.ambiguous,
            unlinked=links.unlinked,
            unmatched_launches=links.unmatched_launches,
            with_operator=links.with_operator,
        )
        if links is not None
        else None,
        rank=summary.rank.rank if summary.rank.told else None,
        world_size=summary.world_size,
        categories=tuple(
            EventsOf(
                what=None if one.category is None else redactor.event_name("category", one.category),
                events=one.events,
            )
            for one in summary.categories
        ),
        notes=tuple(redactor.text("sentence", sentence) for sentence in summary.quality),
        device_work=summary.device_work,
    )


def _events_of(counts: Mapping[str, int], redactor: Redactor) -> tuple[EventsOf, ...]:
    by_number = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(EventsOf(what=redactor.text("sentence", why), events=number) for why, number in by_number)


def _dropped(summary: TraceSummary, redactor: Redactor) -> tuple[EventsOf, ...]:
    known = _events_of(summary.dropped, redactor)
    ends = EventsOf(what=own_words("an end without a begin"), events=summary.unmatched_end)
    return (*known, ends) if ends.events else known


def _fault(fault: Fault, redactor: Redactor) -> TraceFault:
    return TraceFault(
        kind=fault.kind,
        count=fault.count,
        sentence=redactor.text("sentence", fault.sentence),
        worst=fault.worst,
        worst_unit=fault.worst_unit,
        examples=fault.examples,
        forbids=fault.forbids,
        lowers=fault.lowers,
    )


def _device(device: DeviceTime, busy: BusyOverTime | None, redactor: Redactor) -> TraceDevice:
    def ratio(part_ns: int | None) -> float | None:
        return None if part_ns is None or device.window_ns <= 0 else part_ns / device.window_ns

    return TraceDevice(
        device=_device_name(device.device, redactor),
        streams=device.streams,
        events=device.events,
        window_ns=device.window_ns,
        window_basis=own_words(WINDOW_BASIS),
        busy_ns=device.busy_ns,
        busy_ratio=ratio(device.busy_ns),
        idle_ns=device.idle_ns,
        idle_ratio=ratio(device.idle_ns),
        idle_reason=redactor.optional("sentence", device.idle_reason),
        compute_ns=device.compute_ns,
        communication_ns=device.communication_ns,
        exposed_communication_ns=device.exposed_communication_ns,
        exposed_communication_ratio=ratio(device.exposed_communication_ns),
        hidden_communication_ns=device.hidden_communication_ns,
        copy_ns=device.copy_ns,
        exposed_copy_ns=device.exposed_copy_ns,
        exposed_copy_ratio=ratio(device.exposed_copy_ns),
        hidden_copy_ns=device.hidden_copy_ns,
        copy_reason=redactor.optional("sentence", device.copy_reason),
        overlap_reason=redactor.optional("sentence", device.overlap_reason),
        raw_sum_ns=device.raw_sum_ns,
        overlong=device.overlong,
        busy_over_time=None if busy is None else TraceBusy(bucket_ns=busy.bucket_ns, ratios=busy.ratios),
    )


def _device_name(name: int | str | None, redactor: Redactor) -> int | Public | None:
    if name is None or (isinstance(name, int) and abs(name) < _INT64_END):
        return name
    return redactor.text("accelerator", str(name))


def _name(one: NameTime, shown: Public) -> TraceName:
    return TraceName(name=shown, events=one.events, exclusive_sum_ns=one.ns, ratio=one.ratio)


def _collective(one: CollectiveTime) -> TraceCollective:
    return TraceCollective(
        operation=own_words(one.operation if one.operation in OPERATIONS else OPERATIONS[-1]),
        backend=own_words(one.backend) if one.backend and one.backend in BACKENDS else None,
        on_device=one.on_device,
        events=one.events,
        raw_sum_ns=one.raw_sum_ns,
        bytes=one.bytes,
    )
