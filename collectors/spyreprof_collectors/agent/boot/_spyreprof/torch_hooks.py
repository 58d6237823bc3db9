"""What is hooked once the program has imported torch."""

from __future__ import annotations

import json
import os
import sys

from . import dynamo, torch_steps, windows
from .window_policy import WindowSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .install import Agent


def install(agent: Agent, torch: Any) -> None:
    """Hook torch; each hook that fails is recorded and leaves the others in place."""
    process = agent.process
    process.note("versions", torch=str(torch.__version__), **_other_versions())
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


def _other_versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("vllm", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        found[name] = version if isinstance(version, str) else None
    return found
