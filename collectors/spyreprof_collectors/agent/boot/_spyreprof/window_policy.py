"""When a profiler window opens, and for how many steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .step_names import Kind

# Steps without a compilation before a window: what follows one is not yet the steady state.
_QUIET_STEPS = 10
# Steps of a kind whose length speaks for the next one.
_RECENT_STEPS = 3


@dataclass(frozen=True)
class WindowSettings:
    """Bounds of the windows of one process.

    Attributes:
        steps: steps to record of each kind of step.
        operators: operators that one window may hold, since stopping and exporting cost time for each.
        max_step_s: longer steps are not recorded.
        after_steps, after_s: the process is warm after so many steps and so long after the first.
        between_s: rest before the windows of another kind of step, or of another round.
        rounds: how often each kind of step is recorded.
    """

    steps: int = 4
    operators: int = 20_000
    max_step_s: float = 0.5
    after_steps: int = 20
    after_s: float = 5.0
    between_s: float = 5.0
    rounds: int = 1

    @classmethod
    def chosen(cls, options: dict[str, object]) -> WindowSettings:
        """Take what is set, and is a number, from the launcher's options."""
        known = {field.name for field in fields(cls)}
        taken: dict[str, Any] = {
            name: value
            for name, value in options.items()
            if name in known and isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        }
        return cls(**taken)


class _OneKind:
    """What is known of one kind of step."""

    def __init__(self, rounds: int) -> None:
        self.recent_ns: deque[int] = deque(maxlen=_RECENT_STEPS)
        self.rounds_left = rounds
        self.operators_per_step: int | None = None
        self.counting = False
        self.told: set[str] = set()


class WindowPolicy:
    """Decides per step; both kinds of step are wanted, each first for one step, which counts its operators.

    Operators cannot be counted while they are recorded, and their number is what a window costs.
    """

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self._kinds: dict[Kind, _OneKind] = {
            "context": _OneKind(settings.rounds),
            "generation": _OneKind(settings.rounds),
        }
        self._steps = 0
        self._first_ns: int | None = None
        # When a window was last known to open or close: the other kind of step rests from then on.
        self._last_ns: int | None = None
        self._compiles = 0
        self._quiet_steps = 0

    def done(self) -> bool:
        """Tell whether no further window will be asked for."""
        return all(not kind.rounds_left for kind in self._kinds.values())

    def step_ended(self, kind: Kind, start_ns: int, end_ns: int, compiles: int) -> None:
        """Note a step and the number of compilations so far."""
        if self._first_ns is None:
            self._first_ns = start_ns
        self._steps += 1
        self._quiet_steps = self._quiet_steps + 1 if compiles == self._compiles else 0
        self._compiles = compiles
        self._kinds[kind].recent_ns.append(end_ns - start_ns)

    def steps_wanted(self, kind: Kind, now_ns: int) -> tuple[int, str | None]:
        """Say for how many steps a window should open at a step that begins; 0 for none.

        Returns:
            The number, and with 0 the reason when this refusal is to be recorded: once per kind and reason.
        """
        settings, known = self.settings, self._kinds[kind]
        if not known.rounds_left or known.counting or not self._steady(known, now_ns):
            return 0, None
        if max(known.recent_ns) > settings.max_step_s * 1e9:
            return 0, self._tell_once(known, f"recent steps are longer than {settings.max_step_s:g} s")
        if known.operators_per_step is None:
            rested = self._last_ns is None or now_ns - self._last_ns >= settings.between_s * 1e9
            return (1, None) if rested else (0, None)
        return min(settings.steps - 1, settings.operators // max(known.operators_per_step, 1)), None

    def longest_recent_s(self, kind: Kind) -> float:
        """How long the longest of the last steps of this kind took, in seconds; 0 before the first."""
        return max(self._kinds[kind].recent_ns, default=0) / 1e9

    def opened(self, kind: Kind, now_ns: int) -> None:
        """Note that a window opened at a step of this kind."""
        self._kinds[kind].counting = True
        self._last_ns = now_ns

    def closed(self, kind: Kind, steps: int, operators: int | None, now_ns: int) -> str | None:
        """Note that a window closed and how many operators its steps held; None when nothing was recorded.

        Returns:
            A reason to record when no further window of this kind can follow.
        """
        known = self._kinds[kind]
        known.counting = False
        self._last_ns = now_ns
        if not operators or not steps:
            return None
        counted_before = known.operators_per_step is not None
        known.operators_per_step = -(-operators // steps)
        follows = min(self.settings.steps - 1, self.settings.operators // known.operators_per_step)
        if not counted_before and follows > 0:
            return None
        known.rounds_left -= 1
        known.operators_per_step = None
        if not counted_before and self.settings.steps > 1:
            return self._tell_once(
                known, f"one step holds {operators // steps} operators, a window at most {self.settings.operators}"
            )
        return None

    def _steady(self, known: _OneKind, now_ns: int) -> bool:
        return (
            self._first_ns is not None
            and self._steps >= self.settings.after_steps
            and now_ns - self._first_ns >= self.settings.after_s * 1e9
            and self._quiet_steps >= min(_QUIET_STEPS, self.settings.after_steps)
            and len(known.recent_ns) == _RECENT_STEPS
        )

    @staticmethod
    def _tell_once(known: _OneKind, reason: str) -> str | None:
        if reason in known.told:
            return None
        known.told.add(reason)
        return reason
