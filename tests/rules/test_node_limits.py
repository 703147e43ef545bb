"""Jobs keep to the number of nodes that they were recorded on."""

from typing import Any

import numpy as np
import pytest

from support.ruled_simulations import RuledRun, build_records, simulate_ruled
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.rules.node_limits import RecordedNodeLimits
from wattline.rules.node_sets import bind_nodes
from wattline.rules.placer import RuledPack
from wattline.rules.rule_set import RuleSet
from wattline.testing import PlacerContract
from wattline.trace.recorded_nodes import count_nodes, count_recorded_nodes


def place_on_one_node(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
    """Place jobs that were all recorded on one node."""
    limits = RecordedNodeLimits(np.ones(len(snapshot.jobs), dtype=np.int64))
    return RuledPack(bind_nodes(RuleSet(), snapshot.nodes), node_limits=limits)(plan, snapshot, models)


class TestRecordedNodeLimits(PlacerContract):
    place = place_on_one_node


def simulate(cluster: str, gpus: list[int], nodes: list[str], **more: Any) -> RuledRun:
    """Simulate jobs of 100 s, submitted every second."""
    jobs = {"submit_s": list(range(len(gpus))), "gpus": gpus, "duration_s": [100.0] * len(gpus)}
    durations = more.pop("duration_s", None)
    jobs |= {} if durations is None else {"duration_s": durations}
    return simulate_ruled(RuleSet(), cluster, jobs, keep_nodes=True, nodes=nodes, **more)


def test_a_job_recorded_on_one_node_waits_for_one() -> None:
    run = simulate("2xv100:4", [3, 3, 2], ["1", "1", "1"])
    assert run.start_s == [0.0, 1.0, 100.0]
    assert len(run.nodes[2]) == 1


def test_a_job_recorded_on_two_nodes_takes_both() -> None:
    run = simulate("2xv100:4", [3, 3, 2], ["1", "1", "n[1-2]"])
    assert run.start_s == [0.0, 1.0, 2.0]
    assert run.nodes[2] == [0, 1]


def test_a_job_without_a_recorded_number_may_spread() -> None:
    assert simulate("2xv100:4", [3, 3, 2], ["1", "1", ""]).start_s == [0.0, 1.0, 2.0]


def test_on_smaller_nodes_a_job_takes_the_fewest_that_hold_it() -> None:
    run = simulate("4xv100:2", [1, 1, 4], ["1", "1", "1"])
    assert run.start_s == [0.0, 1.0, 2.0]  # both small jobs are on node 0
    assert run.nodes[2] == [1, 2]


def test_backfill_keeps_the_node_free_for_which_the_first_job_waits() -> None:
    # Job 2 waits for a whole node; node 0 has it after 50 s. Job 3 fits on both, and goes to the other one.
    run = simulate("2xv100:4", [3, 2, 4, 1, 1], ["1"] * 5, duration_s=[50.0, 200.0, 10.0, 300.0, 300.0])
    assert run.start_s[2] == 50.0
    assert run.start_s[3] == 3.0
    assert run.nodes[3] == [1]


@pytest.mark.parametrize(
    ("text", "count"),
    [("3", "3"), ("n7", "1"), ("n[1-3,7],m1", "5"), ("", ""), ("n[1-3,", ""), ("n1,n2,n+", "")],
)
def test_nodes_are_counted_in_lists(text: str, count: str) -> None:
    assert count_nodes(text) == count


def test_unknown_numbers_of_nodes_are_0() -> None:
    assert count_recorded_nodes(build_records(3, nodes=["2", "", "n[1-4]"])).tolist() == [2, 0, 4]


def test_limits_need_records() -> None:
    run = simulate("2xv100:4", [3, 3, 2], ["", "", ""])
    assert run.bound is None
