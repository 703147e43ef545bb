"""Jobs that take turns and cannot save within one."""

from __future__ import annotations

import pytest

from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.protocols import Policy
from wattline.loop.run import run
from wattline.reports import report

TURNS = [p.Gandiva(slice_s=60.0), p.Gavel(round_s=60.0), p.Las(quantum_s=60.0), p.Gittins(quantum_s=60.0)]


@pytest.mark.parametrize("policy", TURNS, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("checkpoint_s", [-1.0, 600.0], ids=["never saves", "saves after ten turns"])
def test_jobs_that_cannot_save_within_a_turn_still_end(policy: Policy, checkpoint_s: float) -> None:
    jobs = Jobs.of(
        submit_s=[0, 1, 2, 3], gpus=[2] * 4, duration_s=[900, 700, 800, 1000], checkpoint_s=[checkpoint_s] * 4
    )
    decisions = 0

    def count(snapshot: object, models: object) -> object:
        nonlocal decisions
        decisions += 1
        assert decisions < 2000, "jobs start over in every turn"
        return policy(snapshot, models)  # type: ignore[arg-type]

    found = report(run(Sim(jobs, parse_cluster("1xv100:4")), count))  # type: ignore[arg-type]
    assert found.finished == 4


def test_jobs_that_save_at_every_stop_take_turns_as_before() -> None:
    jobs = Jobs.of(submit_s=[0, 1], gpus=[4, 2], duration_s=[300, 300])
    found = report(run(Sim(jobs, parse_cluster("1xv100:4")), p.Gandiva(slice_s=60.0)))
    assert found.preemptions > 3
