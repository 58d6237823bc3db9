"""Measures what this machine can do, in the program's own interpreter, before and after the program runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof_collectors import folder, host
from spyreprof_collectors.command import PythonProgram
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.process import Supervisor
from spyreprof_collectors.shards import read_rows, shard_paths

TIME_LIMIT_S = 30.0
# What the whole costs on a 2-core machine, torch's import included; for the line that announces it.
USUAL_S = 10
# Whoever stops a container kills what is still there after 10 s: the recording must be complete by then.
TIME_LIMIT_AFTER_STOP_S = 7.0
SCRIPT = Path(__file__).resolve().parent / "agent" / "calibrate.py"
_OUTPUT = ".calibration.out"


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """How torch was set up in the process that ran the steps."""

    threads: int
    affinity: tuple[int, ...]
    device_kind: str


@dataclass
class Calibration:
    """The two measurements of one recording."""

    supervisor: Supervisor
    recording: Path
    program: PythonProgram | None
    environment: Mapping[str, str]
    _before: str | None = "was not run"
    _after: str | None = "was not run"

    def reason_to_skip(self, wanted: bool) -> str | None:
        """Why nothing can be measured before the program runs; None when it can."""
        if not wanted:
            return "switched off with --no-calibrate"
        if self.program is None:
            return "the program's Python interpreter is not known"
        if not SCRIPT.is_file():
            return "this installation lacks the calibration script"
        return None

    def run_before(self) -> int | None:
        """Measure with one thread and with all.

        Returns:
            The signal that asked us to end meanwhile, or None.
        """
        cpus = host.affinity()
        threads = {1, len(cpus)}
        declared = self.environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        if declared.isdigit() and 0 < int(declared) <= 4 * len(cpus):
            threads.add(int(declared))
        self._before, came = self._measure(layout.CALIBRATION_BEFORE, sorted(threads), cpus, TIME_LIMIT_S)
        return came

    def run_after(self, stopped: bool) -> None:
        """Measure as the program computed: the same number of threads on the same CPUs.

        Args:
            stopped: somebody asked the launcher to end and may not wait long.
        """
        facts = read_torch_facts(self.recording)
        if facts is None:
            self._after = "no process of the program ran steps with torch"
        elif facts.device_kind != "cpu":
            self._after = f"the program computed on {facts.device_kind}, not on the CPU"
        else:
            limit_s = TIME_LIMIT_AFTER_STOP_S if stopped else TIME_LIMIT_S
            cpus = list(facts.affinity) or host.affinity()
            self._after, _ = self._measure(layout.CALIBRATION_AFTER, [facts.threads], cpus, limit_s)

    @property
    def has_begun(self) -> bool:
        """Whether there is a first measurement, so that a second one has a meaning."""
        return self._before is None

    def skip(self, reason: str) -> None:
        """Note why nothing was measured."""
        self._before = self._after = reason

    def state(self) -> CollectorState:
        """What was measured, for the manifest."""
        if self._before is None and self._after is None:
            return CollectorState("calibration", "ok")
        obtain = "let `record` measure this machine: torch on the CPU, without --no-calibrate"
        if self._before is not None and self._before == self._after:
            return CollectorState("calibration", "unavailable", self._before, obtain)
        reasons = [f"before: {self._before}"] if self._before else []
        reasons += [f"after: {self._after}"] if self._after else []
        state = "partial" if None in {self._before, self._after} else "unavailable"
        return CollectorState("calibration", state, "; ".join(reasons), obtain)

    def _measure(self, name: str, threads: list[int], cpus: list[int], limit_s: float) -> tuple[str | None, int | None]:
        """Run the script. Returns why it brought nothing (None: it did), and the signal that came."""
        if self.program is None:
            return "the program's Python interpreter is not known", None
        output = self.recording / _OUTPUT
        argv = [self.program.interpreter, str(SCRIPT), "--threads", ",".join(str(count) for count in threads)]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file_actions = (
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, folder.FILE_MODE),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        )
        own_cpus = os.sched_getaffinity(0)
        try:
            # The measurement inherits the CPUs of the thread that starts it.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)
            pid = self.supervisor.spawn(argv[0], argv, without_agent(self.environment), file_actions)
        except UserError as error:
            return error.problem, None
        finally:
            os.sched_setaffinity(0, own_cpus)
        status, came = self.supervisor.wait_helper(pid, limit_s)
        text = host.read_text(output)
        output.unlink(missing_ok=True)
        if came is not None:
            return "a signal cut it short", came
        if status is None:
            return f"it took longer than {limit_s:g} s", None
        return self._keep(name, text), None

    def _keep(self, name: str, text: str) -> str | None:
        try:
            document = json.loads(text.strip().rpartition("\n")[2])
        except ValueError:
            document = None
        if not isinstance(document, dict):
            return "it ended without a result"
        error = document.get("error")
        if not document.get("results"):
            return str(error or "it ended without a result")
        document.setdefault("t", time.monotonic_ns())
        folder.write_json(self.recording / name, document)
        return None


def read_torch_facts(recording: Path) -> TorchFacts | None:
    """Read how torch was set up where the steps ran: the latest report of the process with the most steps."""
    best: TorchFacts | None = None
    most_bytes = 0
    sizes = {writer: path.stat().st_size for writer, path in shard_paths(recording, layout.KIND_STEPS) if path.exists()}
    for writer, path in shard_paths(recording, layout.KIND_PROCESS):
        if sizes.get(writer, 0) <= most_bytes:
            continue
        for row in read_rows(path):
            threads = row.get("threads")
            if row.get("k") == "torch" and isinstance(threads, int) and threads > 0:
                affinity = row.get("affinity")
                cpus = tuple(cpu for cpu in affinity if isinstance(cpu, int)) if isinstance(affinity, list) else ()
                best = TorchFacts(threads, cpus, str(row.get("device_kind") or "cpu"))
                most_bytes = sizes[writer]
    return best


def without_agent(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with nothing of an enclosing recording in it."""
    boot = str(SCRIPT.parent / "boot")
    rest = {name: value for name, value in environment.items() if not name.startswith("SPYREPROF_")}
    path = [part for part in rest.pop("PYTHONPATH", "").split(os.pathsep) if part and part != boot]
    if path:
        rest["PYTHONPATH"] = os.pathsep.join(path)
    return rest
