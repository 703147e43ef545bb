"""Jobs that are moved together so that nodes can be switched off."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.placed_jobs import GpusByNode, build_snapshot, gpus_by_job
from wattline.cluster import join_nodes, nodes
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.loop.check import check_placement
from wattline.models import TraceModels
from wattline.placement import Buddy


def place(
    cluster: Nodes,
    running: list[GpusByNode],
    waiting: list[int] = [],  # noqa: B006
    cost: float | list[float] = 0.1,
) -> dict[int, GpusByNode]:
    """Return the GPUs by node of each job if all of them should run, and moving one costs so much."""
    snapshot = build_snapshot(cluster, running, waiting)
    row = np.arange(len(snapshot.queue), dtype=np.int64)
    costs = np.broadcast_to(np.asarray(cost, dtype=np.float64), len(row)).copy()
    plan = Plan(row, snapshot.queue.requested_gpus, row, move_cost=costs)
    placement = Buddy()(plan, snapshot, TraceModels())
    check_placement(placement, snapshot)
    return gpus_by_job(placement.leases)


def test_the_jobs_of_a_node_with_few_of_them_move_to_others() -> None:
    running = [{0: 4}, {1: 5}, {2: 1}, {2: 1}, {2: 1}]
    after = place(nodes("v100", count=3, gpus=8), running)
    assert after == {0: {0: 4}, 1: {1: 5}, 2: {1: 1}, 3: {1: 1}, 4: {1: 1}}


def test_all_nodes_that_can_be_emptied_are() -> None:
    after = place(nodes("v100", count=4, gpus=8), [{node: 2} for node in range(4)])
    assert len({node for held in after.values() for node in held}) == 1


def test_a_node_is_not_emptied_at_a_higher_price_than_it_saves() -> None:
    running = [{0: 3}, {1: 2}, {1: 1}]
    assert place(nodes("v100", count=2, gpus=8), running, cost=[2.0, 0.4, 0.5])[1] == {0: 2}
    after = place(nodes("v100", count=2, gpus=8), running, cost=[2.0, 0.5, 0.6])
    assert after == dict(enumerate(running))


def test_a_job_that_starts_now_goes_anywhere_for_nothing() -> None:
    # Alone it would go to the node with the least room; but then that of job 0 could not be emptied.
    after = place(nodes("v100", count=2, gpus=8), [{0: 3}, {1: 4}], [1], cost=[0.5, 0.5, 99.0])
    assert after == {0: {1: 3}, 1: {1: 4}, 2: {1: 1}}


def test_a_node_with_a_part_of_a_larger_job_is_not_emptied() -> None:
    running = [{0: 8, 1: 2}, {2: 4}]
    assert place(nodes("v100", count=3, gpus=8), running) == {0: {0: 8, 1: 2}, 1: {1: 4}}


def test_jobs_stay_on_their_kind_of_gpu() -> None:
    cluster = join_nodes(nodes("v100", gpus=8), nodes("a100", gpus=8))
    assert place(cluster, [{0: 2}, {1: 2}]) == {0: {0: 2}, 1: {1: 2}}


def test_no_job_moves_to_a_node_that_is_empty() -> None:
    assert place(nodes("v100", count=3, gpus=4), [{0: 3}, {1: 3}]) == {0: {0: 3}, 1: {1: 3}}


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    picks=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=12),
    costs=st.lists(st.sampled_from((0.0, 0.3, 0.6, 2.0)), min_size=12, max_size=12),
)
def test_every_node_that_is_emptied_saves_more_than_it_costs(
    sizes: list[int], picks: list[tuple[int, int]], costs: list[float]
) -> None:
    left, running = list(sizes), list[GpusByNode]()
    for node, gpus in picks:
        if node < len(sizes) and gpus <= left[node]:
            left[node] -= gpus
            running.append({node: gpus})
    if not running:
        return
    before = {next(iter(held)) for held in running}
    after = place(join_nodes(*(nodes("v100", gpus=g) for g in sizes)), running, cost=costs[: len(running)])
    assert len(after) == len(running)
    used = {node for held in after.values() for node in held}
    assert used <= before
    for node in before - used:
        assert sum(costs[job] for job, held in enumerate(running) if node in held) < 1
    moved = {node for job, held in enumerate(running) for node in held if after[job] != held}
    assert moved == before - used, "a job left a node that is still used"
