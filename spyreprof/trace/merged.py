"""Launches in files that several processes share, whose ids repeat: which process drove a device tells them apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spyreprof.trace.joins import Lookup
from spyreprof.trace.table import MISSING, EventTable, Flags, Integers

# A process did not drive a device where more than this part of the device's work would lack a launch of its own, or
# begin before it by more than clocks differ.
FOREIGN_RATIO = 0.01  # guessed
CLOCKS_DIFFER_NS = 1_000_000  # guessed
# So many links without doubt, all of them to one process, say that it drove the device.
MIN_LINKS = 10  # guessed
# Every device is held against every process; more of them than this are no ranks of one host.
MAX_PROCESSES = 256


def launch_by_process(table: EventTable, calls: Integers, work: Integers, launch: Integers, several: Flags) -> Integers:
    """The launch of each piece of work among those of one process that bear its correlation id.

    The process is the work's own. Else it is the one that can have launched all this work of its device, in time and
    number: the only one, or the one that launched all else of that device.

    Args:
        calls: rows that launch.
        work: rows to be linked; shape (k,).
        launch: what is linked already, by row.
        several: which rows may launch several pieces of work.

    Returns:
        Rows of calls, `MISSING` where the process is unknown; shape (k,).
    """
    if not len(work) or not len(calls):
        return np.full(len(work), MISSING, np.int64)
    code = np.unique(np.concatenate((table.correlation[calls], table.correlation[work])), return_inverse=True)[1]
    code = code.reshape(-1).astype(np.int64) * (len(table.pid_values) + 1) + 1
    told = table.correlation[calls] != MISSING
    lookup = Lookup(np.where(told, code[: len(calls)] + table.pid_code[calls], MISSING), calls)
    wanted = code[len(calls) :]
    device = table.pid_code[work].astype(np.int64)
    found = lookup.only(wanted + device)
    hosts = np.unique(table.pid_code[calls])
    devices = np.unique(device[found == MISSING])
    if len(hosts) > MAX_PROCESSES or len(devices) > MAX_PROCESSES:
        return found
    drove = _drove(table, launch)
    possible: dict[int, dict[int, Integers]] = {}
    places: dict[int, Integers] = {}
    for one in devices.tolist():
        places[one] = np.flatnonzero((device == one) & (found == MISSING))
        candidates = {
            host: lookup.only(wanted[places[one]] + host) for host in ([drove[one]] if one in drove else hosts)
        }
        possible[one] = {
            host: calls_of
            for host, calls_of in candidates.items()
            if _can_be(table, work[places[one]], calls_of, several)
        }
    while settled := [one for one, of in possible.items() if len(of) == 1]:
        taken = [next(iter(possible[one])) for one in settled]
        for one, host in zip(settled, taken, strict=True):
            if one in drove or taken.count(host) == 1:
                found[places[one]] = possible[one][host]
            del possible[one]
        # Each of its calls with these ids launched one piece of work, which is found.
        for of in possible.values():
            for host in taken:
                of.pop(host, None)
    return found


def _drove(table: EventTable, launch: Integers) -> dict[int, int]:
    """The process behind each device process of which enough work is linked, all of it to one."""
    linked = np.flatnonzero(launch != MISSING)
    device, host = table.pid_code[linked], table.pid_code[launch[linked]]
    drove = {}
    for one in np.unique(device).tolist():
        processes, count = np.unique(host[device == one], return_counts=True)
        if len(processes) == 1 and int(count[0]) >= MIN_LINKS:
            drove[one] = int(processes[0])
    return drove


def _can_be(table: EventTable, work: Integers, candidates: Integers, several: Flags) -> bool:
    """Whether the calls can have launched the work: each of them one piece, before it began."""
    there = candidates != MISSING
    wrong: npt.NDArray[np.bool_] = ~there
    wrong |= table.ts_ns[work] < table.ts_ns[candidates] - CLOCKS_DIFFER_NS
    single = candidates[there & ~several[candidates]]
    repeated = len(single) - len(np.unique(single))
    return int(wrong.sum()) + repeated <= FOREIGN_RATIO * len(work)
