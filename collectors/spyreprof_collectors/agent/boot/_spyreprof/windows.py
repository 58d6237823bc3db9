"""Bounded profiler windows at step boundaries: the policy asks, the guard allows, the window records."""

from __future__ import annotations

import os
from time import monotonic_ns

from .process import REASON_LENGTH
from .profiler_guard import ProfilerGuard
from .profiler_window import ProfilerWindow, compress, make_profile
from .step_names import kind_of
from .threads import allocate_lock, get_ident, start_new_thread
from .torch_steps import device_kind
from .window_policy import WindowPolicy, WindowSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .install import Agent
    from .step_names import Kind
    from .steps import Steps

HOOK = "torch.profiler"
KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL"
# Kineto prints two lines per window below this level; it reads the level once, when the process's first opens.
_SILENT = "99"
# Attribute of torch.version -> device files of a build's accelerators; /dev/dxg is a GPU under WSL.
_DEVICE_FILES = {
    "cuda": ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"),
    "hip": ("/dev/kfd",),
    "xpu": ("/dev/dri",),
}
# A window open for so much longer than its steps should take is closed from the flusher: all threads are recorded, so
# that it grows beyond its operators.
_PATIENCE_S = 2.0
# After so many windows in a row that the program's own profiler cut short, no further one is tried.
_RETRIES = 8
# At the end of the program a trace that is being compressed is waited for so long.
_END_PATIENCE_S = 5.0
# And so long a window that another thread opens or closes: a watchdog ends a program that hangs, perhaps right there.
_LOCK_PATIENCE_S = 2.0


