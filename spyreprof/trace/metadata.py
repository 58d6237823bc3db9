"""Events that name processes and threads instead of taking time, and what the fields beside the events say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from spyreprof.trace.codes import IdentityCodes, whole_number
from spyreprof.trace.table import Identity, TraceMetadata

# Some emitters name every thread again and again; a hostile one names as many as it likes.
MAX_NAMES = 100_000
MAX_NAME_CHARACTERS = 1000
MAX_OTHER_FIELDS = 64
MAX_OTHER_CHARACTERS = 200

_NAMES = ("process_name", "thread_name", "process_labels")
_KNOWN_FIELDS = ("traceEvents", "schemaVersion", "baseTimeNanoseconds", "distributedInfo", "deviceProperties")


class _Described(Protocol):
    name: str | None
    pid: int | str | None
    tid: int | str | None
    args: msgspec.Raw


class _Args(msgspec.Struct):
    name: Any = None
    labels: Any = None


_ARGS = msgspec.json.Decoder(list[_Args])


class MetadataEvents:
    """Collects what events of the type "M" say."""

    def __init__(self) -> None:
        self.count = 0
        self.processes: dict[Identity, str] = {}
        self.threads: dict[tuple[Identity, Identity], str] = {}
        self.labels: dict[Identity, str] = {}

    def add(self, events: Sequence[_Described]) -> None:
        """Take in typed events."""
        self.count += len(events)
        named = [event for event in events if event.name in _NAMES]
        try:
            args = _ARGS.decode(b"[" + b",".join([event.args for event in named]) + b"]")
        except (msgspec.DecodeError, RecursionError):
            args = [_one(event.args) for event in named]
        for event, said in zip(named, args, strict=True):
            self._put(event.name, event.pid, event.tid, said.name if said.name is not None else said.labels)

    def merge(self, later: MetadataEvents) -> None:
        """Take in what another part of the same file says."""
        self.count += later.count
        self.processes |= later.processes
        self.threads |= later.threads
        self.labels |= later.labels

    def add_values(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take in events that came as plain values."""
        for event in events:
            self.count += 1
            args = event.get("args")
            if isinstance(args, dict):
                said = args.get("name") if args.get("name") is not None else args.get("labels")
                self._put(event.get("name"), event.get("pid"), event.get("tid"), said)

    def _put(self, kind: Any, pid: Any, tid: Any, text: Any) -> None:
        if not isinstance(text, str) or not _is_identity(pid) or len(self.processes) + len(self.threads) >= MAX_NAMES:
            return
        text = text[:MAX_NAME_CHARACTERS]
        process = IdentityCodes().shown(pid)
        if kind == "process_name":
            self.processes[process] = text
        elif kind == "process_labels":
            self.labels[process] = text
        elif kind == "thread_name" and _is_identity(tid):
            self.threads[process, IdentityCodes().shown(tid)] = text


def _is_identity(value: Any) -> bool:
    return value is not None and not isinstance(value, (bool, dict, list))


def _one(raw: msgspec.Raw) -> _Args:
    try:
        return msgspec.json.decode(raw, type=_Args)
    except (msgspec.DecodeError, RecursionError):
        return _Args()


def trace_metadata(fields: Mapping[str, Any], events: MetadataEvents) -> TraceMetadata:
    """Put together what the fields beside the events and the naming events say."""
    # The first Kineto called them computeProperties.
    devices = fields.get("deviceProperties", fields.get("computeProperties"))
    distributed = fields.get("distributedInfo")
    return TraceMetadata(
        schema_version=whole_number(fields.get("schemaVersion")),
        base_time_ns=whole_number(fields.get("baseTimeNanoseconds")) or 0,
        distributed=distributed if isinstance(distributed, dict) else None,
        has_device_properties=bool(devices),
        devices=tuple(device for device in devices if isinstance(device, dict)) if isinstance(devices, list) else (),
        process_names=dict(events.processes),
        thread_names=dict(events.threads),
        labels=dict(events.labels),
        other=_other(fields),
    )


def _other(fields: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _KNOWN_FIELDS or len(plain) >= MAX_OTHER_FIELDS:
            continue
        if isinstance(value, str):
            plain[key] = value[:MAX_OTHER_CHARACTERS]
        elif isinstance(value, (int, float)) and -1e18 < value < 1e18:
            plain[key] = value
    return plain
