from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattline.backend.engine.exit_policy import Fate, verdict
from wattline.backend.engine.job_record import Life, Run
from wattline.backend.engine.job_spec import Given, Work
from wattline.backend.engine.local.attempt import Attempt, Exit


def exit_(code: int = 0, **more: Any) -> Exit:
    """How processes ended: well, unless said."""
    usual: dict[str, Any] = {"signal": None, "fired": None, "asked": None, "oom": False, "message": ""}
    times = {"began_at": 0.0, "ended_at": 1.0, "seconds": 1.0, "max_rss_bytes": 0, "cpu_seconds": 0.0}
    return Exit(**{"code": code, **usual, **times, "log_lost_bytes": 0, "ranks": (), **more})


KILLED = exit_(137, signal="SIGKILL")


@pytest.mark.parametrize(
    ("how", "more", "fate", "state"),
    [
        (exit_(0), {}, Fate.OVER, "SUCCEEDED"),
        (exit_(3), {}, Fate.OVER, "FAILED"),
        (exit_(0, asked="timeout"), {}, Fate.OVER, "TIMEOUT"),
        (exit_(137, oom=True, signal="SIGKILL"), {}, Fate.OVER, "OUT_OF_MEMORY"),
        (KILLED, {}, Fate.BLAMED, "FAILED"),
        (None, {}, Fate.BLAMED, "NODE_FAIL"),
        (KILLED, {"array": True}, Fate.LATER, "FAILED"),
        (exit_(1), {"array": True}, Fate.LATER, "FAILED"),
        (exit_(75), {}, Fate.LATER, "REQUEUE"),
        (exit_(75), {"progressed": True}, Fate.LOST, "REQUEUE"),
        (exit_(75), {"lasted_s": 60.0}, Fate.LOST, "REQUEUE"),
        (exit_(75), {"why": "stop"}, Fate.WAITS, "REQUEUE"),
        (KILLED, {"held": False}, Fate.WAITS, "FAILED"),
        (exit_(143, signal="SIGTERM", asked="stop"), {}, Fate.LOST, "FAILED"),
        (exit_(0), {"why": "stop"}, Fate.OVER, "SUCCEEDED"),
        (exit_(0), {"cancelled": True}, Fate.OVER, "CANCELLED"),
        (KILLED, {"cancelled": True, "why": "stop"}, Fate.OVER, "CANCELLED"),
        (KILLED, {"why": "budget"}, Fate.OVER, "FAILED"),
    ],
)
def test_what_becomes_of_a_job(how: Exit | None, more: dict[str, Any], fate: Fate, state: str) -> None:
    said = {"held": True, "progressed": False, "lasted_s": 1.0, **more}
    life = Life(Work("1", ("true",)), {}, 0.0, cancelled=said.pop("cancelled", False))
    run = Run(["1"], 0, Given((0,)), 0.0, Attempt(Path("/none")))
    run.array, run.why = said.pop("array", False), said.pop("why", "")
    found = verdict(life, run, how, **said)
    assert (found.fate, found.state) == (fate, state)
