"""Sweeps that train as fused arrays where that costs less at the prices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import wattline as wl
from support.queued_jobs import queue_up
from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.actions import ACTION_GROUP, ACTION_VERB, START, STOP
from wattline.core.jobs import Jobs
from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Ints
from wattline.energy.budgets import parse_budget
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.library import library
from wattline.placement import Buddy, Power
from wattline.reports import report
from wattline.reports.summary import build_run_tables
from wattline.testing import PolicyContract

SWEEP = "gavel/ResNet-18"
FRUGAL = p.Market(energy_price=1e-2)


def sweep_of(count: int, more: int = 0, key: str = "sweep") -> Jobs:
    """Return a sweep that comes at once, and *more* jobs like it without a key."""
    total = count + more
    return Jobs.of(
        submit_s=np.zeros(total),
        gpus=np.ones(total, dtype=np.int64),
        duration_s=np.full(total, 3600.0),
        min_gpus=np.ones(total, dtype=np.int64),
        max_gpus=np.ones(total, dtype=np.int64),
        model=[SWEEP] * total,
        batch=np.full(total, 64),
        fuse=[key] * count + [""] * more,
    )


def simulate(policy: p.Market, jobs: Jobs, cluster: str = "1xv100:2") -> Log:
    sim = Sim(jobs, parse_cluster(cluster), truth=library(), overheads=Overheads(restart_s=30.0))
    return run(sim, policy, library(), place=Power(Buddy()))


def count_starts(log: Log) -> Counter[int]:
    """Return the number of starts by width."""
    widths: Counter[int] = Counter()
    first = 0
    for end in log._action_end:
        actions: Ints = log.actions[first:end]
        first = end
        started = actions[actions[:, ACTION_VERB] == START, ACTION_GROUP]
        widths.update(Counter(started.tolist()).values())
    return widths


class TestMarketOfSweeps(PolicyContract):
    policy = FRUGAL
    place = Power(Buddy())
    models = library()


@pytest.mark.slow
def test_a_mixed_trace_with_sweeps_runs_to_its_end_and_is_replayed() -> None:
    jobs = wl.read_trace("combined:count=60,seed=5,sweep=0.6,host=0.1,recurring=0.1,load=1.5,gpus_total=16")
    log = simulate(FRUGAL, jobs, "2xv100:8")
    assert report(log).finished == 60
    again = run(Replay(log), FRUGAL, library(), place=Power(Buddy()))
    assert np.array_equal(again.actions, log.actions)


def test_a_sweep_that_must_wait_is_fused_if_energy_is_dear() -> None:
    jobs = sweep_of(8)
    log = simulate(FRUGAL, jobs)
    assert max(count_starts(log)) > 1
    alone = simulate(FRUGAL, sweep_of(8, key=""))
    assert max(count_starts(alone)) == 1
    assert report(log).energy_j < 0.9 * report(alone).energy_j


def test_a_sweep_that_finds_gpus_for_all_is_not_fused_if_only_time_counts() -> None:
    assert set(count_starts(simulate(p.Market(), sweep_of(8), "1xv100:8"))) == {1}


def test_no_array_holds_jobs_of_two_sweeps() -> None:
    one, two = sweep_of(4), sweep_of(4, key="other")
    jobs = Jobs.of(
        **{
            name: np.concatenate((getattr(one, name), getattr(two, name)))
            for name in ("submit_s", "gpus", "duration_s", "min_gpus", "max_gpus", "batch")
        },
        model=[SWEEP] * 8,
        fuse=["sweep"] * 4 + ["other"] * 4,
    )
    plan = FRUGAL(queue_up(jobs, parse_cluster("1xv100:2")), library())
    assert (plan.group != plan.row).any()
    assert (jobs.fuse.codes[plan.row] == jobs.fuse.codes[plan.group]).all()


def test_members_follow_their_leader_with_its_gpus_and_cap() -> None:
    plan = FRUGAL(queue_up(sweep_of(8), parse_cluster("1xv100:2")), library())
    lead = {int(row): at for at, row in enumerate(plan.row) if plan.group[at] == row}
    assert plan.cap_w is not None
    for at, leader in enumerate(plan.group.tolist()):
        assert lead[leader] <= at
        assert plan.gpus[at] == plan.gpus[lead[leader]]
        assert plan.cap_w[at] == plan.cap_w[lead[leader]]


def test_a_key_that_requests_the_array_gets_it() -> None:
    jobs = sweep_of(6)
    wanted = Jobs.of(
        submit_s=jobs.submit_s, gpus=jobs.gpus, duration_s=jobs.duration_s, min_gpus=jobs.min_gpus,
        max_gpus=jobs.max_gpus, model=[SWEEP] * 6, batch=jobs.batch, fuse=["sweep"] * 6,
        always_fuse=np.ones(6, dtype=np.bool_),
    )  # fmt: skip
    assert max(count_starts(simulate(p.Market(), wanted, "1xv100:8"))) == 6


def test_a_running_array_is_not_stopped_when_a_member_ends() -> None:
    jobs = sweep_of(3)
    short = Jobs.of(
        submit_s=jobs.submit_s, gpus=jobs.gpus, duration_s=np.array([600.0, 3600.0, 3600.0]),
        min_gpus=jobs.min_gpus, max_gpus=jobs.max_gpus, model=[SWEEP] * 3, batch=jobs.batch,
        fuse=["sweep"] * 3, always_fuse=np.ones(3, dtype=np.bool_),
    )  # fmt: skip
    log = simulate(p.Market(), short, "1xv100:1")
    assert count_starts(log) == Counter({3: 1})
    assert not (log.actions[:, ACTION_VERB] == STOP).any()


def test_members_of_an_array_that_waits_have_the_reason_of_its_leader() -> None:
    jobs = sweep_of(8, more=4)
    snapshot = queue_up(jobs, parse_cluster("1xv100:1"))
    plan = FRUGAL(snapshot, library())
    assert plan.reason is not None
    planned = set(plan.row.tolist())
    for row in range(len(jobs)):
        assert (plan.reason[row] == 0) == (row in planned)
        assert REASONS[plan.reason[row]] not in (Reason.NO_ROOM, Reason.TOO_BIG)


def test_the_offer_of_a_member_is_that_of_its_array() -> None:
    jobs = sweep_of(8)
    snapshot = queue_up(jobs, parse_cluster("1xv100:2"))
    plan = FRUGAL(snapshot, library())
    offers = FRUGAL.explain(snapshot, library()).offers
    assert [offer.job for offer in offers] == [str(job) for job in jobs.id]
    for row, leader in zip(plan.row.tolist(), plan.group.tolist(), strict=True):
        assert offers[row].runs
        assert offers[row].offer_per_gpu_h == pytest.approx(offers[leader].offer_per_gpu_h)


def test_an_array_draws_what_its_members_draw_together() -> None:
    """A member is measured at its part of the array, which looked like a small draw of the whole."""
    nodes = parse_cluster("1xv100:4")
    budget_w = float(nodes.idle_node_w.sum()) + 350.0
    policy = p.Market(energy_price=1e-2, budgets=(parse_budget(f"{budget_w:g}W"),))
    log = simulate(policy, sweep_of(10, more=4), "1xv100:4")
    assert max(count_starts(log)) > 1, "no array was formed"
    timeline = build_run_tables(log).timeline
    span_s = np.diff(timeline.at_s)
    over_j = float((np.maximum(timeline.power_w[:-1] - budget_w, 0.0) * span_s).sum())
    assert over_j < 300.0 * 4 * 300.0  # an interval of the meter, at the largest caps
