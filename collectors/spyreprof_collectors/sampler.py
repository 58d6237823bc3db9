"""One thread that calls a collector at a steady pace, and keeps its faults away from the program."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Sampler:
    """Calls `tick` every `interval_s` from its own thread, first at once. Start it with signals blocked."""

    def __init__(self, name: str, interval_s: float, tick: Callable[[], None]) -> None:
        self.fault: str | None = None
        self._tick = tick
        self._interval_s = interval_s
        self._wanted = threading.Event()
        self._stopping = False
        self._turn = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._thread = threading.Thread(target=self._run, name=f"spyreprof-{name}", daemon=True)

    def start(self) -> None:
        """Begin; where the system gives no thread, that is the fault."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self.fault = str(error)

    def tick_now(self, patience_s: float) -> None:
        """Have one call that begins after this moment, and wait for its end for at most `patience_s`."""
        with self._turn:
            goal = self._begun + 1
            self._wanted.set()
            self._turn.wait_for(lambda: self._ended >= goal or self.fault is not None, patience_s)

    def stop(self, patience_s: float = 2.0) -> None:
        """End after the call under way; a call that hangs longer than `patience_s` is left behind."""
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def _run(self) -> None:
        while not self._stopping and self.fault is None:
            self._wanted.clear()
            with self._turn:
                self._begun += 1
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001  the program must go on; the manifest says what stopped
                self.fault = f"stopped after {type(error).__name__}: {error}"
            with self._turn:
                self._ended += 1
                self._turn.notify_all()
            self._wanted.wait(self._interval_s)
