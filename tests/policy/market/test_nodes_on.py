"""Nodes that the market pays for as a whole."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

import wattline as wl
from support.placed_jobs import build_snapshot
from wattline import policy as p
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.jobs import Jobs
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.models.library import library
from wattline.models.trace_model import TraceModels
from wattline.placement import Buddy, Power
from wattline.reports import Report, report


def build_jobs(count: int, seed: int) -> Jobs:
    rng = np.random.default_rng(seed)
    return Jobs.of(
        submit_s=np.cumsum(rng.exponential(600.0, count)),
        gpus=rng.choice([1, 2, 4], count),
        duration_s=rng.lognormal(8.5, 1.0, count),
        model=["elasticflow/bert"] * count,
    )


def simulate(jobs: Jobs, gathers: bool) -> Report:
    buddy = Buddy()

    def place(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        return buddy(plan if gathers else replace(plan, move_cost=None), snapshot, models)

    sim = Sim(jobs, wl.nodes("a100", count=4, gpus=8), truth=library(), overheads=Overheads(restart_s=30.0))
    return report(run(sim, p.Market(energy_price=5e-3), library(), place=Power(place)))


def test_jobs_that_are_moved_together_save_energy() -> None:
    saved = [
        simulate(build_jobs(40, seed), gathers=True).energy_j
        / simulate(build_jobs(40, seed), gathers=False).energy_j
        for seed in range(3)
    ]
    assert np.mean(saved) < 0.97


def test_without_a_price_of_energy_no_job_is_moved_to_switch_a_node_off() -> None:
    snapshot = build_snapshot(wl.nodes("a100", count=2, gpus=8), [{0: 2}, {1: 2}], [])
    assert p.Market()(snapshot, TraceModels()).move_cost is None


def test_the_more_energy_costs_the_less_a_move_does() -> None:
    snapshot = build_snapshot(wl.nodes("a100", count=2, gpus=8), [{0: 2}, {1: 2}], [])
    costs = [p.Market(energy_price=price)(snapshot, TraceModels()).move_cost for price in (1e-5, 1e-4, 1e-3)]
    low, middle, high = (float(np.max(cost)) for cost in costs if cost is not None)
    assert math.inf > low > middle > high > 0


def test_where_nodes_stay_on_no_job_waits_to_save_one() -> None:
    """Jobs of eight GPUs fill one node, and one of a GPU would need a second one, which is on anyway."""
    nodes = wl.nodes("a100", count=4, gpus=8)
    jobs = Jobs.of(
        submit_s=[0.0, 7200.0, 7300.0],
        gpus=[8, 1, 1],
        duration_s=[40_000.0, 600.0, 600.0],
        min_gpus=[8, 1, 1],
        max_gpus=[8, 1, 1],
        model=["elasticflow/bert"] * 3,
    )
    stay_on, switched = (
        report(run(Sim(jobs, nodes, truth=library()), p.Market(energy_price=5e-3), library(), place=place))
        for place in (Buddy(), Power(Buddy()))
    )
    assert stay_on.wait_mean_s == 0.0
    assert switched.wait_mean_s > 0.0
