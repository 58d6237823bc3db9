"""Builds the table of Python stacks, and knows which functions wait.

What a look at a thread found is waiting when the kernel did not run the thread, or when its innermost Python function
is one whose purpose is to wait: some of them spin, and where the kernel's state of a thread is unknown they are all
there is to go by.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd

from spyreprof.recording import layout, schema
from spyreprof.recording.rows import StacksRow
from spyreprof.recording.shards import find_shards, read_rows
from spyreprof.recording.tables import frame as table_of

if TYPE_CHECKING:
    from spyreprof.recording.source import Source


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Files as the recorder shortens them. The functions named are innermost when a call into C waits below them, so that
# their own few lines of Python are counted along; that error is small against the waits.
_WAITING: dict[str, frozenset[str]] = {
    # locks, conditions, events, and the end of another thread
    "<stdlib>/threading.py": _names("wait wait_for join acquire _wait_for_tstate_lock"),
    "<stdlib>/queue.py": _names("get put"),
    # the pools' idle workers stand in SimpleQueue.get, which is C
    "<stdlib>/concurrent/futures/thread.py": _names("_worker"),
    "<stdlib>/concurrent/futures/process.py": _names("wait_result_broken_or_wakeup"),
    # epoll, poll and select: an event loop with nothing to do, or a server without a client
    "<stdlib>/selectors.py": _names("select"),
    # an event loop written in C, such as uvloop, has no Python frame of its own while it waits
    "<stdlib>/asyncio/runners.py": _names("run"),
    "uvloop/__init__.py": _names("run wrapper"),
    "<stdlib>/socket.py": _names("accept readinto recv recv_into create_connection"),
    "<stdlib>/ssl.py": _names("read recv recv_into do_handshake"),
    "<stdlib>/subprocess.py": _names("wait _wait _try_wait communicate _communicate"),
    "<stdlib>/multiprocessing/connection.py": _names("wait poll _poll _recv _recv_bytes accept"),
    "<stdlib>/multiprocessing/popen_fork.py": _names("poll wait"),
    "<stdlib>/multiprocessing/queues.py": _names("get"),
    "<stdlib>/multiprocessing/synchronize.py": _names("wait acquire __enter__"),
    "zmq/sugar/poll.py": _names("poll"),
    "zmq/sugar/socket.py": _names("recv recv_multipart poll"),
    # vLLM's workers spin on shared memory until the scheduler sends the next step
    "vllm/distributed/device_communicators/shm_broadcast.py": _names("wait acquire_read acquire_write"),
    # the agent's own thread: no work of the program
    "_spyreprof/writer.py": _names("_run"),
}
# A function of this name gives the processor away, wherever it is: vLLM and others wrap the call like this.
_WAITING_ANYWHERE = _names("sched_yield")
_LARGEST = 2**63 - 1


def is_waiting(function: str, file: str) -> bool:
    """Whether an innermost function is one that waits. Python 3.11 and later say `Queue.get`, earlier ones `get`."""
    name = function.rpartition(".")[2]
    return name in _WAITING_ANYWHERE or name in _WAITING.get(file, ())


def read_stacks(source: Source, counts: Counter[str]) -> pd.DataFrame:
    """The stacks table, ordered by window."""
    rows: list[tuple[object, ...]] = []
    for shard in find_shards(source, layout.KIND_STACKS):
        for row in read_rows(source, shard.name, StacksRow, counts):
            if row.t1 >= row.t0:
                rows.extend(_rows_of(row))
    rows.sort(key=lambda row: (row[0], row[2]))
    names = [column.name for column in schema.STACKS]
    return table_of(schema.STACKS, {name: [row[i] for row in rows] for i, name in enumerate(names)})


def number_frames(table: pd.DataFrame) -> tuple[pd.DataFrame, tuple[tuple[str, str], ...]]:
    """Replace function and file by one number, the most frequent first.

    Returns:
        The table with `frame` (Int64, NA where there is none), and (function, file) by number.
    """
    known = table[table["function"].notna()]
    totals = known.groupby(["function", "file"], sort=True)["count"].sum().sort_values(ascending=False, kind="stable")
    frames = tuple((str(function), str(file)) for function, file in totals.index)
    numbers = {frame: number for number, frame in enumerate(frames)}
    pairs = zip(table["function"], table["file"], strict=True)
    found = [numbers.get((function, file)) if function is not pd.NA else None for function, file in pairs]
    return table.drop(columns=["function", "file"]).assign(frame=pd.array(found, dtype="Int64")), frames


def _rows_of(row: StacksRow) -> list[tuple[object, ...]]:
    start = (row.t0, row.t1, row.pid)
    window = (row.samples, row.rate_hz, row.sleeping)
    seen: Counter[tuple[str, tuple[str, str]]] = Counter()
    for thread in row.threads:
        for numbers, count in thread.stacks:
            if numbers and numbers[-1] < len(row.frames):
                seen[thread.thread, row.frames[numbers[-1]]] += count
    if not seen:
        return [(*start, None, *window, None, row.complete, None, None, None, 0)]
    return [
        (*start, thread, *window, thread.isdigit(), row.complete, *frame, is_waiting(*frame), min(count, _LARGEST))
        for (thread, frame), count in seen.items()
    ]
