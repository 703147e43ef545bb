"""Optimal host allocation, against exhaustive search in small cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.host_workloads import MODELS, CheckedPlacer, build_jobs, clusters_with_jobs, model_sets, simulate
from wattline import policy as p
from wattline.cluster import nodes
from wattline.core.actions import ACTION_HOST, ACTION_VERB, START
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.models.sensitivity import build_sensitivity
from wattline.models.workload_models import WorkloadModels
from wattline.placement import Optimum, Tune
from wattline.placement.host.optimum import allocate, pack_whole_jobs


@given(
    names=st.lists(st.sampled_from(("image", "speech", "text")), min_size=1, max_size=4),
    cores=st.integers(8, 24),
    models=model_sets(),
)
def test_an_allocation_is_as_good_as_exhaustive_search(
    names: list[str], cores: int, models: WorkloadModels
) -> None:
    cluster = nodes("v100", gpus=4, cpus=cores, mem_gib=200)
    jobs = fill_host_shares(build_jobs(*names), cluster)
    known = build_sensitivity(models, jobs, cluster)
    sets = known.point_sets[:, 0]
    best = allocate(known, sets, jobs.gpus, cluster.host[:, 0])
    choices = [range(known.set_start[s], known.set_start[s + 1]) for s in sets.tolist()]
    if np.prod([len(choice) for choice in choices]) > 20_000:
        return
    optimum = max(
        float(known.speed[list(choice)].sum())
        for choice in product(*choices)
        if (known.host[:2, list(choice)].sum(axis=1) <= cluster.host[:2, 0]).all()
    )
    assert best.speed_sum == pytest.approx(optimum, rel=2e-4)
    assert best.bound >= optimum - 1e-6
    assert best.jobs.sum() == len(jobs)


def test_allocate_handles_thousands_of_equal_jobs() -> None:
    cluster = nodes("v100", count=1000, gpus=8)
    jobs = fill_host_shares(build_jobs(*("image", "speech", "text") * 2000), cluster)
    known = build_sensitivity(MODELS, jobs, cluster)
    best = allocate(known, known.point_sets[:, 0], jobs.gpus, cluster.host.sum(axis=1))
    assert best.jobs.sum() == 6000
    assert best.speed_sum <= best.bound + 1e-6
    assert best.speed_sum == pytest.approx(best.bound, rel=1e-3)


def test_whole_jobs_fill_nodes_as_far_as_they_fit() -> None:
    gpus, count = np.array([1, 1]), np.array([2, 4])
    host = np.array([[6000, 1000], [1024, 1024], [0, 0]])
    node_host = np.array([[8000, 8000], [8192, 8192], [0, 0]])
    on = pack_whole_jobs(gpus, host, count, np.array([3, 3]), node_host)
    assert on.tolist() == [[1, 1], [2, 2]]


def test_jobs_are_placed_where_all_are_saturated() -> None:
    cluster = nodes("v100", count=2, gpus=2, cpus=14, mem_gib=250)
    log = simulate(build_jobs("image", "image", "text", "text"), Optimum(), cluster)
    starts = log.actions[log.actions[:, ACTION_VERB] == START]
    assert starts[:4, ACTION_HOST].tolist() == [12000, 12000, 1000, 1000]


@pytest.mark.slow
@settings(max_examples=5)
@given(generated=clusters_with_jobs(), models=model_sets())
def test_the_placer_runs_no_job_slower_than_with_its_share(
    generated: tuple[Nodes, Jobs], models: WorkloadModels
) -> None:
    cluster, jobs = generated
    for policy in (p.fifo, p.Las(60.0)):
        simulate(jobs, CheckedPlacer(Optimum("greedy")), cluster, policy, models)


@given(generated=clusters_with_jobs(), models=model_sets())
def test_tune_never_exceeds_the_bound(generated: tuple[Nodes, Jobs], models: WorkloadModels) -> None:
    cluster, jobs = generated
    jobs = fill_host_shares(jobs, cluster)
    if len(np.unique(cluster.host.T, axis=0)) > 1 or jobs.gpus.max() > cluster.gpus.min():
        return

    class Bounded(CheckedPlacer):
        def __call__(self, plan, snapshot, models):  # type: ignore[no-untyped-def]
            placement = super().__call__(plan, snapshot, models)
            leases = placement.leases
            runs = np.searchsorted(snapshot.queue.job, np.unique(leases.job))
            known = build_sensitivity(models, snapshot.jobs, snapshot.nodes)
            sets = known.point_sets[snapshot.queue.job[runs], 0]
            gpus = snapshot.queue.requested_gpus[runs]
            best = allocate(known, sets, gpus, cluster.host.sum(axis=1), whole=False)
            speed_sum = 0.0
            for row, s in zip(runs.tolist(), sets.tolist(), strict=True):
                host = leases.host[:, leases.job == snapshot.queue.job[row]][:, 0]
                own = slice(known.set_start[s], known.set_start[s + 1])
                at = np.flatnonzero((known.host[:, own] == host[:, None]).all(axis=0))
                speed_sum += float(known.speed[own][at[0]])
            assert speed_sum <= best.bound + 1e-6
            return placement

    simulate(jobs, Bounded(Tune("greedy")), cluster, p.fifo, models)
