"""Why py-spy brought nothing, in its own words and ours."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from spyreprof_collectors import host

MISSING = "py-spy is not installed"
INSTALL = "pip install py-spy, into the environment of spyreprof"
ADD_CAPABILITY = (
    "Start the container with the capability SYS_PTRACE: docker run --cap-add SYS_PTRACE, or in Kubernetes "
    "securityContext.capabilities.add"
)
_UNSUPPORTED = re.compile(r"Unsupported version of Python: (\d{1,2}\.\d{1,3})", re.IGNORECASE)
_NO_VERSION = "failed to find python version"
_CAP_SYS_PTRACE = 19
_MAX_WORDS_SHOWN = 40
_MAX_CHARACTERS_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there are no stacks, and how to get them; `lasting` when another try cannot help."""

    reason: str
    obtain: str | None
    lasting: bool = False


def explain(messages: str, pid: int, version: str | None, python: str | None) -> Trouble:
    """Read what py-spy said.

    Args:
        messages: the end of it, possibly empty.
        pid: the process that it was to sample.
        version: py-spy's, None where unknown.
        python: version of the process's Python, None where unknown.
    """
    name = f"py-spy {version}" if version else "py-spy"
    newer = "pip install --upgrade py-spy, or run the program on an older Python"
    said = own_words(messages)
    lowered = said.lower()
    unsupported = _UNSUPPORTED.search(said)
    if unsupported:
        return Trouble(f"python {unsupported.group(1)} is not readable by {name}", newer, lasting=True)
    if _NO_VERSION in lowered:
        if python is not None:
            minor = ".".join(python.split(".")[:2])
            return Trouble(f"python {minor} is not readable by {name}: {said}", newer, lasting=True)
        reason = f"{said}: the process is no Python, or one that {name} does not know"
        return Trouble(reason, "name a Python process, or upgrade py-spy", lasting=True)
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return _refused(said, pid)
    if not said:
        return Trouble("py-spy ended without a word and without a stack", None)
    return Trouble(f"py-spy said: {said}", None)


def own_words(messages: str) -> str:
    """What py-spy said of its failure: its error and the causes, without progress lines and its backtrace."""
    lines: list[str] = []
    for line in messages.splitlines():
        text = line.strip()
        if text.startswith("Stack backtrace"):
            break
        if text and not text.startswith("py-spy>") and text != "Caused by:":
            lines.append(text.removeprefix("Error: ").rstrip(".:"))
    words = ", ".join(lines[-4:]).split()
    return " ".join(word for word in words[:_MAX_WORDS_SHOWN] if word.isprintable())[:_MAX_CHARACTERS_SHOWN]


def may_ptrace_everything() -> bool:
    """Whether this process holds CAP_SYS_PTRACE."""
    for line in host.read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    return False


def ptrace_scope() -> str:
    """The kernel's kernel.yama.ptrace_scope; empty where it has none."""
    return host.read_text(Path("/proc/sys/kernel/yama/ptrace_scope")).strip()


def owner(pid: int) -> int | None:
    """User id that a process belongs to; None when it is gone."""
    try:
        return Path("/proc", str(pid)).stat().st_uid
    except OSError:
        return None


def _refused(said: str, pid: int) -> Trouble:
    """The same words come from a missing capability, another user's process, an old kernel, another interpreter."""
    reason = f"py-spy was refused: {said}"
    uid = owner(pid)
    if may_ptrace_everything():
        reason += "; SYS_PTRACE is held, so the cause is another one"
        return Trouble(reason, "look at the kernel (4.7 or later), at seccomp, and at the interpreter", lasting=True)
    if uid is not None and uid != os.geteuid():
        return Trouble(f"{reason}; the process belongs to another user", "run as that user, or as root", lasting=True)
    if host.container() is not None:
        return Trouble(f"{reason}; this is a container", ADD_CAPABILITY, lasting=True)
    if ptrace_scope() not in {"", "0"}:
        reason += f"; kernel.yama.ptrace_scope is {ptrace_scope()}"
        return Trouble(reason, "sudo sysctl kernel.yama.ptrace_scope=0, or run as root", lasting=True)
    return Trouble(reason, "run as root, or look at seccomp and at the kernel (4.7 or later)", lasting=True)
