"""The best that can be done, against every way there is in small cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.host_workloads import MODELS, CheckedPlacer, build_jobs, clusters_with_jobs, model_sets, simulate
from wattline import policy as p
from wattline.cluster import nodes
from wattline.core.actions import START
from wattline.core.host_share import with_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.models.sensitivity import needs
from wattline.models.workload_models import Measured
from wattline.placement import Optimum, Tune
from wattline.placement.host.optimum import allocate, pack_whole


@given(
    names=st.lists(st.sampled_from(("image", "speech", "text")), min_size=1, max_size=4),
    cores=st.integers(8, 24),
    beliefs=model_sets(),
)
def test_an_allocation_is_the_best_of_all(names: list[str], cores: int, beliefs: Measured) -> None:
    cluster = nodes("v100", gpus=4, cpus=cores, mem_gib=200)
    jobs = with_shares(build_jobs(*names), cluster)
    known = needs(beliefs, jobs, cluster)
    sets = known.sets[:, 0]
    best = allocate(known, sets, jobs.gpus, cluster.host[:, 0])
    ways = [range(known.first[s], known.first[s + 1]) for s in sets.tolist()]
    if np.prod([len(way) for way in ways]) > 20_000:
        return
    tried = max(
        float(known.speed[list(way)].sum())
        for way in product(*ways)
        if (known.host[:2, list(way)].sum(axis=1) <= cluster.host[:2, 0]).all()
    )
    assert best.worth == pytest.approx(tried, rel=2e-4)
    assert best.bound >= tried - 1e-6
    assert best.jobs.sum() == len(jobs)


def test_a_bound_does_not_take_longer_for_more_jobs_that_are_alike() -> None:
    cluster = nodes("v100", count=1000, gpus=8)
    jobs = with_shares(build_jobs(*("image", "speech", "text") * 2000), cluster)
    known = needs(MODELS, jobs, cluster)
    best = allocate(known, known.sets[:, 0], jobs.gpus, cluster.host.sum(axis=1))
    assert best.jobs.sum() == 6000
    assert best.worth <= best.bound + 1e-6
    assert best.worth == pytest.approx(best.bound, rel=1e-3)


def test_whole_jobs_fill_nodes_as_far_as_they_fit() -> None:
    gpus, count = np.array([1, 1]), np.array([2, 4])
    host = np.array([[6000, 1000], [1024, 1024], [0, 0]])
    node_host = np.array([[8000, 8000], [8192, 8192], [0, 0]])
    on = pack_whole(gpus, host, count, np.array([3, 3]), node_host)
    assert on.tolist() == [[1, 1], [2, 2]]


def test_jobs_are_where_all_have_what_they_want() -> None:
    cluster = nodes("v100", count=2, gpus=2, cpus=14, mem_gib=250)
    log = simulate(build_jobs("image", "image", "text", "text"), Optimum(), cluster)
    starts = log.actions[log.actions[:, 0] == START]
    assert starts[:4, 7].tolist() == [12000, 12000, 1000, 1000]


@pytest.mark.slow
@settings(max_examples=5)
@given(world=clusters_with_jobs(), beliefs=model_sets())
def test_as_a_placer_it_keeps_everybody_at_its_share_too(
    world: tuple[Nodes, Jobs], beliefs: Measured
) -> None:
    cluster, jobs = world
    for policy in (p.fifo, p.Las(60.0)):
        simulate(jobs, CheckedPlacer(Optimum("greedy")), cluster, policy, beliefs)


@given(world=clusters_with_jobs(), beliefs=model_sets())
def test_what_tune_gives_is_never_better_than_the_bound(world: tuple[Nodes, Jobs], beliefs: Measured) -> None:
    cluster, jobs = world
    jobs = with_shares(jobs, cluster)
    if len(np.unique(cluster.host.T, axis=0)) > 1 or jobs.gpus.max() > cluster.gpus.min():
        return

    class Bounded(CheckedPlacer):
        def __call__(self, plan, snapshot, said):  # type: ignore[no-untyped-def]
            placement = super().__call__(plan, snapshot, said)
            leases = placement.leases
            runs = np.searchsorted(snapshot.queue.job, np.unique(leases.job))
            known = needs(said, snapshot.jobs, snapshot.nodes)
            sets = known.sets[snapshot.queue.job[runs], 0]
            gpus = snapshot.queue.gpus[runs]
            best = allocate(known, sets, gpus, cluster.host.sum(axis=1), whole=False)
            got = 0.0
            for row, s in zip(runs.tolist(), sets.tolist(), strict=True):
                mine = leases.host[:, leases.job == snapshot.queue.job[row]][:, 0]
                own = slice(known.first[s], known.first[s + 1])
                at = np.flatnonzero((known.host[:, own] == mine[:, None]).all(axis=0))
                got += float(known.speed[own][at[0]])
            assert got <= best.bound + 1e-6
            return placement

    simulate(jobs, Bounded(Tune("greedy")), cluster, p.fifo, beliefs)
