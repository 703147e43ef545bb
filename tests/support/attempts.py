"""Attempts of small jobs, and waiting for what they do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattline.backend.engine.local.attempt import Attempt, Exit, Launch

TIMEOUT_S = 30.0
ENV = {"PATH": os.environ.get("PATH", os.defpath)}


def write_attempt(folder: Path, *words: str, **more: Any) -> Attempt:
    """An attempt that can be started."""
    Launch(words, **{"workdir": str(folder.parent), "env": ENV, "grace_s": 20.0, **more}).write(folder)
    return Attempt(folder)


def start_attempt(folder: Path, script: str, **more: Any) -> Attempt:
    """An attempt of a shell script, which is started."""
    attempt = write_attempt(folder, "/bin/sh", "-c", script, **more)
    attempt.start()
    return attempt


def python_command(script: str) -> tuple[str, ...]:
    """The words that run a script that is quick to start."""
    return (sys.executable, "-I", "-S", "-u", "-c", script)


def wait_for_exit(attempt: Attempt) -> Exit:
    """How an attempt ends."""
    found = attempt.wait(TIMEOUT_S)
    assert found is not None, attempt.state()
    return found


def read_output(attempt: Attempt, rank: int = 0) -> str:
    """What a rank has said until now."""
    path = attempt.folder / f"rank{rank}.log"
    return path.read_text("utf-8", "replace") if path.exists() else ""


def wait_until(true: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZXx"
    except FileNotFoundError:
        return False
