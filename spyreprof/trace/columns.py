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
    *TICKS,
)
