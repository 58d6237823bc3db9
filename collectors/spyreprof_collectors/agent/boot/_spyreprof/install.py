"""The one way to install the agent, whoever asks and however often."""

from __future__ import annotations

import os

from . import http_servers
from .imports import PostImportFinder
from .process import Process
from .threads import RLock
from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .requests import Requests
    from .steps import Steps


class Agent:
    """The agent of this process: its shards, its own rows, and what it waits for.

    Attributes:
        folder: the recording folder.
        on_tick: called from the flusher thread, four times a second once steps have begun.
    """

    def __init__(self, folder: str, how: str) -> None:
        self.folder = folder
        self.writer = Writer(folder)
        self.process = Process(self.writer, how)
        self.imports = PostImportFinder(self.process.hook_failed)
        self.on_tick: list[Callable[[], None]] = [self.process.tick]
        self.writer.on_tick = self._tick
        self._steps: Steps | None = None
        self._requests: Requests | None = None
        # Two threads may import at once, and the program may fork meanwhile.
        self._making = RLock()
        self.process.after_fork_in_child.append(self._forked)

    @property
    def steps(self) -> Steps:
        """The steps of this process. Made for the first hook that asks: most processes of a program have none."""
        if self._steps is None:
            from .steps import Steps

            with self._making:
                if self._steps is None:
                    self._steps = Steps(self)
        return self._steps

    @property
    def requests(self) -> Requests:
        """The requests of this process, made likewise."""
        if self._requests is None:
            from .requests import Requests

            with self._making:
                if self._requests is None:
                    self._requests = Requests(self)
        return self._requests

    def _forked(self) -> None:
        self._making = RLock()

    def _tick(self) -> None:
        for callback in list(self.on_tick):
            try:
                callback()
            except Exception as error:
                self.on_tick.remove(callback)
                self.process.hook_failed("tick", error)


_agent: Agent | None = None


def install(how: str) -> Agent | None:
    """Install the agent into this process, once.

    Args:
        how: which way in asked: "sitecustomize" or "vllm_plugin".

    Returns:
        The agent; None when nothing records or the recording folder cannot be written.
    """
    global _agent  # noqa: PLW0603 - one agent per process, by definition
    folder = os.environ.get("SPYREPROF_DIR")
    if _agent is not None or not folder:
        return _agent
    agent = Agent(folder, how)
    if not agent.process.open():
        return None
    _agent = agent
    agent.process.hook_into_interpreter()
    agent.imports.install()
    http_servers.install(agent)
    agent.imports.when_imported("torch", _torch_arrived)
    agent.imports.when_imported("spyreprof_agent", _api_arrived)
    agent.imports.when_imported("transformers.generation.utils", _transformers_arrived)
    return agent


def _torch_arrived(torch: ModuleType) -> None:
    # Imported here and not at start-up: most processes of a program never see torch.
    from . import torch_hooks

    if _agent is not None:
        torch_hooks.install(_agent, torch)


def _api_arrived(module: ModuleType) -> None:
    from . import api

    if _agent is not None:
        api.install(_agent, module)


def _transformers_arrived(utils: ModuleType) -> None:
    from . import transformers_hook

    if _agent is not None:
        transformers_hook.install(_agent, utils)
