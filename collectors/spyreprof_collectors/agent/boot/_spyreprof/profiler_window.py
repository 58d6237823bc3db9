"""One bounded profiler window, from opening to the file."""

from __future__ import annotations

import os
import zlib
from time import monotonic_ns, time_ns

from .threads import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .profiler_guard import ProfilerGuard
    from .step_names import Kind

_CHUNK_BYTES = 1 << 20
_GZIP_WBITS = 31
# The least effort: on real traces a seventh of the size at several times the speed of the default.
_GZIP_LEVEL = 1
_OPERATOR = b'"cat": "cpu_op"'


class ProfilerWindow:
    """A profiler of ours: process-wide, with the shapes of operators.

    Attributes:
        kind: kind of the step that it was opened for.
        number: counts the windows of this process from 1.
        step_limit: close after this many steps.
        opening_ns, began_ns, ended_ns, resumed_ns: opening began, recording began, recording ended, the program
            went on.
        began_epoch_ns: `began_ns` on the wall clock, which traces are on and which may be set at any time.
        steps: engine steps inside.
        thread: identity of the thread that opened it.
    """

    def __init__(self, kind: Kind, number: int, step_limit: int) -> None:
        self.kind: Kind = kind
        self.number = number
        self.step_limit = step_limit
        self.steps = 0
        self.thread = get_ident()
        self.opening_ns = monotonic_ns()
        self.began_epoch_ns = self.began_ns = self.ended_ns = self.resumed_ns = 0
        self._profile: Any = None

    def open(self, guard: ProfilerGuard, torch: Any, device: str | None) -> None:
        """Start recording. The caller holds the guard's lock and has asked whether it is busy."""
        self._profile = make_profile(torch, device)
        guard.own(self._profile)
        try:
            self._profile._prepare_trace()
            self._profile._start_trace()
        except BaseException:
            guard.own(None)
            raise
        self.began_ns = monotonic_ns()
        self.began_epoch_ns = time_ns()

    def close(self, guard: ProfilerGuard, path: str | None) -> bool:
        """Stop recording and write the trace, as plain JSON, to `path`; None to drop it.

        The export holds the interpreter lock from end to end, so another thread would stop the program just as
        long, only unmeasured.

        Returns:
            False when another profiler took over: there is nothing to export, and trying would crash.
        """
        self.ended_ns = monotonic_ns()
        try:
            self._profile.__exit__(None, None, None)
        finally:
            guard.own(None)
        results = self._profile.kineto_results
        self._profile = None
        if results.trace_start_ns() == 0:
            return False
        if path is not None:
            results.save(path)
        return True


def make_profile(torch: Any, device: str | None) -> Any:
    """Build the profiler object, unopened.

    Raises:
        TypeError: this torch cannot record all threads; a window of one thread could not be closed from another.
    """
    config = torch._C._profiler._ExperimentalConfig
    try:
        # Without post-processing, a third of the stopping time; the exported file is the same.
        chosen = config(profile_all_threads=True, trace_only=True)
    except TypeError:
        chosen = config(profile_all_threads=True)
    return torch.autograd.profiler.profile(
        use_kineto=True, use_device=device, record_shapes=True, experimental_config=chosen
    )


def compress(source: str, target: str) -> int:
    """Compress a trace to its final name and remove the plain file.

    Returns:
        Number of operators in the trace.

    Raises:
        OSError: a file cannot be read or written.
    """
    operators = 0
    tail = b""
    unfinished = target + ".tmp"
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    with open(source, "rb") as plain, open(unfinished, "wb") as packed:
        while chunk := plain.read(_CHUNK_BYTES):
            operators += (tail + chunk).count(_OPERATOR)
            tail = chunk[-(len(_OPERATOR) - 1) :]
            packed.write(packer.compress(chunk))
        packed.write(packer.flush())
    os.replace(unfinished, target)
    os.unlink(source)
    return operators
