"""Caps and batch sizes: what they do to speed and watts of jobs that run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from support.manual_simulation import ManualSimulation, build_measured_jobs
from support.simulations import finish_times, simulate
from wattline import policy as p
from wattline.backend.sim.faults import Faults, Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import RETUNE, START, STOP
from wattline.core.events import FINISHED, LOST, RAN, STOPPED
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.models.library import library
from wattline.models.trace_model import TraceModels

SLOW_TO_START = Overheads(start_s=60.0, restart_s=500.0, stop_s=5.0)
TRUTHS = pytest.mark.parametrize("truth", [TraceModels(), library()], ids=["asked", "measured"])


def expected_rate(
    truth: Models, jobs: Jobs, cluster: Nodes, cap_w: int = 0, batch: int = 0
) -> tuple[float, float]:
    """Rate of the first job and watts of all its GPUs, by what *truth* and the node say."""
    gpus = jobs.gpus[:1]
    knobs = {"cap_w": np.array([cap_w]), "batch": np.array([batch])}
    grants = Grants.of(np.array([0]), gpus, kind=cluster.kind.words()[0], **knobs)
    rate, watts = float(truth.speed(jobs, grants)[0] / jobs.step_s[0]), float(truth.watts(jobs, grants)[0])
    if math.isnan(watts):
        watts = min(float(cluster.busy_w[0]), cap_w or math.inf)
    return rate, float(gpus[0]) * watts


@TRUTHS
@pytest.mark.parametrize("cap_w", [0, 110, 150, 200, 1000])
def test_a_cap_slows_and_saves_by_exactly_what_the_truth_says(truth: Models, cap_w: int) -> None:
    jobs, cluster = build_measured_jobs(), nodes("v100", gpus=4)
    rate, watts = expected_rate(truth, jobs, cluster, cap_w)
    simulation = ManualSimulation(jobs, cluster, truth=truth)
    simulation.advance_to(0)
    simulation.start(0, 4, cap_w=cap_w)
    done, ran = simulation.finish(), simulation.last_event(RAN)
    assert (ran.rate, ran.energy_j) == pytest.approx((rate, watts))
    assert done.at_s == pytest.approx(1000 / rate)
    assert done.energy_j == pytest.approx(watts * 1000 / rate)
    assert simulation.close() == pytest.approx((500 + watts) * 1000 / rate)


@TRUTHS
def test_tighter_caps_are_slower_and_draw_less(truth: Models) -> None:
    jobs, cluster = build_measured_jobs(), nodes("v100", gpus=4)
    rates, watts = zip(
        *(expected_rate(truth, jobs, cluster, cap_w) for cap_w in (0, 200, 150, 110)), strict=True
    )
    assert list(rates) == sorted(rates, reverse=True)
    assert list(watts) == sorted(watts, reverse=True)
    assert watts[-1] <= 4 * 110


@TRUTHS
def test_another_cap_takes_effect_at_once_and_costs_neither_restart_nor_steps(truth: Models) -> None:
    jobs, cluster = build_measured_jobs(), nodes("v100", gpus=4)
    fast, fast_w = expected_rate(truth, jobs, cluster)
    slow, slow_w = expected_rate(truth, jobs, cluster, 110)
    simulation = ManualSimulation(jobs, cluster, truth=truth, overheads=SLOW_TO_START)
    simulation.advance_to(0)
    simulation.start(0, 4)
    simulation.advance_to(360)
    simulation.retune(0, cap_w=110)
    steps = 300 * fast
    end_s = 360 + (1000 - steps) / slow
    done, ran = simulation.finish(), simulation.last_event(RAN)
    assert (ran.at_s, ran.steps) == (360, pytest.approx(steps))
    assert (ran.rate, ran.energy_j) == pytest.approx((slow, slow_w))
    assert done.at_s == pytest.approx(end_s)
    assert done.energy_j == pytest.approx(360 * fast_w + (end_s - 360) * slow_w)
    assert simulation.close() == pytest.approx(done.energy_j + 500 * end_s)
    assert [event.verb for event in simulation.events if event.verb == STOPPED] == []


def test_another_cap_while_a_job_starts_up_does_not_make_it_start_again() -> None:
    jobs, cluster = build_measured_jobs(), nodes("v100", gpus=4)
    (_, fast_w), (slow, slow_w) = (expected_rate(TraceModels(), jobs, cluster, cap_w) for cap_w in (0, 110))
    simulation = ManualSimulation(jobs, cluster, overheads=SLOW_TO_START)
    simulation.advance_to(0)
    simulation.start(0, 4)
    simulation.advance_to(20)
    simulation.retune(0, cap_w=110)
    end_s = 60 + 1000 / slow
    done = simulation.finish()
    assert simulation.last_event(RAN).at_s == 60
    assert done.at_s == pytest.approx(end_s)
    assert done.energy_j == pytest.approx(20 * fast_w + (end_s - 20) * slow_w)


def test_caps_that_come_and_go_change_nothing_in_the_end() -> None:
    jobs, cluster = build_measured_jobs(), nodes("v100", gpus=4)
    simulation = ManualSimulation(jobs, cluster)
    simulation.advance_to(0)
    simulation.start(0, 4)
    for at_s in range(10, 900, 10):
        simulation.advance_to(at_s)
        simulation.retune(0, cap_w=110)
        simulation.retune(0, cap_w=0)
    done = simulation.finish()
    assert done.at_s == pytest.approx(1000)
    assert done.energy_j == pytest.approx(4 * 225 * 1000)


def test_a_pair_on_the_same_gpus_shares_their_watts_under_any_cap() -> None:
    jobs = build_measured_jobs(gpus=[2, 2], duration_s=[500.0, 5000.0], model=["", ""], batch=[0, 0])
    cluster = nodes("v100", gpus=2)
    simulation = ManualSimulation(jobs, cluster)
    simulation.advance_to(0)
    simulation.start(0, 2)
    simulation.start(1, 2, group=0)
    simulation.advance_to(100)
    simulation.retune(0, 1, cap_w=110)
    simulation.advance_to(200)
    both = [simulation.last_event(RAN, job).energy_j for job in (0, 1)]
    assert both == pytest.approx([110, 110])
    simulation.stop(0)
    simulation.advance_to(300)
    assert simulation.last_event(STOPPED, 0).energy_j == pytest.approx(225 * 100 + 110 * 100)
    assert simulation.last_event(RAN, 1).energy_j == pytest.approx(220)
    assert simulation.close() == pytest.approx(500 * 300 + 450 * 100 + 220 * 200)


@dataclass(frozen=True)
class Fiddling:
    """FIFO; every ten seconds the caps change to others that slow no job down."""

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        plan = p.fifo(snapshot, models)
        turn = int(snapshot.now_s // 10)
        cap_w = np.full(len(plan), 5000 + turn % 2)
        return replace(plan, cap_w=cap_w, next_decision_s=10.0 * (turn + 1))


@pytest.mark.slow
@pytest.mark.parametrize("quantum_s", [None, 10.0])
def test_a_retune_is_no_checkpoint(quantum_s: float | None) -> None:
    faults = Faults(node_mtbf_s=5000, node_repair_s=600, checkpoint_s=1000, job_failure=0.5)
    jobs = Jobs.of(submit_s=[0, 0], gpus=[1, 1], duration_s=[20_000, 9_000])
    sim = {"gpus": 2, "faults": faults, "seed": 3, "quantum_s": quantum_s}
    calm, fiddled = simulate(jobs, p.fifo, **sim), simulate(jobs, Fiddling(), **sim)
    assert (fiddled.actions[:, 0] == RETUNE).sum() > 1000
    for verb in (LOST, FINISHED):
        one, two = (log.events[log.events[:, 0] == verb] for log in (calm, fiddled))
        assert len(one) >= 1
        assert two[:, :4] == pytest.approx(one[:, :4], rel=1e-9, abs=1e-6)


def test_watts_that_no_model_knows_are_those_of_the_node() -> None:
    jobs = build_measured_jobs(model=["never heard of"])
    for truth in (TraceModels(), library()):
        rate, watts = expected_rate(truth, jobs, nodes("v100", gpus=4, busy_w=123.0))
        assert (rate, watts) == (1.0, 492.0)
        log = run(Sim(jobs, nodes("v100", gpus=4, busy_w=123.0), truth=truth), p.fifo)
        assert log.events[log.events[:, 0] == FINISHED][0, 5] == 492_000


def test_a_cap_on_an_unknown_gpu_only_limits_its_power() -> None:
    jobs, cluster = build_measured_jobs(), nodes("abacus", gpus=4, base_w=10, idle_w=1, busy_w=200)
    simulation = ManualSimulation(jobs, cluster)
    simulation.advance_to(0)
    simulation.start(0, 4, cap_w=150)
    assert simulation.finish().energy_j == 4 * 150 * 1000
    assert expected_rate(TraceModels(), jobs, cluster, 150) == (1.0, 600.0)


def test_a_job_draws_what_the_kind_it_runs_on_makes_it_draw() -> None:
    cluster = join_nodes(nodes("v100", gpus=4), nodes("a100", gpus=4))
    jobs = build_measured_jobs()
    drawn = []
    for node in (0, 1):
        simulation = ManualSimulation(jobs, cluster, truth=library())
        simulation.advance_to(0)
        simulation.start(0, 4, node=node)
        simulation.advance_to(1)
        drawn.append(simulation.last_event(RAN).energy_j)
    expected = [expected_rate(library(), jobs, nodes(kind, gpus=4))[1] for kind in ("v100", "a100")]
    assert drawn == pytest.approx(expected)
    assert drawn[0] != drawn[1]


@dataclass(frozen=True)
class LargerLater:
    """First come, first served; from 300 s on with twice the batch."""

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        plan = p.fifo(snapshot, models)
        batch = np.full(len(plan), 512 if snapshot.now_s >= 300 else 256)
        return replace(plan, batch=batch, next_decision_s=300.0 if snapshot.now_s < 300 else math.inf)


@TRUTHS
def test_another_batch_is_a_restart_and_goes_as_the_truth_says(truth: Models) -> None:
    jobs = build_measured_jobs(max_batch=[1024], noise=[1000.0])
    cluster = nodes("v100", gpus=4)
    (before, before_w), (after, after_w) = (expected_rate(truth, jobs, cluster, batch=b) for b in (256, 512))
    log = simulate(jobs, LargerLater(), nodes=cluster, truth=truth, overheads=Overheads(restart_s=50.0))
    assert log.actions[:, (0, 6)].tolist() == [[START, 256], [STOP, 0], [START, 512]]
    end_s = 350 + (1000 - 300 * before) / after
    assert finish_times(log)["0"] == pytest.approx(end_s)
    used_j = log.events[np.isin(log.events[:, 0], (STOPPED, FINISHED))][:, 5]
    assert used_j == pytest.approx([300 * before_w, (end_s - 300) * after_w])
    assert after != before
