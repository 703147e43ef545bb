"""Plans that name nodes and kinds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from support.simulations import finish_times, first_start_times, simulate, started_jobs
from wattline import policy as p
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import ACTION_JOB, ACTION_NODE, ACTION_VERB, POWER_ON, RETUNE, START, STOP
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError, GrantedTwice, PlanError
from wattline.placement import Buddy, Pack, Power

TWO = Jobs.of(id=["a", "b"], submit_s=[0, 10], gpus=[1, 1], duration_s=[100, 100])


@dataclass(frozen=True)
class Named:
    """A policy that puts each row of the queue on a node from a table, by the number of queued jobs."""

    node: dict[int, tuple[int, ...]]
    cap_w: int = 0

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        rows = np.arange(len(snapshot.queue), dtype=np.int64)
        node = np.array(self.node[len(rows)][: len(rows)], dtype=np.int64)
        cap_w = np.full(len(rows), self.cap_w + len(rows) if self.cap_w else 0, dtype=np.int64)
        return Plan(rows, snapshot.queue.requested_gpus, rows, node=node, cap_w=cap_w)


def list_nodes(log, verb=START):  # type: ignore[no-untyped-def]
    """Return the job id and the node of each action of this *verb*."""
    rows = log.actions[log.actions[:, ACTION_VERB] == verb]
    return [(str(log.jobs.id[job]), int(node)) for job, node in rows[:, [ACTION_JOB, ACTION_NODE]]]


def test_jobs_go_to_the_nodes_that_the_plan_names() -> None:
    log = simulate(TWO, Named({0: (), 1: (1,), 2: (1, 0)}), count=2)
    assert list_nodes(log)[:2] == [("a", 1), ("b", 0)]


def test_a_job_that_stays_on_its_node_gets_another_cap_without_a_stop() -> None:
    log = simulate(TWO, Named({0: (), 1: (0,), 2: (0, 1)}, cap_w=200), count=2)
    assert len(log.actions[log.actions[:, ACTION_VERB] == RETUNE]) == 1
    assert list_nodes(log, STOP) == [("b", -1)]  # once it is alone the table names node 0


def test_a_job_without_room_waits_while_a_running_job_goes_on() -> None:
    log = simulate(TWO, Named({0: (), 1: (0,), 2: (0, 0)}), count=1)
    assert finish_times(log) == {"a": 100.0, "b": 200.0}
    assert started_jobs(log) == ["a", "b"]


def test_a_node_that_is_off_is_switched_on_for_a_job_that_the_plan_puts_there() -> None:
    cluster = nodes("v100", count=2, gpus=1, boot_s=5.0)
    log = simulate(TWO, Named({0: (), 1: (0,), 2: (0, 1)}), nodes=cluster, place=Power(Pack()))
    assert 1 in log.actions[log.actions[:, ACTION_VERB] == POWER_ON, ACTION_NODE]
    assert first_start_times(log)["b"] == 15.0


def test_a_running_job_goes_on_until_the_node_it_moves_to_is_up() -> None:
    cluster = nodes("v100", count=2, gpus=1, off_w=1.0, boot_s=5.0, boot_w=1.0)
    later = Jobs.of(id=["a", "b"], submit_s=[0, 50], gpus=[1, 1], duration_s=[100, 10])
    log = simulate(later, Named({0: (), 1: (0,), 2: (1, 0)}), nodes=cluster, place=Power(Pack()))
    assert list_nodes(log) == [("a", 0), ("a", 1), ("b", 0), ("a", 0)]
    assert finish_times(log)["a"] == 100.0  # moving is free here, and it never waited


def test_no_job_is_stopped_for_a_node_that_is_still_off() -> None:
    # b runs on node 0 and moves to node 1, which takes long to boot; a gets its GPU.
    def plan_nodes(snapshot: Snapshot, models: Models) -> Plan:
        rows = np.arange(len(snapshot.queue), dtype=np.int64)
        if snapshot.now_s < 50 and len(rows) == 2:
            return Plan(
                rows[1:], rows[1:] * 0 + 1, rows[1:], node=np.zeros(1, dtype=np.int64), next_decision_s=50.0
            )
        return Plan(rows, rows * 0 + 1, rows, node=rows)

    cluster = nodes("v100", count=2, gpus=1, off_w=1.0, boot_s=5000.0, boot_w=1.0)
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 0], gpus=[1, 1], duration_s=[1000, 1000])
    log = simulate(jobs, plan_nodes, nodes=cluster, place=Power(Pack()))
    assert finish_times(log) == {"b": 1000.0, "a": 2000.0}
    assert not (log.actions[:, ACTION_VERB] == STOP).any()


def test_two_jobs_can_swap_nodes_at_once() -> None:
    log = simulate(TWO, Named({0: (), 1: (0,), 2: (1, 0)}), count=2)
    assert list_nodes(log)[:3] == [("a", 0), ("a", 1), ("b", 0)]
    assert finish_times(log)["a"] == 100.0


def test_keep_cannot_change_nodes_that_a_plan_names() -> None:
    with pytest.raises(ConfigError, match="keep follows a policy that chooses nodes itself"):
        simulate(TWO, p.chain(p.Andreas("greedy"), p.keep))


def test_invalid_plans_are_refused() -> None:
    with pytest.raises(PlanError, match="the plan names node 7, expected 0 to 0"):
        simulate(TWO, Named({1: (7,)}))
    twice = np.array([0, 0], dtype=np.int64)
    with pytest.raises(GrantedTwice):
        simulate(TWO, lambda snapshot, models: Plan(twice, twice + 1, twice, node=twice))
    with pytest.raises(PlanError, match="this placer chooses nodes itself; type --place pack"):
        simulate(TWO, Named({1: (0,)}), place=Buddy())


def test_a_job_gets_only_the_kind_that_the_plan_names() -> None:
    cluster = join_nodes(nodes("v100", gpus=1), nodes("a100", gpus=1))

    def plan_second_kind(snapshot: Snapshot, models: Models) -> Plan:
        plan = p.plan_as_requested(snapshot)
        return Plan(plan.row, plan.gpus, plan.group, kind=np.ones(len(plan), dtype=np.int64))

    for place in (Pack(), Buddy()):
        log = simulate(TWO, plan_second_kind, nodes=cluster, place=place)
        assert list_nodes(log) == [("a", 1), ("b", 1)]
