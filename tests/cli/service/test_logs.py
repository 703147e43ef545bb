"""`wattline logs` as a user types it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import run_command
from support.controllers import wait_until_over
from wattline.service.controller import Controller

Capsys = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("here")


def submit(capsys: Capsys, script: str, *options: str) -> str:
    code, out, _ = run_command(capsys, "submit", *options, "--", sys.executable, "-c", script)
    assert code == 0
    return out.strip()


@pytest.mark.slow
def test_tail_prints_the_newest_lines_and_one_without_newline(capsys: Capsys) -> None:
    script = "for n in range(20_000): print('line', n)\nprint('no newline', end='')"
    job = submit(capsys, script, "--wait")
    assert run_command(capsys, "logs", job, "--tail", "2")[1] == "line 19999\nno newline"
    assert len(run_command(capsys, "logs", job, "--tail", "20000")[1].split("\n")) == 20_000
    whole = run_command(capsys, "logs", job)[1]
    assert run_command(capsys, "logs", "-f", job)[1] == whole + "\n"


@pytest.mark.slow
def test_a_pipe_gets_the_last_state_of_a_progress_bar(capsys: Capsys) -> None:
    script = "for n in range(5): print(end=f'\\r{n} of 5')\nprint('\\nready')"
    job = submit(capsys, script, "--wait")
    assert run_command(capsys, "logs", "-f", job)[1] == "4 of 5\nready\n"
    code, out, _ = run_command(capsys, "submit", "-f", "--", sys.executable, "-c", script)
    assert (code, out) == (0, "4 of 5\nready\n")


@pytest.mark.slow
def test_a_terminal_gets_what_the_job_wrote_while_it_runs(capsys: Capsys, here: Path) -> None:
    script = (
        "import os, sys, time; print(end='\\r10 %', flush=True); sys.stdout.buffer.write(b'\\r50 % \\xff')\n"
        "sys.stdout.flush()\nwhile not os.path.exists('seen'): time.sleep(0.02)"
    )
    job = submit(capsys, script)
    terminal, child_end = pty.openpty()
    words = [sys.executable, "-m", "wattline", "logs", "-f", job]
    with subprocess.Popen(words, stdout=child_end, stderr=subprocess.PIPE) as process:
        os.close(child_end)
        shown = b""
        while b"50 %" not in shown:
            shown += os.read(terminal, 1000)
        (here / "seen").touch()
        assert process.wait(60) == 0
    assert shown.startswith(b"\r10 %\r50 % \xff")
    os.close(terminal)


@pytest.mark.slow
def test_a_job_without_output_is_explained_on_stderr(capsys: Capsys, service: Controller) -> None:
    job = submit(capsys, "", "--hold")
    code, out, err = run_command(capsys, "logs", job)
    assert (code, out) == (0, "")
    assert f"job {job} has not started, there is no output yet: Held" in err
    assert run_command(capsys, "cancel", "-y", job)[0] == 0
    wait_until_over(service, job)
    assert "was never started" in run_command(capsys, "logs", "-f", job)[2]
    silent = submit(capsys, "", "--wait")
    assert "SUCCEEDED and has written no output" in run_command(capsys, "logs", silent)[2]
