"""Measures what this machine can do, in the program's own interpreter, before and after the program runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.units import NS_PER_S
from spyreprof_collectors import folder, host
from spyreprof_collectors.command import PythonProgram
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.process import Supervisor
from spyreprof_collectors.shards import count_rows, read_rows, shard_paths

TIME_LIMIT_S = 30.0
# What the whole costs on a 2-core machine, torch's import included; for the line that announces it.
USUAL_S = 10
# Whoever stops a container kills what is still there after 10 s: the recording must be complete by then.
TIME_LIMIT_AFTER_STOP_S = 7.0
# Between two runs of a series, one measurement serves both when no more time than this lies between them.
SHARED_GAP_S = 5.0
SCRIPT = Path(__file__).resolve().parent / "agent" / "calibrate.py"
_OUTPUT = ".calibration.out"


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """How torch was set up in the process that ran the steps."""

    threads: int
    affinity: tuple[int, ...]
    device_kind: str
    interpreter: str | None


@dataclass
class Calibration:
    """The two measurements of one recording. A reason of None means that a measurement was made."""

    supervisor: Supervisor
    recording: Path
    program: PythonProgram | None
    environment: Mapping[str, str]
    wanted: bool
    _before: str | None = "it did not come to it"
    _after: str | None = "it did not come to it"
    _facts: TorchFacts | None = None
    _after_measured_ns: int | None = None

    def may_run_before(self) -> bool:
        """Whether there is an interpreter to measure in before the program runs."""
        if not self.wanted:
            self._before = "switched off with --no-calibrate"
        elif self.program is None:
            self._before = "the command hides which Python interpreter it runs"
        else:
            return True
        return False

    def run_before(self) -> int | None:
        """Measure with one thread and with all.

        Returns:
            The signal that asked us to end meanwhile, or None.
        """
        if self.program is None:
            return None
        cpus = host.affinity()
        threads = {1, len(cpus)}
        declared = self.environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        if declared.isdigit() and 0 < int(declared) <= 4 * len(cpus):
            threads.add(int(declared))
        interpreter = self.program.interpreter
        self._before, came = self._measure(layout.CALIBRATION_BEFORE, interpreter, sorted(threads), cpus, TIME_LIMIT_S)
        return came

    def share_before(self, earlier: Calibration) -> bool:
        """Take the measurement after the run that ended a moment ago for the one before this run.

        Returns:
            False where there is none, where it is too old, or where it cannot be read: then measure.
        """
        measured_ns = earlier._after_measured_ns
        if not self.wanted or measured_ns is None or time.monotonic_ns() - measured_ns > SHARED_GAP_S * NS_PER_S:
            return False
        try:
            document = json.loads((earlier.recording / layout.CALIBRATION_AFTER).read_bytes())
            document["shared_with"] = f"{earlier.recording.name}/{layout.CALIBRATION_AFTER}"
            folder.write_json(self.recording / layout.CALIBRATION_BEFORE, document)
        except (OSError, ValueError, TypeError):
            return False
        self._before = None
        return True

    def may_run_after(self) -> bool:
        """Whether the program computed with torch on the CPU; call when its shards are complete."""
        self._facts = read_torch_facts(self.recording)
        if not self.wanted:
            self._after = "switched off with --no-calibrate"
        elif self._facts is None:
            self._after = "no process of the program ran steps with torch"
        elif self._facts.device_kind != "cpu":
            self._after = f"the program computed on {self._facts.device_kind}, not on the CPU"
        else:
            return True
        return False

    def run_after(self, stopped: bool) -> None:
        """Measure as the program computed: the same number of threads on the same CPUs.

        Args:
            stopped: somebody asked the launcher to end and may not wait long.
        """
        facts = self._facts
        if facts is None:
            return
        interpreter = facts.interpreter
        if interpreter is None:
            self._after = "the interpreter that ran the steps is gone"
            return
        cpus = list(facts.affinity) or host.affinity()
        limit_s = TIME_LIMIT_AFTER_STOP_S if stopped else TIME_LIMIT_S
        self._after, _ = self._measure(layout.CALIBRATION_AFTER, interpreter, [facts.threads], cpus, limit_s)
        self._after_measured_ns = time.monotonic_ns() if self._after is None else None

    def state(self) -> CollectorState:
        """What was measured, for the manifest."""
        if self._before is None and self._after is None:
            return CollectorState("calibration", "ok")
        obtain = "let `record` measure this machine: torch on the CPU, without --no-calibrate"
        if self._before == self._after:
            return CollectorState("calibration", "unavailable", self._before, obtain)
        reasons = [f"before: {self._before}"] if self._before else []
        reasons += [f"after: {self._after}"] if self._after else []
        state = "partial" if None in {self._before, self._after} else "unavailable"
        return CollectorState("calibration", state, "; ".join(reasons), obtain)

    def _measure(
        self, name: str, interpreter: str, threads: list[int], cpus: list[int], limit_s: float
    ) -> tuple[str | None, int | None]:
        """Run the script. Returns why it brought nothing (None: it did), and the signal that came."""
        output = self.recording / _OUTPUT
        argv = [interpreter, str(SCRIPT), "--threads", _joined(threads), "--affinity", _joined(cpus)]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file_actions = (
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, folder.FILE_MODE),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        )
        try:
            pid = self.supervisor.spawn(argv[0], argv, without_agent(self.environment), file_actions)
        except UserError as error:
            return error.problem, None
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
        if not document.get("results"):
            if document.get("torch") is None:
                return "the program's interpreter has no torch"
            return str(document.get("error") or "it ended without a result")
        document.setdefault("t", time.monotonic_ns())
        folder.write_json(self.recording / name, document)
        return None


def read_torch_facts(recording: Path) -> TorchFacts | None:
    """Read how torch was set up where the steps ran: the latest report of the process with the most steps."""
    steps = {writer: count_rows(path) for writer, path in shard_paths(recording, layout.KIND_STEPS)}
    best: TorchFacts | None = None
    most = 0
    for writer, path in shard_paths(recording, layout.KIND_PROCESS):
        if steps.get(writer, 0) <= most:
            continue
        executable: str | None = None
        for row in read_rows(path):
            threads = row.get("threads")
            if row.get("k") == "open":
                text = row.get("executable")
                executable = text if isinstance(text, str) and os.access(text, os.X_OK) else None
            elif row.get("k") == "torch" and isinstance(threads, int) and threads > 0:
                affinity = row.get("affinity")
                cpus = tuple(cpu for cpu in affinity if isinstance(cpu, int)) if isinstance(affinity, list) else ()
                best = TorchFacts(threads, cpus, str(row.get("device_kind") or "cpu"), executable)
                most = steps[writer]
    return best


def _joined(numbers: list[int]) -> str:
    return ",".join(str(number) for number in numbers)


def without_agent(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with nothing of an enclosing recording in it."""
    boot = str(SCRIPT.parent / "boot")
    rest = {name: value for name, value in environment.items() if not name.startswith("SPYREPROF_")}
    path = [part for part in rest.pop("PYTHONPATH", "").split(os.pathsep) if part and part != boot]
    if path:
        rest["PYTHONPATH"] = os.pathsep.join(path)
    return rest
