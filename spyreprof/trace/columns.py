"""Which arguments of events become columns: one place for the reader, the cache and whoever looks for one."""

from __future__ import annotations

from typing import Literal, NamedTuple

ArgKind = Literal["integer", "id", "text"]


class ArgColumn(NamedTuple):
    """A column made of an argument.

    Attributes:
        name: of the column.
        key: of the argument in the trace.
        kind: integers are kept as they are; ids may be numbers of any size or texts; texts become codes.
    """

    name: str
    key: str
    kind: ArgKind


CORRELATION = ArgColumn("correlation", "correlation", "id")
EXTERNAL_ID = ArgColumn("external_id", "External id", "id")
# of the first Kineto, which spelled its arguments in lower case
EXTERNAL_ID_OLD = ArgColumn("external_id_old", "external id", "id")
DIMS = ArgColumn("dims", "Input Dims", "text")
TYPES = ArgColumn("types", "Input type", "text")

DEVICE = ArgColumn("device", "device", "id")
STREAM = ArgColumn("stream", "stream", "id")
BYTES = ArgColumn("bytes", "bytes", "integer")
CONTROL_BLOCKS = ArgColumn("num_cbs", "num_cbs", "integer")
SEQUENCE = ArgColumn("sequence_number", "Sequence number", "integer")
FORWARD_THREAD = ArgColumn("forward_thread", "Fwd thread id", "integer")
GRAPH = ArgColumn("graph_id", "graph id", "id")
GRAPH_NODE = ArgColumn("graph_node_id", "graph node id", "id")
PROVENANCE = ArgColumn("provenance_key", "provenance_key", "text")
CYCLES = ArgColumn("cycles_ts", "cycles_ts", "text")

# Collectives: on NCCL kernels and on record_param_comms operators.
COLLECTIVE = ArgColumn("collective", "Collective name", "text")
IN_ELEMENTS = ArgColumn("in_elements", "In msg nelems", "integer")
OUT_ELEMENTS = ArgColumn("out_elements", "Out msg nelems", "integer")
ELEMENT_TYPE = ArgColumn("element_type", "dtype", "text")
GROUP_SIZE = ArgColumn("group_size", "Group size", "integer")
PROCESS_GROUP = ArgColumn("process_group", "Process Group Name", "text")
GROUP_RANKS = ArgColumn("group_ranks", "Process Group Ranks", "text")

# Memory: "[memory]" events.
MEMORY_BYTES = ArgColumn("memory_bytes", "Bytes", "integer")
MEMORY_ALLOCATED = ArgColumn("memory_allocated", "Total Allocated", "integer")
MEMORY_RESERVED = ArgColumn("memory_reserved", "Total Reserved", "integer")
MEMORY_ADDRESS = ArgColumn("memory_address", "Addr", "id")
MEMORY_DEVICE = ArgColumn("memory_device", "Device Id", "integer")
MEMORY_DEVICE_TYPE = ArgColumn("memory_device_type", "Device Type", "integer")

# The counters of the older Spyre stack: 32-bit ticks as texts or numbers.
TICKS = tuple(ArgColumn(f"ticks_{n}", f"TS{n}", "integer") for n in range(1, 6))
# And what it says of power and transfers. Power is a charge that adds up and wraps, not watts.
CHARGE = ArgColumn("charge", "Power", "integer")
TRANSFER_TYPE = ArgColumn("transfer_type", "Type", "text")
TRANSFER_GROUP = ArgColumn("transfer_group", "CollGroup", "text")
PEER = ArgColumn("peer", "Peer", "text")
_FLEX = (*TICKS, CHARGE, TRANSFER_TYPE, TRANSFER_GROUP, PEER)

# A further column, of begin and end events alone: `pairs.arguments_key` of their arguments. `pairs.join` uses it up.
PAIR_ARGS = "pair_args"

ARG_COLUMNS: tuple[ArgColumn, ...] = (
    DEVICE,
    STREAM,
    BYTES,
    CONTROL_BLOCKS,
    SEQUENCE,
    FORWARD_THREAD,
    GRAPH,
    GRAPH_NODE,
    PROVENANCE,
    CYCLES,
    COLLECTIVE,
    IN_ELEMENTS,
    OUT_ELEMENTS,
    ELEMENT_TYPE,
    GROUP_SIZE,
    PROCESS_GROUP,
    GROUP_RANKS,
    MEMORY_BYTES,
    MEMORY_ALLOCATED,
    MEMORY_RESERVED,
    MEMORY_ADDRESS,
    MEMORY_DEVICE,
    MEMORY_DEVICE_TYPE,
    *_FLEX,
)


