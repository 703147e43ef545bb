"""Nodes that are switched off and on: what they draw, when they are back, what cannot break."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from support.manual_simulation import ManualSimulation, build_measured_jobs
from support.simulations import finish_times, simulate
from wattline import policy as p
from wattline.backend.sim.faults import Faults
from wattline.cluster import nodes
from wattline.core.actions import POWER_OFF, POWER_ON
from wattline.core.events import NODE_BACK, NODE_LOST, list_events
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.placement.pack import Pack
from wattline.testing.laws import check_energy_totals, check_no_oversubscription


def booting(**more: Any) -> Nodes:
    watts = {"base_w": 100.0, "idle_w": 10.0, "busy_w": 60.0, "off_w": 5.0, "boot_w": 300.0, "boot_s": 90.0}
    return nodes("v100", **{"count": 2, "gpus": 2, **watts, **more})


def test_a_node_that_is_off_draws_little_then_boots_and_is_back() -> None:
    simulation = ManualSimulation(build_measured_jobs(gpus=[1], duration_s=[2000.0]), booting())
    simulation.advance_to(0)
    simulation.start(0, 1)
    held_w = 100 + 10 + 60
    assert simulation.read_meter(100)[0] == pytest.approx(100 * (held_w + 120))
    simulation.switch(POWER_OFF, 1)
    assert simulation.read_meter(500)[0] == pytest.approx(500 * held_w + 100 * 120 + 400 * 5)
    simulation.switch(POWER_ON, 1)
    assert simulation.read_meter(560)[0] == pytest.approx(560 * held_w + 100 * 120 + 400 * 5 + 60 * 300)
    simulation.advance_to(1000)
    assert [(e.verb, e.job, e.at_s) for e in simulation.events if e.verb in (NODE_LOST, NODE_BACK)] == [
        (NODE_BACK, 1, 590)
    ]
    assert simulation.close() == pytest.approx(1000 * held_w + 100 * 120 + 400 * 5 + 90 * 300 + 410 * 120)


def test_in_rounds_a_node_is_back_on_the_first_boundary_after_it_has_booted() -> None:
    simulation = ManualSimulation(
        build_measured_jobs(gpus=[1], duration_s=[2000.0]), booting(), quantum_s=60.0
    )
    simulation.advance_to(0)
    simulation.start(0, 1)
    simulation.switch(POWER_OFF, 1)
    simulation.advance_to(60)
    simulation.switch(POWER_ON, 1)
    simulation.advance_to(600)
    assert simulation.last_event(NODE_BACK, 1).at_s == 180  # 60 + 90, and then the next round
    assert simulation.close() == pytest.approx(600 * 170 + 60 * 5 + 120 * 300 + 420 * 120)


def test_a_node_that_needs_no_time_to_boot_is_back_at_once() -> None:
    simulation = ManualSimulation(build_measured_jobs(gpus=[1]), booting(boot_s=0.0))
    simulation.advance_to(0)
    simulation.switch(POWER_OFF, 1)
    simulation.advance_to(50)
    simulation.switch(POWER_ON, 1)
    now_s, events = simulation.sim.wait(math.inf)
    assert (now_s, [event.verb for event in list_events(events)]) == (50, [NODE_BACK])


@dataclass(frozen=True)
class OffWhenEmpty:
    """Pack jobs; idle nodes are off, and on again while a job waits."""

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        placement = Pack()(plan, snapshot, models)
        on = np.full(len(snapshot.nodes), placement.waiting > 0)
        on[placement.leases.node] = True
        return replace(placement, powered_on=on)


@pytest.mark.parametrize("quantum_s", [None, 30.0])
def test_a_job_that_finds_all_nodes_off_starts_when_one_has_booted(quantum_s: float | None) -> None:
    jobs = Jobs.of(submit_s=[0, 600], gpus=[2, 2], duration_s=[300, 300])
    log = simulate(jobs, p.fifo, nodes=booting(), place=OffWhenEmpty(), quantum_s=quantum_s)
    assert finish_times(log) == {"0": 300, "1": 600 + 90 + 300}
    on = log.actions[:, 0] == POWER_ON
    assert (log.action_s[on].tolist(), log.actions[on, 3].tolist()) == ([600, 600], [0, 1])


def test_a_node_does_not_break_while_it_is_off_and_does_again_when_it_is_up() -> None:
    jobs = Jobs.of(submit_s=[0, 200_000], gpus=[2, 2], duration_s=[100_000, 100_000])
    faults = Faults(node_mtbf_s=4000, node_repair_s=100, checkpoint_s=500)
    log = simulate(jobs, p.fifo, nodes=booting(), place=OffWhenEmpty(), faults=faults, seed=5)
    check_no_oversubscription(log)  # which also knows that what is off cannot break
    check_energy_totals(log)
    broke_s = log.events[log.events[:, 0] == NODE_LOST, 2]
    first_end_s, last_end_s = sorted(finish_times(log).values())
    assert ((broke_s > 200_000) & (broke_s < last_end_s)).sum() >= 5
    assert not ((broke_s > first_end_s) & (broke_s < 200_000)).any()


@dataclass(frozen=True)
class OffForGood:
    """Switch every node off at once and grant nothing."""

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        nobody = np.empty(0, dtype=np.int64)
        placement = Pack()(replace(plan, row=nobody, gpus=nobody, group=nobody), snapshot, models)
        return replace(placement, powered_on=np.zeros(len(snapshot.nodes), dtype=np.bool_))


@pytest.mark.parametrize("faults", [Faults(), Faults(node_mtbf_s=1000, node_repair_s=10)])
def test_a_cluster_that_is_off_for_good_does_not_keep_a_run_going(faults: Faults) -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[100])
    log = simulate(jobs, p.fifo, nodes=booting(), place=OffForGood(), faults=faults)
    assert finish_times(log) == {}
    assert (log.actions[:, 0] == POWER_OFF).sum() == 2
