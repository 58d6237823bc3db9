"""What a person at a real terminal does: Ctrl-C, Ctrl-Z, closing the window."""

from __future__ import annotations

import os
import pty
import shlex
import sys
from pathlib import Path

import pytest
from recording_run import (
    COUNT_DELIVERIES,
    PATIENCE_S,
    environment,
    python,
    read_manifest,
    record_command,
    slow_page,
    wait_for_text,
)

pexpect = pytest.importorskip("pexpect")

COUNT_INTERRUPTS = (
    COUNT_DELIVERIES
    + """
print(f"interrupts: {count_for_a_while(signal.SIGINT)}", flush=True)
sys.exit(8)
"""
)


def spawn(tmp_path: Path, program: list[str], *options: str) -> pexpect.spawn:
    words = record_command(tmp_path / "run.spyreprof", program, *options)
    return pexpect.spawn(
        words[0], words[1:], cwd=str(tmp_path), env=environment(), timeout=PATIENCE_S, encoding="utf-8"
    )


def shell(tmp_path: Path) -> pexpect.spawn:
    """An interactive shell with job control."""
    env = environment(PS1="prompt> ", HISTFILE="/dev/null", TERM="dumb")
    child = pexpect.spawn(
        "/bin/bash", ["--norc", "--noprofile", "-i"], cwd=str(tmp_path), env=env, timeout=PATIENCE_S, encoding="utf-8"
    )
    child.expect_exact("prompt> ")
    return child


def test_ctrl_c_gives_the_program_exactly_one_interrupt(tmp_path: Path) -> None:
    with slow_page() as url:
        child = spawn(tmp_path, python(COUNT_INTERRUPTS), "--metrics-url", url)
        child.expect_exact("ready")
        child.sendintr()
        child.expect(r"interrupts: (\d+)")
        assert child.match[1] == "1"
        child.expect(pexpect.EOF)
        child.close()
    assert child.exitstatus == 8
    assert read_manifest(tmp_path / "run.spyreprof")["interrupted"] is True


def test_ctrl_c_ends_a_program_that_handles_nothing_as_it_would_without_us(tmp_path: Path) -> None:
    bash = shell(tmp_path)
    words = record_command(tmp_path / "run.spyreprof", ["/bin/sh", "-c", "echo ready; exec sleep 99"])
    bash.sendline(shlex.join(words))
    bash.expect_exact("ready\r\n")
    bash.sendintr()
    bash.expect_exact("next: spyreprof report")
    bash.expect_exact("prompt> ")
    bash.sendline("echo code=$?")
    bash.expect(r"code=(\d+)")
    assert bash.match[1] == "130"
    bash.close(force=True)


def test_all_three_streams_stay_the_terminal(tmp_path: Path) -> None:
    code = "import os; print('tty:', [os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size().columns)"
    child = spawn(tmp_path, python(code))
    child.expect(r"tty: (\[.*\]) (\d+)")
    assert child.match[1] == "[True, True, True]"
    child.expect(pexpect.EOF)
    child.close()


def test_a_resized_terminal_reaches_the_program(tmp_path: Path) -> None:
    code = (
        "import os, signal, time; came = []; signal.signal(signal.SIGWINCH, lambda *_: came.append(1));"
        "print('ready', flush=True)\n"
        "while not came: time.sleep(0.01)\n"
        "print('columns', os.get_terminal_size().columns)"
    )
    child = spawn(tmp_path, python(code))
    child.expect_exact("ready")
    child.setwinsize(30, 97)
    child.expect(r"columns (\d+)")
    assert child.match[1] == "97"
    child.expect(pexpect.EOF)
    child.close()


def test_closing_the_terminal_hangs_up_the_program(tmp_path: Path) -> None:
    code = COUNT_DELIVERIES + "open('hangup', 'w').write(f'{count_for_a_while(signal.SIGHUP)}\\n')"
    words = record_command(tmp_path / "run.spyreprof", python(code))
    # by hand: pexpect would send signals of its own when it closes
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(words[0], words, environment())
    seen = b""
    while b"ready\r\n" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert wait_for_text(tmp_path / "hangup") == "1\n"


def test_ctrl_z_stops_the_job_and_fg_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('heard', line.strip(), flush=True); break"
    )
    bash = shell(tmp_path)
    bash.sendline(shlex.join(record_command(tmp_path / "run.spyreprof", python(code))))
    bash.expect_exact("ready\r\n")
    bash.sendcontrol("z")
    bash.expect("Stopped")
    bash.expect_exact("prompt> ")
    bash.sendline("fg")
    bash.expect_exact(sys.executable)
    bash.sendline("hello")
    bash.expect_exact("heard hello")
    bash.expect_exact("prompt> ")
    bash.sendline("echo code=$?")
    bash.expect_exact("code=0")
    bash.close(force=True)
