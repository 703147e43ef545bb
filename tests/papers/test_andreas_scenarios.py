"""Scenarios of ANDREAS: jobs of a table of run times."""

from __future__ import annotations

import pytest

from wattline.backend.sim.simulator import Sim
from wattline.loop.run import run
from wattline.models.durations.estimates import DurationEstimates
from wattline.models.durations.history import History
from wattline.papers.andreas_scenarios import build_cluster, draw_jobs, draw_times
from wattline.policy.parser import parse_policy
from wattline.reports import report


@pytest.mark.parametrize("policy", ["andreas", "market:aim=cost"])
def test_jobs_with_estimated_durations_run_at_the_speeds_of_the_table(policy: str) -> None:
    """Speeds followed from durations, and before a job arrives its estimate is 0."""
    nodes = build_cluster("servers", 2, None)
    jobs, models = draw_jobs(draw_times(1), nodes, 12, 0.5, 1.0, 1)
    log = run(
        Sim(jobs, nodes, truth=models),
        parse_policy(policy),
        models,
        durations=lambda jobs: DurationEstimates(jobs, History(jobs)),
    )
    assert report(log).finished == len(jobs)