class Group(NamedTuple):
    """Arguments that only some events of a category have.

    Attributes:
        mark: part of the key of each of them, or of the leader's. Where it stands nowhere in the text the group is not
            looked for: one search is cheaper than a field for each event.
        columns: of the group.
        leader: the others count only where an event has this one too; None where each stands for itself.
    """

    mark: bytes
    columns: tuple[ArgColumn, ...]
    leader: ArgColumn | None = None


# What an event has must not depend on its neighbours: without a leader, `mark` is a part of every key of the group.
_Groups = tuple[Group, ...]

_COLLECTIVES: _Groups = (
    Group(b"Collective name", (COLLECTIVE, IN_ELEMENTS, OUT_ELEMENTS, ELEMENT_TYPE, GROUP_SIZE), COLLECTIVE),
    Group(b"Process Group", (PROCESS_GROUP, GROUP_RANKS)),
)
_GRAPHS = Group(b"graph ", (GRAPH, GRAPH_NODE))
_OPERATOR = (EXTERNAL_ID, DIMS, TYPES, SEQUENCE, FORWARD_THREAD)
_DEVICE_WORK = (EXTERNAL_ID, CORRELATION, DEVICE, STREAM)
_LAUNCH = (EXTERNAL_ID, CORRELATION)
_MEMORY = (
    MEMORY_BYTES,
    MEMORY_ALLOCATED,
    MEMORY_RESERVED,
    MEMORY_ADDRESS,
    MEMORY_DEVICE,
    MEMORY_DEVICE_TYPE,
)
_KERNEL_GROUPS: _Groups = (
    *_COLLECTIVES,
    _GRAPHS,
    Group(b"provenance_key", (PROVENANCE,)),
    Group(b"cycles_ts", (CYCLES,)),
)
_COPY_GROUPS: _Groups = (Group(b"bytes", (BYTES,)), _GRAPHS, Group(b"cycles_ts", (CYCLES,)))
_RUNTIME_GROUPS: _Groups = (Group(b"num_cbs", (CONTROL_BLOCKS,)), Group(b"bytes", (BYTES,)))
_ANY = (EXTERNAL_ID, EXTERNAL_ID_OLD, CORRELATION, DEVICE, STREAM, BYTES)
_ANY_GROUPS: _Groups = (
    *_COLLECTIVES,
    Group(b"Input ", (DIMS, TYPES)),
    Group(b"num_cbs", (CONTROL_BLOCKS,)),
    Group(b"cycles_ts", (CYCLES,)),
    Group(b"Total Allocated", _MEMORY, MEMORY_ALLOCATED),
    Group(b"TS", TICKS),
    Group(b"Power", (CHARGE,)),
    Group(b"Type", (TRANSFER_TYPE,)),
    Group(b"CollGroup", (TRANSFER_GROUP,)),
    Group(b"Peer", (PEER,)),
)

_BY_CATEGORY: dict[str, tuple[tuple[ArgColumn, ...], _Groups]] = {
    "cpu_op": (_OPERATOR, _COLLECTIVES),
    "python_function": ((), ()),
    "user_annotation": ((EXTERNAL_ID,), _COLLECTIVES),
    "gpu_user_annotation": (_DEVICE_WORK, ()),
    "kernel": (_DEVICE_WORK, _KERNEL_GROUPS),
    "gpu_memcpy": (_DEVICE_WORK, _COPY_GROUPS),
    "gpu_memset": (_DEVICE_WORK, _COPY_GROUPS),
    "cuda_runtime": (_LAUNCH, _RUNTIME_GROUPS),
    "cuda_driver": (_LAUNCH, _RUNTIME_GROUPS),
    "xpu_runtime": (_LAUNCH, _RUNTIME_GROUPS),
    "privateuse1_runtime": (_LAUNCH, _RUNTIME_GROUPS),
    "privateuse1_driver": (_LAUNCH, _RUNTIME_GROUPS),
    "cpu_instant_event": (_MEMORY, ()),
    "ac2g": ((), ()),
    "fwdbwd": ((), ()),
}


def wanted(category: str | None) -> tuple[ArgColumn, ...]:
    """Arguments that are looked for in every event of a category."""
    return _BY_CATEGORY[category][0] if category in _BY_CATEGORY else _ANY


def optional(category: str | None) -> _Groups:
    """Arguments that are looked for where a mark shows that they are there."""
    return _BY_CATEGORY[category][1] if category in _BY_CATEGORY else _ANY_GROUPS
