"""Restoration of power limits that jobs have set on this node and left behind.

A session records the limit before it sets one, and a watchdog process restores it if the session is killed.
Slurm and the supervisor kill all processes of a job, the watchdog too. So a step restores what is left:
before its ranks start, of attempts that vanished here, and when they are over, of its own.

Imported by the steps: standard library only.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from collections.abc import Mapping

_LIMIT_S = 10.0
_MODULE = "wattline.meter.caps.restore"


def restore_limits(env: Mapping[str, str], package: str) -> None:
    """Restore limits that dead processes of this host have set; *env* are the variables of the job.

    *package* is the folder that has the package. Without a record of such a process nothing is started.
    """
    if any(_is_orphaned(path) for path in glob.glob(f"{glob.escape(_find_folder(env))}/cap-*.json")):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-m", _MODULE],
                env={**env, "PYTHONPATH": package},
                stdin=subprocess.DEVNULL,
                timeout=_LIMIT_S,
                start_new_session=True,
            )


def _find_folder(env: Mapping[str, str]) -> str:
    """Return the folder of the records, as `wattline.meter.caps.record.state_folder` finds it."""
    home = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME", "/nonexistent"), ".local", "state")
    return env.get("WATTLINE_STATE") or os.path.join(home, "wattline")


def _is_orphaned(path: str) -> bool:
    """Return whether a record is of a process that was on this host and is gone."""
    try:
        with open(path, encoding="utf-8") as file:
            owner = json.load(file)["owner"]
            return owner["host"] == socket.gethostname() and not os.path.exists(f"/proc/{owner['pid']}")
    except (OSError, ValueError, KeyError, TypeError):
        return False
