"""Readings of the energy meter, of the cluster and of teams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from support.manual_simulation import ManualSimulation, build_measured_jobs
from support.random_decisions import random_logs
from support.simulations import simulate
from wattline import policy as p
from wattline.cluster import nodes
from wattline.core.events import METERED
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.runlog import Log
from wattline.testing.laws import check_energy_totals, check_no_oversubscription, check_steps_counted_once


def test_the_meter_reads_leases_idle_gpus_and_nodes_and_each_team_its_own() -> None:
    jobs = build_measured_jobs(
        gpus=[1, 2], duration_s=[100, 300], model=["", ""], batch=[0, 0], team=["red", "blue"]
    )
    simulation = ManualSimulation(jobs, nodes("v100", gpus=4, base_w=1000, idle_w=10, busy_w=200))
    assert simulation.read_meter(0) == [0, 0, 0]
    simulation.start(0, 1)
    simulation.start(1, 2)
    assert simulation.read_meter(50) == pytest.approx([50 * (1000 + 10 + 600), 50 * 200, 50 * 400])
    simulation.stop(0)  # and stays away: at 100 s only blue has used more
    assert simulation.read_meter(100) == pytest.approx(
        [50 * (1000 + 10 + 600) + 50 * (1000 + 20 + 400), 50 * 200, 100 * 400]
    )
    assert simulation.read_meter(100) == simulation.read_meter(100)
    total_j, red_j, blue_j = simulation.read_meter(300)
    assert (red_j, blue_j) == pytest.approx((50 * 200, 300 * 400))
    assert simulation.close() == total_j


def test_the_meter_is_read_before_a_policy_that_needs_it_decides() -> None:
    jobs = Jobs.of(submit_s=[0, 40, 40], gpus=[1, 1, 1], duration_s=[100, 10, 60], team=["a", "b", "a"])
    seen: list[tuple[float, list[float]]] = []

    def metered(snapshot: Snapshot, models: Models) -> Plan:
        seen.append((snapshot.now_s, [snapshot.meter.used_j(column) for column in range(3)]))
        return replace(p.fifo(snapshot, models), needs_meter=True)

    cluster = nodes("v100", gpus=1, base_w=100, idle_w=10, busy_w=50)
    simulate(jobs, metered, nodes=cluster)
    assert seen == [
        (0, [0, 0, 0]),
        (40, [150 * 40, 50 * 40, 0]),
        (100, [150 * 100, 50 * 100, 0]),
        (110, [150 * 110, 50 * 100, 50 * 10]),
        (170, [150 * 170, 50 * 160, 50 * 10]),
    ]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(log=random_logs())
def test_the_laws_hold_however_caps_batches_and_switches_are_chosen(log: Log) -> None:
    check_no_oversubscription(log)
    check_steps_counted_once(log)
    check_energy_totals(log)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(log=random_logs())
def test_no_meter_ever_goes_back(log: Log) -> None:
    readings = log.events[log.events[:, 0] == METERED]
    for meter in np.unique(readings[:, 1]):
        used_j = readings[readings[:, 1] == meter, 5]
        assert (np.diff(used_j) >= -1e-12 * used_j[1:]).all()
