"""What is hooked once the program has imported torch."""

from __future__ import annotations

import json
import os
import sys

from . import collectives, dynamo, model_facts, torch_steps, windows
from .window_policy import WindowSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .install import Agent


def install(agent: Agent, torch: Any) -> None:
    """Hook torch; each hook that fails is recorded and leaves the others in place."""
    process = agent.process
    _tell_versions(agent, torch)
    agent.imports.when_imported("vllm", lambda _: _tell_versions(agent, torch))
    try:
        steps = torch_steps.install(agent, torch)
    except Exception as error:
        process.hook_failed(torch_steps.HOOK, error)
        return
    if steps is None:
        return
    try:
        dynamo.install(agent, steps)
    except Exception as error:
        process.hook_failed(dynamo.COMPILE_HOOK, error)
    try:
        collectives.install(agent, torch)
    except Exception as error:
        process.hook_failed(collectives.HOOK, error)
    try:
        model_facts.ModelFacts(agent, torch, steps).install()
    except Exception as error:
        process.hook_failed(model_facts.HOOK, error)
    window = options().get("window")
    if not isinstance(window, dict):
        process.hook(windows.HOOK, "disabled", "no profiler window was asked for")
        return
    try:
        windows.Windows(agent, torch, steps, WindowSettings.chosen(window)).install()
    except Exception as error:
        process.hook_failed(windows.HOOK, error)


def options() -> dict[str, Any]:
    """Read what the launcher asked for. {} when it asked for nothing that can be read."""
    try:
        chosen = json.loads(os.environ.get("SPYREPROF_OPTIONS") or "{}")
    except ValueError:
        return {}
    return chosen if isinstance(chosen, dict) else {}


def _tell_versions(agent: Agent, torch: Any) -> None:
    found: dict[str, object] = {"torch": str(torch.__version__)}
    for name in ("vllm", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        found[name] = version if isinstance(version, str) else None
    agent.process.note("versions", **found)
