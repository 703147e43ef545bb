"""Buddy placement in cases small enough to check by hand, and on random clusters and jobs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.buddy_blocks import lay_out_blocks
from support.placed_jobs import GpusByNode, build_snapshot, gpus_by_job
from support.simulations import first_start_times, simulate
from wattline import policy as p
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import ACTION_JOB, ACTION_NODE
from wattline.core.events import build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.check import check_placement
from wattline.loop.reconcile import reconcile
from wattline.loop.state import Decision, advance
from wattline.models import TraceModels
from wattline.placement import Buddy


def place(
    snapshot: Snapshot,
    plan: Plan | None = None,
    placer: Buddy = Buddy(),  # noqa: B008
) -> dict[int, GpusByNode]:
    """Place the plan, by default first come first served, and return the GPUs by node of each job."""
    placement = placer(p.fifo(snapshot, TraceModels()) if plan is None else plan, snapshot, TraceModels())
    check_placement(placement, snapshot)
    return gpus_by_job(placement.leases)


def build_plan(*order: int, gpus: list[int], keeps: bool = False) -> Plan:
    """Return a plan of these rows of the queue, in this order."""
    row = np.array(order, dtype=np.int64)
    return Plan(row, np.array(gpus, dtype=np.int64), row, non_preemptive=keeps)


def build_grouped_plan(rows: list[int], gpus: list[int], groups: list[int]) -> Plan:
    """Return a non-preemptive plan with groups of jobs that share GPUs."""
    return Plan(*(np.array(column, dtype=np.int64) for column in (rows, gpus, groups)), non_preemptive=True)


# -- best fit


def test_a_job_goes_to_the_node_with_the_least_room_that_is_enough() -> None:
    snapshot = build_snapshot(nodes("v100", count=3, gpus=8), [{0: 2}, {1: 5}], [2, 4])
    assert place(snapshot) == {0: {0: 2}, 1: {1: 5}, 2: {1: 2}, 3: {0: 4}}


def test_a_node_that_is_partly_used_comes_before_a_smaller_one_that_is_empty() -> None:
    cluster = join_nodes(nodes("v100", count=2, gpus=4), nodes("v100", count=1, gpus=8))
    assert place(build_snapshot(cluster, [{2: 2}], [3]))[1] == {2: 3}


def test_an_empty_node_is_taken_from_the_smallest_empty_group() -> None:
    cluster = nodes("v100", count=8, gpus=2, rack_size=4)
    # Node 6 is alone in its pair; to begin another group would cost a whole rack.
    assert place(build_snapshot(cluster, [{4: 2}, {5: 2}, {7: 2}], [1]))[3] == {6: 1}


def test_a_job_that_fits_on_a_node_waits_rather_than_span_nodes() -> None:
    snapshot = build_snapshot(nodes("v100", count=2, gpus=6), [{0: 4}, {1: 4}], [4])
    placement = Buddy()(p.fifo(snapshot, TraceModels()), snapshot, TraceModels())
    assert gpus_by_job(placement.leases) == {0: {0: 4}, 1: {1: 4}}
    assert REASONS[placement.reason[2]] is Reason.NO_ROOM


# -- jobs larger than a node


def test_a_large_job_takes_an_aligned_group_of_nodes() -> None:
    cluster = nodes("v100", count=16, gpus=8, rack_size=8)
    assert place(build_snapshot(cluster, [{0: 8}], [32]))[1] == {4: 8, 5: 8, 6: 8, 7: 8}
    assert place(build_snapshot(cluster, [{0: 8}], [64]))[1] == dict.fromkeys(range(8, 16), 8)


def test_the_rest_of_a_large_job_goes_where_it_fits_best() -> None:
    cluster = nodes("v100", count=8, gpus=8, rack_size=8)
    assert place(build_snapshot(cluster, [{0: 5}, {1: 4}], [19]))[2] == {2: 8, 3: 8, 0: 3}


def test_a_large_job_takes_nodes_of_the_fewest_racks_where_no_group_is_empty() -> None:
    cluster = nodes("v100", count=12, gpus=2, rack_size=4)
    busy = [{n: 2} for n in (0, 2, 4, 9)]
    assert place(build_snapshot(cluster, busy, [6]))[4] == {5: 2, 6: 2, 7: 2}  # three of one rack
    # All of that rack, and the last two of another.
    assert place(build_snapshot(cluster, busy, [10]))[4] == {1: 2, 3: 2, 5: 2, 6: 2, 7: 2}


def test_a_large_job_also_takes_nodes_of_other_sizes() -> None:
    cluster = join_nodes(nodes("v100", count=1, gpus=6), nodes("v100", count=2, gpus=4))
    assert place(build_snapshot(cluster, [], [13]))[0] == {0: 6, 1: 4, 2: 3}
    assert place(build_snapshot(cluster, [], [7]))[0] == {0: 6, 1: 1}


# -- moving others


def test_fragments_are_joined_by_moving_the_fewest_gpus() -> None:
    snapshot = build_snapshot(nodes("v100", count=3, gpus=4), [{0: 2}, {1: 3}, {2: 3}], [4])
    assert place(snapshot) == {0: {0: 2}, 1: {1: 3}, 2: {2: 3}}  # the job of 2 GPUs fits nowhere else
    snapshot = build_snapshot(nodes("v100", count=3, gpus=4), [{0: 2}, {1: 1}, {1: 1}, {2: 3}], [4])
    assert place(snapshot) == {0: {1: 2}, 1: {1: 1}, 2: {1: 1}, 3: {2: 3}, 4: {0: 4}}


def test_a_job_that_moves_may_need_others_to_move_first() -> None:
    # Four nodes of four, each with jobs of 2 and 1: four GPUs are free, one on each.
    running = [{n: size} for n in range(4) for size in (2, 1)]
    snapshot = build_snapshot(nodes("v100", count=4, gpus=4), running, [4])
    after = place(snapshot)
    assert list(after[8].values()) == [4]
    assert all(list(after[job].values()) == [(2, 1)[job % 2]] for job in range(8))


def test_whole_nodes_are_emptied_for_a_large_job() -> None:
    running = [{n: 1} for n in range(4)]
    after = place(build_snapshot(nodes("v100", count=4, gpus=4), running, [8]))
    assert sorted(after[4].values()) == [4, 4]
    assert sum(after[job] != running[job] for job in range(4)) == 2


def test_no_job_is_moved_if_none_can_start_by_it() -> None:
    snapshot = build_snapshot(nodes("v100", count=2, gpus=6), [{0: 3}, {1: 2}, {1: 2}], [5])
    placement = Buddy()(p.fifo(snapshot, TraceModels()), snapshot, TraceModels())
    assert placement.leases is snapshot.leases


def test_a_group_moves_as_one() -> None:
    snapshot = build_snapshot(nodes("v100", count=2, gpus=2), [{0: 1}, {1: 1}], [1, 2])
    pair = build_grouped_plan(rows=[0, 2, 1], gpus=[1, 1, 1], groups=[0, 0, 1])
    placement = Buddy()(pair, snapshot, TraceModels())
    actions = reconcile(snapshot.leases, placement.leases)
    accepts = snapshot.nodes.accepted_kinds(snapshot.jobs.gpu_kind)
    packed = advance(snapshot, Decision(placement, actions), 2.0, build_events(), snapshot.jobs, accepts)
    after = place(packed, build_grouped_plan(rows=[0, 2, 1, 3], gpus=[1, 1, 1, 2], groups=[0, 0, 1, 3]))
    assert after[3] in ({0: 2}, {1: 2})
    assert after[0] == after[1] == after[2]


def test_moved_jobs_keep_cap_and_batch() -> None:
    snapshot = build_snapshot(nodes("v100", count=2, gpus=2), [{0: 1}, {1: 1}], [2])
    three = np.arange(3, dtype=np.int64)
    plan = Plan(
        three, snapshot.queue.requested_gpus, three, non_preemptive=True, cap_w=three + 100, batch=three + 8
    )
    leases = Buddy()(plan, snapshot, TraceModels()).leases
    assert set(gpus_by_job(leases)) == {0, 1, 2}
    assert leases.cap_w.tolist() == [100, 101, 102]
    assert leases.batch.tolist() == [8, 9, 10]


# -- when moving jobs does not help


def test_under_a_preemptive_plan_a_job_takes_the_gpus_of_later_ones() -> None:
    cluster = nodes("v100", count=2, gpus=6)
    snapshot = build_snapshot(cluster, [{0: 4}, {1: 4}], [4])
    after = place(snapshot, build_plan(2, 0, 1, gpus=[4, 4, 4]))
    assert after == {2: {1: 4}, 0: {0: 4}}  # the last is preempted
    assert place(snapshot, build_plan(2, 0, 1, gpus=[4, 4, 4], keeps=True)) == {0: {0: 4}, 1: {1: 4}}


def test_later_jobs_may_start_where_one_finds_no_nodes() -> None:
    snapshot = build_snapshot(nodes("v100", count=3, gpus=6), [{0: 4}, {1: 4}, {2: 4}], [4, 1, 1])
    started = {mode: len(place(snapshot, placer=Buddy(mode))) - 3 for mode in ("none", "easy", "greedy")}  # type: ignore[arg-type]
    assert started == {"none": 0, "easy": 2, "greedy": 2}


def test_under_easy_the_emptiest_node_is_reserved_for_the_first_in_line() -> None:
    # Six free GPUs, but no four together. Of the six, two may go to others, and not those of node 0.
    snapshot = build_snapshot(nodes("v100", count=3, gpus=6), [{0: 3}, {1: 4}, {2: 5}], [4, 1])
    assert place(snapshot)[4] == {2: 1}
    snapshot = build_snapshot(nodes("v100", count=3, gpus=6), [{0: 3}, {1: 4}, {2: 6}], [4, 3])
    assert 4 not in place(snapshot)
    assert place(snapshot, placer=Buddy("greedy"))[4] == {0: 3}


def test_a_job_that_finds_no_nodes_is_not_overtaken_forever() -> None:
    # Jobs of three GPUs come and go on nodes of eight, two per node; one job needs a whole node.
    jobs = Jobs.of(
        id=["whole", *(f"three-{n}" for n in range(60))],
        submit_s=[1.0, *(0.0 if n < 4 else 10.0 * n for n in range(60))],
        gpus=[8, *([3] * 60)],
        duration_s=[10.0, *(100.0 + n % 7 for n in range(60))],
    )
    assert first_start_times(simulate(jobs, p.fifo, count=2, gpus=8, place=Buddy()))["whole"] < 250.0


def test_a_job_finds_no_nodes_only_because_of_those_before_it() -> None:
    cluster = join_nodes(nodes("v100", count=3, gpus=8), nodes("v100", count=5, gpus=2))
    running = [{2: 1}, {7: 1}, {1: 3}, {6: 2}, {5: 1}, {1: 2}, {5: 1}, {4: 1}, {0: 4}, {2: 3}]
    order = [13, 10, 11, 4, 5, 0, 2, 1, 8, 7, 12, 14, 6, 9, 3]
    gpus = [8, 8, 4, 8, 8, 2, 4, 8, 8, 8, 1, 1, 2, 3, 2]  # most running jobs grow or shrink
    plan = build_plan(*order, gpus=gpus, keeps=True)
    found = place(build_snapshot(cluster, running, [1, 6, 12, 2, 3]), plan, Buddy("none"))
    line = [*found, *(job for job in order if job not in found)]
    again = build_snapshot(cluster, list(found.values()), [1] * (15 - len(found)))
    plan = build_plan(*(line.index(job) for job in order), gpus=gpus, keeps=True)
    assert place(again, plan, Buddy("none")) == dict(enumerate(found.values()))


def test_an_unknown_backfill_is_refused() -> None:
    with pytest.raises(ConfigError, match="backfill must be one of none, easy, greedy, got 'esay'") as caught:
        Buddy("esay")  # type: ignore[arg-type]
    assert "easy" in caught.value.hint


# -- random clusters and jobs


class CheckedBuddy:
    """A placer with checks of each placement."""

    def __init__(self, place: Buddy) -> None:
        self.place = place

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        placement = self.place(plan, snapshot, models)
        self.check_blocks_are_aligned_and_disjoint(placement, snapshot)
        self.check_only_large_jobs_span_nodes(placement, snapshot)
        self.check_moves_let_a_job_start(plan, placement, snapshot)
        return placement

    def check_blocks_are_aligned_and_disjoint(self, placement: Placement, snapshot: Snapshot) -> None:
        layout = lay_out_blocks(placement.leases)
        assert (layout.offset % layout.size == 0).all()
        assert (layout.offset + layout.size <= snapshot.nodes.gpus[layout.node]).all()
        same = layout.node[1:] == layout.node[:-1]
        assert (layout.offset[1:] >= (layout.offset + layout.size)[:-1])[same].all()

    def check_only_large_jobs_span_nodes(self, placement: Placement, snapshot: Snapshot) -> None:
        before = gpus_by_job(snapshot.leases)
        for job, place in gpus_by_job(placement.leases).items():
            if place != before.get(job) and len(place) > 1:
                kind = snapshot.nodes.kind.codes == snapshot.nodes.kind.codes[min(place)]
                sizes = snapshot.nodes.gpus[kind & snapshot.usable]
                assert sum(place.values()) > sizes.max()
                whole = sum(gpus == snapshot.nodes.gpus[node] for node, gpus in place.items())
                assert whole >= len(place) - 1

    def check_moves_let_a_job_start(self, plan: Plan, placement: Placement, snapshot: Snapshot) -> None:
        before, after = gpus_by_job(snapshot.leases), gpus_by_job(placement.leases)
        moved = [job for job in before if job in after and after[job] != before[job]]
        if moved and plan.non_preemptive:
            assert set(after) - set(before), f"{moved} were moved, but no job started"


@st.composite
def power_of_two_clusters(draw: st.DrawFn, most: int = 1) -> tuple[Nodes, Jobs]:
    """Generate equal nodes, and jobs of up to *most* nodes."""
    size = 2 ** draw(st.integers(0, 4))
    cluster = nodes("v100", count=draw(st.integers(1, 9)), gpus=size, rack_size=4)
    sizes = [2**k for k in range(10) if 2**k <= size * most]
    count = draw(st.integers(1, 40))
    gpus = draw(st.lists(st.sampled_from(sizes), min_size=count, max_size=count))
    seconds = st.integers(0, 500).map(float)
    lists = (draw(st.lists(seconds, min_size=count, max_size=count)) for _ in range(2))
    return cluster, Jobs.of(submit_s=next(lists), gpus=gpus, duration_s=next(lists))


@given(generated=power_of_two_clusters(), mode=st.sampled_from(("none", "easy", "greedy")))
def test_power_of_two_jobs_start_if_enough_gpus_are_free(generated: tuple[Nodes, Jobs], mode: str) -> None:
    cluster, jobs = generated

    class Complete(CheckedBuddy):
        def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
            placement = super().__call__(plan, snapshot, models)
            used = int(placement.leases.gpus.sum())
            head = placement.reason == REASONS.index(Reason.NO_ROOM)
            assert (snapshot.queue.requested_gpus[head] > cluster.gpus.sum() - used).all()
            return placement

    for policy in (p.fifo, p.Las(60.0)):
        simulate(jobs, policy, nodes=cluster, place=Complete(Buddy(mode)))  # type: ignore[arg-type]


@given(generated=power_of_two_clusters(most=4), mode=st.sampled_from(("none", "easy", "greedy")))
def test_power_of_two_jobs_that_take_whole_nodes_start_if_enough_gpus_are_free(
    generated: tuple[Nodes, Jobs], mode: str
) -> None:
    test_power_of_two_jobs_start_if_enough_gpus_are_free.hypothesis.inner_test(generated, mode)  # type: ignore[attr-defined]


@st.composite
def mixed_clusters(draw: st.DrawFn) -> tuple[Nodes, Jobs]:
    """Generate nodes and jobs of any size."""
    parts = [
        nodes("v100", count=draw(st.integers(1, 4)), gpus=draw(st.integers(1, 9)), rack_size=3)
        for _ in range(draw(st.integers(1, 3)))
    ]
    cluster = join_nodes(*parts)
    count = draw(st.integers(1, 30))
    most = int(cluster.gpus.sum())
    gpus = draw(st.lists(st.integers(1, most), min_size=count, max_size=count))
    if draw(st.booleans()):
        gpus = [1 + (g - 1) % (int(cluster.gpus.max()) + 2) for g in gpus]
        gpus = [min(g, most) for g in gpus]
    seconds = st.integers(0, 500).map(float)
    lists = (draw(st.lists(seconds, min_size=count, max_size=count)) for _ in range(2))
    return cluster, Jobs.of(submit_s=next(lists), gpus=gpus, duration_s=next(lists))


@given(generated=mixed_clusters(), mode=st.sampled_from(("none", "easy", "greedy")))
def test_every_job_starts_with_sizes_that_are_no_powers_of_two(
    generated: tuple[Nodes, Jobs], mode: str
) -> None:
    cluster, jobs = generated
    for policy in (p.fifo, p.Las(60.0), p.srtf):
        log = simulate(jobs, policy, nodes=cluster, place=CheckedBuddy(Buddy(mode)))  # type: ignore[arg-type]
        assert len(first_start_times(log)) == len(jobs), "a job never started"


@given(generated=power_of_two_clusters())
def test_buddy_blocks_merge_back_to_a_whole_rack(generated: tuple[Nodes, Jobs]) -> None:
    cluster, jobs = generated
    rack = int((cluster.rack == 0).sum())
    end_s = float((jobs.submit_s + jobs.duration_s.sum() + 1).max())
    last = Jobs.of(
        submit_s=[*jobs.submit_s, end_s],
        gpus=[*jobs.gpus, rack * int(cluster.gpus[0])],
        duration_s=[*jobs.duration_s, 1.0],
    )
    log = simulate(last, p.fifo, nodes=cluster, place=Buddy())
    held = log.actions[log.actions[:, ACTION_JOB] == len(jobs), ACTION_NODE]
    assert len(set(cluster.rack[held].tolist())) == 1


def test_blocks_are_laid_out_by_size() -> None:
    leases = Leases.of([0, 1, 2, 3, 4], [0, 1, 2, 3, 0], [0, 0, 0, 1, 0], [1, 4, 3, 6, 1])
    layout = lay_out_blocks(leases)
    columns = (layout.job, layout.node, layout.offset, layout.size)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (1, 0, 0, 4),
        (2, 0, 4, 2),
        (0, 0, 6, 1),
        (2, 0, 7, 1),
        (3, 1, 0, 4),
        (3, 1, 4, 2),
    ]
    assert len(lay_out_blocks(Leases.of((), (), (), ()))) == 0
