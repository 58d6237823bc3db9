"""`spyreprof attach`: watch a program that runs already, from outside. Nothing enters it and nothing stops it."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from spyreprof.errors import EXIT_OUR_FAILURE, UserError
from spyreprof.recording import layout
from spyreprof.units import NS_PER_S
from spyreprof_collectors import folder
from spyreprof_collectors.launcher import Voice, shown
from spyreprof_collectors.manifest import CollectorState, Manifest
from spyreprof_collectors.metrics_page import NotPrometheusError, Page, UnreachableError
from spyreprof_collectors.metrics_poll import INTERVAL_S as METRICS_INTERVAL_S
from spyreprof_collectors.metrics_poll import MetricsCollector
from spyreprof_collectors.process import ending_signals, signal_name
from spyreprof_collectors.py_spy import TICK_S, PySpyCollector
from spyreprof_collectors.sampled_processes import BusyProcesses
from spyreprof_collectors.sampler import Sampler
from spyreprof_collectors.shards import ShardWriter
from spyreprof_collectors.target import Target
from spyreprof_collectors.usage import INTERVAL_S as USAGE_INTERVAL_S
from spyreprof_collectors.usage import UsageCollector

# How often the end of the process is looked for.
_LOOK_S = 0.2
# A page of a busy server may take its time; one that never answers is told of before anything is written.
_PAGE_TRIES = 3
_PAGE_PATIENCE_S = 5.0
_LAST_POLL_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """What `spyreprof attach` was asked for; `duration_s` None means until Ctrl-C or the end of the process."""

    pid: int | None = None
    url: str | None = None
    duration_s: float | None = None
    out: Path | None = None
    py_spy_rate_hz: int = 50
    quiet: bool = False


def attach(options: AttachOptions) -> int:
    """Watch until Ctrl-C, the end of the process, or the end of the time asked for.

    Returns:
        0, the exit code to leave with.

    Raises:
        UserError: there is nothing to watch, or the recording cannot be written.
    """
    if options.pid is None and options.url is None:
        raise UserError(
            "There is nothing to attach to.", "Name a process with --pid, a metrics page with --url, or both."
        )
    target = Target.open(options.pid) if options.pid is not None else None
    page = Page.of_url(options.url, "--url") if options.url is not None else None
    if page is not None:
        require_answer(page)
    # From here on signals end the watching in an orderly way; threads and py-spy are started with that mask.
    ending = ending_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    recording, is_new = folder.create(options.out, "attach")
    say = Voice(options.quiet)
    command, environment = (target.command(), target.environment()) if target is not None else ((), {})
    document = Manifest(command, environment, mode="attach")
    watch = Watch(recording, target, page, options.py_spy_rate_hz)
    try:
        document.write(recording)
    except OSError as error:
        folder.take_back(recording, is_new)
        raise folder.unwritable(shown(recording), error) from error
    say(f"recording into {shown(recording)}, until Ctrl-C{_other_ends(options)}")
    watch.start()
    end = _wait(target, options.duration_s, watch, say, ending)
    document.ended_ns = time.monotonic_ns()
    document.duration_reached = end.duration_reached
    document.interrupted = end.interrupted
    document.notes.append(end.sentence)
    seen = watch.stop()
    document.collectors = [*seen, *_not_asked_for(target is not None, page is not None)]
    try:
        document.write(recording)
        folder.tighten(recording)
    except OSError as error:
        raise UserError(
            f"The end of {shown(recording)} could not be written: {(error.strerror or str(error)).lower()}.",
            "What was seen until then is there; free some space, or attach with --out elsewhere.",
            exit_code=EXIT_OUR_FAILURE,
        ) from error
    say(end.sentence)
    for state in seen:
        if state.reason is not None and state.state != "ok":
            say(f"{state.name}: {state.reason}" + (f". Remedy: {state.obtain}" if state.obtain else ""))
    say(f"next: spyreprof report {shown(recording)}")
    return 0


def require_answer(page: Page) -> None:
    """Ask a metrics page once, so that a wrong address is told of at once.

    Raises:
        UserError: it does not answer, or not with metrics.
    """
    problem: Exception | None = None
    for _ in range(_PAGE_TRIES):
        problem = _ask(page)
        if problem is None:
            return
        if isinstance(problem, NotPrometheusError):
            break
    raise UserError(
        f"{page.url} gives no metrics: {problem}.",
        "Look at it with a browser or curl, and give the address that shows Prometheus text.",
    )


def _ask(page: Page) -> Exception | None:
    """Fetch the page within a time limit, whatever the server does; None when it answered."""
    outcome: list[Exception | None] = []

    def fetch() -> None:
        try:
            page.fetch()
            outcome.append(None)
        except (NotPrometheusError, UnreachableError) as error:
            outcome.append(error)

    # A server that sends a byte now and then holds a request for ever: the thread is left to it.
    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(_PAGE_PATIENCE_S)
    return outcome[0] if outcome else UnreachableError(f"no whole answer within {_PAGE_PATIENCE_S:g} s")


class Watch:
    """The collectors of an attachment. Start it with signals blocked, so that no thread takes one.

    Args:
        recording: where to write.
        target: the process to watch, if any.
        page: the metrics page to poll, if any.
        rate_hz: looks at the stacks per second and process.
    """

    def __init__(self, recording: Path, target: Target | None, page: Page | None, rate_hz: int) -> None:
        self._shards = {
            kind: ShardWriter(recording, kind) for kind in (layout.KIND_USAGE, layout.KIND_STACKS, layout.KIND_METRICS)
        }
        self._usage: UsageCollector | None = None
        self._py_spy: PySpyCollector | None = None
        self._metrics: MetricsCollector | None = None
        self._samplers: dict[str, Sampler] = {}
        if target is not None:
            ours = {os.getpid()}
            processes = BusyProcesses(target.pid)
            self._usage = UsageCollector(self._shards[layout.KIND_USAGE], target.pid, ours, with_root=True)
            self._usage.observers.append(processes.look)
            self._py_spy = PySpyCollector(self._shards[layout.KIND_STACKS], processes, rate_hz, ours)
            self._py_spy.prepare()
            self._samplers[layout.KIND_USAGE] = Sampler("usage", USAGE_INTERVAL_S, self._usage.sample)
            self._samplers[layout.KIND_STACKS] = Sampler("stacks", TICK_S, self._py_spy.sample)
        if page is not None:
            self._metrics = MetricsCollector(self._shards[layout.KIND_METRICS], recording, page)
            self._samplers[layout.KIND_METRICS] = Sampler("metrics", METRICS_INTERVAL_S, self._metrics.sample)

    def start(self) -> None:
        """Begin collecting."""
        for sampler in self._samplers.values():
            sampler.start()

    def has_no_stacks(self) -> bool:
        """Whether stacks were asked for, and trying for them is over."""
        return self._py_spy is not None and self._py_spy.has_given_up

    def stop(self) -> list[CollectorState]:
        """End collecting, leave no helper behind, and say what each collector got."""
        if self._metrics is not None:
            self._metrics.hurry()
            self._samplers[layout.KIND_METRICS].tick_now(_LAST_POLL_PATIENCE_S)
        for sampler in self._samplers.values():
            sampler.stop()
        states: list[CollectorState] = []
        if self._usage is not None:
            states.append(self._usage.state(self._fault(layout.KIND_USAGE)))
        if self._py_spy is not None:
            self._py_spy.finish()
            states.append(self._py_spy.state(self._fault(layout.KIND_STACKS)))
        if self._metrics is not None:
            self._metrics.finish()
            states.append(self._metrics.state(self._fault(layout.KIND_METRICS)))
        for shard in self._shards.values():
            shard.close()
        return states

    def _fault(self, kind: str) -> str | None:
        return self._samplers[kind].fault


@dataclass(frozen=True, slots=True)
class _End:
    sentence: str
    interrupted: bool = False
    duration_reached: bool = False


def _wait(
    target: Target | None, duration_s: float | None, watch: Watch, say: Voice, ending: frozenset[signal.Signals]
) -> _End:
    """Until a signal, the end of the process, or the end of the time. Stacks that will not come are told of at once."""
    told = False
    deadline_ns = None if duration_s is None else time.monotonic_ns() + int(duration_s * NS_PER_S)
    while True:
        left_s = _LOOK_S if deadline_ns is None else (deadline_ns - time.monotonic_ns()) / NS_PER_S
        info = signal.sigtimedwait(ending, min(max(left_s, 0.0), _LOOK_S))
        # Not every kernel waits to the end of the time without reporting a signal that is none.
        if info is not None and info.si_signo in ending:
            return _End(f"Detached after {signal_name(info.si_signo)}.", interrupted=True)
        if not told and watch.has_no_stacks():
            told = True
            say("no Python stacks can be had here; why is said at the end. The rest goes on.")
        if target is not None and target.has_ended():
            return _End(f"Process {target.pid} ended; its exit code is known to its parent alone.")
        if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
            return _End(f"Detached after {duration_s:g} s, as --duration asked.", duration_reached=True)


def _other_ends(options: AttachOptions) -> str:
    ends = [f"the end of process {options.pid}"] if options.pid is not None else []
    ends += [f"{options.duration_s:g} s have passed"] if options.duration_s is not None else []
    return f" or {' or '.join(ends)}" if ends else ""


def _not_asked_for(with_pid: bool, with_url: bool) -> list[CollectorState]:
    """What an attachment cannot see, or was not asked to."""
    states = [
        CollectorState(
            "agent",
            "unavailable",
            "attached from outside: nothing of ours is in the program, so its steps are not seen",
            "start the program with `spyreprof record`",
        )
    ]
    if not with_pid:
        states += [
            CollectorState(kind, "unavailable", "no process was named", "attach with --pid")
            for kind in (layout.KIND_USAGE, layout.KIND_STACKS)
        ]
    if not with_url:
        states.append(CollectorState(layout.KIND_METRICS, "unavailable", "no page was named", "attach with --url"))
    return states
