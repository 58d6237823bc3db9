"""Knows which Python functions wait.

What a look at a thread found is waiting when the kernel did not run the thread, or when its innermost Python function
is one whose purpose is to wait: some of them spin, and where the kernel's state of a thread is unknown they are all
there is to go by.
"""

from __future__ import annotations


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


def is_waiting(function: str, file: str) -> bool:
    """Whether an innermost function is one that waits. Python 3.11 and later say `Queue.get`, earlier ones `get`."""
    name = function.rpartition(".")[2]
    return name in _WAITING_ANYWHERE or waits_in_file(name, file)


def waits_in_file(name: str, file: str) -> bool:
    """Whether a function, named without its class, is one that this file is known to wait in."""
    return name in _WAITING.get(file, ())
