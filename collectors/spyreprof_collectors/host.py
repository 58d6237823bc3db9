"""Facts of this machine that explain a run's speed."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def host_facts() -> dict[str, object]:
    """Describe the machine for the manifest; a fact that cannot be read is None."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "kernel": platform.release(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "affinity": affinity(),
        "memory_bytes": memory_bytes(),
        "l3_bytes": l3_bytes(),
        "container": container(),
        "virtual": virtual(),
    }


def affinity() -> list[int]:
    """CPUs that this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0))


def cpu_model() -> str | None:
    """Name of the first CPU as the kernel spells it: x86 `model name`, POWER `cpu`, s390x `processor 0`."""
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in {"model name", "cpu model", "cpu", "processor 0", "hardware"} and value.strip():
            return value.strip()
    return None


def memory_bytes() -> int | None:
    """Physical memory of the machine."""
    for line in read_text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def l3_bytes() -> int | None:
    """Size of the largest level-3 cache that CPU 0 sees; None where the kernel does not tell."""
    sizes: list[int] = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        text = read_text(index / "size").strip()
        if read_text(index / "level").strip() == "3" and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1], 1))
    return max(sizes, default=None)


def container() -> str | None:
    """Name the kind of container around this process; None outside one, as far as it shows."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    text = read_text(Path("/proc/1/cgroup"))
    for word, kind in (
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("libpod", "podman"),
        ("lxc", "lxc"),
    ):
        if word in text:
            return kind
    declared = read_text(Path("/run/systemd/container")).strip()
    return declared or None


def virtual() -> bool | None:
    """Whether the machine shares its processors with others through a hypervisor; None where the kernel tells nothing.

    x86 names a hypervisor among the flags of a processor, and s390x is always divided into partitions.
    """
    if platform.machine() == "s390x":
        return True
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return "hypervisor" in value.split()
    return None


def cgroup_limits() -> tuple[float | None, int | None]:
    """Limits of this process's control group: (CPUs, memory bytes); None where unlimited or unknown."""
    relative = "/"
    for line in read_text(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            relative = line[3:]
    for folder in (Path("/sys/fs/cgroup") / relative.lstrip("/"), Path("/sys/fs/cgroup")):
        quota = read_text(folder / "cpu.max").split()
        memory = read_text(folder / "memory.max").strip()
        if quota or memory:
            cpus = int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdigit() else None
            return cpus, int(memory) if memory.isdigit() else None
    return _cgroup_v1_limits()


def read_text(path: Path) -> str:
    """Text of a kernel file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cgroup_v1_limits() -> tuple[float | None, int | None]:
    root = Path("/sys/fs/cgroup")
    quota = read_text(root / "cpu/cpu.cfs_quota_us").strip()
    period = read_text(root / "cpu/cpu.cfs_period_us").strip()
    memory = read_text(root / "memory/memory.limit_in_bytes").strip()
    cpus = int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) > 0 else None
    # version 1 spells "no limit" as the largest page-aligned 63-bit number
    return cpus, int(memory) if memory.isdigit() and int(memory) < 1 << 62 else None