class Windows:
    """Observer of the steps that opens and closes the windows of this process."""

    _policy: WindowPolicy
    _window: ProfilerWindow | None
    _number: int
    _retries_left: int
    _refused: set[str]
    # One lock per trace that is still being compressed, released when it is done.
    _unfinished: list[Any]

    def __init__(self, agent: Agent, torch: Any, steps: Steps, settings: WindowSettings) -> None:
        self._agent = agent
        self._torch = torch
        self._steps = steps
        self._settings = settings
        self._guard = ProfilerGuard(torch.autograd.profiler)
        self._guard.yield_window = self._make_way
        self._kineto_ready = False
        self._torch_thread = get_ident()
        self._start_over()

    def install(self) -> None:
        """Cover the program's profilers and bring Kineto up; called in the thread that imported torch."""
        process = self._agent.process
        missing = ProfilerGuard.missing(self._torch.autograd.profiler)
        if missing is not None:
            process.hook(HOOK, "missing", f"{missing} is not there")
            return
        try:
            make_profile(self._torch, None)
        except (TypeError, AttributeError) as error:
            process.hook(HOOK, "missing", f"this torch cannot profile all threads: {error}")
            return
        os.makedirs(f"{self._agent.folder}/traces", mode=0o700, exist_ok=True)
        self._guard.install()
        self._warm_up()
        self._steps.observers.append(self)
        process.before_closing.append(self.program_ends)
        process.before_fork.append(self._fork_begins)
        process.after_fork_in_child.append(self.forked)
        self._agent.on_tick.append(self.tick)
        process.hook(HOOK, "ok")

    def step_begins(self, name: str) -> None:
        """Open a window before this step, where one is wanted and allowed."""
        if self._window is not None or self._policy.done():
            return
        kind = kind_of(name)
        if kind is None:
            return
        wanted, refusal = self._policy.steps_wanted(kind, monotonic_ns())
        if wanted:
            refusal = self._open(kind, wanted)
        if refusal is not None:
            self._refuse(refusal)

    def step_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """Close the window after its last step; leave when all is recorded."""
        kind = kind_of(name)
        if kind is not None:
            self._policy.step_ended(kind, start_ns, end_ns, self._steps.compiles)
        window = self._window
        if window is None:
            if self._policy.done():
                self._leave()
            return
        if window.thread == get_ident() and start_ns >= window.began_ns:
            window.steps += 1
            if window.steps >= window.step_limit:
                self.close("saved", None)

    def close(self, state: str, reason: str | None, patience_s: float = -1, in_thread: bool = True) -> None:
        """Close the open window, if there is one, from whatever thread.

        Args:
            state, reason: what its row says when all goes well.
            patience_s: wait at most so long for a window that another thread opens or closes; -1 for no limit.
            in_thread: compress the trace in a thread of its own, so that the program goes on meanwhile.

        Raises:
            TimeoutError: the other thread took longer.
        """
        lock = self._guard.lock
        if not lock.acquire(timeout=patience_s):
            raise TimeoutError(f"a window was opening or closing for more than {patience_s:g} s")
        try:
            window, self._window = self._window, None
            if window is None:
                return
            self._steps.window_open = False
            plain: str | None = None
            if window.steps:
                plain = f"{self._agent.folder}/traces/.{self._agent.writer.writer_id}-{window.number}.json"
            try:
                if not window.close(self._guard, plain):
                    state, reason, plain = "stolen", "another profiler took over", None
            except Exception as error:
                _remove(plain)
                state, reason, plain = "failed", _reason(error), None
            window.resumed_ns = monotonic_ns()
        finally:
            lock.release()
        if state == "saved":
            self._retries_left = _RETRIES
        else:
            self._retries_left = self._retries_left - 1 if state == "yielded" else 0
        if plain is None:
            self._finish(window, state, reason, None)
            return
        finished = allocate_lock()
        finished.acquire()
        self._unfinished.append(finished)
        work = (window, state, reason, plain, finished)
        if not in_thread or not _started(self._finish_and_release, work):
            self._finish_and_release(*work)

    def tick(self) -> None:
        """Close a window whose steps do not come."""
        window = self._window
        if window is not None:
            limit_s = _PATIENCE_S + window.step_limit * self._policy.longest_recent_s(window.kind)
            if monotonic_ns() - window.began_ns > limit_s * 1e9:
                self.close("saved", f"its steps did not come within {limit_s:.1f} s")

    def program_ends(self) -> None:
        """Close and save before the process is gone."""
        self.close("saved", "the program ended", _LOCK_PATIENCE_S)
        # Each once: a process that survives its signal comes here again.
        while self._unfinished:
            self._unfinished.pop().acquire(timeout=_END_PATIENCE_S)

    def _fork_begins(self) -> None:
        # A thread begun here would be one more that the program did not have when it forks.
        self.close("yielded", "the program forked", in_thread=False)

    def forked(self) -> None:
        """Start over in a forked child, under its own writer."""
        self._guard.forked()
        self._start_over()
        if self not in self._steps.observers:
            self._steps.observers.append(self)

    def _start_over(self) -> None:
        self._policy = WindowPolicy(self._settings)
        self._window = None
        self._number = 0
        self._retries_left = _RETRIES
        self._refused = set()
        self._steps.window_open = False
        self._unfinished = []

    def _make_way(self) -> None:
        """Close our window before the program's profiler opens, which no fault of ours may prevent."""
        try:
            self.close("yielded", "the program opened its own profiler")
        except Exception as error:
            self._leave()
            self._agent.process.hook_failed(HOOK, error)

    def _warm_up(self) -> None:
        """Bring Kineto up with an empty window, while that is known to be harmless.

        Kineto decides once per process whether it will see a device: with an accelerator within reach that must not
        be decided here.
        """
        if accelerator_within_reach(self._torch):
            return
        with self._guard.lock:
            if not self._guard.busy():
                window = ProfilerWindow("context", 0, 0)
                self._start(window, None)
                window.close(self._guard, None)

    def _open(self, kind: Kind, steps: int) -> str | None:
        """Open a window; returns why not, when that is to be recorded."""
        device, refusal = self._device()
        if refusal is None and self._retries_left <= 0:
            refusal = "other profilers cut too many windows short"
        if refusal is not None:
            self._leave()
            return refusal
        with self._guard.lock:
            if self._guard.busy():
                return None
            self._number += 1
            window = ProfilerWindow(kind, self._number, steps)
            self._start(window, device)
            self._policy.opened(kind, window.opening_ns)
            self._window = window
            self._steps.window_open = True
        return None

    def _start(self, window: ProfilerWindow, device: str | None) -> None:
        """Start a window; the first one of the process keeps Kineto's lines out of the program's output."""
        silenced = not self._kineto_ready and KINETO_LOG_LEVEL not in os.environ
        if silenced:
            os.environ[KINETO_LOG_LEVEL] = _SILENT
        try:
            window.open(self._guard, self._torch, device)
            self._kineto_ready = True
        finally:
            if silenced:
                del os.environ[KINETO_LOG_LEVEL]

    def _device(self) -> tuple[str | None, str | None]:
        """Name the device to record beside the CPU, or the reason to record nothing."""
        kind = device_kind(self._torch)
        if kind == "cpu" and accelerator_within_reach(self._torch):
            return None, (
                "the program has not brought up its accelerator; a window of the CPU alone would hide the device "
                "from the program's own windows later"
            )
        if not self._kineto_ready and get_ident() != self._torch_thread:
            # It works elsewhere, but says so on the program's standard error.
            return None, "torch's profiler must first be started in the thread that imported torch"
        return (None if kind == "cpu" else kind), None

    def _finish_and_release(
        self, window: ProfilerWindow, state: str, reason: str | None, plain: str, finished: Any
    ) -> None:
        try:
            self._finish(window, state, reason, plain)
        except Exception as error:
            self._agent.process.hook_failed(HOOK, error)
        finally:
            finished.release()

    def _finish(self, window: ProfilerWindow, state: str, reason: str | None, plain: str | None) -> None:
        """Compress the trace, write the window's row, tell the policy."""
        operators = name = None
        if plain is not None:
            name = f"traces/{self._agent.writer.writer_id}-{window.number}.pt.trace.json.gz"
            try:
                operators = compress(plain, f"{self._agent.folder}/{name}")
            except Exception as error:
                _remove(plain)
                _remove(f"{self._agent.folder}/{name}")
                state, reason, name = "failed", _reason(error), None
        times = {
            "t0": window.opening_ns,
            "t1": window.began_ns,
            "t2": window.ended_ns,
            "t3": window.resumed_ns,
            "epoch_ns": window.began_epoch_ns,
        }
        self._write(window.number, state, reason, **times, steps=window.steps, operators=operators, file=name)
        no_more = self._policy.closed(window.kind, window.steps, operators, monotonic_ns())
        if no_more is not None:
            self._refuse(no_more)

    def _leave(self) -> None:
        if self in self._steps.observers:
            self._steps.observers.remove(self)

    def _refuse(self, reason: str) -> None:
        if reason not in self._refused:
            self._refused.add(reason)
            self._number += 1
            now_ns = monotonic_ns()
            self._write(self._number, "skipped", reason, t0=now_ns, t1=None, t2=None, t3=now_ns, steps=0)

    def _write(self, number: int, state: str, reason: str | None, **fields: object) -> None:
        row = {"k": "window", "n": number, "operators": None, "file": None, **fields}
        self._agent.writer.add_now("window", {**row, "state": state, "reason": reason})


def _started(function: Callable[..., object], arguments: tuple[object, ...]) -> bool:
    try:
        start_new_thread(function, arguments)
    except Exception:  # the thread limit is reached, or the interpreter is ending
        return False
    return True


def _remove(path: str | None) -> None:
    """Remove what a failed export left, if it did; on a full disk it holds the space that rows need.

    Kineto writes to the same name with .tmp first, as `compress` does.
    """
    for left in (path, f"{path}.tmp") if path is not None else ():
        if os.path.exists(left):
            os.unlink(left)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_LENGTH]


def accelerator_within_reach(torch: Any) -> bool:
    """Tell whether this torch was built for an accelerator of which the machine shows a device file.

    The usual torch wheel is a CUDA build, on machines without a GPU too; there Kineto has no device to miss.
    """
    version = torch.version
    return any(
        getattr(version, name, None) is not None and any(os.path.exists(path) for path in paths)
        for name, paths in _DEVICE_FILES.items()
    )
