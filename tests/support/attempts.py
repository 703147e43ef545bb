"""Attempts at small jobs, and waiting for their effects."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
from wattline.backend.engine.local.launch_file import Launch

TIMEOUT_S = 30.0
ENV = {"PATH": os.environ.get("PATH", os.defpath)}


def write_attempt(folder: Path, *words: str, **more: Any) -> AttemptProcesses:
    """Write an attempt that can be started."""
    Launch(words, **{"workdir": str(folder.parent), "env": ENV, "grace_s": 20.0, **more}).write(folder)
    return AttemptProcesses(folder)


def start_attempt(folder: Path, script: str, **more: Any) -> AttemptProcesses:
    """Start an attempt of a shell script."""
    attempt = write_attempt(folder, "/bin/sh", "-c", script, **more)
    attempt.start()
    return attempt


def python_command(script: str) -> tuple[str, ...]:
    """Return the command of a Python script that starts quickly."""
    return (sys.executable, "-I", "-S", "-u", "-c", script)


def wait_for_exit(attempt: AttemptProcesses) -> Exit:
    """Wait for the end of an attempt."""
    result = attempt.wait(TIMEOUT_S)
    assert result is not None, attempt.state()
    return result


def read_output(attempt: AttemptProcesses, rank: int = 0) -> str:
    """Return the output of a rank so far."""
    path = attempt.folder / f"rank{rank}.log"
    return path.read_text("utf-8", "replace") if path.exists() else ""


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"timed out after {TIMEOUT_S} s"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZXx"
    except FileNotFoundError:
        return False
