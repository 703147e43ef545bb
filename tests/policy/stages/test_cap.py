"""The cheapest cap, in cases small enough to do by hand and on what was measured."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.power_law_models import (
    MAX_W,
    PowerLawModels,
    build_power_law_jobs,
    snapshot_after,
    snapshot_of_waiting,
)
from support.simulations import finish_times
from wattline.backend.sim.simulator import Sim
from wattline.cli.simulation.policy_argument import parse_policy_and_placer
from wattline.cluster import join_nodes, nodes, parse_cluster
from wattline.core.actions import RETUNE, START
from wattline.core.events import FINISHED
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.measurement.devices import DEVICES
from wattline.models import TraceModels
from wattline.models.configurations import build_configurations
from wattline.models.cost import sample_cost
from wattline.models.library import library
from wattline.policy import Cap, Las, Pollux, chain, fifo, priority
from wattline.policy.parser import parse_policy
from wattline.reports import report
from wattline.trace import read_trace
from wattline.trace.synthetic import synth

V100 = nodes("v100", gpus=8)
CAPS_W = [100, 129, 157, 186, 214, 243, 271]  # of the menu, on a V100


def caps(snapshot: Snapshot, policy: object, models: Models | None = None) -> list[int]:
    """The cap of each row of the queue."""
    plan = policy(snapshot, models or PowerLawModels())  # type: ignore[operator]
    found = np.zeros(len(snapshot.queue), dtype=np.int64)
    found[plan.row] = 0 if plan.cap_w is None else plan.cap_w
    return [int(cap_w) for cap_w in found]


def test_only_energy_takes_the_lowest_cap_where_speed_falls_slower_than_watts() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1", "1"], [100, 100]), V100)
    assert caps(state, Cap(eta=1.0)) == [100, 100]  # W / √W falls with W


def test_only_time_takes_none() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1", "1"], [100, 100]), V100)
    plan = fifo(state, PowerLawModels())
    assert Cap(eta=0.0)(state, PowerLawModels(), plan) is plan


@pytest.mark.parametrize("eta", [0.2, 0.5, 0.6, 0.8])
@pytest.mark.parametrize("bite", [0.2, 0.5, 0.8])
def test_in_between_the_cost_of_zeus_decides(eta: float, bite: float) -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"], [100]), V100)
    cost = {w: (eta * w + (1 - eta) * MAX_W) / (w / MAX_W) ** bite for w in (*CAPS_W, MAX_W)}
    best = min(cost, key=lambda w: cost[w])
    assert caps(state, Cap(eta), PowerLawModels(bite)) == [0 if best == MAX_W else best]


def test_the_slowdown_holds() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"], [100]), V100)
    # √(186 / 300) is 0.787, √(157 / 300) is 0.723.
    assert caps(state, Cap(1.0, slowdown=1.3)) == [186]
    assert caps(state, Cap(1.0, slowdown=1.0)) == [0]


@given(eta=st.floats(0, 1), slowdown=st.floats(1, 3), seed=st.integers(0, 5))
def test_no_cap_costs_more_or_slows_more_than_allowed_on_measured_jobs(
    eta: float, slowdown: float, seed: int
) -> None:
    models, cluster = library(), nodes("a100", count=4)
    jobs = synth(count=30, seed=seed)
    state = snapshot_of_waiting(jobs, cluster)
    plan = Cap(eta, slowdown)(state, models)
    cap_w = np.zeros(len(plan), dtype=np.int64) if plan.cap_w is None else plan.cap_w

    def at(cap_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grants = Grants.of(state.queue.job[plan.row], plan.gpus, cap_w=cap_w, kind="a100")
        watts = models.watts(jobs, grants)
        watts = np.where(np.isnan(watts), np.where(cap_w > 0, cap_w, DEVICES["a100"].busy_w), watts)
        return models.speed(jobs, grants), watts

    (speed, watts), (free, most_w) = at(cap_w), at(np.zeros_like(cap_w))
    assert (free <= speed * slowdown * (1 + 1e-9)).all()
    cost, uncapped = (
        sample_cost(s, w, eta=eta, max_w=DEVICES["a100"].max_cap_w)
        for s, w in ((speed, watts), (free, most_w))
    )
    assert (cost <= uncapped * (1 + 1e-9)).all()


def energy_j(log: Log) -> float:
    """What all jobs used."""
    done = log.events[log.events[:, 0] == FINISHED]
    assert len(done) == len(log.jobs)
    return float(done[:, 5].sum())


def test_a_run_for_energy_uses_less_and_one_for_time_takes_no_longer() -> None:
    jobs, cluster, models = synth(count=60, seed=1), nodes("a100", count=16), library()
    plain, time, energy = (
        run(Sim(jobs, cluster, truth=models), policy, models)
        for policy in (fifo, chain(fifo, Cap(0.0)), chain(fifo, Cap(1.0)))
    )
    assert energy_j(energy) < 0.9 * energy_j(plain)
    assert finish_times(time) == pytest.approx(finish_times(plain), rel=1e-6)


def test_the_rest_of_the_plan_stays_as_it_is() -> None:
    state = snapshot_of_waiting(
        build_power_law_jobs(["1"] * 3, [100, 50, 200], priority=[0, 1, 2]), nodes("v100", gpus=2)
    )
    plan = Las(60)(state, PowerLawModels(), priority(state, PowerLawModels()))
    capped = Cap(1.0)(state, PowerLawModels(), plan)
    assert capped.cap_w is not None
    for field in fields(Plan):
        if field.name != "cap_w":
            assert getattr(capped, field.name) is getattr(plan, field.name)


def test_alone_it_starts_from_the_requests() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"] * 2, [100, 50], gpus=[2, 4]), V100)
    plan = Cap(1.0)(state, PowerLawModels())
    assert plan.gpus.tolist() == [2, 4]
    assert plan.stable


def test_sizes_that_are_not_listed_are_computed() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"] * 3, [100] * 3), V100)
    rows = np.arange(3, dtype=np.int64)
    plan = Plan(rows, np.array([3, 5, 3]), rows)
    for models in (PowerLawModels(), TraceModels()):
        found = Cap(1.0)(state, models, plan).cap_w
        assert found is not None
        assert found.tolist() == caps(state, Cap(1.0), models)


def test_with_other_batch_sizes_the_cap_is_that_of_the_batch_granted() -> None:
    jobs = build_power_law_jobs(["0.5"] * 2, [100] * 2, batch=[32] * 2, max_batch=[128, 0], noise=[1e6] * 2)
    state = snapshot_of_waiting(jobs, V100)
    plan = chain(Pollux(), Cap(1.0))(state, PowerLawModels())
    assert plan.batch is not None
    assert sorted(plan.batch.tolist()) == [0, 128]
    assert caps(state, chain(Pollux(), Cap(1.0))) == [100, 100]
    assert caps(state, chain(fifo, Cap(1.0))) == [100, 100]  # of the batch asked for


def test_running_jobs_are_capped_for_their_kind_and_waiting_jobs_for_the_first_they_accept() -> None:
    cluster = join_nodes(nodes("v100", gpus=1), nodes("h100", gpus=2))
    jobs = build_power_law_jobs(["1"] * 3, [100] * 3, gpu_kind=["v100", "", "h100"])
    state = snapshot_of_waiting(jobs, cluster)
    assert caps(state, Cap(1.0)) == [100, 100, 200]
    started = snapshot_after(state, fifo(state, PowerLawModels()), 1.0)
    assert caps(started, Cap(1.0)) == [100, 200, 200]


def test_running_jobs_keep_their_cap() -> None:
    jobs = synth(count=200, seed=0, gpus_total=32)
    log = run(Sim(jobs, nodes("a100", count=4), truth=library()), parse_policy("tiresias+cap"), library())
    assert (log.actions[:, 0] != RETUNE).all()
    assert log.actions[log.actions[:, 0] == START, 5].any()


def test_of_two_stages_the_tighter_cap_holds() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"] * 3, [100] * 3), V100)
    rows = np.arange(3, dtype=np.int64)
    plan = Plan(rows, np.ones(3, dtype=np.int64), rows, cap_w=np.array([0, 110, 250]))
    found = Cap(1.0, slowdown=1.3)(state, PowerLawModels(), plan).cap_w  # 186
    assert found is not None
    assert found.tolist() == [186, 110, 186]
    found = Cap(0.0)(state, PowerLawModels(), plan).cap_w
    assert found is not None
    assert found.tolist() == [0, 110, 250]


def test_jobs_on_the_same_gpus_get_the_loosest_of_their_caps() -> None:
    class Two(PowerLawModels):
        def watts(self, jobs: Jobs, grants: Grants) -> np.ndarray:
            flat = jobs.model.codes[grants.job] == 1  # nothing is saved by a cap
            return np.where(flat, MAX_W, super().watts(jobs, grants))

    state = snapshot_of_waiting(build_power_law_jobs(["1", "0.5", "1"], [100] * 3), V100)
    rows = np.arange(3, dtype=np.int64)
    plan = Plan(rows, np.ones(3, dtype=np.int64), np.array([0, 0, 2]))
    found = Cap(1.0)(state, Two(), plan).cap_w
    assert found is not None
    assert found.tolist() == [0, 0, 100]


def test_an_unknown_kind_has_no_caps() -> None:
    state = snapshot_of_waiting(
        build_power_law_jobs(["1"], [100]), nodes("own", gpus=2, base_w=1, idle_w=1, busy_w=9)
    )
    assert caps(state, Cap(1.0)) == [0]


def test_jobs_with_unknown_power_draw_may_be_left_uncapped() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[1, 1], duration_s=[9, 9], model=["resnet50", "something"])
    state = snapshot_of_waiting(jobs, V100)
    known, unknown = caps(state, Cap(1.0), library())
    assert min(known, unknown) > 0
    assert caps(state, Cap(1.0, known=1), library()) == [known, 0]


def test_listed_caps_are_within_the_limits_of_the_device() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"], [100]), V100)
    ways = build_configurations(PowerLawModels(), state.jobs, state.nodes)
    assert ways.cap_w[0, 0].tolist() == [*CAPS_W, 0]


def test_knobs_are_parsed_and_checked() -> None:
    assert parse_policy("fifo+cap") == chain(fifo, Cap())
    assert parse_policy("cap:eta=1,slowdown=1.2") == Cap(1.0, 1.2)
    assert Cap().slowdown == math.inf
    for bad in ("eta=2", "eta=nan", "slowdown=0.9", "slowdown=nan"):
        with pytest.raises(ConfigError, match=bad.partition("=")[0]):
            parse_policy(f"cap:{bad}")


def test_an_empty_queue_makes_an_empty_plan() -> None:
    state = snapshot_of_waiting(Jobs.of(submit_s=[], gpus=[], duration_s=[]), V100, now_s=0.0)
    assert len(Cap()(state, TraceModels())) == 0


HOST_BOUND = "combined:count=60,seed=3,host=0.9,sweep=0,recurring=0,elastic=0,gpus_total=16,load=1.3"


def simulate_host_bound(text: str) -> tuple[float, float]:
    """Return mean JCT and energy of jobs that wait for cores."""
    policy, place = parse_policy_and_placer(text, "pack", "easy")
    cluster = parse_cluster("2xv100:8,cpus=24,mem=500G")
    found = report(run(Sim(read_trace(HOST_BOUND), cluster, truth=library()), policy, library(), place=place))
    return found.jct_mean_s, found.energy_j


def test_a_cap_is_that_of_the_cores_that_the_placer_gives() -> None:
    """At its proportional share a loader-bound job seems to lose nothing under any cap."""
    jct_s, energy_j = simulate_host_bound("fifo@tune")
    capped_s, capped_j = simulate_host_bound("fifo+cap:slowdown=1.02@tune")
    assert capped_s < 1.04 * jct_s
    assert capped_j < 0.99 * energy_j


def test_with_proportional_shares_a_loader_bound_job_keeps_its_tight_cap() -> None:
    jct_s, energy_j = simulate_host_bound("fifo@pack")
    capped_s, capped_j = simulate_host_bound("fifo+cap:slowdown=1.02@pack")
    assert capped_s < 1.03 * jct_s
    assert capped_j < 0.97 * energy_j


def test_a_running_job_is_capped_for_its_own_share_of_the_host() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[1], duration_s=[3600.0], model=["synergy/alexnet"], cpus=[3.0])
    nodes_ = nodes("v100", gpus=8, cpus=24, mem_gib=500)
    models, stage = library(), Cap(slowdown=1.02)
    chosen = []
    for mcpus in (0, 12_000):
        leases = Leases.of([0], [0], [0], [1], host=[[mcpus], [100 * 1024 if mcpus else 0], [0]])
        state = replace(snapshot_of_waiting(jobs, nodes_), leases=leases)
        chosen.append(caps(state, stage, models)[0])
    assert 0 < chosen[0] < (chosen[1] or 1000)
