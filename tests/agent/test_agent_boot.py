"""The way in: what start-up does, and that nothing of the program's own start-up is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from agent_program import BOOT, run

MODULES = "import sys; print(sorted(name for name in sys.modules if 'spyreprof' in name), file=sys.stderr)"
OWN_SITE = 'import sys; sys.stderr.write("own sitecustomize\\n")'


def test_a_process_says_when_it_opened_and_how_it_ended(tmp_path: Path) -> None:
    ended = run(tmp_path, "import os; print(os.getpid(), os.getppid())")
    pid, ppid = map(int, ended.stdout.split())
    (opened,) = ended.process_rows("open")
    assert (opened["pid"], opened["ppid"], opened["how"]) == (pid, ppid, "sitecustomize")
    assert opened["python"] == ".".join(map(str, sys.version_info[:3]))
    assert abs(opened["epoch_ns"] / 1e9 - (tmp_path / "program.py").stat().st_mtime) < 600
    (closed,) = ended.process_rows("close")
    assert closed["how"] == "atexit"
    assert closed["t"] > opened["t"]


def test_without_a_recording_nothing_is_imported_or_written(tmp_path: Path) -> None:
    ended = run(tmp_path, MODULES, environment={"SPYREPROF_DIR": ""})
    assert ended.stderr == "[]\n"
    assert not list(tmp_path.rglob("*.jsonl"))


def test_start_up_imports_neither_re_nor_json_nor_threading(tmp_path: Path) -> None:
    program = "import sys; print(*sorted(sys.modules))"
    bare = set(run(tmp_path, program, agent=False).stdout.split())
    with_agent = set(run(tmp_path, program).stdout.split())
    assert "_spyreprof.install" in with_agent
    assert not {"re", "json", "threading", "typing", "dataclasses", "torch", "contextlib"} & (with_agent - bare)


def test_the_users_sitecustomize_on_pythonpath_runs_once_and_is_the_module(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(OWN_SITE)
    program = "import sitecustomize; print(sitecustomize.__file__)"
    bare = run(tmp_path, program, agent=False, paths=(own,))
    ended = run(tmp_path, program, paths=(own,))
    assert ended.stderr == bare.stderr == "own sitecustomize\n"
    assert ended.stdout == bare.stdout
    assert len(ended.process_rows("open")) == 1


def test_a_raising_sitecustomize_is_reported_as_python_does_and_the_program_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(OWN_SITE + "\nraise ValueError('from the user')")
    bare = run(tmp_path, "print('ran')", agent=False, paths=(own,))
    ended = run(tmp_path, "print('ran')", paths=(own,))
    assert "from the user" in bare.stderr
    assert (ended.code, ended.stdout, ended.stderr) == (bare.code, bare.stdout, bare.stderr)


def test_a_sitecustomize_that_misses_a_module_is_reported_as_python_does(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import no_such_module_anywhere")
    bare = run(tmp_path, "print('ran')", agent=False, paths=(own,))
    ended = run(tmp_path, "print('ran')", paths=(own,))
    assert "no_such_module_anywhere" in bare.stderr
    assert (ended.stdout, ended.stderr) == (bare.stdout, bare.stderr)


def test_a_venvs_own_sitecustomize_and_usercustomize_run_once(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, system_site_packages=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(where, "sitecustomize.py").write_text(OWN_SITE)
    Path(where, "usercustomize.py").write_text('import sys; sys.stderr.write("own usercustomize\\n")')
    bare = run(tmp_path, "print('ran')", agent=False, python=python)
    ended = run(tmp_path, "print('ran')", python=python)
    assert "own sitecustomize\n" in bare.stderr
    assert (ended.stdout, ended.stderr) == (bare.stdout, bare.stderr)


def test_the_search_path_of_the_program_is_kept(tmp_path: Path) -> None:
    program = "import sys; print([entry for entry in sys.path if not entry.endswith('agent/boot')])"
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.path.append('/added/by/the/user')")
    bare = run(tmp_path, program, agent=False, paths=(own,))
    ended = run(tmp_path, program, paths=(own,))
    assert "/added/by/the/user" in bare.stdout
    assert ended.stdout == bare.stdout


def test_a_broken_bootstrap_prints_one_line_and_the_program_runs(tmp_path: Path) -> None:
    broken = tmp_path / "boot"
    broken.mkdir()
    (broken / "sitecustomize.py").write_bytes((BOOT / "sitecustomize.py").read_bytes())
    ended = run(tmp_path, "print('ran')", agent=False, paths=(broken,), environment={"SPYREPROF_DIR": str(tmp_path)})
    assert (ended.code, ended.stdout) == (0, "ran\n")
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("spyreprof: this process is not recorded")


@pytest.mark.parametrize("trouble", ["missing", "a file", "read-only"])
def test_a_recording_folder_that_cannot_be_written_does_not_disturb_the_program(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "gone"
    if trouble == "a file":
        folder.write_text("")
    elif trouble == "read-only":
        (folder / "shards").mkdir(parents=True)
        (folder / "shards").chmod(0o500)
        if os.access(folder / "shards", os.W_OK):
            pytest.skip("this user writes to read-only folders")
    ended = run(tmp_path, "print('ran')", environment={"SPYREPROF_DIR": str(folder)})
    assert (ended.code, ended.stdout, ended.stderr) == (0, "ran\n", "")


def test_a_folder_removed_while_the_program_runs_only_ends_the_writing(tmp_path: Path) -> None:
    program = """
        import os, shutil
        shutil.rmtree(os.environ["SPYREPROF_DIR"])
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        print("ran")
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "ran\n", "")
    assert not ended.folder.exists()


