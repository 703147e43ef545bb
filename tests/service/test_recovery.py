from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CRASHES = Path(__file__).parents[1] / "support" / "crash_controller.py"


def crashed(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(CRASHES), str(folder), "--kills", str(kills), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def holds(found: dict[str, Any]) -> None:
    """Assert that each accepted job ran to its end once, and that no other job ran."""
    assert found["over"]
    jobs = found["accepted"]
    assert len(jobs) == found["made"]
    assert len(set(jobs.values())) == len(jobs), "two keys were given one job"
    assert set(found["states"]) == set(jobs.values()), "jobs that were not reported as accepted"
    assert set(found["states"].values()) == {"SUCCEEDED"}
    assert found["ran"] == {key: [f"began {job}", "ended"] for key, job in jobs.items()}
    assert found["rebuilt"] == found["states"]


@pytest.mark.slow
def test_a_killed_controller_loses_no_job_and_runs_none_twice(tmp_path: Path) -> None:
    holds(crashed(tmp_path, kills=5, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills_lose_no_job_and_run_none_twice(tmp_path: Path, seed: int) -> None:
    holds(crashed(tmp_path, kills=50, seed=seed))
