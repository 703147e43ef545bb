"""Arrays under policies that leave jobs out of their plan: budgets, and numbers of GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.cap_sums import sum_caps
from support.simulations import NO_OVERHEADS
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import START, STOP
from wattline.core.jobs import Jobs
from wattline.energy.budgets import Budget
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.library import library
from wattline.reports import report
from wattline.testing import PolicyContract

TIGHT = 300.0  # watts: of four a100, three idle ones and one at its lowest cap


def under_budget(watts: float, **more: Any) -> p.Stage:
    return p.chain(p.PowerFlow(budgets=(Budget.watts(watts, **more),), overshoot=1.0), p.Fuse())


@pytest.mark.slow
class TestFuseUnderABudget(PolicyContract):
    policy = p.chain(p.PowerFlow(budgets=(Budget.watts(8000.0),), overshoot=1.0), p.Fuse())


@pytest.mark.slow
class TestFuseAfterPowerFlow(PolicyContract):
    policy = p.chain(p.FairShare(), p.PowerFlow(eta=0.5), p.Fuse())


def sweep(count: int, key: str = "a", **more: Any) -> Jobs:
    columns = {"duration_s": [3000.0] * count, "fuse": [key] * count, "always_fuse": [True] * count, **more}
    same = {"submit_s": [0.0] * count, "gpus": [1] * count, "model": ["gavel/lm"] * count}
    return Jobs.of(**same, **columns)


def play(jobs: Jobs, policy: p.Stage) -> Log:
    cluster = nodes("a100", gpus=4, base_w=0.0)
    return run(Sim(jobs, cluster, truth=library(), overheads=NO_OVERHEADS), policy, library())


def groups(log: Log) -> list[list[int]]:
    """Return the jobs that were started together."""
    found: dict[tuple[float, int], list[int]] = {}
    for row in np.flatnonzero(log.actions[:, 0] == START).tolist():
        found.setdefault((float(log.action_s[row]), int(log.actions[row, 2])), []).append(
            int(log.actions[row, 1])
        )
    return list(found.values())


def test_a_sweep_that_the_budget_lets_wait_is_one_array() -> None:
    log = play(sweep(8), under_budget(TIGHT))
    assert groups(log) == [list(range(8))]
    assert max(sum_caps(log)) <= TIGHT
    assert report(log).finished == 8


def test_a_running_array_keeps_all_members_at_later_decisions() -> None:
    log = play(sweep(8, duration_s=[3000.0 + 900.0 * n for n in range(8)]), under_budget(TIGHT))
    assert not (log.actions[:, 0] == STOP).any()
    assert np.count_nonzero(log.actions[:, 0] == START) == 8


def test_without_watts_for_a_job_nothing_joins() -> None:
    log = play(sweep(4, key=""), under_budget(TIGHT))
    assert groups(log) == [[0], [1], [2], [3]]


def test_jobs_of_another_team_do_not_join() -> None:
    log = play(sweep(4, team=["vision", "nlp"] * 2), under_budget(TIGHT))
    assert all(len({job % 2 for job in group}) == 1 for group in groups(log))
    assert sorted(map(len, groups(log))) == [2, 2]


def test_jobs_that_wait_for_gpus_join_under_an_elastic_policy() -> None:
    log = play(sweep(12), p.chain(p.Afs(), p.Fuse()))
    assert len(groups(log)) == 4
    assert report(log).finished == 12
