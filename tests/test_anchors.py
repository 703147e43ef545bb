"""Results of published simulators that ours must reproduce, job by job."""

import json
from pathlib import Path

import numpy as np
import pytest

from support.simulations import finish_times, simulate
from wattline.placement import Pack
from wattline.policy.parser import parse_policy
from wattline.trace import read_trace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("policy", "hours"), [("FIFO", 27.757), ("SRTF", 20.897), ("LAS", 21.921)])
def test_proportional_runs_of_synergy_are_reproduced_job_by_job(
    data: Path, policy: str, hours: float
) -> None:
    jobs = read_trace(data / "synergy" / "anchor_single_1000.csv")
    log = simulate(jobs, parse_policy(policy), count=16, gpus=8, quantum_s=300, place=Pack("greedy"))
    done = finish_times(log)
    jct = {name: done[name] - jobs.submit_s[row] for row, name in enumerate(jobs.id.tolist())}
    assert np.mean(list(jct.values())) / 3600 == pytest.approx(hours, rel=1e-3)
    theirs = json.loads((data / "synergy" / f"jct_synergy_single_{policy}_fair.json").read_text())["jct"]
    same = [abs(jct[str(job)] - seconds) < 1e-6 for job, seconds in theirs]
    assert len(same) == 1000
    assert np.mean(same) >= 0.99
