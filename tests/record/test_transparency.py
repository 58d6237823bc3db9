"""To the program and to whoever reads its output, nobody stands in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recording_run import environment, python, record, record_command

ECHO = """
import sys
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(b"out:" + data + bytes(range(256)))
sys.stderr.buffer.write(b"err:" + data)
"""


def test_stdin_stdout_and_stderr_are_byte_for_byte_the_programs(tmp_path: Path) -> None:
    stdin = bytes(range(256)) * 300
    bare = subprocess.run(python(ECHO), input=stdin, capture_output=True, env=environment(), timeout=60, check=False)
    run = record(tmp_path, python(ECHO), "--quiet", stdin=stdin)
    assert run.stdout == bare.stdout
    assert run.stderr == bare.stderr


def test_our_own_lines_go_to_stderr_and_carry_our_name(tmp_path: Path) -> None:
    run = record(tmp_path, python("print('hello')"))
    assert run.stdout == b"hello\n"
    lines = run.stderr.decode().splitlines()
    assert lines
    assert all(line.startswith("spyreprof: ") for line in lines)
    assert lines[-1].startswith("spyreprof: next: spyreprof report ")


def test_a_closed_stderr_changes_nothing(tmp_path: Path) -> None:
    words = record_command(tmp_path / "run.spyreprof", python("raise SystemExit(4)"))
    code = "import os, sys; os.close(2); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment(), cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 4


# glibc's posix_spawn ignores the two signals that it keeps for its own threads, and takes them back when it needs them.
INHERITED = """
import json, os, signal
status = {line.split(":")[0]: line.split(":")[1].strip() for line in open("/proc/self/status")}
glibc_own = 1 << 31 | 1 << 32
print(json.dumps({
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16) & ~glibc_own,
    "group": os.getpgrp(), "session": os.getsid(0), "parent_group": os.getpgid(os.getppid()),
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")), "nice": os.nice(0), "umask": os.umask(0),
    "argv0": open("/proc/self/cmdline").read().split("\\0")[0], "cwd": os.getcwd(),
    "env": {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH",) and not k.startswith("SPYREPROF_")},
}))
"""


def test_group_session_mask_descriptors_and_environment_are_inherited_unchanged(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    env = environment(MARK="x y", EMPTY="")

    def facts(words: list[str]) -> dict[str, object]:
        done = subprocess.run(
            words, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, close_fds=False,
            umask=0o027, timeout=60, check=True,
        )  # fmt: skip
        found: dict[str, object] = json.loads(done.stdout)
        return found

    bare = facts(python(INHERITED))
    recorded = facts(record_command(tmp_path / "run.spyreprof", python(INHERITED)))
    os.close(read_end)
    os.close(write_end)
    assert read_end in recorded["fds"]  # type: ignore[operator]
    assert recorded["group"] == recorded["parent_group"] == bare["group"] == os.getpgrp()
    assert recorded == bare


def test_blocked_and_ignored_signals_that_we_were_given_reach_the_program(tmp_path: Path) -> None:
    starter = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}); os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = record_command(tmp_path / "run.spyreprof", python(INHERITED))
    done = subprocess.run(
        [sys.executable, "-c", starter, *words], env=environment(), cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["blocked"] == 1 << (signal.SIGUSR2 - 1)
    assert found["ignored"] & 1 << (signal.SIGHUP - 1)


def test_arguments_reach_the_program_untouched_even_those_that_look_like_ours(tmp_path: Path) -> None:
    arguments = ["--out", "x", "--", "-h", "--quiet", "", "a b", "ü\n", "--no-calibrate", "--version"]
    run = record(tmp_path, python("import sys, json; print(json.dumps(sys.argv[1:]))", *arguments))
    assert json.loads(run.stdout) == arguments


def test_arguments_that_are_not_utf8_reach_the_program_as_they_are(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    run = record(tmp_path, python("import os, sys; print(os.fsencode(sys.argv[1]).hex())", odd))
    assert run.stdout == b"636166e9\n"
    assert run.manifest["command"][-1] == "caf\\xe9"


def test_the_double_dash_may_be_left_out(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "spyreprof", "record", "--no-calibrate", "-q", "--out", "r", sys.executable, "-c"]
    done = subprocess.run(
        [*words, "import sys; print(sys.argv[1:])", "--out", "foo", "--", "--quiet"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "['--out', 'foo', '--', '--quiet']\n"
    assert (tmp_path / "r" / "manifest.json").exists()


def test_a_script_without_an_interpreter_line_runs_under_sh_as_shells_do(tmp_path: Path) -> None:
    script = tmp_path / "run-me"
    script.write_text('echo "got $1"; exit 6\n')
    script.chmod(0o755)
    run = record(tmp_path, [script, "x"])
    assert (run.code, run.stdout) == (6, b"got x\n")


def test_the_programs_python_path_stays_behind_our_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    env = environment()
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'mine'}"
    run = record(tmp_path, python("import os; print(os.environ['PYTHONPATH'])"), env=env)
    first, _, rest = run.stdout.decode().strip().partition(os.pathsep)
    assert Path(first).name == "boot"
    assert rest == env["PYTHONPATH"]


@pytest.mark.parametrize("window", ["steps=4", "off", "steps=9"])
def test_the_profile_window_option_reaches_the_agent(tmp_path: Path, window: str) -> None:
    program = python("import os; print(os.environ['SPYREPROF_OPTIONS'])")
    asked = json.loads(record(tmp_path, program, "--profile-window", window).stdout)["window"]
    assert (asked and asked["steps"]) == (None if window == "off" else int(window.partition("=")[2]))


def test_a_recording_inside_a_recording_keeps_both_whole(tmp_path: Path) -> None:
    inner = tmp_path / "inner.spyreprof"
    code = "import os; print(os.environ['SPYREPROF_DIR'], os.environ['PYTHONPATH'].count('/boot')); raise SystemExit(3)"
    run = record(tmp_path, record_command(inner, python(code)))
    assert run.code == 3
    assert run.stdout.decode().split() == [str(inner), "1"]
    assert run.manifest["exit"]["code"] == json.loads((inner / "manifest.json").read_text())["exit"]["code"] == 3
    assert "without a closing row" not in run.notes
