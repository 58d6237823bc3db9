"""The second way in: vLLM loads this through the entry point of the boot folder, in each of its processes."""

from __future__ import annotations


def register() -> None:
    """Install the agent where `site` did not, as under `python -S`; nothing where it did."""
    import os

    if not os.environ.get("SPYREPROF_DIR"):
        return
    from .install import install

    install("vllm_plugin")