def test_a_full_disk_only_ends_the_writing(tmp_path: Path) -> None:
    program = """
        import resource, signal, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        from _spyreprof import install
        agent = install.install("again")
        for _ in range(10):
            agent.process.note("anchor", text="x" * 50)
        print(agent.writer.alive)
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "False\n", "")
    (shard,) = (ended.folder / "shards").iterdir()
    assert shard.stat().st_size == 300


def test_sitecustomize_and_the_vllm_entry_point_install_once(tmp_path: Path) -> None:
    program = """
        import importlib.metadata, os, sys
        (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="spyreprof")
        before = (os._exit, list(sys.meta_path))
        entry.load()()
        entry.load()()
        assert before == (os._exit, list(sys.meta_path))
        print(importlib.metadata.version("spyreprof-boot"))
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "1.0\n", "")
    assert [row["how"] for row in ended.process_rows("open")] == ["sitecustomize"]
    assert len(ended.process_rows("close")) == 1


def test_the_vllm_entry_point_alone_installs_where_site_did_not_run(tmp_path: Path) -> None:
    program = """
        import importlib.metadata
        (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="spyreprof")
        entry.load()()
    """
    ended = run(tmp_path, program, flags=("-S",))
    assert ended.code == 0, ended.stderr
    assert [row["how"] for row in ended.process_rows("open")] == ["vllm_plugin"]
    assert [row["how"] for row in ended.process_rows("close")] == ["atexit"]


def test_the_vllm_entry_point_does_nothing_without_a_recording(tmp_path: Path) -> None:
    program = "from _spyreprof.vllm_plugin import register; register(); " + MODULES
    ended = run(tmp_path, program, environment={"SPYREPROF_DIR": ""})
    assert "install" not in ended.stderr
    assert not list(tmp_path.rglob("*.jsonl"))


def test_rows_that_can_no_longer_be_written_are_not_kept_in_memory(tmp_path: Path) -> None:
    program = """
        import os, shutil, time
        from _spyreprof import install
        writer = install.install("again").writer
        shutil.rmtree(os.environ["SPYREPROF_DIR"])
        queued = writer.buffer("steps")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (writer.alive or len(queued) > 1):
            writer.add("steps", (1, 2, "step", 0, False))
            time.sleep(0.001)
        for _ in range(1000):
            writer.add("steps", (1, 2, "step", 0, False))
        print(writer.alive, len(queued), len(os.listdir("/proc/self/task")))
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "False 0 1\n", "")


def test_a_program_that_replaces_the_threads_of_the_standard_library_keeps_running(tmp_path: Path) -> None:
    # As gevent does: what starts a thread from now on would run in the program's own.
    program = """
        import _thread, threading
        from _spyreprof import install
        def refuse(*arguments):
            raise AssertionError("ours must not come here")
        _thread.start_new_thread = _thread.allocate_lock = _thread.RLock = _thread.get_ident = refuse
        writer = install.install("again").writer
        writer.add("model", {"k": "module"})
        print(writer.alive)
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "True\n", "")
    assert len(ended.rows("model")) == 1
