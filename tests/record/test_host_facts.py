"""Facts of the machine, read from files that a test can replace."""

from __future__ import annotations

from pathlib import Path

import pytest

from spyreprof_collectors import host


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Contents by path, in place of the kernel's files."""
    contents: dict[str, str] = {}
    monkeypatch.setattr(host, "read_text", lambda path: contents.get(str(path), ""))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return contents


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7763\n", "AMD EPYC 7763"),
        ("processor\t: 0\ncpu\t\t: POWER10, altivec supported\n", "POWER10, altivec supported"),
        ("vendor_id       : IBM/S390\nprocessor 0: version = FF,  machine = 3931\n", "version = FF,  machine = 3931"),
        ("", None),
    ],
)  # fmt: skip
def test_the_processor_is_named_on_every_architecture(files: dict[str, str], text: str, model: str | None) -> None:
    files["/proc/cpuinfo"] = text
    assert host.cpu_model() == model


@pytest.mark.parametrize(
    ("machine", "text", "virtual"),
    [
        ("x86_64", "flags\t\t: fpu vme hypervisor avx2\n", True),
        ("x86_64", "flags\t\t: fpu vme avx2\n", False),
        ("x86_64", "flags\t\t: fpu nohypervisor\n", False),
        ("ppc64le", "cpu\t\t: POWER10\n", None),
        ("s390x", "", True),
    ],
)
def test_a_machine_is_virtual_where_its_processors_say_so_and_unknown_where_they_say_nothing(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, machine: str, text: str, virtual: bool | None
) -> None:
    files["/proc/cpuinfo"] = text
    monkeypatch.setattr(host.platform, "machine", lambda: machine)
    assert host.virtual() is virtual


def test_memory_is_in_bytes_and_unknown_where_unreadable(files: dict[str, str]) -> None:
    assert host.memory_bytes() is None
    files["/proc/meminfo"] = "MemTotal:       24684092 kB\nMemFree: 1 kB\n"
    assert host.memory_bytes() == 24_684_092 * 1024


def test_what_cannot_be_read_is_missing_and_not_zero(files: dict[str, str]) -> None:
    facts = host.host_facts()
    assert facts["memory_bytes"] is facts["cpu_model"] is facts["l3_bytes"] is facts["virtual"] is None


@pytest.mark.parametrize(
    ("contents", "limits"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000\n", "/sys/fs/cgroup/memory.max": "max\n"}, (1.5, None)),
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n", "/sys/fs/cgroup/memory.max": "1000\n"}, (None, 1000)),
        (
            {
                "/proc/self/cgroup": "0::/user/app\n",
                "/sys/fs/cgroup/user/app/cpu.max": "50000 100000",
                "/sys/fs/cgroup/cpu.max": "max 100000",
            },
            (0.5, None),
        ),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            (2.0, None),
        ),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_limits_of_the_control_group(
    files: dict[str, str], contents: dict[str, str], limits: tuple[float | None, int | None]
) -> None:
    files.update(contents)
    assert host.cgroup_limits() == limits


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [
        ("0::/kubepods/besteffort/pod1\n", "kubernetes"), ("1:name=systemd:/docker/abc\n", "docker"),
        ("0::/machine.slice/libpod-abc.scope\n", "podman"), ("1:cpu:/lxc/x\n", "lxc"), ("0::/init.scope\n", None),
    ],
)  # fmt: skip
def test_the_kind_of_container_is_named(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, cgroup: str, kind: str | None
) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    files["/proc/1/cgroup"] = cgroup
    assert host.container() == kind


def test_a_real_file_that_is_missing_reads_as_empty(tmp_path: Path) -> None:
    assert host.read_text(tmp_path / "missing") == ""
