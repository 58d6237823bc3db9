"""Never two profilers at once: in torch 2.13 the second start takes over silently, and the first export crashes.

Every torch.profiler window passes through `torch.autograd.profiler.profile._prepare_trace` and `.__exit__`. They are
private names, so each is looked for, and without them no window of ours is ever opened.
"""

from __future__ import annotations

from .threads import RLock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Profilers that start in one call. They switch on process-wide state too, of other kinds.
_OTHERS = ("emit_itt", "emit_nvtx")


class ProfilerGuard:
    """Knows which profilers of the program are open, and closes ours before one opens.

    Attributes:
        lock: held while a window of ours opens or closes, and while the program's profiler is let in.
        yield_window: closes our window if one is open; called with the lock held, before the program's opens.
            What it raises would reach the program.
    """

    def __init__(self, profiler: Any) -> None:
        self.lock = RLock()
        self.yield_window: Callable[[], None] = lambda: None
        self._profiler = profiler
        self._ours: object = None
        # Identity of a profiler -> the thread that opened it.
        self._open: dict[int, int] = {}

    @staticmethod
    def missing(profiler: Any) -> str | None:
        """Say which name that the guard stands on is missing in `torch.autograd.profiler`."""
        for name in ("_prepare_trace", "_start_trace", "__exit__"):
            if not hasattr(getattr(profiler, "profile", None), name):
                return f"torch.autograd.profiler.profile.{name}"
        return None if hasattr(profiler, "_is_profiler_enabled") else "torch.autograd.profiler._is_profiler_enabled"

    def install(self) -> None:
        """Cover the entrances and exits of every profiler, once."""
        self._cover(self._profiler.profile, "_prepare_trace", "__exit__")
        for name in _OTHERS:
            if hasattr(self._profiler, name):
                self._cover(getattr(self._profiler, name), "__enter__", "__exit__")

    def busy(self) -> bool:
        """Tell whether a profiler of the program is open, or one that passed no entrance we know."""
        return bool(self._open) or bool(self._profiler._is_profiler_enabled)

    def own(self, profile: object) -> None:
        """Let this profiler pass: it is ours. None when ours has closed."""
        self._ours = profile

    def forked(self) -> None:
        """Start over in a forked child: what other threads of the parent held or had open, nobody gives back."""
        self.lock = RLock()
        self._ours = None
        self._open = {profile: thread for profile, thread in self._open.items() if thread == get_ident()}

    def _cover(self, owner: Any, entrance: str, exit_: str) -> None:
        enter, leave = getattr(owner, entrance), getattr(owner, exit_)
        if hasattr(enter, "_spyreprof"):
            return

        def entering(profile: Any, *arguments: Any, **keywords: Any) -> Any:
            if profile is self._ours or not getattr(profile, "enabled", True):
                return enter(profile, *arguments, **keywords)
            with self.lock:
                self._open[id(profile)] = get_ident()
                self.yield_window()
            try:
                return enter(profile, *arguments, **keywords)
            except BaseException:
                self._open.pop(id(profile), None)
                raise

        def leaving(profile: Any, *arguments: Any, **keywords: Any) -> Any:
            try:
                return leave(profile, *arguments, **keywords)
            finally:
                self._open.pop(id(profile), None)

        for function, original, name in ((entering, enter, entrance), (leaving, leave, exit_)):
            function._spyreprof = True  # type: ignore[attr-defined]
            function.__name__ = original.__name__
            function.__qualname__ = original.__qualname__
            function.__doc__ = original.__doc__
            function.__wrapped__ = original  # type: ignore[attr-defined]
            setattr(owner, name, function)
